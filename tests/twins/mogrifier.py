"""One step of the Mogrifier LSTM with every gate in NumPy."""

from __future__ import annotations

import numpy as np

from twins.gates import Array, pair, sigmoid
from twins.sequence import Named, affine, linear, maps


def mogrifier(
    w: Named,
    x: Array,
    state: Named,
    gate: str,
    chunk_size: int = 1,
    rounds: int = 5,
    cap_input: bool = True,
) -> tuple[Array, Named, Array]:
    """Melis et al. 2020: input and h scale each other in turn, then enter an LSTM."""
    h, c = state["h"], state["c"]
    for n in range(1, rounds + 1):
        if n % 2:
            x = 2 * sigmoid(mixed(w, n, h)) * x
        else:
            h = 2 * sigmoid(mixed(w, n, x)) * h
    z = {k: affine(w, k, x, h) for k in maps(w, but=("u", "o"))}
    f, i = pair(gate, z, chunk_size)
    if cap_input:
        i = np.where(i.real > 1 - f.real, 1 - f, i)
    c = f * c + i * np.tanh(affine(w, "u", x, h))
    h = sigmoid(affine(w, "o", x, h)) * np.tanh(c)
    return h, {"h": h, "c": c}, f


def mixed(w: Named, n: int, by: Array) -> Array:
    """The affine map of one round, of full or of low rank."""
    if f"Q_{n}" in w:
        return linear(by, w[f"Q_{n}"], w[f"q_{n}"])
    return linear(linear(by, w[f"Q_{n}_right"]), w[f"Q_{n}_left"], w[f"q_{n}"])
