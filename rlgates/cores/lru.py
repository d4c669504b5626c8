"""The linear recurrent unit: a complex diagonal linear recurrence."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor, nn

from rlgates.cell import LinearCell, State, factory_kwargs, widened
from rlgates.errors import check_flag, check_number, check_size
from rlgates.kernels import LinearStep

# The largest |lambda|^2 that float32 can tell from 1.
LARGEST = 1 - 2.0**-24


class LRU(LinearCell):
    """The linear recurrent unit (Orvieto et al. 2023).

    With complex h, lambda, B and C of d units:

        lambda = exp(-exp(nu_log) + i exp(theta_log))
        gamma  = exp(gamma_log), or sqrt(1 - |lambda|^2) if not trained
        h'     = lambda * h + gamma * (B x)
        y      = Re(C h') + D x                the output

    |lambda| is below 1 for all parameters, up to rounding. The core is linear: nonlinearities
    belong to the layers on top of it.

    Initialization, for I inputs: |lambda|^2 uniform in [r_min^2, r_max^2], the phase uniform in
    [0, max_phase], gamma = sqrt(1 - |lambda|^2), which gives a unit the variance of its input; B
    normal with variance 1/2I for each of its two parts, C with 1/d, D with 1/I. No biases.

    Complex numbers are stored as pairs of real ones. Weights: `nu_log`, `theta_log` and
    `gamma_log` (d); `weight_in` (3 d, I), stacked B_re, B_im, D; `weight_out` (d, 2 d), columns
    C_re, C_im. The state is (h_re, h_im), initially zero. The traced forget gate is |lambda|,
    which is constant.

    Args:
        input_size: width of the input.
        hidden_size: number of complex units d.
        r_min, r_max: range of the initial |lambda|; nearer to 1 for longer memory.
        max_phase: largest initial phase, above 0 and at most 2 pi; smaller for longer sequences.
        trainable_gamma: whether gamma is trained, or follows |lambda|.
        device, dtype: of the parameters, as in torch.nn; float32 or float64.

    Raises:
        ValueError, TypeError: a size below 1 or not an integer, r_min and r_max not
            within 0 <= r_min <= r_max <= 1 or r_min = 1, a max_phase out of range.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        r_min: float = 0.0,
        r_max: float = 1.0,
        max_phase: float = math.tau,
        trainable_gamma: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.input_size = check_size("input_size", input_size)
        self.hidden_size = self.output_size = check_size("hidden_size", hidden_size)
        self.r_min, self.r_max = check_number("r_min", r_min), check_number("r_max", r_max)
        if not (0 <= self.r_min <= self.r_max <= 1 and self.r_min < 1):
            raise ValueError(
                "r_min and r_max must be 0 <= r_min <= r_max <= 1 with r_min below 1, "
                f"got {r_min} and {r_max}."
            )
        self.max_phase = check_number("max_phase", max_phase, above=0)
        if self.max_phase > math.tau:
            raise ValueError(f"max_phase must be at most 2 pi (math.tau), got {max_phase}.")
        self.trainable_gamma = check_flag("trainable_gamma", trainable_gamma)
        self.state_shapes = {"h_re": (hidden_size,), "h_im": (hidden_size,)}
        factory = factory_kwargs(device, dtype)
        self.nu_log = nn.Parameter(torch.empty(hidden_size, **factory))
        self.theta_log = nn.Parameter(torch.empty(hidden_size, **factory))
        if trainable_gamma:
            self.gamma_log = nn.Parameter(torch.empty(hidden_size, **factory))
        self.weight_in = nn.Parameter(torch.empty(3 * hidden_size, input_size, **factory))
        self.weight_out = nn.Parameter(torch.empty(hidden_size, 2 * hidden_size, **factory))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        tiny = torch.finfo(torch.float32).tiny  # keeps the logarithms finite
        like = self.nu_log
        rand = partial(
            torch.rand, like.shape, generator=generator, device=like.device, dtype=like.dtype
        )
        squared = rand()
        squared = self.r_min**2 + (self.r_max**2 - self.r_min**2) * squared
        nu = -0.5 * torch.log(squared.clamp(tiny, LARGEST))
        phase = self.max_phase * rand()
        self.nu_log.copy_(nu.log())
        self.theta_log.copy_(phase.clamp(min=tiny).log())
        if self.trainable_gamma:
            self.gamma_log.copy_(self._normalization().log())
        self.weight_in.normal_(0, self.input_size**-0.5, generator=generator)
        self.weight_in[: 2 * self.hidden_size] *= 0.5**0.5
        self.weight_out.normal_(0, self.hidden_size**-0.5, generator=generator)

    def _normalization(self) -> Tensor:
        """sqrt(1 - |lambda|^2), without cancellation near 1."""
        return torch.sqrt(-torch.expm1(-2 * torch.exp(self.nu_log)))

    def gate_weights(self) -> dict[str, Tensor]:
        """Views `nu_log`, `theta_log`, `gamma_log`, `B_re`, `B_im`, `D`, `C_re`, `C_im`."""
        vectors = {name: p.detach() for name, p in self.named_parameters() if p.ndim == 1}
        into = self.weight_in.detach().split(self.hidden_size)
        out_of = self.weight_out.detach().split(self.hidden_size, dim=1)
        return vectors | dict(
            zip(("B_re", "B_im", "D", "C_re", "C_im"), into + out_of, strict=True)
        )

    def linear(self, x: Tensor) -> LinearStep:
        """lambda, which is constant, gamma B x, and the skip term D x."""
        size = torch.exp(-torch.exp(self.nu_log))
        phase = torch.exp(self.theta_log)
        gamma = torch.exp(self.gamma_log) if self.trainable_gamma else self._normalization()
        factor = torch.cat([size * torch.cos(phase), size * torch.sin(phase)])
        b, d = self.weight_in.split([2 * self.hidden_size, self.hidden_size])
        # (gamma B) x takes fewer multiplications than gamma (B x).
        into = nn.functional.linear(x, gamma.repeat(2).unsqueeze(-1) * b)
        return LinearStep(factor, widened(into), widened(nn.functional.linear(x, d)))

    def read(self, h: Tensor, extra: Tensor | None) -> Tensor:
        read = real_product(h, self.weight_out)
        return read if extra is None else extra + read

    def forget_gate(self, projected: Tensor, state: State) -> Tensor:
        return torch.exp(-torch.exp(self.nu_log)).expand(len(projected), -1)


def real_product(h: Tensor, weight: Tensor) -> Tensor:
    """Re(C h) = C_re h_re - C_im h_im, for h (..., S) and C (O, S), real parts first."""
    # The sign is applied to the smaller tensor; in compiled code the number of rows may be unknown.
    if not torch.compiler.is_compiling() and h.numel() < weight.numel():
        re, im = h.chunk(2, dim=-1)
        h = torch.cat([re, -im], dim=-1)
    else:
        c_re, c_im = weight.chunk(2, dim=-1)
        weight = torch.cat([c_re, -c_im], dim=-1)
    return widened(nn.functional.linear(h, weight))
