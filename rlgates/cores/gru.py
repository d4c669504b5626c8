"""The GRU with every gate of the table."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rlgates.cell import State, widened
from rlgates.cores.regularisers import zoneout
from rlgates.cores.stacked import Stacked
from rlgates.errors import check_choice, check_probability
from rlgates.gates import Gate
from rlgates.kernels import Recurrence


class GRU(Stacked):
    """Gated recurrent unit (Cho et al. 2014).

    With L_k(x, h) = W_x_k x + b_k + W_h_k h + b_h_k:

        f, i  = gate(L_...)             the effective gates, see `rlgates.gates.GATES`
        reset = sigmoid(L_reset)
        u     = tanh(W_x_u x + b_u + reset * (W_h_u h + b_h_u))     the candidate
        h'    = f * h + i * u           the output

    Gates without an auxiliary one are tied here, i = 1 - f, unless `tied=False` is given: f is
    then what torch calls z, and u what it calls n. Cho et al. put the reset before the
    recurrent weights, which `reset="before"` does:

        u     = tanh(W_x_u x + b_u + W_h_u (reset * h) + b_h_u)

    Stacking order of `weight_ih`, `weight_hh`, `bias_ih`, `bias_hh`: reset, then the maps of
    the gate, then u. That is, in units of hidden_size rows:

        tied gates     reset, f, u       (the order of torch.nn.GRU)
        untied gates   reset, i, f, u
        refine gates   reset, r, f, u
        master gates   reset, i, f, mi, mf, u   (mi and mf of hidden_size / chunk_size rows)

    Every map has a bias on the input side (`bias_ih`) and on the recurrent side (`bias_hh`).
    Weights start in U[-1/sqrt(d), 1/sqrt(d)] as in torch; the biases of the gate start as
    the gate says, in `bias_ih`; all others start at zero.

    With tied sigmoid gates and the reset after the weights (`gru`, `c_gru`, `u_gru`) it
    computes what torch.nn.GRU does, and loads its state dict.

    The state is (h). Gates and state stay in float32 under autocast.

    Args:
        input_size: width of the input.
        hidden_size: number of units d.
        gate: which gate; `make_core` builds it from the prefix of a name.
        input_scale: factor on the starting input weights of the lowest layer; above 1 lets a
            short stimulus leave a stronger trace in the first state. 1 by default.
        reset: where the reset gate acts, "after" the recurrent weights as in torch (the
            default) or "before" them.
        zoneout_hidden: probability with which a unit of h keeps its old value while training;
            in evaluation the expectation (Krueger et al. 2016, who use 0.1). 0 by default.
        recurrent_dropout: probability with which a unit's candidate u is dropped while
            training, the others scaled up (Semeniuta et al. 2016). 0 by default.

    Raises:
        ValueError, TypeError: a size below 1 or not an integer, a scale that is not positive,
            an unknown `reset`, a probability outside [0, 1), a gate of another size.
    """

    options = ("input_scale", "reset", "zoneout_hidden", "recurrent_dropout")

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        gate: Gate,
        input_scale: float = 1.0,
        reset: str = "after",
        zoneout_hidden: float = 0.0,
        recurrent_dropout: float = 0.0,
    ) -> None:
        maps = {"reset": hidden_size, **gate.maps, "u": hidden_size}
        super().__init__(input_size, hidden_size, gate, maps, input_scale)
        self.reset = check_choice("reset", reset, ("after", "before"))
        self.zoneout_hidden = check_probability("zoneout_hidden", zoneout_hidden)
        self.recurrent_dropout = check_probability("recurrent_dropout", recurrent_dropout)
        self.state_shapes = {"h": (hidden_size,)}
        self.torch_layout = (
            reset == "after" and gate.row.activation == "sigmoid" and gate.auxiliary == "tied"
        )

    def project(self, x: Tensor) -> Tensor:
        if self.reset == "before":
            return super().project(x)
        # The reset gate acts on the recurrent bias of u too, so these are left to the step.
        return nn.functional.linear(x, self.weight_ih, self.bias_ih)

    def _maps(self, projected: Tensor, h: Tensor) -> tuple[list[Tensor], Tensor]:
        """The pre-activations of the gate, and that of u."""
        *gates, units = self._widths
        rows = [sum(gates), units]
        if self.reset == "after":
            z, u = widened(projected).split(rows, dim=-1)
            recurrent = widened(nn.functional.linear(h, self.weight_hh, self.bias_hh))
            z_h, u_h = recurrent.split(rows, dim=-1)
            reset, *pre = (z + z_h).split(gates, dim=-1)
            return pre, torch.addcmul(u, torch.sigmoid(reset), u_h)
        z, u = projected.split(rows, dim=-1)
        weight_z, weight_u = self.weight_hh.split(rows)
        reset, *pre = widened(torch.addmm(z, h, weight_z.t())).split(gates, dim=-1)
        return pre, widened(torch.addmm(u, torch.sigmoid(reset) * h, weight_u.t()))

    def step(self, projected: Tensor, state: State) -> tuple[Tensor, State]:
        (h,) = state
        pre, u = self._maps(projected, h)
        f, i = self.gate(*pre)
        u = nn.functional.dropout(torch.tanh(u), self.recurrent_dropout, self.training)
        h = zoneout(f * h + i * u, h, self.zoneout_hidden, self.training)
        return h, (h,)

    def recurrence(self) -> Recurrence | None:
        if self.zoneout_hidden or (self.training and self.recurrent_dropout):
            return None
        return self.layer(f"gru_{self.reset}")

    def forget_gate(self, projected: Tensor, state: State) -> Tensor:
        pre, _ = self._maps(projected, state[0])
        return self.gate(*pre)[0]
