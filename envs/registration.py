"""The environments by id: every game of a file in `games/`, and those that users register."""

from __future__ import annotations

import importlib
import pkgutil
import re
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

import gymnasium

from rlgates.envs import games
from rlgates.envs.adapters import minigrid, popgym
from rlgates.envs.engine.spec import EnvSpec
from rlgates.envs.engine.views import VIEW_SETTINGS, View
from rlgates.errors import check_choice, suggestion, unknown_choice

ENVS: dict[str, type[EnvSpec]] = {}

_Game = TypeVar("_Game", bound=type[EnvSpec])
_ENTRY_POINT = "rlgates.envs.gym:GymEnv"


def register_env(game: _Game) -> _Game:
    """Add a game to `ENVS`, under its `env_id`, and to gymnasium's registry.

    The games of the files in `rlgates/envs/games/` are registered at import; a user's game needs
    this call, or decorator.

    Args:
        game: a frozen dataclass that subclasses `EnvSpec` and names its `env_id`.

    Returns:
        `game`.

    Raises:
        ValueError: an id not of the form "<namespace>/<Name>-v<number>", or that another game or
            environment has.
        TypeError: `game` is not such a class.
    """
    given: Any = game
    if not (isinstance(given, type) and issubclass(given, EnvSpec) and is_dataclass(given)):
        raise TypeError(f"game must be a dataclass that subclasses EnvSpec, got {game!r}.")
    env_id = vars(game).get("env_id")
    if not re.fullmatch(r"\w+/\w+-v\d+", env_id or ""):
        raise ValueError(
            f"the env_id of {game.__name__} must be '<namespace>/<Name>-v<number>', got {env_id!r}."
        )
    known = ENVS.get(env_id, game)
    if (known.__module__, known.__qualname__) != (game.__module__, game.__qualname__):
        raise ValueError(f"the id {env_id!r} is taken by {known.__name__}. Choose another.")
    taken = gymnasium.registry.get(env_id)
    if taken is not None and taken.entry_point != _ENTRY_POINT:
        raise ValueError(
            f"the id {env_id!r} is taken in gymnasium's registry by {taken.entry_point}. Choose "
            "another."
        )
    ENVS[env_id] = game
    if taken is None:
        gymnasium.register(
            id=env_id,
            entry_point=_ENTRY_POINT,
            vector_entry_point="rlgates.envs.vector:GymVectorEnv",
            kwargs={"env_id": env_id},
        )
    return game


def _register_games() -> None:
    for file in pkgutil.iter_modules(games.__path__, f"{games.__name__}."):
        for game in vars(importlib.import_module(file.name)).values():
            if isinstance(game, type) and issubclass(game, EnvSpec) and "env_id" in vars(game):
                register_env(game)


_register_games()


def find_adapter(env_id: Any) -> tuple[str, dict[str, Any]] | None:
    """The single environment of another package that has this id: id and settings of its adapter.

    Args:
        env_id: of an adapter, or the id under which MiniGrid registers a memory task or POPGym a
            level, which then has their rules.

    Returns:
        None where no adapter has such an id.
    """
    if env_id in (*minigrid.IDS, *popgym.IDS):
        return env_id, {}
    published = {**minigrid.PUBLISHED, **popgym.PUBLISHED}
    return published.get(env_id) if isinstance(env_id, str) else None


def known_env_ids() -> tuple[str, ...]:
    """The ids of all games and adapters, and those of MiniGrid and POPGym that adapters take."""
    return (*ENVS, *minigrid.IDS, *popgym.IDS, *minigrid.PUBLISHED, *popgym.PUBLISHED)


def make_env_spec(env_id: str, *, preset: str | None = None, **settings: Any) -> EnvSpec:
    """The definition of the environment `env_id`, with `settings` overriding its defaults.

    Args:
        env_id: for example "rlgates/PassiveMatch-v0".
        preset: name of published settings, see the docstring of the game; `settings` override
            them.
        settings: of the game and of `View` (extra inputs and scales).

    Raises:
        ValueError: unknown id, preset or setting (the nearest known one is named), or a value
            out of range. TypeError: a value of the wrong type.
    """
    if (adapter := find_adapter(env_id)) is not None:
        raise _not_batched(env_id, *adapter)
    if env_id not in [*ENVS]:
        raise ValueError(
            f"unknown environment id {env_id!r}.{suggestion(env_id, known_env_ids())} Allowed: "
            f"{', '.join(ENVS)}; as single environments also those of MiniGrid Memory and POPGym. "
            "gymnasium.make makes those of other packages, and "
            "stable_baselines3.common.env_util.make_vec_env several of them."
        )
    game: Any = ENVS[env_id]
    if preset is not None:
        settings = {**game.presets[check_choice("preset", preset, game.presets)], **settings}
    game_settings = [field.name for field in fields(game)]
    for name in settings:
        if name not in (*game_settings, *VIEW_SETTINGS):
            known = (*game_settings, "preset", *VIEW_SETTINGS)
            raise unknown_choice(f"setting of {env_id}", name, known)
    view = {name: settings.pop(name) for name in VIEW_SETTINGS if name in settings}
    spec: EnvSpec = game(**settings)
    return View(spec, **view) if view else spec


def _not_batched(env_id: str, adapter: str, settings: dict[str, Any]) -> ValueError:
    """The error for the id of a single environment, with what can be made in place of a spec."""

    def call(function: str, made: str, settings: dict[str, Any]) -> str:
        arguments = [repr(made), *(f"{name}={value!r}" for name, value in settings.items())]
        return f"{function}({', '.join(arguments)})"

    message = (
        f"{env_id!r} is a single environment of gymnasium and cannot be batched: make it with "
        f"{call('gymnasium.make', adapter, settings)}, or several for Stable-Baselines3 with "
        f"rlgates.envs.sb3.make_vec_env({env_id!r}, 8)."
    )
    batched = {**minigrid.BATCHED, **popgym.BATCHED}
    if adapter in batched:
        game, level = batched[adapter]
        same = call("make_env_spec", game, {**level, **settings})
        message += f" The same rules in batches, with other random numbers: {same}."
    return ValueError(message)
