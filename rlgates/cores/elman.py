"""Recurrent networks without a gate: Elman's, and the IndRNN."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from rlgates.cell import Cell, State, factory_kwargs, widened
from rlgates.errors import check_choice, check_number, check_size
from rlgates.kernels import CellSpec

Nonlinearity = Literal["tanh", "relu"]

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"tanh": torch.tanh, "relu": torch.relu}


class Elman(Cell):
    """The simple recurrent network (Elman 1990), as in torch.nn.RNN.

        h' = phi(W_x x + b + W_h h + b_h)      the output

    The parameters are those of torch.nn.RNN: `weight_ih`, `bias_ih`, `weight_hh`, `bias_hh`, all
    weights sampled from U[-1/sqrt(d), 1/sqrt(d)]; here biases start at zero.

    The state is (h), in float32 under autocast.

    Args:
        input_size: width of the input.
        hidden_size: number of units d.
        nonlinearity: phi, "tanh" or "relu". With "relu" nothing bounds h.
        input_scale: factor on the initial input weights of the lowest layer.
        device, dtype: of the parameters, as in torch.nn; float32 or float64.

    Raises:
        ValueError, TypeError: a size below 1 or not an integer, a scale that is not positive, an
            unknown nonlinearity.
    """

    first_layer_options = ("input_scale",)
    torch_layout = True

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        nonlinearity: Nonlinearity = "tanh",
        input_scale: float = 1.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.input_size = check_size("input_size", input_size)
        self.hidden_size = self.output_size = check_size("hidden_size", hidden_size)
        self.nonlinearity = check_choice("nonlinearity", nonlinearity, _ACTIVATIONS)
        self.input_scale = check_number("input_scale", input_scale, above=0)
        self.state_shapes = {"h": (hidden_size,)}
        factory = factory_kwargs(device, dtype)
        self.weight_ih = nn.Parameter(torch.empty(hidden_size, input_size, **factory))
        self.weight_hh = nn.Parameter(torch.empty(hidden_size, hidden_size, **factory))
        self.bias_ih = nn.Parameter(torch.empty(hidden_size, **factory))
        self.bias_hh = nn.Parameter(torch.empty(hidden_size, **factory))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        bound = self.hidden_size**-0.5
        self.weight_ih.uniform_(-bound, bound, generator=generator).mul_(self.input_scale)
        self.weight_hh.uniform_(-bound, bound, generator=generator)
        self.bias_ih.zero_()
        self.bias_hh.zero_()

    def gate_weights(self) -> dict[str, Tensor]:
        """Views `W_x`, `W_h`, `b`, `b_h`."""
        parameters = self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh
        named = zip(("W_x", "W_h", "b", "b_h"), parameters, strict=True)
        return {name: parameter.detach() for name, parameter in named}

    def project(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight_ih, self.bias_ih + self.bias_hh)

    def step(self, projected: Tensor, state: State) -> tuple[Tensor, State]:
        z = widened(torch.addmm(projected, state[0], self.weight_hh.t()))
        h = _ACTIVATIONS[self.nonlinearity](z)
        return h, (h,)

    def recurrence(self) -> CellSpec:
        weights = self.weight_ih, self.bias_ih + self.bias_hh, self.weight_hh
        return CellSpec("elman", (self.hidden_size, self.nonlinearity == "relu"), weights)


class IndRNN(Cell):
    """The independently recurrent network (Li et al. 2018): no unit reads the state of another.

        h' = phi(W x + u * h + b)      the output, with |u| <= max_recurrent

    Units interact only in the layers above: the paper stacks several. `max_recurrent` is the
    paper's bound on the recurrent weights, which keeps states and gradients from exploding with
    phi = relu; for sequences of T steps the paper takes 2^(1/T), a little above 1.

    Initialization: u from U[0, max_recurrent], as in the paper for tasks with a long memory; W from
    U[-1/sqrt(I), 1/sqrt(I)] for I inputs, as in torch.nn.Linear; b zero.

    Weights: `weight` (d, I), `bias` (d), `recurrent` (d), which is clamped where it is used.
    The state is (h), in float32 under autocast.

    Args:
        input_size: width of the input.
        hidden_size: number of units d.
        nonlinearity: phi, "relu" as in the paper, or "tanh".
        max_recurrent: the largest |u|, above 0.
        input_scale: factor on the initial input weights of the lowest layer.
        device, dtype: of the parameters, as in torch.nn; float32 or float64.

    Raises:
        ValueError, TypeError: a size below 1 or not an integer, a bound or scale that is not
            positive, an unknown nonlinearity.
    """

    first_layer_options = ("input_scale",)

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        nonlinearity: Nonlinearity = "relu",
        max_recurrent: float = 1.0,
        input_scale: float = 1.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.input_size = check_size("input_size", input_size)
        self.hidden_size = self.output_size = check_size("hidden_size", hidden_size)
        self.nonlinearity = check_choice("nonlinearity", nonlinearity, _ACTIVATIONS)
        self.max_recurrent = check_number("max_recurrent", max_recurrent, above=0)
        self.input_scale = check_number("input_scale", input_scale, above=0)
        self.state_shapes = {"h": (hidden_size,)}
        factory = factory_kwargs(device, dtype)
        self.weight = nn.Parameter(torch.empty(hidden_size, input_size, **factory))
        self.bias = nn.Parameter(torch.empty(hidden_size, **factory))
        self.recurrent = nn.Parameter(torch.empty(hidden_size, **factory))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        bound = self.input_size**-0.5
        self.weight.uniform_(-bound, bound, generator=generator).mul_(self.input_scale)
        self.recurrent.uniform_(0, self.max_recurrent, generator=generator)
        self.bias.zero_()

    def project(self, x: Tensor) -> Tensor:
        return widened(nn.functional.linear(x, self.weight, self.bias))

    def _bounded(self) -> Tensor:
        return self.recurrent.clamp(-self.max_recurrent, self.max_recurrent)

    def step(self, projected: Tensor, state: State) -> tuple[Tensor, State]:
        z = torch.addcmul(projected, self._bounded(), state[0])
        h = _ACTIVATIONS[self.nonlinearity](z)
        return h, (h,)

    def recurrence(self) -> CellSpec:
        weights = self.weight, self.bias, self._bounded()
        return CellSpec("indrnn", (self.hidden_size, self.nonlinearity == "relu"), weights)
