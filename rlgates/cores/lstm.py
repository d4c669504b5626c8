"""The LSTM with every gate of the table."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rlgates.core import Cell, State
from rlgates.errors import check_number, check_size
from rlgates.gates import Gate
from rlgates.kernels import Recurrence


class LSTM(Cell):
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

    Every map has a bias on the input side (`bias_ih`) and on the recurrent side (`bias_hh`).
    Weights start in U[-1/sqrt(d), 1/sqrt(d)] as in torch; the biases of the gate start as
    the gate says, in `bias_ih`; all others start at zero.

    The state is (h, c). Gates and cell state stay in float32 under autocast, because the
    spacing of bfloat16 just below 1 (0.0039) would forget everything in some 250 steps.

    Args:
        input_size: width of the input.
        hidden_size: number of units d.
        gate: which gate; `make_core` builds it from the prefix of a name.
        input_scale: factor on the starting input weights; above 1 lets a short stimulus leave
            a stronger trace in the first state.

    Raises:
        ValueError, TypeError: a size below 1 or not an integer, a scale that is not positive,
            a gate of another size.
    """

    options = ("input_scale",)

    def __init__(
        self, input_size: int, hidden_size: int, gate: Gate, input_scale: float = 1.0
    ) -> None:
        super().__init__()
        self.input_size = check_size("input_size", input_size)
        self.hidden_size = self.output_size = check_size("hidden_size", hidden_size)
        if gate.size != hidden_size:
            raise ValueError(f"the gate must have {hidden_size} units, got {gate}.")
        self.input_scale = check_number("input_scale", input_scale, above=0)
        self.gate = gate
        self.maps = {**gate.maps, "u": hidden_size, "o": hidden_size}
        self.state_sizes = {"h": hidden_size, "c": hidden_size}
        self.torch_layout = gate.row.activation == "sigmoid" and gate.auxiliary == "untied"
        rows = sum(self.maps.values())
        self.weight_ih = nn.Parameter(torch.empty(rows, input_size))
        self.weight_hh = nn.Parameter(torch.empty(rows, hidden_size))
        self.bias_ih = nn.Parameter(torch.empty(rows))
        self.bias_hh = nn.Parameter(torch.empty(rows))
        self._widths = list(self.maps.values())
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

    def _pre_activations(self, projected: Tensor, h: Tensor) -> tuple[Tensor, ...]:
        z = torch.addmm(projected, h, self.weight_hh.t())
        if z.dtype in (torch.bfloat16, torch.float16):
            z = z.float()
        return torch.split(z, self._widths, dim=-1)

    def step(self, projected: Tensor, state: State) -> tuple[Tensor, State]:
        h, c = state
        *pre, u, o = self._pre_activations(projected, h)
        f, i = self.gate(*pre)
        c = f * c + i * torch.tanh(u)
        h = torch.sigmoid(o) * torch.tanh(c)
        return h, (h, c)

    def recurrence(self) -> Recurrence:
        return Recurrence(self.gate.row.activation, self.gate.auxiliary, self.weight_hh)

    def forget_gate(self, projected: Tensor, state: State) -> Tensor:
        *pre, _, _ = self._pre_activations(projected, state[0])
        return self.gate(*pre)[0]

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}, {self.gate}"
