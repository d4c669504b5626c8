"""The Mogrifier LSTM with every gate of the table."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rlgates.cell import State, factory_kwargs, widened
from rlgates.cores.stacked import Stacked, lstm_update
from rlgates.errors import MAX_DEPTH, MAX_WIDTH, check_flag, check_size
from rlgates.gates import GateLike, as_gate
from rlgates.kernels import CellSpec


class MogrifierLSTM(Stacked):
    """Mogrifier LSTM: input and state first modulate each other (Melis et al. 2020).

    For n = 1, 2, ..., `rounds`:

        x <- 2 sigmoid(Q_n h + q_n) * x       n odd
        h <- 2 sigmoid(Q_n x + q_n) * h       n even

    and then, for the modulated x and h, with L_k(x, h) = W_x_k x + b_k + W_h_k h + b_h_k:

        f, i = gate(L_...)             the effective gates, see `rlgates.gates.GATES`
        i    = min(1 - f, i)           if `cap_input`
        u    = tanh(L_u)               the candidate
        o    = sigmoid(L_o)            the output gate
        c'   = f * c + i * u
        h'   = o * tanh(c')            the output

    With rounds=0 and cap_input=False it equals `LSTM`.

    Stacking order of `weight_ih`, `weight_hh`, `bias_ih`, `bias_hh`, as in `LSTM`: the maps of
    the gate, then u, o. That is, in units of hidden_size rows:

        untied gates   i, f, u, o
        tied gates     f, u, o
        refine gates   r, f, u, o
        master gates   i, f, mi, mf, u, o   (mi and mf of hidden_size / chunk_size rows)

    `modulation` holds the weights of the rounds by name: `Q_n` (input_size, d) for odd n and
    (d, input_size) for even n, with biases `q_n`. With a `rank`, `Q_n` is the product of `Q_n_left`
    and `Q_n_right`, with `rank` columns and rows.

    Weights are sampled from U[-1/sqrt(d), 1/sqrt(d)], those of the rounds from
    U[-1/sqrt(m), 1/sqrt(m)] for a matrix of m columns. The gate initializes its biases, in
    `bias_ih`; all others are zero, so the factors of the rounds are initially near 1.

    The state is (h, c), without the modulation. Gates and state stay in float32 under autocast.

    Args:
        input_size: width of the input.
        hidden_size: number of units d.
        gate: a key of `rlgates.GATES`, a row, or a `Gate` of hidden_size units.
        input_scale: factor on the initial weights W_x; above 1, a short stimulus leaves a
            stronger trace in the first state.
        rounds: number of rounds, 5 in the paper.
        rank: rank of the matrices Q_n; None for full matrices. It saves parameters below
            d input_size / (d + input_size).
        cap_input: cap the input gate at 1 - f, which keeps c within [-1, 1], as in the authors'
            code but not in the paper's equations. No effect on tied and refine gates.
        zoneout_cell, zoneout_hidden: probabilities that a unit of c and of h keeps its old value
            during training; evaluation uses the expectation (Krueger et al. 2016, who use 0.5
            and 0.05). h is computed from c before zoneout, the old h is the one before the rounds,
            and the output is h after zoneout.
        recurrent_dropout: dropout probability of the candidate u (Semeniuta et al. 2016).
        device, dtype: of the parameters, as in torch.nn; float32 or float64.

    Raises:
        ValueError, TypeError: a size or rank below 1 or not an integer, rounds below 0, a
            scale that is not positive, a probability outside [0, 1), a `cap_input` that is
            not a bool, a gate of the wrong size.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        gate: GateLike = "",
        input_scale: float = 1.0,
        rounds: int = 5,
        rank: int | None = None,
        cap_input: bool = True,
        zoneout_cell: float = 0.0,
        zoneout_hidden: float = 0.0,
        recurrent_dropout: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        gate = as_gate(gate, hidden_size)
        maps = {**gate.maps, "u": hidden_size, "o": hidden_size}
        super().__init__(
            input_size,
            hidden_size,
            gate,
            maps,
            input_scale,
            device,
            dtype,
            zoneout_cell=zoneout_cell,
            zoneout_hidden=zoneout_hidden,
            recurrent_dropout=recurrent_dropout,
        )
        self.rounds = check_size("rounds", rounds, minimum=0, maximum=MAX_DEPTH)
        self.rank = None if rank is None else check_size("rank", rank, maximum=MAX_WIDTH)
        self.cap_input = check_flag("cap_input", cap_input)
        self.state_shapes["c"] = (hidden_size,)
        self.modulation = nn.ParameterDict()
        for n in range(1, self.rounds + 1):
            out, into = (input_size, hidden_size) if n % 2 else (hidden_size, input_size)
            shapes: dict[str, tuple[int, ...]] = {f"Q_{n}": (out, into)}
            if self.rank is not None:
                shapes = {f"Q_{n}_left": (out, self.rank), f"Q_{n}_right": (self.rank, into)}
            for name, shape in {**shapes, f"q_{n}": (out,)}.items():
                self.modulation[name] = nn.Parameter(
                    torch.empty(shape, **factory_kwargs(device, dtype))
                )
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        super().reset_parameters(generator)
        for name, weight in self._round_weights().items():
            if name.startswith("Q"):
                bound = weight.shape[1] ** -0.5
                weight.uniform_(-bound, bound, generator=generator)
            else:
                weight.zero_()

    def gate_weights(self) -> dict[str, Tensor]:
        return {**super().gate_weights(), **self._round_weights()}

    def _round_weights(self) -> dict[str, Tensor]:
        """Views of `modulation`; empty while the base class initializes, before it exists."""
        return {
            name.removeprefix("modulation."): parameter.detach()
            for name, parameter in self.named_parameters()
            if name.startswith("modulation.")
        }

    def project(self, x: Tensor) -> Tensor:
        return x  # h modulates x, so nothing can be projected in advance

    def _factor(self, n: int, z: Tensor) -> Tensor:
        """The factor of round n on x or h, computed from the other one, z."""
        weights = self.modulation
        if self.rank is None:
            weight = weights[f"Q_{n}"]
        else:
            z = nn.functional.linear(z, weights[f"Q_{n}_right"])
            weight = weights[f"Q_{n}_left"]
        return 2 * torch.sigmoid(widened(nn.functional.linear(z, weight, weights[f"q_{n}"])))

    def pre_activations(self, projected: Tensor, h: Tensor) -> tuple[Tensor, ...]:
        """L_k for each map, after the rounds."""
        x = projected
        for n in range(1, self.rounds + 1):
            if n % 2:
                x = self._factor(n, h) * x
            else:
                h = self._factor(n, x) * h
        return super().pre_activations(super().project(x), h)

    def step(self, projected: Tensor, state: State) -> tuple[Tensor, State]:
        *pre, u, o = self.pre_activations(projected, state[0])
        f, i = self.gate(*pre)
        if self.cap_input:
            i = torch.minimum(i, 1 - f)
        h, c = lstm_update(self, state, (f, i), u, o)
        return h, (h, c)

    def recurrence(self) -> CellSpec:
        d, inputs = self.hidden_size, self.input_size
        bias = self.bias_ih + self.bias_hh
        weights = [self.weight_ih, self.weight_hh, bias]
        for n, shape in ((1, (inputs, d)), (2, (d, inputs))):
            rounds = range(n, self.rounds + 1, 2)
            if rounds:
                matrices = torch.stack([self._matrix(k) for k in rounds])
                weights += [matrices, torch.stack([self.modulation[f"q_{k}"] for k in rounds])]
            else:
                weights += [bias.new_empty(0, *shape), bias.new_empty(0, shape[0])]
        sizes = d, self.rounds, self.cap_input
        return self.spec("mogrifier", sizes=sizes, weights=tuple(weights))

    def _matrix(self, n: int) -> Tensor:
        """Q_n, also where it is factored."""
        weights = self.modulation
        matrix: Tensor
        if self.rank is None:
            matrix = weights[f"Q_{n}"]
        else:
            matrix = weights[f"Q_{n}_left"] @ weights[f"Q_{n}_right"]
        return matrix
