"""How many steps a second the environments make, with random actions and automatic resets."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rlgates.envs import TASKS, BatchedEnv, make_task
from rlgates.envs.sb3 import make_vec_env
from rlgates.envs.torch import make_torch_env
from rlgates.errors import check_choice, check_size
from rlgates.experiments.bench_configs import EnvBenchConfig
from rlgates.experiments.devices import find_device
from rlgates.experiments.logs import write_rows
from rlgates.experiments.manifest import git_state
from rlgates.experiments.tables import Row, markdown, read, redraw_table

NAME = "env_speed"
FRONT_ENDS = {
    "native": "`BatchedEnv`",
    "sb3": "SB3 `VecEnv`",
    "torch": "torch, CPU",
    "cuda": "torch, GPU",
}


def bench_envs(config: EnvBenchConfig) -> Path:
    """Time the environments, print a line for each, and write `env_speed.csv`."""
    check_size("repeats", config.repeats)
    for env_id in config.envs:
        check_choice("environment id", env_id, TASKS)
    cases = [case.partition(":")[::2] for case in config.cases]
    for front_end, size in cases:
        check_choice("front end", front_end, FRONT_ENDS)
        if not size.isdecimal() or int(size) < 1:
            raise ValueError(f"cases are written front_end:num_envs, got {front_end}:{size}.")
        if front_end == "cuda":
            find_device(front_end, ("cuda", "cpu"))
    path = Path(config.results) / f"{NAME}.csv"
    rows = {(r["env"], r["front_end"], r["num_envs"]): r for r in read(path)}
    git = git_state() or {"commit": ""}
    for env_id in config.envs:
        for front_end, size in cases:
            rates = np.sort(measure(env_id, front_end, int(size), config.repeats)) / 1e6
            low, middle, high = rates[0], float(np.median(rates)), rates[-1]
            rows[env_id, front_end, size] = {
                "env": env_id,
                "front_end": front_end,
                "num_envs": size,
                "million_steps": f"{middle:.3g}",
                "low": f"{low:.3g}",
                "high": f"{high:.3g}",
                "repeats": str(config.repeats),
                "commit": git["commit"],
            }
            print(
                f"{env_id:<26} {front_end:<6} x {int(size):>6,}  {middle:8.3f} M steps/s "
                f"[{low:.3f}, {high:.3f}]",
                flush=True,
            )
            write_rows(path, list(rows.values()), list(rows[env_id, front_end, size]))
    redraw_env_speed(path.parent)
    return path


def measure(env_id: str, front_end: str, num_envs: int, repeats: int) -> Any:
    """Steps a second in each of `repeats` stretches, (repeats,).

    A stretch is an episode at the least, so that it has its share of resets.
    """
    length = make_task(env_id).max_episode_length
    steps = length * max(1, round(200_000 / (length * num_envs)))
    count = int(make_task(env_id).action_space.n)
    actions: Any = np.random.default_rng(0).integers(count, size=(steps, num_envs))
    finish: Callable[[], object] = lambda: None  # noqa: E731
    env: Any
    if front_end == "native":
        env = BatchedEnv(make_task(env_id), num_envs, seed=0)
    elif front_end == "sb3":
        env = make_vec_env(env_id, num_envs, seed=0)
    else:
        device = "cuda" if front_end == "cuda" else "cpu"
        env = make_torch_env(env_id, num_envs, seed=0, device=device)
        actions = torch.as_tensor(actions, device=device)
        finish = torch.cuda.synchronize if device == "cuda" else finish
    env.reset()
    play = partial(_play, env, actions, finish)
    play()  # tables and caches
    return np.array([steps * num_envs / play() for _ in range(repeats)])


def _play(env: Any, actions: Any, finish: Callable[[], object]) -> float:
    """Seconds for the actions."""
    finish()
    start = time.perf_counter()
    for action in actions:
        env.step(action)
    finish()
    return time.perf_counter() - start


def redraw_env_speed(results: Path) -> list[Path]:
    """Write the table of speeds again from its CSV file; what was written."""
    return redraw_table(results, NAME, table)


def table(rows: list[Row]) -> str:
    """A line for each environment, a column for each front end and batch size."""
    columns = list(dict.fromkeys((row["front_end"], row["num_envs"]) for row in rows))
    heads = ["environment"]
    heads += [f"{FRONT_ENDS[end]} x {int(size):,}" for end, size in columns]
    found = {(row["env"], row["front_end"], row["num_envs"]): row for row in rows}
    lines = []
    for env in dict.fromkeys(row["env"] for row in rows):
        cells = [found.get((env, *column)) for column in columns]
        words = [
            f"{cell['million_steps']} M [{cell['low']}, {cell['high']}]" if cell else ""
            for cell in cells
        ]
        lines.append([f"`{env}`", *words])
    commits = ", ".join(dict.fromkeys(row["commit"][:7] for row in rows))
    repeats = ", ".join(dict.fromkeys(row["repeats"] for row in rows))
    return markdown(heads, lines) + (
        "\nMillion steps a second of all rows together, with random actions and automatic "
        f"resets: median and range of {repeats} stretches; `rlgates bench envs`, commit "
        f"{commits}.\n"
    )
