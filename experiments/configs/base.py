"""What all runs have in common: their settings, and the rule by which two runs are the same."""

from __future__ import annotations

import ast
import re
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from tyro.constructors import PrimitiveConstructorSpec

from rlgates.registry import check_options, core_options

MAX_ENVS = 2**16
"""The most environments that are stepped together."""
OPTION, SETTING = "core.", "task."
"""Prefixes of the options of the core, and of the settings of the task or environment."""


def parse_pairs(words: list[str]) -> dict[str, Any]:
    """`["steps=30", "crop=None", "shuffle_pads=env"]` -> names and values.

    A value is read as a Python number, True, False, None or tuple, and else as text. NAME=
    without a value is the empty text, by which `override` removes a name.

    Raises:
        ValueError: a word without "=".
    """
    pairs: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not (name and equals):
            raise ValueError(f"expected NAME=VALUE, got {word!r}")
        try:
            pairs[name.replace("-", "_")] = ast.literal_eval(text)
        except (SyntaxError, ValueError):
            pairs[name.replace("-", "_")] = text
    return pairs


class CommandLinePairs(dict[str, Any]):
    """Pairs that were typed on the command line; the default of an option is another mapping."""


def override(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `changes` in place of its values; an empty text removes a name."""
    return {name: value for name, value in {**base, **changes}.items() if value != ""}


def override_from_command_line(base: Mapping[str, Any], pairs: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with the values that the command line sets for this option."""
    return override(base, pairs if isinstance(pairs, CommandLinePairs) else {})


def supported_options(options: Mapping[str, Any], core: str) -> dict[str, Any]:
    """The options that a core supports.

    Raises:
        ValueError: an unknown core (the nearest is named).
    """
    return {name: value for name, value in options.items() if name in core_options(core)}


def parse_core(words: str) -> tuple[str, dict[str, Any]]:
    """The core and its options in words such as "lstm:forget_bias=0.0".

    Raises:
        ValueError: an unknown core or option (the nearest is named).
    """
    core, *pairs = re.split("[:,]", words)
    options = parse_pairs(pairs)
    check_options(core, options)
    return core, options


Pairs = Annotated[
    Mapping[str, Any],
    PrimitiveConstructorSpec(
        nargs="*",
        metavar="[NAME=VALUE ...]",
        instance_from_str=lambda words: CommandLinePairs(parse_pairs(words)),
        is_instance=lambda value: isinstance(value, Mapping),
        str_from_instance=lambda value: [f"{name}={item}" for name, item in value.items()],
    ),
]
"""Named settings of any kind; NAME=VALUE on the command line."""


def bookkeeping(default: Any) -> Any:
    """A config field that is not part of the identity: it may differ when a run is continued.

    `max_minutes` is one although it may end training early, because a run that it ended differs
    from another by when it was stopped, as one stopped by Ctrl-C does.
    """
    return field(default=default, metadata={"identity": False})


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """How to train one core on one environment or task.

    A step is a step of an environment, or an update of a network on a supervised task.
    """

    kind: ClassVar[str]
    settings_field: ClassVar[str]
    stop_field: ClassVar[str] = ""

    core: str = "ur_lstm"
    """Memory core; `rlgates cores` lists them. For your own core, put the module that registers it
    in front: my_module:my_core."""
    core_options: Pairs = field(default_factory=dict)
    """Options of the core, laid over the defaults; NAME= removes one."""
    hidden_size: int = 64
    """Units of a layer of the core."""
    learning_rate: float = 1e-3
    """Learning rate of the optimizer."""
    eval_every: int | Literal["epoch"] | None = None
    """Steps between evaluations during training; None: only at the end."""

    seeds: tuple[int, ...] = bookkeeping((0,))
    """One run for each seed."""
    jobs: int = bookkeeping(1)
    """Number of runs at the same time, each in its own process."""
    max_minutes: float | None = bookkeeping(None)
    """Time limit of training in minutes; None: no limit. A run that it ended continues if the limit
    is raised."""
    checkpoint_minutes: float = bookkeeping(2.0)
    """Minutes between checkpoints; 0: one after every update."""
    folder: str = bookkeeping("runs")
    """Parent of the run folders."""
    threads: int = bookkeeping(1)
    """CPU threads of each run."""
    device: Literal["cpu", "cuda", "auto"] = "cpu"
    """Device to train on; "auto" is a GPU if there is one."""

    @property
    @abstractmethod
    def title(self) -> str:
        """What is learned, without the core: "copy, delay 100"."""

    @abstractmethod
    def check(self) -> Any:
        """Find what is wrong with the config before any work starts.

        Raises:
            ValueError: an unknown name (the nearest is named), a number out of its range, or
                settings that exclude each other.
            TypeError: a value of the wrong type.
            OSError, ImportError: the task's data, or a package to read them, are missing.
        """

    @abstractmethod
    def run_folder(self, seed: int) -> Path:
        """The folder of the run with that seed."""

    @abstractmethod
    def full_settings(self) -> dict[str, Any]:
        """All settings of the environment or task, with the defaults of those not given."""

    def resolved(self) -> RunConfig:
        """The config with every setting that is chosen for the environment or task written out."""
        return self

    @property
    def settings(self) -> Mapping[str, Any]:
        """The given settings of the environment or task."""
        settings: Mapping[str, Any] = getattr(self, self.settings_field)
        return settings


def options_text(options: Mapping[str, Any]) -> str:
    """ "forget_bias=1.0 tied=False"."""
    return " ".join(f"{name}={value}" for name, value in options.items())
