"""The non-saturating recurrent unit: additive writes and erasures without gates."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from rlgates.cell import (
    NOT_AS_BUILT,
    Cell,
    State,
    computes_as,
    factory_kwargs,
    named_rows,
    widened,
)
from rlgates.errors import MAX_WIDTH, check_flag, check_size
from rlgates.kernels import CellSpec, NoKernel


class NRU(Cell):
    """Non-saturating recurrent unit (Chandar et al. 2019; unspecified details as in their code).

    With d = hidden_size, m = memory_size, k = num_heads, s = sqrt(k m):

        h' = relu(W_x_h x + W_h_h h + W_m_h m + b_h)
        alpha = W_alpha [h' ; m] + b_alpha,  beta = W_beta [h' ; m] + b_beta     k numbers each
        v1, v2, w1, w2 = W_v1 [h' ; m] + b_v1, ...                               s numbers each
        v = rows(v1 v2^T),  w = rows(w1 w2^T)                                    k rows of m
        m' = m + mean over the heads of (alpha v) - mean over the heads of (beta w)

    The maps other than that of h' read the new h and the old memory, but not x. rows(...)
    flattens the s x s products (index of v1 first), splits them into k rows of m and divides each
    row by its 5-norm (at least 1e-12). The output is h'.

    The state is (h, m), initially zero. It is unbounded: alpha and beta depend on the memory that
    they change, so it can grow exponentially. `Core(debug=True)` raises an error when it is no
    longer finite. There is no forget gate to trace.

    Weights and biases are sampled from U[-1/sqrt(n), 1/sqrt(n)] as in torch.nn.Linear, for a map
    of n inputs (input_size + d + m for h', d + m for the others); with zero biases, nothing
    would be written while the input is zero.

    Weights by name (`gate_weights`): W_x_h (d, input_size), W_h_h (d, d), W_m_h (d, m), b_h;
    W_alpha (k, d + m), b_alpha, W_beta, b_beta; W_v1 (s, d + m), b_v1, W_v2, b_v2, W_w1, b_w1,
    W_w2, b_w2; with layer_norm g_h and o_h (d). Stacking order in `weight_maps` and `bias_maps`:
    alpha, beta, v1, w1, v2, w2.

    Args:
        input_size: width of the input.
        hidden_size: number of units d.
        memory_size: width m of the memory; num_heads * memory_size must be a square number.
            None for the allowed size nearest to 64 * 1.5^log2(d / 128), which gives the
            paper's 64 for d = 128 and 144 for d = 512.
        num_heads: number k of rows written, and of rows erased, in a step.
        relu: a ReLU on alpha and beta, and on v and w before normalization.
        layer_norm: layer normalization of the pre-activation of h', with gain g_h, offset o_h
            and epsilon 1e-5.
        device, dtype: of the parameters, as in torch.nn; float32 or float64.

    Raises:
        ValueError, TypeError: a size below 1 or not an integer, a memory_size that does not fit
            num_heads (the message names the nearest), a flag that is not a bool.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        memory_size: int | None = None,
        num_heads: int = 4,
        relu: bool = False,
        layer_norm: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.input_size = check_size("input_size", input_size)
        self.hidden_size = self.output_size = d = check_size("hidden_size", hidden_size)
        self.num_heads = check_size("num_heads", num_heads, maximum=MAX_WIDTH)
        if memory_size is None:
            memory_size = _memory_near(64 * 1.5 ** math.log2(d / 128), self.num_heads)
        self.memory_size = m = check_size("memory_size", memory_size, maximum=MAX_WIDTH)
        self.side = math.isqrt(m * self.num_heads)
        if self.side**2 != m * self.num_heads:
            raise ValueError(
                f"memory_size * num_heads must be the square of a whole number, got {m} * "
                f"{self.num_heads}. Nearest memory_size allowed with num_heads={self.num_heads}: "
                f"{_memory_near(m, self.num_heads)}."
            )
        self.relu = check_flag("relu", relu)
        self.layer_norm = check_flag("layer_norm", layer_norm)
        self.state_shapes = {"h": (d,), "m": (m,)}
        factory = factory_kwargs(device, dtype)
        rows = 2 * self.num_heads + 4 * self.side
        self.weight_ih = nn.Parameter(torch.empty(d, self.input_size, **factory))
        self.weight_hh = nn.Parameter(torch.empty(d, d + m, **factory))
        self.bias = nn.Parameter(torch.empty(d, **factory))
        self.weight_maps = nn.Parameter(torch.empty(rows, d + m, **factory))
        self.bias_maps = nn.Parameter(torch.empty(rows, **factory))
        self.norm = nn.LayerNorm(d, **factory) if layer_norm else None
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        state = self.hidden_size + self.memory_size
        for parameter in (self.weight_ih, self.weight_hh, self.bias):
            bound = (self.input_size + state) ** -0.5
            parameter.uniform_(-bound, bound, generator=generator)
        for parameter in (self.weight_maps, self.bias_maps):
            parameter.uniform_(-(state**-0.5), state**-0.5, generator=generator)
        if self.norm is not None:
            self.norm.reset_parameters()

    def gate_weights(self) -> dict[str, Tensor]:
        """Views W_x_h, W_h_h, W_m_h, b_h, W_alpha, b_alpha, ...: see the class."""
        views = {"W_x_h": self.weight_ih.detach(), "b_h": self.bias.detach()}
        from_h, from_m = self.weight_hh.detach().tensor_split([self.hidden_size], dim=1)
        views |= {"W_h_h": from_h, "W_m_h": from_m}
        maps = dict.fromkeys(("alpha", "beta"), self.num_heads)
        maps |= dict.fromkeys(("v1", "w1", "v2", "w2"), self.side)
        views |= named_rows(maps, W=self.weight_maps, b=self.bias_maps)
        if self.norm is not None:
            views |= {"g_h": self.norm.weight.detach(), "o_h": self.norm.bias.detach()}
        return views

    def project(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight_ih, self.bias)

    def step(self, projected: Tensor, state: State) -> tuple[Tensor, State]:
        h, m = state
        z = widened(torch.addmm(projected, torch.cat([h, m], dim=-1), self.weight_hh.t()))
        h = torch.relu(z if self.norm is None else self.norm(z))
        read = torch.cat([h, m], dim=-1)
        z = widened(nn.functional.linear(read, self.weight_maps, self.bias_maps))
        # Writing (v) and erasing (w) are stacked on an axis of length 2.
        heads, side = self.num_heads, self.side
        amounts, first, second = (
            part.unflatten(-1, (2, part.shape[-1] // 2))
            for part in z.split([2 * heads, 2 * side, 2 * side], dim=-1)
        )
        products = (first.unsqueeze(-1) * second.unsqueeze(-2)).flatten(-2)
        if self.relu:
            amounts, products = torch.relu(amounts), torch.relu(products)
        rows = unit_rows(products.unflatten(-1, (heads, self.memory_size)))
        written, erased = (amounts.unsqueeze(-1) * rows).mean(dim=-2).unbind(1)
        return h, (h, m + (written - erased))

    def recurrence(self) -> CellSpec | NoKernel:
        if self.norm is not None and not computes_as(nn.LayerNorm, self.norm):
            return NOT_AS_BUILT
        maps = self.weight_ih, self.bias, self.weight_hh, self.weight_maps, self.bias_maps
        empty = self.bias.new_empty(0)
        norm = (empty, empty) if self.norm is None else (self.norm.weight, self.norm.bias)
        flags = self.relu, self.layer_norm
        sizes = self.hidden_size, self.memory_size, self.num_heads, self.side, *flags
        return CellSpec("nru", sizes, (*maps, *norm))


def unit_rows(v: Tensor) -> Tensor:
    """Each row divided by its 5-norm, which is clamped to at least 1e-12."""
    # Fifth powers overflow float32 above 5e7 and underflow below 1e-9, so each row is first
    # divided by its largest magnitude. Neither the result nor its gradient depends on it.
    largest = v.detach().abs().amax(dim=-1, keepdim=True).clamp(min=1e-12)
    return nn.functional.normalize(v / largest, p=5.0, dim=-1, eps=1.0)


def _memory_near(size: float, num_heads: int) -> int:
    """The memory_size nearest to `size` whose product with num_heads is a square number."""
    least = next(
        n for n in range(1, num_heads + 1) if math.isqrt(n * num_heads) ** 2 == n * num_heads
    )
    below = max(1, math.floor(math.sqrt(size / least)))
    return min((least * n * n for n in (below, below + 1)), key=lambda near: abs(near - size))
