"""Affine maps of the input and the state, stacked in the weights of a torch.nn layer."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rlgates.cell import Cell, State, factory_kwargs, named_rows, widened
from rlgates.errors import check_number, check_probability, check_size
from rlgates.gates import Gate
from rlgates.kernels import CellSpec


class Stacked(Cell):
    """A cell whose maps L_k(x, h) = W_x_k x + b_k + W_h_k h + b_h_k are stacked.

    The parameters are those of torch.nn.LSTM and GRU: `weight_ih`, `weight_hh`, `bias_ih` and
    `bias_hh`, with the maps stacked along the rows. Weights are initialized from
    U[-1/sqrt(d), 1/sqrt(d)] as in torch, the biases of the gate by `Gate.initial_biases`, in
    `bias_ih`, and all other biases to zero.

    Attributes:
        gate: the gate.
        maps: name and number of rows of each map, in stacking order.
        zoneout_cell, zoneout_hidden, recurrent_dropout: probabilities of the training noise; 0
            where a cell has no such option.
    """

    first_layer_options = ("input_scale",)
    zoneout_cell = zoneout_hidden = recurrent_dropout = 0.0

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        gate: Gate,
        maps: dict[str, int],
        scale: float,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **noise: float,
    ) -> None:
        super().__init__()
        self.input_size = check_size("input_size", input_size)
        self.hidden_size = self.output_size = check_size("hidden_size", hidden_size)
        self.input_scale = check_number("input_scale", scale, above=0)
        for name, probability in noise.items():
            setattr(self, name, check_probability(name, probability))
        self.state_shapes = {"h": (hidden_size,)}
        self.gate = gate
        self.maps = maps
        self._widths = list(maps.values())
        rows = sum(self._widths)
        factory = factory_kwargs(device, dtype)
        self.weight_ih = nn.Parameter(torch.empty(rows, input_size, **factory))
        self.weight_hh = nn.Parameter(torch.empty(rows, hidden_size, **factory))
        self.bias_ih = nn.Parameter(torch.empty(rows, **factory))
        self.bias_hh = nn.Parameter(torch.empty(rows, **factory))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        bound = self.hidden_size**-0.5
        self.weight_ih.uniform_(-bound, bound, generator=generator).mul_(self.input_scale)
        self.weight_hh.uniform_(-bound, bound, generator=generator)
        self.bias_ih.zero_()
        self.bias_hh.zero_()
        weights = self.gate_weights()
        biases = self.gate.initial_biases(generator, self.bias_ih.device, self.bias_ih.dtype)
        for name, bias in biases.items():
            weights[f"b_{name}"].copy_(bias)

    def gate_weights(self) -> dict[str, Tensor]:
        """Views `W_x_k`, `W_h_k`, `b_k`, `b_h_k` for each map k.

        If another implementation has one bias per map, copy it into `b_k` and set `b_h_k` to zero.
        """
        W_x, W_h, b, b_h = self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh
        return named_rows(self.maps, W_x=W_x, W_h=W_h, b=b, b_h=b_h)

    def project(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight_ih, self.bias_ih + self.bias_hh)

    def spec(
        self,
        cell: str,
        constant: float = 0.0,
        sizes: tuple[int, ...] | None = None,
        weights: tuple[Tensor, ...] | None = None,
    ) -> CellSpec:
        """The layer as data for the kernels, with the name of its cell."""
        zoneout = self.zoneout_hidden, self.zoneout_cell
        return CellSpec(
            cell,
            sizes or (self.hidden_size,),
            weights or (self.weight_ih, self.bias_ih, self.weight_hh, self.bias_hh),
            self.gate.key,
            self.recurrent_dropout if self.training else 0.0,
            zoneout if any(zoneout) else (),
            self.training,
            constant,
        )

    def pre_activations(self, projected: Tensor, h: Tensor) -> tuple[Tensor, ...]:
        """L_k for each map, from the projected input (B, P) and h (B, d)."""
        z = widened(torch.addmm(projected, h, self.weight_hh.t()))
        return torch.split(z, self._widths, dim=-1)

    def forget_gate(self, projected: Tensor, state: State) -> Tensor:
        pre = self.pre_activations(projected, state[0])
        return self.gate(*pre[: len(self.gate.maps)])[0]


def zoneout(new: Tensor, old: Tensor, probability: float, training: bool) -> Tensor:
    """Each unit keeps its old value with this probability (Krueger et al. 2016).

    In evaluation it becomes the expectation, (1 - probability) new + probability old.
    """
    if not probability:
        return new
    if training:
        return torch.where(torch.rand_like(new) < probability, old, new)
    return torch.lerp(new, old, probability)


def lstm_update(
    cell: Stacked,
    state: tuple[Tensor, ...],
    gates: tuple[Tensor, Tensor],
    u: Tensor,
    o: Tensor,
) -> tuple[Tensor, Tensor]:
    """The new h and c of an LSTM from the old ones, its gates, L_u and L_o, with its noise.

    Recurrent dropout drops units of the candidate only (Semeniuta et al. 2016); the new h is
    computed from the cell state before zoneout.
    """
    h, c = state
    f, i = gates
    candidate = nn.functional.dropout(torch.tanh(u), cell.recurrent_dropout, cell.training)
    new_c = f * c + i * candidate
    new_h = torch.sigmoid(o) * torch.tanh(new_c)
    return (
        zoneout(new_h, h, cell.zoneout_hidden, cell.training),
        zoneout(new_c, c, cell.zoneout_cell, cell.training),
    )
