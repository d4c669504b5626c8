"""The smallest runs that do everything a real one does."""

from __future__ import annotations

import csv
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from matplotlib.figure import Figure

from rlgates.experiments.configs import TrainConfig
from rlgates.experiments.runs import run_folder
from rlgates.experiments.train import AGENTS

TIMES = ("time/seconds", "time/fps", "final/seconds")
SETTINGS = {"explore_steps": 1, "distractor_steps": 1, "reward_steps": 5, "end_on_choice": True}


def tiny(folder: Path | str, **changes: Any) -> TrainConfig:
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
        "checkpoint_every": 1,
        "folder": str(folder),
    }
    return TrainConfig(**{**values, **changes})


def table(config: TrainConfig, seed: int) -> list[dict[str, str]]:
    """The rows of a run's progress.csv, without the times."""
    with (run_folder(config, seed) / "progress.csv").open(newline="") as file:
        return [
            {key: value for key, value in row.items() if key not in TIMES}
            for row in csv.DictReader(file)
        ]


def agent(config: TrainConfig, seed: int) -> dict[str, Any]:
    """The weights and the optimizer of a finished run."""
    kind = AGENTS[config.algo]
    return kind.load(run_folder(config, seed) / "model.zip").get_parameters()


def scalars(config: TrainConfig, seed: int) -> dict[str, list[tuple[int, float]]]:
    """Every scalar in a run's event files, by its tag, without the times."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run_folder(config, seed)), {"scalars": 0, "histograms": 0})
    events.Reload()
    found = {
        tag: [(event.step, event.value) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
        if tag not in TIMES
    }
    for tag in events.Tags()["histograms"]:
        found[tag] = [(event.step, event.histogram_value.sum) for event in events.Histograms(tag)]
    # Files of the same second are read in any order; what is there twice stays twice.
    return {tag: sorted(points) for tag, points in found.items()}


def figures_of(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """A list that fills with what a module draws; the files are written as always."""
    seen: list[Figure] = []
    save: Any = module.__dict__["save"]

    def saved(figure: Figure, path: Path) -> None:
        seen.append(figure)
        save(figure, path)

    monkeypatch.setattr(module, "save", saved)
    return seen
