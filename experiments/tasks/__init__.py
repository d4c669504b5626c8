"""The supervised tasks: the TASKS table, and `make_task` for a task by name."""

from __future__ import annotations

from typing import Any

from rlgates.deprecation import renamed
from rlgates.errors import check_choice, check_text
from rlgates.experiments.tasks.auxiliary import AuxiliaryKind, AuxiliaryLoss
from rlgates.experiments.tasks.model import SequenceModel, make_sequence_model
from rlgates.experiments.tasks.sets.execute import (
    Execute,
    ExecuteAddition,
    ExecuteControl,
    ExecuteProgram,
)
from rlgates.experiments.tasks.sets.icu import LengthOfStay
from rlgates.experiments.tasks.sets.language import (
    Enwik8,
    PTBCharacters,
    PTBWords,
    Text8,
    WikiText2,
    WikiText103,
)
from rlgates.experiments.tasks.sets.music import JSB, MuseData, Nottingham, Piano
from rlgates.experiments.tasks.sets.pixels import (
    PermutedMNIST,
    SequentialCIFAR,
    SequentialDigits,
    SequentialMNIST,
)
from rlgates.experiments.tasks.sets.reviews import IMDB
from rlgates.experiments.tasks.sets.speech import SpeechCommands
from rlgates.experiments.tasks.synthetic import Adding, Copy, CopyABA, Forgetting
from rlgates.experiments.tasks.task import (
    SPLITS,
    Batch,
    GeneratedTask,
    PublishedResult,
    Task,
)

__all__ = [
    "IMDB",
    "JSB",
    "SPLITS",
    "TASKS",
    "Adding",
    "AuxiliaryKind",
    "AuxiliaryLoss",
    "Batch",
    "Copy",
    "CopyABA",
    "Enwik8",
    "Execute",
    "ExecuteAddition",
    "ExecuteControl",
    "ExecuteProgram",
    "Forgetting",
    "GeneratedTask",
    "LengthOfStay",
    "MuseData",
    "Nottingham",
    "PTBCharacters",
    "PTBWords",
    "PermutedMNIST",
    "Piano",
    "PublishedResult",
    "SequenceModel",
    "SequentialCIFAR",
    "SequentialDigits",
    "SequentialMNIST",
    "SpeechCommands",
    "Task",
    "Text8",
    "WikiText2",
    "WikiText103",
    "make_sequence_model",
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

__getattr__ = renamed(
    __name__,
    {
        "Generated": "GeneratedTask",
        "Published": "PublishedResult",
        "Reader": "SequenceModel",
        "make_reader": "make_sequence_model",
    },
)


def make_task(name: str, **settings: Any) -> Task:
    """A task by name, with its settings.

    Raises:
        ValueError: an unknown name or setting (the nearest is named), or an invalid value.
        TypeError: a value of the wrong type.
    """
    check_choice("task", check_text("task", name), TASKS)
    for setting in settings:
        check_choice(f"setting of task {name!r}", setting, TASKS[name].settings)
    return TASKS[name](**settings)
