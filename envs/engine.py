"""What every batched task shares: what it promises, and the loop that steps it.

A task is a pure definition (`Task`): settings, and functions from arrays to arrays. What it
draws is a function of (seed, environment index, episode), so row k of a batch is the same
environment as a batch of one with index k, whatever the batch size or the order of resets.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from gymnasium.error import ResetNeeded

from rlgates.envs.philox import Array, Key, check_seed, random_seed
from rlgates.errors import check_size, unknown

State: TypeAlias = dict[str, Array]
"""The state of a task: named arrays, each with the batch as its first axis."""


class Moment(NamedTuple):
    """Where an episode stands: the phase, the steps left of it, and the player's cell."""

    phase: str
    steps_left: int
    row: int
    col: int


class Task(Protocol):
    """A batched environment, as a frozen set of settings and pure functions of arrays.

    Episodes end by `terminated`: their length is part of the task and no time limit.
    """

    @property
    def num_actions(self) -> int: ...
    @property
    def observation_shape(self) -> tuple[int, int, int]: ...
    @property
    def metric_names(self) -> tuple[str, ...]: ...

    def reset(self, key: Key) -> State:
        """First states of the episodes that `key` names."""

    def step(self, state: State, actions: Array) -> tuple[State, Array, Array]:
        """Next state, reward (B,) float32 and terminated (B,) bool; `state` stays as it is."""

    def observe(self, state: State) -> Array:
        """What the agents see, uint8 (B, height, width, 3)."""

    def board(self, state: State) -> Array:
        """The whole board, for people, uint8 (B, height, width, 3)."""

    def moments(self, state: State) -> list[Moment]:
        """Where each episode stands, for people."""

    def metrics(self, state: State) -> dict[str, Array]:
        """What is reported at the end of an episode, by name, each (B,)."""


def check_actions(actions: Any, num_envs: int, num_actions: int) -> Array:
    """`actions` as an integer array (num_envs,) with values in [0, num_actions)."""
    checked: Array = np.asarray(actions)
    if checked.dtype.kind not in "iu":
        raise TypeError(f"actions must be integers, got dtype {checked.dtype}.")
    if checked.shape != (num_envs,):
        raise ValueError(f"actions must have shape ({num_envs},), got {checked.shape}.")
    if checked.min() < 0 or checked.max() >= num_actions:
        wrong = checked[(checked < 0) | (checked >= num_actions)][0]
        raise ValueError(f"actions must be in [0, {num_actions}), got {wrong}.")
    return checked


class BatchedEnv:
    """`num_envs` copies of a task, stepped together; a finished one starts again by itself.

    Row k is the environment with index `first_index + k`: several batches with the same seed
    and different first indices are parts of one larger batch.

    Args:
        task: the definition.
        num_envs: number of rows, at least 1.
        seed: in [0, 2**64); None draws one from the operating system at the first reset.
        first_index: index of row 0, at least 0.
    """

    def __init__(
        self, task: Task, num_envs: int, seed: int | None = None, first_index: int = 0
    ) -> None:
        self.task = task
        self.num_envs = check_size("num_envs", num_envs)
        self.first_index = check_size("first_index", first_index, minimum=0)
        if self.first_index + num_envs > 2**32:
            raise ValueError(f"indices must stay below 2**32, got first_index={first_index}.")
        self._seed = None if seed is None else check_seed(seed)
        self._index = first_index + np.arange(num_envs)
        self._episode = np.full(num_envs, -1)
        self._return = np.zeros(num_envs)
        self._length = np.zeros(num_envs, dtype=np.int64)
        self._state: State | None = None

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

    def reset(self, seed: int | None = None) -> Array:
        """Start an episode in every row and return the first pictures.

        With a seed these are the episodes number 0 of that seed; without one each row goes on
        to its next episode.
        """
        if seed is not None:
            self._seed = check_seed(seed)
            self._episode = np.full(self.num_envs, -1)
        elif self._seed is None:
            self._seed = random_seed()
        self._episode = self._episode + 1
        self._return = np.zeros(self.num_envs)
        self._length = np.zeros(self.num_envs, dtype=np.int64)
        self._state = self.task.reset(Key(self._seed, self._index, self._episode))
        return self.task.observe(self._state)

    def step(self, actions: Any) -> tuple[Array, Array, Array, Array, dict[str, Array]]:
        """One action in every row.

        Rows whose episode ends start the next one in the same step: their observation is the
        first picture of the new episode, their reward and flags belong to the old one.

        Args:
            actions: integers (num_envs,) in [0, task.num_actions).

        Returns:
            observation uint8 (num_envs, h, w, 3), reward float32, terminated bool, truncated
            bool (never true), and info. `info["finished"]` tells which rows ended. If any did,
            info also has, for all rows and meaningful in the finished ones, `final_obs` (the
            last picture), `episode_return`, `episode_length` and the task's metrics.

        Raises:
            ResetNeeded: before the first reset. TypeError, ValueError: unusable actions.
        """
        state, task = self.state, self.task
        actions = check_actions(actions, self.num_envs, task.num_actions)
        state, reward, finished = task.step(state, actions)
        obs = task.observe(state)
        self._return = self._return + reward
        self._length = self._length + 1
        info = {"finished": finished}
        if finished.any():
            info["final_obs"] = obs
            info["episode_return"], info["episode_length"] = self._return, self._length
            info.update(task.metrics(state))
            state, obs = self._restart(state, obs, finished)
        self._state = state
        return obs, reward, finished, np.zeros(self.num_envs, dtype=bool), info

    def _restart(self, state: State, obs: Array, finished: Array) -> tuple[State, Array]:
        """States and pictures with the finished rows replaced by their next episode's start."""
        assert self._seed is not None
        self._episode = self._episode + finished
        self._return = np.where(finished, 0.0, self._return)
        self._length = np.where(finished, 0, self._length)
        rows = np.flatnonzero(finished)
        start = self.task.reset(Key(self._seed, self._index[rows], self._episode[rows]))
        return (
            {name: _replaced(old, rows, start[name]) for name, old in state.items()},
            _replaced(obs, rows, self.task.observe(start)),
        )

    def get_state(self) -> dict[str, Array]:
        """All that decides the future, as named arrays: save them with `numpy.savez`."""
        inner = {f"task/{name}": values.copy() for name, values in self.state.items()}
        return {
            "settings": np.array(repr(self.task)),
            "seed": np.array(self._seed, dtype=np.uint64),
            "index": self._index.copy(),
            "episode": self._episode.copy(),
            "episode_return": self._return.copy(),
            "episode_length": self._length.copy(),
            **inner,
        }

    def set_state(self, saved: dict[str, Array]) -> Array:
        """Go on from what `get_state` gave, and return the current pictures.

        Raises:
            ValueError: it was saved from other settings or another number of rows, or has a
                missing or unknown entry. TypeError: an entry holds numbers of the wrong kind.
        """
        settings = str(saved.get("settings", "an unknown task"))
        if settings != repr(self.task):
            raise ValueError(f"saved from {settings}, but this environment is {self.task!r}.")
        example = BatchedEnv(self.task, self.num_envs, seed=0)
        example.reset()
        expected = example.get_state()
        for name in saved:
            if name not in expected:
                raise unknown("entry of a saved state", name, expected)
        arrays = {}
        for name, like in expected.items():
            if name not in saved:
                raise ValueError(f"the saved state has no entry {name!r}.")
            values = np.asarray(saved[name])
            if values.shape != like.shape:
                raise ValueError(f"{name!r} must have shape {like.shape}, got {values.shape}.")
            arrays[name] = values.astype(like.dtype, casting="same_kind")
        self._seed = int(arrays["seed"])
        self._index, self._episode = arrays["index"], arrays["episode"]
        self._return, self._length = arrays["episode_return"], arrays["episode_length"]
        self.first_index = int(self._index[0])
        self._state = {
            name.removeprefix("task/"): values
            for name, values in arrays.items()
            if name.startswith("task/")
        }
        return self.task.observe(self._state)


def _replaced(values: Array, rows: Array, new: Array) -> Array:
    values = values.copy()
    values[rows] = new
    return values
