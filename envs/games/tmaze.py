"""T-Maze: an early sign shows which way to turn at the end of a corridor."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces

from rlgates.envs.engine.arrays import Array, Tables, look_up, namespace
from rlgates.envs.engine.parameters import EpisodeParameter
from rlgates.envs.engine.philox import Key, below
from rlgates.envs.engine.settings import check_range, check_reward, set_fields
from rlgates.envs.engine.spec import EnvSpec, Player, RenderInfo, State

RIGHT, UP, LEFT, DOWN = range(4)
_MOVES = ((1, 0), (0, 1), (-1, 0), (0, -1))  # (along the corridor, towards the upper arm)
_MAX_STEPS = 1_000_000

# Colours of the board.
_FLOOR, _WALL, _PLAYER, _GOAL, _ORACLE = range(5)
_COLORS = np.array(
    [(204, 204, 204), (25, 25, 25), (228, 148, 109), (0, 255, 0), (134, 206, 235)], dtype=np.uint8
)


@dataclass(frozen=True)
class Side(EpisodeParameter):
    """1 for the upper arm or -1 for the lower one."""

    def parse(self, name: str, value: Any) -> Array:
        if check_range(name, value, -1, 1) == 0:
            raise ValueError(f"{name} must be 1 (up) or -1 (down), got {value!r}.")
        return np.asarray(int(value))


@dataclass(frozen=True, kw_only=True)
class TMaze(EnvSpec):
    """The settings and rules that both mazes share; their docstrings specify them.

    A place is a number: x along the corridor, from 0 (the oracle) to the junction, then the
    upper and the lower arm. In the state, `goal` is the place of the goal, and `seen` the time of
    the first visit to the oracle, or -1.
    """

    corridor_length: int = 10
    goal_reward: float = 1.0
    penalty: float | None = None
    distract_reward: float = 0.0

    action_space: ClassVar[spaces.Discrete] = spaces.Discrete(len(_MOVES))
    action_names: ClassVar[tuple[str, ...]] = ("right", "up", "left", "down")
    chance: ClassVar[float] = 0.5
    parameters: ClassVar[Mapping[str, EpisodeParameter]] = {"goal": Side()}

    def __post_init__(self) -> None:
        set_fields(
            self,
            corridor_length=check_range("corridor_length", self.corridor_length, 1, _MAX_STEPS),
        )
        names = ["goal_reward", "distract_reward"]
        if self.penalty is not None:
            names.append("penalty")
        for name in names:
            set_fields(self, **{name: check_reward(name, getattr(self, name))})
        if self._penalty > 0:
            raise ValueError(f"penalty must be at most 0, got {self.penalty}.")

    @property
    def _penalty(self) -> float:
        return -1 / self.corridor_length if self.penalty is None else self.penalty

    @property
    @abstractmethod
    def _oracle_length(self) -> int:
        """Cells from the start back to the oracle."""

    @property
    def _junction(self) -> int:
        return self._oracle_length + self.corridor_length

    @property
    def max_episode_length(self) -> int:
        return self.corridor_length + 2 * self._oracle_length + 1

    @cached_property
    def observation_space(self) -> spaces.Box:
        low, high = np.array([0, -1], np.float32), np.array([1, 1], np.float32)
        return spaces.Box(low, high, dtype=np.float32)

    @property
    def state_bounds(self) -> Mapping[str, tuple[int, int]]:
        end = self._junction
        return {
            "place": (0, end + 2),
            "goal": (end + 1, end + 2),
            "seen": (-1, self.max_episode_length),
        }

    def sample(self, key: Key) -> dict[str, Array]:
        return {"goal": 2 * below(key.words(1)[:, 0], 2) - 1}

    def initial_state(self, parameters: dict[str, Array]) -> State:
        goal = parameters["goal"]
        xp = namespace(goal)
        return {
            "t": xp.zeros_like(goal),
            "place": xp.full_like(goal, self._oracle_length),
            "goal": self._junction + 1 + (goal < 0),
            "seen": xp.full_like(goal, -1 if self._oracle_length else 0),
        }

    def step(self, state: State, actions: Array) -> tuple[State, Array, Array]:
        xp, tables = namespace(actions), self._tables.on_device_of(actions)
        t = state["t"] + 1
        place = look_up(tables.next, state["place"] * len(_MOVES) + actions)
        at_oracle = place == 0
        seen = xp.where(at_oracle & (state["seen"] < 0), t, state["seen"])
        ends = t == self.max_episode_length
        # Before the end a player in an arm cannot be late, so the place can stand for its x.
        late = place < t - self._oracle_length
        case = xp.where(ends, 4 + (place == state["goal"]), late + 2 * at_oracle)
        state = {**state, "t": t, "place": place, "seen": seen}
        return state, look_up(tables.reward, case), ends

    def observe(self, state: State) -> Array:
        place = state["place"]
        sign = state["goal"] + 2  # rows of the table after those of the places
        entry = namespace(place).where(state["seen"] == state["t"], sign, place)
        observation: Array = look_up(self._tables.on_device_of(place).view, entry)
        return observation

    def metrics(self, state: State) -> dict[str, Array]:
        return {"is_success": state["place"] == state["goal"]}

    def render_board(self, state: State) -> Array:
        xp, tables = namespace(state["t"]), self._tables.on_device_of(state["t"])
        cell = xp.arange(tables.floor_plan.shape[0], device=state["t"].device)[None, :]
        goal = look_up(tables.cell, state["goal"])[:, None]
        oracle = xp.where(state["seen"] < 0, tables.cell[0], -1)[:, None]
        player = look_up(tables.cell, state["place"])[:, None]
        paint = xp.where(cell == goal, _GOAL, tables.floor_plan[None, :])
        paint = xp.where(cell == oracle, _ORACLE, paint)
        paint = xp.where(cell == player, _PLAYER, paint)
        return look_up(tables.colors, paint).reshape((-1, 5, self._junction + 3, 3))

    def render_info(self, state: State) -> list[RenderInfo]:
        cells = look_up(self._tables.on_device_of(state["t"]).cell, state["place"]).tolist()
        width, length = self._junction + 3, self.max_episode_length
        return [
            RenderInfo("", length - t, divmod(cell, width))
            for t, cell in zip(state["t"].tolist(), cells, strict=True)
        ]

    def memory_player(self) -> Player:
        return TMazeMemoryPlayer()

    def reactive_player(self) -> Player:
        return TMazeReactivePlayer()

    @cached_property
    def _tables(self) -> Tables:
        end = self._junction
        places = [*((x, 0) for x in range(end + 1)), (end, 1), (end, -1)]
        number = {place: n for n, place in enumerate(places)}
        leads_to = [
            number.get((x + along, y + up), here)
            for (x, y), here in number.items()
            for along, up in _MOVES
        ]
        x, side = np.array(places).T
        view = np.stack([x == end, side], axis=1)
        view = np.concatenate([view, [[0, 1], [0, -1]]]).astype(np.float32)
        width = end + 3  # with a wall at both ends
        cell = (2 - side) * width + x + 1
        floor_plan = np.full(5 * width, _WALL)
        floor_plan[cell] = _FLOOR
        late, distract = self._penalty, self.distract_reward
        rewards = [0.0, late, distract, late + distract, 0.0, self.goal_reward]
        return Tables(
            next=np.array(leads_to),
            view=view,
            reward=np.array(rewards, dtype=np.float32),
            cell=cell,
            floor_plan=floor_plan,
            colors=_COLORS,
        )


@dataclass(frozen=True, kw_only=True)
class PassiveTMaze(TMaze):
    """Passive T-Maze, `rlgates/PassiveTMaze-v0`.

    ## Description
    The player stands at the *oracle*, at one end of a corridor that ends in a junction with an
    upper and a lower arm. The first observation at the oracle shows which arm has the goal; after
    that, all cells of the corridor look the same. There is just enough time for the straight way
    and one turn. The goal is up or down by coin flip.

    ## Actions
    `Discrete(4)`. A move against a wall leaves the player where it is.

    | number | move |
    |--------|-------|
    | 0 | right, to the junction |
    | 1 | up |
    | 2 | left, to the oracle |
    | 3 | down |

    ## Observations
    `Box([0, -1], [1, 1], (2,), float32)`:

    | where | entry 0 | entry 1 |
    |-------|---------|---------|
    | at the oracle, in the first observation of an episode | 0 | goal: 1 up, -1 down |
    | at the oracle later, and in the corridor | 0 | 0 |
    | at the junction | 1 | 0 |
    | in the upper / lower arm | 1 | 1 / -1 |

    ## Rewards
    The last action gets `goal_reward` if the player then stands in the arm with the goal, else 0.
    Every earlier action gets `penalty` if the player is then further left than one that always went
    right (x < t after t actions, counted from the oracle), and `distract_reward` if it is then at
    the oracle. By default a perfect memory gets 1, a player that always takes the same arm 0.5, and
    one that never leaves the oracle -1.

    The number to report is `is_success` in the info of the last step: the player ended in the
    right arm. Without memory no player succeeds in more than half of the episodes.

    ## Start
    At the oracle. `reset(options=...)` overrides parameters of the episode: `goal`, 1 or -1;
    `reveal=True` reports it in the info of the reset.

    ## End
    `terminated` after exactly corridor_length + 1 actions, wherever the player is. The length
    is part of the game: `truncated` is never true.

    ## Arguments
    | name | default | meaning |
    |------|---------|---------|
    | `corridor_length` | 10 | steps from the start to the junction, at least 1 |
    | `goal_reward` | 1.0 | for ending in the arm with the goal |
    | `penalty` | None | for an action that ends late, at most 0; None: -1 / corridor_length |
    | `distract_reward` | 0.0 | for an action, not the last, that ends at the oracle |

    Presets: `length_50`, `length_100`, `length_250`, `length_500`, `length_750`, `length_1000`,
    `length_1250`, `length_1500`, the corridors of the published runs.

    ## Version history
    * v0: first version.

    ## Sources and differences
    Ni et al., "When do Transformers shine in RL? Decoupling memory from credit assignment",
    2023; github.com/twni2016/Memory-RL, `TMazeClassicPassive` with the penalty of its
    configuration. Based on Bakker, "Reinforcement learning with long short-term memory", 2001,
    where being late is not penalized (`penalty=0`). Different here: everything random follows from
    the seed. Left out: the options of the base class that show the position, the time (`View` can
    add it) or the goal.

    Raises:
        ValueError: a setting out of range. TypeError: a setting of the wrong type.
    """

    env_id: ClassVar[str] = "rlgates/PassiveTMaze-v0"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        f"length_{n}": {"corridor_length": n} for n in (50, 100, 250, 500, 750, 1000, 1250, 1500)
    }

    @property
    def _oracle_length(self) -> int:
        return 0


@dataclass(frozen=True, kw_only=True)
class ActiveTMaze(TMaze):
    """Active T-Maze, `rlgates/ActiveTMaze-v0`.

    ## Description
    A corridor ends on the right in a junction with an upper and a lower arm, and on the left in
    the *oracle*. The player starts between the two, must go left first, where the first
    observation shows which arm has the goal, and then right to the junction. All other cells of the
    corridor look the same. There is just enough time for this and one turn. The goal is up or down
    by coin flip.

    ## Actions
    As in `PassiveTMaze`: `Discrete(4)`, right, up, left, down.

    ## Observations
    `Box([0, -1], [1, 1], (2,), float32)`:

    | where | entry 0 | entry 1 |
    |-------|---------|---------|
    | at the oracle, in its first observation of an episode | 0 | goal: 1 up, -1 down |
    | at the oracle later, and in the corridor | 0 | 0 |
    | at the junction | 1 | 0 |
    | in the upper / lower arm | 1 | 1 / -1 |

    ## Rewards
    The last action gets `goal_reward` if the player then stands in the arm with the goal, else 0.
    Every earlier action gets `penalty` if the player is then further left than the shortest way via
    the oracle allows (x < t - oracle_length after t actions, counted from the oracle), and
    `distract_reward` if it is then at the oracle. By default a perfect memory gets 1, and a player
    that never sees the oracle and takes a random arm 0.5.

    The number to report is `is_success` in the info of the last step: the player ended in the
    right arm, together with `saw_goal`: it visited the oracle. Without memory no player succeeds
    in more than half of the episodes.

    ## Start
    `oracle_length` cells right of the oracle. `reset(options=...)` overrides parameters of the
    episode: `goal`, 1 or -1; `reveal=True` reports it in the info of the reset.

    ## End
    `terminated` after exactly corridor_length + 2 oracle_length + 1 actions, wherever the player
    is. The length is part of the game: `truncated` is never true.

    ## Arguments
    | name | default | meaning |
    |------|---------|---------|
    | `corridor_length` | 10 | steps from the start to the junction, at least 1 |
    | `oracle_length` | 1 | steps from the start to the oracle, at least 1 |
    | `goal_reward` | 1.0 | for ending in the arm with the goal |
    | `penalty` | None | for an action that ends late, at most 0; None: -1 / corridor_length |
    | `distract_reward` | 0.0 | for an action, not the last, that ends at the oracle |

    Presets: `length_20`, `length_50`, `length_100`, `length_250`, `length_500`, the corridors of
    the published runs.

    ## Version history
    * v0: first version.

    ## Sources and differences
    Ni et al., "When do Transformers shine in RL? Decoupling memory from credit assignment",
    2023; github.com/twni2016/Memory-RL, `TMazeClassicActive` with the penalty of its
    configuration. Different here: the distance to the oracle is a setting (there 1), and
    everything random follows from the seed. Left out: the options of the base class that show
    the position, the time (`View` can add it) or the goal.

    Raises:
        ValueError: a setting out of range. TypeError: a setting of the wrong type.
    """

    env_id: ClassVar[str] = "rlgates/ActiveTMaze-v0"
    oracle_length: int = 1

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        f"length_{n}": {"corridor_length": n} for n in (20, 50, 100, 250, 500)
    }
    metric_names: ClassVar[tuple[str, ...]] = ("is_success", "saw_goal")

    def __post_init__(self) -> None:
        super().__post_init__()
        length = check_range("oracle_length", self.oracle_length, 1, _MAX_STEPS)
        set_fields(self, oracle_length=length)

    @property
    def _oracle_length(self) -> int:
        return self.oracle_length

    def metrics(self, state: State) -> dict[str, Array]:
        return {**super().metrics(state), "saw_goal": state["seen"] >= 0}


class TMazeMemoryPlayer:
    """The ceiling of both T-Mazes: return `goal_reward`, success 1.

    Goes left until it has seen the sign at the oracle, then right, and at the junction to the
    side of the sign.
    """

    def reset(self, num_envs: int, seed: int | None = None) -> None:
        self._sign = np.zeros(num_envs, dtype=np.int64)

    def act(self, observations: Array, episode_starts: Array) -> Array:
        at_end, second = observations.T.astype(np.int64)
        self._sign[episode_starts] = 0
        self._sign = np.where(at_end, self._sign, self._sign + second)
        turn = np.where(self._sign > 0, UP, DOWN)
        action = np.where(at_end & (second == 0), turn, RIGHT)
        return np.where(self._sign == 0, LEFT, action)


class TMazeReactivePlayer(Player):
    """The floor of both T-Mazes: always right, at the junction up; success 1/2, never late.

    No rule on the current observation, deterministic or random, does better: after the sign, all
    observations on the straight way are the same for both signs.
    """

    def act(self, observations: Array, episode_starts: Array) -> Array:
        at_end, second = observations.T
        return np.where((at_end == 1) & (second == 0), UP, RIGHT)
