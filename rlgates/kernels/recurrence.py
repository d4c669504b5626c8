"""What a layer tells the fast paths about itself."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Recurrence(NamedTuple):
    """A gated layer as data: the kind of cell, its gate, and its weights.

    Attributes:
        cell: "lstm", "gru_after" and "gru_before" (where the reset gate acts), or "janet".
        activation, auxiliary: the gate by its two axes, see `rlgates.gates`.
        chunk_size: units that share one master value.
        weight_ih, weight_hh, bias_ih, bias_hh: the parameters, as `rlgates.cores.stacked.Stacked`
            has them.
        beta: by how much "janet" lowers the forget gate for its input gate.
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


class Loop(NamedTuple):
    """A layer with weights of its own as data.

    Attributes:
        cell: a key of `rlgates.kernels.shapes.CELLS`, which says what sizes and weights it has.
        sizes: its numbers and flags.
        weights: tensors without elements stand for those that an option leaves out.
        gate: activation, auxiliary and chunk size of the gate, if there is one.
        rate: one more number.
        noisy: whether units are dropped at random: with probability `rate`.
    """

    cell: str
    sizes: tuple[int, ...]
    weights: tuple[Tensor, ...]
    gate: tuple[str, str, int] | None = None
    rate: float = 0.0
    noisy: bool = False
