"""Scripted players for any game, and `play`, which measures them.

Each game defines `spec.memory_player()`, at the ceiling, and `spec.reactive_player()`, at the
floor: the best player of each kind where that is known, else a good one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rlgates.envs.engine.arrays import Array
from rlgates.envs.engine.batched import BatchedEnv
from rlgates.envs.engine.spec import Player
from rlgates.errors import check_size


class RandomPlayer:
    """Uniformly random actions in [0, num_actions)."""

    def __init__(self, num_actions: int = 4) -> None:
        self.num_actions = check_size("num_actions", num_actions)

    def reset(self, num_envs: int, seed: int | None = None) -> None:
        self._rng = np.random.default_rng(seed)

    def act(self, observations: Array, episode_starts: Array) -> Array:
        return self._rng.integers(self.num_actions, size=len(episode_starts))


def play(env: BatchedEnv, player: Player, episodes: int, seed: int = 0) -> dict[str, float]:
    """Means over at least `episodes` episodes, the same number from each environment.

    Args:
        env: is reset with `seed`.
        player: is reset with `seed` too.
        episodes: at least 1.

    Returns:
        `episodes` (how many were counted), and the means of `episode_return`, `episode_length`
        and the metrics of the spec.
    """
    per_env = -(-check_size("episodes", episodes) // env.num_envs)
    names = ("episode_return", "episode_length", *env.spec.metric_names)
    totals = dict.fromkeys(names, 0.0)
    finished = np.zeros(env.num_envs, dtype=np.int64)
    obs: Any = env.reset(seed)[0]
    player.reset(env.num_envs, seed)
    episode_starts = np.ones(env.num_envs, dtype=bool)
    while finished.min() < per_env:
        obs, _, terminated, truncated, info = env.step(player.act(obs, episode_starts))
        episode_starts = terminated | truncated
        # Further episodes of an environment are not counted: short ones would weigh more.
        counted = episode_starts & (finished < per_env)
        for name in names if counted.any() else ():
            totals[name] += float(info[name][counted].sum())
        finished = finished + episode_starts
    count = per_env * env.num_envs
    return {"episodes": count, **{name: total / count for name, total in totals.items()}}
