"""The gates of finished runs before and after training, from what their folders hold."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from stable_baselines3.common.vec_env import VecEnv

from rlgates.agents import observe_gates
from rlgates.core import Observation
from rlgates.envs import make_task
from rlgates.experiments import logs
from rlgates.experiments.configs import TrainConfig
from rlgates.experiments.evaluate import evaluation_seed, fresh_env
from rlgates.experiments.gate_figures import Growth, draw_gates
from rlgates.experiments.manifest import read_config
from rlgates.experiments.runs import run_title
from rlgates.experiments.train import Agent, build, trained

EPISODES = 32


def draw_runs(folders: Sequence[Path], path: Path) -> bool:
    """Draw the gates of one or more finished runs into one picture.

    Runs of cores without forget gates are left out.

    Returns:
        whether anything was left to draw.

    Raises:
        ValueError: a folder without a finished run.
    """
    runs = [(folder, *read_config(folder)) for folder in dict.fromkeys(folders)]
    titles = [run_title(config) for _, config, _ in runs]
    names = [
        config.core if len(set(titles)) == 1 else f"{config.core} {title}"
        for (_, config, _), title in zip(runs, titles, strict=True)
    ]
    if len(set(names)) < len(names):
        names = [f"{name} seed {seed}" for name, (_, _, seed) in zip(names, runs, strict=True)]
    panels, growths = {}, {}
    for name, (folder, config, seed) in zip(names, runs, strict=True):
        before, after = gates_of_run(folder, config, seed)
        if after.forget:
            panels[name] = before, after
            grown = growth(folder)
            if grown is not None:
                growths[name] = grown
    if panels:
        where = f"{titles[0]}: " if len(set(titles)) == 1 else ""
        draw_gates(panels, path, f"{where}forget gates before and after training", growths)
    return bool(panels)


def gates_of_run(folder: Path, config: TrainConfig, seed: int) -> tuple[Observation, Observation]:
    """What the untrained and the trained core of a run do in the same fresh episodes.

    The untrained agent is built again from the seed; the trained one plays.
    """
    after = trained(folder, config, seed)
    before, _ = build(config, seed)
    final = evaluation_seed(seed, final=True)
    env = fresh_env(after, config.env, config.env_settings, EPISODES, final)
    steps = make_task(config.env, **config.env_settings).max_episode_length
    seen, starts = _played(after, env, steps)
    policies: Any = before.policy, after.policy
    first, last = (observe_gates(policy, seen, starts) for policy in policies)
    return first, last


def _played(model: Agent, env: VecEnv, steps: int) -> tuple[Any, np.ndarray[Any, Any]]:
    """Observations (T, B, ...) of the likeliest actions, and where episodes start (T, B)."""
    obs: Any = env.reset()
    starts, state = np.ones(env.num_envs, bool), None
    seen, begun = [], []
    for _ in range(steps):
        seen.append(obs)
        begun.append(starts)
        actions, state = model.predict(obs, state, starts, deterministic=True)
        obs, _, starts, _ = env.step(actions)
    if isinstance(obs, dict):
        return {key: np.stack([one[key] for one in seen]) for key in obs}, np.stack(begun)
    return np.stack(seen), np.stack(begun)


def growth(folder: Path) -> Growth | None:
    """The timescales that the run wrote down while it trained, if it did."""
    rows = logs.read_rows(folder / "progress.csv")
    tag = "gates/log10_timescale"
    steps, *marks = (
        logs.column(rows, name)
        for name in (logs.STEPS, f"{tag}/q10", f"{tag}/median", f"{tag}/q90")
    )
    there = ~np.isnan(marks[0])
    if not there.any():
        return None
    low, middle, high = (10 ** mark[there] for mark in marks)
    return Growth(steps[there], low, middle, high)
