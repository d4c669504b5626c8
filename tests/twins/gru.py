"""One step of the GRU with every gate in NumPy."""

from __future__ import annotations

import numpy as np

from twins.gates import Array, pair, sigmoid
from twins.sequence import Named, affine, linear, maps


def gru(
    w: Named, x: Array, state: Named, gate: str, chunk_size: int = 1, reset: str = "after"
) -> tuple[Array, Named, Array]:
    """Cho et al. 2014, in either order of reset gate and recurrent weights, with any gate."""
    h = state["h"]
    rho = sigmoid(affine(w, "reset", x, h))
    z = {k: affine(w, k, x, h) for k in maps(w, but=("reset", "u"))}
    f, i = pair(gate, z, chunk_size)
    if reset == "after":
        recurrent = rho * linear(h, w["W_h_u"], w["b_h_u"])
    else:
        recurrent = linear(rho * h, w["W_h_u"], w["b_h_u"])
    u = np.tanh(linear(x, w["W_x_u"], w["b_u"]) + recurrent)
    h = f * h + i * u
    return h, {"h": h}, f
