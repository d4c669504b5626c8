"""One step of the Legendre memory unit, in NumPy."""

from __future__ import annotations

import numpy as np
from scipy.signal import cont2discrete

from twins.gates import Array
from twins.sequence import Named, linear


def lmu(
    w: Named, x: Array, state: Named, memory_size: int = 32, theta: float = 100.0
) -> tuple[Array, Named, None]:
    """Voelker et al. 2019, eq. 1, 2 and 4 to 7, with a zero-order hold."""
    A, B = np.zeros((memory_size, memory_size)), np.zeros((memory_size, 1))
    for i in range(memory_size):
        B[i] = (2 * i + 1) * (-1) ** i / theta
        for j in range(memory_size):
            A[i, j] = (2 * i + 1) * (-1 if i < j else (-1) ** (i - j + 1)) / theta
    A, B, *_ = cont2discrete((A, B, np.eye(memory_size), np.zeros((memory_size, 1))), 1.0)
    u = linear(x, w["e_x"]) + linear(state["h"], w["e_h"]) + linear(state["m"], w["e_m"])
    m = linear(state["m"], A) + linear(u, B)
    h = np.tanh(linear(x, w["W_x"]) + linear(state["h"], w["W_h"]) + linear(m, w["W_m"]))
    return h, {"h": h, "m": m}, None
