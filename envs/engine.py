"""What every batched task shares: what it promises, and the loop that steps it.

A task is a pure definition (`Task`): settings, and functions from arrays to arrays. What it
draws is a function of (seed, environment index, episode), so row k of a batch is the same
environment as a batch of one with index k, whatever the batch size, the order of resets or the
device.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, TypeAlias

import array_api_compat
import numpy as np
from gymnasium import spaces
from gymnasium.error import ResetNeeded

from rlgates.envs.arrays import Array, namespace, put, select
from rlgates.envs.choices import Choice, fix, tell
from rlgates.envs.philox import Key, check_seed, random_seed
from rlgates.envs.saved import check_saved
from rlgates.errors import check_flag, check_size

State: TypeAlias = dict[str, Array]
"""The state of a task: named arrays, each with the batch as its first axis."""
Observation: TypeAlias = Array | dict[str, Array]
"""What agents see: an array (B, ...), or several by name."""


class Moment(NamedTuple):
    """Where an episode stands, for people: phase, steps left of it, the player's cell if any."""

    phase: str
    steps_left: int
    cell: tuple[int, int] | None


class Task(Protocol):
    """A batched environment, as a frozen set of settings and pure functions of arrays.

    The functions take and give arrays of one kind, NumPy or torch, on one device; they have no
    branch on what the arrays hold. Episodes end by `terminated`: their length is part of the
    task and no time limit.
    """

    @property
    def observation_space(self) -> spaces.Space[Any]:
        """What one agent sees."""

    @property
    def action_space(self) -> spaces.Discrete: ...
    @property
    def metric_names(self) -> tuple[str, ...]: ...
    @property
    def phase_names(self) -> tuple[str, ...]:
        """The phases of an episode, in their order; none if it has no parts."""

    @property
    def max_episode_length(self) -> int:
        """The largest number of steps of an episode."""

    @property
    def fixed_length(self) -> bool:
        """Whether every episode has `max_episode_length` steps."""

    @property
    def chance(self) -> float | None:
        """Success rate of guessing, where an episode always ends with a guess."""

    @property
    def choices(self) -> Mapping[str, Choice]:
        """What an episode draws, by name."""

    @property
    def state_bounds(self) -> Mapping[str, tuple[int, int]]:
        """The smallest and the largest value of those integers in a state that have bounds."""

    def draw(self, key: Key) -> dict[str, Array]:
        """The choices of the episodes that `key` names."""

    def start(self, drawn: dict[str, Array]) -> State:
        """First states with these choices; every state has `t`, the steps made, integers (B,)."""

    def step(self, state: State, actions: Array) -> tuple[State, Array, Array]:
        """Next state, reward (B,) float32 and terminated (B,) bool; `state` stays as it is."""

    def observe(self, state: State) -> Observation:
        """What the agents see, as `observation_space` with the batch before it."""

    def metrics(self, state: State) -> dict[str, Array]:
        """What is reported at the end of an episode, by name, each (B,)."""

    def phase(self, state: State) -> Array:
        """Which of `phase_names` each episode is in, (B,)."""

    def board(self, state: State) -> Array:
        """The whole board, for people, uint8 (B, height, width, 3)."""

    def moments(self, state: State) -> list[Moment]:
        """Where each episode stands, for people."""


def own_spaces(task: Task) -> tuple[spaces.Space[Any], spaces.Discrete]:
    """The observation and the action space of `task`, copied, each with a new generator.

    A task is shared by all of its environments; to seed the space of one must not seed the others'.
    """
    own = copy.deepcopy((task.observation_space, task.action_space))
    for space in own:
        space.seed()
    return own


class BatchedEnv:
    """`num_envs` copies of a task, stepped together; a finished one starts again by itself.

    Row k is the environment with index `first_index + k`: several batches with the same seed
    and different first indices are parts of one larger batch. `rlgates.envs.torch` makes
    batches of torch tensors.

    Args:
        task: the definition.
        num_envs: number of rows, at least 1.
        seed: in [0, 2**64); None draws one from the operating system at the first reset.
        first_index: index of row 0, at least 0.
        xp: array namespace.
        device: of the arrays, as `xp` names it.
        debug: check the values of actions on every device; on a GPU that waits for it.
    """

    def __init__(
        self,
        task: Task,
        num_envs: int,
        seed: int | None = None,
        first_index: int = 0,
        *,
        xp: Any = np,
        device: Any = None,
        debug: bool = False,
    ) -> None:
        self.task = task
        self.num_envs = check_size("num_envs", num_envs)
        self.first_index = check_size("first_index", first_index, minimum=0)
        if self.first_index + self.num_envs > 2**32:
            raise ValueError(f"indices must stay below 2**32, got first_index={first_index}.")
        self.xp = xp
        self._num_actions = int(task.action_space.n)
        self._length = task.max_episode_length if task.fixed_length else None
        names = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
        self._integers = {xp.empty(0, dtype=getattr(xp, name)).dtype for name in names}
        self._seed = None if seed is None else check_seed(seed)
        self._index = self.first_index + xp.arange(self.num_envs, dtype=xp.int64, device=device)
        self.device = self._index.device
        self._on_host = xp is np or self.device.type == "cpu"
        self._checks_values = check_flag("debug", debug) or self._on_host
        self._episode = xp.full_like(self._index, -1)
        self._return = self._zeros(xp.float64)
        self._clock = 0  # steps since all rows began; of use where all end together
        self._state: State | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "xp"}

    def __setstate__(self, saved: dict[str, Any]) -> None:
        self.__dict__.update(saved, xp=namespace(saved["_index"]))

    def _zeros(self, dtype: Any) -> Array:
        zeros: Array = self.xp.zeros(self.num_envs, dtype=dtype, device=self.device)
        return zeros

    @property
    def seed(self) -> int | None:
        """The seed in use; None before the first reset of an environment made without one."""
        return self._seed

    @property
    def state(self) -> State:
        """The task's state, (num_envs, ...) arrays to read and not to write."""
        if self._state is None:
            raise ResetNeeded("call reset() first: this environment has not started yet.")
        return self._state

    def reset(
        self, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start an episode in every row.

        With a seed these are the episodes number 0 of that seed; without one each row goes on
        to its next episode.

        Args:
            seed: in [0, 2**64).
            options: choices of the task by name, which are then the same in every row and hold
                for this episode only; `reveal=True` asks for the choices of all rows.

        Returns:
            First observations, and info, with `choices` if asked for: (num_envs, ...) arrays.

        Raises:
            ValueError: an unknown option, or a value out of range. TypeError: of the wrong type.
        """
        given = dict(options or {})
        reveal = check_flag("reveal", given.pop("reveal", False))
        if seed is not None:
            seed, episode = check_seed(seed), self.xp.zeros_like(self._episode)
        else:
            seed = random_seed() if self._seed is None else self._seed
            episode = self._episode + 1
        drawn = self.task.draw(Key(seed, self._index, episode))
        drawn = fix(self.task.choices, drawn, given)
        self._state = self.task.start(drawn)
        self._seed, self._episode, self._clock = seed, episode, 0
        self._return = self._zeros(self.xp.float64)
        info = {"choices": tell(self.task.choices, drawn)} if reveal else {}
        return self.task.observe(self._state), info

    def step(self, actions: Any) -> tuple[Observation, Array, Array, Array, dict[str, Any]]:
        """One action in every row.

        Rows whose episode ends start the next one in the same step: their observation is the
        first one of the new episode, their reward and flags belong to the old one.

        Args:
            actions: integers (num_envs,), each an action of the task.

        Returns:
            observation, reward float32, terminated bool, truncated bool (never true), and info.
            `info["finished"]` tells which rows ended. If any did, info also has, for all rows
            and meaningful in the finished ones, `final_obs` (the last observation),
            `episode_return`, `episode_length` and the task's metrics. A GPU is not asked
            whether any did: there info has them whenever one may have.

        Raises:
            ResetNeeded: before the first reset. TypeError, ValueError: unusable actions.
        """
        state, task = self.state, self.task
        state, reward, finished = task.step(state, self._check(actions))
        obs = task.observe(state)
        self._return = self._return + reward
        self._clock += 1
        info: dict[str, Any] = {"finished": finished}
        if self._may_end(finished):
            info["final_obs"] = obs
            info["episode_return"], info["episode_length"] = self._return, state["t"]
            info.update(task.metrics(state))
            state, obs = self._restart(state, obs, finished)
        self._state = state
        return obs, reward, finished, self._zeros(self.xp.bool), info

    def _check(self, actions: Any) -> Array:
        """`actions` as integers (num_envs,) that the task has."""
        checked: Array = self.xp.asarray(actions, device=self.device)
        if checked.dtype not in self._integers:
            raise TypeError(f"actions must be integers, got dtype {checked.dtype}.")
        if checked.shape != self._index.shape:
            raise ValueError(
                f"actions must have shape ({self.num_envs},), got {tuple(checked.shape)}."
            )
        count = self._num_actions
        if self._checks_values and not (checked.min() >= 0 and checked.max() < count):
            wrong = int(checked[(checked < 0) | (checked >= count)][0])
            raise ValueError(f"actions must be in [0, {count}), got {wrong}.")
        return checked if checked.dtype == self.xp.int64 else self.xp.astype(checked, self.xp.int64)

    def _may_end(self, finished: Array) -> bool:
        if self._length is not None:
            return self._clock == self._length
        return not self._on_host or bool(self.xp.any(finished))

    def _restart(
        self, state: State, obs: Observation, finished: Array
    ) -> tuple[State, Observation]:
        """States and observations with the finished rows replaced by their next episode's."""
        assert self._seed is not None
        self._clock = 0
        self._episode = self._episode + finished
        self._return = self.xp.where(finished, 0.0, self._return)
        key = Key(self._seed, self._index, self._episode)
        if self._on_host:
            (rows,) = self.xp.nonzero(finished)
            key = key._replace(env_index=self._index[rows], episode=self._episode[rows])
        start = self.task.start(self.task.draw(key))
        first = self.task.observe(start)
        if self._on_host:
            return put(rows, start, state), put(rows, first, obs)
        return select(finished, start, state), select(finished, first, obs)

    def get_state(self) -> dict[str, Array]:
        """All that decides the future, as named NumPy arrays: save them with `numpy.savez`."""
        arrays = {
            "index": self._index,
            "episode": self._episode,
            "episode_return": self._return,
            **{f"task/{name}": values for name, values in self.state.items()},
        }
        return {
            "settings": np.array(repr(self.task)),
            "seed": np.array(self._seed, dtype=np.uint64),
            **{
                name: np.asarray(array_api_compat.to_device(values, "cpu")).copy()
                for name, values in arrays.items()
            },
        }

    def set_state(self, saved: Mapping[str, Any]) -> Observation:
        """Go on from what `get_state` gave, and return the current observations.

        Raises:
            ValueError: it was saved from other settings or another number of rows, has a missing
                or unknown entry, or one with a value that no episode has. TypeError: an entry
                holds numbers of the wrong kind. In both cases all stays as it was.
        """
        settings = str(saved.get("settings", "an unknown task"))
        if settings != repr(self.task):
            raise ValueError(f"saved from {settings}, but this environment is {self.task!r}.")
        example = BatchedEnv(self.task, self.num_envs, seed=0)
        example.reset()
        arrays = check_saved(saved, example.get_state(), self.task)
        self._seed = int(arrays.pop("seed"))
        del arrays["settings"]
        self.first_index = int(arrays["index"][0])
        self._clock = int(arrays["task/t"][0])
        here = {
            name: self.xp.asarray(values, device=self.device) for name, values in arrays.items()
        }
        self._index, self._episode = here["index"], here["episode"]
        self._return = here["episode_return"]
        self._state = {
            name.removeprefix("task/"): values
            for name, values in here.items()
            if name.startswith("task/")
        }
        return self.task.observe(self._state)
