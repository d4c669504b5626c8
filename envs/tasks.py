"""The tasks by their ids."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from rlgates.envs.engine import Task
from rlgates.envs.match import PassiveMatch
from rlgates.errors import check_choice, unknown

TASKS: dict[str, type[Any]] = {"rlgates/PassiveMatch-v0": PassiveMatch}


def make_task(env_id: str, **settings: Any) -> Task:
    """The definition named `env_id`, with `settings` in place of its defaults.

    Raises:
        ValueError: unknown id or setting (the nearest known one is named), or a value out of
            range. TypeError: a value of the wrong type.
    """
    task = TASKS[check_choice("environment id", env_id, TASKS)]
    known = [field.name for field in fields(task)]
    for name in settings:
        if name not in known:
            raise unknown(f"setting of {env_id}", name, known)
    made: Task = task(**settings)
    return made
