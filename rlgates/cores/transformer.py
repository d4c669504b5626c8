"""Attention over a bounded number of steps: a sliding-window transformer, and the GTrXL."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor, nn

from rlgates import kernels
from rlgates.cell import Cell, State, check_no_hooks, factory_kwargs, full_precision, widened
from rlgates.cores.window import sinusoids, step_numbers
from rlgates.errors import MAX_LENGTH, MAX_WIDTH, check_normalized, check_number, check_size
from rlgates.kernels import AllSteps

BLOCK = 64  # steps whose scores are computed at once, at least


class Attention(Cell):
    """A layer that attends to the last `window` steps, including the current one.

    With e = W_e x + b_e and layer norms LN:

        q, k, v = W_q LN(e), W_k LN(e), W_v LN(e)       split into heads
        score   = (q + u) k_s + (q + w) W_r p(age)      of a step s, divided by sqrt(d / num_heads)
        y       = join_1(e, W_o [softmax(score) v of all heads] + b_o)
        output  = join_2(y, MLP(LN(y)))                 two layers, ReLU between them

    The position of a step is its age: p(age) are sines and cosines, u and w are learned for each
    head, as in the Transformer-XL (Dai et al. 2019). Steps before the start of the episode are not
    attended to. A subclass defines `join`.

    The state is (keys, values, length): the keys and values of the last window - 1 steps, oldest
    first, and how many steps there were. It is initially zero, has 2 (window - 1) d + 1 numbers,
    and is in float32 under autocast.
    """

    learnable = ()  # before an episode there are no steps to attend to

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        window: int,
        num_heads: int,
        mlp_size: int | None,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__()
        self.input_size = check_size("input_size", input_size)
        self.hidden_size = self.output_size = d = check_normalized(
            "hidden_size", hidden_size, "nothing of the memory would reach the output"
        )
        self.window = check_size("window", window, 2, MAX_LENGTH)
        self.num_heads = check_size("num_heads", num_heads)
        if d % num_heads:
            raise ValueError(f"num_heads must divide hidden_size = {d}, got {num_heads}.")
        inner = 2 * d if mlp_size is None else mlp_size
        self.mlp_size = inner = check_size("mlp_size", inner, maximum=MAX_WIDTH)
        self.state_shapes = {"keys": (window - 1, d), "values": (window - 1, d), "length": (1,)}
        factory = factory_kwargs(device, dtype)
        self.embed = nn.Linear(input_size, d, **factory)
        self.norm_1, self.norm_2 = nn.LayerNorm(d, **factory), nn.LayerNorm(d, **factory)
        self.query_key_value = nn.Linear(d, 3 * d, bias=False, **factory)
        self.position = nn.Linear(d, d, bias=False, **factory)
        self.out = nn.Linear(d, d, **factory)
        self.inner, self.outer = nn.Linear(d, inner, **factory), nn.Linear(inner, d, **factory)
        self.u = nn.Parameter(torch.empty(num_heads, d // num_heads, **factory))
        self.w = nn.Parameter(torch.empty(num_heads, d // num_heads, **factory))

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        for module in self.modules():
            if isinstance(module, nn.Linear):
                bound = module.in_features**-0.5
                module.weight.uniform_(-bound, bound, generator=generator)
                if module.bias is not None:
                    module.bias.zero_()
            elif isinstance(module, nn.LayerNorm):
                module.reset_parameters()
        self.u.zero_()
        self.w.zero_()

    @abstractmethod
    def join(self, number: int, x: Tensor, branch: Tensor) -> Tensor:
        """Join a layer's first (1) or second (2) branch and the path around it."""

    def project(self, x: Tensor) -> Tensor:
        """e, q, k and v, concatenated: everything that a step computes from its own input."""
        return torch.cat(self._maps(x), dim=-1)

    def _maps(self, x: Tensor) -> tuple[Tensor, Tensor]:
        e = widened(self.embed(x))
        return e, widened(self.query_key_value(self.norm_1(e)))

    def step(self, projected: Tensor, state: State) -> tuple[Tensor, State]:
        keys, values, length = state
        e, q, key, value = projected.split(self.hidden_size, dim=-1)
        keys, values = (
            torch.cat([rows, row.unsqueeze(1)], dim=1)
            for rows, row in ((keys, key), (values, value))
        )
        by_time = keys.transpose(0, 1), values.transpose(0, 1)
        reads = self._attend(*self._query(q.unsqueeze(0)), *by_time, length.unsqueeze(0))
        return self._behind(e, reads.squeeze(0)), (keys[:, 1:], values[:, 1:], length + 1)

    def _query(self, q: Tensor) -> tuple[Tensor, Tensor]:
        """q + u (T, B, d) and (q + w) W_r p (num_heads, T, B, window), both as the scores need it.

        The oldest of the window's steps comes first.
        """
        ages = torch.arange(self.window - 1, -1, -1, device=q.device).unsqueeze(-1).to(q.dtype)
        of_ages = widened(self.position(sinusoids(ages, self.hidden_size)))
        sizes = self.num_heads, self.hidden_size // self.num_heads
        with full_precision(q.device.type):
            q, u, w = (x * sizes[1] ** -0.5 for x in (q, self.u, self.w))
            of_heads = (q + w.flatten()).unflatten(-1, sizes).permute(2, 0, 1, 3)
            positions = of_ages.unflatten(-1, sizes).permute(1, 2, 0)
            scores = of_heads.flatten(1, 2) @ positions
        return q + u.flatten(), scores.unflatten(1, q.shape[:2])

    def _attend(
        self, q: Tensor, scores: Tensor, keys: Tensor, values: Tensor, length: Tensor
    ) -> Tensor:
        """The reads (L, B, d) of all heads.

        Args:
            q, scores: of L steps, see `_query`.
            keys, values: of the window - 1 steps before them and of these, (window - 1 + L, B, d).
            length: how many steps there are before each, (L, B, 1).
        """
        old, sizes = self.window - 1, (self.num_heads, self.hidden_size // self.num_heads)
        steps = torch.arange(len(keys), device=q.device)
        age = old - steps + steps[: len(q), None]
        is_near = (age >= 0) & (age <= old)
        is_known = (age == 0) | (age < length.transpose(0, 1) + 0.5)
        unseen = ~(is_near & is_known).unsqueeze(1)
        with full_precision(q.device.type):
            q, keys, values = (
                x.unflatten(-1, sizes).permute(1, 2, 0, 3) for x in (q, keys, values)
            )
            scores = q @ keys.mT + _skewed(scores.permute(2, 0, 1, 3))
            # A NaN of another episode has no weight; one of this episode is in its keys too.
            known = torch.where(values.isnan(), 0, values)
            reads = torch.softmax(scores.masked_fill(unseen, -torch.inf), dim=-1) @ known
        return reads.permute(2, 0, 1, 3).flatten(-2)

    def _behind(self, e: Tensor, reads: Tensor) -> Tensor:
        """What comes behind the attention."""
        y = self.join(1, e, widened(self.out(reads)))
        inner = nn.functional.relu(self.inner(self.norm_2(y)))
        return self.join(2, y, widened(self.outer(inner)))

    def recurrence(self) -> AllSteps:
        return AllSteps(self._all_steps)

    def _all_steps(
        self, x: Tensor, state: Tensor, episode_starts: Tensor | None, initial: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        d, old, steps = self.hidden_size, self.window - 1, len(x)
        e, query_key_value = self._maps(x)
        q, k, v = query_key_value.split(d, dim=-1)
        q, scores = self._query(q)
        before, length = state.split([2 * old * d, 1], dim=-1)
        length = step_numbers(length, steps, episode_starts)
        result = kernels.attend(q, k, v, scores, before, length)
        if result is None:
            result = self._attend_in_blocks(q, k, v, scores, before, length)
        reads, last = result
        return self._behind(e, reads), torch.cat([last, length[-1] + 1], dim=-1)

    def _attend_in_blocks(
        self, q: Tensor, k: Tensor, v: Tensor, scores: Tensor, before: Tensor, length: Tensor
    ) -> tuple[Tensor, Tensor]:
        """As `kernels.attend`. In blocks the scores do not grow with the square of the steps."""
        d, old, steps = self.hidden_size, self.window - 1, len(q)
        ages = torch.arange(old, 0, -1, device=q.device).view(-1, 1, 1)
        is_known = ages < length[0] + 0.5  # what is not may hold anything
        keys, values = (
            torch.cat(
                [torch.where(is_known, first.unflatten(-1, (old, d)).transpose(0, 1), 0), new]
            )
            for first, new in zip(before.split(old * d, dim=-1), (k, v), strict=True)
        )
        size = max(self.window, BLOCK)
        reads = [
            self._attend(
                q[begin : begin + size],
                scores[:, begin : begin + size],
                keys[begin : begin + size + old],
                values[begin : begin + size + old],
                length[begin : begin + size],
            )
            for begin in range(0, steps, size)
        ]
        # What was before the episode is forgotten, here as in the loop.
        is_known = ages < length[-1] + 1.5
        kept = [
            torch.where(is_known, x[steps:], 0).transpose(0, 1).flatten(1) for x in (keys, values)
        ]
        return torch.cat(reads), torch.cat(kept, dim=-1)


class Transformer(Attention):
    """A sliding-window transformer: attention and an MLP, each added to its input.

        join(x, branch) = x + branch

    with the equations of `Attention`, layer norms in front of the branches (Xiong et al. 2020) and
    keys and values kept in the state, so that a step costs as much as window - 1 dot products. Each
    layer sees no further back than its window.

    Linear weights are sampled from U[-1/sqrt(n), 1/sqrt(n)] for n inputs; biases, u and w are zero.

    Args:
        input_size: width of the input.
        hidden_size: width d of the layer, at least 2, a multiple of num_heads.
        window: number of steps that a step sees, the current one included, at least 2.
        num_heads: number of attention heads.
        mlp_size: hidden units of the MLP; 2 d if None.
        device, dtype: of the parameters, as in torch.nn; float32 or float64.

    Raises:
        ValueError, TypeError: a size that is not an integer or too small, or a num_heads that does
            not divide hidden_size.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        window: int = 32,
        num_heads: int = 1,
        mlp_size: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size, window, num_heads, mlp_size, device, dtype)
        self.reset_parameters()

    def join(self, number: int, x: Tensor, branch: Tensor) -> Tensor:
        return x + branch


class GTrXL(Attention):
    """The gated Transformer-XL (Parisotto et al. 2020), with a memory of a bounded window.

    The equations of `Attention`, with each branch followed by a ReLU, y = relu(branch), and joined
    by a GRU's gates:

        r = sigmoid(W_r y + U_r x),  z = sigmoid(W_z y + U_z x - b)
        join(x, branch) = (1 - z) x + z tanh(W_g y + U_g (r x))

    b starts at gate_bias, so that the layer starts near the identity. The paper's memory is the
    inputs of each layer over the last segments, without gradient; here a step sees the last
    window - 1 steps, with gradients within a sequence, and keys and values are kept.

    Linear weights are sampled from U[-1/sqrt(n), 1/sqrt(n)] for n inputs; biases, u and w are zero.
    `gate_1` and `gate_2` hold W, stacked r, z, g, `carry_1` and `carry_2` U,
    `shift_1` and `shift_2` b.

    Args:
        input_size: width of the input.
        hidden_size: width d of the layer, at least 2, a multiple of num_heads.
        window: number of steps that a step sees, the current one included, at least 2.
        num_heads: number of attention heads.
        mlp_size: hidden units of the MLP; 2 d if None.
        gate_bias: initial value of b, 2 in the paper.
        device, dtype: of the parameters, as in torch.nn; float32 or float64.

    Raises:
        ValueError, TypeError: a size that is not an integer or too small, a num_heads that does
            not divide hidden_size, or a bias that is not finite.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        window: int = 32,
        num_heads: int = 1,
        mlp_size: int | None = None,
        gate_bias: float = 2.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size, window, num_heads, mlp_size, device, dtype)
        self.gate_bias = check_number("gate_bias", gate_bias)
        d, factory = hidden_size, factory_kwargs(device, dtype)
        self.gate_1, self.gate_2 = (nn.Linear(d, 3 * d, bias=False, **factory) for _ in range(2))
        self.carry_1, self.carry_2 = (nn.Linear(d, 3 * d, bias=False, **factory) for _ in range(2))
        self.shift_1, self.shift_2 = (nn.Parameter(torch.empty(d, **factory)) for _ in range(2))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        super().reset_parameters(generator)
        for shift in (self.shift_1, self.shift_2):
            shift.fill_(self.gate_bias)

    def join(self, number: int, x: Tensor, branch: Tensor) -> Tensor:
        gate, carry, shift = (
            getattr(self, f"{name}_{number}") for name in ("gate", "carry", "shift")
        )
        check_no_hooks(**{f"carry_{number}": carry})
        d = self.hidden_size
        of_y = widened(gate(nn.functional.relu(branch)))
        of_x = widened(nn.functional.linear(x, carry.weight[: 2 * d]))
        r, z = torch.sigmoid(of_y[..., :d] + of_x[..., :d]), of_y[..., d : 2 * d] + of_x[..., d:]
        candidate = of_y[..., 2 * d :] + widened(nn.functional.linear(r * x, carry.weight[2 * d :]))
        return torch.lerp(x, torch.tanh(candidate), torch.sigmoid(z - shift))


def _skewed(by_place: Tensor) -> Tensor:
    """Row t of (..., L, K) moved by t places to the right, (..., L, L + K - 1), with zeros around.

    Rows that are one longer than those that they are read as do it (Huang et al. 2019), where
    `gather` would have the gradient added number by number.
    """
    steps = by_place.shape[-2]
    padded = nn.functional.pad(by_place, (0, steps))
    skewed: Tensor = padded.flatten(-2)[..., :-steps].unflatten(-1, (steps, -1))
    return skewed
