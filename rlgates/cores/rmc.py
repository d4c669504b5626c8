"""The relational memory core: slots that attend to each other, written through gates."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rlgates.cell import Cell, State, widened
from rlgates.cores.attention import Block
from rlgates.cores.starts import truncated_normal_
from rlgates.errors import check_number, check_size, nearest_divisor, unknown
from rlgates.gates import Gate


class RMC(Cell):
    """The relational memory core (Santoro et al. 2018), with every gate of the table.

    The memory M has S slots (rows) of D = hidden_size numbers. With x~ = W_in x + b_in and
    LN a layer norm of each row (own gain g and offset o, epsilon 1e-5), a step is

        A   = [M; x~]                              the input joins as one more row
        for each block n:
            Q, K, V = heads of LN_qkv_n(W_qkv_n A + b_qkv_n)
            A = LN_att_n(A + softmax(Q K^T / sqrt(key_size)) V)        heads side by side
            A = LN_mlp_n(A + MLP(A))
        M~  = A without the row of the input
        L_k = W_x_k x~ + b_k + W_h_k tanh(M) + b_h_k     for each map k and each slot
        f, i = gate(L_...)                         the effective gates, `rlgates.gates.GATES`
        M'  = f * M + i * tanh(M~)

    and the output is M', flattened: S * D numbers. The MLP, `mlp_layers` linear layers of D
    units with ReLU between them, is shared by the blocks; everything else in a block is its
    own. The weights of the gates are shared by the slots. LN_qkv is over all numbers of a row
    at once; its H (2 key_size + D / H) numbers are H heads, each of q, k, v in this order.

    The gate stands for the pair f and i alone; attention, norms and MLP are the same with every
    gate. A refine gate has r where others have i, so as many parameters as the plain gate, and
    writes with 1 - f. Gates are untied by default, and there is no output gate. The biases
    b_f and b_i start where the authors' code adds constants (1 and 0), and are trained.

    Stacking order of the gate's weights (`gate_x`, `gate_h`), in units of D rows (of 1 with
    gate_style "memory"): i, f for untied gates; f for tied ones; r, f for refine gates;
    i, f, mi, mf for master gates (mi and mf of D / chunk_size rows).

    Weights start as in the authors' code: normal, truncated at two standard deviations of
    1/sqrt(inputs of the layer), biases zero but for those of the gate, gains 1, offsets 0.

    Attention, layer norms and the MLP stay in float32 under autocast: a layer norm magnifies the
    rounding of bfloat16, which in a few rows of a few numbers saves little.

    The state is the memory (S, D). It starts as the identity, padded with zero columns or cut
    to D columns: slots that start alike stay alike, so more than D + 1 slots are of no use.

    Args:
        input_size: width of the input.
        hidden_size: width D of a slot, heads times the size of a head.
        gate: which gate, of D units; `make_core` builds it from the prefix of a name.
        mem_slots: number of slots S.
        num_heads: attention heads H, which divide D.
        num_blocks: rounds of attention in a step.
        mlp_layers: linear layers of the MLP.
        key_size: length of a query and a key of a head; D / H by default.
        gate_style: "unit" for a gate for each number of a slot, "memory" for one for each slot,
            None for no gates at all: then M' = M~. One unit has no distribution of timescales
            and no order: "memory" takes no gates of uniform start and no cumax.
        input_bias: where b_i starts; of the plain untied gate alone.

    Raises:
        ValueError, TypeError: a size below 1 or not an integer, heads that do not divide D, an
            unknown gate_style, a gate of another size or one that the style does not take, an
            input_bias for another gate or none.
    """

    options = (
        "mem_slots",
        "num_heads",
        "num_blocks",
        "mlp_layers",
        "key_size",
        "gate_style",
        "input_bias",
    )

    gate: Gate | None

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        gate: Gate,
        mem_slots: int = 4,
        num_heads: int = 1,
        num_blocks: int = 1,
        mlp_layers: int = 2,
        key_size: int | None = None,
        gate_style: str | None = "unit",
        input_bias: float = 0.0,
    ) -> None:
        super().__init__()
        self.input_size = check_size("input_size", input_size)
        self.hidden_size = check_size("hidden_size", hidden_size)
        self.mem_slots = check_size("mem_slots", mem_slots)
        self.num_heads = _check_heads(num_heads, hidden_size)
        if gate.size != hidden_size:
            raise ValueError(f"the gate must have {hidden_size} units, got {gate}.")
        self.gate_style = gate_style
        self.gate = _styled(gate, gate_style)
        self.input_bias = check_number("input_bias", input_bias)
        plain = self.gate is not None and gate.name == "" and gate.auxiliary == "untied"
        if input_bias and not plain:
            raise ValueError(
                "input_bias is the start of the plain untied gate's b_i alone, got "
                f"{input_bias} for {gate} with gate_style {gate_style!r}."
            )
        value_size = hidden_size // self.num_heads
        key_size = value_size if key_size is None else key_size
        self.key_size = check_size("key_size", key_size)
        self.num_blocks = check_size("num_blocks", num_blocks)
        self.mlp_layers = check_size("mlp_layers", mlp_layers)
        self.output_size = self.mem_slots * hidden_size
        self.state_shapes = {"memory": (self.mem_slots, hidden_size)}

        self.input = nn.Linear(input_size, hidden_size)
        self.blocks = nn.ModuleList(
            Block(self.num_heads, self.key_size, value_size) for _ in range(self.num_blocks)
        )
        layers: list[nn.Module] = [nn.Linear(hidden_size, hidden_size)]
        for _ in range(self.mlp_layers - 1):
            layers += [nn.ReLU(), nn.Linear(hidden_size, hidden_size)]
        self.mlp = nn.Sequential(*layers)
        if self.gate is not None:
            self._widths = list(self.gate.maps.values())
            self.gate_x = nn.Linear(hidden_size, sum(self._widths))
            self.gate_h = nn.Linear(hidden_size, sum(self._widths))
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
            for name, start in self.gate.start_biases(generator).items():
                weights[f"b_{name}"].copy_(start)
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
            for kind, rows in stacked.items():
                parts = zip(self.gate.maps, rows.split(self._widths), strict=True)
                views |= {f"{kind}_{name}": part for name, part in parts}
        return views

    def initial_state(self, batch_size: int) -> State:
        like = self.input.weight
        dtype = torch.promote_types(like.dtype, torch.float32)
        identity = torch.eye(self.mem_slots, self.hidden_size, dtype=dtype, device=like.device)
        return (identity.expand(batch_size, -1, -1),)

    def project(self, x: Tensor) -> Tensor:
        """x~ and, side by side with it, what it adds to the gates."""
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
        """The effective gates, each (B, S, D), or (B, S, 1) with one for a slot."""
        z = widened(self.gate_h(torch.tanh(memory))) + projected[:, None, self.hidden_size :]
        return gate(*z.split(self._widths, dim=-1))

    def forget_gate(self, projected: Tensor, state: State) -> Tensor | None:
        """The forget gates, slot after slot: (B, S D), or (B, S) with one for a slot."""
        if self.gate is None:
            return None
        return self._gates(self.gate, projected, state[0])[0].flatten(1)


def _views(layer: nn.Module, weight: str, bias: str) -> dict[str, Tensor]:
    """The two parameters of a layer, by other names."""
    return {
        name: layer.get_parameter(own).detach()
        for name, own in ((weight, "weight"), (bias, "bias"))
    }


def _check_heads(num_heads: int, size: int) -> int:
    """`num_heads`, if it divides `size`; else a ValueError that names the nearest that does."""
    num_heads = check_size("num_heads", num_heads)
    if size % num_heads:
        near = nearest_divisor(size, num_heads)
        raise ValueError(
            f"num_heads must divide hidden_size {size}, got {num_heads}. The nearest is {near}."
        )
    return num_heads


def _styled(gate: Gate, style: str | None) -> Gate | None:
    """The gate for one slot in a style: of all its units, of one, or none."""
    if style == "unit":
        return gate
    if style == "memory":
        if gate.row.start == "uniform" or gate.row.activation == "cumax":
            raise ValueError(
                "gate_style 'memory' has one unit a slot, which has no uniform start and no "
                f"order: got {gate}. Use gate_style 'unit'."
            )
        # The longest expected dependency, by default the width, is not that of one unit.
        extra = {"t_max": gate.t_max} if gate.row.start == "chrono" else {}
        return Gate(gate.name, 1, **(gate.options | extra))
    if style is not None:
        raise unknown("gate_style", style, ("unit", "memory", "None"))
    if gate.name or gate.options:
        raise ValueError(f"gate_style None has no gates, so it takes the plain name, got {gate}.")
    return None
