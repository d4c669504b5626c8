"""State-space models with a diagonal state matrix: S4D, one per channel, and S5, one for all."""

from __future__ import annotations

import math
from functools import cache
from typing import Literal

import torch
from torch import Tensor, nn

from rlgates.cell import LinearCell, State, factory_kwargs, truncated_normal_, widened
from rlgates.cores.lru import real_product
from rlgates.errors import check_choice, check_flag, check_number, check_size
from rlgates.kernels import Channels, LinearScan, LinearStep

Complex = tuple[Tensor, Tensor]  # real and imaginary parts

Init = Literal["lin", "inv", "legs"]
Activation = Literal["half_glu1", "half_glu2", "full_glu", "gelu", "linear"]
ACTIVATIONS: dict[str, int] = {
    "half_glu1": 1,
    "half_glu2": 1,
    "full_glu": 2,
    "gelu": 0,
    "linear": 0,
}
"""The output activations of S5, with the number of maps that each has."""

_SLOWEST = -1e-4  # the largest real part of an eigenvalue that `clip_eigs` leaves
TRUNCATED = 0.87962566103423978  # standard deviation of a normal, truncated at two of its own


@cache
def hippo(size: int) -> tuple[Tensor, Tensor, Tensor]:
    """The normal part of the HiPPO-LegS matrix, diagonalized (Gu et al. 2022).

    Returns:
        imaginary parts of its eigenvalues (size / 2), those below 0, whose real parts are all -1/2;
        their eigenvectors (size, size / 2), complex; and the input matrix (size) of HiPPO. All in
        double precision; do not modify them.
    """
    n = torch.arange(size, dtype=torch.float64, device="cpu")
    b = torch.sqrt(2 * n + 1)
    outer = b.unsqueeze(1) * b
    skew = -0.5 * (torch.tril(outer, -1) - torch.triu(outer, 1))  # the normal part plus 1/2
    values, vectors = torch.linalg.eigh(-1j * skew)
    return values[: size // 2], vectors[:, : size // 2], b


def zero_order_hold(eigenvalues: Complex, step: Tensor) -> tuple[Complex, Complex]:
    """exp(Lambda Delta) and (exp(Lambda Delta) - 1) / Lambda, without cancellation.

    Args:
        eigenvalues: Lambda, real and imaginary parts; not zero.
        step: Delta, of the same shape.
    """
    re, im = eigenvalues
    decay, angle = re * step, im * step
    size, sin = torch.exp(decay), torch.sin(angle)
    a = size * torch.cos(angle), size * sin
    # exp(u + iv) - 1 = expm1(u) cos v - 2 sin(v/2)^2 + i exp(u) sin v
    less = torch.expm1(decay) * torch.cos(angle) - 2 * torch.sin(angle / 2).square()
    square = re.square() + im.square()
    return a, ((less * re + a[1] * im) / square, (a[1] * re - less * im) / square)


def log_steps_(
    tensor: Tensor, least: float, most: float, generator: torch.Generator | None
) -> None:
    """Fill with logarithms of steps, uniform from log(least) to log(most)."""
    tensor.uniform_(math.log(least), math.log(most), generator=generator)


def check_steps(least: float, most: float) -> tuple[float, float]:
    """The range of the initial steps, if it is valid; else raise ValueError."""
    checked = check_number("dt_min", least, above=0), check_number("dt_max", most, above=0)
    if checked[1] < checked[0]:
        raise ValueError(f"dt_max must be at least dt_min, got dt_min={least} and dt_max={most}.")
    return checked


def check_even(name: str, size: int) -> int:
    """`size`, if it is an even number of at least 2; else raise ValueError."""
    if check_size(name, size, minimum=2) % 2:
        raise ValueError(
            f"{name} must be even, since complex numbers come in pairs, got {size}. "
            f"Nearest allowed: {size - 1} or {size + 1}."
        )
    return size


class S4D(LinearCell):
    """The diagonal state-space model with one state per channel (Gu et al. 2022, "S4D").

    d channels, each a linear system of N real numbers, which are N / 2 complex ones:

        u  = W_u x + b_u                                 the channels
        A  = -exp(a_re) + i a_im,   Delta = exp(log_step)
        H' = exp(Delta A) * H + (exp(Delta A) - 1) / A * u      zero-order hold
        y  = 2 Re(sum over N / 2 of C * H') + D * u
        h  = (W_1 g + b_1) * sigmoid(W_2 g + b_2),  g = GELU(y)       the output

    This includes the map from the input to the channels (as in POPGym, since the input has another
    width), the recurrence, the skip term D, and the GELU and gated linear unit of the S4 layer. It
    leaves out that layer's dropout and the normalization and residual connection around it:
    `skip_connections` of `make_core` has a similar effect.

    Initially Re A = -1/2. For n = 0, ..., N/2 - 1, Im A is pi n ("lin"), or
    N / pi (N / (2 n + 1) - 1) ("inv"), or that of the eigenvalues of the normal part of HiPPO-LegS
    ("legs"). Steps are log-uniform from dt_min to dt_max, C complex normal with variance 1 for each
    of its parts, D normal with variance 1; maps as in torch.nn.Linear.

    Differences from the published code: the input matrix B is 1, as in its minimal version, since
    output and gradient depend on B C alone. With "legs" the initial C is scaled by the magnitudes
    of HiPPO's B in the eigenbasis; there its imaginary part is clipped, which depends on how the
    eigenvectors happen to be rotated. All parameters have the same learning rate.

    Complex numbers are stored as pairs of real ones, channel by channel. Weights: `weight_in` (d,
    I), `bias_in`; `log_step` (d); `a_re` and `a_im` (d, N / 2); `weight_out` (d, N), columns C_re,
    C_im; `skip` (d), which is D; `weight_glu` (2 d, d), stacked W_1, W_2, `bias_glu`. The state is
    (h_re, h_im), initially zero. The traced forget gate is |exp(Delta A)|, constant.

    Args:
        input_size: width of the input.
        hidden_size: number of channels d.
        ssm_size: size N of the state of a channel, an even number.
        init: initial imaginary parts of A, as above.
        dt_min, dt_max: range of the initial steps Delta; the longest memory is about 2 / dt_min.
        device, dtype: of the parameters, as in torch.nn; float32 or float64.

    Raises:
        ValueError, TypeError: a size below 1 or not an integer, an odd ssm_size, an unknown init,
            steps that are not positive or out of order.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        ssm_size: int = 64,
        init: Init = "lin",
        dt_min: float = 0.001,
        dt_max: float = 0.1,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.input_size = check_size("input_size", input_size)
        self.hidden_size = self.output_size = d = check_size("hidden_size", hidden_size)
        self.ssm_size = check_even("ssm_size", ssm_size)
        self.init = check_choice("init", init, ("lin", "inv", "legs"))
        self.dt_min, self.dt_max = check_steps(dt_min, dt_max)
        half = self.ssm_size // 2
        self.state_shapes = {"h_re": (d * half,), "h_im": (d * half,)}
        factory = factory_kwargs(device, dtype)
        self.weight_in = nn.Parameter(torch.empty(d, self.input_size, **factory))
        self.bias_in = nn.Parameter(torch.empty(d, **factory))
        self.log_step = nn.Parameter(torch.empty(d, **factory))
        self.a_re = nn.Parameter(torch.empty(d, half, **factory))
        self.a_im = nn.Parameter(torch.empty(d, half, **factory))
        self.weight_out = nn.Parameter(torch.empty(d, 2 * half, **factory))
        self.skip = nn.Parameter(torch.empty(d, **factory))
        self.weight_glu = nn.Parameter(torch.empty(2 * d, d, **factory))
        self.bias_glu = nn.Parameter(torch.empty(2 * d, **factory))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        for weight, bias in ((self.weight_in, self.bias_in), (self.weight_glu, self.bias_glu)):
            bound = weight.shape[1] ** -0.5
            weight.uniform_(-bound, bound, generator=generator)
            bias.uniform_(-bound, bound, generator=generator)
        log_steps_(self.log_step, self.dt_min, self.dt_max, generator)
        size = self.ssm_size
        n = torch.arange(size // 2, dtype=torch.float64, device="cpu")
        match self.init:
            case "lin":
                imaginary = math.pi * n
            case "inv":
                imaginary = size / math.pi * (size / (2 * n + 1) - 1)
            case _:
                imaginary = -hippo(size)[0]
        self.a_re.fill_(math.log(0.5))
        self.a_im.copy_(imaginary.expand_as(self.a_im))
        self.weight_out.normal_(generator=generator)
        if self.init == "legs":
            _, vectors, b = hippo(size)
            sizes = (vectors.mH @ b.to(vectors.dtype)).abs()
            self.weight_out.mul_(sizes.repeat(2).to(self.weight_out))
        self.skip.normal_(generator=generator)

    def gate_weights(self) -> dict[str, Tensor]:
        """Views W_u, b_u, log_step, a_re, a_im, C_re, C_im, D, W_1, W_2, b_1 and b_2."""
        c_re, c_im = self.weight_out.detach().chunk(2, dim=1)
        w_1, w_2 = self.weight_glu.detach().chunk(2)
        b_1, b_2 = self.bias_glu.detach().chunk(2)
        views = {"W_u": self.weight_in, "b_u": self.bias_in, "log_step": self.log_step}
        views |= {"a_re": self.a_re, "a_im": self.a_im, "D": self.skip}
        maps = {"C_re": c_re, "C_im": c_im, "W_1": w_1, "W_2": w_2, "b_1": b_1, "b_2": b_2}
        return {name: view.detach() for name, view in views.items()} | maps

    def _channels(self, x: Tensor) -> Channels:
        """The channels, with exp(Delta A), what each writes, and C as it is read."""
        u = widened(nn.functional.linear(x, self.weight_in, self.bias_in))
        step = torch.exp(self.log_step).unsqueeze(-1)
        held = zero_order_hold((-torch.exp(self.a_re), self.a_im), step)
        c_re, c_im = self.weight_out.chunk(2, dim=1)
        a, b, c = (torch.stack(parts).flatten() for parts in (*held, (2 * c_re, -2 * c_im)))
        return Channels(u, None, None, None, a, b, c, self.skip)

    def linear(self, x: Tensor) -> LinearStep:
        """exp(Delta A), which is constant, what each channel writes, and the skip term D u."""
        u, *_, a, b, _, skip = self._channels(x)
        written = u.unsqueeze(-2).unsqueeze(-1) * b.view(2, *self.a_re.shape)
        return LinearStep(a, written.flatten(-3), skip * u)

    def recurrence(self) -> LinearScan:
        return LinearScan(
            self.linear,
            self.read,
            is_complex=True,
            channels=lambda x, *rest: (self._channels(x), rest[0]),
            behind=self._behind,
        )

    def read(self, h: Tensor, extra: Tensor | None) -> Tensor:
        assert extra is not None
        c_re, c_im = self.weight_out.chunk(2, dim=1)
        c = 2 * torch.stack([c_re, -c_im])
        return self._behind((h.unflatten(-1, c.shape) * c).sum((-3, -1)) + extra)

    def _behind(self, y: Tensor) -> Tensor:
        """The output from what the channels give."""
        g = nn.functional.gelu(y)
        return nn.functional.glu(
            widened(nn.functional.linear(g, self.weight_glu, self.bias_glu)), dim=-1
        )

    def forget_gate(self, projected: Tensor, state: State) -> Tensor:
        decay = torch.exp(self.a_re) * torch.exp(self.log_step).unsqueeze(-1)
        return torch.exp(-decay).flatten().expand(len(projected), -1)


class S5(LinearCell):
    """The diagonal state-space model with one state for all channels (Smith et al. 2023, "S5").

    A linear system of P real numbers, which are P / 2 complex ones, each with its own step:

        Lambda = lambda_re + i lambda_im,   Delta = exp(log_step)
        h' = exp(Lambda Delta) * h + (exp(Lambda Delta) - 1) / Lambda * (B x)   zero-order hold
        y  = 2 Re(C h') + D x

    and the output is y after an activation of the S5 layer, with g = GELU(y):

        half_glu1    g * sigmoid(W_2 g + b_2)
        half_glu2    y * sigmoid(W_2 g + b_2)
        full_glu     (W_1 g + b_1) * sigmoid(W_2 g + b_2)
        gelu         g
        linear       y

    This includes the system and the activation, but not the dropout, normalization and residual
    connection of the published layer: `skip_connections` of `make_core` has a similar effect.

    Initially Lambda are the eigenvalues of the normal part of HiPPO-LegS, in `blocks` equal blocks;
    B = V^H B_0 and C = C_0 V for its eigenvectors V, with a real B_0 and a complex C_0, truncated
    normal with variance 1/P; D normal with variance 1/I; steps log-uniform from dt_min to dt_max.
    Maps of the activation have variance 1/d, their biases are zero.

    Differences from the published code: D is a matrix here; there it is diagonal, since the input
    has as many channels as the output. Eigenvalues are clipped by default here, since an agent's
    episodes may be longer than in training.

    Complex numbers are stored as pairs of real ones. Weights: `lambda_re`, `lambda_im` and
    `log_step` (P / 2); `weight_in` (P, I), stacked B_re, B_im; `weight_out` (d, P), columns C_re,
    C_im; `skip` (d, I), which is D; `weight_glu`, stacked W_1, W_2, and `bias_glu`, if there are
    such maps. The state is (h_re, h_im), initially zero. The traced forget gate is |exp(Lambda
    Delta)|, constant.

    Args:
        input_size: width of the input.
        hidden_size: width of the output d.
        ssm_size: size P of the state; by default 2 d.
        blocks: number of blocks of the initial Lambda, each of an even size.
        activation: of the output, as above.
        clip_eigs: keep lambda_re below -0.0001, so that the state cannot grow without bound.
        dt_min, dt_max: range of the initial steps Delta; the longest memory is about 2 / dt_min.
        device, dtype: of the parameters, as in torch.nn; float32 or float64.

    Raises:
        ValueError, TypeError: a size below 1 or not an integer, an ssm_size that does not split
            into `blocks` even sizes, an unknown activation, steps that are not positive or out of
            order.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        ssm_size: int | None = None,
        blocks: int = 1,
        activation: Activation = "half_glu1",
        clip_eigs: bool = True,
        dt_min: float = 0.001,
        dt_max: float = 0.1,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.input_size = check_size("input_size", input_size)
        self.hidden_size = self.output_size = d = check_size("hidden_size", hidden_size)
        self.ssm_size = p = check_even("ssm_size", 2 * d if ssm_size is None else ssm_size)
        self.blocks = check_size("blocks", blocks)
        if p % (2 * self.blocks):
            raise ValueError(
                f"ssm_size must be a multiple of 2 * blocks = {2 * self.blocks}, got {p}."
            )
        self.activation = check_choice("activation", activation, ACTIVATIONS)
        self.clip_eigs = check_flag("clip_eigs", clip_eigs)
        self.dt_min, self.dt_max = check_steps(dt_min, dt_max)
        self.state_shapes = {"h_re": (p // 2,), "h_im": (p // 2,)}
        factory = factory_kwargs(device, dtype)
        self.lambda_re = nn.Parameter(torch.empty(p // 2, **factory))
        self.lambda_im = nn.Parameter(torch.empty(p // 2, **factory))
        self.log_step = nn.Parameter(torch.empty(p // 2, **factory))
        self.weight_in = nn.Parameter(torch.empty(p, self.input_size, **factory))
        self.weight_out = nn.Parameter(torch.empty(d, p, **factory))
        self.skip = nn.Parameter(torch.empty(d, self.input_size, **factory))
        self.maps = ("1", "2")[2 - ACTIVATIONS[self.activation] :]
        if self.maps:
            self.weight_glu = nn.Parameter(torch.empty(len(self.maps) * d, d, **factory))
            self.bias_glu = nn.Parameter(torch.empty(len(self.maps) * d, **factory))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        d, p = self.hidden_size, self.ssm_size
        size = p // self.blocks
        imaginary, vectors, _ = hippo(size)
        self.lambda_re.fill_(-0.5)
        self.lambda_im.copy_(imaginary.repeat(self.blocks))
        log_steps_(self.log_step, self.dt_min, self.dt_max, generator)
        # V is block-diagonal: the product with each block on its own.
        v = vectors.to(device=self.skip.device, dtype=self.skip.dtype.to_complex())

        def sampled(*shape: int) -> Tensor:
            return truncated_normal_(self.skip.new_empty(shape), p, generator) / TRUNCATED

        b = v.mH @ sampled(self.blocks, size, self.input_size).to(v.dtype)
        c = torch.complex(sampled(d, self.blocks, size), sampled(d, self.blocks, size)) @ v
        self.weight_in.copy_(torch.cat([b.real, b.imag]).flatten(0, 1))
        self.weight_out.copy_(torch.cat([c.real.flatten(1), c.imag.flatten(1)], dim=1))
        self.skip.normal_(0, self.input_size**-0.5, generator=generator)
        if self.maps:
            truncated_normal_(self.weight_glu, d, generator).div_(TRUNCATED)
            self.bias_glu.zero_()

    def gate_weights(self) -> dict[str, Tensor]:
        """Views lambda_re, lambda_im, log_step, B_re, B_im, C_re, C_im, D, W_1, b_1, W_2, b_2."""
        views = {name: getattr(self, name).detach() for name in ("lambda_re", "lambda_im")}
        views["log_step"] = self.log_step.detach()
        views["B_re"], views["B_im"] = self.weight_in.detach().chunk(2)
        views["C_re"], views["C_im"] = self.weight_out.detach().chunk(2, dim=1)
        views["D"] = self.skip.detach()
        if self.maps:
            for kind, stacked in (("W", self.weight_glu), ("b", self.bias_glu)):
                parts = stacked.detach().split(self.hidden_size)
                views |= {f"{kind}_{k}": part for k, part in zip(self.maps, parts, strict=True)}
        return views

    def _decay(self) -> Tensor:
        return self.lambda_re.clamp(max=_SLOWEST) if self.clip_eigs else self.lambda_re

    def linear(self, x: Tensor) -> LinearStep:
        """exp(Lambda Delta), which is constant, what is written, and the skip term D x."""
        a, (f_re, f_im) = zero_order_hold((self._decay(), self.lambda_im), torch.exp(self.log_step))
        b_re, b_im = self.weight_in.chunk(2)
        f_re, f_im = f_re.unsqueeze(-1), f_im.unsqueeze(-1)
        into = torch.cat([f_re * b_re - f_im * b_im, f_re * b_im + f_im * b_re])
        written = widened(nn.functional.linear(x, into))
        return LinearStep(torch.cat(a), written, widened(nn.functional.linear(x, self.skip)))

    def read(self, h: Tensor, extra: Tensor | None) -> Tensor:
        assert extra is not None
        y = 2 * real_product(h, self.weight_out) + extra
        if self.activation == "linear":
            return y
        g = nn.functional.gelu(y, approximate="tanh")
        if self.activation == "gelu":
            return g
        z = widened(nn.functional.linear(g, self.weight_glu, self.bias_glu))
        if self.activation == "full_glu":
            return nn.functional.glu(z, dim=-1)
        return (g if self.activation == "half_glu1" else y) * torch.sigmoid(z)

    def forget_gate(self, projected: Tensor, state: State) -> Tensor:
        return torch.exp(self._decay() * torch.exp(self.log_step)).expand(len(projected), -1)
