"""The environments by id. A new game is one file in `games/` and one line here."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from rlgates.envs.adapters import minigrid, popgym
from rlgates.envs.engine.spec import EnvSpec
from rlgates.envs.engine.views import View
from rlgates.envs.games.key_to_door import KeyToDoor
from rlgates.envs.games.match import ActiveMatch, PassiveMatch
from rlgates.envs.games.memory_chain import MemoryChain
from rlgates.envs.games.repeat import RepeatFirst, RepeatPrevious
from rlgates.envs.games.tmaze import ActiveTMaze, PassiveTMaze
from rlgates.errors import check_choice, unknown_choice

ENVS: dict[str, type[EnvSpec]] = {
    "rlgates/PassiveMatch-v0": PassiveMatch,
    "rlgates/ActiveMatch-v0": ActiveMatch,
    "rlgates/KeyToDoor-v0": KeyToDoor,
    "rlgates/PassiveTMaze-v0": PassiveTMaze,
    "rlgates/ActiveTMaze-v0": ActiveTMaze,
    "rlgates/MemoryChain-v0": MemoryChain,
    "rlgates/RepeatFirst-v0": RepeatFirst,
    "rlgates/RepeatPrevious-v0": RepeatPrevious,
}


def make_env_spec(env_id: str, *, preset: str | None = None, **settings: Any) -> EnvSpec:
    """The definition of the environment `env_id`, with `settings` in place of its defaults.

    Args:
        env_id: for example "rlgates/PassiveMatch-v0".
        preset: name of published settings, see the docstring of the game; `settings` override
            them.
        settings: of the game and of `View` (extra inputs and scales).

    Raises:
        ValueError: unknown id, preset or setting (the nearest known one is named), or a value
            out of range. TypeError: a value of the wrong type.
    """
    if env_id in (*minigrid.IDS, *popgym.IDS):
        raise ValueError(
            f"{env_id!r} is a single environment of gymnasium and cannot be batched: make it "
            f"with gymnasium.make({env_id!r}), or several for Stable-Baselines3 with "
            f"stable_baselines3.common.env_util.make_vec_env({env_id!r}, n_envs=8)."
        )
    game: Any = ENVS[check_choice("environment id", env_id, ENVS)]
    if preset is not None:
        settings = {**game.presets[check_choice("preset", preset, game.presets)], **settings}
    game_settings = [field.name for field in fields(game)]
    view_settings = [field.name for field in fields(View) if field.name != "spec"]
    for name in settings:
        if name not in (*game_settings, *view_settings):
            known = (*game_settings, "preset", *view_settings)
            raise unknown_choice(f"setting of {env_id}", name, known)
    view = {name: settings.pop(name) for name in view_settings if name in settings}
    spec: EnvSpec = game(**settings)
    return View(spec, **view) if view else spec
