"""Recurrences whose gates and candidates read the input alone: minGRU, GILR, minLSTM."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from rlgates.cell import LinearCell, State, widened
from rlgates.errors import check_choice, check_number, check_size
from rlgates.gates import Gate
from rlgates.kernels import Linear


def positive(y: Tensor) -> Tensor:
    """g(y) = y + 1/2 from 0 up, sigmoid(y) below: positive, and 1/2 at 0 from both sides."""
    # A choice, by weights of 0 and 1: on the CPU torch.where takes twice as long.
    return torch.lerp(torch.sigmoid(y), y + 0.5, (y >= 0).to(y.dtype))


CANDIDATES: dict[str, Callable[[Tensor], Tensor]] = {
    "g": positive,
    "linear": lambda u: u,
    "tanh": torch.tanh,
}


class Normalised:
    """The gates of minLSTM: two sigmoid gates f and i, divided by their sum.

    Args:
        size: number of gated units.
        forget_bias: where the bias of f starts.
    """

    def __init__(self, size: int, forget_bias: float) -> None:
        self.maps = {"f": size, "i": size}
        self.forget_bias = forget_bias

    def start_biases(self, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        start = {"f": self.forget_bias, "i": 0.0}
        return {key: torch.full((width,), start[key]) for key, width in self.maps.items()}

    def __call__(self, f: Tensor, i: Tensor) -> tuple[Tensor, Tensor]:
        """The pair f / (f + i) and i / (f + i) from the pre-activations."""
        # f / (f + i) = sigmoid(log f - log i): no sum of two gates that are both rounded to 0,
        # and a small share keeps its digits.
        odds = nn.functional.logsigmoid(f) - nn.functional.logsigmoid(i)
        return torch.sigmoid(odds), torch.sigmoid(-odds)


class Minimal(LinearCell):
    """A cell h' = f * h + i * candidate(L_u) with L_k = W_k x + b_k for every map k.

    Nothing but h itself depends on the state, so a step is one multiplication and addition.
    The maps are stacked in `weight` and `bias`: those of the gate, then u. Weights start in
    U[-1/sqrt(I), 1/sqrt(I)] for I inputs, as those of torch.nn.Linear; the biases of the gate
    start as the gate says, that of u at zero.

    Attributes:
        gate: from pre-activations to the pair f, i.
        maps: name and rows of each map, in stacking order.
        candidate: a key of `CANDIDATES`.
    """

    candidate = "tanh"

    def __init__(self, input_size: int, hidden_size: int, gate: Gate | Normalised) -> None:
        super().__init__()
        self.input_size = check_size("input_size", input_size)
        self.hidden_size = self.output_size = check_size("hidden_size", hidden_size)
        if isinstance(gate, Gate) and gate.size != hidden_size:
            raise ValueError(f"the gate must have {hidden_size} units, got {gate}.")
        self.gate = gate
        self.maps = {**gate.maps, "u": hidden_size}
        self._widths = list(self.maps.values())
        self.state_shapes = {"h": (hidden_size,)}
        self.weight = nn.Parameter(torch.empty(sum(self._widths), input_size))
        self.bias = nn.Parameter(torch.empty(sum(self._widths)))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        bound = self.input_size**-0.5
        self.weight.uniform_(-bound, bound, generator=generator)
        self.bias.zero_()
        weights = self.gate_weights()
        for name, start in self.gate.start_biases(generator).items():
            weights[f"b_{name}"].copy_(start)

    def gate_weights(self) -> dict[str, Tensor]:
        """Views `W_k` and `b_k` for each map k."""
        return {
            f"{kind}_{name}": part
            for kind, parameter in (("W", self.weight), ("b", self.bias))
            for name, part in zip(self.maps, parameter.detach().split(self._widths), strict=True)
        }

    def linear(self, x: Tensor) -> Linear:
        """Forget gates, and what is written."""
        z = widened(nn.functional.linear(x, self.weight, self.bias))
        *pre, u = z.split(self._widths, dim=-1)
        f, i = self.gate(*pre)
        return Linear(f, i * CANDIDATES[self.candidate](u))

    def forget_gate(self, projected: Tensor, state: State) -> Tensor:
        return projected[:, : self.hidden_size]


class MinGRU(Minimal):
    """The minimal GRU, with every gate of the table (Feng et al. 2024).

    With L_k(x) = W_k x + b_k:

        f, i = gate(L_...)             the effective gates, see `rlgates.gates.GATES`
        h'   = f * h + i * g(L_u)      the output

    where g(y) = y + 1/2 from y = 0 up and sigmoid(y) below: rising, and always positive.
    Gates without an auxiliary one are tied by default (i = 1 - f): the plain one is the minGRU,
    whose update gate z is i here; `tied=False` gives i a map of its own.

    Stacking order of `weight` and `bias`: the maps of the gate, then u. That is, in units of
    hidden_size rows:

        tied gates     f, u
        untied gates   i, f, u
        refine gates   r, f, u
        master gates   i, f, mi, mf, u   (mi and mf of hidden_size / chunk_size rows)

    Weights start in U[-1/sqrt(I), 1/sqrt(I)] for I inputs; the biases of the gate as the gate
    says, that of u at zero. The state is h, which starts at zero. It is unbounded: h is a mean
    of candidates, and a candidate grows with the input.

    Args:
        input_size: width of the input.
        hidden_size: number of units d.
        gate: which gate; `make_core` builds it from the prefix of a name.
        candidate: "g" as above, or "linear" for L_u itself (the paper's simplest form).

    Raises:
        ValueError, TypeError: a size below 1 or not an integer, an unknown candidate, a gate of
            another size.
    """

    options = ("candidate",)

    def __init__(self, input_size: int, hidden_size: int, gate: Gate, candidate: str = "g") -> None:
        super().__init__(input_size, hidden_size, gate)
        self.candidate = check_choice("candidate", candidate, ("g", "linear"))


class GILR(Minimal):
    """The gated impulse linear recurrence, with every gate (Martin and Cundy 2017).

    With L_k(x) = W_k x + b_k:

        f, i = gate(L_...)             the effective gates, see `rlgates.gates.GATES`
        h'   = f * h + i * tanh(L_u)   the output

    Gates without an auxiliary one are tied by default (i = 1 - f), as in the paper;
    `tied=False` gives i a map of its own.

    Stacking order of `weight` and `bias`: the maps of the gate, then u. That is, in units of
    hidden_size rows:

        tied gates     f, u
        untied gates   i, f, u
        refine gates   r, f, u
        master gates   i, f, mi, mf, u   (mi and mf of hidden_size / chunk_size rows)

    Weights start in U[-1/sqrt(I), 1/sqrt(I)] for I inputs; the biases of the gate as the gate
    says, that of u at zero. The state is h, which starts at zero.

    Args:
        input_size: width of the input.
        hidden_size: number of units d.
        gate: which gate; `make_core` builds it from the prefix of a name.

    Raises:
        ValueError, TypeError: a size below 1 or not an integer, a gate of another size.
    """


class MinLSTM(Minimal):
    """The minimal LSTM (Feng et al. 2024), which has gates of its own.

    With L_k(x) = W_k x + b_k:

        f = sigmoid(L_f),   i = sigmoid(L_i)
        h' = f / (f + i) * h + i / (f + i) * g(L_u)      the output

    where g(y) = y + 1/2 from y = 0 up and sigmoid(y) below: rising, and always positive. The
    two shares are computed from log f - log i, so that they add up to 1 where f and i are both
    too small for their dtype. The forget gate that is observed is f / (f + i).

    Stacking order of `weight` and `bias`, in units of hidden_size rows: f, i, u. Weights start
    in U[-1/sqrt(I), 1/sqrt(I)] for I inputs, biases at zero but for that of f. The state is h,
    which starts at zero. It is unbounded: a candidate grows with the input.

    Args:
        input_size: width of the input.
        hidden_size: number of units d.
        candidate: "g" as above, or "linear" for L_u itself (the paper's simplest form).
        forget_bias: where the bias of f starts.

    Raises:
        ValueError, TypeError: a size below 1 or not an integer, an unknown candidate, a bias
            that is not a finite number.
    """

    options = ("candidate", "forget_bias")

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        candidate: str = "g",
        forget_bias: float = 1.0,
    ) -> None:
        forget_bias = check_number("forget_bias", forget_bias)
        size = check_size("hidden_size", hidden_size)
        super().__init__(input_size, hidden_size, Normalised(size, forget_bias))
        self.forget_bias = forget_bias
        self.candidate = check_choice("candidate", candidate, ("g", "linear"))
