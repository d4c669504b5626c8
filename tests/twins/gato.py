"""One step of GATO in NumPy."""

from __future__ import annotations

import numpy as np

from twins.gates import Array, sigmoid
from twins.memory import join, softplus
from twins.sequence import Named, linear, relu, rows


def gato(
    w: Named, x: Array, state: Named, depth: int = 1, decay: float = 0.7, s_update: str = "sum"
) -> tuple[Array, Named, Array]:
    """Section 4.4: r and s of J units that do not interact; nothing ever reads s."""
    r, s = state["r"], state["s"]

    def map_of(matrix: str, vector: str) -> Array:
        """An affine map of the input and of the unit itself."""
        return linear(x, w[f"W_x_{matrix}"], w[f"b_{matrix}"]) + rows(w[vector], x) * r

    if depth == 1:
        grown, gate, candidate = map_of("A", "a"), map_of("B", "b"), map_of("C", "c")
    else:
        grown, gate, candidate = network(w, x, r), map_of("A", "a"), map_of("B", "b")
    f = decay * sigmoid(gate)
    kept, added = {"sum": (1.0, 1.0), "increment": (0.0, 1.0), "zero": (0.0, 0.0)}[s_update]
    s, r = kept * s + added * softplus(grown), f * r + np.tanh(candidate)
    return join(r, np.cos(s)), {"r": r, "s": s}, f


def network(w: Named, x: Array, r: Array) -> Array:
    """F: for each unit j a hidden layer of its own, which reads x and r_j."""
    hidden = np.einsum("...bi,...jki->...bjk", x, w["W1_x"]) + w["b1"][..., None, :, :]
    hidden = relu(hidden + r[..., None] * w["W1_r"][..., None, :, :])
    return (hidden * w["W2"][..., None, :, :]).sum(axis=-1) + rows(w["b2"], x)
