"""The relational memory core: memory slots with self-attention and gated updates."""

from __future__ import annotations

from itertools import chain
from typing import Literal

import torch
from torch import Tensor, nn

from rlgates.cell import (
    NOT_AS_BUILT,
    Cell,
    State,
    computes_as,
    factory_kwargs,
    named_rows,
    truncated_normal_,
    widened,
)
from rlgates.cores.attention import Block
from rlgates.errors import (
    MAX_DEPTH,
    MAX_WIDTH,
    check_number,
    check_size,
    nearest_divisor,
    unknown_choice,
)
from rlgates.gates import GATES, Gate, GateLike, as_gate
from rlgates.kernels import CellSpec, NoKernel


class RMC(Cell):
    """The relational memory core (Santoro et al. 2018), with every gate of the table.

    The memory M has S slots (rows) of D = hidden_size numbers. With x~ = W_in x + b_in and
    LN a layer norm of each row (gain g, offset o, epsilon 1e-5), a step is

        A   = [M; x~]                              the input as one more row
        for each block n:
            Q, K, V = heads of LN_qkv_n(W_qkv_n A + b_qkv_n)
            A = LN_att_n(A + softmax(Q K^T / sqrt(key_size)) V)        heads concatenated
            A = LN_mlp_n(A + MLP(A))
        M~  = A without the row of the input
        L_k = W_x_k x~ + b_k + W_h_k tanh(M) + b_h_k     for each map k and each slot
        f, i = gate(L_...)                         the effective gates, `rlgates.gates.GATES`
        M'  = f * M + i * tanh(M~)

    and the output is M', flattened: S * D numbers. The MLP, `mlp_layers` linear layers of D
    units with ReLU between them, is shared by the blocks, and the gate weights by the slots.
    LN_qkv normalizes whole rows of H (2 key_size + D / H) numbers: H heads, each q, k, v.

    Gates are untied by default, and there is no output gate. A refine gate has r instead of i, so
    it has as many parameters as the plain gate; its i is 1 - f. The trained biases b_f and b_i are
    initialized to the constants (1 and 0) that the authors' code adds.

    Stacking order of the gate's weights (`gate_x`, `gate_h`), in units of D rows (of 1 with
    gate_style "memory"): i, f for untied gates; f for tied ones; r, f for refine gates;
    i, f, mi, mf for master gates (mi and mf of D / chunk_size rows).

    Initialization as in the authors' code: weights normal with standard deviation 1/sqrt(inputs),
    truncated at two standard deviations, biases zero except those of the gate, gains 1, offsets 0.

    Attention, layer norms and the MLP stay in float32 under autocast: layer norms amplify the
    rounding of bfloat16, which would save little here.

    The state is the memory (S, D), initially the identity, padded with zero columns or cut to D
    columns. Slots of equal initial value stay equal, so more than D + 1 slots are useless.

    Args:
        input_size: width of the input.
        hidden_size: width D of a slot.
        gate: a key of `rlgates.GATES`, a row, or a `Gate` of D units.
        mem_slots: number of slots S.
        num_heads: number of attention heads H; it must divide D.
        num_blocks: number of attention blocks in a step.
        mlp_layers: linear layers of the MLP.
        key_size: size of the queries and keys of a head; D / H if None.
        gate_style: "unit" for a gate for each number of a slot, "memory" for one for each slot,
            None for no gates (M' = M~). "memory" has one unit per slot, so it excludes uniform
            initialization and cumax.
        input_bias: initial b_i, for the plain untied gate only.
        device, dtype: of the parameters, as in torch.nn; float32 or float64.

    Raises:
        ValueError, TypeError: a size below 1 or not an integer, heads that do not divide D, an
            unknown gate_style, a gate of the wrong size or one that the style excludes, an
            input_bias without the plain untied gate.
    """

    gate: Gate | None

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        gate: GateLike = "",
        mem_slots: int = 4,
        num_heads: int = 1,
        num_blocks: int = 1,
        mlp_layers: int = 2,
        key_size: int | None = None,
        gate_style: Literal["unit", "memory"] | None = "unit",
        input_bias: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.input_size = check_size("input_size", input_size)
        self.hidden_size = check_size("hidden_size", hidden_size)
        self.mem_slots = check_size("mem_slots", mem_slots, maximum=MAX_WIDTH)
        self.num_heads = check_size("num_heads", num_heads, maximum=MAX_WIDTH)
        if hidden_size % self.num_heads:
            near = nearest_divisor(hidden_size, self.num_heads)
            raise ValueError(
                f"num_heads must divide hidden_size {hidden_size}, got {num_heads}. "
                f"The nearest is {near}."
            )
        gate = as_gate(gate, hidden_size)
        self.gate_style = gate_style
        self.gate = _slot_gate(gate, gate_style)
        self.input_bias = check_number("input_bias", input_bias)
        plain = self.gate is not None and gate.row == GATES[""] and gate.auxiliary == "untied"
        if input_bias and not plain:
            raise ValueError(
                "input_bias is the initial b_i of the plain untied gate only, got "
                f"{input_bias} for {gate} with gate_style {gate_style!r}."
            )
        value_size = hidden_size // self.num_heads
        key_size = value_size if key_size is None else key_size
        self.key_size = check_size("key_size", key_size, maximum=MAX_WIDTH)
        self.num_blocks = check_size("num_blocks", num_blocks, maximum=MAX_DEPTH)
        self.mlp_layers = check_size("mlp_layers", mlp_layers, maximum=MAX_DEPTH)
        self.output_size = self.mem_slots * hidden_size
        self.state_shapes = {"memory": (self.mem_slots, hidden_size)}

        factory = factory_kwargs(device, dtype)
        self.input = nn.Linear(input_size, hidden_size, **factory)
        self.blocks = nn.ModuleList(
            Block(self.num_heads, self.key_size, value_size, **factory)
            for _ in range(self.num_blocks)
        )
        layers: list[nn.Module] = [nn.Linear(hidden_size, hidden_size, **factory)]
        for _ in range(self.mlp_layers - 1):
            layers += [nn.ReLU(), nn.Linear(hidden_size, hidden_size, **factory)]
        self.mlp = nn.Sequential(*layers)
        if self.gate is not None:
            self._widths = list(self.gate.maps.values())
            self.gate_x = nn.Linear(hidden_size, sum(self._widths), **factory)
            self.gate_h = nn.Linear(hidden_size, sum(self._widths), **factory)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        for module in self.modules():
            if isinstance(module, nn.LayerNorm):
                module.reset_parameters()
            elif isinstance(module, nn.Linear):
                truncated_normal_(module.weight, module.in_features, generator)
                module.bias.zero_()
        if self.gate is not None:
            weights = self.gate_weights()
            like = self.input.weight
            biases = self.gate.initial_biases(generator, like.device, like.dtype)
            for name, bias in biases.items():
                weights[f"b_{name}"].copy_(bias)
            if self.input_bias:
                weights["b_i"].fill_(self.input_bias)

    def gate_weights(self) -> dict[str, Tensor]:
        """Views of all parameters, by the names of the equations.

        `W_in`, `b_in`; `W_qkv_n`, `b_qkv_n`, `g_qkv_n`, `o_qkv_n`, `g_att_n`, `o_att_n`,
        `g_mlp_n`, `o_mlp_n` for each block n = 0, 1, ...; `W_mlp_j`, `b_mlp_j` for each layer j
        of the MLP; `W_x_k`, `W_h_k`, `b_k`, `b_h_k` for each map k of the gate.
        """
        views = _views(self.input, "W_in", "b_in")
        for n, block in enumerate(self.blocks):
            views |= _views(block.get_submodule("qkv"), f"W_qkv_{n}", f"b_qkv_{n}")
            for norm in ("qkv", "att", "mlp"):
                module = block.get_submodule(f"norm_{norm}")
                views |= _views(module, f"g_{norm}_{n}", f"o_{norm}_{n}")
        for j, layer in enumerate(m for m in self.mlp if isinstance(m, nn.Linear)):
            views |= _views(layer, f"W_mlp_{j}", f"b_mlp_{j}")
        if self.gate is not None:
            stacked = _views(self.gate_x, "W_x", "b") | _views(self.gate_h, "W_h", "b_h")
            views |= named_rows(self.gate.maps, **stacked)
        return views

    def initial_state(self, batch_size: int) -> State:
        like = self.input.weight
        dtype = torch.promote_types(like.dtype, torch.float32)
        identity = torch.eye(self.mem_slots, self.hidden_size, dtype=dtype, device=like.device)
        return (identity.expand(batch_size, -1, -1),)

    def project(self, x: Tensor) -> Tensor:
        """x~, concatenated with its part of the gates' pre-activations."""
        row = widened(self.input(x))
        return row if self.gate is None else torch.cat([row, widened(self.gate_x(row))], dim=-1)

    def step(self, projected: Tensor, state: State) -> tuple[Tensor, State]:
        (memory,) = state
        rows = torch.cat([memory, projected[:, None, : self.hidden_size]], dim=1)
        for block in self.blocks:
            rows = block(rows, self.mlp)
        memory = self._write(rows[:, :-1], projected, memory)
        return memory.flatten(1), (memory,)

    def _write(self, new: Tensor, projected: Tensor, memory: Tensor) -> Tensor:
        if self.gate is None:
            return new
        f, i = self._gates(self.gate, projected, memory)
        return f * memory + i * torch.tanh(new)

    def _gates(self, gate: Gate, projected: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """The effective gates, each (B, S, D), or (B, S, 1) with gate_style "memory"."""
        z = widened(self.gate_h(torch.tanh(memory))) + projected[:, None, self.hidden_size :]
        return gate(*z.split(self._widths, dim=-1))

    def forget_gate(self, projected: Tensor, state: State) -> Tensor | None:
        """The forget gates of all slots: (B, S D), or (B, S) with gate_style "memory"."""
        if self.gate is None:
            return None
        return self._gates(self.gate, projected, state[0])[0].flatten(1)

    def recurrence(self) -> CellSpec | NoKernel:
        if not self._is_as_built():
            return NOT_AS_BUILT
        gate_units = 0 if self.gate is None else self.gate.size
        sizes = (
            *(self.hidden_size, self.mem_slots, self.num_heads, self.key_size),
            *(self.num_blocks, self.mlp_layers, gate_units),
        )
        blocks = list(self.blocks)
        of_blocks = (
            _stacked([getattr(getattr(block, layer), name) for block in blocks])
            for layer in ("qkv", "norm_qkv", "norm_att", "norm_mlp")
            for name in ("weight", "bias")
        )
        layers = [layer for layer in self.mlp if isinstance(layer, nn.Linear)]
        mlp = _stacked([layer.weight for layer in layers]), _stacked([m.bias for m in layers])
        like = self.input.weight
        gates = like.new_empty(0, 0), like.new_empty(0, 0), like.new_empty(0)
        if self.gate is not None:
            bias = self.gate_x.bias + self.gate_h.bias
            gates = self.gate_x.weight, self.gate_h.weight, bias
        weights = self.input.weight, self.input.bias, *of_blocks, *mlp, *gates
        return CellSpec("rmc", sizes, weights, None if self.gate is None else self.gate.key)

    def _is_as_built(self) -> bool:
        """Whether its layers compute what native code does with their weights."""
        gates = () if self.gate is None else (self.gate_x, self.gate_h)
        blocks = [module for module in self.blocks if isinstance(module, Block)]
        mlp = list(self.mlp)
        linears = self.input, *gates, *mlp[::2], *(block.qkv for block in blocks)
        norms = [(block.norm_qkv, block.norm_att, block.norm_mlp) for block in blocks]
        return (
            len(blocks) == self.num_blocks
            and len(mlp) == 2 * self.mlp_layers - 1
            and computes_as(Block, *self.blocks)
            and computes_as(nn.Sequential, self.mlp)
            and computes_as(nn.ReLU, *mlp[1::2])
            and computes_as(nn.Linear, *linears)
            and computes_as(nn.LayerNorm, *chain.from_iterable(norms))
        )


def _stacked(tensors: list[Tensor]) -> Tensor:
    """The tensors along a new first dimension; one alone is not copied."""
    return tensors[0].unsqueeze(0) if len(tensors) == 1 else torch.stack(tensors)


def _views(layer: nn.Module, weight: str, bias: str) -> dict[str, Tensor]:
    """The weight and bias of a layer under these names."""
    return {
        weight: layer.get_parameter("weight").detach(),
        bias: layer.get_parameter("bias").detach(),
    }


def _slot_gate(gate: Gate, style: str | None) -> Gate | None:
    """The gate of one slot: of all its units, of one, or None."""
    if style == "unit":
        return gate
    if style == "memory":
        if gate.row.init == "uniform" or gate.row.activation == "cumax":
            raise ValueError(
                "gate_style 'memory' has one unit per slot, so it excludes uniform initialization "
                f"and cumax, got {gate}. Use gate_style 'unit'."
            )
        # t_max defaults to the width of the gate, which here would be 1.
        extra = {"t_max": gate.t_max} if gate.row.init == "chrono" else {}
        return Gate(gate.row, 1, **(gate.options | extra))
    if style is not None:
        raise unknown_choice("gate_style", style, ("unit", "memory", "None"))
    if gate.row != GATES[""] or gate.options:
        raise ValueError(f"gate_style None has no gates, so it needs the plain name, got {gate}.")
    return None
