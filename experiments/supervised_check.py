"""What a supervised config means: whether it makes sense, the folders of its runs."""

from __future__ import annotations

import re
from pathlib import Path

from rlgates.cores import check_options
from rlgates.errors import check_choice, check_flag, check_number, check_probability, check_size
from rlgates.experiments.devices import find_device
from rlgates.experiments.supervised_configs import SupervisedConfig
from rlgates.experiments.supervised_rates import OPTIMIZERS
from rlgates.tasks import Generated, Reader, Task, make_reader, make_task

WITH_MOMENTUM = ("sgd", "rmsprop")


def check(config: SupervisedConfig) -> Task:
    """The task of a config, if the config makes sense.

    Raises:
        ValueError: an unknown name (the nearest is named), a number out of its range, settings
            that do not go together.
        TypeError: a value of the wrong type.
        OSError, ImportError: the task has no data here, or needs a package to read them.
    """
    task = make_task(config.task, **config.task_settings)
    check_options(config.core, config.core_options)
    build(config, task)
    for name in ("batch_size", "eval_sequences", "threads"):
        check_size(name, getattr(config, name))
    for name in ("updates", "epochs", "patience", "halve_block", "eval_every", "eval_batches"):
        if getattr(config, name) is not None:
            check_size(name, getattr(config, name))
    check_size("gate_rows", config.gate_rows, minimum=0)
    for epoch in config.decay_at:
        check_size("decay_at", epoch)
    for name in ("learning_rate", "decay_factor", "save_minutes"):
        check_number(name, getattr(config, name), above=0)
    for name in ("max_grad_norm", "stop_loss"):
        if getattr(config, name) is not None:
            check_number(name, getattr(config, name), above=0)
    if check_number("weight_decay", config.weight_decay) < 0:
        raise ValueError(f"weight_decay must be at least 0, got {config.weight_decay}.")
    check_probability("momentum", config.momentum)
    check_flag("tied", config.tied)
    check_choice("optimizer", config.optimizer, OPTIMIZERS)
    check_choice("amp", config.amp, ("none", "bf16", "fp16"))
    _check_together(config, task)
    return task


def _check_together(config: SupervisedConfig, task: Task) -> None:
    device = find_device(config.device)
    if config.momentum and config.optimizer not in WITH_MOMENTUM:
        raise ValueError(f"momentum is for {' and '.join(WITH_MOMENTUM)}, not {config.optimizer}.")
    if config.updates is None and config.epochs is None:
        raise ValueError("a budget is needed: updates or epochs.")
    if isinstance(task, Generated):
        for name in ("epochs", "decay_at", "eval_batches"):
            if getattr(config, name):
                raise ValueError(
                    f"{name} must be left out: task {config.task!r} makes up its sequences as "
                    "they are needed, and has no epochs."
                )
        if config.eval_every is None:
            raise ValueError(f"eval_every is needed: task {config.task!r} has no epochs.")
    if config.amp == "fp16" and device.type != "cuda":
        raise ValueError("amp='fp16' needs a GPU; try amp='bf16'.")


def build(config: SupervisedConfig, task: Task) -> Reader:
    """The untrained network; its weights are drawn from torch's global generator."""
    return make_reader(
        task,
        config.core,
        config.hidden_size,
        config.num_layers,
        core_options=dict(config.core_options),
        embedding_size=config.embedding_size,
        decoder_size=config.decoder_size,
        tied=config.tied,
        input_dropout=config.input_dropout,
        output_dropout=config.output_dropout,
    )


def task_title(config: SupervisedConfig) -> str:
    """The task and its settings, such as "copy, delay 100"."""
    settings = (f"{name} {value}" for name, value in config.task_settings.items())
    return ", ".join((config.task, *settings))


def run_folder(config: SupervisedConfig, seed: int) -> Path:
    """Where the run of that seed is."""
    words = (config.task, *map(str, config.task_settings.values()), config.core)
    name = re.sub(r"[^\w.,+=-]+", "_", "-".join(words))
    return Path(config.folder) / name / f"seed-{seed}"
