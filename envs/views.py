"""What agents see and are paid, changed without touching the rules: inputs beside, scales."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from gymnasium import spaces

from rlgates.envs.arrays import Array, namespace
from rlgates.envs.engine import Observation, State, Task
from rlgates.envs.settings import store
from rlgates.errors import check_flag, check_number


@dataclass(frozen=True)
class View:
    """A task with other observations and rewards; all else is the task's own.

    If anything is added, observations are dicts: `observation` is the task's own, and each
    addition has its name. `rlgates.envs.wrappers` does the same to any gymnasium environment.

    | name | default | meaning |
    |------|---------|---------|
    | `add_previous_action` | False | `previous_action`, float32 (actions,), one-hot; 0 at first |
    | `add_previous_reward` | False | `previous_reward`, float32 (1,); 0 at first |
    | `add_time` | False | `time`, float32 (1,): the passed share of the longest episode |
    | `add_phase` | False | `phase`, one-hot, float32 (phases,) |
    | `scale_frames` | False | pictures as float32 in [0, 1] and not uint8 |
    | `reward_scale` | 1.0 | rewards, and so the return, are multiplied by it; metrics are not |

    Policies of Stable-Baselines3 and of rlgates by what they read: `CnnLstmPolicy` takes uint8
    pictures as they are, and divides by 255 itself; `MlpLstmPolicy` numbers, and flattens
    pictures; with any `add_...` only `MultiInputLstmPolicy` will do, which reads uint8 pictures
    among the entries as the first does. `scale_frames` is for other libraries: none of these
    policies takes float32 for a picture, so `CnnLstmPolicy` refuses it and the others flatten it.

    Raises:
        ValueError: the task has no phases, or no pictures, or is a view itself, or the scale is 0
            or not finite. TypeError: a setting of the wrong type.
    """

    task: Task
    add_previous_action: bool = False
    add_previous_reward: bool = False
    add_time: bool = False
    add_phase: bool = False
    scale_frames: bool = False
    reward_scale: float = 1.0

    def __post_init__(self) -> None:
        if isinstance(self.task, View):
            raise ValueError(
                "the task is a View already: give one View all settings, for example by "
                "dataclasses.replace(view, add_time=True)."
            )
        for name in ("previous_action", "previous_reward", "time", "phase"):
            check_flag(f"add_{name}", getattr(self, f"add_{name}"))
        if self.add_phase and not self.task.phase_names:
            raise ValueError(f"add_phase: {type(self.task).__name__} has no phases.")
        space = self.task.observation_space
        if check_flag("scale_frames", self.scale_frames) and space.dtype != np.uint8:
            raise ValueError(f"scale_frames: {type(self.task).__name__} shows no pictures.")
        store(self, reward_scale=check_number("reward_scale", self.reward_scale))
        if self.reward_scale == 0:
            raise ValueError("reward_scale must not be 0.")

    def __getattr__(self, name: str) -> Any:
        if name == "task" or name.startswith("__"):  # asked for while a copy is made
            raise AttributeError(name)
        return getattr(self.task, name)

    @property
    def _added(self) -> list[str]:
        names = ("previous_action", "previous_reward", "time", "phase")
        return [name for name in names if getattr(self, f"add_{name}")]

    @cached_property
    def observation_space(self) -> spaces.Space[Any]:
        inner = self.task.observation_space
        if self.scale_frames:
            inner = spaces.Box(0.0, 1.0, inner.shape, np.float32)
        if not self._added:
            return inner
        sizes = {"previous_action": int(self.task.action_space.n), "time": 1}
        added: dict[str, spaces.Space[Any]] = {
            name: spaces.Box(-np.inf, np.inf, (1,), np.float32)
            if name == "previous_reward"
            else spaces.Box(0.0, 1.0, (sizes.get(name, len(self.task.phase_names)),), np.float32)
            for name in self._added
        }
        return spaces.Dict({"observation": inner, **added})

    @property
    def state_bounds(self) -> Mapping[str, tuple[int, int]]:
        actions = int(self.task.action_space.n)
        return {**self.task.state_bounds, "previous_action": (-1, actions - 1)}

    def start(self, drawn: dict[str, Array]) -> State:
        state = self.task.start(drawn)
        t, xp = state["t"], namespace(state["t"])
        return {
            **state,
            "previous_action": xp.zeros_like(t, dtype=xp.int64) - 1,
            "previous_reward": xp.zeros_like(t, dtype=xp.float32),
        }

    def step(self, state: State, actions: Array) -> tuple[State, Array, Array]:
        xp = namespace(actions)
        inner, reward, terminated = self.task.step(state, actions)
        reward = reward * self.reward_scale
        previous = {"previous_action": xp.astype(actions, xp.int64), "previous_reward": reward}
        return {**inner, **previous}, reward, terminated

    def observe(self, state: State) -> Observation:
        obs: Any = self.task.observe(state)
        t = state["t"]
        if self.scale_frames:
            obs = _divided(obs, 255)
        seen: dict[str, Array] = {}
        if self.add_previous_action:
            seen["previous_action"] = _one_hot(
                state["previous_action"], int(self.task.action_space.n)
            )
        if self.add_previous_reward:
            seen["previous_reward"] = state["previous_reward"][:, None]
        if self.add_time:
            seen["time"] = _divided(t[:, None], self.task.max_episode_length)
        if self.add_phase:
            seen["phase"] = _one_hot(self.task.phase(state), len(self.task.phase_names))
        return {"observation": obs, **seen} if seen else obs


def _divided(values: Array, by: int) -> Array:
    """As float32. An array divides exactly; for a number a GPU takes its reciprocal."""
    xp = namespace(values)
    divisor = xp.full((1,), by, dtype=xp.float32, device=values.device)
    quotient: Array = xp.astype(values, xp.float32) / divisor
    return quotient


def _one_hot(number: Array, count: int) -> Array:
    """(B, count), with no 1 where the number is -1."""
    xp = namespace(number)
    one_hot = xp.arange(count, device=number.device) == number[:, None]
    encoded: Array = xp.astype(one_hot, xp.float32)
    return encoded
