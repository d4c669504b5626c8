"""No memory: the baseline of every memory core."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rlgates.cell import Cell, State, factory_kwargs, widened
from rlgates.errors import check_number, check_size
from rlgates.kernels import CellSpec


class FeedForward(Cell):
    """h = tanh(W x + b): a layer of the same width without memory.

    Args:
        input_size: width of the input.
        hidden_size: width of the output.
        input_scale: factor on the initial weights, as in the recurrent cores.
        device, dtype: of the parameters, as in torch.nn; float32 or float64.
    """

    first_layer_options = ("input_scale",)

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        input_scale: float = 1.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.input_size = check_size("input_size", input_size)
        self.hidden_size = self.output_size = check_size("hidden_size", hidden_size)
        self.input_scale = check_number("input_scale", input_scale, above=0)
        self.state_shapes = {}
        factory = factory_kwargs(device, dtype)
        self.weight = nn.Parameter(torch.empty(hidden_size, input_size, **factory))
        self.bias = nn.Parameter(torch.empty(hidden_size, **factory))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        bound = self.output_size**-0.5
        self.weight.uniform_(-bound, bound, generator=generator).mul_(self.input_scale)
        self.bias.zero_()

    def project(self, x: Tensor) -> Tensor:
        return torch.tanh(widened(nn.functional.linear(x, self.weight, self.bias)))

    def recurrence(self) -> CellSpec:
        return CellSpec("feedforward", (self.hidden_size,), (self.weight, self.bias))

    def step(self, projected: Tensor, state: State) -> tuple[Tensor, State]:
        return projected, ()
