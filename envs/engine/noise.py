"""Normal noise on observations, the same on every device."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from gymnasium import spaces

from rlgates.envs.engine.arrays import Array, Tables, look_up, namespace, row_starts
from rlgates.envs.engine.elementary import (
    NORMAL_BITS,
    NORMAL_LEVELS,
    normal,
    normal_quantiles,
)
from rlgates.envs.engine.philox import Key


def sample_levels(key: Key, count: int) -> Array:
    """Uniform integers in [0, NORMAL_LEVELS), int32 (B, count), for `count` even; stream 1."""
    words = key.words(count // 2, stream=1)
    xp = namespace(words)
    levels: Array = xp.empty((words.shape[0], count), dtype=xp.int32, device=words.device)
    # Remainder and quotient: `%` and `//` take several times as long.
    levels[:, 0::2], levels[:, 1::2] = words & (NORMAL_LEVELS - 1), words >> NORMAL_BITS
    return levels


class Noise:
    """Noise on the observations of a game, clipped to the bounds of their space.

    Args:
        sigma: the standard deviation.
        space: of the observations, (n,).
    """

    def __init__(self, sigma: float, space: spaces.Box) -> None:
        self._sigma = sigma
        self._tables = Tables(low=space.low, high=space.high, columns=np.arange(space.shape[0]))

    @cached_property
    def _quantiles(self) -> Tables:
        return normal_quantiles()

    def add(self, observations: Array, t: Array, levels: Array) -> Array:
        """`observations` (B, n), float32, at times `t` (B,) with noise.

        Args:
            observations: without noise.
            t: the number of the observation.
            levels: those of an episode, (B, n * observations).
        """
        xp, tables, width = namespace(t), self._tables.on_device_of(t), observations.shape[1]
        first = row_starts(levels.shape[0], levels.shape[1], t) + width * t
        chosen = look_up(levels.reshape(-1), first[:, None] + tables.columns)
        noise = normal(chosen, self._quantiles)
        noisy = observations + self._sigma * noise
        clipped: Array = xp.minimum(xp.maximum(noisy, tables.low), tables.high)
        return clipped
