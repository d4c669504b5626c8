"""Battleship: sink the ships on a board, seeing only whether each shot hit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces

from rlgates.envs.engine.arrays import Array, Tables, fill, look_up, namespace, row_starts
from rlgates.envs.engine.parameters import EpisodeParameter, Integers
from rlgates.envs.engine.philox import Key, below
from rlgates.envs.engine.settings import check_range, set_fields
from rlgates.envs.engine.spec import EnvSpec, Player, State

# Of water and of a ship, then of both where a shot went.
_COLORS = np.array([(25, 60, 90), (120, 120, 120), (70, 170, 250), (240, 140, 50)], dtype=np.uint8)
_DIRECTIONS = ((1, 0), (-1, 0), (0, 1), (0, -1))


@dataclass(frozen=True)
class ShipSquares(EpisodeParameter):
    """1 on the squares of ships and 0 elsewhere, row by row; as many 1 as the ships are long."""

    size: int
    total: int

    def parse(self, name: str, value: Any) -> Array:
        squares = Integers(2, self.size**2).parse(name, value)
        if (count := int(squares.sum())) != self.total:
            raise ValueError(f"{name} must mark {self.total} squares, got {count}.")
        return squares


@dataclass(frozen=True, kw_only=True)
class Battleship(EnvSpec):
    """Battleship, `rlgates/Battleship-v0`.

    ## Description
    Ships lie on a square board, along rows or columns. Every action shoots at a square, and the
    observation tells whether it hit a ship there for the first time; the board itself is never
    shown. The episode is won when every square of every ship has been hit.

    ## Actions
    `MultiDiscrete([board_size, board_size])`: the row and the column of the square.

    ## Observations
    `Discrete(2)`, int64: 1 if the last shot hit, else 0; 0 at the start. Where the shot went is not
    shown: add it with `add_previous_action=True`.

    ## Rewards
    With S squares of ships and Q squares in all: 1 / S for a hit, else -1 / (Q - S), also for a
    square that was hit before. Only hits bring 1 in all; shooting once at every square about 0.

    The numbers to report are in the info of the last step: `is_success`, all ships are sunk, and
    `accuracy`, the share of their squares that were hit (float32).

    ## Start
    Ships are placed one after the other, uniformly among the places (a square and one of four
    directions) where they fit on the board without overlapping another ship; they may touch.
    `reset(options=...)` overrides parameters of the episode: `board`, 1 on the squares of ships,
    else 0, row by row; `reveal=True` reports it in the info of the reset.

    ## End
    `terminated` when all ships are sunk, and after Q actions. The length is part of the game:
    `truncated` is never true.

    ## Arguments
    | name | default | meaning |
    |------|---------|---------|
    | `board_size` | 10 | rows and columns of the board, 2 to 100 |
    | `ship_sizes` | (2, 3, 3, 4) | squares of each ship, at most `board_size` |

    Ships are refused unless each is sure to fit, wherever those before it lie.

    Presets: `easy` (8 by 8), `medium` (10) and `hard` (12), the published levels.

    ## Version history
    * v0: first version.

    ## Sources and differences
    Morad et al., "POPGym: Benchmarking partially observable reinforcement learning", 2023;
    github.com/proroklab/popgym, version 1.0.7, envs/battleship.py. The last hit may also be the
    last action allowed; there such an episode ends by `terminated` and `truncated` at once, and
    others after Q actions by `truncated`. Here all end by `terminated`, and everything random
    follows from the seed.

    Raises:
        ValueError: a setting out of range. TypeError: a setting of the wrong type.
    """

    env_id: ClassVar[str] = "rlgates/Battleship-v0"
    board_size: int = 10
    ship_sizes: tuple[int, ...] = (2, 3, 3, 4)

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "easy": {"board_size": 8},
        "medium": {"board_size": 10},
        "hard": {"board_size": 12},
    }
    metric_names: ClassVar[tuple[str, ...]] = ("is_success", "accuracy")
    needs_previous_action: ClassVar[bool] = True
    fixed_length: ClassVar[bool] = False

    def __post_init__(self) -> None:
        size = check_range("board_size", self.board_size, 2, 100)
        ships: Any = self.ship_sizes
        if isinstance(ships, np.ndarray):
            ships = ships.tolist()
        if not isinstance(ships, Sequence) or isinstance(ships, str) or not ships:
            raise TypeError(f"ship_sizes must be a sequence of numbers, got {self.ship_sizes!r}.")
        lengths = tuple(check_range("ship_sizes", ship, 1, size) for ship in ships)
        for number, length in enumerate(lengths):
            # Of a row, each square taken can spoil at most `length` of its places.
            taken = sum(lengths[:number])
            if taken * length > size * (size - length + 1) - 1:
                raise ValueError(
                    f"ship_sizes {lengths}: the ship of length {length} may find no place on a "
                    f"board of {size} by {size}. Take fewer or shorter ships."
                )
        if sum(lengths) == size**2:
            raise ValueError(f"ship_sizes {lengths} leave no water on a board of {size} by {size}.")
        set_fields(self, board_size=size, ship_sizes=lengths)

    @cached_property
    def action_space(self) -> spaces.MultiDiscrete:
        return spaces.MultiDiscrete([self.board_size, self.board_size])

    observation_space: ClassVar[spaces.Discrete] = spaces.Discrete(2)

    @property
    def _total(self) -> int:
        return sum(self.ship_sizes)

    @property
    def max_episode_length(self) -> int:
        return self.board_size**2

    @cached_property
    def parameters(self) -> Mapping[str, EpisodeParameter]:
        return {"board": ShipSquares(self.board_size, self._total)}

    @property
    def state_bounds(self) -> Mapping[str, tuple[int, int]]:
        return {"board": (0, 1), "shot": (0, 1), "hit": (0, 1), "num_hits": (0, self._total)}

    def sample(self, key: Key) -> dict[str, Array]:
        words = key.words(len(self.ship_sizes))
        xp, tables = namespace(words), self._tables.on_device_of(words)
        batch, squares = words.shape[0], self.board_size**2
        board = xp.zeros((batch, squares), dtype=xp.int64, device=words.device)
        rows = row_starts(batch, squares, words)[:, None]
        for number in range(len(self.ship_sizes)):
            places = getattr(tables, f"places_{number}")  # (places, length)
            is_free = xp.sum(board[:, places], axis=2) == 0
            order = xp.cumulative_sum(xp.astype(is_free, xp.int64), axis=1)
            # The k-th free place, k uniform: as many places come before it as have fewer free
            # ones up to and with them.
            count = below(words[:, number], order[:, -1])
            place = xp.sum(xp.astype(order <= count[:, None], xp.int64), axis=1)
            fill(board.reshape(-1), rows + look_up(places, place), 1)
        return {"board": board}

    def initial_state(self, parameters: dict[str, Array]) -> State:
        board = parameters["board"]
        xp = namespace(board)
        zeros = xp.zeros_like(board[:, 0])
        return {
            "t": zeros,
            "board": board,
            "shot": xp.zeros_like(board),
            "hit": zeros,
            "num_hits": zeros,
        }

    def step(self, state: State, actions: Array) -> tuple[State, Array, Array]:
        xp, board = namespace(actions), state["board"]
        square = actions[:, 0] * self.board_size + actions[:, 1]
        index = row_starts(board.shape[0], board.shape[1], square) + square
        hit = look_up(board.reshape(-1), index) * (1 - look_up(state["shot"].reshape(-1), index))
        shot = xp.asarray(state["shot"], copy=True)
        fill(shot.reshape(-1), index, 1)
        num_hits = state["num_hits"] + hit
        state = {**state, "t": state["t"] + 1, "shot": shot, "hit": hit, "num_hits": num_hits}
        reward = look_up(self._tables.on_device_of(actions).reward, hit)
        ended = (num_hits == self._total) | (state["t"] == self.max_episode_length)
        return state, reward, ended

    def observe(self, state: State) -> Array:
        observation: Array = namespace(state["hit"]).asarray(state["hit"], copy=True)
        return observation

    def render_board(self, state: State) -> Array:
        squares = (state["board"] + 2 * state["shot"]).reshape(
            (-1, self.board_size, self.board_size)
        )
        return look_up(self._tables.on_device_of(squares).colors, squares)

    def metrics(self, state: State) -> dict[str, Array]:
        num_hits = state["num_hits"]
        return {
            "is_success": num_hits == self._total,
            "accuracy": look_up(self._tables.on_device_of(num_hits).accuracy, num_hits),
        }

    def memory_player(self) -> Player:
        return BattleshipMemoryPlayer(self.board_size)

    def reactive_player(self) -> Player:
        return BattleshipReactivePlayer(self.board_size)

    @cached_property
    def _tables(self) -> Tables:
        total, squares = self._total, self.board_size**2
        return Tables(
            colors=_COLORS,
            reward=np.array([-1 / (squares - total), 1 / total], dtype=np.float32),
            accuracy=(np.arange(total + 1) / total).astype(np.float32),
            **{
                f"places_{number}": _places(self.board_size, length)
                for number, length in enumerate(self.ship_sizes)
            },
        )


def _places(size: int, length: int) -> Array:
    """The squares of each place of a ship, (places, length): a start and one of four directions."""
    row, column = np.divmod(np.arange(size**2), size)
    steps = np.arange(length)
    places = []
    for down, right in _DIRECTIONS:
        rows, columns = row[:, None] + down * steps, column[:, None] + right * steps
        fits = ((rows >= 0) & (rows < size) & (columns >= 0) & (columns < size)).all(axis=1)
        places.append((rows * size + columns)[fits])
    return np.concatenate(places)


class BattleshipMemoryPlayer:
    """A good player with memory: never shoots at a square twice, and continues next to a hit.

    Args:
        board_size: of the game.
    """

    def __init__(self, board_size: int) -> None:
        self.size = board_size

    def reset(self, num_envs: int, seed: int | None = None) -> None:
        self._rng = np.random.default_rng(seed)
        self._seen = np.zeros((num_envs, self.size, self.size), dtype=np.int64)  # 1 miss, 2 hit
        self._last = np.zeros((num_envs, 2), dtype=np.int64)

    def act(self, observations: Array, episode_starts: Array) -> Array:
        rows = np.arange(len(observations))
        self._seen[rows, self._last[:, 0], self._last[:, 1]] = 1 + observations
        self._seen[episode_starts] = 0
        hits = np.pad(self._seen == 2, ((0, 0), (1, 1), (1, 1)))
        beside = hits[:, 2:, 1:-1] | hits[:, :-2, 1:-1] | hits[:, 1:-1, 2:] | hits[:, 1:-1, :-2]
        even = np.add.outer(np.arange(self.size), np.arange(self.size)) % 2 == 0
        worth = 2 * beside + even + self._rng.random(self._seen.shape)
        best = np.where(self._seen == 0, worth, -1).reshape(len(rows), -1).argmax(axis=1)
        self._last = np.stack(np.divmod(best, self.size), axis=1)
        return self._last


class BattleshipReactivePlayer:
    """A player without memory: shoots at a random square.

    Args:
        board_size: of the game.
    """

    def __init__(self, board_size: int) -> None:
        self.size = board_size

    def reset(self, num_envs: int, seed: int | None = None) -> None:
        self._rng = np.random.default_rng(seed)

    def act(self, observations: Array, episode_starts: Array) -> Array:
        return self._rng.integers(self.size, size=(len(observations), 2))
