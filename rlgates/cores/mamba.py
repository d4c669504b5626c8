"""Selective state-space models: Mamba and Mamba-2, each with its short causal convolution."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor, nn

from rlgates import kernels
from rlgates.cell import LinearCell, State, factory_kwargs, full_precision, named_rows, widened
from rlgates.cores.blocks import Writes, read_memory
from rlgates.cores.ssm import check_steps
from rlgates.errors import check_size, nearest_divisor
from rlgates.kernels import AllSteps, Channels, LinearScan, LinearStep

_LEAST_STEP = 1e-4  # of the initial steps, whatever dt_min is


class Selective(LinearCell):
    """A cell that is linear in its state, whose coefficients read a convolution of its inputs.

    The input is projected to `weight_in` x. The first `conv_weight` rows of that are convolved over
    the last steps of the episode, with zeros before it, and passed through silu. The state is x,
    the inputs of the convolution at earlier steps, the oldest first, and h.

    Attributes:
        inner_size: width of what h writes and reads.
        conv_size: steps that the convolution reads.
        ssm_size: numbers in h for each number of the inner width.
    """

    learnable = ("h",)  # before an episode there are no inputs
    inner_size: int
    conv_size: int
    ssm_size: int
    weight_in: nn.Parameter
    conv_weight: nn.Parameter
    conv_bias: nn.Parameter
    skip: nn.Parameter
    weight_out: nn.Parameter

    def make(self, projected: int, convolved: int, skips: int, factory: dict[str, object]) -> None:
        """Make the parameters and the state that both cells have.

        Args:
            projected, convolved: widths of the projected input, and of the part that is convolved.
            skips: number of skip weights.
            factory: as in `rlgates.cell.factory_kwargs`.
        """

        def parameter(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(shape, **factory))  # type: ignore[call-overload]

        self.state_shapes = {
            "x": (self.conv_size - 1, convolved),
            "h": (self.inner_size * self.ssm_size,),
        }
        self.weight_in = parameter(projected, self.input_size)
        self.conv_weight = parameter(convolved, self.conv_size)
        self.conv_bias = parameter(convolved)
        self.skip = parameter(skips)
        self.weight_out = parameter(self.output_size, self.inner_size)

    def reset_maps(self, generator: torch.Generator | None) -> None:
        """Sample the maps as torch.nn.Linear and Conv1d do, and set the skip weights to 1."""
        for weight in (self.weight_in, self.conv_weight, self.weight_out):
            bound = weight.shape[1] ** -0.5
            weight.uniform_(-bound, bound, generator=generator)
        bound = self.conv_size**-0.5
        self.conv_bias.uniform_(-bound, bound, generator=generator)
        self.skip.fill_(1)

    def project(self, x: Tensor) -> Tensor:
        """The projected input (T, B, P), before the convolution."""
        return widened(nn.functional.linear(x, self.weight_in))

    @abstractmethod
    def linear(self, x: Tensor) -> LinearStep:
        """a, b and what reads h, from the projected and convolved input (T, B, P)."""

    def convolve(
        self, u: Tensor, window: Tensor, episode_starts: Tensor | None, native: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Convolve the leading part of the projected input.

        Args:
            u: these numbers (T, B, C).
            window: those of earlier steps, (B, conv_size - 1, C).
            episode_starts: (T, B) bool, true where no earlier step counts; or None.
            native: whether native code may do it.

        Returns:
            silu of the convolved numbers, and the new window.
        """
        if native:
            maps = self.conv_weight, self.conv_bias
            if (
                result := kernels.convolve(u, window.to(u.dtype), *maps, episode_starts)
            ) is not None:
                return result
        steps = len(u)
        all_steps = torch.cat([window.transpose(0, 1).to(u.dtype), u])
        total = torch.addcmul(self.conv_bias, u, self.conv_weight[:, -1])
        begins = fresh = episode_starts  # at this step, or since the lagged one
        kept = [u[-1]]
        for lag in range(1, self.conv_size):
            first = self.conv_size - 1 - lag
            lagged = all_steps[first : first + steps]
            if begins is not None and fresh is not None:
                if lag > 1:
                    begins = torch.cat([torch.zeros_like(begins[:1]), begins[:-1]])
                    fresh = fresh | begins
                lagged = lagged.masked_fill(fresh.unsqueeze(-1), 0)
            total = torch.addcmul(total, lagged, self.conv_weight[:, first])
            kept.append(lagged[-1])
        return nn.functional.silu(total), torch.stack(kept[-2::-1], dim=1)

    def _convolved(
        self, z: Tensor, window: Tensor, episode_starts: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The projected input (T, B, P) with its first numbers convolved, and the new window."""
        width = len(self.conv_weight)
        u, others = z.split([width, z.shape[-1] - width], dim=-1)
        u, window = self.convolve(u, window, episode_starts)
        return torch.cat([u, others], dim=-1), window

    def step(self, projected: Tensor, state: State) -> tuple[Tensor, State]:
        window, h = state
        convolved, window = self._convolved(projected.unsqueeze(0), window, None)
        a, b, extra = self.linear(convolved)
        h = torch.addcmul(b[0], a[0], h)
        return self.read(h, None if extra is None else extra[0]), (window, h)

    def _scan(
        self, systems: Callable[[Tensor, Tensor], Channels], behind: Callable[[Tensor], Tensor]
    ) -> LinearScan:
        """The scan.

        Args:
            systems: gives the channels from the two parts of the projected input, that which was
                convolved and the rest.
            behind: gives the output from theirs.
        """
        shape = self.state_shapes["x"]

        def before(
            x: Tensor, window: Tensor, episode_starts: Tensor | None
        ) -> tuple[Tensor, Tensor]:
            window = window.unflatten(-1, shape)
            convolved, window = self._convolved(self.project(x), window, episode_starts)
            return convolved, window.flatten(1)

        def channels(
            x: Tensor, window: Tensor, episode_starts: Tensor | None
        ) -> tuple[Channels, Tensor]:
            z = self.project(x)
            width = len(self.conv_weight)
            u, rest = z.split([width, z.shape[-1] - width], dim=-1)
            u, window = self.convolve(u, window.unflatten(-1, shape), episode_starts, native=True)
            return systems(u, rest), window.flatten(1)

        return LinearScan(
            self.linear,
            self.read,
            window=math.prod(shape),
            before=before,
            channels=channels,
            behind=behind,
        )

    def forget_gate(self, projected: Tensor, state: State) -> Tensor:
        convolved, _ = self._convolved(projected.unsqueeze(0), state[0], None)
        return self.linear(convolved).a[0]

    def gated(self, h: Tensor, extra: Tensor | None) -> Tensor:
        """(H' C + D u) * silu(z), from h and C, D u and silu(z) side by side."""
        assert extra is not None
        inner, n = self.inner_size, self.ssm_size
        c, skipped, gate = extra.split([n, inner, inner], dim=-1)
        with full_precision(h.device.type):
            y = (h.unflatten(-1, (inner, n)) @ c.unsqueeze(-1)).squeeze(-1)
        result: Tensor = (y + skipped) * gate
        return result


def step_biases_(
    bias: Tensor, least: float, most: float, generator: torch.Generator | None
) -> None:
    """Fill with biases whose softplus is log-uniform from `least` to `most`."""
    bias.uniform_(math.log(least), math.log(most), generator=generator)
    steps = bias.exp().clamp(min=_LEAST_STEP)
    bias.copy_(steps + torch.log(-torch.expm1(-steps)))


class Mamba(Selective):
    """Mamba's selective state-space model, S6, in its block (Gu and Dao 2023).

    The inner width is e = expand d, and h is a matrix H (e, N):

        u, z  = W_u x, W_z x
        u     = silu(conv(u))                     each number over the last conv_size steps
        t     = softplus(W_t (W_r u) + b_t)       the step, of each of the e numbers
        A     = -exp(a_log)
        H'    = exp(t A) * H + (t u) (W_B u)^T
        y     = (H' (W_C u) + D u) * silu(z)
        h     = W_o y                             the output

    This is the whole block of the published code, without the normalization before it and the
    residual connection around it: `skip_connections` of `make_core` has a similar effect. The input
    of the published block is as wide as its output; here it may have any width. The published fast
    paths for a GPU are left out.

    Initially A = -1, ..., -N in each row, D = 1, and the steps are log-uniform from dt_min to
    dt_max (not below 0.0001); W_t is uniform in 1/sqrt(dt_rank), other maps are sampled as in
    torch.nn.Linear and Conv1d.

    Weights: `weight_in` (2 e, I), stacked u, z; `conv_weight` (e, conv_size), the last column for
    the current step, `conv_bias`; `weight_read` (dt_rank + 2 N, e), stacked r, B, C; `weight_step`
    (e, dt_rank), `bias_step`; `a_log` (e, N); `skip` (e), which is D; `weight_out` (d, e). The
    state is x (conv_size - 1, e), what was convolved at earlier steps, the oldest first, and h
    (e N), both initially zero. The traced forget gate is exp(t A).

    Args:
        input_size: width of the input.
        hidden_size: width of the output d.
        ssm_size: size N of the state for each number of the inner width.
        conv_size: steps that the convolution reads, at least 2.
        expand: the inner width in units of d.
        dt_rank: rank of the map to the steps; by default d / 16, rounded up.
        dt_min, dt_max: range of the initial steps.
        device, dtype: of the parameters, as in torch.nn; float32 or float64.

    Raises:
        ValueError, TypeError: a size that is too small or not an integer, steps that are not
            positive or out of order.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        ssm_size: int = 16,
        conv_size: int = 4,
        expand: int = 2,
        dt_rank: int | None = None,
        dt_min: float = 0.001,
        dt_max: float = 0.1,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.input_size = check_size("input_size", input_size)
        self.hidden_size = self.output_size = d = check_size("hidden_size", hidden_size)
        self.ssm_size = n = check_size("ssm_size", ssm_size)
        self.conv_size = check_size("conv_size", conv_size, minimum=2)
        self.expand = check_size("expand", expand)
        self.dt_rank = check_size("dt_rank", -(-d // 16) if dt_rank is None else dt_rank)
        self.dt_min, self.dt_max = check_steps(dt_min, dt_max)
        self.inner_size = e = self.expand * d
        factory = factory_kwargs(device, dtype)
        self.make(2 * e, e, e, factory)
        self.weight_read = nn.Parameter(torch.empty(self.dt_rank + 2 * n, e, **factory))
        self.weight_step = nn.Parameter(torch.empty(e, self.dt_rank, **factory))
        self.bias_step = nn.Parameter(torch.empty(e, **factory))
        self.a_log = nn.Parameter(torch.empty(e, n, **factory))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        self.reset_maps(generator)
        for weight in (self.weight_read, self.weight_step):
            bound = weight.shape[1] ** -0.5
            weight.uniform_(-bound, bound, generator=generator)
        step_biases_(self.bias_step, self.dt_min, self.dt_max, generator)
        rates = torch.arange(1, self.ssm_size + 1, dtype=torch.float64, device="cpu")
        self.a_log.copy_(rates.log().expand_as(self.a_log))

    def gate_weights(self) -> dict[str, Tensor]:
        """Views W_u, W_z, W_r, W_B, W_C, W_t, b_t, W_o, a_log, D, and K and b_K of the conv."""
        w_u, w_z = self.weight_in.detach().chunk(2)
        n = self.ssm_size
        w_r, w_b, w_c = self.weight_read.detach().split([self.dt_rank, n, n])
        views = {"W_t": self.weight_step, "b_t": self.bias_step, "W_o": self.weight_out}
        views |= {"a_log": self.a_log, "D": self.skip, "K": self.conv_weight, "b_K": self.conv_bias}
        maps = {"W_u": w_u, "W_z": w_z, "W_r": w_r, "W_B": w_b, "W_C": w_c}
        return maps | {name: view.detach() for name, view in views.items()}

    def _channels(self, u: Tensor, z: Tensor) -> Channels:
        """The inner numbers as channels, from the convolved u and z."""
        n = self.ssm_size
        read = nn.functional.linear(u, self.weight_read)
        rank, b, c = read.split([self.dt_rank, n, n], dim=-1)
        t = widened(nn.functional.linear(rank, self.weight_step))
        rates = -torch.exp(self.a_log).flatten()
        return Channels(u, t, self.bias_step, z, rates, widened(b), widened(c), self.skip)

    def linear(self, x: Tensor) -> LinearStep:
        u, t, bias, z, rates, b, c, skip = self._channels(*x.chunk(2, dim=-1))
        assert t is not None
        assert bias is not None
        assert z is not None
        t = nn.functional.softplus(t + bias)
        a = torch.exp(t.unsqueeze(-1) * rates.view_as(self.a_log))
        written = (t * u).unsqueeze(-1) * b.unsqueeze(-2)
        extra = torch.cat([c, skip * u, nn.functional.silu(z)], dim=-1)
        return LinearStep(a.flatten(-2), written.flatten(-2), extra)

    def recurrence(self) -> LinearScan:
        return self._scan(self._channels, self._behind)

    def read(self, h: Tensor, extra: Tensor | None) -> Tensor:
        return self._behind(self.gated(h, extra))

    def _behind(self, y: Tensor) -> Tensor:
        """The output from the gated reads."""
        return widened(nn.functional.linear(y, self.weight_out))


class Mamba2(Selective):
    """Mamba-2's state-space model with one decay per head, in its block (Dao and Gu 2024).

    The inner width is e = expand d, in heads of head_size, and h is a matrix H (e, N):

        u, B, C, z, t = W_u x, W_B x, W_C x, W_z x, W_t x
        u, B, C = silu(conv(u, B, C))             each number over the last conv_size steps
        t       = softplus(t + b_t),   A = -exp(a_log)        one a head
        H'      = exp(t A) H + (t u) B^T          each head with its own t and A
        y       = (H' C + D u) * silu(z)          D one a head
        h       = W_o (g * y / sqrt(mean(y^2) + 0.00001))     the output

    This is the whole block of the published code, with one group of B and C, without the
    normalization before it and the residual connection around it: `skip_connections` of `make_core`
    has a similar effect. The input may have any width. The published ssm_size is 128 by default;
    the published limits of the step are left out.

    Initially A is uniform from -16 to -1, D = g = 1, and the steps are log-uniform from dt_min to
    dt_max (not below 0.0001); maps are sampled as in torch.nn.Linear and Conv1d.

    Weights: `weight_in` (2 e + 2 N + e / head_size, I), stacked u, B, C, z, t (u and z of e rows);
    `conv_weight` (e + 2 N, conv_size), the last column for the current step, `conv_bias`;
    `bias_step`, `a_log` and `skip`, which is D (e / head_size); `norm_weight` (e), which is g;
    `weight_out` (d, e). The state is x (conv_size - 1, e + 2 N), what was convolved at earlier
    steps, the oldest first, and h (e N), both initially zero. The traced forget gate is exp(t A),
    one per head.

    Args:
        input_size: width of the input.
        hidden_size: width of the output d.
        ssm_size: size N of the state for each number of the inner width.
        conv_size: steps that the convolution reads, at least 2.
        expand: the inner width in units of d.
        head_size: width of a head, a divisor of the inner width; by default that nearest to 64.
        dt_min, dt_max: range of the initial steps.
        device, dtype: of the parameters, as in torch.nn; float32 or float64.

    Raises:
        ValueError, TypeError: a size that is too small or not an integer, heads that do not
            divide the inner width, steps that are not positive or out of order.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        ssm_size: int = 64,
        conv_size: int = 4,
        expand: int = 2,
        head_size: int | None = None,
        dt_min: float = 0.001,
        dt_max: float = 0.1,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.input_size = check_size("input_size", input_size)
        self.hidden_size = self.output_size = d = check_size("hidden_size", hidden_size)
        self.ssm_size = n = check_size("ssm_size", ssm_size)
        self.conv_size = check_size("conv_size", conv_size, minimum=2)
        self.expand = check_size("expand", expand)
        self.inner_size = e = self.expand * d
        nearest = nearest_divisor(
            e, 64 if head_size is None else check_size("head_size", head_size)
        )
        self.head_size = nearest if head_size is None else head_size
        if self.head_size != nearest:
            raise ValueError(
                f"head_size must divide expand * hidden_size = {e}, got {head_size}. "
                f"The nearest is {nearest}."
            )
        self.dt_min, self.dt_max = check_steps(dt_min, dt_max)
        heads = e // self.head_size
        self.maps = {"u": e, "B": n, "C": n, "z": e, "t": heads}
        factory = factory_kwargs(device, dtype)
        self.make(sum(self.maps.values()), e + 2 * n, heads, factory)
        self.bias_step = nn.Parameter(torch.empty(heads, **factory))
        self.a_log = nn.Parameter(torch.empty(heads, **factory))
        self.norm_weight = nn.Parameter(torch.empty(e, **factory))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        self.reset_maps(generator)
        step_biases_(self.bias_step, self.dt_min, self.dt_max, generator)
        self.a_log.uniform_(1, 16, generator=generator).log_()
        self.norm_weight.fill_(1)

    def gate_weights(self) -> dict[str, Tensor]:
        """Views W_u, W_B, W_C, W_z, W_t, b_t, W_o, a_log, D, g, and K and b_K of the conv."""
        views = {"b_t": self.bias_step, "W_o": self.weight_out, "a_log": self.a_log}
        views |= {"D": self.skip, "g": self.norm_weight}
        views |= {"K": self.conv_weight, "b_K": self.conv_bias}
        maps = named_rows(self.maps, W=self.weight_in)
        return maps | {name: view.detach() for name, view in views.items()}

    def linear(self, x: Tensor) -> LinearStep:
        u, b, c, z, t = x.split([*self.maps.values()], dim=-1)
        t, log_decay = self._step(t)
        a = torch.exp(log_decay).repeat_interleave(self.head_size * self.ssm_size, dim=-1)
        t, skip = (part.repeat_interleave(self.head_size, dim=-1) for part in (t, self.skip))
        written = (t * u).unsqueeze(-1) * b.unsqueeze(-2)
        extra = torch.cat([c, skip * u, nn.functional.silu(z)], dim=-1)
        return LinearStep(a, written.flatten(-2), extra)

    def _step(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """The step of each head, and the logarithm of what it leaves of h."""
        t = nn.functional.softplus(t + self.bias_step)
        return t, t * -torch.exp(self.a_log)

    def recurrence(self) -> AllSteps:
        return AllSteps(self._all_steps, self._scan(self._channels, self._behind))

    def _channels(self, convolved: Tensor, rest: Tensor) -> Channels:
        """The inner numbers as channels, of which those of a head share a rate."""
        e, n, heads = self.inner_size, self.ssm_size, len(self.a_log)
        u, b, c = convolved.split([e, n, n], dim=-1)
        z, t = rest.split([e, heads], dim=-1)

        def spread(of_heads: Tensor) -> Tensor:
            return of_heads.unsqueeze(-1).expand(*of_heads.shape, self.head_size).flatten(-2)

        bias, rates, skip = map(spread, (self.bias_step, -torch.exp(self.a_log), self.skip))
        return Channels(u, spread(t), bias, z, rates, b, c, skip)

    def _all_steps(
        self, x: Tensor, state: Tensor, episode_starts: Tensor | None, initial: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """In blocks, as published: a scan would make a and (t u) B^T of each step."""
        shape = self.state_shapes["x"]
        sizes = len(self.a_log), self.head_size, self.ssm_size
        window, h = state.split([math.prod(shape), math.prod(sizes)], dim=-1)
        convolved, window = self._convolved(
            self.project(x), window.unflatten(-1, shape), episode_starts
        )
        u, b, c, z, t = convolved.split([*self.maps.values()], dim=-1)
        t, log_decay = self._step(t)
        u = u.unflatten(-1, sizes[:2])
        writes = Writes(c.unsqueeze(2), b.unsqueeze(2), t.unsqueeze(-1) * u, log_decay)
        first = None if initial is None else initial[:, math.prod(shape) :].unflatten(-1, sizes)
        reads, memory = read_memory(writes, h.unflatten(-1, sizes), first, episode_starts)
        y = (reads + self.skip.unsqueeze(-1) * u).flatten(-2) * nn.functional.silu(z)
        return self._behind(y), torch.cat([window.flatten(1), memory.flatten(1)], dim=-1)

    def read(self, h: Tensor, extra: Tensor | None) -> Tensor:
        return self._behind(self.gated(h, extra))

    def _behind(self, y: Tensor) -> Tensor:
        """The output from the gated reads."""
        y = y * torch.rsqrt(y.square().mean(dim=-1, keepdim=True) + 1e-5) * self.norm_weight
        return widened(nn.functional.linear(y, self.weight_out))

    def forget_gate(self, projected: Tensor, state: State) -> Tensor:
        a = super().forget_gate(projected, state)
        return a[:, :: self.head_size * self.ssm_size]
