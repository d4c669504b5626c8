"""The LSTM with every gate of the table."""

from __future__ import annotations

import torch
from torch import Tensor

from rlgates.cell import State
from rlgates.cores.stacked import Stacked, lstm_update
from rlgates.gates import GateLike, as_gate
from rlgates.kernels import CellSpec


class LSTM(Stacked):
    """Long short-term memory (Hochreiter and Schmidhuber 1997; Gers et al. 2000).

    With L_k(x, h) = W_x_k x + b_k + W_h_k h + b_h_k:

        f, i = gate(L_...)             the effective gates, see `rlgates.gates.GATES`
        u    = tanh(L_u)               the candidate (torch calls it g)
        o    = sigmoid(L_o)            the output gate
        c'   = f * c + i * u
        h'   = o * tanh(c')            the output

    Stacking order of `weight_ih`, `weight_hh`, `bias_ih`, `bias_hh`: the maps of the gate,
    then u, o. That is, in units of hidden_size rows:

        untied gates   i, f, u, o      (the order of torch.nn.LSTM)
        tied gates     f, u, o
        refine gates   r, f, u, o      (r takes the place of i)
        master gates   i, f, mi, mf, u, o   (mi and mf of hidden_size / chunk_size rows)

    Every map has an input bias (`bias_ih`) and a recurrent bias (`bias_hh`). Weights are
    sampled from U[-1/sqrt(d), 1/sqrt(d)] as in torch; the gate initializes its biases, in
    `bias_ih`; all others are zero.

    The state is (h, c). Gates and cell state stay in float32 under autocast, because the
    spacing of bfloat16 just below 1 (0.0039) limits memory to some 250 steps.

    Args:
        input_size: width of the input.
        hidden_size: number of units d.
        gate: a key of `rlgates.GATES`, a row, or a `Gate` of hidden_size units.
        input_scale: factor on the initial input weights of the lowest layer; above 1, a short
            stimulus leaves a stronger trace in the first state.
        zoneout_cell, zoneout_hidden: probabilities that a unit of c and of h keeps its old value
            during training; evaluation uses the expectation (Krueger et al. 2016, who use 0.5
            and 0.05). h is computed from c before zoneout; the output is h after zoneout.
        recurrent_dropout: dropout probability of the candidate u (Semeniuta et al. 2016).
        device, dtype: of the parameters, as in torch.nn; float32 or float64.

    Raises:
        ValueError, TypeError: a size below 1 or not an integer, a scale that is not positive,
            a probability outside [0, 1), a gate of the wrong size.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        gate: GateLike = "",
        input_scale: float = 1.0,
        zoneout_cell: float = 0.0,
        zoneout_hidden: float = 0.0,
        recurrent_dropout: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        gate = as_gate(gate, hidden_size)
        maps = {**gate.maps, "u": hidden_size, "o": hidden_size}
        super().__init__(
            input_size,
            hidden_size,
            gate,
            maps,
            input_scale,
            device,
            dtype,
            zoneout_cell=zoneout_cell,
            zoneout_hidden=zoneout_hidden,
            recurrent_dropout=recurrent_dropout,
        )
        self.state_shapes["c"] = (hidden_size,)
        self.torch_layout = gate.row.activation == "sigmoid" and gate.auxiliary == "untied"

    def step(self, projected: Tensor, state: State) -> tuple[Tensor, State]:
        *pre, u, o = self.pre_activations(projected, state[0])
        f, i = self.gate(*pre)
        h, c = lstm_update(self, state, (f, i), u, o)
        return h, (h, c)

    def recurrence(self) -> CellSpec:
        return self.spec("lstm")
