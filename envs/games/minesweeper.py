"""Mine Sweeper: open the free squares of a board, seeing one number at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces

from rlgates.envs.engine.arrays import Array, Tables, fill, look_up, namespace, row_starts
from rlgates.envs.engine.parameters import EpisodeParameter, Integers
from rlgates.envs.engine.philox import Key, permutations
from rlgates.envs.engine.settings import check_range, set_fields
from rlgates.envs.engine.spec import EnvSpec, Player, State

_FREE, _MINE, _OPEN = range(3)


@dataclass(frozen=True, kw_only=True)
class MineSweeper(EnvSpec):
    """Mine Sweeper, `rlgates/MineSweeper-v0`.

    ## Description
    Mines are hidden on a square board. Every action opens a square and shows how many mines are
    on it and on its neighbours; the board itself is never shown. The episode is won when all
    squares without a mine are open, and lost with the first mine.

    ## Actions
    `MultiDiscrete([size, size])`: the row and the column of the square to open.

    ## Observations
    `Discrete(min(num_mines + 1, 10))`, int64: the number of mines on the square just opened and its
    eight neighbours; 0 at the start. Which square it was is not shown: add it with
    `add_previous_action=True`.

    ## Rewards
    With F the number of free squares:

    | square | reward |
    |--------|--------|
    | free, not open yet | 1 / F |
    | open already | -0.5 / (F - 2) |
    | a mine | -0.5 - 1 / F |

    A game won in F actions brings 1. The numbers to report are in the info of the last step:
    `is_success`, all free squares are open, and `accuracy`, their share (float32).

    ## Start
    With no square open. `reset(options=...)` overrides parameters of the episode: `mines`, the
    numbers of their squares, counted row by row from 0; `reveal=True` reports them in the info of
    the reset.

    ## End
    `terminated` with a mine, with the last free square, and after F actions. The length is part of
    the game: `truncated` is never true.

    ## Arguments
    | name | default | meaning |
    |------|---------|---------|
    | `size` | 4 | rows and columns of the board, 2 to 100 |
    | `num_mines` | 2 | at least 1; at least 3 squares are free |

    Presets: `easy` (4 by 4, 2 mines), `medium` (6, 6) and `hard` (8, 10), the published levels.

    ## Version history
    * v0: first version.

    ## Sources and differences
    Morad et al., "POPGym: Benchmarking partially observable reinforcement learning", 2023;
    github.com/proroklab/popgym, version 1.0.7, envs/minesweeper.py. As there, the number counts the
    square itself, which matters only on a mine. There an episode that is neither won nor lost ends
    by `truncated`; here by `terminated`, and everything random follows from the seed.

    Raises:
        ValueError: a setting out of range. TypeError: a setting of the wrong type.
    """

    env_id: ClassVar[str] = "rlgates/MineSweeper-v0"
    size: int = 4
    num_mines: int = 2

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "easy": {"size": 4, "num_mines": 2},
        "medium": {"size": 6, "num_mines": 6},
        "hard": {"size": 8, "num_mines": 10},
    }
    metric_names: ClassVar[tuple[str, ...]] = ("is_success", "accuracy")
    needs_previous_action: ClassVar[bool] = True
    fixed_length: ClassVar[bool] = False

    def __post_init__(self) -> None:
        size = check_range("size", self.size, 2, 100)
        mines = check_range("num_mines", self.num_mines, 1, size**2 - 3)
        set_fields(self, size=size, num_mines=mines)

    @cached_property
    def action_space(self) -> spaces.MultiDiscrete:
        return spaces.MultiDiscrete([self.size, self.size])

    @cached_property
    def observation_space(self) -> spaces.Discrete:
        return spaces.Discrete(min(self.num_mines + 1, 10))

    @property
    def _num_free(self) -> int:
        return self.size**2 - self.num_mines

    @property
    def max_episode_length(self) -> int:
        return self._num_free

    @cached_property
    def parameters(self) -> Mapping[str, EpisodeParameter]:
        return {"mines": Integers(self.size**2, self.num_mines, distinct=True)}

    @property
    def state_bounds(self) -> Mapping[str, tuple[int, int]]:
        return {
            "board": (0, 3 * 9 + _OPEN),
            "seen": (0, 9),
            "num_open": (0, self._num_free),
        }

    def sample(self, key: Key) -> dict[str, Array]:
        return {"mines": permutations(key.words(self.size**2))[:, : self.num_mines]}

    def initial_state(self, parameters: dict[str, Array]) -> State:
        mines = parameters["mines"]
        xp, tables = namespace(mines), self._tables.on_device_of(mines)
        zeros = xp.zeros_like(mines[:, 0])
        # In a frame without mines.
        batch, width = mines.shape[0], self.size + 2
        squares = xp.zeros((batch, width, width), dtype=xp.int64, device=mines.device)
        rows = row_starts(batch, width**2, mines)[:, None]
        fill(squares.reshape(-1), rows + look_up(tables.framed, mines), _MINE)
        near = squares[:, :-2] + squares[:, 1:-1] + squares[:, 2:]
        near = near[:, :, :-2] + near[:, :, 1:-1] + near[:, :, 2:]
        # Three times the number of mines near a square, and what is on it.
        board = (squares[:, 1:-1, 1:-1] + 3 * near).reshape((batch, -1))
        return {"t": zeros, "board": board, "seen": zeros, "num_open": zeros}

    def step(self, state: State, actions: Array) -> tuple[State, Array, Array]:
        xp, tables = namespace(actions), self._tables.on_device_of(actions)
        board = xp.asarray(state["board"], copy=True)
        square = actions[:, 0] * self.size + actions[:, 1]
        index = row_starts(board.shape[0], self.size**2, square) + square
        code = look_up(board.reshape(-1), index)
        board.reshape(-1)[index] = look_up(tables.opened, code)
        t, num_open = state["t"] + 1, state["num_open"] + look_up(tables.is_free, code)
        seen = look_up(tables.near, code)
        ended = look_up(tables.is_mine, code) | (num_open == self._num_free)
        ended = ended | (t == self._num_free)
        state = {"t": t, "board": board, "seen": seen, "num_open": num_open}
        return state, look_up(tables.reward, code), ended

    def observe(self, state: State) -> Array:
        observation: Array = namespace(state["seen"]).asarray(state["seen"], copy=True)
        return observation

    def render_board(self, state: State) -> Array:
        squares = state["board"].reshape((-1, self.size, self.size)) % 3
        return look_up(self._tables.on_device_of(squares).colors, squares)

    def metrics(self, state: State) -> dict[str, Array]:
        num_open = state["num_open"]
        return {
            "is_success": num_open == self._num_free,
            "accuracy": look_up(self._tables.on_device_of(num_open).accuracy, num_open),
        }

    def memory_player(self) -> Player:
        return MineSweeperMemoryPlayer(self.size, self.num_mines)

    def reactive_player(self) -> Player:
        return MineSweeperReactivePlayer(self.size)

    @cached_property
    def _tables(self) -> Tables:
        free = self._num_free
        near, what = np.divmod(np.arange(30), 3)
        reward = np.array([1 / free, -0.5 - 1 / free, -0.5 / (free - 2)], dtype=np.float32)
        return Tables(
            framed=np.arange((self.size + 2) ** 2).reshape(self.size + 2, -1)[1:-1, 1:-1].ravel(),
            colors=np.array([(90, 90, 90), (160, 40, 40), (204, 204, 204)], dtype=np.uint8),
            near=near,
            opened=3 * near + np.where(what == _FREE, _OPEN, what),
            is_free=(what == _FREE).astype(np.int64),
            is_mine=what == _MINE,
            reward=reward[what],
            accuracy=(np.arange(free + 1) / free).astype(np.float32),
        )


def neighbours(size: int) -> Array:
    """Which squares touch each other or are the same, 0 or 1, int64 (squares, squares)."""
    row, column = np.divmod(np.arange(size**2), size)
    near = (abs(row[:, None] - row) <= 1) & (abs(column[:, None] - column) <= 1)
    return near.astype(np.int64)


class MineSweeperMemoryPlayer:
    """A good player with memory: remembers every number, and opens squares that are certainly safe.

    If there is none, it opens the square with the smallest estimated probability of a mine.

    Args:
        size, num_mines: of the game.
    """

    def __init__(self, size: int, num_mines: int) -> None:
        self.size, self.num_mines = size, num_mines
        self._near = neighbours(size).astype(bool)

    def reset(self, num_envs: int, seed: int | None = None) -> None:
        self._numbers = np.full((num_envs, self.size**2), -1)
        self._last = np.zeros(num_envs, dtype=np.int64)

    def act(self, observations: Array, episode_starts: Array) -> Array:
        for row, number in enumerate(observations.tolist()):
            if episode_starts[row]:
                self._numbers[row] = -1
            else:
                self._numbers[row, self._last[row]] = number
            self._last[row] = self._choose(self._numbers[row])
        return np.stack(np.divmod(self._last, self.size), axis=1)

    def _choose(self, numbers: Array) -> int:
        closed = numbers < 0
        mines = np.zeros_like(closed)
        safe = np.zeros_like(closed)
        changed = True
        while changed:
            changed = False
            for square in np.flatnonzero(~closed):
                around = self._near[square] & closed & ~safe
                left = numbers[square] - (around & mines).sum()
                unknown = around & ~mines
                if unknown.any() and left in (0, unknown.sum()):
                    (mines if left else safe)[unknown] = True
                    changed = True
        if (safe & closed).any():
            return int(np.flatnonzero(safe & closed)[0])
        unknown = closed & ~mines
        chance = np.where(unknown, (self.num_mines - mines.sum()) / max(1, unknown.sum()), 2.0)
        for square in np.flatnonzero(~closed):
            around = self._near[square] & unknown
            if around.any():
                left = numbers[square] - (self._near[square] & mines).sum()
                chance[around] = np.maximum(chance[around], left / around.sum())
        return int(chance.argmin())


class MineSweeperReactivePlayer:
    """A player without memory: opens a random square.

    Args:
        size: of the game.
    """

    def __init__(self, size: int) -> None:
        self.size = size

    def reset(self, num_envs: int, seed: int | None = None) -> None:
        self._rng = np.random.default_rng(seed)

    def act(self, observations: Array, episode_starts: Array) -> Array:
        return self._rng.integers(self.size, size=(len(observations), 2))
