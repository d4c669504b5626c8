"""The differentiable neural computer, with every gate in its controller."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from rlgates.cell import (
    NOT_AS_BUILT,
    Cell,
    State,
    check_no_hooks,
    computes_as,
    factory_kwargs,
    full_precision,
    named_rows,
    truncated_normal_,
    widened,
)
from rlgates.cores import addressing
from rlgates.cores.lstm import LSTM
from rlgates.errors import MAX_WIDTH, check_number, check_size
from rlgates.gates import GateLike
from rlgates.kernels import CellSpec, NoKernel


class DNC(Cell):
    """Differentiable neural computer (Graves et al. 2016): an LSTM with an external memory.

    The memory M has N slots of W numbers, R read heads and K write heads. A head has a weight in
    [0, 1] for each slot. One step, with `reads` the words read in the previous one:

        h, c  = clip(LSTM([x ; reads], h, c))    with any gate of `rlgates.gates.GATES`
        v, e, f, g_a, g_w, m, k_w, s_w, k_r, s_r = the interface, linear in h
        u     = (u + (1 - u) (1 - prod_k (1 - w_k))) prod_r (1 - f_r r_r)    usage, from the
                previous weights w and r, without gradient to w
        a     = allocation(u)                    the least used slots first
        w     = g_w (g_a a + (1 - g_a) content(M, k_w, s_w))        write weights (K, N)
        M     = M * prod_k (1 - w_k e_k^T) + sum_k w_k v_k^T        erase, then add
        L_ij  = (1 - w_i - w_j) L_ij + w_i p_j,  L_ii = 0           link (K, N, N)
        p     = (1 - sum_i w_i) p + w                               precedence (K, N)
        r     = sum_k m_k L_k^T r + sum_k m_(K+k) L_k r + m_2K content(M, k_r, s_r)
        reads = r M                                                 (R, W)
        y     = clip(W_out [h ; reads] + b_out)  the output

    content(M, k, s) is the softmax over the slots of softplus(s) cos(k, M_i). With slots sorted
    by increasing usage (stable), a_j = (1 - u_j) prod_(i < j) u_i. Between write heads, u is
    raised temporarily by (1 - u) g_a g_w a. See `rlgates.cores.addressing`.

    The memory gates (f, g_a, g_w, e) are sigmoids for every controller gate; the read modes m of
    a head are a softmax over K backward, K forward and one content mode.

    Parameters: `controller` is an `rlgates.cores.LSTM`, which documents its stacking order;
    `out` is the output map. Stacking order of the rows of `interface`:

        write_vectors v (K W), erase_vectors e (K W), free_gate f (R), allocation_gate g_a (K),
        write_gate g_w (K), read_mode m (R (1 + 2 K), head after head), write_keys k_w (K W),
        write_strengths s_w (K), read_keys k_r (R W), read_strengths s_r (R)

    As in the authors' code, all matrices and the biases of the controller's maps u and o are
    initialized from a normal distribution of standard deviation 1/sqrt(fan-in), truncated at two
    standard deviations; the fan-in of the controller is the width of [x ; reads ; h]. The gate
    initializes its biases (the constant 1 that the authors add to the forget gate is the
    `forget_bias` of the plain gate); all others are zero.

    The state is (h, c, memory, read_weights, write_weights, link, precedence, usage, reads),
    initially zero; only h and c can be learned. State and memory operations stay in float32
    under autocast.

    Args:
        input_size: width of the input.
        hidden_size: number of units d of the controller.
        gate: of the controller: a key of `rlgates.GATES`, a row, or a `Gate` of hidden_size units.
        num_slots, word_size: N and W.
        num_reads, num_writes: R and K.
        clip: bound on h, c and the output; None for no bound. These five defaults are those of
            the authors' training script.
        output_size: width of the output; d if None.
        device, dtype: of the parameters, as in torch.nn; float32 or float64.

    Raises:
        ValueError, TypeError: a size below 1 or not an integer, a clip that is neither None
            nor a positive number, a gate of the wrong size.
    """

    learnable = ("h", "c")

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        gate: GateLike = "",
        num_slots: int = 16,
        word_size: int = 16,
        num_reads: int = 4,
        num_writes: int = 1,
        clip: float | None = 20.0,
        output_size: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.input_size = check_size("input_size", input_size)
        self.hidden_size = check_size("hidden_size", hidden_size)
        slots = self.num_slots = check_size("num_slots", num_slots, maximum=MAX_WIDTH)
        word = self.word_size = check_size("word_size", word_size, maximum=MAX_WIDTH)
        reads = self.num_reads = check_size("num_reads", num_reads, maximum=MAX_WIDTH)
        writes = self.num_writes = check_size("num_writes", num_writes, maximum=MAX_WIDTH)
        self.clip = None if clip is None else check_number("clip", clip, above=0)
        self.output_size = check_size(
            "output_size",
            hidden_size if output_size is None else output_size,
            maximum=MAX_WIDTH,
        )
        self._maps = {
            "write_vectors": (writes, word),
            "erase_vectors": (writes, word),
            "free_gate": (reads,),
            "allocation_gate": (writes,),
            "write_gate": (writes,),
            "read_mode": (reads, 1 + 2 * writes),
            "write_keys": (writes, word),
            "write_strengths": (writes,),
            "read_keys": (reads, word),
            "read_strengths": (reads,),
        }
        self._rows = [math.prod(shape) for shape in self._maps.values()]
        self.state_shapes = {
            "h": (hidden_size,),
            "c": (hidden_size,),
            "memory": (slots, word),
            "read_weights": (reads, slots),
            "write_weights": (writes, slots),
            "link": (writes, slots, slots),
            "precedence": (writes, slots),
            "usage": (slots,),
            "reads": (reads, word),
        }
        factory = factory_kwargs(device, dtype)
        self.controller = LSTM(self.input_size + reads * word, hidden_size, gate, **factory)
        self.interface = nn.Linear(hidden_size, sum(self._rows), **factory)
        self.out = nn.Linear(hidden_size + reads * word, self.output_size, **factory)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        controller = self.controller
        controller.reset_parameters(generator)  # initializes the biases of the gate
        fan_in = controller.input_size + controller.hidden_size
        truncated_normal_(controller.weight_ih, fan_in, generator)
        truncated_normal_(controller.weight_hh, fan_in, generator)
        biases = controller.gate_weights()
        for name in ("u", "o"):
            truncated_normal_(biases[f"b_{name}"], fan_in, generator)
        for linear in (self.interface, self.out):
            truncated_normal_(linear.weight, linear.in_features, generator)
            linear.bias.zero_()

    def gate_weights(self) -> dict[str, Tensor]:
        """Views of the controller, `W_name` and `b_name` of each map, `W_out` and `b_out`."""
        views = self.controller.gate_weights()
        maps = dict(zip(self._maps, self._rows, strict=True))
        views |= named_rows(maps, W=self.interface.weight, b=self.interface.bias)
        return views | {"W_out": self.out.weight.detach(), "b_out": self.out.bias.detach()}

    def project(self, x: Tensor) -> Tensor:
        check_no_hooks(controller=self.controller)
        weight = self.controller.weight_ih[:, : self.input_size]
        return nn.functional.linear(x, weight, self.controller.bias_ih + self.controller.bias_hh)

    def step(self, projected: Tensor, state: State) -> tuple[Tensor, State]:
        h, c, memory, read, write, link, precedence, usage, words = state
        _, (h, c) = self.controller.step(self._controlled(projected, words), (h, c))
        h, c = self._clipped(h), self._clipped(c)
        vectors, erase, free, allocate, gate, modes, *content = self._interface(h)
        write_keys, write_strengths, read_keys, read_strengths = content
        with full_precision(h.device.type):
            usage = addressing.next_usage(usage, write, read, free)
            allocation = addressing.allocations(usage, allocate * gate)
            content_w = addressing.content_weights(write_keys, write_strengths, memory)
            allocate, gate = allocate.unsqueeze(-1), gate.unsqueeze(-1)
            write = gate * (allocate * allocation + (1 - allocate) * content_w)
            memory = addressing.next_memory(memory, write, erase, vectors)
            link = addressing.next_link(link, precedence, write)
            precedence = addressing.next_precedence(precedence, write)
            content_w = addressing.content_weights(read_keys, read_strengths, memory)
            read = addressing.read_weights(read, link, content_w, modes)
            words = read @ memory
        y = self._clipped(widened(self.out(torch.cat([h, words.flatten(1)], dim=-1))))
        return y, (h, c, memory, read, write, link, precedence, usage, words)

    def forget_gate(self, projected: Tensor, state: State) -> Tensor:
        return self.controller.forget_gate(self._controlled(projected, state[-1]), state[:2])

    def recurrence(self) -> CellSpec | NoKernel:
        check_no_hooks(controller=self.controller)
        if not computes_as(nn.Linear, self.interface, self.out):
            return NOT_AS_BUILT
        controller, inputs = self.controller, self.input_size
        weight = controller.weight_ih
        weights = (
            weight[:, :inputs],
            controller.bias_ih + controller.bias_hh,
            torch.cat([weight[:, inputs:], controller.weight_hh], dim=1),
            *(self.interface.weight, self.interface.bias, self.out.weight, self.out.bias),
        )
        sizes = (
            *(self.hidden_size, self.num_slots, self.word_size, self.num_reads, self.num_writes),
            self.output_size,
        )
        gate = controller.gate.key
        return CellSpec("dnc", sizes, weights, gate, constant=self.clip or 0.0)

    def _controlled(self, projected: Tensor, words: Tensor) -> Tensor:
        """The whole input of the controller, projected: that of x and of the last reads."""
        weight = self.controller.weight_ih[:, self.input_size :]
        return torch.addmm(projected, words.flatten(1), weight.t())

    def _interface(self, h: Tensor) -> tuple[Tensor, ...]:
        """What h says to the memory, (B, *shape) each, in the order of the maps."""
        z = widened(self.interface(h)).split(self._rows, dim=-1)
        shapes = self._maps.values()
        v, e, f, allocate, gate, modes, *content = (
            part.view(-1, *shape) for part, shape in zip(z, shapes, strict=True)
        )
        gates = (torch.sigmoid(part) for part in (e, f, allocate, gate))
        return v, *gates, torch.softmax(modes, dim=-1), *content

    def _clipped(self, x: Tensor) -> Tensor:
        return x if self.clip is None else x.clamp(-self.clip, self.clip)
