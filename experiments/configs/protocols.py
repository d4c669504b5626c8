"""A paper's protocol as the config of a run."""

from __future__ import annotations

from dataclasses import replace

import torch

from rlgates.errors import check_choice
from rlgates.experiments.configs.base import supported_options
from rlgates.experiments.configs.published import PROTOCOLS, Protocol, protocols_for
from rlgates.experiments.configs.sizes import largest_size
from rlgates.experiments.configs.task import TaskConfig, build_model
from rlgates.registry import core_options

# What a protocol and a config call the same.
_SAME = (
    *("num_layers", "embedding_size", "tied", "decoder_size", "optimizer", "max_grad_norm"),
    *("weight_decay", "updates", "epochs", "patience", "decay_at", "decay_factor", "halve_block"),
    "eval_sequences",
)


def has_protocol(task: str) -> bool:
    """Whether a task has a published protocol."""
    return any(protocol.task == task for protocol in PROTOCOLS.values())


def find_protocol(task: str, name: str | None = None) -> tuple[str, Protocol]:
    """The name and the protocol of a task, by default its first one in `PROTOCOLS`.

    Raises:
        ValueError: the task has no protocol, or none of that name.
    """
    if not has_protocol(task):
        raise ValueError(
            f"there is no published protocol of task {task!r}: use --tier laptop and your own "
            "settings."
        )
    protocols = protocols_for(task)
    if name is not None:
        check_choice(f"protocol of {task}", name, protocols)
    name = name or next(iter(protocols))
    return name, protocols[name]


def as_published(config: TaskConfig, protocol: Protocol) -> TaskConfig:
    """A config with all settings of a protocol except for the size.

    Of several learning rates or dropout rates, the first one is used. A core that the paper did
    not run gets the rates and the applicable options of the paper's LSTM.
    """
    dropout, place = protocol.dropouts_for(config.core)[0], protocol.dropout_of
    options = supported_options(protocol.options(config.core), config.core)
    if place == "core":
        applicable = core_options(config.core)
        names = [name for name in ("dropout", "recurrent_dropout") if name in applicable]
        if names:
            options[names[0]] = dropout
        else:
            place = "output"
    rates = protocol.learning_rates_for(config.core)
    stated = replace(
        config,
        task_settings=dict(protocol.task_settings),
        core_options=options,
        learning_rate=rates[0] if rates else config.learning_rate,
        batch_size=protocol.batch_size or config.batch_size,
        input_dropout=dropout if place == "input" else 0.0,
        output_dropout=dropout if place == "output" else 0.0,
    )
    same = {name: getattr(protocol, name) for name in _SAME}
    return replace(stated, **{**same, **protocol.unstated})


def describe_protocol(task: str, name: str | None, core: str) -> list[str]:
    """Lines that say what the paper found, and what it leaves open."""
    name, protocol = find_protocol(task, name)
    lines = [f"protocol {name} ({protocol.source})"]
    if protocol.finding:
        lines.append(f"  published: {protocol.finding}")
    if protocol.unstated:
        assumed = " ".join(f"{setting}={value}" for setting, value in protocol.unstated.items())
        lines.append(f"  not stated in the paper, and assumed: {assumed}")
    if core not in protocol.cores:
        lines.append(
            f"  the paper has no {core}: its settings are those of {protocol.reference_core(core)}"
        )
    return lines


# A study asks for the same sizes several times, and each takes many networks.
_HIDDEN_SIZES: dict[tuple[str, int], int] = {}


def with_published_size(config: TaskConfig, protocol: Protocol) -> TaskConfig:
    """The config with the protocol's hidden size, or the one that has as many parameters."""
    size, parameters = protocol.hidden_size, protocol.num_parameters(config.core)
    if size is None and parameters is not None:
        key = repr(config), parameters
        if key not in _HIDDEN_SIZES:
            _HIDDEN_SIZES[key] = _largest_hidden_size(config, parameters)
        size = _HIDDEN_SIZES[key]
    return config if size is None else replace(config, hidden_size=size)


def _largest_hidden_size(config: TaskConfig, parameters: int) -> int:
    """The largest hidden size within a budget of parameters: a multiple of 8, or of 2 if small."""
    task = config.make_task()

    def count(hidden_size: int) -> int:
        with torch.device("meta"):
            model = build_model(replace(config, hidden_size=hidden_size), task)
        return sum(parameter.numel() for parameter in model.parameters())

    step = 8 if parameters >= 1_000_000 else 2
    return largest_size(config.core, count, parameters, step=step)
