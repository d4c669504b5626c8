"""How fast a gate learns to stay open: a toy problem (Ohno et al. 2022, section 4, figures 2, 8).

A state is multiplied by the same gate f = phi(z) at each of n steps and should keep its value:
minimize |1 - phi(z)^n| over the pre-activation z. Activations that saturate faster learn faster,
although their gradient vanishes sooner: under gradient flow 1 - f falls with the time tau as in
`LAWS`. Computed in float64, with 1 - f = phi(-z) to avoid cancellation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from scipy.special import lambertw
from scipy.stats import linregress
from torch import Tensor

from rlgates.errors import check_choice, check_number, check_size
from rlgates.gates import ACTIVATIONS, refine

# Number of pre-activations k, and the gate (...) of pre-activations (k, ...).
GATES: dict[str, tuple[int, Callable[[Tensor], Tensor]]] = {
    "softsign": (1, lambda z: ACTIVATIONS["softsign"].forget(z[0])),
    "sigmoid": (1, lambda z: ACTIVATIONS["sigmoid"].forget(z[0])),
    "refine": (2, lambda z: refine(torch.sigmoid(z[0]), torch.sigmoid(z[1]))),
    "fast": (1, lambda z: ACTIVATIONS["fast"].forget(z[0])),
    "iterated_fast": (1, lambda z: ACTIVATIONS["iterated_fast"].forget(z[0])),
}
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "rmsprop": torch.optim.RMSprop,
    "adam": torch.optim.Adam,
}
# Limits of an integration step: change of z relative to 1 + |z|, and step relative to the time.
MAX_CHANGE, MAX_GROWTH = 0.02, 0.1


class Curve(NamedTuple):
    """1 - f over time.

    Attributes:
        times: (T,) float64: the time tau of the flow, or the number of updates.
        left: (T,) float64: 1 - f at these times.
    """

    times: Tensor
    left: Tensor


class Law(NamedTuple):
    """How 1 - f falls, up to constants: as tau^power, or as y where y log(y)^2 = c / tau.

    Ohno et al. write the second form as W(c tau^(-1/2))^2, with W the inverse of x log x (appendix
    C.3; their table 1 has x e^x, which is not what they derive).

    Attributes:
        power: None for the second form.
        text: as in the paper.
    """

    power: float | None
    text: str


# The paper has no law for the iterated fast gate.
LAWS: dict[str, Law] = {
    "softsign": Law(-1 / 3, "τ^(−1/3)"),
    "sigmoid": Law(-1.0, "τ^(−1)"),
    "refine": Law(-1.0, "τ^(−1)"),
    "fast": Law(None, "W(c τ^(−1/2))²"),
}


def time_grid(first: float = 1e-1, last: float = 1e8, per_decade: int = 20) -> Tensor:
    """Times, evenly spaced on a logarithmic axis.

    Raises:
        ValueError: `first` is not above 0, `last` not above it, or `per_decade` below 1.
    """
    low = torch.tensor(check_number("first", first, above=0), dtype=torch.float64).log10()
    high = torch.tensor(check_number("last", last, above=first), dtype=torch.float64).log10()
    count = 1 + round(float(high - low) * check_size("per_decade", per_decade))
    return torch.logspace(float(low), float(high), max(count, 2), dtype=torch.float64)


def left_of(gate: str, z: Tensor) -> Tensor:
    """1 - f (...) of pre-activations (k, ...); all these gates satisfy f(-z) = 1 - f(z)."""
    return GATES[gate][1](-z)


def pull(gate: str, z: Tensor, exponent: int) -> Tensor:
    """dz / dtau (k, ...) of the gradient flow: the negative gradient of 1 - f^exponent."""
    with torch.enable_grad():
        at = z.detach().requires_grad_()
        (slope,) = torch.autograd.grad(loss(gate, at, exponent).sum(), at)
    return -slope


def loss(gate: str, z: Tensor, exponent: int) -> Tensor:
    """|1 - f^exponent|, accurate for f near 1."""
    return -torch.expm1(exponent * torch.log1p(-left_of(gate, z)))


def gradient_flow(gate: str, times: Tensor, exponent: int = 10) -> Curve:
    """1 - f under gradient flow, by the classical Runge-Kutta method.

    Args:
        gate: a key of `GATES`.
        times: (T,) increasing, above 0; all pre-activations are 0 at tau = 0.
        exponent: n, the number of steps over which the state should stay constant.

    Raises:
        ValueError: an unknown gate, an exponent below 1, or times that do not increase.
    """
    z = _start(gate, exponent)
    if times.ndim != 1 or not (times > 0).all() or not (times.diff() > 0).all():
        raise ValueError("times must be above 0 and rise.")
    now, left = 0.0, []
    for until in times.tolist():
        while now < until:
            first = pull(gate, z, exponent)
            reach = MAX_CHANGE * (1 + float(z.abs().max())) / float(first.abs().max())
            step = min(reach, max(now, float(times[0])) * MAX_GROWTH)
            now, step = (until, until - now) if now + step >= until else (now + step, step)
            z = _runge_kutta(gate, exponent, z, first, step)
        left.append(left_of(gate, z))
    return Curve(times, torch.stack(left))


def _runge_kutta(gate: str, exponent: int, z: Tensor, first: Tensor, step: float) -> Tensor:
    second = pull(gate, z + step / 2 * first, exponent)
    third = pull(gate, z + step / 2 * second, exponent)
    fourth = pull(gate, z + step * third, exponent)
    return z + step / 6 * (first + 2 * second + 2 * third + fourth)


def descent(
    gate: str, optimizer: str, learning_rate: float, updates: int, exponent: int = 10
) -> Curve:
    """1 - f under a torch optimizer, starting before the first update.

    The paper uses "sgd" with rate 1 and exponent 10, "rmsprop" and "adam" with 0.01 and 30.

    Args:
        gate: a key of `GATES`.
        optimizer: a key of `OPTIMIZERS`; its other settings are torch's defaults.
        learning_rate: above 0.
        updates: number of updates.
        exponent: as for `gradient_flow`.

    Raises:
        ValueError: an unknown gate or optimizer, or a number out of range.
    """
    z = _start(gate, exponent).requires_grad_()
    check_choice("optimizer", optimizer, OPTIMIZERS)
    stepper = OPTIMIZERS[optimizer]([z], lr=check_number("learning_rate", learning_rate, above=0))
    left = [left_of(gate, z).detach()]
    for _ in range(check_size("updates", updates)):
        z.grad = -pull(gate, z, exponent)
        stepper.step()
        left.append(left_of(gate, z).detach())
    return Curve(torch.arange(updates + 1, dtype=torch.float64), torch.stack(left))


def _start(gate: str, exponent: int) -> Tensor:
    count, _ = GATES[check_choice("gate", gate, GATES)]
    check_size("exponent", exponent)
    return torch.zeros(count, dtype=torch.float64)


def slope(curve: Curve) -> float:
    """d log(1 - f) / d log tau, by least squares over the last two decades of a curve."""
    late = _late(curve)
    return float(linregress(curve.times[late].log(), curve.left[late].log()).slope)


def _late(curve: Curve) -> Tensor:
    return curve.times >= curve.times[-1] / 100


def fitted(gate: str, curve: Curve) -> Tensor:
    """The law of a gate at the times of a curve (T,), fitted to its last two decades.

    Raises:
        ValueError: a gate without a law.
    """
    law = LAWS[check_choice("gate", gate, LAWS)]
    late = _late(curve)
    if law.power is not None:
        shape = law.power * curve.times.log()
        return (shape + (curve.left.log() - shape)[late].mean()).exp()
    # Each point gives a c with y log(y)^2 = c / tau; take its geometric mean.
    logs = curve.left.log()
    constant = (curve.times.log() + logs + 2 * (-logs).log())[late].mean()
    return squared_lambert(curve.times.log() - constant)


def squared_lambert(log_ratio: Tensor) -> Tensor:
    """The y below e^-2 with y log(y)^2 = exp(-log_ratio); nan without a solution.

    With w = log(y) / 2 this is w exp(w) = -exp(-log_ratio / 2) / 2, for w below -1.
    """
    w = lambertw(-np.exp(-log_ratio.numpy() / 2) / 2, -1)
    return torch.from_numpy(np.where(w.imag == 0, np.exp(2 * w.real), np.nan))


def thinned(curve: Curve) -> Curve:
    """Keep about 20 points per decade of a long curve, and the first below each power of ten."""
    count = len(curve.times)
    if count <= len(TIMES):
        return curve
    marks = {0, *(round(10 ** (k / 20)) for k in range(100))}
    below = (curve.left < 10.0**-k for k in range(1, 10))
    marks |= {int(late.nonzero()[0]) for late in below if late.any()}
    indices = torch.tensor(sorted(mark for mark in marks if mark < count))
    return Curve(curve.times[indices], curve.left[indices])


def all_curves() -> dict[str, dict[str, Curve]]:
    """Compute the curve of each gate under gradient flow and under the paper's optimizers.

    The curves of the optimizers are thinned.
    """
    curves = {
        FLOW: {gate: gradient_flow(gate, TIMES) for gate in GATES},
        DESCENT: {gate: descent(gate, "sgd", 1.0, DESCENT_UPDATES) for gate in GATES},
    }
    for title, optimizer in (("RMSprop", "rmsprop"), ("Adam", "adam")):
        curves[title] = {
            gate: descent(gate, optimizer, 0.01, OPTIMIZER_UPDATES, exponent=30) for gate in GATES
        }
    return {
        method: {gate: thinned(curve) for gate, curve in by_gate.items()}
        for method, by_gate in curves.items()
    }


FLOW, DESCENT = "gradient flow", "gradient descent"
TIMES = time_grid(1e0, 1e8, 20)
DESCENT_UPDATES, OPTIMIZER_UPDATES = 3_000, 1_000
