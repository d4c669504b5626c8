"""How a task is trained by default: in seconds, on a laptop, or as in the papers."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from rlgates.cores import core_options
from rlgates.errors import check_choice, unknown
from rlgates.experiments.configs import fitting, laid_over
from rlgates.experiments.supervised_configs import SupervisedConfig
from rlgates.experiments.supervised_protocols import (
    as_published,
    has_protocol,
    of_published_size,
    published,
)
from rlgates.tasks import TASKS, Generated

Tier = Literal["smoke", "laptop", "full"]
TIERS: tuple[Tier, ...] = ("smoke", "laptop", "full")
FOLDER = "runs/tasks"
_NAMELESS = SupervisedConfig(task="")
SMALL = 4  # the most that a number among settings and options is in the smoke tier

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
        "core": "r_lstm",
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
# What is read of large sets, where it is not about their figures.
PARTS: dict[str, dict[str, Any]] = {
    **{key: {"prefix": True} for key in ("enwik8", "text8")},
    "speech_commands": {"subset": True},
}


def task_config(
    name: str, tier: str = "laptop", core: str | None = None, protocol: str | None = None
) -> SupervisedConfig:
    """The default config of a task in a tier.

    Tasks that make up their sequences have a budget of updates, the others one of epochs.

    Args:
        name: one of `rlgates.tasks.TASKS`.
        tier: "full" is what a paper did, "smoke" the same so small that it only shows that
            everything runs; "laptop" takes minutes.
        core: a published protocol may have settings for it; None for the task's own.
        protocol: one of the task's in `rlgates.tasks.protocols.PROTOCOLS`, which a laptop does
            not make smaller; None for the first.

    Raises:
        ValueError: an unknown name (the nearest is named), no published protocol, or a core that
            lacks what the task is about.
    """
    if name not in TASKS:
        raise unknown("task", name, TASKS)
    check_choice("tier", tier, TIERS)
    config = _laptop(name)
    if core is not None:
        config = replace(config, core=core)
    if name == "forgetting" and "forget_bias" not in core_options(config.core):
        raise ValueError(
            f"task {name!r} starts all forget gates at 6, and {config.core!r} takes no "
            "forget_bias; lstm, r_lstm and f_lstm do, and so do GRUs."
        )
    small = tier == "laptop" or (tier == "smoke" and not has_protocol(name))
    if small and protocol is None:
        config = replace(config, core_options=fitting(config.core_options, config.core))
        return smoke(config) if tier == "smoke" else config
    _, row = published(name, protocol)
    config = as_published(config, row)
    return smoke(config) if tier == "smoke" else of_published_size(config, row)


def _laptop(name: str) -> SupervisedConfig:
    task = TASKS[name]
    config = SupervisedConfig(task=name, task_settings={}, folder=FOLDER)
    if not issubclass(task, Generated):
        kind: dict[str, Any] = {"updates": None, "epochs": 5, "eval_every": None}
        config = replace(config, **kind, hidden_size=128, learning_rate=1e-3, patience=3)
    if task.tokens:
        config = replace(config, embedding_size=64)
    return replace(config, **LAPTOP.get(name, {}))


def tier_base(words: Sequence[str]) -> SupervisedConfig:
    """What the words `task NAME ...` do by default: it depends on task, tier and core.

    Raises:
        ValueError: as `task_config`, where a task is named.
    """
    given = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    given.add_argument("--tier", choices=TIERS, default="laptop")
    given.add_argument("--core")
    given.add_argument("--protocol")
    name = next((word for word in words[1:] if word in TASKS), None)
    if words[:1] != ["task"] or name is None:
        return _NAMELESS
    try:
        known, _ = given.parse_known_args(words)
    except argparse.ArgumentError:
        return _NAMELESS  # the command line's own parser says what is wrong
    return task_config(name, known.tier, known.core, known.protocol)


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


def smoke(config: SupervisedConfig) -> SupervisedConfig:
    """The same so small that it only shows that everything runs."""
    generated = issubclass(TASKS[config.task], Generated)
    return replace(
        config,
        task_settings=_small(config.task_settings) | PARTS.get(config.task, {}),
        core_options=_small(config.core_options),
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


def _small(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: min(value, SMALL) if type(value) is int else value for name, value in settings.items()
    }
