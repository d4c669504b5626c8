"""MiniGrid Memory in batches: go to the object at the fork that was in the room."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
from gymnasium import spaces

from rlgates.envs.engine.arrays import Array, Tables, look_up, namespace
from rlgates.envs.engine.parameters import EpisodeParameter, Integer
from rlgates.envs.engine.philox import Key, below
from rlgates.envs.engine.settings import check_odd, check_range, set_fields
from rlgates.envs.engine.spec import EnvSpec, Player, State
from rlgates.errors import check_choice, check_flag

# MiniGrid's codes of what a cell can be here, and of its colour.
_UNSEEN, _EMPTY, _WALL, _KEY, _BALL = _CODES = (0, 1, 2, 5, 6)
_COLOR = {_WALL: 5, _KEY: 1, _BALL: 1}  # grey and green
_LARGEST_CODE = 10
_OBSERVATIONS = ("symbolic", "objects")
_LEFT, _RIGHT, _FORWARD = range(3)
_ALL_ACTIONS = 7
_AHEAD = ((1, 0), (0, 1), (-1, 0), (0, -1))  # (column, row) by direction: right, down, left, up
_ROWS = 3  # that the player can reach: the middle one and those beside it
_PAIRS = 4  # the thing in the room, and the one at the upper end of the fork
# Colours of the board: what is never drawn, floor, wall, key, ball, the player, and the floor that
# it looks at.
_PLAYER, _LOOKED_AT = 5, 6
_COLORS = np.array(
    [
        (0, 0, 0),
        (204, 204, 204),
        (25, 25, 25),
        (159, 81, 44),
        (140, 178, 0),
        (228, 148, 109),
        (240, 220, 200),
    ],
    dtype=np.uint8,
)


@dataclass(frozen=True)
class _Column(EpisodeParameter):
    """A column of the map between two others."""

    first: int
    last: int

    def parse(self, name: str, value: Any) -> Array:
        return np.asarray(check_range(name, value, self.first, self.last))


@dataclass(frozen=True, kw_only=True)
class MiniGridMemory(EnvSpec):
    """MiniGrid Memory, `rlgates/MiniGridMemory-v0`.

    ## Description
    A room, a hallway that leads out of it to the right, and a fork at its end. The room contains an
    object, a key or a ball; the two ends of the fork have a key and a ball. The player must go to
    the end whose object is the one in the room. Both objects and their order at the fork are fair
    coin flips of each episode; all objects are green.

    The room has 3 x 3 free cells, its object in the upper left one. Columns count from 1 at the
    left end of the middle row, in which the player starts; the hallway ends in column h = size
    - 3 and the fork is column h + 1, with the objects two cells above and below the middle row.
    With `random_length` h is uniform in [4, size - 3].

    By default the player sees 3 x 3 cells, itself in the middle of the nearest row. From column 4
    on, no turn shows it the object of the room, and every way to the fork goes forward through
    column h, where all episodes look the same: no rule that knows only the current observation,
    random or not, succeeds in more than 1/2 of the episodes. A view of h + 1 cells or more shows
    the object from the fork: MiniGrid's own view of 7 needs no memory at sizes 7 and 9.

    ## Actions
    `Discrete(3)`; with `all_actions` `Discrete(7)`, the other four of which do nothing here.

    | number | move |
    |--------|------|
    | 0 | turn left |
    | 1 | turn right |
    | 2 | forward; objects and walls block |
    | 3 to 6 | pickup, drop, toggle, done |

    ## Observations
    `"objects"`: `Box(0, 1, (view_size, view_size, 5), float32)`, indexed [column, row, kind] from
    the far left cell of the view, with what is in a cell one-hot: unseen, empty, wall, key, ball.
    The player is at [view_size // 2, view_size - 1], looks towards row 0, and is not drawn. Walls
    hide what is behind them.

    `"symbolic"`: `Box(0, 10, (view_size, view_size, 3), uint8)`, the same cells as MiniGrid's
    codes. SB3 treats them as numbers, not as an image, since their bound is not 255.

    | channel | codes |
    |---------|-------|
    | 0, object | 0 unseen, 1 empty, 2 wall, 5 key, 6 ball |
    | 1, colour | 1 green (objects), 5 grey (walls), 0 elsewhere |
    | 2, state | 0 |

    A network learns much sooner from "objects" than from these codes, since those of key and ball
    are adjacent.

    ## Rewards
    1 - 0.9 * steps / max_steps at the right end, 0 otherwise. The number to report is
    `is_success`, in the info of the last step: the right end was reached.

    ## Start
    Facing right, in the middle row, column uniform in [1, h]: with the small view the room's object
    is behind the player, who must look for it (except in column 1, where it is visible at once).
    `reset(options=...)` overrides parameters of the episode: `object` and `top`, the objects of the
    room and of the upper end of the fork, 0 for a key and 1 for a ball; `hallway_end`, h; `start`,
    the column (h, if it is larger). `reveal=True` reports them in the info of the reset.

    ## End
    `terminated` at either end of the fork, and after `max_steps` actions without that. The limit is
    many times what is needed, and reveals nothing about the object.

    ## Arguments
    | name | default | meaning |
    |------|---------|---------|
    | `size` | 7 | side of the square map with its walls, odd, 7 to 33 |
    | `random_length` | False | draw the length of the hallway |
    | `view_size` | 3 | side of the view in cells, odd, 3 to 11 |
    | `observation` | "objects" | or "symbolic" |
    | `all_actions` | False | all seven actions of MiniGrid |
    | `max_steps` | None | limit, at least 1; None: 5 * size ** 2; also scales the reward |

    Presets: `S7`, `S9`, `S11`, `S13`, `S13Random` and `S17Random`, the published sizes.

    ## Version history
    * v0: first version.

    ## Sources and differences
    MiniGrid's `MemoryEnv`: Chevalier-Boisvert et al., "Minigrid & Miniworld: Modular &
    Customizable Reinforcement Learning Environments for Goal-Oriented Tasks", 2023;
    github.com/Farama-Foundation/Minigrid, minigrid/envs/memory.py, version 3.2. The map, the
    views and the rewards are the same, step by step. Different here: the view is 3 cells (there
    7), the observation is one array (there a dictionary with a compass and a text), three actions
    (there 7), everything random follows from the seed, and the limit, by which rewards are
    scaled, ends an episode by `terminated` (there by `truncated`). `rlgates/MiniGridMemoryS7-v0`
    and the other sizes are single environments with MiniGrid's own random numbers and images.

    Raises:
        ValueError: a setting out of range. TypeError: a setting of the wrong type.
    """

    env_id: ClassVar[str] = "rlgates/MiniGridMemory-v0"
    size: int = 7
    random_length: bool = False
    view_size: int = 3
    observation: Literal["objects", "symbolic"] = "objects"
    all_actions: bool = False
    max_steps: int | None = None

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        **{f"S{size}": {"size": size} for size in (7, 9, 11, 13)},
        **{f"S{size}Random": {"size": size, "random_length": True} for size in (13, 17)},
    }
    action_names: ClassVar[tuple[str, ...]] = ("turn left", "turn right", "forward")
    fixed_length: ClassVar[bool] = False

    def __post_init__(self) -> None:
        set_fields(
            self,
            size=check_odd("size", check_range("size", self.size, 7, 33)),
            view_size=check_odd("view_size", check_range("view_size", self.view_size, 3, 11)),
        )
        check_choice("observation", self.observation, _OBSERVATIONS)
        for name in ("random_length", "all_actions"):
            set_fields(self, **{name: check_flag(name, getattr(self, name))})
        if self.max_steps is not None:
            set_fields(self, max_steps=check_range("max_steps", self.max_steps, 1, 1_000_000))

    @property
    def max_episode_length(self) -> int:
        return 5 * self.size**2 if self.max_steps is None else self.max_steps

    @cached_property
    def action_space(self) -> spaces.Discrete:
        return spaces.Discrete(_ALL_ACTIONS if self.all_actions else len(self.action_names))

    @cached_property
    def observation_space(self) -> spaces.Box:
        side = self.view_size
        if self.observation == "objects":
            return spaces.Box(0, 1, (side, side, len(_CODES)), np.float32)
        return spaces.Box(0, _LARGEST_CODE, (side, side, 3), np.uint8)

    @property
    def _ends(self) -> range:
        """The columns in which the hallway can end."""
        last = self.size - 3
        return range(4 if self.random_length else last, last + 1)

    @cached_property
    def parameters(self) -> Mapping[str, EpisodeParameter]:
        ends = self._ends
        return {
            "object": Integer(2),
            "top": Integer(2),
            "hallway_end": _Column(ends[0], ends[-1]),
            "start": _Column(1, ends[-1]),
        }

    @property
    def state_bounds(self) -> Mapping[str, tuple[int, int]]:
        poses = len(self._ends) * _ROWS * self.size * len(_AHEAD)
        return {"pose": (0, poses - 1), "things": (0, _PAIRS - 1)}

    def sample(self, key: Key) -> dict[str, Array]:
        words, ends = key.words(4), self._ends
        hallway_end = ends[0] + below(words[:, 2], len(ends))
        return {
            "object": below(words[:, 0], 2),
            "top": below(words[:, 1], 2),
            "hallway_end": hallway_end,
            "start": 1 + ((words[:, 3] * hallway_end) >> 32),
        }

    def initial_state(self, parameters: dict[str, Array]) -> State:
        xp, end = namespace(parameters["start"]), parameters["hallway_end"]
        column = xp.where(parameters["start"] < end, parameters["start"], end)
        middle_row = (end - self._ends[0]) * _ROWS + 1
        return {
            "t": xp.zeros_like(column),
            "pose": (middle_row * self.size + column) * len(_AHEAD),
            "things": 2 * parameters["object"] + parameters["top"],
        }

    def step(self, state: State, actions: Array) -> tuple[State, Array, Array]:
        tables, t = self._tables.on_device_of(actions), state["t"] + 1
        pose = look_up(tables.next, state["pose"] * int(self.action_space.n) + actions)
        state = {**state, "t": t, "pose": pose}
        reward = look_up(tables.reward, t * self._has_succeeded(state))
        return state, reward, (look_up(tables.arm, pose) > 0) | (t == self.max_episode_length)

    def _has_succeeded(self, state: State) -> Array:
        tables = self._tables.on_device_of(state["t"])
        succeeded: Array = look_up(tables.arm, state["pose"]) == look_up(
            tables.goal, state["things"]
        )
        return succeeded

    def observe(self, state: State) -> Array:
        tables = self._tables.on_device_of(state["t"])
        observation: Array = look_up(tables.view, state["pose"] * _PAIRS + state["things"])
        return observation

    def metrics(self, state: State) -> dict[str, Array]:
        return {"is_success": self._has_succeeded(state)}

    def render_board(self, state: State) -> Array:
        xp, tables = namespace(state["t"]), self._tables.on_device_of(state["t"])
        places = _ROWS * self.size * len(_AHEAD)  # poses of one map
        board = xp.astype(
            look_up(tables.maps, state["pose"] // places * _PAIRS + state["things"]),
            xp.int64,
            copy=True,
        )
        cells = board.reshape((board.shape[0], -1))
        rows = xp.arange(board.shape[0], device=state["t"].device)
        cells[rows, look_up(tables.cell, state["pose"])] = _PLAYER
        front = look_up(tables.front, state["pose"])
        is_floor = cells[rows, front] == _CODES.index(_EMPTY)
        cells[rows, front] = xp.where(is_floor, _LOOKED_AT, cells[rows, front])
        return look_up(tables.colors, board)

    def memory_player(self) -> Player:
        return MiniGridMemoryPlayer()

    def reactive_player(self) -> Player:
        return MiniGridReactivePlayer()

    @cached_property
    def _tables(self) -> Tables:
        # Maps (ends, pairs, row, column) of indices into the codes, and the places of all poses
        # in them (ends, rows, columns, directions).
        ends, middle = np.array(self._ends), self.size // 2
        maps = np.stack(
            [[_map(self.size, end, *divmod(k, 2)) for k in range(_PAIRS)] for end in ends]
        )
        shape = len(ends), _ROWS, self.size, len(_AHEAD)
        which, row, column, direction = (axis.reshape(-1) for axis in np.indices(shape))
        row = row + middle - 1
        ahead = np.array(_AHEAD)[direction].T

        is_free = maps[:, 0] == _CODES.index(_EMPTY)
        at = np.clip(column + ahead[0], 0, self.size - 1), row + ahead[1]
        # A row above or below those that can be reached has no free cell beside them but behind
        # the objects, which block.
        moves = is_free[which, at[1], at[0]] & (abs(at[1] - middle) <= 1)
        here = np.arange(len(which))
        turned = [here - direction + (direction + turn) % len(_AHEAD) for turn in (-1, 1)]
        forward = here + moves * len(_AHEAD) * (ahead[1] * self.size + ahead[0])
        idle = [here] * (int(self.action_space.n) - len(self.action_names))
        steps = np.stack([*turned, forward, *idle], axis=1)

        at_fork = column == ends[which] + 1
        views = _views(maps, which, row, column, ahead, self.view_size)
        reward = 1 - 0.9 * np.arange(self.max_episode_length + 1) / self.max_episode_length
        reward[0] = 0  # without success
        return Tables(
            next=steps.reshape(-1),
            # 1 above the middle row, 2 below it.
            arm=np.where(at_fork, np.select([row < middle, row > middle], [1, 2]), 0),
            goal=np.array([1 + (k // 2 != k % 2) for k in range(_PAIRS)]),
            view=self._encoded(views),
            reward=reward.astype(np.float32),
            maps=maps.reshape(-1, self.size, self.size),
            cell=row * self.size + column,
            front=at[1] * self.size + at[0],
            colors=_COLORS,
        )

    def _encoded(self, views: Array) -> Array:
        """Observations from the indices into the codes (..., side, side)."""
        if self.observation == "objects":
            return np.eye(len(_CODES), dtype=np.float32)[views]
        cells = [(code, _COLOR.get(code, 0), 0) for code in _CODES]
        return np.array(cells, dtype=np.uint8)[views]


def _map(size: int, end: int, thing: int, top: int) -> Array:
    """What is in each cell (row, column), as an index into the codes.

    Args:
        size: of the map.
        end: the column in which the hallway ends.
        thing, top: the objects in the room and at the upper end of the fork, 0 or 1.
    """
    middle = size // 2
    empty, wall, key = map(_CODES.index, (_EMPTY, _WALL, _KEY))
    board = np.full((size, size), empty)
    board[[0, -1], :] = board[:, [0, -1]] = wall
    board[[middle - 2, middle + 2], 1:5] = wall  # the room
    board[[middle - 1, middle + 1], 4 : max(5, end)] = wall  # the hallway
    board[:, [end, end + 2]] = wall  # the fork
    board[middle, end] = empty
    board[middle - 1, 1] = key + thing
    board[[middle - 2, middle + 2], end + 1] = key + top, key + 1 - top
    return board


def _views(maps: Array, which: Array, row: Array, column: Array, ahead: Array, side: int) -> Array:
    """What the player sees in each pose with each pair of objects, (poses * pairs, side, side).

    Indexed [column, row] from the far left cell of the view.
    """
    across, far = np.meshgrid(
        np.arange(side) - side // 2, side - 1 - np.arange(side), indexing="ij"
    )
    along, down = ahead[:, :, None, None]
    # To the right of (column, row) steps ahead are those (-row, column).
    columns = column[:, None, None] + along * far - down * across
    rows = row[:, None, None] + down * far + along * across
    size = maps.shape[-1]
    inside = (columns >= 0) & (columns < size) & (rows >= 0) & (rows < size)
    columns, rows = np.clip(columns, 0, size - 1), np.clip(rows, 0, size - 1)
    # (poses, pairs, side, side); outside of the map there are walls.
    cells = maps[which[:, None, None], :, rows, columns].transpose(0, 3, 1, 2)
    wall, unseen = _CODES.index(_WALL), _CODES.index(_UNSEEN)
    cells = np.where(inside[:, None], cells, wall)
    seen = _seen(cells[:, 0] != wall)  # all pairs of objects have the same walls
    views: Array = np.where(seen[:, None], cells, unseen).reshape(-1, side, side)
    return views


def _seen(clear: Array) -> Array:
    """Which cells of views (N, column, row) are in sight, if so many let light through.

    As in MiniGrid: from the row of the player on, a cell in sight that is clear shows its
    neighbours at the side and the cells ahead of it and of them.
    """
    side = clear.shape[1]
    seen = np.zeros_like(clear)
    seen[:, side // 2, -1] = True
    for row in reversed(range(side)):
        for columns, beside in ((range(side - 1), 1), (range(side - 1, 0, -1), -1)):
            for column in columns:
                shows = seen[:, column, row] & clear[:, column, row]
                seen[:, column + beside, row] |= shows
                if row:
                    seen[:, column, row - 1] |= shows
                    seen[:, column + beside, row - 1] |= shows
    return seen


_Moves = Generator[int, Array, None]


class _EpisodePlayer(ABC):
    """A player that plays each episode by a generator of its own, on the codes of the view."""

    def reset(self, num_envs: int, seed: int | None = None) -> None:
        self._rng = np.random.default_rng(seed)
        self._rules: list[_Moves | None] = [None] * num_envs

    def act(self, observations: Array, episode_starts: Array) -> Array:
        codes = observations[..., 0]
        if observations.shape[-1] == len(_CODES):
            codes = np.array(_CODES)[observations.argmax(axis=-1)]
        actions = []
        for row, (view, starts) in enumerate(zip(codes, episode_starts, strict=True)):
            rule = self._rules[row]
            if starts or rule is None:
                rule = self._rules[row] = self.rule(view)
                actions.append(next(rule))
            else:
                actions.append(rule.send(view))
        return np.array(actions)

    @abstractmethod
    def rule(self, view: Array) -> _Moves:
        """The moves of an episode that begins with this view; it is sent the next ones."""


def _ahead(view: Array, steps: int = 1) -> int:
    """The code of the cell so many steps ahead of the player."""
    return int(view[view.shape[0] // 2, view.shape[1] - 1 - steps])


class MiniGridMemoryPlayer(_EpisodePlayer):
    """The ceiling: success 1, with any view.

    Goes back to the room to see its object, then to the fork and to the same object.
    """

    def rule(self, view: Array) -> _Moves:
        shown = [int(view[view.shape[0] // 2 - 1, -1])]  # beside the player
        if shown[0] not in (_KEY, _BALL):  # the room is behind: what is in sight is at the fork
            yield _LEFT
            view = yield _LEFT
            while not (shown := _things(view)):
                view = yield _FORWARD
            yield _LEFT
            view = yield _LEFT
        while _ahead(view) == _EMPTY:
            view = yield _FORWARD
        view = yield _LEFT
        if _ahead(view, 2) != shown[0]:
            yield _LEFT
            yield _LEFT
        while True:
            yield _FORWARD


def _things(view: Array) -> list[int]:
    return [code for code in (_KEY, _BALL) if (view == code).any()]


class MiniGridReactivePlayer(_EpisodePlayer):
    """The floor with views of 3 cells: success 1/2.

    Goes forward, and where it cannot, turns to a random side.
    """

    def rule(self, view: Array) -> _Moves:
        while True:
            free = _ahead(view) == _EMPTY
            view = yield _FORWARD if free else int(self._rng.integers(2))
