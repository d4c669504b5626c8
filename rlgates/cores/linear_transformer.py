"""Linear attention: a transformer whose memory is a sum of outer products."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rlgates.cell import LinearCell, factory_kwargs, full_precision, named_rows, widened
from rlgates.cores.blocks import Writes, read_memory
from rlgates.errors import check_flag, check_normalized, check_size, nearest_divisor
from rlgates.kernels import AllSteps, LinearStep, Memories, MemorySteps, RunMemories

_SMALLEST = 1e-5  # added to the denominator, as in POPGym


class LinearTransformer(LinearCell):
    """The linear transformer as a recurrent cell (Katharopoulos et al. 2020), as in POPGym.

    Over the whole past of an episode, with phi(a) = elu(a) + 1, which is positive, each of the
    heads computes the normalized attention of its query to all keys so far:

        n  = LayerNorm(x)
        q  = phi(W_q n),   k = phi(W_k n),   v = W_v n
        S' = S + k v^T,    z' = z + k                           the state, a sum
        a  = (S'^T q) / (z'^T q + 0.00001)                      of each head, side by side
        h  = relu(W_2 relu(W_1 a + b_1) + b_2) + W_s n + b_s    the output

    This is the block of POPGym's linear attention (Morad et al. 2023), with heads, and without its
    map to another width or positional encoding. The original layer has biases in q, k and v. It
    adds x to the attention and normalizes the sum, which needs inputs as wide as the outputs, and
    its feed-forward part is wider and has no second relu. With `feed_forward=False`, h = a + W_s n
    + b_s.

    Nothing is forgotten within an episode, so there is no forget gate. S and z grow with its length
    while their quotient stays bounded. Numbers do not overflow, but after a million steps, what is
    added in float32 is rounded to a few digits. An episode start sets both to zero.

    Maps are sampled as in torch.nn.Linear. Weights: `weight_qkv`, stacked q, k (num_heads key_size)
    and v (d), of I columns; `norm_weight`, `norm_bias` (I); `weight_skip` (d, I), `bias_skip`;
    `weight_ff` (2 d, d), stacked W_1, W_2, `bias_ff`, if there is a feed-forward part. The state is
    h (num_heads key_size (d / num_heads + 1)): first S head by head, row by row (one per key), then
    z.

    Args:
        input_size: width of the input, at least 2: of one number, LayerNorm leaves nothing.
        hidden_size: width of the output d, and of the values.
        num_heads: number of heads, a divisor of d.
        key_size: width of the keys of a head; by default d / num_heads. A single head has a state
            of d (d + 1) numbers by default: more heads, or smaller keys, make it smaller.
        feed_forward: whether two layers follow the attention.
        device, dtype: of the parameters, as in torch.nn; float32 or float64.

    Raises:
        ValueError, TypeError: a size that is too small or not an integer, heads that do not divide
            d.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_heads: int = 1,
        key_size: int | None = None,
        feed_forward: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.input_size = check_normalized(
            "input_size", input_size, "the layer would not see its input"
        )
        self.hidden_size = self.output_size = d = check_size("hidden_size", hidden_size)
        self.num_heads = check_size("num_heads", num_heads)
        if d % self.num_heads:
            raise ValueError(
                f"num_heads must divide hidden_size {d}, got {num_heads}. "
                f"The nearest is {nearest_divisor(d, self.num_heads)}."
            )
        value_size = d // self.num_heads
        self.key_size = check_size("key_size", value_size if key_size is None else key_size)
        self.feed_forward = check_flag("feed_forward", feed_forward)
        self._shape = self.num_heads, self.key_size, value_size
        keys = self.num_heads * self.key_size
        self.state_shapes = {"h": (keys * (value_size + 1),)}
        self.maps = {"q": keys, "k": keys, "v": d}
        factory = factory_kwargs(device, dtype)
        self.weight_qkv = nn.Parameter(torch.empty(2 * keys + d, self.input_size, **factory))
        self.norm_weight = nn.Parameter(torch.empty(self.input_size, **factory))
        self.norm_bias = nn.Parameter(torch.empty(self.input_size, **factory))
        self.weight_skip = nn.Parameter(torch.empty(d, self.input_size, **factory))
        self.bias_skip = nn.Parameter(torch.empty(d, **factory))
        if self.feed_forward:
            self.weight_ff = nn.Parameter(torch.empty(2 * d, d, **factory))
            self.bias_ff = nn.Parameter(torch.empty(2 * d, **factory))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        self.norm_weight.fill_(1)
        self.norm_bias.zero_()
        bound = self.input_size**-0.5
        for parameter in (self.weight_qkv, self.weight_skip, self.bias_skip):
            parameter.uniform_(-bound, bound, generator=generator)
        if self.feed_forward:
            bound = self.hidden_size**-0.5
            self.weight_ff.uniform_(-bound, bound, generator=generator)
            self.bias_ff.uniform_(-bound, bound, generator=generator)

    def gate_weights(self) -> dict[str, Tensor]:
        """Views W_q, W_k, W_v, g_n, o_n (of the norm), W_s, b_s, W_1, W_2, b_1 and b_2."""
        views = named_rows(self.maps, W=self.weight_qkv)
        views |= {"g_n": self.norm_weight.detach(), "o_n": self.norm_bias.detach()}
        views |= {"W_s": self.weight_skip.detach(), "b_s": self.bias_skip.detach()}
        if self.feed_forward:
            layers = dict.fromkeys(("1", "2"), self.hidden_size)
            views |= named_rows(layers, W=self.weight_ff, b=self.bias_ff)
        return views

    def _maps(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """q, k and v (..., P), and the skip term."""
        n = nn.functional.layer_norm(x, (self.input_size,), self.norm_weight, self.norm_bias)
        z = widened(nn.functional.linear(n, self.weight_qkv))
        q, k, v = z.split([*self.maps.values()], dim=-1)
        skip = widened(nn.functional.linear(n, self.weight_skip, self.bias_skip))
        return nn.functional.elu(q) + 1, nn.functional.elu(k) + 1, v, skip

    def linear(self, x: Tensor) -> LinearStep:
        """Ones, k v^T and k, and what reads the state: q and the skip term."""
        heads, key_size, value_size = self._shape
        q, k, v, skip = self._maps(x)
        products = k.unflatten(-1, (heads, key_size, 1)) * v.unflatten(-1, (heads, 1, value_size))
        b = torch.cat([products.flatten(-3), k], dim=-1)
        return LinearStep(b.new_ones(b.shape[-1]), b, torch.cat([q, skip], dim=-1))

    def read(self, h: Tensor, extra: Tensor | None) -> Tensor:
        assert extra is not None
        heads, key_size, value_size = self._shape
        keys, d = heads * key_size, self.hidden_size
        s, z = h.split([keys * value_size, keys], dim=-1)
        q, skip = extra.split([keys, d], dim=-1)
        s, q = s.unflatten(-1, self._shape), q.unflatten(-1, (heads, 1, key_size))
        z = z.unflatten(-1, (heads, key_size, 1))
        # Products of float32, under autocast too: S and z are sums over the episode.
        return self._behind(_multiplied(q, s).squeeze(-2), _multiplied(q, z).squeeze(-2), skip)

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
        """By `run`, or in blocks: a scan would make k v^T of each step."""
        heads = self.num_heads
        q, k, v, skip = self._maps(x)
        q, k, v = (part.unflatten(-1, (heads, -1)) for part in (q, k, v))
        values = torch.cat([v, torch.ones_like(v[..., :1])], dim=-1)  # z sums the keys alone
        first = None if initial is None else self._memory(initial)
        before = self._memory(state)
        if run is None:
            reads, memory = read_memory(Writes(q, k, values), before, first, episode_starts)
        else:
            reads, memory = run(MemorySteps(q, k, values), before, first, episode_starts)
        s, z = memory[..., :-1, :].mT.flatten(1), memory[..., -1, :].flatten(1)
        outputs = self._behind(reads[..., :-1], reads[..., -1:], skip)
        return outputs, torch.cat([s, z], dim=-1)

    def _memory(self, state: Tensor) -> Tensor:
        """S and z of a state (B, S), (B, heads, value_size + 1, key_size)."""
        heads, key_size, value_size = self._shape
        s, z = state.split([heads * key_size * value_size, heads * key_size], dim=-1)
        parts = s.unflatten(-1, self._shape).mT, z.unflatten(-1, (heads, 1, key_size))
        return torch.cat(parts, dim=-2)

    def _behind(self, sums: Tensor, totals: Tensor, skip: Tensor) -> Tensor:
        """The output, from S q (..., heads, value_size) and z q (..., heads, 1)."""
        out = (sums / (totals + _SMALLEST)).flatten(-2)
        if self.feed_forward:
            for weight, bias in zip(self.weight_ff.chunk(2), self.bias_ff.chunk(2), strict=True):
                out = torch.relu(widened(nn.functional.linear(out, weight, bias)))
        result: Tensor = out + skip
        return result


def _multiplied(one: Tensor, other: Tensor) -> Tensor:
    """The product of matrices, without autocast."""
    with full_precision(one.device.type):
        return one @ other
