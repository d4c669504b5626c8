"""The supervised tasks: the TASKS table, and `make_task`, which reads it."""

from __future__ import annotations

from typing import Any

from rlgates.errors import unknown
from rlgates.tasks.execute import Execute, ExecuteAddition, ExecuteControl, ExecuteProgram
from rlgates.tasks.icu import LengthOfStay
from rlgates.tasks.language import (
    Enwik8,
    PTBCharacters,
    PTBWords,
    Text8,
    WikiText2,
    WikiText103,
)
from rlgates.tasks.music import JSB, MuseData, Nottingham, Piano
from rlgates.tasks.pixels import (
    PermutedMNIST,
    SequentialCIFAR,
    SequentialDigits,
    SequentialMNIST,
)
from rlgates.tasks.reader import Reader, make_reader
from rlgates.tasks.reviews import IMDB
from rlgates.tasks.speech import SpeechCommands
from rlgates.tasks.synthetic import Adding, Copy, CopyABA, Forgetting
from rlgates.tasks.task import SPLITS, Batch, Generated, Published, Task

__all__ = [
    "IMDB",
    "JSB",
    "SPLITS",
    "TASKS",
    "Adding",
    "Batch",
    "Copy",
    "CopyABA",
    "Enwik8",
    "Execute",
    "ExecuteAddition",
    "ExecuteControl",
    "ExecuteProgram",
    "Forgetting",
    "Generated",
    "LengthOfStay",
    "MuseData",
    "Nottingham",
    "PTBCharacters",
    "PTBWords",
    "PermutedMNIST",
    "Piano",
    "Published",
    "Reader",
    "SequentialCIFAR",
    "SequentialDigits",
    "SequentialMNIST",
    "SpeechCommands",
    "Task",
    "Text8",
    "WikiText2",
    "WikiText103",
    "make_reader",
    "make_task",
]

TASKS: dict[str, type[Task]] = {
    "copy": Copy,
    "copy_aba": CopyABA,
    "adding": Adding,
    "forgetting": Forgetting,
    "lte_addition": ExecuteAddition,
    "lte_control": ExecuteControl,
    "lte_program": ExecuteProgram,
    "smnist": SequentialMNIST,
    "pmnist": PermutedMNIST,
    "scifar": SequentialCIFAR,
    "digits": SequentialDigits,
    "ptb_words": PTBWords,
    "ptb_chars": PTBCharacters,
    "wikitext2": WikiText2,
    "wikitext103": WikiText103,
    "enwik8": Enwik8,
    "text8": Text8,
    "jsb": JSB,
    "nottingham": Nottingham,
    "musedata": MuseData,
    "piano": Piano,
    "imdb": IMDB,
    "speech_commands": SpeechCommands,
    "icu": LengthOfStay,
}


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
