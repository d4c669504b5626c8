"""Stable Hadamard memory: a matrix that is calibrated, element by element, and written to."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rlgates.cell import LinearCell, factory_kwargs, full_precision, named_rows, widened
from rlgates.errors import check_normalized, check_size
from rlgates.kernels import LinearStep

_SMALLEST = 1e-5  # added to the sums by which keys and queries are divided


class SHM(LinearCell):
    """The stable Hadamard memory (Le et al. 2025).

    With a matrix M (m, m) of values and keys:

        n     = LayerNorm(x)
        k     = relu(W_k n) / (sum relu(W_k n) + 0.00001),   q likewise
        eta   = sigmoid(w_eta n)                   how much is written, one number
        C     = 1 + tanh(theta_l (W_c n)^T)        the calibration, from 0 to 2
        M'    = C * M + eta (W_v n) k^T
        h     = W_o (M' q + W_s n + b_s) + b_o     the output

    theta_l is a row of a matrix of L learned rows, sampled for each step and sequence, so that
    products of calibrations neither vanish nor explode: their expectation stays near 1. C may
    exceed 1, so it is not a forget gate and is not traced.

    In training mode the rows for all steps of a call are sampled before its first step, from
    torch's global generator. In evaluation mode theta is the mean of the rows, which gives the
    expected output to first order; other training noise is replaced by its expectation likewise.
    `num_rows=1` has no noise, but then M can grow exponentially.

    The published code has two versions. For POPGym it always takes row 0, as with `num_rows=1`; for
    meta-learning it also samples rows in evaluation, and clips M to 100 (not done here, because M'
    must be linear in M). The term W_s n is in the code but not in the paper.

    Maps are sampled as in torch.nn.Linear, theta Glorot uniform. Weights: `weight_in` (5 m + 1, I),
    stacked k, q, v, c, s (m each) and eta; `bias_skip` (m); `norm_weight`, `norm_bias` (I); `theta`
    (L, m); `weight_out` (d, m), `bias_out`. The state is h, M row by row (one per value), initially
    zero.

    Args:
        input_size: width of the input, at least 2: of one number, LayerNorm leaves nothing.
        hidden_size: width of the output d.
        memory_size: number of rows and columns of the memory m.
        num_rows: number L of rows of theta.
        device, dtype: of the parameters, as in torch.nn; float32 or float64.

    Raises:
        ValueError, TypeError: a size that is too small or not an integer.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        memory_size: int = 24,
        num_rows: int = 128,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.input_size = check_normalized(
            "input_size", input_size, "the layer would not see its input"
        )
        self.hidden_size = self.output_size = d = check_size("hidden_size", hidden_size)
        self.memory_size = m = check_size("memory_size", memory_size)
        self.num_rows = check_size("num_rows", num_rows)
        self.state_shapes = {"h": (m * m,)}
        self.maps = {**dict.fromkeys(("k", "q", "v", "c", "s"), m), "eta": 1}
        factory = factory_kwargs(device, dtype)
        self.weight_in = nn.Parameter(torch.empty(5 * m + 1, self.input_size, **factory))
        self.bias_skip = nn.Parameter(torch.empty(m, **factory))
        self.norm_weight = nn.Parameter(torch.empty(self.input_size, **factory))
        self.norm_bias = nn.Parameter(torch.empty(self.input_size, **factory))
        self.theta = nn.Parameter(torch.empty(self.num_rows, m, **factory))
        self.weight_out = nn.Parameter(torch.empty(d, m, **factory))
        self.bias_out = nn.Parameter(torch.empty(d, **factory))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        self.norm_weight.fill_(1)
        self.norm_bias.zero_()
        for width, parameters in (
            (self.input_size, (self.weight_in, self.bias_skip)),
            (self.memory_size, (self.weight_out, self.bias_out)),
        ):
            for parameter in parameters:
                parameter.uniform_(-(width**-0.5), width**-0.5, generator=generator)
        nn.init.xavier_uniform_(self.theta, generator=generator)

    def gate_weights(self) -> dict[str, Tensor]:
        """Views W_k, W_q, W_v, W_c, W_s, W_eta, b_s, g_n, o_n (of the norm), theta, W_o, b_o."""
        views = {"b_s": self.bias_skip, "g_n": self.norm_weight, "o_n": self.norm_bias}
        views |= {"theta": self.theta, "W_o": self.weight_out, "b_o": self.bias_out}
        stacked = named_rows(self.maps, W=self.weight_in)
        return stacked | {name: view.detach() for name, view in views.items()}

    def linear(self, x: Tensor) -> LinearStep:
        """C, what is written, and what reads the memory: q and the skip term."""
        n = nn.functional.layer_norm(x, (self.input_size,), self.norm_weight, self.norm_bias)
        z = widened(nn.functional.linear(n, self.weight_in))
        k, q, v, c, s, eta = z.split([*self.maps.values()], dim=-1)
        k, q = (_shares(torch.relu(part)) for part in (k, q))
        theta = self.theta.mean(dim=0)
        if self.training and self.num_rows > 1:
            drawn = torch.randint(self.num_rows, x.shape[:-1], device=x.device)
            theta = self.theta[drawn]
        calibration = 1 + torch.tanh(theta.unsqueeze(-1) * c.unsqueeze(-2))
        written = (torch.sigmoid(eta) * v).unsqueeze(-1) * k.unsqueeze(-2)
        extra = torch.cat([q, s + self.bias_skip], dim=-1)
        return LinearStep(calibration.flatten(-2), written.flatten(-2), extra)

    def read(self, h: Tensor, extra: Tensor | None) -> Tensor:
        assert extra is not None
        q, s = extra.chunk(2, dim=-1)
        memory = h.unflatten(-1, (self.memory_size, self.memory_size))
        with full_precision(h.device.type):
            attended = (memory @ q.unsqueeze(-1)).squeeze(-1)
        return widened(nn.functional.linear(attended + s, self.weight_out, self.bias_out))


def _shares(z: Tensor) -> Tensor:
    """Numbers that are not negative, divided by their sum."""
    return z / (_SMALLEST + z.sum(dim=-1, keepdim=True))
