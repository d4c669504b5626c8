"""Environments of gymnasium as agents take them: found by id, wrapped, with a policy."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Mapping
from inspect import signature
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec, load_env_creator
from gymnasium.error import Error, UnregisteredEnv
from gymnasium.wrappers import (
    FlattenObservation,
    FrameStackObservation,
    GrayscaleObservation,
    TransformObservation,
)
from PIL import Image
from stable_baselines3.common.preprocessing import is_image_space

from rlgates.envs.adapters import popgym
from rlgates.envs.adapters.minigrid import OneHotCells
from rlgates.envs.registration import known_env_ids
from rlgates.envs.wrappers import PreviousActionReward, ShowTime
from rlgates.errors import check_choice, suggestion
from rlgates.experiments.configs.modules import without_module

Env = gymnasium.Env[Any, Any]
POLICIES = ("MlpLstmPolicy", "CnnLstmPolicy", "MultiInputLstmPolicy", "RMAPolicy")
ACTIONS = (spaces.Box, spaces.Discrete, spaces.MultiBinary, spaces.MultiDiscrete)
LARGE_IMAGE = 96
"""Images with no side below this many pixels are made grey and smaller."""

PACKAGES = {
    "ALE/": ("ale_py", "ale-py"),
    "BabyAI-": ("minigrid", '"rlgates[minigrid]"'),
    "BipedalWalker": ("Box2D", '"rlgates[box2d]"'),
    "CarRacing-": ("Box2D", '"rlgates[box2d]"'),
    "LunarLander": ("Box2D", '"rlgates[box2d]"'),
    "MiniGrid-": ("minigrid", '"rlgates[minigrid]"'),
    "popgym-": ("popgym", '"rlgates[popgym]"'),
}
"""By the first letters of an id: the module that it needs, and what pip installs it."""


class Wrapper(NamedTuple):
    """A wrapper that a config names.

    Attributes:
        words: what it does to the observation.
        wrap: the environment, and the number behind the name, to the wrapped environment.
        number: whether there is a number, as in "stack=4".
    """

    words: str
    wrap: Callable[..., Env]
    number: bool = False


def _show_time(env: Env) -> Env:
    try:
        return ShowTime(env)
    except ValueError as error:
        if env.spec is None or env.spec.max_episode_steps is not None:
            raise
        raise ValueError(
            f"the wrapper 'time' needs to know how long an episode is at most: register "
            f"{env.spec.id} with max_episode_steps."
        ) from error


def _resize(env: Env, side: int) -> Env:
    space = _image_space(env, "resize")
    shape = (side, side, space.shape[2])

    def resized(image: Any) -> Any:
        planes = [
            Image.fromarray(plane).resize((side, side), Image.Resampling.BOX)
            for plane in np.moveaxis(image, 2, 0)
        ]
        return np.stack([np.asarray(plane) for plane in planes], axis=2)

    return TransformObservation(env, resized, spaces.Box(0, 255, shape, np.uint8))


def _grayscale(env: Env) -> Env:
    _image_space(env, "grayscale")
    return GrayscaleObservation(env, keep_dim=True)


def _stack(env: Env, frames: int) -> Env:
    space = env.observation_space
    if not isinstance(space, spaces.Box) or len(space.shape) not in (1, 3):
        raise ValueError(f"the wrapper 'stack' needs numbers (n,) or images, got {space}.")

    def joined(stacked: Any) -> Any:
        return np.concatenate(list(stacked), axis=-1)

    part = spaces.Box(
        joined([space.low] * frames), joined([space.high] * frames), dtype=space.dtype.type
    )
    return TransformObservation(FrameStackObservation(env, frames), joined, part)


WRAPPERS: dict[str, Wrapper] = {
    "minigrid": Wrapper("cells of MiniGrid one-hot, without mission and direction", OneHotCells),
    "grayscale": Wrapper("grayscale images", _grayscale),
    "resize": Wrapper("images resized to this many pixels per side", _resize, number=True),
    "stack": Wrapper("this many last observations, stacked", _stack, number=True),
    "previous": Wrapper("with the previous action and reward", PreviousActionReward),
    "time": Wrapper("with the share of the episode that has passed", _show_time),
    "flatten": Wrapper("all parts flattened to one vector", FlattenObservation),
}


def check_wrappers(names: tuple[str, ...]) -> None:
    """Check that wrappers are known.

    Raises:
        ValueError: an unknown name (the nearest is named), or a number missing or too many.
    """
    for word in names:
        name, equals, number = word.partition("=")
        wrapper = WRAPPERS[check_choice("wrapper", name, WRAPPERS)]
        if wrapper.number != bool(equals) or (equals and not (number.isdigit() and int(number))):
            form = f"{name}=NUMBER, at least 1" if wrapper.number else name
            raise ValueError(f"the wrapper {name!r} is written {form}, got {word!r}.")


def wrap(env: Env, names: tuple[str, ...]) -> Env:
    """The environment in wrappers, from the inside out.

    Raises:
        ValueError: an unknown wrapper, one that the observation does not fit, or observations that
            agents cannot use.
    """
    check_wrappers(names)
    for word in names:
        name, _, number = word.partition("=")
        env = WRAPPERS[name].wrap(env, *([int(number)] if number else []))
    if not _fits(env.observation_space):
        raise ValueError(
            f"agents cannot use observations {env.observation_space}: leave wrappers out to have "
            "them chosen, or name others."
        )
    return env


def pick_wrappers(env: Env) -> tuple[str, ...]:
    """The wrappers with which agents can use the observations of an environment.

    Raises:
        ValueError: observations without a fixed size.
    """
    space = env.observation_space
    picked: tuple[str, ...] = ()
    if isinstance(space, spaces.Dict) and {"image", "mission"} <= space.spaces.keys():
        picked = ("minigrid",)
    elif is_large_image(space):
        picked = ("grayscale", "resize=84")
    elif not _fits(space):
        if not space.is_np_flattenable:
            raise ValueError(f"observations must have a fixed size, got {space}.")
        picked = ("flatten",)
    shown = space.spaces if isinstance(space, spaces.Dict) else ()
    if getattr(env.unwrapped, "needs_previous_action", False) and "previous_action" not in shown:
        picked = (*picked, "previous")
    return picked


def pick_policy(space: spaces.Space[Any]) -> str:
    """The policy for observations of `space`."""
    if isinstance(space, spaces.Dict):
        return "MultiInputLstmPolicy"
    return "CnnLstmPolicy" if is_image_space(space) else "MlpLstmPolicy"


def is_large_image(space: spaces.Space[Any]) -> bool:
    """Whether these are images, channels last, that are made grey and smaller by default."""
    return is_image_space(space) and min((space.shape or ())[:2]) >= LARGE_IMAGE


def find_env_id(env_id: str) -> str:
    """The id, after the package that registers it is imported.

    `popgym-NAME-v0` is `rlgates/popgym-NAME-v0`, whose observations agents can use. Modules of
    the current folder can be named in front: `my_module:MyEnv-v0`.

    Raises:
        ValueError: a package or a module is missing.
    """
    name = without_module(env_id)
    for start, (package, requirement) in PACKAGES.items():
        if name.startswith(start) or (start == "ALE/" and "NoFrameskip-v" in name):
            try:
                importlib.import_module(package)
            except ImportError as error:
                raise ValueError(
                    f"{env_id} needs {package}, which cannot be imported ({error}): "
                    f"pip install {requirement}"
                ) from error
    return f"rlgates/{env_id}" if f"rlgates/{env_id}" in popgym.IDS else env_id


def make_env(env_id: str, settings: Mapping[str, Any], render_mode: str | None = None) -> Env:
    """One environment without wrappers of ours.

    Raises:
        ValueError: an unknown environment or setting, or a missing package.
    """
    modes: dict[str, Any] = {} if render_mode is None else {"render_mode": render_mode}
    try:
        env = gymnasium.make(find_env_id(env_id), **settings, **modes)
    except (Error, TypeError, ImportError) as error:
        # Gymnasium suggests only what is imported, and of the same namespace.
        unknown = isinstance(error, UnregisteredEnv) and "Did you mean" not in str(error)
        near = suggestion(without_module(env_id), known_env_ids()) if unknown else ""
        if unknown and not near and ":" not in env_id:
            near = f" If a module of yours registers it, put it in front: my_module:{env_id}."
        raise ValueError(f"{env_id} cannot be made: {error}{near}") from error
    if not isinstance(env.action_space, ACTIONS):
        allowed = ", ".join(kind.__name__ for kind in ACTIONS)
        raise ValueError(f"{env_id} has actions {env.action_space}. Allowed: {allowed}.")
    return env


def registered_env(env_id: str) -> EnvSpec:
    """What gymnasium knows of an environment whose module, if it names one, is imported."""
    return gymnasium.spec(find_env_id(env_id).rpartition(":")[2])


def full_settings(env_id: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The keyword arguments of an environment, with the defaults of those not given."""
    registered = registered_env(env_id)
    point = registered.entry_point
    creator = load_env_creator(point) if isinstance(point, str) else point
    assert creator is not None
    defaults = {name: item.default for name, item in signature(creator).parameters.items()}
    values = {**defaults, **registered.kwargs}
    return {**{name: value for name, value in values.items() if _is_plain(value)}, **settings}


def _is_plain(value: Any) -> bool:
    try:
        json.dumps(value)
    except TypeError:
        return False
    return True


def _fits(space: spaces.Space[Any]) -> bool:
    """Whether policies take observations of `space` as they are."""
    if isinstance(space, spaces.Dict):
        return all(
            _fits(part) and not isinstance(part, spaces.Dict) for part in space.spaces.values()
        )
    return isinstance(space, ACTIONS)


def _image_space(env: Env, name: str) -> spaces.Box:
    space = env.observation_space
    if not (isinstance(space, spaces.Box) and is_image_space(space) and len(space.shape) == 3):
        raise ValueError(
            f"the wrapper {name!r} needs images, (height, width, channels) of uint8, got {space}."
        )
    return space
