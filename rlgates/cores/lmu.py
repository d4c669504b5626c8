"""The Legendre memory unit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor, nn

from rlgates.cell import Cell, State, factory_kwargs, fill_buffers, full_precision, widened
from rlgates.errors import MAX_WIDTH, check_number, check_size
from rlgates.kernels import CellSpec


def legendre_system(size: int, theta: float) -> tuple[Tensor, Tensor]:
    """The discrete system m' = A m + B u of a window of `theta` steps, float64.

    Args:
        size: size of the memory m, the number of Legendre polynomials that represent the window.
        theta: the window, in steps.

    Returns:
        A (size, size) and B (size): eq. 1 and 2 of Voelker et al. 2019, held for each step.
    """
    n = torch.arange(size, dtype=torch.float64, device="cpu")
    i, j = torch.meshgrid(n, n, indexing="ij")
    rate = (2 * i + 1) / theta
    sign = torch.where(i < j, -1.0, (-1.0) ** (i - j + 1))
    both = n.new_zeros(size + 1, size + 1)
    both[:size, :size] = rate * sign
    both[:size, size] = rate[:, 0] * (-1.0) ** i[:, 0]
    held = torch.linalg.matrix_exp(both)
    return held[:size, :size].contiguous(), held[:size, size].contiguous()


class LMU(Cell):
    """The Legendre memory unit (Voelker et al. 2019).

        u  = e_x x + e_h h + e_m m         one number, what is remembered
        m' = A m + B u                     its last theta steps as Legendre polynomials
        h' = tanh(W_x x + W_h h + W_m m')  the output

    A and B are computed, not trained: `legendre_system`. theta is in steps: older inputs are
    forgotten, and changes much shorter than theta / memory_size are not resolved.

    Initialization as in the paper: e_x and e_h from U[-sqrt(3/n), sqrt(3/n)] for n inputs, e_m
    zero, the W's normal with variance 2 / (inputs + outputs). There are no biases.

    Weights: `e_x` (1, I), `e_h` (1, d), `e_m` (1, m), `W_x` (d, I), `W_h` (d, d), `W_m` (d, m). The
    state is (h, m), in float32 under autocast.

    Args:
        input_size: width of the input.
        hidden_size: number of units d.
        memory_size: width m of the memory.
        theta: the window that the memory holds, in steps, above 0.
        device, dtype: of the parameters, as in torch.nn; float32 or float64.

    Raises:
        ValueError, TypeError: a size below 1 or not an integer, a window that is not positive.
    """

    A: Tensor
    B: Tensor

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        memory_size: int = 32,
        theta: float = 100.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.input_size = check_size("input_size", input_size)
        self.hidden_size = self.output_size = d = check_size("hidden_size", hidden_size)
        self.memory_size = m = check_size("memory_size", memory_size, maximum=MAX_WIDTH)
        self.theta = check_number("theta", theta, above=0)
        self.state_shapes = {"h": (d,), "m": (m,)}
        factory = factory_kwargs(device, dtype)
        self.e_x = nn.Parameter(torch.empty(1, input_size, **factory))
        self.e_h = nn.Parameter(torch.empty(1, d, **factory))
        self.e_m = nn.Parameter(torch.empty(1, m, **factory))
        self.W_x = nn.Parameter(torch.empty(d, input_size, **factory))
        self.W_h = nn.Parameter(torch.empty(d, d, **factory))
        self.W_m = nn.Parameter(torch.empty(d, m, **factory))
        self._system = legendre_system(m, self.theta)  # exact, for a core that becomes float64
        for name, value in zip(("A", "B"), self._system, strict=True):
            self.register_buffer(name, torch.empty(value.shape, **factory), persistent=False)
        self.register_load_state_dict_post_hook(LMU.reset_buffers)  # type: ignore[no-untyped-call]
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        for encoder in (self.e_x, self.e_h):
            bound = (3 / encoder.numel()) ** 0.5
            encoder.uniform_(-bound, bound, generator=generator)
        self.e_m.zero_()
        for weight in (self.W_x, self.W_h, self.W_m):
            nn.init.xavier_normal_(weight, generator=generator)
        self.reset_buffers()

    def reset_buffers(self, _: object = None) -> None:
        """Copy A and B from the exact system."""
        A, B = self._system
        fill_buffers(self, A=A, B=B)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.reset_buffers()  # not rounded to the dtype that was
        return self

    def project(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, torch.cat([self.W_x, self.e_x]))

    def step(self, projected: Tensor, state: State) -> tuple[Tensor, State]:
        h, m = state
        of_h = nn.functional.linear(h, torch.cat([self.W_h, self.e_h]))
        both = widened(projected + of_h)
        u = both[:, -1:] + widened(nn.functional.linear(m, self.e_m))
        with full_precision(m.device.type):
            m = torch.addmm(u * self.B, m, self.A.mT)
        h = torch.tanh(both[:, :-1] + widened(nn.functional.linear(m, self.W_m)))
        return h, (h, m)

    def recurrence(self) -> CellSpec:
        maps = torch.cat([self.W_x, self.e_x]), torch.cat([self.W_h, self.e_h])
        no_bias = maps[0].new_zeros(len(maps[0]))
        weights = maps[0], no_bias, maps[1], self.e_m.flatten(), self.W_m, self.A, self.B
        return CellSpec("lmu", (self.hidden_size, self.memory_size), weights)
