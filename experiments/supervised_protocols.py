"""A paper's protocol as the config of a run."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import torch

from rlgates.cores import core_options
from rlgates.errors import check_choice
from rlgates.experiments.configs import fitting
from rlgates.experiments.supervised_check import build
from rlgates.experiments.supervised_configs import SupervisedConfig
from rlgates.tasks import make_task
from rlgates.tasks.protocols import PROTOCOLS, Protocol, protocols_for


def has_protocol(task: str) -> bool:
    """Whether there is a published protocol of a task."""
    return any(row.task == task for row in PROTOCOLS.values())


def published(task: str, name: str | None = None) -> tuple[str, Protocol]:
    """A protocol of a task in `rlgates.tasks.protocols.PROTOCOLS` and its name, by default the
    first one.

    Raises:
        ValueError: there is none, or none of that name.
    """
    if not has_protocol(task):
        raise ValueError(
            f"there is no published protocol of task {task!r}: take --tier laptop, and the "
            "settings that you want."
        )
    rows = protocols_for(task)
    if name is not None:
        check_choice(f"protocol of {task}", name, rows)
    name = name or next(iter(rows))
    return name, rows[name]


def as_published(config: SupervisedConfig, row: Protocol) -> SupervisedConfig:
    """A config with all that the protocol says but the size; the rest as it is.

    Of several learning rates or dropout rates it is the first one. A core that the paper did not
    run has the rates of the paper's LSTM, and those of its options that it takes.
    """
    dropout, place = row.dropouts(config.core)[0], row.dropout_of
    options = fitting(row.options(config.core), config.core)
    if place == "core":
        own = [n for n in ("dropout", "recurrent_dropout") if n in core_options(config.core)]
        if own:
            options[own[0]] = dropout
        else:
            place = "output"
    rates = row.rates(config.core)
    published = replace(
        config,
        task_settings=dict(row.settings),
        core_options=options,
        num_layers=row.num_layers,
        embedding_size=row.embedding_size,
        tied=row.tied,
        decoder_size=row.decoder_size,
        optimizer=row.optimizer,
        learning_rate=rates[0] if rates else config.learning_rate,
        batch_size=row.batch_size or config.batch_size,
        max_grad_norm=row.clip,
        weight_decay=row.weight_decay,
        input_dropout=dropout if place == "input" else 0.0,
        output_dropout=dropout if place == "output" else 0.0,
        updates=row.updates,
        epochs=row.epochs,
        patience=row.patience,
        **_schedule(row.schedule),
    )
    unstated: dict[str, Any] = dict(row.unstated)
    return replace(published, **unstated)


def about(task: str, protocol: str | None, core: str) -> list[str]:
    """Lines for people: what the paper found, and what it leaves open."""
    name, row = published(task, protocol)
    lines = [f"protocol {name} ({row.source})"]
    if row.outcome:
        lines.append(f"  published: {row.outcome}")
    if row.unstated:
        taken = " ".join(f"{setting}={value}" for setting, value in row.unstated.items())
        lines.append(f"  the paper does not say, and taken is: {taken}")
    if core not in row.cores:
        lines.append(f"  the paper has no {core}: its settings are those of {row.like(core)}")
    return lines


def of_published_size(config: SupervisedConfig, row: Protocol) -> SupervisedConfig:
    """The config with the protocol's hidden size, or the one with as many parameters."""
    size, parameters = row.hidden_size, row.size(config.core)
    if size is None and parameters is not None:
        size = _width(config, parameters)
    return config if size is None else replace(config, hidden_size=size)


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
        with torch.device("meta"):
            reader = build(replace(config, hidden_size=8 * eights), task)
        return sum(parameter.numel() for parameter in reader.parameters())

    low, high = 1, 2
    while count(high) <= parameters:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if count(middle) <= parameters else (low, middle)
    return 8 * low
