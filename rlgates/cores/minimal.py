"""Recurrences whose gates and candidates read only the input: minGRU, GILR, minLSTM."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from rlgates.cell import LinearCell, State, factory_kwargs, named_rows, widened
from rlgates.errors import check_choice, check_number, check_size
from rlgates.gates import Gate, GateLike, as_gate
from rlgates.kernels import CellSpec, LinearScan, LinearStep


def positive(y: Tensor) -> Tensor:
    """g(y) = y + 1/2 for y >= 0, else sigmoid(y): positive and continuous."""
    return torch.where(y >= 0, y + 0.5, torch.sigmoid(y))


# In the order in which native code numbers them.
CANDIDATES: dict[str, Callable[[Tensor], Tensor]] = {
    "g": positive,
    "linear": lambda u: u,
    "tanh": torch.tanh,
}


Candidate = Literal["g", "linear"]  # of minGRU and minLSTM; that of GILR is tanh


class Normalized:
    """The gates of minLSTM: two sigmoid gates f and i, divided by their sum.

    Args:
        size: number of gated units.
        forget_bias: initial bias of f.
    """

    def __init__(self, size: int, forget_bias: float) -> None:
        self.maps = {"f": size, "i": size}
        self.forget_bias = forget_bias

    def initial_biases(
        self,
        generator: torch.Generator | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> dict[str, Tensor]:
        biases = {"f": self.forget_bias, "i": 0.0}
        return {
            key: torch.full((width,), biases[key], device=device, dtype=dtype)
            for key, width in self.maps.items()
        }

    def __call__(self, f: Tensor, i: Tensor) -> tuple[Tensor, Tensor]:
        """The pair f / (f + i) and i / (f + i) from the pre-activations."""
        # f / (f + i) = sigmoid(log f - log i): exact where both gates underflow to 0, and
        # accurate for small shares.
        odds = nn.functional.logsigmoid(f) - nn.functional.logsigmoid(i)
        return torch.sigmoid(odds), torch.sigmoid(-odds)


class Minimal(LinearCell):
    """A cell h' = f * h + i * candidate(L_u) with L_k = W_k x + b_k for every map k.

    Gates and candidate do not depend on the state, so a step is one multiply-add. The maps are
    stacked in `weight` and `bias`: those of the gate, then u. Weights are sampled from
    U[-1/sqrt(I), 1/sqrt(I)] for I inputs, as in torch.nn.Linear; the gate initializes its biases;
    that of u is zero.

    Attributes:
        gate: maps pre-activations to the pair f, i.
        maps: name and number of rows of each map, in stacking order.
        candidate: a key of `CANDIDATES`.
    """

    candidate = "tanh"

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        gate: GateLike | Normalized = "",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.input_size = check_size("input_size", input_size)
        self.hidden_size = self.output_size = check_size("hidden_size", hidden_size)
        if not isinstance(gate, Normalized):
            gate = as_gate(gate, hidden_size, tied=True)
        self.gate: Gate | Normalized = gate
        # Native code knows nothing of the maps of a subclass.
        cls = type(self)
        self._overrides = cls.linear is not Minimal.linear or cls.read is not LinearCell.read
        self.maps = {**gate.maps, "u": hidden_size}
        self._widths = list(self.maps.values())
        self.state_shapes = {"h": (hidden_size,)}
        factory = factory_kwargs(device, dtype)
        self.weight = nn.Parameter(torch.empty(sum(self._widths), input_size, **factory))
        self.bias = nn.Parameter(torch.empty(sum(self._widths), **factory))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        bound = self.input_size**-0.5
        self.weight.uniform_(-bound, bound, generator=generator)
        self.bias.zero_()
        weights = self.gate_weights()
        biases = self.gate.initial_biases(generator, self.bias.device, self.bias.dtype)
        for name, bias in biases.items():
            weights[f"b_{name}"].copy_(bias)

    def gate_weights(self) -> dict[str, Tensor]:
        """Views `W_k` and `b_k` for each map k."""
        return named_rows(self.maps, W=self.weight, b=self.bias)

    def linear(self, x: Tensor) -> LinearStep:
        """Forget gates and gated candidates."""
        z = widened(nn.functional.linear(x, self.weight, self.bias))
        *pre, u = z.split(self._widths, dim=-1)
        f, i = self.gate(*pre)
        return LinearStep(f, i * CANDIDATES[self.candidate](u))

    def recurrence(self) -> LinearScan:
        gate = self.gate.key if isinstance(self.gate, Gate) else None
        sizes = self.hidden_size, [*CANDIDATES].index(self.candidate)
        cell = CellSpec("minimal", sizes, (self.weight, self.bias), gate)
        return LinearScan(self.linear, self.read, cell=None if self._overrides else cell)

    def forget_gate(self, projected: Tensor, state: State) -> Tensor:
        return projected[:, : self.hidden_size]


class MinGRU(Minimal):
    """The minimal GRU, with every gate of the table (Feng et al. 2024).

    With L_k(x) = W_k x + b_k:

        f, i = gate(L_...)             the effective gates, see `rlgates.gates.GATES`
        h'   = f * h + i * g(L_u)      the output

    where g(y) = y + 1/2 for y >= 0 and sigmoid(y) below: increasing and positive. Gates without
    an auxiliary gate are tied by default, i = 1 - f, where i is the update gate z of the minGRU;
    `tied=False` gives i a separate map.

    Stacking order of `weight` and `bias`: the maps of the gate, then u. That is, in units of
    hidden_size rows:

        tied gates     f, u
        untied gates   i, f, u
        refine gates   r, f, u
        master gates   i, f, mi, mf, u   (mi and mf of hidden_size / chunk_size rows)

    Weights are sampled from U[-1/sqrt(I), 1/sqrt(I)] for I inputs; the gate initializes its
    biases; that of u is zero. The state is h, initially zero. It is unbounded, because a
    candidate grows with the input.

    Args:
        input_size: width of the input.
        hidden_size: number of units d.
        gate: a key of `rlgates.GATES`, a row (both tied, if there is no auxiliary gate), or a
            `Gate` of hidden_size units.
        candidate: "g" as above, or "linear" for L_u itself (the paper's simplest form).
        device, dtype: of the parameters, as in torch.nn; float32 or float64.

    Raises:
        ValueError, TypeError: a size below 1 or not an integer, an unknown candidate, a gate of
            the wrong size.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        gate: GateLike = "",
        candidate: Candidate = "g",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size, gate, device, dtype)
        self.candidate = check_choice("candidate", candidate, ("g", "linear"))


class GILR(Minimal):
    """The gated impulse linear recurrence, with every gate (Martin and Cundy 2017).

    With L_k(x) = W_k x + b_k:

        f, i = gate(L_...)             the effective gates, see `rlgates.gates.GATES`
        h'   = f * h + i * tanh(L_u)   the output

    Gates without an auxiliary gate are tied by default, i = 1 - f, as in the paper;
    `tied=False` gives i a separate map.

    Stacking order of `weight` and `bias`: as in `MinGRU`.

    Weights are sampled from U[-1/sqrt(I), 1/sqrt(I)] for I inputs; the gate initializes its
    biases; that of u is zero. The state is h, initially zero.

    Args:
        input_size: width of the input.
        hidden_size: number of units d.
        gate: a key of `rlgates.GATES`, a row (both tied, if there is no auxiliary gate), or a
            `Gate` of hidden_size units.
        device, dtype: of the parameters, as in torch.nn; float32 or float64.

    Raises:
        ValueError, TypeError: a size below 1 or not an integer, a gate of the wrong size.
    """


class MinLSTM(Minimal):
    """The minimal LSTM (Feng et al. 2024), with its own pair of gates.

    With L_k(x) = W_k x + b_k:

        f = sigmoid(L_f),   i = sigmoid(L_i)
        h' = f / (f + i) * h + i / (f + i) * g(L_u)      the output

    where g(y) = y + 1/2 for y >= 0 and sigmoid(y) below: increasing and positive. The two
    shares are computed from log f - log i, so they sum to 1 even where f and i underflow. The
    traced forget gate is f / (f + i).

    Stacking order of `weight` and `bias`, in units of hidden_size rows: f, i, u. Weights are
    sampled from U[-1/sqrt(I), 1/sqrt(I)] for I inputs; biases other than that of f are zero. The
    state is h, initially zero. It is unbounded, because a candidate grows with the input.

    Args:
        input_size: width of the input.
        hidden_size: number of units d.
        candidate: "g" as above, or "linear" for L_u itself (the paper's simplest form).
        forget_bias: initial bias of f.
        device, dtype: of the parameters, as in torch.nn; float32 or float64.

    Raises:
        ValueError, TypeError: a size below 1 or not an integer, an unknown candidate, a bias
            that is not a finite number.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        candidate: Candidate = "g",
        forget_bias: float = 1.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        forget_bias = check_number("forget_bias", forget_bias)
        size = check_size("hidden_size", hidden_size)
        super().__init__(input_size, hidden_size, Normalized(size, forget_bias), device, dtype)
        self.forget_bias = forget_bias
        self.candidate = check_choice("candidate", candidate, ("g", "linear"))
