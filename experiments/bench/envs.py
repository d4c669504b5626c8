"""Time the environments in steps per second, with random actions and automatic resets."""

from __future__ import annotations

import importlib
import os
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium.vector import SyncVectorEnv

from rlgates.envs import ENVS, BatchedEnv, make_env_spec
from rlgates.envs.engine.actions import random_actions
from rlgates.envs.sb3 import make_vec_env
from rlgates.envs.torch import make_torch_env
from rlgates.errors import check_choice, check_size
from rlgates.experiments.bench.configs import EnvBenchConfig
from rlgates.experiments.bench.pairs import row_circumstances
from rlgates.experiments.configs.devices import find_device
from rlgates.experiments.report.outputs import OUTPUTS, redraw_output
from rlgates.experiments.report.timings.tables import FRONT_ENDS
from rlgates.experiments.runs.files import read_table, write_table
from rlgates.experiments.runs.locks import locked


def bench_envs(config: EnvBenchConfig) -> Path:
    """Time the environments, print a line for each, and write `env_speed.csv`.

    Raises:
        ValueError: an unknown environment or front end, a number out of range, no GPU for "cuda",
            or no package of an "original".
    """
    check_size("repeats", config.repeats)
    for env_id in config.envs:
        check_choice("environment id", env_id, ENVS)
    cases = [case.partition(":")[::2] for case in config.cases]
    for front_end, size in cases:
        check_choice("front end", front_end, FRONT_ENDS)
        if not size.isdecimal() or int(size) < 1:
            raise ValueError(f"cases are written front_end:num_envs, got {front_end}:{size}.")
        if front_end == "cuda":
            find_device(front_end, ("cuda", "cpu"))
        for env_id in config.envs if front_end == "original" else ():
            original(env_id)
    (path,) = OUTPUTS["env_speed"].source_paths(Path(config.results))
    load = os.getloadavg()[0]
    read_table(path)  # if it is damaged, nothing is timed
    for env_id in config.envs:
        for front_end, size in cases:
            if front_end == "original" and original(env_id) is None:
                continue
            rates = np.sort(measure(env_id, front_end, int(size), config.repeats)) / 1e6
            low, middle, high = rates[0], float(np.median(rates)), rates[-1]
            row = {
                "env": env_id,
                "front_end": front_end,
                "num_envs": size,
                "million_steps": f"{middle:.3g}",
                "low": f"{low:.3g}",
                "high": f"{high:.3g}",
                "repeats": str(config.repeats),
                **row_circumstances(torch.get_num_threads(), load),
            }
            print(
                f"{env_id:<26} {front_end:<6} x {int(size):>6,}  {middle:8.3f} M steps/s "
                f"[{low:.3f}, {high:.3f}]",
                flush=True,
            )
            with locked(path.parent):
                rows = {(r["env"], r["front_end"], r["num_envs"]): r for r in read_table(path)}
                rows[env_id, front_end, size] = row
                write_table(path, list(rows.values()), list(row))
    redraw_output("env_speed", path.parent)
    return path


def measure(env_id: str, front_end: str, num_envs: int, repeats: int) -> Any:
    """Steps per second of each of `repeats` measurements, (repeats,).

    A measurement is at least one episode long, so that it includes resets.
    """
    length = make_env_spec(env_id).max_episode_length
    enough = 20_000 if front_end == "original" else 200_000
    steps = length * max(1, round(enough / (length * num_envs)))
    space = make_env_spec(env_id).action_space
    actions: Any = random_actions(space, np.random.default_rng(0), steps, num_envs)
    finish: Callable[[], object] = torch.cuda.synchronize if front_end == "cuda" else lambda: None
    env: Any
    if front_end == "native":
        env = BatchedEnv(make_env_spec(env_id), num_envs, seed=0)
    elif front_end == "sb3":
        env = make_vec_env(env_id, num_envs, seed=0)
    elif front_end == "original":
        make = original(env_id)
        assert make is not None
        with warnings.catch_warnings():  # the labyrinths warn that they are no good benchmark
            warnings.simplefilter("ignore", DeprecationWarning)
            env = SyncVectorEnv([make] * num_envs)
    else:
        device = "cuda" if front_end == "cuda" else "cpu"
        env = make_torch_env(env_id, num_envs, seed=0, device=device)
        actions = torch.as_tensor(actions, device=device)
    env.reset()
    play = partial(_play, env, actions, finish)
    play()  # warm up
    return np.array([steps * num_envs / play() for _ in range(repeats)])


def original(env_id: str) -> Callable[[], Any] | None:
    """The game of that name where it comes from, with the defaults here; None if there is none.

    Raises:
        ValueError: its package is not installed.
    """
    name = env_id.partition("/")[2].partition("-")[0]
    package = "minigrid" if name == "MiniGridMemory" else "popgym"
    try:
        games = importlib.import_module(f"{package}.envs")
    except ImportError as error:
        raise ValueError(f"the original of {env_id} needs {package} ({error}).") from error
    if package == "minigrid":
        return partial(games.MemoryEnv, 7, agent_view_size=3)
    game: Callable[[], Any] | None = getattr(games, name.replace("Stateless", "PositionOnly"), None)
    return game


def _play(env: Any, actions: Any, finish: Callable[[], object]) -> float:
    """Seconds that the actions take."""
    finish()
    start = time.perf_counter()
    for action in actions:
        env.step(action)
    finish()
    return time.perf_counter() - start
