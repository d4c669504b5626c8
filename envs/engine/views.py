"""Other observations and rewards for any game: extra inputs, scaled images and rewards."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
from gymnasium import spaces

from rlgates.envs.engine.actions import (
    ActionSpace,
    action_counts,
    encode_actions,
    encoded_size,
    no_actions,
    one_hot,
)
from rlgates.envs.engine.arrays import Array, namespace
from rlgates.envs.engine.settings import check_reward, set_fields
from rlgates.envs.engine.spec import EnvSpec, Observation, State
from rlgates.errors import check_flag

_EXTRAS = ("previous_action", "previous_reward", "time", "phase")


def _of_spec(name: str) -> Any:
    """A property or method of the wrapped spec."""
    return property(lambda view: getattr(view.spec, name))


def warn_of_kept_cue(name: str) -> None:
    """Warn that `add_previous_action` makes memory superfluous in the game of this name."""
    warnings.warn(
        f"add_previous_action: {name} then needs no memory, because a player can keep the cue in "
        "its actions: it repeats the last one.",
        stacklevel=4,
    )


def check_reward_scale(scale: float) -> float:
    """The scale of rewards as a number.

    Raises:
        ValueError: it is 0, not finite or above 1e30 in magnitude. TypeError: not a number.
    """
    scale = check_reward("reward_scale", scale)
    if scale == 0:
        raise ValueError("reward_scale must not be 0.")
    return scale


@dataclass(frozen=True)
class View(EnvSpec):
    """A spec with other observations and rewards; everything else is delegated to the spec.

    If any entry is added, observations are dicts: `observation` of the spec, or its own entries,
    and each extra entry by name. `rlgates.envs.wrappers` does the same for any environment of
    gymnasium.

    | name | default | meaning |
    |------|---------|---------|
    | `add_previous_action` | False | `previous_action`, float32 (n,), one-hot; 0 at first |
    | `add_previous_reward` | False | `previous_reward`, float32 (1,); 0 at first |
    | `add_time` | False | `time`, float32 (1,): elapsed share of the longest episode |
    | `add_phase` | False | `phase`, one-hot, float32 (phases,) |
    | `scale_frames` | False | images as float32 in [0, 1] instead of uint8 |
    | `reward_scale` | 1.0 | factor on rewards and return, but not on metrics |

    In Repeat First, Memory Chain and Passive Match `add_previous_action` makes memory superfluous:
    a player without memory can keep the cue in its actions, repeating the last one (in Passive
    Match until the last phase, where its path keeps it), which always succeeds. A view of them
    warns about this. So can one in Active Match, once it has seen the cue. `time` reveals nothing
    about a cue. `previous_reward` says whether the last answer was right where each answer is
    rewarded: in Repeat First with four suits, 3/8 of the answers can be right with it alone,
    instead of 1/4.

    In Stable-Baselines3 and rlgates, `CnnLstmPolicy` takes uint8 images, which it divides by 255;
    `MlpLstmPolicy` takes numbers, and flattens images; any `add_...` needs `MultiInputLstmPolicy`,
    which treats uint8 entries like `CnnLstmPolicy`. `scale_frames` is for other libraries: no
    policy treats float32 as an image, so `CnnLstmPolicy` refuses it and the others flatten it.

    Warns:
        UserWarning: `add_previous_action` makes memory superfluous.

    Raises:
        ValueError: the spec has no phases or no images, or is itself a view, or the scale is 0, not
            finite or above 1e30 in magnitude, or an entry has the name of one that is there.
            TypeError: a setting of the wrong type.
    """

    spec: EnvSpec
    add_previous_action: bool = False
    add_previous_reward: bool = False
    add_time: bool = False
    add_phase: bool = False
    scale_frames: bool = False
    reward_scale: float = 1.0

    def __post_init__(self) -> None:
        if isinstance(self.spec, View):
            raise ValueError(
                "the spec is a View already: give one View all settings, for example with "
                "dataclasses.replace(view, add_time=True)."
            )
        if not isinstance(self.spec, EnvSpec):
            raise TypeError(
                f"spec must be an EnvSpec, as make_env_spec makes it, got {self.spec!r}."
            )
        for name in (*(f"add_{name}" for name in _EXTRAS), "scale_frames"):
            set_fields(self, **{name: check_flag(name, getattr(self, name))})
        if self.add_previous_action and self.spec.actions_can_keep_the_cue:
            warn_of_kept_cue(type(self.spec).__name__)
        if self.add_phase and not self.spec.phase_names:
            raise ValueError(f"add_phase: {type(self.spec).__name__} has no phases.")
        taken = [name for name in self._added if name in _entries(self.spec.observation_space)]
        if taken:
            raise ValueError(f"add_{taken[0]}: the observation already has an entry {taken[0]!r}.")
        if self.scale_frames and not self._has_images:
            raise ValueError(f"scale_frames: {type(self.spec).__name__} has no images.")
        set_fields(self, reward_scale=check_reward_scale(self.reward_scale))

    def __repr__(self) -> str:
        # Saved states hold this text, so the first field keeps its former name here.
        names = (*(f"add_{name}" for name in _EXTRAS), "scale_frames", "reward_scale")
        settings = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"View(task={self.spec!r}, {settings})"

    def __getattr__(self, name: str) -> Any:
        if name == "spec" or name.startswith("__"):  # looked up while copying
            raise AttributeError(name)
        return getattr(self.spec, name)  # the settings of the spec

    presets = _of_spec("presets")
    action_names = _of_spec("action_names")
    action_space = _of_spec("action_space")
    max_episode_length = _of_spec("max_episode_length")
    fixed_length = _of_spec("fixed_length")
    sampling_is_costly = _of_spec("sampling_is_costly")
    metric_names = _of_spec("metric_names")
    phase_names = _of_spec("phase_names")
    actions_can_keep_the_cue = _of_spec("actions_can_keep_the_cue")
    needs_previous_action = _of_spec("needs_previous_action")
    chance = _of_spec("chance")
    parameters = _of_spec("parameters")
    sample = _of_spec("sample")
    metrics = _of_spec("metrics")
    phase = _of_spec("phase")
    render_board = _of_spec("render_board")
    render_info = _of_spec("render_info")

    @property
    def _has_images(self) -> bool:
        space = self.spec.observation_space
        if not isinstance(space, spaces.Box) or space.dtype != np.uint8:
            return False
        return bool(np.all(space.low == 0) and np.all(space.high == 255))  # else they are codes

    @property
    def _added(self) -> list[str]:
        return [name for name in _EXTRAS if getattr(self, f"add_{name}")]

    @cached_property
    def observation_space(self) -> spaces.Space[Any]:
        inner = self.spec.observation_space
        if self.scale_frames:
            inner = spaces.Box(0.0, 1.0, inner.shape, np.float32)
        if not self._added:
            return inner
        boxes = {
            "previous_action": _encoded_box(self.spec.action_space),
            "previous_reward": spaces.Box(-np.inf, np.inf, (1,), np.float32),
            "time": spaces.Box(0.0, 1.0, (1,), np.float32),
        }
        if self.spec.phase_names:
            boxes["phase"] = spaces.Box(0.0, 1.0, (len(self.spec.phase_names),), np.float32)
        return spaces.Dict({**_entries(inner), **{name: boxes[name] for name in self._added}})

    @cached_property
    def _action_counts(self) -> tuple[int, ...]:
        return action_counts(self.spec.action_space)

    @property
    def state_bounds(self) -> Mapping[str, tuple[int, int]]:
        if not self._action_counts:
            return self.spec.state_bounds
        return {**self.spec.state_bounds, "previous_action": (-1, max(self._action_counts) - 1)}

    def initial_state(self, parameters: dict[str, Array]) -> State:
        state = self.spec.initial_state(parameters)
        t, xp = state["t"], namespace(state["t"])
        return {
            **state,
            "previous_action": no_actions(self.spec.action_space, t),
            "previous_reward": xp.zeros_like(t, dtype=xp.float32),
        }

    def step(self, state: State, actions: Array) -> tuple[State, Array, Array]:
        inner, reward, terminated = self.spec.step(state, actions)
        reward = reward * self.reward_scale
        previous = namespace(reward).asarray(reward, copy=True)  # the caller may change rewards
        return (
            {**inner, "previous_action": actions, "previous_reward": previous},
            reward,
            terminated,
        )

    def observe(self, state: State) -> Observation:
        obs: Any = self.spec.observe(state)
        t, xp = state["t"], namespace(state["t"])
        if self.scale_frames:
            obs = _divided(obs, 255)
        extras: dict[str, Array] = {}
        if self.add_previous_action:
            extras["previous_action"] = encode_actions(
                state["previous_action"], self._action_counts
            )
        if self.add_previous_reward:
            extras["previous_reward"] = xp.asarray(state["previous_reward"][:, None], copy=True)
        if self.add_time:
            extras["time"] = _divided(t[:, None], self.spec.max_episode_length)
        if self.add_phase:
            extras["phase"] = one_hot(self.spec.phase(state), len(self.spec.phase_names))
        return {**_entries(obs), **extras} if extras else obs


VIEW_SETTINGS = tuple(field.name for field in fields(View) if field.name != "spec")


def _entries(whole: Any) -> dict[str, Any]:
    """The entries of a dictionary of observations, or of their space; else "observation" alone."""
    if isinstance(whole, spaces.Dict):
        return {**whole.spaces}
    return whole if isinstance(whole, dict) else {"observation": whole}


def _divided(values: Array, by: int) -> Array:
    """`values / by` in float32; a GPU would multiply by the rounded reciprocal of a scalar."""
    xp = namespace(values)
    divisor = xp.full((1,), by, dtype=xp.float32, device=values.device)
    quotient: Array = xp.astype(values, xp.float32) / divisor
    return quotient


def _encoded_box(space: ActionSpace) -> spaces.Box:
    if isinstance(space, spaces.Box):
        return spaces.Box(-np.inf, np.inf, space.shape, np.float32)
    return spaces.Box(0.0, 1.0, (encoded_size(space),), np.float32)
