"""Labyrinth Escape and Labyrinth Explore: find the exit of a maze, or visit every square."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces

from rlgates.envs.engine.arrays import Array, Tables, entry, fill, look_up, namespace, row_starts
from rlgates.envs.engine.mazes import hunt_and_kill, words_of_a_maze
from rlgates.envs.engine.parameters import Cell, EpisodeParameter, Integers
from rlgates.envs.engine.philox import Key, below
from rlgates.envs.engine.settings import check_range, set_fields
from rlgates.envs.engine.spec import EnvSpec, Player, State

_FREE, _WALL, _START, _GOAL, _HIDDEN = range(5)
_MOVES = ((0, -1), (0, 1), (-1, 0), (1, 0))  # left, right, up, down
_NO_MOVE = len(_MOVES)
_SIDES = 4
_PLAYER = 5
# Of a free square, a wall, the start, the goal, what is hidden (never drawn), and the player.
_COLORS = np.array(
    [(204, 204, 204), (25, 25, 25), (135, 206, 235), (0, 255, 0), (0, 0, 0), (228, 148, 109)],
    dtype=np.uint8,
)


@dataclass(frozen=True, kw_only=True)
class Labyrinth(EnvSpec):
    """The rules that both games share; their docstrings specify them.

    Squares are numbered in a board with a further row and column of walls at its end, which the
    view of the last row and column shows.
    """

    size: int = 10
    episode_length: int = 1024

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "easy": {"size": 10},
        "medium": {"size": 14},
        "hard": {"size": 18},
    }
    action_space: ClassVar[spaces.Discrete] = spaces.Discrete(len(_MOVES))
    action_names: ClassVar[tuple[str, ...]] = ("left", "right", "up", "down")
    observation_space: ClassVar[spaces.MultiDiscrete] = spaces.MultiDiscrete([5] * 10)
    fixed_length: ClassVar[bool] = False
    sampling_is_costly: ClassVar[bool] = True

    def __post_init__(self) -> None:
        size = check_range("size", self.size, 6, 100)
        if size % 2:
            raise ValueError(f"size must be even, got {self.size}.")
        length = check_range("episode_length", self.episode_length, 2, 1_000_000)
        set_fields(self, size=size, episode_length=length)

    @property
    def max_episode_length(self) -> int:
        return self.episode_length - 1

    @property
    def _side(self) -> int:
        """Squares of a row of the maze, its outer walls included."""
        return self.size + 1

    @cached_property
    def _entrances(self) -> tuple[tuple[int, int], ...]:
        """Where a start or a goal can be in the outer wall: above, below, left, right."""
        odd, last = range(1, self._side, 2), self._side - 1
        across = [[(row, k) for k in odd] for row in (0, last)]
        down = [[(k, column) for k in odd] for column in (0, last)]
        return tuple(square for side in (*across, *down) for square in side)

    @cached_property
    def parameters(self) -> Mapping[str, EpisodeParameter]:
        entrance = Cell(self._entrances)
        return {"maze": Integers(2, self._side**2), "start": entrance, "goal": entrance}

    @property
    def state_bounds(self) -> Mapping[str, tuple[int, int]]:
        squares = (self._side + 1) ** 2
        return {
            "maze": (_FREE, _HIDDEN),
            "place": (0, squares - 1),
            "last_action": (0, _NO_MOVE),
        }

    def sample(self, key: Key) -> dict[str, Array]:
        words, half = key.words(3), self.size // 2
        side = below(words[:, 0], _SIDES)
        return {
            "maze": hunt_and_kill(key.words(words_of_a_maze(half), stream=1), half),
            "start": side * half + below(words[:, 1], half),
            "goal": (side ^ 1) * half + below(words[:, 2], half),
        }

    def initial_state(self, parameters: dict[str, Array]) -> State:
        xp, tables = namespace(parameters["maze"]), self._tables.on_device_of(parameters["maze"])
        batch, side = parameters["maze"].shape[0], self._side
        squares = parameters["maze"].reshape((batch, side, side))
        maze = xp.zeros((batch, side + 1, side + 1), dtype=xp.int8, device=squares.device) + _WALL
        maze[:, :-1, :-1] = xp.astype(squares, xp.int8)
        maze = maze.reshape((batch, -1))
        rows = row_starts(batch, maze.shape[1], parameters["start"])
        place = look_up(tables.entrances, parameters["start"])
        maze.reshape(-1)[rows + place] = _START
        self._mark(maze, rows, look_up(tables.entrances, parameters["goal"]))
        zeros = xp.zeros_like(place)
        return {"t": zeros, "maze": maze, "place": place, "last_action": zeros + _NO_MOVE}

    def _mark(self, maze: Array, rows: Array, goal: Array) -> None:
        """Write the goal into a new maze, if the game has one."""

    def _move(self, state: State, actions: Array) -> tuple[State, Array]:
        """The state after a move, without the game's own parts, and what is on the square."""
        tables, place = self._tables.on_device_of(actions), state["place"]
        to = look_up(tables.next, place * len(_MOVES) + actions)
        is_blocked = entry(state["maze"], to) == _WALL
        to = namespace(actions).where(is_blocked, place, to)
        moved = {**state, "t": state["t"] + 1, "place": to, "last_action": actions}
        return moved, entry(state["maze"], to)

    def observe(self, state: State) -> Array:
        tables, maze, place = self._tables.on_device_of(state["t"]), state["maze"], state["place"]
        xp = namespace(place)
        rows = row_starts(maze.shape[0], maze.shape[1], place)[:, None]
        view = look_up(maze.reshape(-1), rows + look_up(tables.view, place))
        observation: Array = xp.concat(
            [xp.astype(view, xp.int64), state["last_action"][:, None]], axis=1
        )
        return observation

    def render_board(self, state: State) -> Array:
        xp, maze, side = namespace(state["t"]), state["maze"], self._side
        squares = xp.astype(maze, xp.int64, copy=True)
        rows = row_starts(maze.shape[0], maze.shape[1], state["place"])
        squares.reshape(-1)[rows + state["place"]] = _PLAYER
        squares = squares.reshape((-1, side + 1, side + 1))[:, :side, :side]
        return look_up(self._tables.on_device_of(squares).colors, squares)

    @property
    @abstractmethod
    def _extra_tables(self) -> dict[str, Array]:
        """Tables of the game."""

    @cached_property
    def _tables(self) -> Tables:
        side, width = self._side, self._side + 1
        row, column = np.divmod(np.arange(width**2), width)
        last = side - 1
        following = [
            np.clip(row + down, 0, last) * width + np.clip(column + right, 0, last)
            for down, right in _MOVES
        ]
        rows, columns = _in_view(row, last), _in_view(column, last)
        view = rows[:, :, None] * width + columns[:, None, :]
        return Tables(
            next=np.stack(following, axis=1).reshape(-1),
            view=view.reshape(-1, 9),
            colors=_COLORS,
            entrances=np.array([r * width + c for r, c in self._entrances]),
            **self._extra_tables,
        )


def _in_view(number: Array, last: int) -> Array:
    """The rows (or columns) that a player in each row sees, (rows, 3).

    As in POPGym: row 0 sees rows 0 and 1, and then a row of walls.
    """
    near = number[:, None] + np.arange(-1, 2)
    near[number == 0] = 0, 1, last + 1
    return np.minimum(near, last + 1)


@dataclass(frozen=True, kw_only=True)
class LabyrinthEscape(Labyrinth):
    """Labyrinth Escape, `rlgates/LabyrinthEscape-v0`.

    ## Description
    The player must leave a maze, which is new in every episode. It starts in an opening of the
    outer wall and must find the goal, an opening in the opposite wall. Only the squares nearby are
    visible.

    ## Actions
    `Discrete(4)`: 0 left, 1 right, 2 up, 3 down. A move against a wall, or out of the maze, has no
    effect.

    ## Observations
    `MultiDiscrete([5] * 10)`, int64:

    | entry | meaning |
    |-------|---------|
    | 0 to 8 | three rows of three squares: 0 free, 1 wall, 2 start, 3 goal |
    | 9 | the last action; 4 at the start |

    The player is in the middle of the view. In the first row of the maze, however, it is in the
    first row of the view, with the second row below it and then a row of walls; likewise for
    columns. What lies beyond the last row and column is shown as wall. A square never has the value
    4.

    ## Rewards
    -1 / episode_length for every action, plus 1 at the goal. The number to report is `is_success`
    in the info of the last step: the goal was found.

    ## Start
    The maze has (size / 2)^2 cells, with walls between them, and is generated by the hunt-and-kill
    algorithm: a random walk goes to unvisited cells until there are none around it, and starts
    again at a randomly drawn cell if that has been visited; it ends after (size + 1)^2 such draws.
    So, very rarely, a cell is left out. The start is on one of the four sides, at a uniformly
    random place. `reset(options=...)` overrides parameters of the episode: `maze`, 1 for a wall and
    0 for a free square, (size + 1)^2 numbers row by row; `start` and `goal`, (row, column) in the
    outer wall; `reveal=True` reports them in the info of the reset.

    ## End
    `terminated` at the goal, and after episode_length - 1 actions. The length is part of the
    game: `truncated` is never true.

    ## Arguments
    | name | default | meaning |
    |------|---------|---------|
    | `size` | 10 | rows and columns of the maze, without its last wall; even, 6 to 100 |
    | `episode_length` | 1024 | one more than the largest number of actions |

    Presets: `easy` (10), `medium` (14) and `hard` (18), the published levels.

    ## Version history
    * v0: first version.

    ## Sources and differences
    Morad et al., "POPGym: Benchmarking partially observable reinforcement learning", 2023;
    github.com/proroklab/popgym, version 1.0.7, envs/labyrinth_escape.py and core/maze.py, whose
    mazes are those of mazelib, version 0.9.16. As there, the view is not centred in the first row
    and column, and the episode ends one action before `episode_length`. The release warns that an
    MLP has done better here than an LSTM. There, reaching the goal with the last action ends the
    episode by both `terminated` and `truncated`, and episodes without the goal end by `truncated`.
    Here all end by `terminated`, infos contain neither positions nor map, and everything random
    follows from the seed.

    Raises:
        ValueError: a setting out of range. TypeError: a setting of the wrong type.
    """

    env_id: ClassVar[str] = "rlgates/LabyrinthEscape-v0"

    def _mark(self, maze: Array, rows: Array, goal: Array) -> None:
        maze.reshape(-1)[rows + goal] = _GOAL

    def step(self, state: State, actions: Array) -> tuple[State, Array, Array]:
        state, square = self._move(state, actions)
        is_goal = square == _GOAL
        reward = look_up(self._tables.on_device_of(actions).reward, is_goal * 1)
        return state, reward, is_goal | (state["t"] == self.max_episode_length)

    def metrics(self, state: State) -> dict[str, Array]:
        return {"is_success": entry(state["maze"], state["place"]) == _GOAL}

    def memory_player(self) -> Player:
        return LabyrinthMemoryPlayer()

    def reactive_player(self) -> Player:
        return LabyrinthReactivePlayer()

    @property
    def _extra_tables(self) -> dict[str, Array]:
        cost = -1 / self.episode_length
        return {"reward": np.array([cost, cost + 1], dtype=np.float32)}


@dataclass(frozen=True, kw_only=True)
class LabyrinthExplore(Labyrinth):
    """Labyrinth Explore, `rlgates/LabyrinthExplore-v0`.

    ## Description
    The player must visit all free squares of a maze, which is new in every episode, as fast as
    possible. Only the squares nearby are visible, but not which of them have been visited.

    ## Actions
    `Discrete(4)`: 0 left, 1 right, 2 up, 3 down. A move against a wall, or out of the maze, has no
    effect.

    ## Observations
    As in `LabyrinthEscape`, without a goal: `MultiDiscrete([5] * 10)`, int64.

    ## Rewards
    With F the number of free squares besides the start: 1 / F for a square visited for the first
    time, else -1 / episode_length. The numbers to report are in the info of the last step:
    `is_success`, all squares were visited, and `accuracy`, the visited share of the F squares
    (float32).

    ## Start
    As in `LabyrinthEscape`; its `goal` is sampled too, and has no effect.

    ## End
    `terminated` when all free squares were visited, and after episode_length - 1 actions. The
    length is part of the game: `truncated` is never true.

    ## Arguments
    Those of `LabyrinthEscape`, and its presets.

    ## Version history
    * v0: first version.

    ## Sources and differences
    As `LabyrinthEscape`; envs/labyrinth_explore.py. If the algorithm left out a cell, the episode
    ends when all reachable squares have been visited, as there.

    Raises:
        ValueError: a setting out of range. TypeError: a setting of the wrong type.
    """

    env_id: ClassVar[str] = "rlgates/LabyrinthExplore-v0"
    metric_names: ClassVar[tuple[str, ...]] = ("is_success", "accuracy")

    @property
    def state_bounds(self) -> Mapping[str, tuple[int, int]]:
        free = (0, self._side**2)
        bounds = {"visited": (0, 1), "num_visited": free, "num_free": free}
        return {**super().state_bounds, **bounds}

    def initial_state(self, parameters: dict[str, Array]) -> State:
        state = super().initial_state(parameters)
        maze = state["maze"]
        xp = namespace(maze)
        visited = xp.astype(maze == _START, xp.int8)
        num_free = xp.sum(xp.astype(maze == _FREE, xp.int64), axis=1)
        return {
            **state,
            "visited": visited,
            "num_visited": xp.zeros_like(num_free),
            "num_free": num_free,
        }

    def step(self, state: State, actions: Array) -> tuple[State, Array, Array]:
        xp, visited = namespace(actions), state["visited"]
        state, _ = self._move(state, actions)
        index = row_starts(visited.shape[0], visited.shape[1], actions) + state["place"]
        is_new = look_up(visited.reshape(-1), index) == 0
        visited = xp.asarray(visited, copy=True)
        fill(visited.reshape(-1), index, 1)
        num_visited, num_free = state["num_visited"] + is_new, state["num_free"]
        state = {**state, "visited": visited, "num_visited": num_visited}
        reward = look_up(self._tables.on_device_of(actions).reward, num_free * is_new)
        ended = (num_visited == num_free) | (state["t"] == self.max_episode_length)
        return state, reward, ended

    def metrics(self, state: State) -> dict[str, Array]:
        xp, visited, free = namespace(state["t"]), state["num_visited"], state["num_free"]
        share = xp.astype(visited, xp.float64) / xp.astype(free, xp.float64)
        return {"is_success": visited == free, "accuracy": xp.astype(share, xp.float32)}

    def memory_player(self) -> Player:
        return LabyrinthMemoryPlayer()

    def reactive_player(self) -> Player:
        return LabyrinthReactivePlayer()

    @property
    def _extra_tables(self) -> dict[str, Array]:
        # By the number of free squares; 0 for a square that was visited before.
        reward = 1 / np.maximum(np.arange(self._side**2 + 1), 1)
        reward[0] = -1 / self.episode_length
        return {"reward": reward.astype(np.float32)}


class LabyrinthMemoryPlayer:
    """A good player with memory: explores depth first, and goes back where everything is known.

    It draws its own map from the view and its moves. In Escape it goes to a goal in sight.
    """

    def reset(self, num_envs: int, seed: int | None = None) -> None:
        self._paths: list[list[int]] = [[] for _ in range(num_envs)]
        self._seen: list[set[tuple[int, int]]] = [set() for _ in range(num_envs)]
        self._at = [(0, 0)] * num_envs

    def act(self, observations: Array, episode_starts: Array) -> Array:
        views = observations[:, :9].reshape(-1, 3, 3).tolist()
        actions = [
            self._choose(row, view, bool(starts))
            for row, (view, starts) in enumerate(zip(views, episode_starts, strict=True))
        ]
        return np.array(actions)

    def _choose(self, row: int, view: list[list[int]], starts: bool) -> int:
        if starts:
            self._paths[row], self._seen[row], self._at[row] = [], {(0, 0)}, (0, 0)
        path, seen, (y, x) = self._paths[row], self._seen[row], self._at[row]
        # The view is not centred in the first row and column; where the start is there, its
        # mark says so. Later on the player is inside of the maze.
        cy, cx = (1, 1)
        if not path:
            cy, cx = next((r, c) for r in (1, 0) for c in (1, 0) if view[r][c] == _START)
        open_moves = [
            move
            for move, (down, right) in enumerate(_MOVES)
            if 0 <= cy + down < 3
            and 0 <= cx + right < 3
            and view[cy + down][cx + right] != _WALL
            and (y + down, x + right) not in seen
        ]
        goals = [
            move for move in open_moves if view[cy + _MOVES[move][0]][cx + _MOVES[move][1]] == _GOAL
        ]
        if open_moves:
            move = (goals or open_moves)[0]
            path.append(move)
        else:
            move = path.pop() ^ 1 if path else 0
        down, right = _MOVES[move]
        self._at[row] = (y + down, x + right)
        seen.add(self._at[row])
        return move


class LabyrinthReactivePlayer:
    """A player without memory: goes to a random free square in sight."""

    def reset(self, num_envs: int, seed: int | None = None) -> None:
        self._rng = np.random.default_rng(seed)

    def act(self, observations: Array, episode_starts: Array) -> Array:
        beside = observations[:, [3, 5, 1, 7]]  # left, right, up, down of the middle
        walls = beside == _WALL
        # On a start in the first column or row, the view is that from the square beyond it.
        walls[:, 1] &= beside[:, 0] != _START
        walls[:, 3] &= beside[:, 2] != _START
        worth = self._rng.random(beside.shape) + 2 * (beside == _GOAL) - 2 * walls
        choice: Array = worth.argmax(axis=1)
        return choice
