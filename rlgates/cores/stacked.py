"""Affine maps of the input and the state, stacked in the weights of a torch.nn layer."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rlgates.cell import Cell, widened
from rlgates.errors import check_number, check_size
from rlgates.gates import Gate
from rlgates.kernels import Recurrence


class Stacked(Cell):
    """A cell whose maps L_k(x, h) = W_x_k x + b_k + W_h_k h + b_h_k are stacked.

    The parameters are those of torch.nn.LSTM and GRU: `weight_ih`, `weight_hh`, `bias_ih` and
    `bias_hh`, the maps below each other. Weights start in U[-1/sqrt(d), 1/sqrt(d)] as in
    torch; the biases of the gate start as the gate says, in `bias_ih`; all others at zero.

    Attributes:
        gate: which gate.
        maps: name and rows of each map, in stacking order.
    """

    first_layer_options = ("input_scale",)

    def __init__(
        self, input_size: int, hidden_size: int, gate: Gate, maps: dict[str, int], scale: float
    ) -> None:
        super().__init__()
        self.input_size = check_size("input_size", input_size)
        self.hidden_size = self.output_size = check_size("hidden_size", hidden_size)
        if gate.size != hidden_size:
            raise ValueError(f"the gate must have {hidden_size} units, got {gate}.")
        self.input_scale = check_number("input_scale", scale, above=0)
        self.gate = gate
        self.maps = maps
        self._widths = list(maps.values())
        rows = sum(self._widths)
        self.weight_ih = nn.Parameter(torch.empty(rows, input_size))
        self.weight_hh = nn.Parameter(torch.empty(rows, hidden_size))
        self.bias_ih = nn.Parameter(torch.empty(rows))
        self.bias_hh = nn.Parameter(torch.empty(rows))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        bound = self.hidden_size**-0.5
        self.weight_ih.uniform_(-bound, bound, generator=generator).mul_(self.input_scale)
        self.weight_hh.uniform_(-bound, bound, generator=generator)
        self.bias_ih.zero_()
        self.bias_hh.zero_()
        weights = self.gate_weights()
        for name, start in self.gate.start_biases(generator).items():
            weights[f"b_{name}"].copy_(start)

    def gate_weights(self) -> dict[str, Tensor]:
        """Views `W_x_k`, `W_h_k`, `b_k`, `b_h_k` for each map k.

        An implementation with a single bias a map goes into `b_k`, with `b_h_k` zero.
        """
        stacked = {
            "W_x": self.weight_ih,
            "W_h": self.weight_hh,
            "b": self.bias_ih,
            "b_h": self.bias_hh,
        }
        return {
            f"{kind}_{name}": part
            for kind, parameter in stacked.items()
            for name, part in zip(self.maps, parameter.detach().split(self._widths), strict=True)
        }

    def project(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight_ih, self.bias_ih + self.bias_hh)

    def layer(self, cell: str) -> Recurrence:
        """The layer as data, with the name of its cell for the fast paths."""
        return Recurrence(
            cell,
            self.gate.row.activation,
            self.gate.auxiliary,
            self.gate.chunk_size,
            self.weight_ih,
            self.weight_hh,
            self.bias_ih,
            self.bias_hh,
        )

    def pre_activations(self, projected: Tensor, h: Tensor) -> tuple[Tensor, ...]:
        """L_k for each map, from the projected input (B, P) and h (B, d)."""
        z = widened(torch.addmm(projected, h, self.weight_hh.t()))
        return torch.split(z, self._widths, dim=-1)
