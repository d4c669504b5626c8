"""GATO: half of the state only accumulates, so that its gradients do not vanish."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from rlgates.cell import Cell, State, factory_kwargs, widened
from rlgates.errors import (
    MAX_DEPTH,
    MAX_WIDTH,
    check_choice,
    check_number,
    check_size,
    unknown_choice,
)
from rlgates.kernels import CellSpec

# exp(-40) is lost in rounding next to 40 in float64; torch's default of 20 leaves a jump of 2e-9.
_SOFTPLUS_IS_LINEAR = 40.0


class GATO(Cell):
    """GATO, "Gates are not the only option" (anonymous 2020), with units that do not interact.

    The state is (r, s), each of J = hidden_size / 2 units. No update reads s, so ds_T/ds_t is the
    identity for every T. With L_k(x, r) = W_x_k x + k * r + b_k, where the vector k (a, b or c)
    is multiplied elementwise:

        depth 1   s' = s + softplus(L_A)
                  r' = decay sigmoid(L_B) * r + tanh(L_C)
        depth 2   s' = s + softplus(F)
                  r' = decay sigmoid(L_A) * r + tanh(L_B)
                  F_j = W2_j . relu(W1_x_j x + W1_r_j r_j + b1_j) + b2_j

        output    [r', cos s'], hidden_size numbers

    F_j is a separate network for each unit j, with inner_size hidden units that read only x and
    r_j. `Core.trace_gates` returns decay sigmoid(...), of J units, as the forget gate. |r| stays
    below 1 / (1 - decay). s only grows, by about 0.7 a step for zero input; its relative
    precision of 6e-8 in float32 is about 0.0005 after 10,000 steps.

    Weights by name (`gate_weights`): W_x_A (J, input_size), a (J), b_A (J) etc., and for
    depth 2 W1_x (J, inner_size, input_size), W1_r, b1, W2 (J, inner_size), b2 (J). Stacking
    order in `weight` (maps, J, input_size), `recurrent` and `bias` (maps, J): decay gate,
    candidate, then the map of s' (depth 1) or the inner units of F (depth 2); W2 is `out_weight`
    (inner_size, J) and b2 `out_bias` (J).

    Args:
        input_size: width of the input.
        hidden_size: units of r and s together, as in the paper; even.
        depth: 1 or 2, see above; the paper uses 2 for copying and adding, 1 elsewhere.
        inner_size: hidden units of each F_j; ignored at depth 1.
        decay: the paper's lambda, above 0 and at most 1; the paper reports that 0.5 is as good as
            0.7.
        input_start: initialization of the input weights W_x: "uniform" for U[-0.1, 0.1], like all
            other parameters (the paper's copying and adding), or "default" for torch's
            U[-1/sqrt(input_size), 1/sqrt(input_size)] (its clinical and language data).
        s_update: "sum" as above; "increment", s' without the + s, and "zero", s' = 0, are the
            ablations of its appendix A.
        device, dtype: of the parameters, as in torch.nn; float32 or float64.

    Raises:
        ValueError, TypeError: a size below 1 or not an integer, an odd hidden_size, a depth
            above 2, a decay outside (0, 1], an unknown input_start or s_update.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        depth: int = 1,
        inner_size: int = 32,
        decay: float = 0.7,
        input_start: Literal["uniform", "default"] = "uniform",
        s_update: Literal["sum", "increment", "zero"] = "sum",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.input_size = check_size("input_size", input_size)
        self.hidden_size = self.output_size = check_size("hidden_size", hidden_size)
        if self.output_size % 2:
            near = " or ".join(str(n) for n in (hidden_size - 1, hidden_size + 1) if n)
            raise ValueError(
                f"hidden_size must be even, half for r and half for s, got {hidden_size}. "
                f"Nearest allowed: {near}."
            )
        self.depth = check_size("depth", depth, maximum=MAX_DEPTH)
        if self.depth > 2:
            raise unknown_choice("depth", self.depth, ("1", "2"))
        self.inner_size = check_size("inner_size", inner_size, maximum=MAX_WIDTH)
        self.decay = check_number("decay", decay, above=0)
        if self.decay > 1:
            raise ValueError(f"decay must be above 0 and at most 1, got {decay}.")
        self.input_start = check_choice("input_start", input_start, ("uniform", "default"))
        self.s_update = check_choice("s_update", s_update, ("sum", "increment", "zero"))
        self.units = self.output_size // 2
        self.state_shapes = {"r": (self.units,), "s": (self.units,)}
        factory = factory_kwargs(device, dtype)
        maps = 2 + (self.inner_size if self.depth == 2 else 1)
        self.weight = nn.Parameter(torch.empty(maps, self.units, self.input_size, **factory))
        self.recurrent = nn.Parameter(torch.empty(maps, self.units, **factory))
        self.bias = nn.Parameter(torch.empty(maps, self.units, **factory))
        if self.depth == 2:
            self.out_weight = nn.Parameter(torch.empty(self.inner_size, self.units, **factory))
            self.out_bias = nn.Parameter(torch.empty(self.units, **factory))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        for parameter in self.parameters():
            bound = 0.1
            if parameter is self.weight and self.input_start == "default":
                bound = self.input_size**-0.5
            parameter.uniform_(-bound, bound, generator=generator)

    def gate_weights(self) -> dict[str, Tensor]:
        """Views W_x_A, a, b_A, ..., and at depth 2 those of F: see the class."""
        weight, recurrent, bias = (p.detach() for p in (self.weight, self.recurrent, self.bias))
        views: dict[str, Tensor] = {}
        if self.depth == 2:
            views = {
                "W1_x": weight[2:].transpose(0, 1),
                "W1_r": recurrent[2:].t(),
                "b1": bias[2:].t(),
                "W2": self.out_weight.detach().t(),
                "b2": self.out_bias.detach(),
            }
        rows = {"B": 0, "C": 1, "A": 2} if self.depth == 1 else {"A": 0, "B": 1}
        for key, row in sorted(rows.items()):
            views[f"W_x_{key}"] = weight[row]
            views[key.lower()] = recurrent[row]
            views[f"b_{key}"] = bias[row]
        return views

    def project(self, x: Tensor) -> Tensor:
        z = nn.functional.linear(x, self.weight.flatten(0, 1), self.bias.flatten())
        return widened(z)

    def _pre_activations(self, projected: Tensor, r: Tensor) -> Tensor:
        """(B, maps, J) in stacking order."""
        z = projected.unflatten(-1, self.recurrent.shape)
        return torch.addcmul(z, self.recurrent, r.unsqueeze(1))

    def step(self, projected: Tensor, state: State) -> tuple[Tensor, State]:
        r, s = state
        z = self._pre_activations(projected, r)
        if self.depth == 2:
            # Elementwise products, no matrix product: the units do not interact.
            growth = (torch.relu(z[:, 2:]) * self.out_weight).sum(dim=1) + self.out_bias
        else:
            growth = z[:, 2]
        increment = nn.functional.softplus(growth, threshold=_SOFTPLUS_IS_LINEAR)
        match self.s_update:
            case "sum":
                s = s + increment
            case "increment":
                s = increment
            case _:
                s = 0.0 * increment  # a zero gradient for all parameters, rather than none
        r = self.decay * torch.sigmoid(z[:, 0]) * r + torch.tanh(z[:, 1])
        return torch.cat([r, torch.cos(s)], dim=-1), (r, s)

    def recurrence(self) -> CellSpec:
        inner = self.inner_size if self.depth == 2 else 0
        empty = self.recurrent.new_empty
        out = (self.out_weight, self.out_bias) if inner else (empty(0, self.units), empty(0))
        weights = self.weight.flatten(0, 1), self.bias.flatten(), self.recurrent, *out
        sizes = self.units, inner, int(self.s_update == "sum"), int(self.s_update != "zero")
        return CellSpec("gato", sizes, weights, constant=self.decay)

    def forget_gate(self, projected: Tensor, state: State) -> Tensor:
        z = self._pre_activations(projected, state[0])
        return self.decay * torch.sigmoid(z[:, 0])
