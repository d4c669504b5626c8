"""Scripted players: what can be had in each task, and what without memory.

They see only what an agent sees. Every learning curve lies between the two players of `PLAYERS`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Protocol, TypeAlias

import numpy as np

from rlgates.envs import kin_players as kin
from rlgates.envs.arrays import Array
from rlgates.envs.engine import BatchedEnv
from rlgates.envs.grid import ACTIONS, APPLE, FLOOR, KEY, PALETTE, PLAYER, WALL
from rlgates.errors import check_flag, check_size

NORTH, SOUTH, WEST, EAST = range(len(ACTIONS))


class Player(Protocol):
    """Acts in a batch of environments on what is seen there."""

    def reset(self, num_envs: int, seed: int | None = None) -> None:
        """Forget everything; `seed` is for what the player draws by itself."""

    def act(self, observations: Array, starts: Array) -> Array:
        """An action for each row, int64 (B,).

        Args:
            observations: (B, ...) as the task gives them; for the players of Match and
                Key-To-Door uint8 (B, crop, crop, 3) with a crop of at least 5.
            starts: bool (B,), where an observation is the first one of its episode.
        """


class RandomPlayer:
    """Uniformly random actions, of `num_actions`."""

    def __init__(self, num_actions: int = len(ACTIONS)) -> None:
        self.num_actions = check_size("num_actions", num_actions)

    def reset(self, num_envs: int, seed: int | None = None) -> None:
        self._rng = np.random.default_rng(seed)

    def act(self, observations: Array, starts: Array) -> Array:
        return self._rng.integers(self.num_actions, size=len(starts))


class ReactivePlayer:
    """The floor of both Match tasks: a choice by a rule on the present picture alone.

    Goes north until a wall stops it, then west. In the reward hall that leads onto the middle
    pad, or along the top wall onto the western one if there are only two. Nothing in the hall
    tells the target, so without memory no rule is right more than once in `num_colors` times.
    """

    def reset(self, num_envs: int, seed: int | None = None) -> None:
        pass

    def act(self, observations: Array, starts: Array) -> Array:
        c = _centre(observations)
        return np.where(_cells(observations, WALL)[:, c - 1, c], WEST, NORTH)


class MemoryPlayer:
    """The ceiling of both Match tasks: finds the cue, remembers it and walks onto its pad.

    In the two rooms of Active Match it goes west, east, north and west again, each time until a
    wall is two cells ahead; it begins with east where the eastern wall is near. From every
    start that shows it all 26 walls within 6 to 8 moves, and no tour takes fewer. So the 15
    steps of the default are more than enough, and the ceiling is 10, as in Passive Match, where
    the cue is in sight at once.

    After that it moves at random until it stands at the entry of the reward hall, the only
    place with walls two cells to both sides and another one below. From there it goes by
    counting its steps: two north, where the middle pad is in view; if that has another colour,
    one west, where the western pad is; if that is wrong too, it is the eastern one. That takes
    at most 9 steps.

    Args:
        explore: False for random moves in place of the tour. In Active Match that is perfect
            memory without exploration: the cue is then seen with probability 0.619 only.
        guess: None, or a control without any knowledge of the cue: the "remembered" colour is
            drawn among this many. If it did better than chance, the pictures after the explore
            phase or the order of the pads would leak the answer.
    """

    _TOUR: ClassVar[Array] = np.array([WEST, EAST, NORTH, WEST])

    def __init__(self, explore: bool = True, guess: int | None = None) -> None:
        self.explore = check_flag("explore", explore)
        self.guess = guess if guess is None else check_size("guess", guess)

    def reset(self, num_envs: int, seed: int | None = None) -> None:
        self._rng = np.random.default_rng(seed)
        self._cue = np.zeros(num_envs, dtype=np.int64)
        self._leg = np.zeros(num_envs, dtype=np.int64)  # of the tour
        self._mirrored = np.zeros(num_envs, dtype=bool)  # the tour begins with east
        self._clock = np.full(num_envs, -1)  # steps made in the reward hall, or -1
        self._col = np.zeros(num_envs, dtype=np.int64)  # columns east of the neck
        self._goal = np.zeros(num_envs, dtype=np.int64)  # the same, of the pad to go to

    def act(self, observations: Array, starts: Array) -> Array:
        c = _centre(observations)
        self._clock[starts], self._leg[starts] = -1, 0
        walls = _cells(observations, WALL)
        entered = walls[:, c, c - 2] & walls[:, c, c + 2] & walls[:, c + 1, c] & (self._clock < 0)
        for values in (self._clock, self._col, self._goal):
            values[entered] = 0
        inside = self._clock >= 0
        self._look(observations, starts, inside)
        outside = self._wander(observations, starts)
        return np.where(inside, self._choose(observations, c), outside)

    def _look(self, observations: Array, starts: Array, inside: Array) -> None:
        """Remember a colour that is in sight before the pads are."""
        if self.guess is None:
            seen = np.any(_colors_in(observations), axis=(1, 2))  # (B, 3)
            new = seen.any(axis=1) & ~inside
            self._cue = np.where(new, seen.argmax(axis=1), np.where(starts, 0, self._cue))
        elif starts.any():
            drawn = self._rng.integers(self.guess, size=len(starts))
            self._cue = np.where(starts, drawn, self._cue)

    def _wander(self, observations: Array, starts: Array) -> Array:
        """The tour, leg by leg, and random moves after its end."""
        moves = self._rng.integers(len(ACTIONS), size=len(starts))
        if not self.explore:
            return moves
        shut = _shut_ahead(observations)
        self._mirrored = np.where(starts, shut[:, EAST] & ~shut[:, WEST], self._mirrored)
        self._leg = self._leg + shut[np.arange(len(starts)), self._tour()]
        return np.where(self._leg < len(self._TOUR), self._tour(), moves)

    def _tour(self) -> Array:
        """The move of the present leg, or of the last one."""
        move = self._TOUR[np.minimum(self._leg, len(self._TOUR) - 1)]
        return np.where(self._mirrored & (move >= WEST), WEST + EAST - move, move)

    def _choose(self, observations: Array, c: int) -> Array:
        """The way to the pad, in the rows that are in the hall."""
        # Both places to look from are two rows below the pads.
        wanted = _colors_in(observations)[np.arange(len(observations)), :, :, self._cue]
        elsewhere = (self._clock == 2) & ~wanted[:, c - 2, c]
        self._goal = np.where(elsewhere, -3, self._goal)
        elsewhere = (self._clock == 3) & (self._goal < 0) & ~wanted[:, c - 2, c - 2]
        self._goal = np.where(elsewhere, 3, self._goal)

        action = np.where(self._goal > self._col, EAST, NORTH)
        action = np.where(self._goal < self._col, WEST, action)
        self._col = self._col + (action == EAST) - (action == WEST)
        self._clock = np.where(self._clock >= 0, self._clock + 1, -1)
        return action


class KeyPlayer:
    """The ceiling of Key-To-Door: fetches the key within 8 steps, and opens the door within 2.

    It has no memory and needs none: what Key-To-Door asks for is to learn that the key is worth
    fetching. Goes to the key if it is in sight and the way is free, and else to the middle of
    the room and north, through the gap, and at last through the door.
    """

    def reset(self, num_envs: int, seed: int | None = None) -> None:
        pass

    def act(self, observations: Array, starts: Array) -> Array:
        c = _centre(observations)
        near = _shut_ahead(observations)
        action = np.where(near[:, WEST] & ~near[:, EAST], EAST, NORTH)
        action = np.where(near[:, EAST] & ~near[:, WEST], WEST, action)
        key = _cells(observations, KEY)
        row, col = _first(key)
        chase = np.where(row < c, NORTH, np.where(col < c, WEST, EAST))
        free = ~_cells(observations, WALL)[:, c - 1, c] | (chase != NORTH)
        return np.where(key.any(axis=(1, 2)) & free, chase, action)


class ApplePlayer:
    """Goes to the nearest apple in sight, and does what another player says where there is none.

    Args:
        other: is asked at every step, so that it can remember; None: moves at random.
    """

    def __init__(self, other: Player | None = None) -> None:
        self.other = RandomPlayer() if other is None else other

    def reset(self, num_envs: int, seed: int | None = None) -> None:
        self.other.reset(num_envs, seed)

    def act(self, observations: Array, starts: Array) -> Array:
        apples = _cells(observations, APPLE)
        rows, cols = np.indices(apples.shape[1:])
        row, col = _first(_cells(observations, PLAYER))
        distance = abs(rows - row[:, None, None]) + abs(cols - col[:, None, None])
        near = np.where(apples, distance, distance.max() + 1)
        to_row, to_col = _first(near == near.min(axis=(1, 2), keepdims=True))
        action = np.where(to_row < row, NORTH, SOUTH)
        action = np.where(to_col < col, WEST, np.where(to_col > col, EAST, action))
        others = self.other.act(observations, starts)
        return np.where(apples.any(axis=(1, 2)), action, others)


def play(env: BatchedEnv, player: Player, episodes: int, seed: int = 0) -> dict[str, float]:
    """Means over at least `episodes` episodes, the same number from each row.

    Args:
        env: is reset to `seed`.
        player: is reset to `seed` too.
        episodes: at least 1.

    Returns:
        `episodes` (how many were counted), and the means of `episode_return`, `episode_length`
        and the task's metrics.
    """
    each = -(-check_size("episodes", episodes) // env.num_envs)
    names = ("episode_return", "episode_length", *env.task.metric_names)
    totals = dict.fromkeys(names, 0.0)
    played = np.zeros(env.num_envs, dtype=np.int64)
    obs: Any = env.reset(seed)[0]
    player.reset(env.num_envs, seed)
    starts = np.ones(env.num_envs, dtype=bool)
    while played.min() < each:
        obs, _, terminated, truncated, info = env.step(player.act(obs, starts))
        starts = terminated | truncated
        # A row that is ahead is not counted again, or short episodes would count for more.
        counted = starts & (played < each)
        for name in names if counted.any() else ():
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


def _cells(observations: Array, kind: int) -> Array:
    """Which cells show this number of the palette, bool (B, h, w)."""
    cells: Array = (observations == PALETTE[kind]).all(axis=3)
    return cells


def _colors_in(observations: Array) -> Array:
    """Which cells have which match colour, bool (B, h, w, 3): only they have a 255."""
    colors: Array = observations == 255
    return colors


def _shut_ahead(observations: Array) -> Array:
    """Whether the next or the second cell in each direction is not floor, bool (B, 4)."""
    c, shut = _centre(observations), ~_cells(observations, FLOOR)
    ahead = [
        shut[:, c + down, c + right] | shut[:, c + 2 * down, c + 2 * right]
        for down, right in ((-1, 0), (1, 0), (0, -1), (0, 1))
    ]
    return np.stack(ahead, axis=1)


def _first(cells: Array) -> tuple[Array, Array]:
    """Row and column of the first marked cell, (B,) each; 0 and 0 if there is none."""
    return np.divmod(cells.reshape(len(cells), -1).argmax(axis=1), cells.shape[2])


Makers: TypeAlias = tuple[Callable[[Any], Player], Callable[[Any], Player]]
"""The player at the ceiling and the one at the floor, each made for a task."""

_MATCH: Makers = (lambda _: MemoryPlayer(), lambda _: ReactivePlayer())
_T_MAZE: Makers = (lambda _: kin.TMazeMemoryPlayer(), lambda _: kin.TMazeReactivePlayer())
PLAYERS: dict[str, Makers] = {
    "rlgates/PassiveMatch-v0": _MATCH,
    "rlgates/ActiveMatch-v0": _MATCH,
    "rlgates/KeyToDoor-v0": (lambda _: KeyPlayer(), lambda _: RandomPlayer()),
    "rlgates/PassiveTMaze-v0": _T_MAZE,
    "rlgates/ActiveTMaze-v0": _T_MAZE,
    "rlgates/MemoryChain-v0": (
        lambda _: kin.ChainMemoryPlayer(),
        lambda _: kin.ChainReactivePlayer(),
    ),
    "rlgates/RepeatFirst-v0": (
        lambda _: kin.RepeatFirstMemoryPlayer(),
        lambda _: kin.RepeatFirstReactivePlayer(),
    ),
    "rlgates/RepeatPrevious-v0": (
        lambda task: kin.RepeatPreviousMemoryPlayer(task.k),
        lambda task: kin.RepeatPreviousReactivePlayer(task.k),
    ),
}
"""By environment id. The floor is the best without memory; in Key-To-Door, which needs none, it
is who does not know what the key is for."""
