"""The memory of the Reconstructive Memory Agent: a table of past latents, read by content."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from rlgates.cell import Cell, State, widened
from rlgates.cores.lstm import LSTM
from rlgates.cores.recall import Recall, recall
from rlgates.cores.starts import truncated_normal_
from rlgates.errors import check_flag, check_size
from rlgates.gates import Gate


class RMAOutputs(NamedTuple):
    """The outputs of an RMA cell in their parts.

    Attributes:
        latent: z (..., latent_size).
        controller: h1 and h2 side by side (..., 2 hidden_size).
        reads: what the heads read, side by side (..., num_heads latent_size); no columns
            without memory.
    """

    latent: Tensor
    controller: Tensor
    reads: Tensor


class RMA(Cell):
    """The recurrent part of the Reconstructive Memory Agent (Hung et al. 2019).

    A latent z is made of the input and of what the memory gave last; it drives two gated LSTM
    layers, and is kept in a table of the last num_slots latents, which the layers read by
    content. With the previous controller output y = [h1 ; h2] and the previous reads m:

        z        = W_z2 tanh(W_z1 [x ; y ; m] + b_z1) + b_z2
        h1', c1' = layer 1 on z                  each an `rlgates.cores.LSTM` with the gate
        h2', c2' = layer 2 on [z ; h1']
        y'       = [h1' ; h2']
        [k ; s]  = W_read y' + b_read            for each head a key k and a strength
        strength = softplus(s)
        l_j      = strength * cos(k, M_j)        for each row M_j of the memory
        w        = softmax of the top_k largest l_j, 0 for the other rows
        m'       = sum_j w_j M_j                 one read a head, of the rows as they are
        M'[n]    = stop_gradient(z), n = step mod num_slots
        step'    = step + 1
        output   = [z ; y' ; m']

    The read comes before the write: no step sees its own z in the memory. No gradient goes
    through the memory to the step that wrote a row; it does reach keys and strengths. The
    cosine with a row or key of zeros (shorter than 1e-6) is 0, without a gradient. Which of
    several rows of equal l_j are among the top_k is left to `torch.topk`; for rows with the
    same content, such as those not yet written, it makes no difference. The memory is written
    and read in float32 under autocast too; but a read jumps where two rows change places at
    rank top_k, so that rounding before it can change what is read.

    Order of the rows of `W_read`: num_heads keys of latent_size, then num_heads strengths.
    The layers stack their maps as `LSTM` does; `gate_weights()` names those of layer n
    `W_x_k_n`, `W_h_k_n`, `b_k_n`, `b_h_k_n`. All weights start truncated normal (at two
    standard deviations) with standard deviation 1/sqrt(inputs), where those of an LSTM layer
    count its h among its inputs; so do the biases of its maps u and o, as in the authors' code;
    the biases of the gate start as the gate says, all others at zero.

    The state is (h1, c1, h2, c2, memory, reads, step): all zeros at the start of an episode.
    The observed forget gates are those of both layers side by side.

    An agent takes its policy from the whole output and its value from z and the logits of the
    policy, these without gradient; `rlgates.reconstruction.RMAReconstruction` trains z.
    `split` and `read_strengths` give what they need. The paper stacks no cells (num_layers = 1).

    Cost: the state of one environment holds num_slots * latent_size numbers (0.8 MB by
    default). Of the memory, a backward pass needs the rows that were read alone: in each step
    num_heads * top_k * latent_size numbers an environment. With the defaults, 16 environments
    and 120 steps that is 230 MB in float32, and 150 MB for all the rest (hidden_size 256, 505
    inputs). The memory itself is copied once a step and not kept, unless the state that was
    given requires a gradient: detach it between updates.

    Args:
        input_size: width of the input.
        hidden_size: number of units d of each controller layer (the authors use 256).
        gate: which gate the controller layers have; `make_core` builds it from the prefix.
        latent_size: width of z and of a row.
        latent_hidden: tanh units between the input and z; 2 * latent_size if None.
        num_slots: rows of the memory, after which the oldest is overwritten.
        num_heads: how many reads a step.
        top_k: how many rows one read is made of, at most num_slots.
        memory: False for the control without a memory: the state is (h1, c1, h2, c2), W_z1
            reads [x ; y], and the output is [z ; y']. The options of the memory are checked
            all the same, and have no effect.

    The defaults are those of the authors' code (google-deepmind/deepmind-research, tvt).

    Raises:
        ValueError, TypeError: a size below 1 or not an integer, a `top_k` above `num_slots`, a
            `memory` that is not a bool, a gate of another size.
    """

    options = ("latent_size", "latent_hidden", "num_slots", "num_heads", "top_k", "memory")
    learnable = ("h1", "c1", "h2", "c2")

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        gate: Gate,
        latent_size: int = 200,
        latent_hidden: int | None = None,
        num_slots: int = 1000,
        num_heads: int = 3,
        top_k: int = 50,
        memory: bool = True,
    ) -> None:
        super().__init__()
        self.input_size = check_size("input_size", input_size)
        self.hidden_size = d = check_size("hidden_size", hidden_size)
        self.latent_size = latent = check_size("latent_size", latent_size)
        hidden = 2 * latent if latent_hidden is None else latent_hidden
        self.latent_hidden = hidden = check_size("latent_hidden", hidden)
        self.num_slots = check_size("num_slots", num_slots)
        self.num_heads = check_size("num_heads", num_heads)
        self.top_k = check_size("top_k", top_k)
        if self.top_k > self.num_slots:
            raise ValueError(f"top_k must be at most num_slots = {num_slots}, got {top_k}.")
        self.memory = check_flag("memory", memory)
        self.gate = gate

        reads = self.num_heads * latent if self.memory else 0
        self.output_size = latent + 2 * d + reads
        self.state_shapes = {"h1": (d,), "c1": (d,), "h2": (d,), "c2": (d,)}
        self.controller_1 = LSTM(latent, d, gate)
        self.controller_2 = LSTM(latent + d, d, gate)
        self.W_z1 = nn.Parameter(torch.empty(hidden, self.input_size + 2 * d + reads))
        self.b_z1 = nn.Parameter(torch.empty(hidden))
        self.W_z2 = nn.Parameter(torch.empty(latent, hidden))
        self.b_z2 = nn.Parameter(torch.empty(latent))
        if self.memory:
            self.state_shapes["memory"] = (self.num_slots, latent)
            self.state_shapes["reads"] = (self.num_heads, latent)
            self.state_shapes["step"] = (1,)
            self.W_read = nn.Parameter(torch.empty(reads + self.num_heads, 2 * d))
            self.b_read = nn.Parameter(torch.empty(reads + self.num_heads))
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
        return x  # W_z1 is one matrix: to slice it in every step costs more than to reuse it

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
        given = [x, state[0], state[2]]
        if self.memory:
            given.append(state[5].flatten(1))
        below = nn.functional.linear(torch.cat(given, dim=-1), self.W_z1, self.b_z1)
        return widened(nn.functional.linear(torch.tanh(widened(below)), self.W_z2, self.b_z2))

    def read(self, controller: Tensor, memory: Tensor) -> Recall:
        """What a controller output (B, 2d) reads in a memory (B, num_slots, latent_size)."""
        asked = widened(nn.functional.linear(controller, self.W_read, self.b_read))
        keys = asked[..., : -self.num_heads].unflatten(-1, (self.num_heads, self.latent_size))
        strengths = nn.functional.softplus(asked[..., -self.num_heads :])
        return recall(memory, keys, strengths, self.top_k)

    def read_strengths(self, outputs: Tensor) -> Tensor:
        """The read strengths (..., num_heads) of steps from their outputs, with gradients.

        Without memory there are none: (..., 0).
        """
        controller = self.split(outputs).controller
        if not self.memory:
            return controller[..., :0]
        weight, bias = self.W_read[-self.num_heads :], self.b_read[-self.num_heads :]
        asked = widened(nn.functional.linear(controller, weight, bias))
        return nn.functional.softplus(asked)

    def split(self, outputs: Tensor) -> RMAOutputs:
        """Outputs (..., output_size) in their parts, as views.

        Raises:
            ValueError: another width.
        """
        if outputs.shape[-1] != self.output_size:
            raise ValueError(
                f"outputs must be (..., {self.output_size}), got {tuple(outputs.shape)}."
            )
        latent, controller = self.latent_size, 2 * self.hidden_size
        return RMAOutputs(
            *outputs.split([latent, controller, self.output_size - latent - controller], dim=-1)
        )

    def forget_gate(self, projected: Tensor, state: State) -> Tensor:
        first, second = self.controller_1, self.controller_2
        z = self._latent(projected, state)
        below = first.project(z)
        h1, _ = first.step(below, state[:2])
        above = second.project(torch.cat([z, h1], dim=-1))
        gates = first.forget_gate(below, state[:2]), second.forget_gate(above, state[2:4])
        return torch.cat(gates, dim=-1)
