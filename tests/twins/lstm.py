"""One step of the LSTM with every gate in NumPy."""

from __future__ import annotations

import numpy as np

from twins.gates import Array, pair, sigmoid
from twins.sequence import Named, affine, maps


def lstm(
    w: Named, x: Array, state: Named, gate: str, chunk_size: int = 1
) -> tuple[Array, Named, Array]:
    """Hochreiter and Schmidhuber 1997, Gers et al. 2000, with any gate."""
    h, c = state["h"], state["c"]
    z = {k: affine(w, k, x, h) for k in maps(w)}
    f, i = pair(gate, z, chunk_size)
    c = f * c + i * np.tanh(z["u"])
    h = sigmoid(z["o"]) * np.tanh(c)
    return h, {"h": h, "c": c}, f
