"""The tasks by their ids."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from rlgates.envs import minigrid, popgym
from rlgates.envs.active_match import ActiveMatch
from rlgates.envs.engine import Task
from rlgates.envs.keytodoor import KeyToDoor
from rlgates.envs.match import PassiveMatch
from rlgates.envs.memory_chain import MemoryChain
from rlgates.envs.repeat import RepeatFirst, RepeatPrevious
from rlgates.envs.tmaze import ActiveTMaze, PassiveTMaze
from rlgates.envs.views import View
from rlgates.errors import check_choice, unknown

TASKS: dict[str, type[Any]] = {
    "rlgates/PassiveMatch-v0": PassiveMatch,
    "rlgates/ActiveMatch-v0": ActiveMatch,
    "rlgates/KeyToDoor-v0": KeyToDoor,
    "rlgates/PassiveTMaze-v0": PassiveTMaze,
    "rlgates/ActiveTMaze-v0": ActiveTMaze,
    "rlgates/MemoryChain-v0": MemoryChain,
    "rlgates/RepeatFirst-v0": RepeatFirst,
    "rlgates/RepeatPrevious-v0": RepeatPrevious,
}


def make_task(env_id: str, *, preset: str | None = None, **settings: Any) -> Task:
    """The definition named `env_id`, with `settings` in place of its defaults.

    Args:
        env_id: for example "rlgates/PassiveMatch-v0".
        preset: name of published settings; see the docstring of the task. `settings` go before.
        settings: of the task, and of `View`: what agents see beside, and scales.

    Raises:
        ValueError: unknown id, preset or setting (the nearest known one is named), or a value
            out of range. TypeError: a value of the wrong type.
    """
    if env_id in (*minigrid.IDS, *popgym.IDS):
        raise ValueError(
            f"{env_id!r} is a single environment of gymnasium, with no batches of its own: make "
            f"it with gymnasium.make({env_id!r}), or several for Stable-Baselines3 with "
            f"stable_baselines3.common.env_util.make_vec_env({env_id!r}, n_envs=8)."
        )
    kind = TASKS[check_choice("environment id", env_id, TASKS)]
    if preset is not None:
        settings = {**kind.presets[check_choice("preset", preset, kind.presets)], **settings}
    own = [field.name for field in fields(kind)]
    views = [field.name for field in fields(View) if field.name != "task"]
    for name in settings:
        if name not in (*own, *views):
            raise unknown(f"setting of {env_id}", name, (*own, "preset", *views))
    view = {name: settings.pop(name) for name in views if name in settings}
    task: Any = kind(**settings)
    made: Task = View(task, **view) if view else task
    return made
