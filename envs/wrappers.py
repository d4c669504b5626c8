"""Wrappers for agents with memory, for any gymnasium environment.

Three of them add entries to the observation, which becomes a `spaces.Dict`; an observation that
was not a dictionary is its entry "observation". For everything else use Gymnasium's wrappers, such
as `FlattenObservation`, `FrameStackObservation` and `TimeLimit`.

| entry | by | values |
|-------|----|--------|
| `observation` | | the observation of an environment without a dictionary |
| `previous_action` | `PreviousActionReward` | the last action, zeros at the start of an episode |
| `previous_reward` | `PreviousActionReward` | (1,), the last reward, 0 at the start |
| `time` | `ShowTime` | (1,), the elapsed share of the episode |
| `phase` | `ShowPhase` | the current phase, one-hot |

All added entries are float32. Their names do not depend on the order of the wrappers.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.utils import RecordConstructorArgs
from numpy.typing import NDArray

from rlgates.errors import check_flag, check_number, check_size

Floats = NDArray[np.float32]
Entries = dict[str, Any]
_ABSENT = object()


class PreviousActionReward(gymnasium.Wrapper[Entries, Any, Any, Any], RecordConstructorArgs):
    """Adds the previous action and reward to the observation.

    "previous_action" is the one-hot of a `Discrete` action, the concatenated one-hots of a
    `MultiDiscrete` one, or the flattened numbers of a `Box` or `MultiBinary`, all within [0, 1] or
    the bounds of the box (and 0): `Box(0, 1, (n,), float32)`. "previous_reward" is the reward as
    the wrapped environment gave it, `Box(-inf, inf, (1,), float32)`: to show it scaled, put
    `ScaleReward` inside this wrapper. Both are 0 in the first observation of an episode.

    Args:
        env: the environment.
        action: add the action.
        reward: add the reward.

    Raises:
        ValueError: neither is to be added, the observation already has such an entry, or the
            actions cannot be flattened. TypeError: `action` or `reward` is not a bool.
    """

    def __init__(
        self, env: gymnasium.Env[Any, Any], action: bool = True, reward: bool = True
    ) -> None:
        RecordConstructorArgs.__init__(self, action=action, reward=reward)
        super().__init__(env)
        self._add_action = check_flag("action", action)
        self._add_reward = check_flag("reward", reward)
        entries = {}
        if action:
            entries["previous_action"] = _action_box(env.action_space)
        if reward:
            entries["previous_reward"] = spaces.Box(-np.inf, np.inf, (1,), np.float32)
        if not entries:
            raise ValueError("at least one of action and reward must be True.")
        self.observation_space = _extended_space(env.observation_space, entries)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Entries, dict[str, Any]]:
        obs, info = self.env.reset(seed=seed, options=options)
        action = np.zeros(spaces.flatdim(self.env.action_space), dtype=np.float32)
        return self._extended(obs, action, 0.0), info

    def step(self, action: Any) -> tuple[Entries, Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        flat = np.asarray(spaces.flatten(self.env.action_space, action), dtype=np.float32)
        return self._extended(obs, flat, float(reward)), reward, terminated, truncated, info

    def _extended(self, obs: Any, action: Floats, reward: float) -> Entries:
        entries = {}
        if self._add_action:
            entries["previous_action"] = action
        if self._add_reward:
            entries["previous_reward"] = np.array([reward], dtype=np.float32)
        return _extended(obs, entries)


class ShowTime(gymnasium.Wrapper[Entries, Any, Any, Any], RecordConstructorArgs):
    """Adds "time", the share of `max_steps` steps that has passed: `Box(0, 1, (1,), float32)`.

    Args:
        env: the environment.
        max_steps: the step at which the time reaches 1, where it stays; None: the time limit of the
            environment's spec, or else `env.unwrapped.max_episode_length`.

    Raises:
        ValueError: `max_steps` is below 1, or None where the length is unknown, or the observation
            already has such an entry. TypeError: `max_steps` is not an integer.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], max_steps: int | None = None) -> None:
        RecordConstructorArgs.__init__(self, max_steps=max_steps)
        super().__init__(env)
        if max_steps is None:
            max_steps = _episode_length(env)
        if max_steps is None:
            raise ValueError(
                f"{env} does not say how long an episode is: pass max_steps, or register it with "
                "max_episode_steps."
            )
        self.max_steps = check_size("max_steps", max_steps)
        entries = {"time": spaces.Box(0, 1, (1,), np.float32)}
        self.observation_space = _extended_space(env.observation_space, entries)
        self._steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Entries, dict[str, Any]]:
        obs, info = self.env.reset(seed=seed, options=options)
        self._steps = 0
        return self._extended(obs), info

    def step(self, action: Any) -> tuple[Entries, Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        self._steps += 1
        return self._extended(obs), reward, terminated, truncated, info

    def _extended(self, obs: Any) -> Entries:
        passed = min(self._steps / self.max_steps, 1.0)
        return _extended(obs, {"time": np.array([passed], dtype=np.float32)})


class ShowPhase(gymnasium.ObservationWrapper[Entries, Any, Any], RecordConstructorArgs):
    """Adds "phase", the current phase of the episode as a one-hot: `Box(0, 1, (n,), float32)`.

    Args:
        env: an environment with phases: it has `env.unwrapped.phase_names`, n of them, and
            `env.unwrapped.phase`, the index of the current one.

    Raises:
        ValueError: the environment has no phases, or its observation already has such an entry.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        RecordConstructorArgs.__init__(self)
        super().__init__(env)
        base = env.unwrapped
        names = getattr(base, "phase_names", ())
        # `phase` is not read: before the first reset it may have no value.
        if not names or inspect.getattr_static(base, "phase", _ABSENT) is _ABSENT:
            raise ValueError(f"ShowPhase needs an environment with phases, got {env}.")
        self._count = len(names)
        entries = {"phase": spaces.Box(0, 1, (self._count,), np.float32)}
        self.observation_space = _extended_space(env.observation_space, entries)

    def observation(self, observation: Any) -> Entries:
        phase = np.zeros(self._count, dtype=np.float32)
        phase[self.env.unwrapped.phase] = 1.0  # type: ignore[attr-defined]
        return _extended(observation, {"phase": phase})


class ScaleFrames(gymnasium.ObservationWrapper[Any, Any, Any], RecordConstructorArgs):
    """Images, uint8 in [0, 255], as float32 in [0, 1]: x / 255.

    Stable-Baselines3 does this itself, and treats a scaled image as a vector. Use this with other
    libraries, or where its `MultiInputPolicy` would pass an image below 36 x 36 pixels to a network
    that cannot read it.

    Args:
        env: its observation, or the entry "observation" of it, is a `Box` of uint8 in [0, 255].

    Raises:
        ValueError: it is something else.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        RecordConstructorArgs.__init__(self)
        super().__init__(env)
        space = env.observation_space
        if isinstance(space, spaces.Dict):
            if "observation" not in space.spaces:
                raise ValueError(
                    f"ScaleFrames needs an entry 'observation', got {', '.join(space.spaces)}."
                )
            scaled = _scaled_box(space["observation"])
            self.observation_space = spaces.Dict({**space.spaces, "observation": scaled})
        else:
            self.observation_space = _scaled_box(space)

    def observation(self, observation: Any) -> Any:
        if isinstance(observation, dict):
            return {**observation, "observation": _scaled(observation["observation"])}
        return _scaled(observation)


class ScaleReward(gymnasium.RewardWrapper[Any, Any], RecordConstructorArgs):
    """The reward times `scale`, as a float.

    Args:
        env: the environment.
        scale: a finite number other than 0.

    Raises:
        ValueError: `scale` is 0, infinite or NaN. TypeError: it is not a number.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], scale: float) -> None:
        RecordConstructorArgs.__init__(self, scale=scale)
        super().__init__(env)
        self.scale = check_number("scale", scale)
        if self.scale == 0:
            raise ValueError(f"scale must not be 0, got {scale}.")

    def reward(self, reward: Any) -> float:
        return float(reward) * self.scale


def _extended_space(space: spaces.Space[Any], entries: Mapping[str, spaces.Box]) -> spaces.Dict:
    """The space of `_extended`."""
    old = space.spaces if isinstance(space, spaces.Dict) else {"observation": space}
    for name in entries:
        if name in old:
            raise ValueError(f"the observation already has an entry {name!r}.")
    return spaces.Dict({**old, **entries})


def _extended(obs: Any, entries: Entries) -> Entries:
    """A new dictionary: `obs`, or its entries if it is one, and `entries`."""
    return {**(obs if isinstance(obs, dict) else {"observation": obs}), **entries}


def _action_box(space: spaces.Space[Any]) -> spaces.Box:
    """The bounds of a flattened action, widened to include the zeros of the first step."""
    box = spaces.flatten_space(space)
    if not isinstance(box, spaces.Box):
        raise ValueError(f"actions of {space} have no fixed size.")
    low = np.minimum(box.low, 0).astype(np.float32)
    return spaces.Box(low, np.maximum(box.high, 0).astype(np.float32), dtype=np.float32)


def _episode_length(env: gymnasium.Env[Any, Any]) -> int | None:
    """The largest number of steps in an episode, or None if unknown."""
    limit = None if env.spec is None else env.spec.max_episode_steps
    return getattr(env.unwrapped, "max_episode_length", None) if limit is None else limit


def _scaled_box(space: spaces.Space[Any]) -> spaces.Box:
    if not isinstance(space, spaces.Box) or space.dtype != np.uint8 or not _full_range(space):
        raise ValueError(f"ScaleFrames needs images, a Box of uint8 in [0, 255], got {space}.")
    return spaces.Box(0, 1, space.shape, np.float32)


def _full_range(box: spaces.Box) -> bool:
    return bool(np.all(box.low == 0) and np.all(box.high == 255))


def _scaled(image: NDArray[np.uint8]) -> Floats:
    return image.astype(np.float32) / np.float32(255)
