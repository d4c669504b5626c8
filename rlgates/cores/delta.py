"""Associative memories with the delta rule: the fast weight programmer, and Gated DeltaNet."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rlgates.cell import Cell, State, factory_kwargs, full_precision, named_rows, widened
from rlgates.cores.blocks import in_blocks, product, replaced, sums_between
from rlgates.errors import MAX_WIDTH, check_size
from rlgates.kernels import AllSteps, Memories, MemorySteps, RunMemories

BLOCK = 32  # steps that are computed at once
_TINY = 1e-6  # what a sum of features is divided by at least


class DeltaStep(NamedTuple):
    """What the steps of a `DeltaRule` read, for each head.

    Attributes:
        q, k: query and key, (..., heads, key_size).
        v: value, (..., heads, value_size).
        beta: how far a value is corrected, (..., heads).
        log_decay: logarithm of the share of the memory that is kept, (..., heads); None if it keeps
            everything.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    beta: Tensor
    log_decay: Tensor | None = None

    def as_memory_steps(self) -> MemorySteps:
        """S' = a S - (S k) (a beta k)^T + beta v k^T."""
        q, k, v, beta, log_decay = self
        decay = None if log_decay is None else torch.exp(log_decay)
        rate = beta if decay is None else beta * decay
        return MemorySteps(q, k, beta.unsqueeze(-1) * v, decay, k, rate.unsqueeze(-1) * k)


class DeltaRule(Cell):
    """Heads of memories S that correct the value of a key (Widrow and Hoff 1960):

        S' = a S + beta (v - a S k) k^T
        y  = S' q

    where q, k, v, beta and a come from the input alone, with beta and a in [0, 1]. The state is
    (S), d key_size numbers, initially zero; it is in float32 under autocast.

    In PyTorch a sequence is computed in blocks: what a step adds, u = beta (v - a S k), depends on
    what earlier steps add, through a triangular system (Yang et al. 2024, "Parallelizing linear
    transformers with the delta rule").
    """

    num_heads: int
    key_size: int

    @abstractmethod
    def prepare(self, projected: Tensor) -> DeltaStep:
        """What the steps read, from the result of `project` (..., P)."""

    @abstractmethod
    def read(self, y: Tensor, projected: Tensor) -> Tensor:
        """The output (..., d) from y (..., heads, d / heads) and the result of `project`."""

    def step(self, projected: Tensor, state: State) -> tuple[Tensor, State]:
        (memory,) = state
        q, k, v, beta, log_decay = self.prepare(projected)
        with full_precision(memory.device.type):
            # S' q = a S q + u (k q), so that the memory, which may be large, is read once for both.
            of_key, of_query = (memory @ torch.stack([k, q], dim=-1)).unbind(-1)
            if log_decay is not None:
                left = torch.exp(log_decay).unsqueeze(-1)
                of_key, of_query, memory = left * of_key, left * of_query, left[..., None] * memory
            u = beta.unsqueeze(-1) * (v - of_key)
            memory = torch.addcmul(memory, u.unsqueeze(-1), k.unsqueeze(-2))
            y = of_query + u * (k * q).sum(-1, keepdim=True)
        return self.read(y, projected), (memory,)

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
        (shape,) = self.state_shapes.values()
        memory = state.unflatten(-1, shape)
        first = None if initial is None else initial.unflatten(-1, shape)
        projected = self.project(x)

        def block(parts: list[Any], memory: Tensor, begins: Tensor | None) -> tuple[Tensor, Tensor]:
            return _block(DeltaStep(*parts), memory, first, begins)

        steps = self.prepare(projected)
        if run is None:
            y, memory = in_blocks(block, steps, memory, episode_starts, len(x), BLOCK)
        else:
            y, memory = run(steps.as_memory_steps(), memory, first, episode_starts)
        return self.read(y, projected), memory.flatten(1)

    def _check(self, input_size: int, hidden_size: int, num_heads: int, key: int | None) -> None:
        """Check and set the sizes."""
        self.input_size = check_size("input_size", input_size)
        self.hidden_size = self.output_size = check_size("hidden_size", hidden_size)
        self.num_heads = check_size("num_heads", num_heads)
        if hidden_size % num_heads:
            raise ValueError(f"num_heads must divide hidden_size = {hidden_size}, got {num_heads}.")
        key = hidden_size // num_heads if key is None else key
        self.key_size = check_size("key_size", key, maximum=MAX_WIDTH)


def _block(
    steps: DeltaStep, memory: Tensor, first: Tensor | None, begins: Tensor | None
) -> tuple[Tensor, Tensor]:
    """L steps: y (L, B, heads, value_size), and the memory behind them.

    Args:
        steps: (L, B, ...).
        memory: before the steps, (B, heads, value_size, key_size).
        first: that at the start of an episode; None for zeros.
        begins: in which step of the block the episode of each began, (L, B), below 0 for an
            earlier one; None if all are.
    """
    q, k, v = (
        part.permute(1, 2, 0, 3) for part in (steps.q, steps.k, steps.v)
    )  # (B, heads, L, width)
    beta = steps.beta.permute(1, 2, 0).unsqueeze(-1)
    count = torch.arange(q.shape[2], device=q.device)
    seen = count <= count.unsqueeze(-1)  # (L, L), by a step
    if begins is not None:
        memory = replaced(memory, (begins[0] >= 0).view(-1, 1, 1, 1), first)
    of_key, of_query = k @ memory.mT, q @ memory.mT
    if begins is not None:
        begin = begins.t().unsqueeze(1)  # (B, 1, L)
        seen, is_new = seen & (count >= begin.unsqueeze(-1)), (begin >= 0).unsqueeze(-1)
        of_key = replaced(of_key, is_new, product(k, first))
        of_query = replaced(of_query, is_new, product(q, first))
        memory = replaced(memory, is_new[:, :, -1:], first)
    # Nothing of another episode may count, even if it is not a number: no product by 0. What is not
    # a number in this one comes back with its key.
    unseen = ~seen
    by_key, by_query = (x @ k.mT for x in (k, q))
    left: Tensor | float = 1.0
    last = torch.ones_like(beta)
    if steps.log_decay is not None:
        log_decay = steps.log_decay.permute(1, 2, 0)
        since = log_decay.unsqueeze(-2).masked_fill(unseen, 0).sum(-1, keepdim=True)
        # of step s at step t
        decay = torch.exp(sums_between(log_decay).masked_fill(unseen, 0))
        left, last = torch.exp(since), decay[..., -1, :].unsqueeze(-1)
        by_key, by_query = by_key * decay, by_query * decay
    below = beta * by_key.masked_fill(unseen, 0).tril(-1)
    wanted = beta * (v - left * of_key)
    wanted, below = (torch.where(x.isnan(), 0, x) for x in (wanted, below))
    added = torch.linalg.solve_triangular(below, wanted, upper=False, unitriangular=True)
    y = by_query.masked_fill(unseen, 0) @ added + left * of_query
    keys = (last * k).masked_fill(unseen[..., -1, :, None], 0)
    if isinstance(left, Tensor):
        memory = left[..., -1:, :] * memory
    return y.permute(2, 0, 1, 3), memory + added.mT @ keys


class FastWeights(DeltaRule):
    """The fast weight programmer with the delta rule, a linear transformer (Schlag et al. 2021).

    For each head of w = d / num_heads values, where phi is the feature map of keys and queries:

        k, q = phi(W_k x), phi(W_q x), each divided by its sum
        v, beta = W_v x, sigmoid(W_beta x)
        S'   = S + beta (v - S k) k^T
        y    = S' q                        the output, all heads side by side

    phi is the paper's DPFP with nu = projections: r = relu([z, -z]), and phi(z) the products of r
    with itself, rolled by 1 to nu places: 2 nu numbers for each number of z. POPGym's FWP has
    neither this map nor the delta rule. This is only the cell: residual connection, layer norm and
    feed-forward network belong to the layers around it.

    Weights: `weight` (2 heads key_size + d + heads, I), stacked k, q, v, beta, from
    U[-1/sqrt(I), 1/sqrt(I)] for I inputs; there are no biases. The state is (S), of
    2 projections key_size d numbers.

    Args:
        input_size: width of the input.
        hidden_size: width d of the output, a multiple of num_heads.
        num_heads: number of memories.
        key_size: width of keys and queries before phi; None for the width of the values. At least 2
            if nu is 1.
        projections: nu of the feature map.
        device, dtype: of the parameters, as in torch.nn; float32 or float64.

    Raises:
        ValueError, TypeError: a size that is too small or not an integer, or a num_heads that does
            not divide hidden_size.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_heads: int = 1,
        key_size: int | None = None,
        projections: int = 1,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self._check(input_size, hidden_size, num_heads, key_size)
        self.projections = check_size("projections", projections, maximum=MAX_WIDTH)
        if self.key_size == self.projections == 1:
            raise ValueError(
                "key_size must be at least 2 with projections=1, got 1: of z and -z only one is "
                "positive, so their product would always be 0."
            )
        heads, keys = self.num_heads, self.num_heads * self.key_size
        features = 2 * self.projections * self.key_size
        self.state_shapes = {"S": (heads, hidden_size // heads, features)}
        self.maps = {"k": keys, "q": keys, "v": hidden_size, "beta": heads}
        rows = sum(self.maps.values())
        self.weight = nn.Parameter(torch.empty(rows, input_size, **factory_kwargs(device, dtype)))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        bound = self.input_size**-0.5
        self.weight.uniform_(-bound, bound, generator=generator)

    def gate_weights(self) -> dict[str, Tensor]:
        """Views `W_k`, `W_q`, `W_v`, `W_beta`."""
        return named_rows(self.maps, W=self.weight)

    def project(self, x: Tensor) -> Tensor:
        return widened(nn.functional.linear(x, self.weight))

    def _features(self, z: Tensor) -> Tensor:
        r = torch.relu(torch.cat([z, -z], dim=-1))
        products = [r * r.roll(places + 1, -1) for places in range(self.projections)]
        features = products[0] if len(products) == 1 else torch.cat(products, dim=-1)
        return features / features.sum(-1, keepdim=True).clamp(min=_TINY)

    def prepare(self, projected: Tensor) -> DeltaStep:
        k, q, v, beta = projected.split([*self.maps.values()], dim=-1)
        k, q, v = (part.unflatten(-1, (self.num_heads, -1)) for part in (k, q, v))
        return DeltaStep(self._features(q), self._features(k), v, torch.sigmoid(beta))

    def read(self, y: Tensor, projected: Tensor) -> Tensor:
        return y.flatten(-2)


class GatedDeltaNet(DeltaRule):
    """Gated DeltaNet (Yang et al. 2025): the delta rule, with a decay of the memory.

    For each head, of w = d / num_heads values:

        k, q = silu(W_k x), silu(W_q x), each of length 1
        v, beta = silu(W_v x), sigmoid(W_beta x)
        a    = exp(-exp(A) softplus(W_a x + b_a))      the forget gate, one number
        S'   = a S + beta (v - a S k) k^T
        y    = W_o [norm(S' q) * silu(W_g x)]          the output

    norm divides by the root mean square over w, eps 1e-5, and has w gains. This is only the cell:
    the short convolutions of the authors' layer (`frame_conv` is one), the bias of beta and the
    residual term are left out. Their factor 1/sqrt(key_size) on the queries is cancelled by the
    norm, and is left out too: outputs differ where eps matters, by at most 0.02. Their
    normalization of q and k to length 1 uses an eps of 1e-6, this one none.

    Initialization: weights from U[-1/sqrt(n), 1/sqrt(n)] for n inputs, exp(A) from U[1, 16] (the
    authors: from 0) and softplus(b_a) log-uniform in [0.001, 0.1], as in Mamba-2; gains 1.

    Weights: `weight` (stacked k, q, v, g, beta, a), `weight_o` (d, d), `A` and `b_a` (heads),
    `gain` (w). The state is (S), of d key_size numbers. The traced forget gate is a.

    Args:
        input_size: width of the input.
        hidden_size: width d of the output, a multiple of num_heads.
        num_heads: number of memories.
        key_size: width of keys and queries; None for the width of the values.
        device, dtype: of the parameters, as in torch.nn; float32 or float64.

    Raises:
        ValueError, TypeError: a size below 1 or not an integer, or a num_heads that does not divide
            hidden_size.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_heads: int = 1,
        key_size: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self._check(input_size, hidden_size, num_heads, key_size)
        heads, d = self.num_heads, hidden_size
        keys = heads * self.key_size
        self.state_shapes = {"S": (heads, d // heads, self.key_size)}
        self.maps = {"k": keys, "q": keys, "v": d, "g": d, "beta": heads, "a": heads}
        factory = factory_kwargs(device, dtype)
        self.weight = nn.Parameter(torch.empty(sum(self.maps.values()), input_size, **factory))
        self.weight_o = nn.Parameter(torch.empty(d, d, **factory))
        self.A = nn.Parameter(torch.empty(heads, **factory))
        self.b_a = nn.Parameter(torch.empty(heads, **factory))
        self.gain = nn.Parameter(torch.empty(d // heads, **factory))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        for weight in (self.weight, self.weight_o):
            bound = weight.shape[1] ** -0.5
            weight.uniform_(-bound, bound, generator=generator)
        self.A.uniform_(1, 16, generator=generator).log_()
        self.b_a.uniform_(math.log(1e-3), math.log(0.1), generator=generator).exp_()
        self.b_a.copy_(self.b_a + torch.log(-torch.expm1(-self.b_a)))  # the inverse of softplus
        self.gain.fill_(1)

    def gate_weights(self) -> dict[str, Tensor]:
        """Views `W_k`, `W_q`, `W_v`, `W_g`, `W_beta`, `W_a`, `W_o`, `A`, `b_a`, `gain`."""
        others = {"W_o": self.weight_o, "A": self.A, "b_a": self.b_a, "gain": self.gain}
        named = {name: parameter.detach() for name, parameter in others.items()}
        return {**named_rows(self.maps, W=self.weight), **named}

    def project(self, x: Tensor) -> Tensor:
        return widened(nn.functional.linear(x, self.weight))

    def _split(self, projected: Tensor) -> tuple[Tensor, ...]:
        parts: tuple[Tensor, ...] = projected.split([*self.maps.values()], dim=-1)
        return parts

    def _log_decay(self, projected: Tensor) -> Tensor:
        rate: Tensor = torch.exp(self.A)
        return -rate * nn.functional.softplus(self._split(projected)[5] + self.b_a)

    def prepare(self, projected: Tensor) -> DeltaStep:
        k, q, v, _, beta, _ = self._split(projected)
        k, q, v = (
            nn.functional.silu(part).unflatten(-1, (self.num_heads, -1)) for part in (k, q, v)
        )
        k, q = (nn.functional.normalize(part, dim=-1) for part in (k, q))
        return DeltaStep(q, k, v, torch.sigmoid(beta), self._log_decay(projected))

    def read(self, y: Tensor, projected: Tensor) -> Tensor:
        gate = nn.functional.silu(self._split(projected)[3])
        size = torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-5)
        gated = (y * size * self.gain).flatten(-2) * gate
        return widened(nn.functional.linear(gated, self.weight_o))

    def forget_gate(self, projected: Tensor, state: State) -> Tensor:
        return torch.exp(self._log_decay(projected))
