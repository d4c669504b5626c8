"""The distractor phase that the match tasks share: apples to collect, of no use for the choice.

Apples are kept as the time from which each candidate cell shows one, int64 (B, cells + 1): 0
for the chosen cells, `NEVER` for the others and for the extra last column, which stands for
every place that is no candidate.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlgates.envs.philox import Array, below, permutations
from rlgates.envs.settings import check_payment

BOARD = (
    "###########",
    "#a a a a a#",
    "# a a a a #",
    "#a a a a a#",
    "# a a a a #",
    "#a a P a a#",
    "###########",
)
CELLS = sum(row.count("a") for row in BOARD)
NEVER = 2**30


def scatter(words: Array, num_apples: int) -> Array:
    """Apples on `num_apples` candidate cells drawn without replacement.

    Args:
        words: random 32-bit words, (B, CELLS).
    """
    batch = words.shape[0]
    apples = np.full((batch, CELLS + 1), NEVER)
    apples[np.arange(batch)[:, None], permutations(words)[:, :num_apples]] = 0
    return apples


def values(words: Array, reward: float | tuple[float, float]) -> Array:
    """What every apple of an episode is worth, float32 (B,): one end of a pair by coin flip."""
    low, high = reward if isinstance(reward, tuple) else (reward, reward)
    return np.where(below(words, 2) == 0, low, high).astype(np.float32)


def pick(apples: Array, cell: Array, t: Array, respawn: int | None) -> tuple[Array, Array]:
    """Pick up what lies where the players stand at time t; also the mask of who found an apple.

    Only an apple that the last picture showed can be picked up. One taken at time t is hidden
    for the next `respawn` pictures as well and shown again at t + respawn + 1.

    Args:
        cell: candidate cell of each player, (B,), or `CELLS` where there is none.
    """
    rows = np.arange(t.shape[0])
    shown_from = apples[rows, cell]
    picked = shown_from < t
    apples = apples.copy()
    apples[rows, cell] = np.where(picked, NEVER if respawn is None else t + respawn + 1, shown_from)
    return apples, picked


def shown(apples: Array, t: Array) -> Array:
    """Which cells show an apple at time t, bool (B, CELLS)."""
    visible: Array = apples[:, :-1] <= t[:, None]
    return visible


def check_reward(value: Any) -> float | tuple[float, float]:
    """An apple reward as a float, or as a pair of floats."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        if len(value) != 2:
            raise ValueError(f"apple_reward must be a number or a pair (low, high), got {value!r}.")
        return check_payment("apple_reward", value[0]), check_payment("apple_reward", value[1])
    return check_payment("apple_reward", value)
