"""The supervised tasks: the TASKS table, and `make_task`, which reads it."""

from __future__ import annotations

from typing import Any

from rlgates.errors import unknown
from rlgates.tasks.reader import Reader
from rlgates.tasks.synthetic import Adding, Copy
from rlgates.tasks.task import SPLITS, Batch, Generated, Published, Task

__all__ = [
    "SPLITS",
    "TASKS",
    "Adding",
    "Batch",
    "Copy",
    "Generated",
    "Published",
    "Reader",
    "Task",
    "make_task",
]

TASKS: dict[str, type[Task]] = {"copy": Copy, "adding": Adding}


def make_task(name: str, **settings: Any) -> Task:
    """A task by name, with its settings.

    Raises:
        ValueError: an unknown name or setting (the nearest is named), or a value that makes no
            sense.
        TypeError: a value of the wrong type.
    """
    if name not in TASKS:
        raise unknown("task", name, TASKS)
    for setting in settings:
        if setting not in TASKS[name].settings:
            raise unknown(f"setting of task {name!r}", setting, TASKS[name].settings)
    return TASKS[name](**settings)
