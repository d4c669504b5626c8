"""Players that only tests need: a control without its cue, and one that takes apples."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from rlgates.envs.engine.arrays import Array
from rlgates.envs.engine.grid import (
    APPLE,
    EAST,
    NORTH,
    PLAYER,
    SOUTH,
    WEST,
    cells_showing,
    first_cell,
)
from rlgates.envs.engine.players import RandomPlayer
from rlgates.envs.engine.spec import Player


class ShuffledCue:
    """A control: shows `player` the cue of another environment, resampled for each episode.

    A player at the ceiling must fall to chance; otherwise something other than the cue reveals
    the answer. Needs at least two environments, which start and end their episodes together.

    Args:
        player: receives the changed observations.
        is_cue: from observations (B, ...) and episode_starts (B,), which entries are the cue,
            bool of a shape that broadcasts to that of the observations.
    """

    def __init__(self, player: Player, is_cue: Callable[[Array, Array], Array]) -> None:
        self.player = player
        self.is_cue = is_cue

    def reset(self, num_envs: int, seed: int | None = None) -> None:
        self.player.reset(num_envs, seed)
        self._rng = np.random.default_rng(seed)
        self._source = np.arange(num_envs)

    def act(self, observations: Array, episode_starts: Array) -> Array:
        if episode_starts.any():
            order = self._rng.permutation(len(episode_starts))
            self._source[order] = np.roll(order, 1)  # one cycle: no environment gets its own cue
        cue = self.is_cue(observations, episode_starts)
        shuffled = np.where(cue, observations[self._source], observations)
        return self.player.act(shuffled, episode_starts)


class ApplePlayer:
    """Goes to the nearest visible apple; acts like `other` where no apple is visible.

    Args:
        other: observes every step, so that it can remember; None for random moves.
    """

    def __init__(self, other: Player | None = None) -> None:
        self.other = RandomPlayer() if other is None else other

    def reset(self, num_envs: int, seed: int | None = None) -> None:
        self.other.reset(num_envs, seed)

    def act(self, observations: Array, episode_starts: Array) -> Array:
        apples = cells_showing(observations, APPLE)
        rows, cols = np.indices(apples.shape[1:])
        row, col = first_cell(cells_showing(observations, PLAYER))
        distance = abs(rows - row[:, None, None]) + abs(cols - col[:, None, None])
        near = np.where(apples, distance, distance.max() + 1)
        to_row, to_col = first_cell(near == near.min(axis=(1, 2), keepdims=True))
        action = np.where(to_row < row, NORTH, SOUTH)
        action = np.where(to_col < col, WEST, np.where(to_col > col, EAST, action))
        other_action = self.other.act(observations, episode_starts)
        return np.where(apples.any(axis=(1, 2)), action, other_action)
