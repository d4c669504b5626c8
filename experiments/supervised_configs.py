"""What is trained on the supervised tasks, as plain data."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

import tyro

from rlgates.experiments.configs import Pairs


@dataclass(frozen=True, kw_only=True)
class SupervisedConfig:
    """How to train one core on one supervised task."""

    task: tyro.conf.Suppress[str] = "copy"
    """The task; its settings are below."""
    task_settings: Pairs = field(default_factory=lambda: {"delay": 100})
    """Settings of the task, laid over those of the tier; NAME= leaves one out."""

    core: str = "ur_lstm"
    """Memory core; `rlgates cores` lists them."""
    core_options: Pairs = field(default_factory=dict)
    """Options of the core, such as zoneout_hidden=0.1; NAME= leaves one out."""
    hidden_size: int = 64
    """Units of a layer of the core."""
    num_layers: int = 1
    """Layers of the core."""
    embedding_size: int | None = None
    """Width of the learned vectors of tokens; None: tokens are one-hot."""
    decoder_size: int | None = None
    """Width of the ReLU layer before the affine decoder; None: there is none."""
    tied: bool = False
    """The learned vectors are the weights of the decoder, too."""
    input_dropout: float = 0.0
    """Dropout of what enters the core."""
    output_dropout: float = 0.0
    """Dropout of what the affine decoder reads."""

    updates: int | None = 2_000
    """Budget in updates; each is one batch, the same ones for every core. None: `epochs` alone."""
    epochs: int | None = None
    """Budget in passes over the training sequences; the smaller of the two counts."""
    patience: int | None = None
    """Evaluations without a better one after which a run ends early; None: it does not."""
    stop_loss: float | None = None
    """A run ends early when the loss on held-out sequences is below; None: it does not."""
    batch_size: int = 32
    """Sequences of a batch."""
    optimizer: Literal["adam", "adamw", "radam", "rmsprop", "sgd"] = "adam"
    """What makes updates of gradients."""
    learning_rate: float = 4e-3
    """At the start; constant unless one of the next says otherwise."""
    decay_at: tuple[int, ...] = ()
    """The rate is multiplied by `decay_factor` after each of these epochs."""
    decay_factor: float = 0.2
    """See `decay_at`."""
    halve_block: int | None = None
    """The rate is halved when the training loss over a block of so many sequences is above that
    of the block before; None: never."""
    weight_decay: float = 0.0
    """As the optimizer has it."""
    momentum: float = 0.0
    """Of sgd and rmsprop."""
    max_grad_norm: float | None = 1.0
    """Gradients are clipped to this norm; None: they are not."""

    eval_every: int | None = 100
    """Updates between evaluations; None: one after each epoch."""
    eval_sequences: int = 256
    """Sequences of an evaluation, of tasks that make them up (at most their `held_out`); none of
    them is trained on."""
    eval_batches: int | None = None
    """Most batches of an evaluation and of the test, of the other tasks; None: all of them."""
    gate_rows: int = 8
    """Sequences over which forget gates are watched at evaluations; 0: they are not."""
    save_minutes: float = 10.0
    """Minutes between checkpoints, beside those at evaluations."""

    amp: Literal["none", "bf16", "fp16"] = "none"
    """Mixed precision; fp16 is for GPUs."""
    device: Literal["cpu", "cuda", "auto"] = "cpu"
    """What to compute on."""
    folder: str = "runs/supervised"
    """Where the folders of the runs are made."""
    threads: int = 1
    """CPU threads of a run."""


NOT_LEARNED_FROM = ("folder", "threads", "gate_rows", "save_minutes")
# The settings there have always been. The digest of results and the configs in the folders of
# runs leave out any other while it is as it was before it could be set.
FIRST = (
    *("task", "task_settings", "core", "core_options", "hidden_size", "updates", "batch_size"),
    *("learning_rate", "max_grad_norm", "eval_every", "eval_sequences", *NOT_LEARNED_FROM[:2]),
)


def learned_from(config: SupervisedConfig) -> dict[str, Any]:
    """The settings that decide what is learned, as JSON has them."""
    usual = {field.name: field.default for field in fields(config)}
    chosen = {
        name: value
        for name, value in asdict(config).items()
        if name not in NOT_LEARNED_FROM and (name in FIRST or value != usual[name])
    }
    plain: dict[str, Any] = json.loads(json.dumps(chosen))
    return plain
