"""The contract of a protocol: how a paper trained on a task, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """The settings of a paper for one task; None where the paper does not say.

    Attributes:
        task: a name of `rlgates.experiments.tasks.TASKS`.
        cores: names for `make_core`, of the cores that the paper compares.
        source: paper and section.
        task_settings: settings of the task that are not the defaults.
        core_options: options of some of the cores that are not the defaults.
        hidden_size: units of a layer; None if `parameters` is fixed instead.
        parameters: approximate number of parameters of the network.
        count_core_parameters: the same for some of the cores, instead of `parameters`.
        num_layers: layers of the core.
        embedding_size: of tokens; None for inputs that are not tokens.
        tied: whether embedding and decoder share their weights.
        decoder_size: width of the ReLU layer before the decoder; None for no such layer.
        optimizer: "adam", "radam" or "rmsprop".
        learning_rates: all that were tried; empty if the paper does not say.
        core_learning_rates: the same for some of the cores, instead of `learning_rates`.
        decay_at: the learning rate is multiplied by `decay_factor` after each of these epochs.
        decay_factor: see `decay_at`.
        halve_block: the learning rate is halved when the training loss over this many sequences is
            above that of the block before; None: never.
        batch_size: sequences of a batch.
        max_grad_norm: gradients are clipped to this norm; None for no clipping or an unknown norm.
        weight_decay: of the optimizer.
        dropout: all rates that were tried.
        dropout_of: the "input" of the core, the decoder's input ("output"), or the "core" itself:
            its option `dropout`, or else `recurrent_dropout`.
        core_dropout: rates of some of the cores, instead of `dropout`.
        updates, epochs: budget.
        patience: a run ends after this many evaluations, one per epoch, without improvement.
        unstated: settings that the paper does not state, by the names of `TaskConfig`, with
            the values that are used instead.
        seeds: runs of each setting in the paper; a study has its own seeds.
        eval_sequences: held-out sequences of a task that generates them.
        finding: what the paper found, in words; numbers are in `Task.published`.
    """

    task: str
    cores: tuple[str, ...]
    source: str
    task_settings: Mapping[str, Any] = field(default_factory=dict)
    core_options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    hidden_size: int | None = None
    parameters: int | None = None
    count_core_parameters: Mapping[str, int] = field(default_factory=dict)
    num_layers: int = 1
    embedding_size: int | None = None
    tied: bool = False
    decoder_size: int | None = None
    optimizer: Literal["adam", "radam", "rmsprop"] = "adam"
    learning_rates: tuple[float, ...]
    core_learning_rates: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    decay_at: tuple[int, ...] = ()
    decay_factor: float = 0.2
    halve_block: int | None = None
    batch_size: int | None
    max_grad_norm: float | None = None
    weight_decay: float = 0.0
    dropout: tuple[float, ...] = (0.0,)
    dropout_of: Literal["input", "output", "core"] = "output"
    core_dropout: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    updates: int | None = None
    epochs: int | None = None
    patience: int | None = None
    unstated: Mapping[str, Any] = field(default_factory=dict)
    seeds: int | None = None
    eval_sequences: int = 256
    finding: str = ""

    def reference_core(self, core: str) -> str:
        """The core of the paper whose settings a core gets: the same, or else the LSTM."""
        if core in self.cores:
            return core
        return "lstm" if "lstm" in self.cores else self.cores[0]

    def options(self, core: str) -> dict[str, Any]:
        """The options of a core, or of its reference core."""
        return dict(self.core_options.get(self.reference_core(core), {}))

    def learning_rates_for(self, core: str) -> tuple[float, ...]:
        """The learning rates of a core."""
        return self.core_learning_rates.get(self.reference_core(core), self.learning_rates)

    def dropouts_for(self, core: str) -> tuple[float, ...]:
        """The dropout rates of a core."""
        return self.core_dropout.get(self.reference_core(core), self.dropout)

    def num_parameters(self, core: str) -> int | None:
        """The approximate number of parameters of a core's network; None if it is not fixed."""
        return self.count_core_parameters.get(self.reference_core(core), self.parameters)
