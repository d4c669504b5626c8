"""The smallest runs that cover all features."""

from __future__ import annotations

import csv
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from matplotlib.figure import Figure

from rlgates.experiments.configs.agent import AgentConfig
from rlgates.experiments.configs.task import TaskConfig
from rlgates.experiments.runs.agent.build import AGENTS

TIMES = ("time/seconds", "time/fps", "final/seconds")
SETTINGS = {"explore_steps": 1, "distractor_steps": 1, "reward_steps": 5, "end_on_choice": True}

TINY = TaskConfig(
    task_settings={"delay": 2},
    hidden_size=8,
    updates=6,
    batch_size=4,
    eval_every=2,
    eval_sequences=16,
)
"""Six updates of a tiny network."""


def tiny(folder: Path | str, **changes: Any) -> AgentConfig:
    """Six rollouts of 56 steps."""
    values: dict[str, Any] = {
        "env_settings": SETTINGS,
        "hidden_size": 4,
        "net_arch": (),
        "total_steps": 6 * 56,
        "window": 20,
        "n_envs": 8,
        "n_epochs": 2,
        "n_minibatches": 2,
        "eval_every": 150,
        "eval_episodes": 6,
        "final_episodes": 20,
        "eval_deterministic": False,
        "checkpoint_minutes": 0.0,
        "folder": str(folder),
    }
    return AgentConfig(**{**values, **changes})


def words(config: AgentConfig) -> list[str]:
    """The command line of a config made by `tiny`."""
    pairs = [f"{name}={value}" for name, value in config.env_settings.items()]
    named = {
        "total_steps": config.total_steps,
        "hidden_size": config.hidden_size,
        "window": config.window,
        "n_envs": config.n_envs,
        "n_epochs": config.n_epochs,
        "n_minibatches": config.n_minibatches,
        "eval_every": config.eval_every,
        "eval_episodes": config.eval_episodes,
        "final_episodes": config.final_episodes,
        "checkpoint_minutes": config.checkpoint_minutes,
        "folder": config.folder,
    }
    options = [word for name, value in named.items() for word in (f"--{name}", str(value))]
    return ["train", *options, "--no-eval-deterministic", "--net-arch", "--env-settings", *pairs]


def table(config: AgentConfig, seed: int) -> list[dict[str, str]]:
    """The rows of a run's progress.csv, without the times."""
    with (config.run_folder(seed) / "progress.csv").open(newline="") as file:
        return [
            {key: value for key, value in row.items() if key not in TIMES}
            for row in csv.DictReader(file)
        ]


def agent(config: AgentConfig, seed: int) -> dict[str, Any]:
    """The weights and the optimizer of a finished run."""
    kind = AGENTS[config.algo]
    with warnings.catch_warnings():  # of the statistics of a VecNormalize
        warnings.simplefilter("ignore")
        return kind.load(config.run_folder(seed) / "model.rlgates").get_parameters()


def scalars(config: AgentConfig, seed: int) -> dict[str, list[tuple[int, float]]]:
    """Every scalar in a run's event files, by its tag, without the times."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(config.run_folder(seed)), {"scalars": 0, "histograms": 0})
    events.Reload()
    points_by_tag = {
        tag: [(event.step, event.value) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
        if tag not in TIMES
    }
    for tag in events.Tags()["histograms"]:
        points_by_tag[tag] = [
            (event.step, event.histogram_value.sum) for event in events.Histograms(tag)
        ]
    # Files of the same second are read in any order; what is there twice stays twice.
    return {tag: sorted(points) for tag, points in points_by_tag.items()}


def figures_of(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch, pictures: bool = True
) -> list[Figure]:
    """A list that collects the figures a module saves; without pictures, in a fifth of the time."""
    figures: list[Figure] = []
    save: Any = module.__dict__["save"]

    def saved(figure: Figure, path: Path) -> None:
        figures.append(figure)
        if pictures:
            save(figure, path)

    monkeypatch.setattr(module, "save", saved)
    return figures


def assert_readable(figure: Figure) -> None:
    """Every panel of a figure has names and ticks on both axes, and something to see."""
    assert figure.axes
    for axes in figure.axes:
        name = axes.get_title("left")
        assert axes.get_xlabel(), name
        assert axes.get_ylabel(), name
        for axis in (axes.xaxis, axes.yaxis):
            assert axis.get_tick_params()["labelleft" if axis is axes.yaxis else "labelbottom"]
        curves = [line for line in axes.lines if len({*map(float, line.get_ydata())}) > 1]
        shown = (*curves, *axes.texts, *axes.collections, *axes.patches)
        points = [line for line in axes.lines if line.get_linestyle() == "None"]
        assert shown or points, f"{name} is empty"


def equal(one: Any, other: Any) -> bool:
    """Whether two nested containers of tensors and numbers are equal, bit for bit."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    return bool(one == other)


def stop_after(rollouts: int) -> Callable[[], bool]:
    """A stop request after this many updates."""
    asked = iter(range(10**9))
    return lambda: next(asked) >= rollouts
