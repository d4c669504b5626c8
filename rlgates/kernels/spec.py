"""What a layer tells the kernels about itself: plain data, and the protocols they rely on."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from torch import Tensor

State = tuple[Tensor, ...]


class GatedLayer(NamedTuple):
    """A gated layer: the kind of cell, its gate, and its weights.

    Attributes:
        cell: "lstm", "gru_after" or "gru_before" (where the reset gate acts), or "janet".
        activation, auxiliary: the gate on its two axes, see `rlgates.gates`.
        chunk_size: how many units share one master value.
        weight_ih, weight_hh, bias_ih, bias_hh: the parameters, stacked as in
            `rlgates.cores.stacked.Stacked`.
        beta: how far "janet" lowers the forget pre-activation for its input gate.
    """

    cell: str
    activation: str
    auxiliary: str
    chunk_size: int
    weight_ih: Tensor
    weight_hh: Tensor
    bias_ih: Tensor
    bias_hh: Tensor
    beta: float = 0.0

    @property
    def weights(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The parameters."""
        return self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh


class FusedCell(NamedTuple):
    """A cell whose step is fused into one kernel, with a weight layout of its own.

    Attributes:
        cell: a key of `rlgates.kernels.cpu.fused.CELLS`, which defines sizes and weights.
        sizes: its sizes and flags.
        weights: a weight that an option leaves out is a tensor without elements.
        gate: activation, auxiliary and chunk size of the gate, if the cell has one.
        dropout: probability with which units are dropped; 0 also in evaluation mode.
        decay: constant decay rate of the state, where the cell has one.
    """

    cell: str
    sizes: tuple[int, ...]
    weights: tuple[Tensor, ...]
    gate: tuple[str, str, int] | None = None
    dropout: float = 0.0
    decay: float = 0.0


class LinearStep(NamedTuple):
    """The coefficients of h' = a * h + b for all steps, computed from the input alone.

    Numbers are real, with S = d, or complex, with S = 2 d: real parts, then imaginary parts.

    Attributes:
        a: (T, B, S); (S,) if it is the same at every step and in every batch entry.
        b: (T, B, S).
        extra: what the output reads besides h, (T, B, R); None if it reads h alone.
    """

    a: Tensor
    b: Tensor
    extra: Tensor | None = None


class LinearScan(NamedTuple):
    """A cell that is linear in its state, see `rlgates.cell.LinearCell`.

    Attributes:
        linear: gives the coefficients of all steps from x (T, B, I).
        read: gives the outputs from the states and `LinearStep.extra`.
    """

    linear: Callable[[Tensor], LinearStep]
    read: Callable[[Tensor, Tensor | None], Tensor]


class LoopOnly(NamedTuple):
    """A layer with options that no kernel has.

    Attributes:
        reason: which, in words.
    """

    reason: str


LayerSpec = GatedLayer | FusedCell | LinearScan | LoopOnly


class Layer(Protocol):
    """What `rlgates.kernels.run` needs of a cell."""

    def recurrence(self) -> LayerSpec | None:
        """The specification of the layer; None if no kernel knows such layers."""
