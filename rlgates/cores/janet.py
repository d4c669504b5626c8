"""JANET: just another network, an LSTM with the forget gate alone."""

from __future__ import annotations

import torch
from torch import Tensor

from rlgates.cell import State
from rlgates.cores.stacked import Stacked
from rlgates.errors import check_number
from rlgates.gates import Gate
from rlgates.kernels import Recurrence


class JANET(Stacked):
    """The forget gate is all an LSTM needs (van der Westhuizen and Lasenby 2018).

    With L_k(x, h) = W_x_k x + b_k + W_h_k h + b_h_k, and phi the activation of the gate:

        f  = phi(L_f)
        i  = 1 - phi(L_f - beta)       at beta = 0 this is 1 - f
        u  = tanh(L_u)                 the candidate
        h' = f * h + i * u             the output, which is the cell state

    and with a refine gate, refine being `rlgates.gates.refine`:

        f  = refine(phi(L_f), sigmoid(L_r))
        i  = 1 - refine(phi(L_f - beta), sigmoid(L_r))

    With beta above 0, f + i is above 1, so that a state can grow beyond the candidate.

    Stacking order of `weight_ih`, `weight_hh`, `bias_ih`, `bias_hh`: the maps of the gate,
    then u. That is, in units of hidden_size rows:

        tied gates     f, u            (half the parameters of an LSTM)
        refine gates   r, f, u

    Every map has a bias on the input side (`bias_ih`) and on the recurrent side (`bias_hh`).
    Weights start in U[-1/sqrt(d), 1/sqrt(d)]; the biases of the gate start as the gate says,
    in `bias_ih`: in `janet` itself those of chrono, log U[1, t_max - 1]. All others start at
    zero.

    The state is (h). Gates and state stay in float32 under autocast.

    Args:
        input_size: width of the input.
        hidden_size: number of units d.
        gate: which gate; `make_core` builds it from the prefix of a name. A refine gate or a
            tied one (`tied` is no choice here), and not cumax, whose values do not change if
            all its inputs are shifted.
        input_scale: factor on the starting input weights of the lowest layer; above 1 lets a
            short stimulus leave a stronger trace in the first state. 1 by default.
        beta: by how much the input gate sees the forget gate's pre-activation lowered: any
            number, the paper's 1.0 by default.

    Raises:
        ValueError, TypeError: a size below 1 or not an integer, a scale that is not positive,
            a beta that is not finite, a gate of another size or kind.
    """

    options = ("input_scale", "beta")

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        gate: Gate,
        input_scale: float = 1.0,
        beta: float = 1.0,
    ) -> None:
        if gate.auxiliary not in ("tied", "refine") or gate.row.activation == "cumax":
            raise ValueError(
                f"JANET makes its input gate from its forget gate: the gate must be tied or "
                f"refine, and not cumax, got {gate}."
            )
        maps = {**gate.maps, "u": hidden_size}
        super().__init__(input_size, hidden_size, gate, maps, input_scale)
        self.beta = check_number("beta", beta)
        self.state_shapes = {"h": (hidden_size,)}

    def step(self, projected: Tensor, state: State) -> tuple[Tensor, State]:
        (h,) = state
        *refiner, z, u = self.pre_activations(projected, h)
        f, i = self.gate(*refiner, z)
        if self.beta:
            i = self.gate(*refiner, z - self.beta)[1]
        h = f * h + i * torch.tanh(u)
        return h, (h,)

    def recurrence(self) -> Recurrence:
        return self.layer("janet")._replace(beta=self.beta)

    def forget_gate(self, projected: Tensor, state: State) -> Tensor:
        *pre, _ = self.pre_activations(projected, state[0])
        return self.gate(*pre)[0]
