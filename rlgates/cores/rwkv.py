"""RWKV-7: an associative memory with the delta rule and gates for each number of a key."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, normalize

from rlgates.cell import Cell, State, factory_kwargs, full_precision, widened
from rlgates.cores.blocks import in_blocks
from rlgates.errors import MAX_WIDTH, check_size
from rlgates.kernels import AllSteps, Memories, MemorySteps, RunMemories

BLOCK = 16  # steps that are computed at once; over them a decay is at least 0.545^16 = 6e-5
_FASTEST = math.exp(-0.5)  # -log of the smallest decay, 0.545


class _Steps(NamedTuple):
    """What steps read, of each head, (..., heads, w)."""

    r: Tensor
    log_w: Tensor
    k: Tensor
    v: Tensor
    kappa: Tensor
    rate: Tensor  # a kappa


class RWKV7(Cell):
    """The time mixing of RWKV-7, "Goose" (Peng et al. 2025).

    With x_j = x + mu_j (x_before - x) for j of r, w, k, v, a, g, where x_before is the input of the
    previous step (zero at the start), and for each head of w = d / num_heads numbers:

        decay        w = exp(-exp(-1/2) sigmoid(w_0 + W_w2 tanh(W_w1 x_w)))    from 0.545 to 1
        rate         a = sigmoid(a_0 + W_a2 W_a1 x_a)
        output gate  g = W_g2 sigmoid(W_g1 x_g)
        r, k, v        = W_r x_r, W_k x_k, W_v x_v
        removal key  kappa = k_k k, of length 1 in a head
        key          k~ = k (1 + (a - 1) k_a)
        S'  = S diag(w) - S kappa (a kappa)^T + v k~^T
        y   = norm(S' r) + (r . r_k k~) v
        h   = W_o (g y)                       the output, all heads side by side

    norm acts on each head, (y - mean) / sqrt(variance + 64e-5), with gain and bias. This is only
    the cell: channel mixing, layer norms and the residual stream belong to the layers around it,
    and v is not mixed with that of the first layer.

    Initialization as in the authors' code, for a first layer: mu rising with the number of the
    input, w_0 and a_0 over the numbers of a head, W_w1, W_a1, W_g1 zero, W_w2, W_a2, W_g2
    orthogonal times 0.1; W_r and W_v from U[-0.5, 0.5] / sqrt(I), W_k from a tenth of that. In that
    code W_o is zero, because it adds to a residual stream; here it is from
    U[-1/sqrt(d), 1/sqrt(d)].

    Weights: `mu` (6, I), `W_r`, `W_k`, `W_v` (d, I), `W_o` (d, d), `W_w1`, `W_a1` (rank, I), `W_g1`
    (2 rank, I), `W_w2`, `W_a2`, `W_g2`, and `w_0`, `a_0`, `k_k`, `k_a`, `r_k`, `gain`, `bias` (d).
    The state is (before, S), initially zero, in float32 under autocast: what the last input adds to
    the maps W_r, W_k, W_v, W_w1, W_a1 and W_g1 of the next step, 3 d + 4 rank numbers, and d w
    numbers. The traced forget gate is w.

    Args:
        input_size: width of the input.
        hidden_size: width d of the output, a multiple of num_heads above it.
        num_heads: number of memories; the paper has heads of 64 numbers.
        rank: width of the maps within w and a; if None, 2.5 sqrt(d), the authors' rule without its
            rounding to multiples of 32.
        device, dtype: of the parameters, as in torch.nn; float32 or float64.

    Raises:
        ValueError, TypeError: a size below 1 or not an integer, or a num_heads that does not divide
            hidden_size or equals it.
    """

    learnable = ()  # before an episode there are no inputs

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_heads: int = 1,
        rank: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.input_size = check_size("input_size", input_size)
        self.hidden_size = self.output_size = d = check_size("hidden_size", hidden_size)
        self.num_heads = heads = check_size("num_heads", num_heads)
        if d % heads:
            raise ValueError(f"num_heads must divide hidden_size = {d}, got {heads}.")
        if heads == d:
            raise ValueError(
                f"num_heads must be below hidden_size = {d}, got {heads}: reads of one number are "
                "normalized to 0, so nothing of the memory would reach the output."
            )
        rank = round(2.5 * d**0.5) if rank is None else rank
        self.rank = rank = check_size("rank", rank, maximum=MAX_WIDTH)
        self.maps = {"r": d, "k": d, "v": d, "w": rank, "a": rank, "g": 2 * rank}
        self.state_shapes = {
            "before": (sum(self.maps.values()),),
            "S": (heads, d // heads, d // heads),
        }
        factory = factory_kwargs(device, dtype)

        def parameter(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(*shape, **factory))

        self.mu = parameter(6, input_size)
        self.W_r, self.W_k, self.W_v = (parameter(d, input_size) for _ in range(3))
        self.W_o = parameter(d, d)
        self.W_w1, self.W_w2 = parameter(rank, input_size), parameter(d, rank)
        self.W_a1, self.W_a2 = parameter(rank, input_size), parameter(d, rank)
        self.W_g1, self.W_g2 = parameter(2 * rank, input_size), parameter(d, 2 * rank)
        self.w_0, self.a_0, self.k_k, self.k_a, self.r_k = (parameter(d) for _ in range(5))
        self.gain, self.bias = parameter(d), parameter(d)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        d, width = self.hidden_size, self.hidden_size // self.num_heads
        share = torch.arange(self.input_size, dtype=torch.float64, device="cpu") / self.input_size
        for row, power in zip(self.mu, (0.2, 0.9, 0.7, 0.7, 0.9, 0.2), strict=True):
            row.copy_(1 - share**power)
        for weight, bound in ((self.W_r, 0.5), (self.W_k, 0.05), (self.W_v, 0.5), (self.W_o, 1.0)):
            bound *= weight.shape[1] ** -0.5
            weight.uniform_(-bound, bound, generator=generator)
        for first in (self.W_w1, self.W_a1, self.W_g1):
            first.zero_()
        for second in (self.W_w2, self.W_a2, self.W_g2):
            rows, columns = second.shape  # the authors' are turned
            gain = 0.1 * max(1.0, columns / rows) ** 0.5
            nn.init.orthogonal_(second, gain, generator=generator)
        units = torch.arange(d, dtype=torch.float64, device="cpu")
        rising = units / max(d - 1, 1)
        of_head = 2 * (units % width) / max(width - 1, 1) - 1  # from -1 to 1
        curve = of_head * of_head.abs()
        self.w_0.copy_(-5.5 + 6 * rising + 2.5 * curve)
        self.a_0.copy_(-0.19 + 0.3 * curve + 0.4 * (rising - 0.5))
        self.k_k.copy_(0.71 - 0.1 * (rising - 0.5))
        self.k_a.fill_(1.02)
        self.r_k.fill_(-0.04)
        self.gain.fill_(1)
        self.bias.zero_()

    def project(self, x: Tensor) -> Tensor:
        """What an input adds to the maps of its own step, and to those of the next."""
        weight = torch.cat([self.W_r, self.W_k, self.W_v, self.W_w1, self.W_a1, self.W_g1])
        r, w, k, v, a, g = self.mu
        sizes = self.maps.values()
        mu = [row.expand(n, -1) for row, n in zip((r, k, v, w, a, g), sizes, strict=True)]
        later = weight * torch.cat(mu)
        return widened(linear(x, torch.cat([weight - later, later])))

    def _prepare(self, both: Tensor) -> tuple[_Steps, Tensor]:
        """What the steps read, and the output gate (..., d), from the maps of two inputs."""
        r, k, v, of_w, of_a, of_g = both.split([*self.maps.values()], dim=-1)
        log_w = self._log_decay(of_w)
        a = torch.sigmoid(self.a_0 + widened(linear(of_a, self.W_a2)))
        gate = widened(linear(torch.sigmoid(of_g), self.W_g2))
        kappa, k = k * self.k_k, k * (1 + (a - 1) * self.k_a)
        r, log_w, k, v, kappa, a = (
            part.unflatten(-1, (self.num_heads, -1)) for part in (r, log_w, k, v, kappa, a)
        )
        kappa = normalize(kappa, dim=-1)
        return _Steps(r, log_w, k, v, kappa, a * kappa), gate

    def _log_decay(self, of_w: Tensor) -> Tensor:
        """log w (..., d) from the map of w."""
        return -_FASTEST * torch.sigmoid(self.w_0 + widened(linear(torch.tanh(of_w), self.W_w2)))

    def _read(self, y: Tensor, steps: _Steps, gate: Tensor) -> Tensor:
        """The output (..., d) from y = S' r (..., heads, w)."""
        centred = y - y.mean(-1, keepdim=True)
        size = torch.rsqrt(centred.square().mean(-1, keepdim=True) + 64e-5)
        normed = (centred * size).flatten(-2) * self.gain + self.bias
        r_k = self.r_k.unflatten(0, (self.num_heads, -1))
        present = (steps.r * r_k * steps.k).sum(-1, keepdim=True) * steps.v
        return widened(linear(gate * (normed + present.flatten(-2)), self.W_o))

    def step(self, projected: Tensor, state: State) -> tuple[Tensor, State]:
        before, memory = state
        now, later = projected.chunk(2, dim=-1)
        steps, gate = self._prepare(now + before)
        with full_precision(memory.device.type):
            removed = memory @ steps.kappa.unsqueeze(-1)
            memory = memory * torch.exp(steps.log_w).unsqueeze(-2)
            memory = memory - removed * steps.rate.unsqueeze(-2)
            memory = memory + steps.v.unsqueeze(-1) * steps.k.unsqueeze(-2)
            y = (memory @ steps.r.unsqueeze(-1)).squeeze(-1)
        return self._read(y, steps, gate), (later, memory)

    def recurrence(self) -> AllSteps:
        return AllSteps(self._all_steps, Memories(self._all_steps))

    def _all_steps(
        self,
        x: Tensor,
        state: Tensor,
        episode_starts: Tensor | None,
        initial: Tensor | None,
        run: RunMemories | None = None,
    ) -> tuple[Tensor, Tensor]:
        now, later = self.project(x).chunk(2, dim=-1)
        width = now.shape[-1]
        last, memory = state.split([width, state.shape[-1] - width], dim=-1)
        before = torch.cat([last.unsqueeze(0), later[:-1]])
        if episode_starts is not None:
            before = torch.where(episode_starts.unsqueeze(-1), before.new_zeros(()), before)
        steps, gate = self._prepare(now + before)
        memory = memory.unflatten(-1, self.state_shapes["S"])
        if run is None:
            y, memory = in_blocks(_block, steps, memory, episode_starts, len(x), BLOCK)
        else:
            r, log_w, k, v, kappa, rate = steps
            written = MemorySteps(r, k, v, torch.exp(log_w), kappa, rate)
            y, memory = run(written, memory, None, episode_starts)
        return self._read(y, steps, gate), torch.cat([later[-1], memory.flatten(1)], dim=-1)

    def forget_gate(self, projected: Tensor, state: State) -> Tensor:
        both = projected.chunk(2, dim=-1)[0] + state[0]
        of_w = both.split([*self.maps.values()], dim=-1)[3]
        return torch.exp(self._log_decay(of_w))


def _block(parts: list[Any], memory: Tensor, begins: Tensor | None) -> tuple[Tensor, Tensor]:
    """L steps: S' r (L, B, heads, w), and the memory behind them.

    What a step removes, u = S kappa, depends on what the steps before it add and remove in a
    triangular system, as in `rlgates.cores.delta`. With c the sum of the logarithms of the decays
    since the block or the episode began, a key of step s is read at step t times exp(c_t - c_s):
    the two factors are taken apart.

    Args:
        parts: `_Steps`, (L, B, ...).
        memory: before the steps, (B, heads, w, w).
        begins: in which step of the block the episode of each began, (L, B), below 0 for an
            earlier one; None if all are.
    """
    r, log_w, k, v, kappa, rate = (part.permute(1, 2, 0, 3) for part in parts)  # (B, heads, L, w)
    count = torch.arange(r.shape[2], device=r.device)
    seen = count <= count.unsqueeze(-1)  # (L, L), by a step
    # Nothing of another episode may count, even if it is not a number: no product by 0. What is not
    # a number in this one comes back with its key.
    v, log_w = (torch.where(part.isnan(), 0, part) for part in (v, log_w))
    is_new = None
    if begins is not None:
        begin = begins.t().unsqueeze(1)  # (B, 1, L)
        seen, is_new = seen & (count >= begin.unsqueeze(-1)), (begin >= 0).unsqueeze(-1)
        # A memory that is not read may hold anything.
        memory = memory.masked_fill((begins[0] >= 0).view(-1, 1, 1, 1), 0)
    total = seen.to(log_w.dtype) @ log_w  # within the episode
    k, rate = (part * torch.exp(-total) for part in (k, rate))
    r, kappa = r * torch.exp(total), kappa * torch.exp(total - log_w)
    of_kappa, of_r = kappa @ memory.mT, r @ memory.mT
    if is_new is not None:
        of_kappa, of_r = (part.masked_fill(is_new, 0) for part in (of_kappa, of_r))
        memory = memory.masked_fill(is_new[:, :, -1:], 0)
    unseen, below = ~seen, seen & (count < count.unsqueeze(-1))
    added = (kappa @ k.mT).masked_fill(~below, 0) @ v + of_kappa
    lower = (kappa @ rate.mT).masked_fill(~below, 0)
    added, lower = (torch.where(part.isnan(), 0, part) for part in (added, lower))
    removed = torch.linalg.solve_triangular(lower, added, upper=False, unitriangular=True)
    by_k, by_rate = ((r @ part.mT).masked_fill(unseen, 0) for part in (k, rate))
    y = by_k @ v - by_rate @ removed + of_r
    left = torch.exp(total[..., -1:, :])
    k, rate = ((left * part).masked_fill(unseen[..., -1, :, None], 0) for part in (k, rate))
    memory = left * memory + v.mT @ k - removed.mT @ rate
    return y.permute(2, 0, 1, 3), memory
