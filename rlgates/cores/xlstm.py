"""The cells of the xLSTM: exponential gates, with a scalar and with a matrix memory."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rlgates.cell import Cell, State, factory_kwargs, full_precision, named_rows, widened
from rlgates.cores.blocks import in_blocks, product, replaced, sums_between
from rlgates.errors import MAX_WIDTH, check_number, check_size
from rlgates.gates import GateLike, as_gate
from rlgates.kernels import AllSteps, CellSpec, Memories, MemorySteps, NoKernel, RunMemories


class SLSTM(Cell):
    """The sLSTM (Beck et al. 2024): an LSTM with an exponential input gate and a normalizer.

    With L_k(x, h) = W_x_k x + b_k + W_h_k h, where W_h_k connects only units of the same head, and
    phi is the activation of the gate, a sigmoid without a prefix:

        f  = phi(L_f),  i = exp(L_i),  o = sigmoid(L_o),  u = tanh(L_u)
        c' = f c + i u
        n' = f n + i
        h' = o c' / n'                    the output

    and with a refine gate f = refine(phi(L_f), sigmoid(L_r)), see `rlgates.gates.refine`. The cell
    takes only the forget gate and its biases from a gate; the input gate stays exponential. So
    there are no tied, ordered or master gates, whose input gates are between 0 and 1 and depend on
    what the same units keep. A bias of i scales c and n equally, so it does not change h; it is
    initially zero with every gate. The paper's other forget gate, exp(L_f), is left out.

    Computed as in eq. 15 to 17 and the authors' code, with c and n divided by exp(m) and
    m' = max(log f + m, L_i), so that nothing overflows. This is only the cell: the paper's block
    around it (layer norm, convolution, group norm and a gated network) belongs to the layers around
    it.

    Stacking order of the maps: i, f, u, o, and with a refine gate i, r, f, u, o. Weights of k maps:
    `weight_ih` (k d, I), `weight_hh` (heads, k d / heads, d / heads), of each head its maps, `bias`
    (k d). Initialization: weights from U[-1/sqrt(d), 1/sqrt(d)]; the gate initializes the biases of
    f and r; all others are zero.

    The state is (h, c, n, m), initially zero; n is 0 only there, where m does not matter. It is
    in float32 under autocast. The traced forget gate is f.

    Args:
        input_size: width of the input.
        hidden_size: number of units d, a multiple of num_heads.
        gate: a key of `rlgates.GATES`, a row, or a `Gate` of hidden_size units; not cumax, and no
            master gate.
        num_heads: number of groups of units; only units of a group read each other.
        input_scale: factor on the initial input weights of the lowest layer.
        device, dtype: of the parameters, as in torch.nn; float32 or float64.

    Raises:
        ValueError, TypeError: a size below 1 or not an integer, a num_heads that does not divide
            hidden_size, a scale that is not positive, a gate of the wrong size or kind, or one to
            which `tied` was given.
    """

    first_layer_options = ("input_scale",)
    learnable = ("h",)

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        gate: GateLike = "",
        num_heads: int = 1,
        input_scale: float = 1.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.input_size = check_size("input_size", input_size)
        self.hidden_size = self.output_size = d = check_size("hidden_size", hidden_size)
        self.num_heads = heads = _check_heads(num_heads, d)
        self.gate = as_gate(gate, d)
        if self.gate.auxiliary == "master" or self.gate.row.activation == "cumax":
            raise ValueError(
                f"the input gate of the sLSTM is exponential: the gate must not order its units "
                f"or have masters, got {self.gate}."
            )
        if self.gate.options.get("tied") is not None:
            raise ValueError(
                "the input gate of the sLSTM is exponential: it cannot be tied to the forget gate, "
                f"so tied has no meaning, got {self.gate}."
            )
        self.input_scale = check_number("input_scale", input_scale, above=0)
        self.state_shapes = {"h": (d,), "c": (d,), "n": (d,), "m": (d,)}
        self.maps = ("i", *(name for name in self.gate.maps if name != "i"), "u", "o")
        rows = len(self.maps) * d
        factory = factory_kwargs(device, dtype)
        self.weight_ih = nn.Parameter(torch.empty(rows, input_size, **factory))
        self.weight_hh = nn.Parameter(torch.empty(heads, rows // heads, d // heads, **factory))
        self.bias = nn.Parameter(torch.empty(rows, **factory))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        bound = self.hidden_size**-0.5
        self.weight_ih.uniform_(-bound, bound, generator=generator).mul_(self.input_scale)
        self.weight_hh.uniform_(-bound, bound, generator=generator)
        self.bias.zero_()
        biases = self.gate.initial_biases(generator, self.bias.device, self.bias.dtype)
        for name in biases.keys() - {"i"}:
            self.gate_weights()[f"b_{name}"].copy_(biases[name])

    def gate_weights(self) -> dict[str, Tensor]:
        """Views `W_x_k`, `b_k` and `W_h_k` (heads, d / heads, d / heads) of each map k."""
        maps = dict.fromkeys(self.maps, self.hidden_size)
        recurrent = self.weight_hh.detach().chunk(len(maps), dim=1)
        named = {f"W_h_{name}": part for name, part in zip(maps, recurrent, strict=True)}
        return {**named_rows(maps, W_x=self.weight_ih, b=self.bias), **named}

    def project(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight_ih, self.bias)

    def _maps(self, projected: Tensor, h: Tensor) -> tuple[Tensor, ...]:
        count = len(self.maps)
        heads = h.unflatten(-1, (self.num_heads, -1)).transpose(0, 1)
        of_h = torch.bmm(heads.to(self.weight_hh.dtype), self.weight_hh.mT)
        by_map = of_h.unflatten(-1, (count, -1)).permute(1, 2, 0, 3).flatten(1)
        return widened(projected + by_map).chunk(count, dim=-1)

    @property
    def _is_plain(self) -> bool:
        """Whether f is the sigmoid of its map alone."""
        return self.gate.row.activation == "sigmoid" and self.gate.auxiliary != "refine"

    def step(self, projected: Tensor, state: State) -> tuple[Tensor, State]:
        h, c, n, m = state
        i, *of_gate, u, o = self._maps(projected, h)
        if self._is_plain:
            log_f = nn.functional.logsigmoid(of_gate[0])
        else:
            f = self._effective(i, of_gate)
            # What is forgotten altogether has no gradient, as in exp(-inf).
            log_f = torch.where(f <= 0, -torch.inf, f.clamp(min=torch.finfo(f.dtype).tiny).log())
        # At the start of an episode m says nothing.
        log_f = torch.where(n == 0, -torch.inf, log_f + m)
        new_m = torch.maximum(log_f, i)
        scale_f, scale_i = torch.exp(log_f - new_m), torch.exp(i - new_m)
        c = scale_f * c + scale_i * torch.tanh(u)
        n = scale_f * n + scale_i
        h = torch.sigmoid(o) * c / n
        return h, (h, c, n, new_m)

    def _effective(self, i: Tensor, of_gate: list[Tensor]) -> Tensor:
        """The forget gate; that of the table makes an input gate too, which is not read."""
        return self.gate(*([i] if "i" in self.gate.maps else []), *of_gate)[0]

    def recurrence(self) -> CellSpec | NoKernel:
        if self.num_heads > 1:
            return NoKernel(f"it takes one head, got num_heads={self.num_heads}")
        weights = self.weight_ih, self.bias, self.weight_hh[0]
        activation, auxiliary, _ = self.gate.key
        one_map = "tied" if auxiliary == "untied" else auxiliary
        gate = None if self._is_plain else (activation, one_map, 1)
        return CellSpec("slstm", (self.hidden_size,), weights, gate)

    def forget_gate(self, projected: Tensor, state: State) -> Tensor:
        i, *of_gate, _, _ = self._maps(projected, state[0])
        return self._effective(i, of_gate)


class MLSTM(Cell):
    """The mLSTM (Beck et al. 2024): a matrix memory, with exponential gates of the input alone.

    For each head, with q, k, v = W_q x + b_q, (W_k x + b_k) / sqrt(key_size), W_v x + b_v:

        f  = sigmoid(w_f x + b_f),  i = exp(w_i x + b_i)     one number each
        C' = f C + i v k^T
        n' = f n + i k
        r  = C' q / max(|n' q|, 1)
        h  = sigmoid(W_o x + b_o) * [r of all heads]          the output

    Computed as in eq. 25 to 27 and the authors' code, with C and n divided by exp(m) and
    m' = max(log f + m, log i), so that nothing overflows; that code adds 1e-6 to the denominator,
    and its later version (xLSTM 7B) caps the arguments of i and f at 15 by a tanh. This is only the
    cell: the paper's block belongs to the layers around it.

    Weights: `weight` and `bias`, stacked q, k, v, o, then the heads' i and f; from
    U[-1/sqrt(I), 1/sqrt(I)] for I inputs. Biases are zero, but those of f go from 3 to 6 over the
    heads, as in the authors' code.

    The state is (C, n, m), initially zero: key_size (d + heads) + heads numbers. The traced forget
    gate is f.

    Args:
        input_size: width of the input.
        hidden_size: width d of the output, a multiple of num_heads.
        num_heads: number of memories; the values of each have d / num_heads numbers.
        key_size: width of keys and queries of a head; None for the width of the values.
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
        self.input_size = check_size("input_size", input_size)
        self.hidden_size = self.output_size = d = check_size("hidden_size", hidden_size)
        self.num_heads = heads = _check_heads(num_heads, d)
        key = d // heads if key_size is None else key_size
        self.key_size = key = check_size("key_size", key, maximum=MAX_WIDTH)
        self.state_shapes = {"C": (heads, d // heads, key), "n": (heads, key), "m": (heads,)}
        keys = heads * key
        self.maps = {"q": keys, "k": keys, "v": d, "o": d, "i": heads, "f": heads}
        factory = factory_kwargs(device, dtype)
        self.weight = nn.Parameter(torch.empty(sum(self.maps.values()), input_size, **factory))
        self.bias = nn.Parameter(torch.empty(sum(self.maps.values()), **factory))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        bound = self.input_size**-0.5
        self.weight.uniform_(-bound, bound, generator=generator)
        self.bias.zero_()
        self.gate_weights()["b_f"].copy_(torch.linspace(3, 6, self.num_heads, device="cpu"))

    def gate_weights(self) -> dict[str, Tensor]:
        """Views `W_k` and `b_k` of the maps q, k, v, o, i, f."""
        return named_rows(self.maps, W=self.weight, b=self.bias)

    def project(self, x: Tensor) -> Tensor:
        return widened(nn.functional.linear(x, self.weight, self.bias))

    def _parts(self, projected: Tensor) -> tuple[Tensor, ...]:
        """q, k and v by heads, (..., heads, width), the gates before them, and the output gate."""
        q, k, v, o, i, f = projected.split([*self.maps.values()], dim=-1)
        q, k, v = (part.unflatten(-1, (self.num_heads, -1)) for part in (q, k, v))
        return q, k * self.key_size**-0.5, v, i, nn.functional.logsigmoid(f), torch.sigmoid(o)

    def step(self, projected: Tensor, state: State) -> tuple[Tensor, State]:
        memory, n, m = state
        q, k, v, i, log_f, o = self._parts(projected)
        kept = log_f + m
        new_m = torch.maximum(kept, i)
        scale_f = torch.exp(kept - new_m).unsqueeze(-1)
        scaled_k = torch.exp(i - new_m).unsqueeze(-1) * k
        with full_precision(memory.device.type):
            outer = v.unsqueeze(-1) * scaled_k.unsqueeze(-2)
            memory = scale_f.unsqueeze(-1) * memory + outer
            n = scale_f * n + scaled_k
            weight = torch.maximum((n * q).sum(-1).abs(), _one_over(new_m))
            read = (memory @ q.unsqueeze(-1)).squeeze(-1) / weight.unsqueeze(-1)
        return o * read.flatten(1), (memory, n, new_m)

    def recurrence(self) -> AllSteps:
        return AllSteps(self._all_steps, Memories(self._run_memories))

    def _run_memories(
        self,
        x: Tensor,
        state: Tensor,
        episode_starts: Tensor | None,
        initial: Tensor | None,
        run: RunMemories,
    ) -> tuple[Tensor, Tensor]:
        """Memories whose decays and keys are scaled by m."""
        q, k, v, i, log_f, output_gate = self._parts(self.project(x))
        before = self._memory(state)
        first = None if initial is None else self._memory(initial)
        first_rows, first_m = first or (None, None)
        m, m_before = _maxima(i, log_f, before.m, first_m, episode_starts)
        decay, scale = torch.exp(log_f + m_before - m), torch.exp(i - m)
        values = torch.cat([v, torch.ones_like(v[..., :1])], dim=-1)  # n sums the keys alone
        steps = MemorySteps(q, scale.unsqueeze(-1) * k, values, decay)
        sums, rows = run(steps, before.rows, first_rows, episode_starts)
        weight = torch.maximum(sums[..., -1].abs(), _one_over(m)).unsqueeze(-1)
        after = rows[..., :-1, :], rows[..., -1, :], m[-1]
        outputs = output_gate * (sums[..., :-1] / weight).flatten(-2)
        return outputs, torch.cat([part.flatten(1) for part in after], dim=-1)

    def _all_steps(
        self, x: Tensor, state: Tensor, episode_starts: Tensor | None, initial: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Blocks of steps, within which a step weighs the others as in attention."""
        q, k, v, *gates, output_gate = self._parts(self.project(x))
        values = torch.cat([v, torch.ones_like(v[..., :1])], dim=-1)  # n sums the keys alone
        first = None if initial is None else self._memory(initial)

        def block(
            parts: list[Any], before: _Memory, begins: Tensor | None
        ) -> tuple[Tensor, _Memory]:
            return _block(parts, before, first, begins)

        before, parts = self._memory(state), (q, k, values, *gates)
        reads, now = in_blocks(block, parts, before, episode_starts, len(x))
        after = now.rows[..., :-1, :], now.rows[..., -1, :], now.m
        return output_gate * reads, torch.cat([part.flatten(1) for part in after], dim=-1)

    def _memory(self, state: Tensor) -> _Memory:
        """The parts of a state (B, S)."""
        shapes = [*self.state_shapes.values()]
        parts = state.split([math.prod(shape) for shape in shapes], dim=-1)
        c, n, m = (part.unflatten(-1, shape) for part, shape in zip(parts, shapes, strict=True))
        return _Memory(torch.cat([c, n.unsqueeze(-2)], dim=-2), m)

    def forget_gate(self, projected: Tensor, state: State) -> Tensor:
        return torch.sigmoid(projected[:, -self.num_heads :])


def _one_over(m: Tensor) -> Tensor:
    """exp(-m), the 1 that reads are divided by at least, in units of exp(m).

    It is finite: infinity would have no gradient. What is divided by it is nearly 0 all the same.
    """
    return torch.exp((-m).clamp(max=math.floor(math.log(torch.finfo(m.dtype).max))))


def _maxima(
    i: Tensor, log_f: Tensor, m_0: Tensor, first: Tensor | None, episode_starts: Tensor | None
) -> tuple[Tensor, Tensor]:
    """m_t = max(log f_t + m_{t-1}, i_t) of all steps (T, B, heads), and m_{t-1}.

    By doubling: after n rounds m knows of the last 2^n steps.

    Args:
        i, log_f: (T, B, heads).
        m_0: before the first step, (B, heads).
        first: that at the start of an episode; None for zeros.
        episode_starts: (T, B) bool, or None.
    """
    known, is_known = m_0.expand_as(i), torch.zeros_like(i[..., :1], dtype=torch.bool)
    is_known[0] = True
    if episode_starts is not None:
        starts = episode_starts.unsqueeze(-1)
        known, is_known = replaced(known, starts, first), is_known | starts
    m = torch.where(is_known, torch.maximum(log_f + known, i), i)
    decay, cut, reach = log_f, is_known, 1
    while reach < len(i):
        # Nothing of another episode may count, even if it is not a number.
        older = (decay[reach:] + m[:-reach]).masked_fill(cut[reach:], -torch.inf)
        m = torch.cat([m[:reach], torch.maximum(older, m[reach:])])
        decay = torch.cat([decay[:reach], decay[reach:] + decay[:-reach]])
        cut = torch.cat([cut[:reach], cut[reach:] | cut[:-reach]])
        reach *= 2
    before = torch.where(is_known, known, torch.cat([known[:1], m[:-1]]))
    return m, before


class _Memory(NamedTuple):
    """The state of an mLSTM.

    Attributes:
        rows: C, and n as its last row, (B, heads, value_size + 1, key_size).
        m: (B, heads).
    """

    rows: Tensor
    m: Tensor


def _block(
    parts: list[Any], before: _Memory, first: _Memory | None, begins: Tensor | None
) -> tuple[Tensor, _Memory]:
    """L steps of an mLSTM: the reads (L, B, d) and the state behind them.

    Args:
        parts: q, k, v with a 1 behind it, (L, B, heads, width), and logarithms of i and f,
            (L, B, heads).
        before: the state.
        first: that at the start of an episode; None for zeros.
        begins: in which step of the block the episode of each began, (L, B), below 0 for an
            earlier one; None if all are.
    """
    q, k, v = (part.permute(1, 2, 0, 3) for part in parts[:3])
    i, log_f = (part.permute(1, 2, 0) for part in parts[3:])
    rows, m = before
    first_rows, first_m = first or (None, None)
    if begins is not None:  # a state that is not read may hold anything
        fresh = (begins[0] >= 0).unsqueeze(-1)
        rows, m = replaced(rows, fresh[..., None, None], first_rows), replaced(m, fresh, first_m)
    m_before, of_before = m.unsqueeze(-1), q @ rows.mT
    steps = torch.arange(q.shape[2], device=q.device)
    seen = steps <= steps.unsqueeze(-1)  # (L, L), by a step
    if begins is not None:
        begin = begins.t().unsqueeze(1)  # (B, 1, L)
        seen, is_new = seen & (steps >= begin.unsqueeze(-1)), begin >= 0
        m_before = replaced(m_before, is_new, None if first_m is None else first_m.unsqueeze(-1))
        is_new = is_new.unsqueeze(-1)
        of_before = replaced(of_before, is_new, product(q, first_rows))
        rows = replaced(rows, is_new[:, :, -1:], first_rows)
    # Nothing of another episode may count, even if it is not a number: no product by 0.
    unseen, v = ~seen, torch.where(v.isnan(), 0, v)
    since = log_f.unsqueeze(-2).masked_fill(unseen, 0).sum(-1)  # what is left of the state before
    weights = sums_between(log_f) + i.unsqueeze(-2)  # of step s at step t
    weights, old = weights.masked_fill(unseen, -torch.inf), since + m_before
    m = torch.maximum(old, weights.amax(-1))
    weights, old = torch.exp(weights - m.unsqueeze(-1)), torch.exp(old - m).unsqueeze(-1)
    sums = (weights * (q @ k.mT).masked_fill(unseen, 0)) @ v + old * of_before
    reads, total = sums[..., :-1], sums[..., -1:].abs()
    reads = reads / torch.maximum(total, _one_over(m).unsqueeze(-1))
    last = (weights[..., -1, :].unsqueeze(-1) * k).masked_fill(unseen[..., -1, :, None], 0)
    rows = v.mT @ last + old[..., -1:, :] * rows
    return reads.permute(2, 0, 1, 3).flatten(-2), _Memory(rows, m[..., -1])


def _check_heads(num_heads: int, hidden_size: int) -> int:
    check_size("num_heads", num_heads)
    if hidden_size % num_heads:
        raise ValueError(f"num_heads must divide hidden_size = {hidden_size}, got {num_heads}.")
    return num_heads
