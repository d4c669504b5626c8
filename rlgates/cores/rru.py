"""The residual recurrent unit: its decay and scale are parameters, not gates."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from rlgates.cell import Cell, State, factory_kwargs, widened
from rlgates.errors import (
    MAX_DEPTH,
    MAX_WIDTH,
    check_flag,
    check_number,
    check_probability,
    check_size,
)
from rlgates.kernels import CellSpec

# The decay is sigmoid(_SPEED * S), which makes S learn that many times faster.
_SPEED = 10.0


class RRU(Cell):
    """Residual recurrent unit (Zakovskis et al. 2023; unspecified details as in their code).

    With d = hidden_size, p = output_size and g = max(1, round(expansion (input_size + d))):

        j  = relu(normalize(W_x_j x + W_h_j h + b_j))
        j  = relu(W_k j + b_k)                 for k = 2 .. relu_layers
        j  = dropout(j)                        while training
        c  = W_c j + b_c                       the candidate
        h' = sigmoid(10 S) * h + Z * c         S and Z are parameters
        o  = W_o j + b_o                       the output, p numbers

    normalize(a) = a / sqrt(mean(a^2) + 1e-6) over the g features, without gain, in the first
    layer only.

    The state is h, initially zero except for its first unit, sqrt(d) / 4, so that there is
    something to normalize while the inputs are zero. `Core.trace_gates` returns sigmoid(10 S),
    which is constant, as the forget gate.

    Weight matrices are initialized Glorot uniform, with [W_x_j W_h_j] one matrix, and [W_c ; W_o]
    another; biases and Z to 0; sigmoid(10 S) from U(0.01, 0.99). The factor 10 makes S learn ten
    times faster.

    Weights by name (`gate_weights`): W_x_j (g, input_size), W_h_j (g, d), b_j; W_2 (g, g), b_2
    etc.; W_c (d, g), b_c; W_o (p, g), b_o; S (d); Z (d). Stacking order in `weight_out` and
    `bias_out`: c, o.

    Args:
        input_size: width of the input.
        hidden_size: number of units d.
        output_size: width p of the output; 64, and 128 for the paper's language data.
        expansion: the paper's q, which it tunes between 0.1 and 8.
        relu_layers: number of ReLU layers, including the first one; 1 or 2 in the paper.
        dropout: dropout probability after the last of them; the paper's best are around 0.7, its
            code's default 0.5.
        normalize: False omits the normalization. This option and all below are the ablations
            of the paper's table 2, where the defaults did best.
        scalar_z: one number Z for all units.
        relu_candidate, relu_output: a ReLU on c, on o; the paper's ablation has both.
        fixed_decay: h' = h + Z * c, without S.
        start_decay: initial sigmoid(10 S) of all units, in (0, 1); None for random ones, 0.95
            in the paper's ablation.
        device, dtype: of the parameters, as in torch.nn; float32 or float64.

    Raises:
        ValueError, TypeError: a size below 1 or not an integer, an expansion that is not
            positive, a dropout outside [0, 1), a start_decay outside (0, 1) or together with
            fixed_decay, a flag that is not a bool.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        output_size: int = 64,
        expansion: float = 2.0,
        relu_layers: int = 1,
        dropout: float = 0.0,
        normalize: bool = True,
        scalar_z: bool = False,
        relu_candidate: bool = False,
        relu_output: bool = False,
        fixed_decay: bool = False,
        start_decay: float | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.input_size = check_size("input_size", input_size)
        self.hidden_size = d = check_size("hidden_size", hidden_size)
        self.output_size = check_size("output_size", output_size, maximum=MAX_WIDTH)
        self.expansion = check_number("expansion", expansion, above=0)
        self.relu_layers = check_size("relu_layers", relu_layers, maximum=MAX_DEPTH)
        self.dropout = check_probability("dropout", dropout)
        self.normalize = check_flag("normalize", normalize)
        self.scalar_z = check_flag("scalar_z", scalar_z)
        self.relu_candidate = check_flag("relu_candidate", relu_candidate)
        self.relu_output = check_flag("relu_output", relu_output)
        self.fixed_decay = check_flag("fixed_decay", fixed_decay)
        self.start_decay = start_decay
        if start_decay is not None:
            if fixed_decay:
                raise ValueError(
                    f"start_decay={start_decay} initializes S, but fixed_decay=True has no S: "
                    "choose one."
                )
            self.start_decay = check_number("start_decay", start_decay)
            if not 0 < self.start_decay < 1:
                raise ValueError(f"start_decay must be above 0 and below 1, got {start_decay}.")
        self.state_shapes = {"h": (d,)}
        self.inner_size = g = max(1, round(self.expansion * (self.input_size + d)))
        empty = partial(torch.empty, **factory_kwargs(device, dtype))
        self.weight_ih = nn.Parameter(empty(g, self.input_size))
        self.weight_hh = nn.Parameter(empty(g, d))
        self.bias = nn.Parameter(empty(g))
        upper = range(self.relu_layers - 1)
        self.weights = nn.ParameterList(nn.Parameter(empty(g, g)) for _ in upper)
        self.biases = nn.ParameterList(nn.Parameter(empty(g)) for _ in upper)
        self.weight_out = nn.Parameter(empty(d + self.output_size, g))
        self.bias_out = nn.Parameter(empty(d + self.output_size))
        self.S = None if fixed_decay else nn.Parameter(empty(d))
        self.Z = nn.Parameter(empty(1 if scalar_z else d))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        inputs = self.input_size + self.hidden_size
        for name, parameter in self.named_parameters():
            if parameter.ndim == 1:  # biases and Z; S is set below
                parameter.zero_()
                continue
            fans = inputs + self.inner_size if name.endswith(("ih", "hh")) else sum(parameter.shape)
            bound = (6 / fans) ** 0.5
            parameter.uniform_(-bound, bound, generator=generator)
        if self.S is None:
            return
        if self.start_decay is None:
            decay = self.S.uniform_(0.01, 0.99, generator=generator)
        else:
            decay = self.S.fill_(self.start_decay)
        self.S.copy_(torch.logit(decay) / _SPEED)

    def initial_state(self, batch_size: int) -> State:
        (h,) = super().initial_state(batch_size)
        first = h.new_full((batch_size, 1), self.hidden_size**0.5 / 4)
        return (torch.cat([first, h[:, 1:]], dim=-1),)

    def gate_weights(self) -> dict[str, Tensor]:
        """Views W_x_j, W_h_j, b_j, W_c, b_c, W_o, b_o, Z, W_2, b_2, ..., S: see the class."""
        d = self.hidden_size
        views: dict[str, Tensor] = {
            "W_x_j": self.weight_ih,
            "W_h_j": self.weight_hh,
            "b_j": self.bias,
            "W_c": self.weight_out[:d],
            "b_c": self.bias_out[:d],
            "W_o": self.weight_out[d:],
            "b_o": self.bias_out[d:],
            "Z": self.Z,
        }
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True), 2):
            views |= {f"W_{layer}": weight, f"b_{layer}": bias}
        if self.S is not None:
            views["S"] = self.S
        return {name: view.detach() for name, view in views.items()}

    def project(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight_ih, self.bias)

    def step(self, projected: Tensor, state: State) -> tuple[Tensor, State]:
        (h,) = state
        j = widened(torch.addmm(projected, h, self.weight_hh.t()))
        if self.normalize:
            j = nn.functional.rms_norm(j, (self.inner_size,), eps=1e-6)
        j = torch.relu(j)
        for weight, bias in zip(self.weights, self.biases, strict=True):
            j = torch.relu(nn.functional.linear(j, weight, bias))
        j = nn.functional.dropout(j, self.dropout, self.training)
        out = widened(nn.functional.linear(j, self.weight_out, self.bias_out))
        c, o = out.split([self.hidden_size, self.output_size], dim=-1)
        if self.relu_candidate:
            c = torch.relu(c)
        if self.relu_output:
            o = torch.relu(o)
        if self.S is not None:
            h = torch.sigmoid(_SPEED * self.S) * h
        return o, (torch.addcmul(h, self.Z, c),)

    def recurrence(self) -> CellSpec:
        d, g = self.hidden_size, self.inner_size
        upper: tuple[Tensor, ...] = self.bias.new_empty(0, g, g), self.bias.new_empty(0, g)
        if len(self.weights):
            # Each by its index: torch 2.8 compiles no list of a ParameterList.
            count = range(len(self.weights))
            upper = tuple(
                torch.stack([layers[k] for k in count]) for layers in (self.weights, self.biases)
            )
        decay = self.bias.new_ones(d) if self.S is None else torch.sigmoid(_SPEED * self.S)
        first = self.weight_ih, self.bias, self.weight_hh
        weights = *first, *upper, self.weight_out, self.bias_out, decay, self.Z.expand(d)
        flags = self.normalize, self.relu_candidate, self.relu_output
        sizes = d, g, len(self.weights), self.output_size, *flags
        dropout = self.dropout if self.training else 0.0
        return CellSpec("rru", sizes, weights, dropout=dropout)

    def forget_gate(self, projected: Tensor, state: State) -> Tensor:
        if self.S is None:
            return torch.ones_like(state[0])
        return torch.sigmoid(_SPEED * self.S).expand_as(state[0])
