"""One step of the networks without a gate, in NumPy."""

from __future__ import annotations

import numpy as np

from twins.gates import Array
from twins.sequence import Named, linear, relu, rows


def elman(
    w: Named, x: Array, state: Named, nonlinearity: str = "tanh"
) -> tuple[Array, Named, None]:
    """Elman 1990."""
    z = linear(x, w["W_x"], w["b"]) + linear(state["h"], w["W_h"], w["b_h"])
    h = np.tanh(z) if nonlinearity == "tanh" else relu(z)
    return h, {"h": h}, None


def cornn(
    w: Named,
    x: Array,
    state: Named,
    dt: float = 0.042,
    gamma: float = 2.7,
    epsilon: float = 4.7,
) -> tuple[Array, Named, None]:
    """Rusch and Mishra 2021, eq. 3, with the damping of the step before."""
    y, z = state["y"], state["z"]
    force = np.tanh(linear(x, w["W_x"], w["b"]) + linear(z, w["W_z"]) + linear(y, w["W_y"]))
    z = z + dt * (force - gamma * y - epsilon * z)
    y = y + dt * z
    return y, {"y": y, "z": z}, None


def indrnn(
    w: Named, x: Array, state: Named, nonlinearity: str = "relu", max_recurrent: float = 1.0
) -> tuple[Array, Named, None]:
    """Li et al. 2018: each unit sees its own state alone, times a bounded number."""
    u = w["recurrent"]
    u = np.where(abs(u.real) > max_recurrent, max_recurrent * np.sign(u.real), u)
    z = linear(x, w["weight"], w["bias"]) + rows(u, x) * state["h"]
    h = np.tanh(z) if nonlinearity == "tanh" else relu(z)
    return h, {"h": h}, None
