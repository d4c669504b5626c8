"""The studies of `rlgates supervise`: which cores on which tasks, with which budget."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rlgates.experiments.supervised_configs import SupervisedConfig
from rlgates.experiments.supervised_tiers import PARTS, task_config
from rlgates.tasks import make_task


@dataclass(frozen=True)
class Comparison:
    """Cores on one task.

    Attributes:
        config: of all of them, but for the core.
        cores: that are compared.
        core_options: for some of them, the options that are not the defaults.
        gates: whether the forget gates of the first seed are kept, before and after training.
    """

    config: SupervisedConfig
    cores: tuple[str, ...]
    core_options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    gates: bool = False

    def of(self, core: str) -> SupervisedConfig:
        """The config of one core."""
        options = dict(self.core_options.get(core, {}))
        return replace(self.config, core=core, core_options=options)


@dataclass(frozen=True, kw_only=True)
class SupervisedStudy:
    """Make the runs of a study: cores on supervised tasks."""

    name: str = "supervised"
    """Of the study and its result files: supervised (every core, small budget), gates (Copy and
    Adding), music, pixels, or epochs (an epoch of each other task)."""
    tasks: tuple[str, ...] = ()
    """Some of its tasks; all if none is given."""
    cores: tuple[str, ...] = ()
    """Memory cores that are compared; those of the study if none is given."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """One run for each task, core and seed."""
    jobs: int = 1
    """Runs at a time, each in a process of its own."""
    results: str = "experiments/results"
    """Where the tables are written."""
    smoke: bool = False
    """The same grid in a few seconds; tables beside the runs, not in `results`."""


_SMALL = SupervisedConfig()
COPY = replace(_SMALL, task="copy", task_settings={"delay": 100})
ADDING = replace(_SMALL, task="adding", task_settings={"steps": 200})

# Every core, and what other gates make of three of them; those that take longest at the end.
CORES = (
    *("lstm", "ur_lstm", "f_lstm", "c_lstm", "om_lstm", "gru", "ur_gru", "janet", "gato"),
    *("mingru", "ur_mingru", "minlstm", "gilr", "lru", "none"),
    *("rru", "nru", "mogrifier", "rmc", "rma", "dnc"),
)
# A memory of the length of the tasks, and a latent about as wide as the other cores.
_MEMORY = {"rma": {"latent_size": 32, "num_slots": 256, "top_k": 16}}

# The nine gates of Gu et al., those of Ohno et al., and other cells.
GATES = (
    *("lstm", "c_lstm", "o_lstm", "u_lstm", "r_lstm", "om_lstm", "or_lstm", "um_lstm", "ur_lstm"),
    *("f_lstm", "s_lstm", "janet", "nru", "gato", "rru", "gru"),
)


def _gates(task: str, setting: str, length: int) -> Comparison:
    """A run ends when a twentieth of what can be had without memory is left."""
    baseline = make_task(task).baseline
    assert baseline is not None
    config = replace(
        _SMALL,
        task=task,
        task_settings={setting: length},
        updates=5_000 if length <= 200 else 3_000,
        stop_loss=round(baseline / 20, 4),
    )
    options = {"janet": {"t_max": length}, "gato": {"depth": 2}}
    return Comparison(config, GATES, options, gates=True)


def _epoch(task: str) -> SupervisedConfig:
    """One pass over the task's data, or some updates where they are made up."""
    config = task_config(task)
    if config.updates is not None and config.epochs is None:
        return replace(config, updates=500)
    settings = {**config.task_settings, **PARTS.get(task, {})}
    return replace(config, task_settings=settings, epochs=1, updates=None, patience=None)


_OTHERS = (
    *("copy_aba", "forgetting", "lte_addition", "lte_control", "lte_program", "digits", "pmnist"),
    *("scifar", "ptb_words", "ptb_chars", "wikitext2", "enwik8", "text8", "musedata", "piano"),
    *("imdb", "speech_commands", "icu"),
)
STUDIES: dict[str, tuple[Comparison, ...]] = {
    "supervised": (Comparison(COPY, CORES, _MEMORY), Comparison(ADDING, CORES, _MEMORY)),
    "gates": (
        *(_gates("copy", "delay", delay) for delay in (100, 500)),
        *(_gates("adding", "steps", steps) for steps in (200, 750)),
    ),
    "music": tuple(
        Comparison(task_config(task), ("rru", "gru", "lstm")) for task in ("jsb", "nottingham")
    ),
    "pixels": (
        Comparison(
            replace(task_config("smnist"), hidden_size=64, epochs=2),
            ("lstm", "ur_lstm", "f_lstm"),
        ),
    ),
    "epochs": tuple(Comparison(_epoch(task), ("ur_lstm",)) for task in _OTHERS),
}
