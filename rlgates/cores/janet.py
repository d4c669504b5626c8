"""JANET (just another network): an LSTM with only a forget gate."""

from __future__ import annotations

import torch
from torch import Tensor

from rlgates.cell import State
from rlgates.cores.stacked import Stacked
from rlgates.errors import check_number
from rlgates.gates import GateLike, as_gate
from rlgates.kernels import CellSpec


class JANET(Stacked):
    """JANET, an LSTM with only a forget gate (van der Westhuizen and Lasenby 2018).

    With L_k(x, h) = W_x_k x + b_k + W_h_k h + b_h_k, and phi the activation of the gate:

        f  = phi(L_f)
        i  = 1 - phi(L_f - beta)       at beta = 0 this is 1 - f
        u  = tanh(L_u)                 the candidate
        h' = f * h + i * u             the output, which is the cell state

    and with a refine gate, refine being `rlgates.gates.refine`:

        f  = refine(phi(L_f), sigmoid(L_r))
        i  = 1 - refine(phi(L_f - beta), sigmoid(L_r))

    With beta above 0, f + i is above 1, so the state can exceed the candidate.

    Stacking order of `weight_ih`, `weight_hh`, `bias_ih`, `bias_hh`: the maps of the gate,
    then u. That is, in units of hidden_size rows:

        tied gates     f, u            (half the parameters of an LSTM)
        refine gates   r, f, u

    Every map has an input bias (`bias_ih`) and a recurrent bias (`bias_hh`). Weights are
    sampled from U[-1/sqrt(d), 1/sqrt(d)]; the gate initializes its biases, in `bias_ih` (`janet`
    uses chrono, log U[1, t_max - 1]); all others are zero.

    The state is (h). Gates and state stay in float32 under autocast.

    Args:
        input_size: width of the input.
        hidden_size: number of units d.
        gate: a key of `rlgates.GATES`, a row (both tied, if there is no auxiliary gate), or a
            `Gate` of hidden_size units; tied or refine. Not cumax, which does not change with a
            shift of its inputs such as beta.
        input_scale: factor on the initial input weights of the lowest layer; above 1, a short
            stimulus leaves a stronger trace in the first state.
        beta: shift of the pre-activation in the input gate, 1.0 in the paper.
        device, dtype: of the parameters, as in torch.nn; float32 or float64.

    Raises:
        ValueError, TypeError: a size below 1 or not an integer, a scale that is not positive,
            a beta that is not finite, a gate of the wrong size or kind.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        gate: GateLike = "c",
        input_scale: float = 1.0,
        beta: float = 1.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        gate = as_gate(gate, hidden_size, tied=True)
        if gate.auxiliary not in ("tied", "refine") or gate.row.activation == "cumax":
            raise ValueError(
                f"JANET makes its input gate from its forget gate: the gate must be tied or "
                f"refine, and not cumax, got {gate}."
            )
        maps = {**gate.maps, "u": hidden_size}
        super().__init__(input_size, hidden_size, gate, maps, input_scale, device, dtype)
        self.beta = check_number("beta", beta)

    def step(self, projected: Tensor, state: State) -> tuple[Tensor, State]:
        (h,) = state
        *refiner, z, u = self.pre_activations(projected, h)
        f, i = self.gate(*refiner, z)
        if self.beta:
            i = self.gate(*refiner, z - self.beta)[1]
        h = f * h + i * torch.tanh(u)
        return h, (h,)

    def recurrence(self) -> CellSpec:
        return self.spec("janet", self.beta)
