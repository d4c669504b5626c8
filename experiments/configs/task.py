"""The config of a network on a supervised task."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from inspect import signature
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import tyro

from rlgates.deprecation import renamed
from rlgates.errors import (
    MAX_LENGTH,
    check_choice,
    check_flag,
    check_nonnegative,
    check_number,
    check_probability,
    check_seeds,
    check_size,
)
from rlgates.experiments.configs.base import Pairs, RunConfig, bookkeeping
from rlgates.experiments.configs.devices import check_threads, find_device
from rlgates.experiments.configs.modules import naming_module
from rlgates.experiments.tasks import (
    TASKS,
    AuxiliaryKind,
    AuxiliaryLoss,
    GeneratedTask,
    SequenceModel,
    Task,
    make_sequence_model,
    make_task,
)
from rlgates.registry import check_options, make_core

OptimizerName = Literal["adam", "adamw", "radam", "rmsprop", "sgd"]
WITH_MOMENTUM = ("sgd", "rmsprop")


@dataclass(frozen=True, kw_only=True)
class TaskConfig(RunConfig):
    """How to train one core on one supervised task."""

    kind: ClassVar[str] = "task"
    settings_field: ClassVar[str] = "task_settings"
    stop_field: ClassVar[str] = "stop_loss"

    task: tyro.conf.Suppress[str] = "copy"
    """The task; its settings are below."""
    task_settings: Pairs = field(default_factory=lambda: {"delay": 100})
    """Settings of the task, overriding those of the tier; NAME= removes one."""

    num_layers: int = 1
    """Layers of the core."""
    embedding_size: int | None = None
    """Width of the learned embeddings of tokens; None: tokens are one-hot."""
    decoder_size: int | None = None
    """Width of the ReLU layer before the affine decoder; None: there is none."""
    tied: bool = False
    """Whether the decoder shares its weights with the embeddings."""
    input_dropout: float = 0.0
    """Dropout of the input of the core."""
    output_dropout: float = 0.0
    """Dropout of the input of the affine decoder."""

    updates: int | None = 2_000
    """Budget in updates of one batch each, the same batches for every core; None: `epochs` alone
    counts."""
    epochs: int | None = None
    """Budget in passes over the training sequences; the smaller of the two budgets counts."""
    patience: int | None = None
    """Training ends after this many evaluations without improvement; None: no limit."""
    min_delta: float = 0.0
    """A change of the task's metric by less is no improvement: see `patience`. The weights that are
    kept, and tested, are those of the last improvement."""
    stop_loss: float | None = None
    """Training also ends when the loss on held-out sequences is below this; None: it does not."""
    batch_size: int = 32
    """Sequences in a batch."""
    optimizer: OptimizerName = "adam"
    """Optimizer of torch.optim."""
    learning_rate: float = 4e-3
    """Learning rate at the start; constant unless one of the next options changes it."""
    decay_at: tuple[int, ...] = ()
    """Epochs after which the rate is multiplied by `decay_factor`."""
    decay_factor: float = 0.2
    """See `decay_at`."""
    halve_block: int | None = None
    """The rate is halved when the training loss over a block of this many sequences is above that
    of the previous block; None: never."""
    weight_decay: float = 0.0
    """Weight decay of the optimizer."""
    momentum: float = 0.0
    """Momentum of sgd and rmsprop."""
    max_grad_norm: float | None = 1.0
    """Gradients are clipped to this norm; None: no clipping."""

    eval_every: int | Literal["epoch"] | None = 100
    """Updates between evaluations during training; "epoch": one after each epoch; None: only
    before the first update and at the end."""
    eval_sequences: int = 256
    """Sequences in an evaluation, for tasks that generate them (at most their `held_out`); they are
    not trained on."""
    eval_batches: int | None = None
    """Maximum number of batches in an evaluation and the test, for the other tasks; None: all."""
    auxiliary: Literal["none", "reconstruct", "predict"] = "none"
    """Auxiliary loss: a second network predicts, from the state at a random step, the inputs before
    it ("reconstruct") or after it ("predict") (Trinh et al. 2018: r-LSTM and p-LSTM)."""
    auxiliary_steps: int = 100
    """Number of inputs that the second network predicts."""
    auxiliary_updates: int = 0
    """Updates at the start on the auxiliary loss alone; they count towards the budget, but not for
    patience."""
    gate_rows: int = bookkeeping(8)
    """Sequences on which forget gates are recorded at evaluations; 0: none are recorded."""

    amp: Literal["none", "bf16", "fp16"] = "none"
    """Mixed precision; fp16 needs a GPU."""
    cuda_graphs: bool = bookkeeping(True)
    """On a GPU, whether updates are recorded as a CUDA graph, without the launches from Python.
    Those with masked targets, an auxiliary loss or fp16 never are."""
    folder: str = bookkeeping("runs/supervised")
    """Parent of the run folders."""

    def __post_init__(self) -> None:
        """Write paths as strings, as files have them."""
        paths = {
            name: os.fspath(value)
            for name, value in self.task_settings.items()
            if isinstance(value, os.PathLike)
        }
        if paths:
            object.__setattr__(self, "task_settings", {**self.task_settings, **paths})

    @property
    def title(self) -> str:
        """The task and its settings, such as "copy, delay 100"."""
        settings = (f"{name} {value}" for name, value in self.task_settings.items())
        return ", ".join((self.task, *settings))

    def make_task(self) -> Task:
        """The task; its data are read."""
        return make_task(self.task, **self.task_settings)

    def full_settings(self) -> dict[str, Any]:
        defaults = signature(TASKS[self.task]).parameters
        settings = {name: defaults[name].default for name in TASKS[self.task].settings}
        settings |= self.task_settings
        settings.pop("data_dir", None)  # where the data lie
        return settings

    def run_folder(self, seed: int) -> Path:
        words = (self.task, *map(str, self.task_settings.values()), self.core)
        name = re.sub(r"[^\w.,+=-]+", "_", "-".join(words))
        return Path(self.folder) / name / f"seed-{seed}"

    def check(self) -> Task:
        """As `RunConfig.check`.

        Returns:
            the task.
        """
        task = self.make_task()
        check_options(self.core, self.core_options)
        with naming_module(self.core):
            build_model(self, task)
        for name in ("eval_sequences", "jobs"):
            check_size(name, getattr(self, name))
        check_size("batch_size", self.batch_size, maximum=MAX_LENGTH)
        for name in ("updates", "epochs", "patience", "halve_block", "eval_batches"):
            if getattr(self, name) is not None:
                check_size(name, getattr(self, name))
        eval_every: Any = self.eval_every
        if eval_every not in (None, "epoch"):
            check_size("eval_every", eval_every)
        for name in ("gate_rows", "auxiliary_updates"):
            check_size(name, getattr(self, name), minimum=0)
        check_choice("auxiliary", self.auxiliary, ("none", *get_args(AuxiliaryKind)))
        check_size("auxiliary_steps", self.auxiliary_steps, minimum=2)
        for epoch in self.decay_at:
            check_size("decay_at", epoch)
        for name in ("learning_rate", "decay_factor"):
            check_number(name, getattr(self, name), above=0)
        for name in ("max_grad_norm", "stop_loss", "max_minutes"):
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name), above=0)
        for name in ("min_delta", "weight_decay", "checkpoint_minutes"):
            check_nonnegative(name, getattr(self, name))
        check_probability("momentum", self.momentum)
        for name in ("tied", "cuda_graphs"):
            object.__setattr__(self, name, check_flag(name, getattr(self, name)))
        check_choice("optimizer", self.optimizer, get_args(OptimizerName))
        check_choice("amp", self.amp, ("none", "bf16", "fp16"))
        check_seeds(self.seeds)
        check_threads(self.threads)
        self._check_together(task)
        return task

    def _check_together(self, task: Task) -> None:
        device = find_device(self.device)
        if self.momentum and self.optimizer not in WITH_MOMENTUM:
            raise ValueError(
                f"momentum is for {' and '.join(WITH_MOMENTUM)}, not {self.optimizer}."
            )
        if self.decay_factor != TaskConfig.decay_factor and not self.decay_at:
            raise ValueError("decay_factor is for decay_at, which is not set.")
        if self.min_delta and self.patience is None:
            raise ValueError("min_delta is for patience, which is not set.")
        if self.updates is None and self.epochs is None:
            raise ValueError("a budget is needed: updates or epochs.")
        if self.eval_every is None:
            if self.patience is not None:
                raise ValueError("patience counts evaluations during training: set eval_every.")
            if self.stop_loss is not None:
                raise ValueError("stop_loss is compared at evaluations: set eval_every.")
        if self.auxiliary != "none" and (task.carries_state or task.starts_inside):
            where = "go on from batch to batch" if task.carries_state else "may start within one"
            raise ValueError(
                f"auxiliary={self.auxiliary!r} is for sequences that start with each batch; "
                f"those of task {self.task!r} {where}."
            )
        if self.auxiliary == "none" and self.auxiliary_updates:
            raise ValueError("auxiliary_updates is for auxiliary='reconstruct' or 'predict'.")
        if isinstance(task, GeneratedTask):
            for name in ("epochs", "decay_at", "eval_batches"):
                if getattr(self, name):
                    raise ValueError(
                        f"{name} must be left out: task {self.task!r} generates its sequences, "
                        "and has no epochs."
                    )
            if self.eval_every == "epoch":
                raise ValueError(
                    f"eval_every must be a number of updates: task {self.task!r} has no epochs."
                )
        if self.amp == "fp16" and device.type != "cuda":
            raise ValueError("amp='fp16' needs a GPU; try amp='bf16'.")


def build_model(config: TaskConfig, task: Task) -> SequenceModel:
    """The untrained network; its weights are drawn from torch's global generator."""
    return make_sequence_model(
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


def build_auxiliary(config: TaskConfig, network: SequenceModel) -> AuxiliaryLoss | None:
    """The loss that is added to that of the task; its weights are drawn as those of the network."""
    if config.auxiliary == "none":
        return None
    core, options = network.core, dict(config.core_options)
    lower = make_core(
        config.core, core.input_size, config.hidden_size, config.num_layers, **options
    )
    upper = make_core(config.core, core.output_size, config.hidden_size, **options)
    width = network.num_tokens or core.input_size
    return AuxiliaryLoss(lower, upper, width, config.auxiliary, config.auxiliary_steps)


__getattr__ = renamed(__name__, {"SupervisedConfig": "rlgates.experiments.configs.task.TaskConfig"})
