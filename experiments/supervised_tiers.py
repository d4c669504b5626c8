"""How a task is trained by default: in seconds, on a laptop, or as in the papers."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from rlgates.errors import check_choice, unknown
from rlgates.experiments.configs import fitting, laid_over
from rlgates.experiments.supervised_check import build
from rlgates.experiments.supervised_configs import SupervisedConfig
from rlgates.tasks import TASKS, Generated, make_task
from rlgates.tasks.protocols import PROTOCOLS

Tier = Literal["smoke", "laptop", "full"]
TIERS = ("smoke", "laptop", "full")
FOLDER = "runs/tasks"
_NAMELESS = SupervisedConfig(task="")
SMALL = 6  # the most that a number among a task's settings is in the smoke tier

_WORDS: dict[str, Any] = {
    "embedding_size": 128,
    "tied": True,
    "hidden_size": 256,
    "input_dropout": 0.3,
    "output_dropout": 0.3,
}
_CHARACTERS: dict[str, Any] = {
    "batch_size": 64,
    "embedding_size": 16,
    "hidden_size": 256,
}
_MUSIC: dict[str, Any] = {"batch_size": 16, "epochs": 30, "patience": 5}
# Where a task's laptop tier differs from what all of its kind have.
LAPTOP: dict[str, dict[str, Any]] = {
    "copy": {"task_settings": {"delay": 100}},
    "adding": {"task_settings": {"steps": 200}},
    "copy_aba": {
        "task_settings": {"delay": 20, "length": 5},
        "embedding_size": 4,
        "decoder_size": 64,
        "max_grad_norm": None,
    },
    "forgetting": {
        "task_settings": {"steps": 100},
        "core_options": {"forget_bias": 6.0},
        "learning_rate": 1e-3,
    },
    **{key: {"batch_size": 50, "decoder_size": 128} for key in ("smnist", "pmnist", "scifar")},
    "digits": {"epochs": 30, "patience": 10},
    **{key: {**_WORDS, "batch_size": 20} for key in ("ptb_words", "wikitext2")},
    "wikitext103": {**_WORDS, "batch_size": 64, "updates": 5_000, "eval_every": 1_000},
    **dict.fromkeys(("ptb_chars", "enwik8", "text8"), _CHARACTERS),
    **dict.fromkeys(("jsb", "nottingham", "musedata", "piano"), _MUSIC),
    "imdb": {"batch_size": 64, "epochs": 3},
    "speech_commands": {"epochs": 2, "max_grad_norm": 0.1},
    "icu": {"batch_size": 256, "epochs": 20, "patience": 5},
}


def task_config(name: str, tier: str = "laptop", core: str = "ur_lstm") -> SupervisedConfig:
    """The default config of a task in a tier.

    Tasks that make up their sequences have a budget of updates, the others one of epochs.

    Args:
        name: one of `rlgates.tasks.TASKS`.
        tier: "smoke" only shows that everything runs; "laptop" takes minutes, "full" is what the
            papers did.
        core: a published protocol may have settings for it.

    Raises:
        ValueError: an unknown name (the nearest is named), or no published protocol.
    """
    if name not in TASKS:
        raise unknown("task", name, TASKS)
    check_choice("tier", tier, TIERS)
    task = TASKS[name]
    config = SupervisedConfig(task=name, task_settings={}, core=core, folder=FOLDER)
    if not issubclass(task, Generated):
        kind: dict[str, Any] = {"updates": None, "epochs": 5, "eval_every": None}
        config = replace(config, **kind, hidden_size=128, learning_rate=1e-3, patience=3)
    if task.tokens:
        config = replace(config, embedding_size=64)
    config = replace(config, **LAPTOP.get(name, {}))
    config = replace(config, core_options=fitting(config.core_options, core))
    if tier == "smoke":
        return _smoke(config, issubclass(task, Generated))
    return _full(config) if tier == "full" else config


def tier_base(words: Sequence[str]) -> SupervisedConfig:
    """What the words `task NAME ...` do by default: it depends on task, tier and core.

    Raises:
        ValueError: as `task_config`, where a task is named.
    """
    given = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    given.add_argument("--tier", choices=TIERS, default="laptop")
    given.add_argument("--core", default=_NAMELESS.core)
    name = next((word for word in words[1:] if word in TASKS), None)
    if words[:1] != ["task"] or name is None:
        return _NAMELESS
    try:
        known, _ = given.parse_known_args(words)
    except argparse.ArgumentError:
        return _NAMELESS  # the command line's own parser says what is wrong
    return task_config(name, known.tier, known.core)


def over_tier(name: str, base: SupervisedConfig, config: SupervisedConfig) -> SupervisedConfig:
    """A config of the command line, its settings and options laid over those of `tier_base`.

    Raises:
        ValueError: no task or an unknown one is named, or another word was taken for it.
    """
    if not name:
        raise ValueError("the name of a task is needed; rlgates task --list shows all.")
    if name not in TASKS:
        raise unknown("task", name, TASKS)
    if base.task != name:
        raise ValueError(f"give the name of the task first: rlgates task {name} ...")
    settings = laid_over(base.task_settings, config.task_settings)
    options = fitting(base.core_options, config.core)
    if config.core_options is not base.core_options:
        options = laid_over(options, config.core_options)
    return replace(config, task_settings=settings, core_options=options)


def _smoke(config: SupervisedConfig, generated: bool) -> SupervisedConfig:
    settings = {
        name: min(value, SMALL) if type(value) is int else value
        for name, value in config.task_settings.items()
    }
    return replace(
        config,
        task_settings=settings,
        hidden_size=8,
        embedding_size=config.embedding_size and 4,
        decoder_size=config.decoder_size and 8,
        updates=4,
        epochs=None,
        patience=None,
        batch_size=4,
        eval_every=2,
        eval_sequences=8,
        eval_batches=None if generated else 2,
        folder="runs/smoke",
    )


def published(name: str) -> Any:
    """The first published protocol of a task in `rlgates.tasks.protocols.PROTOCOLS`.

    Raises:
        ValueError: there is none.
    """
    row = next((row for row in PROTOCOLS.values() if row.task == name), None)
    if row is None:
        raise ValueError(
            f"there is no published protocol of task {name!r}: take --tier laptop, and the "
            "settings that you want."
        )
    return row


def _full(config: SupervisedConfig) -> SupervisedConfig:
    """A config with all that the published protocol says; the rest as it is.

    Of several learning rates or dropout rates it is the first one.
    """
    row = published(config.task)
    said = {
        "hidden_size": row.hidden_size,
        "learning_rate": row.rates(config.core)[0],
        "batch_size": row.batch_size,
        **({"updates": row.updates, "epochs": row.epochs} if row.updates or row.epochs else {}),
    }
    full = replace(
        config,
        **{name: value for name, value in said.items() if value or name in ("updates", "epochs")},
        task_settings=dict(row.settings),
        core_options=row.options(config.core),
        num_layers=row.num_layers,
        embedding_size=row.embedding_size,
        decoder_size=row.decoder_sizes[-1] if row.decoder_sizes else None,
        optimizer=row.optimizer,
        max_grad_norm=row.clip,
        weight_decay=row.weight_decay,
        output_dropout=row.dropouts(config.core)[0],
        patience=row.patience,
        **_schedule(row.schedule),
    )
    if row.hidden_size is None and row.parameters:
        full = replace(full, hidden_size=_width(full, row.parameters))
    return full


def _schedule(words: str) -> dict[str, Any]:
    """The words of a protocol about the learning rate, as settings."""
    if not words:
        return {}
    if found := re.match(r"halved if the loss of ([\d,]+) examples", words):
        return {"halve_block": int(found[1].replace(",", ""))}
    if found := re.match(r"divided by (\d+) after (\d+) epochs", words):
        return {"decay_at": (int(found[2]),), "decay_factor": 1 / int(found[1])}
    raise ValueError(f"the schedule {words!r} cannot be read.")


def _width(config: SupervisedConfig, parameters: int) -> int:
    """The largest hidden size, a multiple of 8, with at most so many parameters in all."""
    task = make_task(config.task, **config.task_settings)

    def count(eights: int) -> int:
        reader = build(replace(config, hidden_size=8 * eights), task)
        return sum(parameter.numel() for parameter in reader.parameters())

    low, high = 1, 2
    while count(high) <= parameters:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if count(middle) <= parameters else (low, middle)
    return 8 * low
