"""The Mogrifier LSTM with every gate of the table."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rlgates.cell import State, widened
from rlgates.cores.regularisers import lstm_update
from rlgates.cores.stacked import Stacked
from rlgates.errors import check_flag, check_probability, check_size
from rlgates.gates import Gate
from rlgates.kernels import Loop


class MogrifierLSTM(Stacked):
    """An LSTM whose input and state gate each other first (Melis et al. 2020).

    In rounds n = 1, 2, ..., `rounds`:

        x <- 2 sigmoid(Q_n h + q_n) * x       n odd
        h <- 2 sigmoid(Q_n x + q_n) * h       n even

    and then, with L_k(x, h) = W_x_k x + b_k + W_h_k h + b_h_k of the new x and h:

        f, i = gate(L_...)             the effective gates, see `rlgates.gates.GATES`
        i    = min(1 - f, i)           if `cap_input`
        u    = tanh(L_u)               the candidate
        o    = sigmoid(L_o)            the output gate
        c'   = f * c + i * u
        h'   = o * tanh(c')            the output

    With rounds=0 and cap_input=False it is the LSTM.

    Stacking order of `weight_ih`, `weight_hh`, `bias_ih`, `bias_hh`, as in the LSTM: the maps
    of the gate, then u, o. That is, in units of hidden_size rows:

        untied gates   i, f, u, o
        tied gates     f, u, o
        refine gates   r, f, u, o
        master gates   i, f, mi, mf, u, o   (mi and mf of hidden_size / chunk_size rows)

    `modulation` holds the rounds by name: `Q_n` (input_size, d) for odd n and (d, input_size)
    for even n, with biases `q_n`; at low rank `Q_n` is the product of `Q_n_left` and
    `Q_n_right`, of `rank` columns and rows.

    Weights start in U[-1/sqrt(d), 1/sqrt(d)], those of the rounds in U[-1/sqrt(m), 1/sqrt(m)]
    for a matrix of m columns; the biases of the gate start as the gate says, in `bias_ih`; all
    others start at zero, so that the factors of the rounds start near 1.

    The state is (h, c): the rounds change what the maps read, not what is kept. Gates and
    state stay in float32 under autocast.

    Args:
        input_size: width of the input.
        hidden_size: number of units d.
        gate: which gate; `make_core` builds it from the prefix of a name.
        input_scale: factor on the starting weights W_x; above 1 lets a short stimulus leave a
            stronger trace in the first state. 1 by default.
        rounds: number of rounds, the paper's 5 by default. One more or less changes which of
            x and h is gated last.
        rank: of the matrices Q_n; None, the default, for full ones. It pays below
            d input_size / (d + input_size).
        cap_input: cap the input gate at 1 - f, which keeps c within [-1, 1], as the authors'
            code does; the paper's equations do not. True by default; tied and refine gates
            are so already.
        zoneout_cell, zoneout_hidden: probabilities with which a unit of c and of h keeps its
            old value while training; in evaluation the expectation (Krueger et al. 2016;
            theirs are 0.5 and 0.05). The new h is made from the cell before it is zoned, the
            old h is the one before the rounds; the output is the zoned h. 0 by default.
        recurrent_dropout: probability with which a unit's candidate u is dropped while
            training, the others scaled up (Semeniuta et al. 2016). 0 by default.

    Raises:
        ValueError, TypeError: a size or rank below 1 or not an integer, rounds below 0, a
            scale that is not positive, a probability outside [0, 1), a `cap_input` that is
            not a bool, a gate of another size.
    """

    options = (
        "input_scale",
        "rounds",
        "rank",
        "cap_input",
        "zoneout_cell",
        "zoneout_hidden",
        "recurrent_dropout",
    )

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        gate: Gate,
        input_scale: float = 1.0,
        rounds: int = 5,
        rank: int | None = None,
        cap_input: bool = True,
        zoneout_cell: float = 0.0,
        zoneout_hidden: float = 0.0,
        recurrent_dropout: float = 0.0,
    ) -> None:
        maps = {**gate.maps, "u": hidden_size, "o": hidden_size}
        super().__init__(input_size, hidden_size, gate, maps, input_scale)
        self.rounds = check_size("rounds", rounds, minimum=0)
        self.rank = None if rank is None else check_size("rank", rank)
        self.cap_input = check_flag("cap_input", cap_input)
        self.zoneout_cell = check_probability("zoneout_cell", zoneout_cell)
        self.zoneout_hidden = check_probability("zoneout_hidden", zoneout_hidden)
        self.recurrent_dropout = check_probability("recurrent_dropout", recurrent_dropout)
        self.state_shapes = {"h": (hidden_size,), "c": (hidden_size,)}
        self.modulation = nn.ParameterDict()
        for n in range(1, self.rounds + 1):
            out, into = (input_size, hidden_size) if n % 2 else (hidden_size, input_size)
            shapes: dict[str, tuple[int, ...]] = {f"Q_{n}": (out, into)}
            if self.rank is not None:
                shapes = {f"Q_{n}_left": (out, self.rank), f"Q_{n}_right": (self.rank, into)}
            for name, shape in {**shapes, f"q_{n}": (out,)}.items():
                self.modulation[name] = nn.Parameter(torch.empty(shape))
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
        """Views of `modulation`; none while the base class draws, before that is made."""
        return {
            name.removeprefix("modulation."): parameter.detach()
            for name, parameter in self.named_parameters()
            if name.startswith("modulation.")
        }

    def project(self, x: Tensor) -> Tensor:
        return x  # which h has a say in, so that no product can be made ahead

    def _factor(self, n: int, z: Tensor) -> Tensor:
        """What round n multiplies x or h by, made from the other of them."""
        weights = self.modulation
        if self.rank is None:
            weight = weights[f"Q_{n}"]
        else:
            z = nn.functional.linear(z, weights[f"Q_{n}_right"])
            weight = weights[f"Q_{n}_left"]
        return 2 * torch.sigmoid(widened(nn.functional.linear(z, weight, weights[f"q_{n}"])))

    def _maps(self, x: Tensor, h: Tensor) -> tuple[Tensor, ...]:
        """The pre-activations of all maps, after the rounds."""
        for n in range(1, self.rounds + 1):
            if n % 2:
                x = self._factor(n, h) * x
            else:
                h = self._factor(n, x) * h
        return self.pre_activations(super().project(x), h)

    def step(self, projected: Tensor, state: State) -> tuple[Tensor, State]:
        *pre, u, o = self._maps(projected, state[0])
        f, i = self.gate(*pre)
        if self.cap_input:
            i = torch.minimum(i, 1 - f)
        h, c = lstm_update(self, state, (f, i), u, o)
        return h, (h, c)

    def recurrence(self) -> Loop | None:
        dropout = self.training and self.recurrent_dropout
        if self.zoneout_cell or self.zoneout_hidden or dropout:
            return None
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
        sizes = d, len(bias), self.rounds, self.cap_input
        gate = self.gate.row.activation, self.gate.auxiliary, self.gate.chunk_size
        return Loop("mogrifier", sizes, tuple(weights), gate=gate)

    def _matrix(self, n: int) -> Tensor:
        """Q_n, also at low rank."""
        weights = self.modulation
        matrix: Tensor
        if self.rank is None:
            matrix = weights[f"Q_{n}"]
        else:
            matrix = weights[f"Q_{n}_left"] @ weights[f"Q_{n}_right"]
        return matrix

    def forget_gate(self, projected: Tensor, state: State) -> Tensor:
        *pre, _, _ = self._maps(projected, state[0])
        return self.gate(*pre)[0]
