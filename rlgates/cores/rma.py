"""The recurrent core of the Reconstructive Memory Agent, with a memory of past latents."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from rlgates.cell import (
    Cell,
    State,
    check_no_hooks,
    factory_kwargs,
    full_precision,
    truncated_normal_,
    widened,
)
from rlgates.cores.lstm import LSTM
from rlgates.errors import MAX_WIDTH, check_flag, check_size
from rlgates.gates import GateLike, as_gate
from rlgates.kernels import CellSpec

# A row or key with a smaller norm counts as zero, so that no gradient is divided by zero.
_SHORTEST = 1e-6


class RMAOutputs(NamedTuple):
    """The parts of the output of an RMA cell.

    Attributes:
        latent: z (..., latent_size).
        controller: [h1 ; h2] (..., 2 hidden_size).
        reads: concatenated reads of the heads (..., num_heads latent_size); (..., 0) without
            memory.
    """

    latent: Tensor
    controller: Tensor
    reads: Tensor


class RMA(Cell):
    """The recurrent core of the Reconstructive Memory Agent (Hung et al. 2019).

    A latent z, computed from the input and the last reads, drives two gated LSTM layers and is
    stored in a memory of the last num_slots latents, which is read by content. With the previous
    controller output y = [h1 ; h2] and the previous reads m:

        z        = W_z2 tanh(W_z1 [x ; y ; m] + b_z1) + b_z2
        h1', c1' = layer 1 on z                  each an `rlgates.cores.LSTM` with the gate
        h2', c2' = layer 2 on [z ; h1']
        y'       = [h1' ; h2']
        [k ; s]  = W_read y' + b_read            for each head a key k and a strength
        strength = softplus(s)
        l_j      = strength * cos(k, M_j)        for each row M_j of the memory
        w        = softmax of the top_k largest l_j, 0 for the other rows
        m'       = sum_j w_j M_j                 one read a head
        M'[n]    = stop_gradient(z), n = step mod num_slots
        step'    = step + 1
        output   = [z ; y' ; m']

    The read precedes the write, so a step never reads its own z. Gradients reach keys and
    strengths, but not the steps that wrote the rows. The cosine with a row or key of zeros
    (shorter than 1e-6) is 0, without gradient. Ties at rank top_k are broken by `torch.topk`; for
    equal rows, such as those not yet written, that makes no difference. The memory is written and
    read in float32 under autocast too, but reads are discontinuous where two rows swap places at
    rank top_k, so rounding can change what is read.

    Stacking order of `W_read`: num_heads keys of latent_size rows, then num_heads strengths. The
    layers stack their maps as `LSTM` does; `gate_weights()` names those of layer n `W_x_k_n`,
    `W_h_k_n`, `b_k_n`, `b_h_k_n`. As in the authors' code, all weights and the biases of the maps
    u and o are initialized from a normal distribution of standard deviation 1/sqrt(inputs),
    truncated at two standard deviations; the inputs of an LSTM layer include its h. The gate
    initializes its biases; all others are zero.

    The state is (h1, c1, h2, c2, memory, reads, step), initially zero. The traced forget gates are
    those of both layers, concatenated. The paper stacks no cells (num_layers = 1).

    An agent computes its policy from the whole output, and its value from z and the detached
    logits of the policy; `rlgates.agents.rma.reconstruction.RMAReconstruction` trains z. See
    `split` and `read_strengths`.

    Cost: the state of one environment holds num_slots * latent_size numbers (0.8 MB by default).
    The backward pass needs only the rows that were read: num_heads * top_k * latent_size numbers
    per step and environment. With the defaults, 16 environments and 120 steps, that is 230 MB in
    float32, plus 150 MB for everything else (hidden_size 256, 505 inputs). The memory itself is
    not saved for the backward pass unless the initial state requires a gradient: detach it
    between updates.

    Args:
        input_size: width of the input.
        hidden_size: number of units d of each controller layer (the authors use 256).
        gate: of the controller layers: a key of `rlgates.GATES`, a row, or a `Gate` of hidden_size
            units.
        latent_size: width of z and of a row of the memory.
        latent_hidden: tanh units between the input and z; 2 * latent_size if None.
        num_slots: rows of the memory; when the memory is full, the oldest row is overwritten.
        num_heads: reads per step.
        top_k: number of rows in one read, at most num_slots.
        memory: False for the paper's LSTM agent: the state is (h1, c1, h2, c2), W_z1 reads [x ; y],
            and the output is [z ; y']. The memory options are checked but unused.
        device, dtype: of the parameters, as in torch.nn; float32 or float64.

    The defaults are those of the authors' code (google-deepmind/deepmind-research, tvt).

    Raises:
        ValueError, TypeError: a size below 1 or not an integer, a `top_k` above `num_slots`, a
            `memory` that is not a bool, a gate of the wrong size.
    """

    learnable = ("h1", "c1", "h2", "c2")

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        gate: GateLike = "",
        latent_size: int = 200,
        latent_hidden: int | None = None,
        num_slots: int = 1000,
        num_heads: int = 3,
        top_k: int = 50,
        memory: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.input_size = check_size("input_size", input_size)
        self.hidden_size = d = check_size("hidden_size", hidden_size)
        self.latent_size = latent = check_size("latent_size", latent_size, maximum=MAX_WIDTH)
        hidden = 2 * latent if latent_hidden is None else latent_hidden
        self.latent_hidden = hidden = check_size("latent_hidden", hidden, maximum=MAX_WIDTH)
        self.num_slots = check_size("num_slots", num_slots, maximum=MAX_WIDTH)
        self.num_heads = check_size("num_heads", num_heads, maximum=MAX_WIDTH)
        self.top_k = check_size("top_k", top_k, maximum=MAX_WIDTH)
        if self.top_k > self.num_slots:
            raise ValueError(f"top_k must be at most num_slots = {num_slots}, got {top_k}.")
        self.memory = check_flag("memory", memory)
        self.gate = gate = as_gate(gate, d)

        reads = self.num_heads * latent if self.memory else 0
        self.output_size = latent + 2 * d + reads
        self.state_shapes = {"h1": (d,), "c1": (d,), "h2": (d,), "c2": (d,)}
        factory = factory_kwargs(device, dtype)
        self.controller_1 = LSTM(latent, d, gate, **factory)
        self.controller_2 = LSTM(latent + d, d, gate, **factory)
        empty = partial(torch.empty, **factory)
        self.W_z1 = nn.Parameter(empty(hidden, self.input_size + 2 * d + reads))
        self.b_z1 = nn.Parameter(empty(hidden))
        self.W_z2 = nn.Parameter(empty(latent, hidden))
        self.b_z2 = nn.Parameter(empty(latent))
        if self.memory:
            self.state_shapes["memory"] = (self.num_slots, latent)
            self.state_shapes["reads"] = (self.num_heads, latent)
            self.state_shapes["step"] = (1,)
            self.W_read = nn.Parameter(empty(reads + self.num_heads, 2 * d))
            self.b_read = nn.Parameter(empty(reads + self.num_heads))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        for layer in (self.controller_1, self.controller_2):
            layer.reset_parameters(generator)
            weights, fan_in = layer.gate_weights(), layer.input_size + layer.hidden_size
            for free in (layer.weight_ih, layer.weight_hh, weights["b_u"], weights["b_o"]):
                truncated_normal_(free, fan_in, generator)
        for name, parameter in self._parameters.items():
            if name.startswith("W") and parameter is not None:
                truncated_normal_(parameter, parameter.shape[1], generator)
            elif parameter is not None:
                parameter.zero_()

    def gate_weights(self) -> dict[str, Tensor]:
        named = {name: p.detach() for name, p in self._parameters.items() if p is not None}
        for number, layer in enumerate((self.controller_1, self.controller_2), start=1):
            named |= {f"{name}_{number}": view for name, view in layer.gate_weights().items()}
        return named

    def project(self, x: Tensor) -> Tensor:
        self._check_hooks()
        return x  # slicing W_z1 in every step would cost more than projecting x there

    def step(self, projected: Tensor, state: State) -> tuple[Tensor, State]:
        h1, c1, h2, c2 = state[:4]
        z = self._latent(projected, state)
        h1, (_, c1) = self.controller_1.step(self.controller_1.project(z), (h1, c1))
        below = torch.cat([z, h1], dim=-1)
        h2, (_, c2) = self.controller_2.step(self.controller_2.project(below), (h2, c2))
        if not self.memory:
            return torch.cat([z, h1, h2], dim=-1), (h1, c1, h2, c2)
        memory, _, step = state[4:]
        reads = self.read(torch.cat([h1, h2], dim=-1), memory).reads
        slot = (step.long() % self.num_slots).unsqueeze(-1).expand(-1, -1, self.latent_size)
        written = memory.scatter(1, slot, z.detach().unsqueeze(1))
        output = torch.cat([z, h1, h2, reads.flatten(1)], dim=-1)
        return output, (h1, c1, h2, c2, written, reads, step + 1)

    def _latent(self, x: Tensor, state: State) -> Tensor:
        inputs = [x, state[0], state[2]]
        if self.memory:
            inputs.append(state[5].flatten(1))
        below = nn.functional.linear(torch.cat(inputs, dim=-1), self.W_z1, self.b_z1)
        return widened(nn.functional.linear(torch.tanh(widened(below)), self.W_z2, self.b_z2))

    def read(self, controller: Tensor, memory: Tensor) -> Recall:
        """Read a memory (B, num_slots, latent_size) with a controller output (B, 2d)."""
        query = widened(nn.functional.linear(controller, self.W_read, self.b_read))
        keys = query[..., : -self.num_heads].unflatten(-1, (self.num_heads, self.latent_size))
        strengths = nn.functional.softplus(query[..., -self.num_heads :])
        return recall(memory, keys, strengths, self.top_k)

    def read_strengths(self, outputs: Tensor) -> Tensor:
        """Read strengths (..., num_heads), or (..., 0) without memory; differentiable."""
        controller = self.split(outputs).controller
        if not self.memory:
            return controller[..., :0]
        weight, bias = self.W_read[-self.num_heads :], self.b_read[-self.num_heads :]
        return nn.functional.softplus(widened(nn.functional.linear(controller, weight, bias)))

    def split(self, outputs: Tensor) -> RMAOutputs:
        """Views of the parts of outputs (..., output_size).

        Raises:
            ValueError: the width is not output_size.
        """
        if outputs.shape[-1] != self.output_size:
            raise ValueError(
                f"outputs must be (..., {self.output_size}), got {tuple(outputs.shape)}."
            )
        latent, controller = self.latent_size, 2 * self.hidden_size
        return RMAOutputs(
            *outputs.split([latent, controller, self.output_size - latent - controller], dim=-1)
        )

    def _check_hooks(self) -> None:
        check_no_hooks(controller_1=self.controller_1, controller_2=self.controller_2)

    def recurrence(self) -> CellSpec:
        self._check_hooks()
        first, second = self.controller_1, self.controller_2
        layers = (
            (layer.weight_ih, layer.bias_ih + layer.bias_hh, layer.weight_hh)
            for layer in (first, second)
        )
        of_latent = self.W_z1, self.b_z1, self.W_z2, self.b_z2
        table = self.num_slots, self.num_heads, self.top_k
        query: tuple[Tensor, ...]
        if self.memory:
            query = self.W_read, self.b_read
        else:
            table, like = (0, 0, 0), self.b_z1
            query = like.new_empty(0, 2 * self.hidden_size), like.new_empty(0)
        sizes = self.hidden_size, self.latent_size, self.latent_hidden, *table
        weights = *of_latent, *(weight for layer in layers for weight in layer), *query
        return CellSpec("rma", sizes, weights, self.gate.key)

    def forget_gate(self, projected: Tensor, state: State) -> Tensor:
        first, second = self.controller_1, self.controller_2
        z = self._latent(projected, state)
        below = first.project(z)
        h1, _ = first.step(below, state[:2])
        above = second.project(torch.cat([z, h1], dim=-1))
        gates = first.forget_gate(below, state[:2]), second.forget_gate(above, state[2:4])
        return torch.cat(gates, dim=-1)


class Recall(NamedTuple):
    """The result of one read by all heads.

    Attributes:
        reads: (B, num_heads, width).
        weights: (B, num_heads, top_k), which sum to 1, the largest first.
        rows: the indices of the weighted rows of the memory, of the same shape.
    """

    reads: Tensor
    weights: Tensor
    rows: Tensor


def recall(memory: Tensor, keys: Tensor, strengths: Tensor, top_k: int) -> Recall:
    """Weighted sums of the `top_k` rows that are most similar to the keys: see `rlgates.cores.RMA`.

    Computed in full precision under autocast too.

    Args:
        memory: (B, num_slots, width).
        keys: (B, num_heads, width).
        strengths: (B, num_heads), at least 0.
        top_k: number of rows in a sum, at most num_slots.
    """
    unit_keys = keys * _inverse_norm(keys).unsqueeze(-1)
    with full_precision(memory.device.type):
        inverse = _inverse_norm(memory)
        # The search needs no gradient, and strengths do not change the order. Gradients flow
        # through the selected rows only.
        cosine = unit_keys.detach() @ memory.detach().mT * inverse.detach().unsqueeze(1)
        rows = cosine.topk(top_k).indices
        batch, slots, width = memory.shape
        begin = torch.arange(batch, device=memory.device) * slots
        index = (rows + begin.view(-1, 1, 1)).flatten()
        chosen = memory.flatten(0, 1).index_select(0, index).view(*rows.shape, width)
        inverse = inverse.flatten().index_select(0, index).view(rows.shape)
        cosine = (chosen @ unit_keys.unsqueeze(-1)).squeeze(-1) * inverse
        weights = torch.softmax(strengths.unsqueeze(-1) * cosine, dim=-1)
        return Recall((weights.unsqueeze(-2) @ chosen).squeeze(-2), weights, rows)


def _inverse_norm(x: Tensor) -> Tensor:
    """1 / |x| over the last dimension; 0, with gradient 0, where x is zero."""
    norm = torch.linalg.vector_norm(x, dim=-1)
    return torch.where(norm > _SHORTEST, norm, torch.inf).reciprocal()
