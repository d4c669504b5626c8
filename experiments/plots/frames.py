"""Make environments for people, and draw their observations as images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from rlgates.envs import ENVS
from rlgates.envs.adapters import minigrid
from rlgates.envs.registration import find_adapter, known_env_ids
from rlgates.envs.render.frames import draw
from rlgates.errors import suggestion
from rlgates.experiments.configs.modules import without_module

Image = np.ndarray[Any, Any]
"""uint8 (height, width, 3)."""


def make_env(
    env_id: str, settings: Mapping[str, Any], preset: str | None = None, board: bool = False
) -> gymnasium.Env[Any, Any]:
    """Make an environment whose observations a person can read.

    Args:
        env_id: any id that begins with "rlgates/", one of MiniGrid Memory or POPGym, or
            "my_module:ID" of an environment that `my_module` registers.
        settings: of the environment.
        preset: named settings, which `settings` override.
        board: whether `render` returns an image of the whole board.

    Raises:
        ValueError: an unknown id, preset or setting, or a value out of range.
        ImportError: the environment needs a package that is not installed.
    """
    named, env_id = env_id, without_module(env_id)
    env_id, published = find_adapter(env_id) or (env_id, {})
    known = [name for name in gymnasium.registry if name.startswith("rlgates/")]
    if env_id not in (*known, *(gymnasium.registry if named != env_id else ())):
        listed = ", ".join(name for name in known if "popgym" not in name)
        raise ValueError(
            f"unknown environment id {named!r}.{suggestion(env_id, known_env_ids())} Allowed: "
            f"{listed}, those of MiniGrid Memory and POPGym, and my_module:ID of one that "
            "my_module registers."
        )
    arguments = {**published, **settings}
    if env_id in minigrid.IDS:
        arguments = {"observation": "rgb", "tile_size": 32, **arguments}
    if preset is not None:
        if env_id not in ENVS:
            raise ValueError(f"{env_id} has no presets.")
        arguments["preset"] = preset
    if board:
        arguments["render_mode"] = "rgb_array"
    try:
        env = gymnasium.make(env_id, **arguments).unwrapped
    except TypeError as error:
        raise ValueError(str(error).partition(" was raised from")[0]) from error
    space = env.observation_space
    if isinstance(space, spaces.Dict) and "observation" not in space.spaces:
        raise ValueError(
            f"{env_id} cannot be drawn: its dict of observations has no part 'observation'."
        )
    return env


def env_image(
    env: gymnasium.Env[Any, Any], obs: Any, reward: float, name: str, board: bool
) -> Image:
    """Draw the current observation of an environment from `make_env`.

    Args:
        env: the environment.
        obs, reward: from its last step.
        name: title, if the environment draws none.
        board: whether to draw the whole board beside it.
    """
    rendered = np.asarray(env.render()) if board else None
    if rendered is not None and hasattr(env, "env_spec"):
        return rendered  # it includes the agent's view
    space = env.observation_space
    if isinstance(space, spaces.Box) and space.high.max() not in (1, 255):
        obs = np.ravel(obs)  # codes of the things in a grid, not an image
    return draw(obs, rendered, (name, ""), reward)


def short_name(env_id: str) -> str:
    """Shorten an id: "rlgates/PassiveMatch-v0" -> "PassiveMatch"."""
    return env_id.rpartition("/")[2].rpartition("-v")[0]
