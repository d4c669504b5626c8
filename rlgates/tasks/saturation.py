"""How fast a gate learns to stay open: a toy problem (Ohno et al. 2022, section 4, figures 2, 8).

A state that is multiplied by the same gate f = phi(z) at each of n steps is to stay as it was:
minimise |1 - phi(z)^n| over the pre-activation z. Activations that come near 1 faster learn
faster, although their gradient vanishes sooner: with gradient flow 1 - f falls with the time tau
as in `LAWS`. All is float64, and 1 - f is found without subtraction, as phi(-z).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from rlgates.errors import check_choice, check_number, check_size
from rlgates.gates import ACTIVATIONS, refine

# From pre-activations (k, ...), a gate (...); the refine gate has two: forget and refine part.
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
# Of an integration step: the change of z over 1 + |z|, and that of the time over the time.
MOST_CHANGE, MOST_GROWTH = 0.02, 0.1


class Curve(NamedTuple):
    """What is left of 1 - f.

    Attributes:
        times: (T,) float64: the time tau of the flow, or the number of updates.
        left: (T,) float64: 1 - f at these times.
    """

    times: Tensor
    left: Tensor


class Law(NamedTuple):
    """How 1 - f falls, up to constants: as tau^power, or as y where y log(y)^2 = c / tau.

    Ohno et al. write the latter as W(c tau^(-1/2))^2, with W the inverse of x log x (appendix
    C.3; their table 1 has x e^x, which is not what they derive).

    Attributes:
        power: None for the second form.
        text: as the paper has it.
    """

    power: float | None
    text: str


# There is none for the iterated fast gate.
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
    """1 - f (...) from pre-activations (k, ...): all these gates have f(-z) = 1 - f(z)."""
    return GATES[gate][1](-z)


def pull(gate: str, z: Tensor, exponent: int) -> Tensor:
    """dz / dtau (k, ...) of the gradient flow: the negative gradient of 1 - f^exponent."""
    with torch.enable_grad():
        at = z.detach().requires_grad_()
        (slope,) = torch.autograd.grad(loss(gate, at, exponent).sum(), at)
    return -slope


def loss(gate: str, z: Tensor, exponent: int) -> Tensor:
    """|1 - f^exponent|, without rounding for f near 1."""
    return -torch.expm1(exponent * torch.log1p(-left_of(gate, z)))


def gradient_flow(
    gate: str, times: Tensor | None = None, exponent: int = 10, start: float = 0.0
) -> Curve:
    """1 - f under gradient flow, by the classical Runge-Kutta method.

    Args:
        gate: a key of `GATES`.
        times: (T,) rising, above 0; `time_grid()` by default.
        exponent: n, the number of steps over which the state is to stay.
        start: all pre-activations at tau = 0.

    Raises:
        ValueError: an unknown gate, an exponent below 1, or times that do not rise.
    """
    z = _start(gate, exponent, start)
    times = time_grid() if times is None else times
    if times.ndim != 1 or not (times > 0).all() or not (times.diff() > 0).all():
        raise ValueError("times must be above 0 and rise.")
    now, left = 0.0, []
    for until in times.tolist():
        while now < until:
            first = pull(gate, z, exponent)
            reach = MOST_CHANGE * (1 + float(z.abs().max())) / float(first.abs().max())
            step = min(reach, max(now, float(times[0])) * MOST_GROWTH)
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
    gate: str,
    optimizer: str,
    learning_rate: float,
    updates: int,
    exponent: int = 10,
    start: float = 0.0,
) -> Curve:
    """1 - f under an optimizer of torch, from before the first update on.

    The paper has "sgd" with rate 1 and exponent 10, "rmsprop" and "adam" with 0.01 and 30.

    Args:
        gate: a key of `GATES`.
        optimizer: a key of `OPTIMIZERS`; its other settings are torch's defaults.
        learning_rate: above 0.
        updates: how many.
        exponent, start: as for `gradient_flow`.

    Raises:
        ValueError: an unknown gate or optimizer, or a number that makes no sense.
    """
    z = _start(gate, exponent, start).requires_grad_()
    check_choice("optimizer", optimizer, OPTIMIZERS)
    stepper = OPTIMIZERS[optimizer]([z], lr=check_number("learning_rate", learning_rate, above=0))
    left = [left_of(gate, z).detach()]
    for _ in range(check_size("updates", updates)):
        z.grad = -pull(gate, z, exponent)
        stepper.step()
        left.append(left_of(gate, z).detach())
    return Curve(torch.arange(updates + 1, dtype=torch.float64), torch.stack(left))


def _start(gate: str, exponent: int, start: float) -> Tensor:
    count, _ = GATES[check_choice("gate", gate, GATES)]
    check_size("exponent", exponent)
    return torch.full((count,), check_number("start", start), dtype=torch.float64)


def slope(curve: Curve, decades: float = 2.0) -> float:
    """d log(1 - f) / d log tau, by least squares over the last decades of a curve."""
    late = curve.times >= curve.times[-1] / 10**decades
    x, y = curve.times[late].log(), curve.left[late].log()
    x = x - x.mean()
    return float((x * y).sum() / (x * x).sum())


def fitted(gate: str, curve: Curve, decades: float = 2.0) -> Tensor:
    """The law of a gate at the times of a curve (T,), with the constant that fits its end.

    Raises:
        ValueError: a gate of which there is no law.
    """
    law = LAWS[check_choice("gate", gate, LAWS)]
    late = curve.times >= curve.times[-1] / 10**decades
    if law.power is not None:
        shape = law.power * curve.times.log()
        return (shape + (curve.left.log() - shape)[late].mean()).exp()
    # Where y log(y)^2 = c / tau, c is had from each point; its mean in logarithms is taken.
    logs = curve.left.log()
    constant = (curve.times.log() + logs + 2 * (-logs).log())[late].mean()
    return squared_lambert(curve.times.log() - constant)


def squared_lambert(log_ratio: Tensor) -> Tensor:
    """The y below e^-2 at which y log(y)^2 = exp(-log_ratio); nan where there is none.

    With L = -log y this is L - 2 log L = log_ratio, solved by Newton's method for L above 2.
    """
    solvable = log_ratio > 2 - 2 * torch.tensor(2.0, dtype=torch.float64).log()
    length = log_ratio.clamp(min=1.0) + 2 * (log_ratio.clamp(min=1.0) + 3).log()
    for _ in range(60):
        length = length - (length - 2 * length.log() - log_ratio) / (1 - 2 / length)
        length = length.clamp(min=2 + 1e-9)
    return torch.where(solvable, (-length).exp(), torch.nan)
