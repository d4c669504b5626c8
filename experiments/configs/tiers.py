"""The default configs of the tasks, in three tiers: smoke, laptop, full."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from rlgates.errors import check_choice
from rlgates.experiments.configs.base import override_from_command_line, supported_options
from rlgates.experiments.configs.protocols import (
    as_published,
    find_protocol,
    has_protocol,
    with_published_size,
)
from rlgates.experiments.configs.task import TaskConfig
from rlgates.experiments.tasks import TASKS, GeneratedTask
from rlgates.registry import core_options

Tier = Literal["smoke", "laptop", "full"]
TIERS: tuple[Tier, ...] = ("smoke", "laptop", "full")
FOLDER = "runs/tasks"
_NAMELESS = TaskConfig(task="", folder=FOLDER)
SMALL = 4  # the largest integer among settings and options of the smoke tier

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
# Where the laptop tier of a task differs from that of similar tasks.
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
# Settings that use a part of large data sets, where the results do not matter.
PARTS: dict[str, dict[str, Any]] = {
    **{key: {"prefix": True} for key in ("enwik8", "text8")},
    "speech_commands": {"subset": True},
}


def task_config(
    name: str, tier: str = "laptop", core: str | None = None, protocol: str | None = None
) -> TaskConfig:
    """The default config of a task in a tier.

    The budget of generated tasks is in updates, that of the others in epochs.

    Args:
        name: one of `rlgates.experiments.tasks.TASKS`.
        tier: "full" is a paper's protocol, "smoke" the same so small that it only shows that
            everything runs; "laptop" takes minutes.
        core: replaces the task's default core; published protocols have settings for some cores.
        protocol: one of the task's in `configs.published.PROTOCOLS`; a protocol that is named
            runs at full size in the laptop tier too. None: the first.

    Raises:
        ValueError: an unknown name (the nearest is named), no published protocol, or a core
            without an option that the task needs.
    """
    check_choice("task", name, TASKS)
    check_choice("tier", tier, TIERS)
    config = _laptop(name)
    if core is not None:
        config = replace(config, core=core)
    if name == "forgetting" and "forget_bias" not in core_options(config.core):
        raise ValueError(
            f"task {name!r} sets forget_bias, an option that {config.core!r} does not have; lstm, "
            "r_lstm, f_lstm and the GRUs do."
        )
    small = tier == "laptop" or (tier == "smoke" and not has_protocol(name))
    if small and protocol is None:
        config = replace(config, core_options=supported_options(config.core_options, config.core))
        return smoke(config) if tier == "smoke" else config
    _, paper = find_protocol(name, protocol)
    config = as_published(config, paper)
    return smoke(config) if tier == "smoke" else with_published_size(config, paper)


def _laptop(name: str) -> TaskConfig:
    task = TASKS[name]
    config = TaskConfig(task=name, task_settings={}, folder=FOLDER)
    if not issubclass(task, GeneratedTask):
        kind: dict[str, Any] = {"updates": None, "epochs": 5, "eval_every": "epoch"}
        config = replace(config, **kind, hidden_size=128, learning_rate=1e-3, patience=3)
    if task.tokens:
        config = replace(config, embedding_size=64)
    return replace(config, **LAPTOP.get(name, {}))


def tier_base(words: Sequence[str]) -> TaskConfig:
    """The default config for the command line `task NAME ...`, by task, tier and core.

    Raises:
        ValueError: as `task_config`, if a task is named.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--tier", choices=TIERS, default="laptop")
    parser.add_argument("--core")
    parser.add_argument("--protocol")
    name = next((word for word in words[1:] if word in TASKS), None)
    if words[:1] != ["task"] or name is None:
        return _NAMELESS
    try:
        known, _ = parser.parse_known_args(words)
    except argparse.ArgumentError:
        return _NAMELESS  # the main parser reports the error
    return task_config(name, known.tier, known.core, known.protocol)


def over_tier(name: str, base: TaskConfig, config: TaskConfig) -> TaskConfig:
    """A config from the command line, with its settings and options merged into `tier_base`'s.

    Raises:
        ValueError: the task is missing, unknown, or not the first word.
    """
    if not name:
        raise ValueError("the name of a task is needed; rlgates task --list shows all.")
    check_choice("task", name, TASKS)
    if base.task != name:
        raise ValueError(f"give the name of the task first: rlgates task {name} ...")
    settings = override_from_command_line(base.task_settings, config.task_settings)
    options = supported_options(base.core_options, config.core)
    options = override_from_command_line(options, config.core_options)
    return replace(config, task_settings=settings, core_options=options)


def smoke(config: TaskConfig) -> TaskConfig:
    """The config reduced until it only shows that everything runs."""
    generated = issubclass(TASKS[config.task], GeneratedTask)
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
        min_delta=0.0,
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
