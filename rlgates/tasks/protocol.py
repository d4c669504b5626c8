"""How a paper trained on a task, as plain data that a sweep can read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """The settings of a paper for one task; None where the paper does not say.

    Attributes:
        task: a name of `rlgates.tasks.TASKS`.
        settings: of the task, where they are not the defaults.
        cores: names for `make_core`, of the cores that the paper compares.
        core_options: for some of these cores, the options that are not the defaults.
        hidden_size: units of a layer; None where `parameters` is what is fixed.
        parameters: about how many there are in all.
        core_parameters: for some of the cores, the number in its place.
        num_layers: of the core.
        embedding_size: of tokens; None for inputs that are no tokens.
        tied: whether the vectors of tokens are the weights of the decoder, too.
        decoder_size: width of the ReLU layer between the core and the predictions, if there is
            one.
        optimizer: "adam", "radam" or "rmsprop".
        learning_rates: all that were tried; empty if the paper does not say.
        core_learning_rates: for some of the cores, the rates in their place.
        schedule: what becomes of the rate, in words; constant if empty.
        batch_size: sequences of a batch.
        clip: gradients are clipped to this norm; None for no clipping, or an unknown norm.
        weight_decay: of the optimizer.
        dropout: all rates that were tried.
        dropout_of: the "input" of the core, what the decoder's affine map reads ("output"), or
            the "core" itself: its option `dropout`, or else `recurrent_dropout`.
        core_dropout: for some of the cores, the rates in their place.
        updates, epochs: budget.
        patience: epochs without gain after which a run ends.
        unstated: settings of a run of which the paper says nothing, by the names of
            `SupervisedConfig`, and what is taken.
        seeds: runs of each setting.
        outcome: what the paper found, in words; figures are in `Task.published`.
        source: paper and section.
    """

    task: str
    cores: tuple[str, ...]
    source: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    core_options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    hidden_size: int | None = None
    parameters: int | None = None
    core_parameters: Mapping[str, int] = field(default_factory=dict)
    num_layers: int = 1
    embedding_size: int | None = None
    tied: bool = False
    decoder_size: int | None = None
    optimizer: Literal["adam", "radam", "rmsprop"] = "adam"
    learning_rates: tuple[float, ...]
    core_learning_rates: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    schedule: str = ""
    batch_size: int | None
    clip: float | None = None
    weight_decay: float = 0.0
    dropout: tuple[float, ...] = (0.0,)
    dropout_of: Literal["input", "output", "core"] = "output"
    core_dropout: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    updates: int | None = None
    epochs: int | None = None
    patience: int | None = None
    unstated: Mapping[str, Any] = field(default_factory=dict)
    seeds: int | None = None
    outcome: str = ""

    def like(self, core: str) -> str:
        """The core of the paper whose settings a core has: the same, or else the LSTM."""
        own = core in self.cores
        return core if own else "lstm" if "lstm" in self.cores else self.cores[0]

    def options(self, core: str) -> dict[str, Any]:
        """The options of a core, or those of the one that it is `like`."""
        return dict(self.core_options.get(self.like(core), {}))

    def rates(self, core: str) -> tuple[float, ...]:
        """The learning rates of a core."""
        return self.core_learning_rates.get(self.like(core), self.learning_rates)

    def dropouts(self, core: str) -> tuple[float, ...]:
        """The dropout rates of a core."""
        return self.core_dropout.get(self.like(core), self.dropout)

    def size(self, core: str) -> int | None:
        """About how many parameters a core has with all around it, where that is what is fixed."""
        return self.core_parameters.get(self.like(core), self.parameters)
