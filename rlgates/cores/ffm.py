"""Fast and forgetful memory: decaying, rotating traces of the input."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor, nn

from rlgates.cell import LinearCell, State, factory_kwargs, named_rows, widened
from rlgates.errors import check_normalized, check_number, check_size
from rlgates.kernels import LinearStep

# The published code keeps alpha below log(the largest float64) / 1024 - 0.01, with which 1024
# steps do not overflow. A scan has no such limit; the initial values stay.
_LARGEST_ALPHA = math.log(torch.finfo(torch.float64).max) / 1024 - 0.02
_FORGOTTEN = 0.01  # what is left of an input after max_period steps, in the slowest trace


class FFM(LinearCell):
    """Fast and forgetful memory (Morad et al. 2023).

    A memory of m traces in c contexts, complex numbers H (m, c), with L_k(x) = W_k x + b_k:

        y  = L_y * sigmoid(L_i)                       what is written, through an input gate
        H' = exp(-|alpha|) exp(-i omega)^T * H + y    y is added in every context
        z  = C_re Re(H') + C_im Im(H') + b_z
        o  = sigmoid(L_o)                             the output gate
        h  = o * LayerNorm(z) + (1 - o) * L_s         the output

    LayerNorm has no weights. alpha (m) is how fast a trace decays, and omega (c) the angle by which
    a context turns in a step, which tells the memory how long ago something was written.

    Initially alpha is evenly spaced from fast (0.673, which halves a trace in a step) to the rate
    that leaves a hundredth after `max_period` steps; the periods 2 pi / omega are evenly spaced
    from `min_period` to `max_period`. Maps are sampled as in torch.nn.Linear.

    Differences from the published code: there a context turns by exp(+i omega), which equals this
    with the sign of C_im changed; alpha has the opposite sign, and is clipped to [1e-8, 0.683],
    because the sum over time is computed with growing powers, which a scan does not need.

    Complex numbers are stored as pairs of real ones, traces first: number i c + j is trace i in
    context j. Stacking order of `weight_in` (2 m + 2 d, I) and `bias_in`: y (m), s (d), i (m), o
    (d). `weight_out` (d, 2 m c) has the columns of C_re, then of C_im, with `bias_out`. The state
    is (h_re, h_im), initially zero. The traced forget gate is exp(-|alpha|), constant, one per
    trace.

    Args:
        input_size: width of the input.
        hidden_size: width of the output d, at least 2: of one number, LayerNorm leaves nothing.
        memory_size: number of traces m.
        context_size: number of contexts c.
        min_period, max_period: the initial periods in steps, above 0 and in this order.
        device, dtype: of the parameters, as in torch.nn; float32 or float64.

    Raises:
        ValueError, TypeError: a size that is too small or not an integer, periods out of order.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        memory_size: int = 32,
        context_size: int = 4,
        min_period: float = 1.0,
        max_period: float = 1024.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.input_size = check_size("input_size", input_size)
        self.hidden_size = self.output_size = d = check_normalized(
            "hidden_size", hidden_size, "nothing of the memory would reach the output"
        )
        self.memory_size = m = check_size("memory_size", memory_size)
        self.context_size = c = check_size("context_size", context_size)
        self.min_period = check_number("min_period", min_period, above=0)
        self.max_period = check_number("max_period", max_period, above=0)
        if self.max_period < self.min_period:
            raise ValueError(
                "max_period must be at least min_period, got "
                f"min_period={min_period} and max_period={max_period}."
            )
        self.maps = {"y": m, "s": d, "i": m, "o": d}
        self.state_shapes = {"h_re": (m * c,), "h_im": (m * c,)}
        factory = factory_kwargs(device, dtype)
        self.weight_in = nn.Parameter(torch.empty(2 * m + 2 * d, self.input_size, **factory))
        self.bias_in = nn.Parameter(torch.empty(2 * m + 2 * d, **factory))
        self.alpha = nn.Parameter(torch.empty(m, **factory))
        self.omega = nn.Parameter(torch.empty(c, **factory))
        self.weight_out = nn.Parameter(torch.empty(d, 2 * m * c, **factory))
        self.bias_out = nn.Parameter(torch.empty(d, **factory))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        for weight, bias in ((self.weight_in, self.bias_in), (self.weight_out, self.bias_out)):
            bound = weight.shape[1] ** -0.5
            weight.uniform_(-bound, bound, generator=generator)
            bias.uniform_(-bound, bound, generator=generator)
        slowest = min(-math.log(_FORGOTTEN) / self.max_period, _LARGEST_ALPHA)
        spaced = partial(torch.linspace, dtype=self.alpha.dtype, device=self.alpha.device)
        self.alpha.copy_(spaced(_LARGEST_ALPHA, slowest, self.memory_size))
        self.omega.copy_(math.tau / spaced(self.min_period, self.max_period, self.context_size))

    def gate_weights(self) -> dict[str, Tensor]:
        """Views `W_k` and `b_k` of y, s, i and o, `alpha`, `omega`, `C_re`, `C_im` and `b_z`."""
        views = named_rows(self.maps, W=self.weight_in, b=self.bias_in)
        c_re, c_im = self.weight_out.detach().chunk(2, dim=1)
        decay = {"alpha": self.alpha.detach(), "omega": self.omega.detach()}
        return views | decay | {"C_re": c_re, "C_im": c_im, "b_z": self.bias_out.detach()}

    def linear(self, x: Tensor) -> LinearStep:
        """The decay and turn, which are constant, y in every context, and o and L_s."""
        m, d = self.memory_size, self.hidden_size
        z = widened(nn.functional.linear(x, self.weight_in, self.bias_in))
        y, s, i, o = z.split([m, d, m, d], dim=-1)
        written = (y * torch.sigmoid(i)).repeat_interleave(self.context_size, dim=-1)
        size = torch.exp(-self.alpha.abs()).unsqueeze(-1)
        turn = torch.cat([size * torch.cos(self.omega), -size * torch.sin(self.omega)])
        b = torch.cat([written, torch.zeros_like(written)], dim=-1)
        return LinearStep(turn.flatten(), b, torch.cat([torch.sigmoid(o), s], dim=-1))

    def read(self, h: Tensor, extra: Tensor | None) -> Tensor:
        assert extra is not None
        o, s = extra.chunk(2, dim=-1)
        z = widened(nn.functional.linear(h, self.weight_out, self.bias_out))
        return torch.lerp(s, nn.functional.layer_norm(z, (self.hidden_size,)), o)

    def forget_gate(self, projected: Tensor, state: State) -> Tensor:
        return torch.exp(-self.alpha.abs()).expand(len(projected), -1)
