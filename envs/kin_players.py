"""Scripted players for the T-Mazes, Memory Chain and the Repeat games; `players.Player` says how.

For each task one with memory, at the ceiling, and one without, which is the best that a fixed
rule on the present observation can do. `ShuffledCue` is the control for the first kind.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from rlgates.envs.arrays import Array
from rlgates.envs.repeat import SUITS
from rlgates.errors import check_size

if TYPE_CHECKING:
    from rlgates.envs.players import Player

RIGHT, UP, LEFT, DOWN = range(4)


class TMazeMemoryPlayer:
    """The ceiling of both T-Mazes: return `goal_reward`, success 1.

    Goes left until it has seen the sign at the oracle, then right, and at the junction to the
    side of the sign.
    """

    def reset(self, num_envs: int, seed: int | None = None) -> None:
        self._sign = np.zeros(num_envs, dtype=np.int64)

    def act(self, observations: Array, starts: Array) -> Array:
        at_end, second = observations.T.astype(np.int64)
        self._sign[starts] = 0
        self._sign = np.where(at_end, self._sign, self._sign + second)
        turn = np.where(self._sign > 0, UP, DOWN)
        action = np.where(at_end & (second == 0), turn, RIGHT)
        return np.where(self._sign == 0, LEFT, action)


class TMazeReactivePlayer:
    """The floor of both T-Mazes: always right, at the junction up; success 1/2, never late.

    No rule on the present observation does better, with coin flips or without. Who has seen the
    sign and succeeds went the straight way, on which all that follows looks the same for both
    signs: it turns to the same side, or flips the same coin.
    """

    def reset(self, num_envs: int, seed: int | None = None) -> None:
        pass

    def act(self, observations: Array, starts: Array) -> Array:
        at_end, second = observations.T
        return np.where((at_end == 1) & (second == 0), UP, RIGHT)


class ChainMemoryPlayer:
    """The ceiling of Memory Chain: return 1, success 1.

    Remembers the context and at every step answers what the query entry asks for, which is 0
    until the query comes.
    """

    def reset(self, num_envs: int, seed: int | None = None) -> None:
        self._context = np.zeros((num_envs, 1))

    def act(self, observations: Array, starts: Array) -> Array:
        self._context = np.where(starts[:, None], observations[:, 2:], self._context)
        query = observations[:, 1].astype(np.int64)
        return (self._context[np.arange(len(query)), query] > 0).astype(np.int64)


class ChainReactivePlayer:
    """The floor of Memory Chain: success 1/2 from memory_length 2 on, return 0 on average.

    Answers the bit asked for if the context is in sight (it is at memory_length 1), else 0.
    """

    def reset(self, num_envs: int, seed: int | None = None) -> None:
        pass

    def act(self, observations: Array, starts: Array) -> Array:
        query = observations[:, 1].astype(np.int64)
        return (observations[np.arange(len(query)), 2 + query] > 0).astype(np.int64)


class RepeatFirstMemoryPlayer:
    """The ceiling of Repeat First: return 1, every answer right."""

    def reset(self, num_envs: int, seed: int | None = None) -> None:
        self._first = np.zeros(num_envs, dtype=np.int64)

    def act(self, observations: Array, starts: Array) -> Array:
        self._first = np.where(starts, observations, self._first)
        return self._first


class RepeatFirstReactivePlayer:
    """The floor of Repeat First: names the card in sight.

    With N cards that is right at once, and then in (N / 4 - 1) of (N - 1) cases: an expected
    accuracy of (1 + (N - 2) (N / 4 - 1) / (N - 1)) / (N - 1), 0.2503 with one deck. Naming
    another suit is right in (N / 4) of (N - 1) cases, but not at once, and comes to less.
    """

    def reset(self, num_envs: int, seed: int | None = None) -> None:
        pass

    def act(self, observations: Array, starts: Array) -> Array:
        return observations


class RepeatPreviousMemoryPlayer:
    """The ceiling of Repeat Previous: return 1, every answer right.

    Args:
        k: the setting of the task.
    """

    def __init__(self, k: int) -> None:
        self.k = check_size("k", k)

    def reset(self, num_envs: int, seed: int | None = None) -> None:
        self._last = np.zeros((num_envs, self.k), dtype=np.int64)  # newest first

    def act(self, observations: Array, starts: Array) -> Array:
        self._last = np.concatenate([observations[:, None], self._last[:, :-1]], axis=1)
        return self._last[:, -1]


class RepeatPreviousReactivePlayer:
    """The floor of Repeat Previous: names the suit after the one in sight.

    With k above 1 and N cards it is right in (N / 4) of (N - 1) cases: an expected accuracy of
    0.2549 with one deck. Every suit that is not in sight does as well, the one in sight worse.
    With k = 1 no memory is needed, and it names the card in sight.

    Args:
        k: the setting of the task.
    """

    def __init__(self, k: int) -> None:
        self.k = check_size("k", k)

    def reset(self, num_envs: int, seed: int | None = None) -> None:
        pass

    def act(self, observations: Array, starts: Array) -> Array:
        return observations if self.k == 1 else (observations + 1) % SUITS


class ShuffledCue:
    """A control: lets `player` see the cue of another row, drawn anew when episodes start.

    A player at the ceiling must fall to chance: if it did better, something else than the cue
    would tell the answer. All rows must start and end their episodes together, and there must
    be two or more.

    Args:
        player: is shown the changed observations.
        is_cue: from observations (B, ...) and starts (B,), which entries are the cue, bool of a
            shape that broadcasts to that of the observations.
    """

    def __init__(self, player: Player, is_cue: Callable[[Array, Array], Array]) -> None:
        self.player = player
        self.is_cue = is_cue

    def reset(self, num_envs: int, seed: int | None = None) -> None:
        self.player.reset(num_envs, seed)
        self._rng = np.random.default_rng(seed)
        self._other = np.arange(num_envs)

    def act(self, observations: Array, starts: Array) -> Array:
        if starts.any():
            order = self._rng.permutation(len(starts))
            self._other[order] = np.roll(order, 1)  # one circle: no row gets its own
        cue = self.is_cue(observations, starts)
        return self.player.act(np.where(cue, observations[self._other], observations), starts)
