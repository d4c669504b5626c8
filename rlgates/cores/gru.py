"""The GRU with every gate of the table."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from rlgates.cell import State, widened
from rlgates.cores.stacked import Stacked, zoneout
from rlgates.errors import check_choice
from rlgates.gates import GateLike, as_gate
from rlgates.kernels import CellSpec


class GRU(Stacked):
    """Gated recurrent unit (Cho et al. 2014).

    With L_k(x, h) = W_x_k x + b_k + W_h_k h + b_h_k:

        f, i  = gate(L_...)             the effective gates, see `rlgates.gates.GATES`
        reset = sigmoid(L_reset)
        u     = tanh(W_x_u x + b_u + reset * (W_h_u h + b_h_u))     the candidate
        h'    = f * h + i * u           the output

    Gates without an auxiliary gate are tied, i = 1 - f, unless `tied=False` (torch calls f z, and u
    n). `reset="before"` applies the reset before the recurrent weights, as Cho et al.:

        u     = tanh(W_x_u x + b_u + W_h_u (reset * h) + b_h_u)

    Stacking order of `weight_ih`, `weight_hh`, `bias_ih`, `bias_hh`: reset, then the maps of
    the gate, then u. That is, in units of hidden_size rows:

        tied gates     reset, f, u       (the order of torch.nn.GRU)
        untied gates   reset, i, f, u
        refine gates   reset, r, f, u
        master gates   reset, i, f, mi, mf, u   (mi and mf of hidden_size / chunk_size rows)

    Every map has an input bias (`bias_ih`) and a recurrent bias (`bias_hh`). Weights are
    sampled from U[-1/sqrt(d), 1/sqrt(d)] as in torch; the gate initializes its biases, in
    `bias_ih`; all others are zero.

    With tied sigmoid gates and the reset after the weights (`gru`, `c_gru`, `u_gru`) it is
    equivalent to torch.nn.GRU, and loads its state dict.

    The state is (h). Gates and state stay in float32 under autocast.

    Args:
        input_size: width of the input.
        hidden_size: number of units d.
        gate: a key of `rlgates.GATES`, a row (both tied, if there is no auxiliary gate), or a
            `Gate` of hidden_size units.
        input_scale: factor on the initial input weights of the lowest layer; above 1, a short
            stimulus leaves a stronger trace in the first state.
        reset: apply the reset gate "after" the recurrent weights, as in torch, or "before".
        zoneout_hidden: probability that a unit of h keeps its old value during training;
            evaluation uses the expectation (Krueger et al. 2016, who use 0.1).
        recurrent_dropout: dropout probability of the candidate u (Semeniuta et al. 2016).
        device, dtype: of the parameters, as in torch.nn; float32 or float64.

    Raises:
        ValueError, TypeError: a size below 1 or not an integer, a scale that is not positive,
            an unknown `reset`, a probability outside [0, 1), a gate of the wrong size.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        gate: GateLike = "",
        input_scale: float = 1.0,
        reset: Literal["after", "before"] = "after",
        zoneout_hidden: float = 0.0,
        recurrent_dropout: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        gate = as_gate(gate, hidden_size, tied=True)
        maps = {"reset": hidden_size, **gate.maps, "u": hidden_size}
        super().__init__(
            input_size,
            hidden_size,
            gate,
            maps,
            input_scale,
            device,
            dtype,
            zoneout_hidden=zoneout_hidden,
            recurrent_dropout=recurrent_dropout,
        )
        self.reset = check_choice("reset", reset, ("after", "before"))
        self.torch_layout = (
            reset == "after" and gate.row.activation == "sigmoid" and gate.auxiliary == "tied"
        )

    def project(self, x: Tensor) -> Tensor:
        if self.reset == "before":
            return super().project(x)
        # The reset gate also scales the recurrent bias of u, so the step adds bias_hh.
        return nn.functional.linear(x, self.weight_ih, self.bias_ih)

    def pre_activations(self, projected: Tensor, h: Tensor) -> tuple[Tensor, ...]:
        """L_k for each map of the gate, and the pre-activation of u."""
        *gates, units = self._widths
        rows = [sum(gates), units]
        if self.reset == "after":
            z, u = widened(projected).split(rows, dim=-1)
            recurrent = widened(nn.functional.linear(h, self.weight_hh, self.bias_hh))
            z_h, u_h = recurrent.split(rows, dim=-1)
            reset, *pre = (z + z_h).split(gates, dim=-1)
            return *pre, torch.addcmul(u, torch.sigmoid(reset), u_h)
        z, u = projected.split(rows, dim=-1)
        weight_z, weight_u = self.weight_hh.split(rows)
        reset, *pre = widened(torch.addmm(z, h, weight_z.t())).split(gates, dim=-1)
        return *pre, widened(torch.addmm(u, torch.sigmoid(reset) * h, weight_u.t()))

    def step(self, projected: Tensor, state: State) -> tuple[Tensor, State]:
        (h,) = state
        *pre, u = self.pre_activations(projected, h)
        f, i = self.gate(*pre)
        u = nn.functional.dropout(torch.tanh(u), self.recurrent_dropout, self.training)
        h = zoneout(f * h + i * u, h, self.zoneout_hidden, self.training)
        return h, (h,)

    def recurrence(self) -> CellSpec:
        return self.spec(f"gru_{self.reset}")
