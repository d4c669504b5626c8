"""One step of JANET with every gate in NumPy."""

from __future__ import annotations

import numpy as np

from twins.gates import Array, pair
from twins.sequence import Named, affine, maps


def janet(
    w: Named, x: Array, state: Named, gate: str, beta: float = 1.0
) -> tuple[Array, Named, Array]:
    """Van der Westhuizen and Lasenby 2018: what is not forgotten, shifted by beta, is written."""
    c = state["h"]
    z = {k: affine(w, k, x, c) for k in maps(w, but=("u",))}
    f, _ = pair(gate, z)
    _, i = pair(gate, {**z, "f": z["f"] - beta})
    c = f * c + i * np.tanh(affine(w, "u", x, c))
    return c, {"h": c}, f
