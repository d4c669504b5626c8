"""Scripted players for the match tasks: what memory is worth, and what can be had without.

They see only what an agent sees. `MemoryPlayer` always makes the right choice; `ReactivePlayer`
always makes some choice, which is right by chance. Every learning curve lies between the two.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from rlgates.envs.engine import BatchedEnv
from rlgates.envs.grid import ACTIONS, PALETTE, WALL
from rlgates.envs.philox import Array
from rlgates.errors import check_size

NORTH, SOUTH, WEST, EAST = range(len(ACTIONS))


class Player(Protocol):
    """Acts in a batch of environments on what is seen there."""

    def reset(self, num_envs: int, seed: int | None = None) -> None:
        """Forget everything; `seed` is for what the player draws by itself."""

    def act(self, observations: Array, starts: Array) -> Array:
        """An action for each row, int64 (B,).

        Args:
            observations: uint8 (B, crop, crop, 3), crop at least 5.
            starts: bool (B,), where a picture is the first one of its episode.
        """


class ReactivePlayer:
    """The floor: a choice without memory, by a rule on the present picture alone.

    Goes north until a wall stops it, then west. In the reward hall that leads onto the middle
    pad, or along the top wall onto the western one if there are only two. Where the pads are
    shuffled or the cue is drawn for each episode, it is right once in `num_colors` times.
    """

    def reset(self, num_envs: int, seed: int | None = None) -> None:
        pass

    def act(self, observations: Array, starts: Array) -> Array:
        c = _centre(observations)
        return np.where(_walls(observations)[:, c - 1, c], WEST, NORTH)


class MemoryPlayer:
    """The ceiling: remembers the cue and walks onto its pad, at most 9 steps after the entry.

    Moves at random until it stands in the neck of the reward hall, the only place with walls
    two cells to both sides. From there it goes by counting its steps: two north, where the
    middle pad is in view; if that has another colour, one west, where the western pad is; if
    that is wrong too, it is the eastern one.

    Args:
        guess: None, or a control without any knowledge of the cue: the "remembered" colour is
            drawn among this many. If it did better than chance, the pictures after the explore
            phase or the order of the pads would leak the answer.
    """

    def __init__(self, guess: int | None = None) -> None:
        self.guess = guess if guess is None else check_size("guess", guess)

    def reset(self, num_envs: int, seed: int | None = None) -> None:
        self._rng = np.random.default_rng(seed)
        self._cue = np.zeros(num_envs, dtype=np.int64)
        self._clock = np.full(num_envs, -1)  # steps made in the reward hall, or -1
        self._col = np.zeros(num_envs, dtype=np.int64)  # columns east of the neck
        self._goal = np.zeros(num_envs, dtype=np.int64)  # the same, of the pad to go to

    def act(self, observations: Array, starts: Array) -> Array:
        c = _centre(observations)
        if starts.any():
            seen = _colors_in(observations).any(axis=(1, 2)).argmax(axis=1)
            if self.guess is not None:
                seen = self._rng.integers(self.guess, size=len(starts))
            self._cue = np.where(starts, seen, self._cue)
            self._clock = np.where(starts, -1, self._clock)

        walls = _walls(observations)
        entered = walls[:, c, c - 2] & walls[:, c, c + 2] & (self._clock < 0)
        for values in (self._clock, self._col, self._goal):
            values[entered] = 0

        # Both places to look from are two rows below the pads.
        rows = np.arange(len(starts))
        wanted = _colors_in(observations)[rows, :, :, self._cue]
        elsewhere = (self._clock == 2) & ~wanted[:, c - 2, c]
        self._goal = np.where(elsewhere, -3, self._goal)
        elsewhere = (self._clock == 3) & (self._goal < 0) & ~wanted[:, c - 2, c - 2]
        self._goal = np.where(elsewhere, 3, self._goal)

        action = np.where(self._goal > self._col, EAST, NORTH)
        action = np.where(self._goal < self._col, WEST, action)
        self._col = self._col + (action == EAST) - (action == WEST)
        inside = self._clock >= 0
        self._clock = np.where(inside, self._clock + 1, -1)
        return np.where(inside, action, self._rng.integers(len(ACTIONS), size=len(starts)))


def play(env: BatchedEnv, player: Player, episodes: int, seed: int = 0) -> dict[str, float]:
    """Means over at least `episodes` episodes, the same number from each row.

    Args:
        env: is reset to `seed`.
        player: is reset to `seed` too.
        episodes: at least 1.

    Returns:
        `episodes` (how many were counted), and the means of `episode_return`,
        `episode_length` and the task's metrics.
    """
    each = -(-check_size("episodes", episodes) // env.num_envs)
    names = ("episode_return", "episode_length", *env.task.metric_names)
    totals = dict.fromkeys(names, 0.0)
    played = np.zeros(env.num_envs, dtype=np.int64)
    obs = env.reset(seed)
    player.reset(env.num_envs, seed)
    starts = np.ones(env.num_envs, dtype=bool)
    while played.min() < each:
        obs, _, terminated, truncated, info = env.step(player.act(obs, starts))
        starts = terminated | truncated
        # A row that is ahead is not counted again, or short episodes would count for more.
        counted = starts & (played < each)
        if counted.any():
            for name in names:
                totals[name] += float(info[name][counted].sum())
        played = played + starts
    count = each * env.num_envs
    return {"episodes": count, **{name: total / count for name, total in totals.items()}}


def _centre(observations: Array) -> int:
    height, width = observations.shape[1:3]
    if height != width or height < 5:
        raise ValueError(
            f"players need square views of 5 x 5 or more cells, got {height} x {width}."
        )
    return int(height) // 2


# Parts of a pixel are enough: the walls' red is theirs alone, and only match colours have a 255.


def _walls(observations: Array) -> Array:
    """Which cells are walls, bool (B, h, w)."""
    walls: Array = observations[..., 0] == PALETTE[WALL, 0]
    return walls


def _colors_in(observations: Array) -> Array:
    """Which cells have which match colour, bool (B, h, w, 3)."""
    colors: Array = observations == 255
    return colors
