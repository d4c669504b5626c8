"""One step of the residual recurrent unit in NumPy."""

from __future__ import annotations

import numpy as np

from twins.gates import Array, sigmoid
from twins.sequence import Named, linear, relu, rows


def rru(
    w: Named,
    x: Array,
    state: Named,
    relu_layers: int = 1,
    normalize: bool = True,
    relu_candidate: bool = False,
    relu_output: bool = False,
    fixed_decay: bool = False,
) -> tuple[Array, Named, Array]:
    """Zakovskis et al. 2023: a residual network of one step, no gate that reads anything."""
    h = state["h"]
    j = linear(x, w["W_x_j"], w["b_j"]) + linear(h, w["W_h_j"])
    if normalize:
        j = j / np.sqrt((j * j).mean(axis=-1, keepdims=True) + 1e-6)
    j = relu(j)
    for k in range(2, relu_layers + 1):
        j = relu(linear(j, w[f"W_{k}"], w[f"b_{k}"]))
    candidate, output = linear(j, w["W_c"], w["b_c"]), linear(j, w["W_o"], w["b_o"])
    if relu_candidate:
        candidate = relu(candidate)
    if relu_output:
        output = relu(output)
    kept = np.ones((x.shape[-2], h.shape[-1])) if fixed_decay else sigmoid(10 * rows(w["S"], x))
    h = kept * h + rows(w["Z"], x) * candidate
    return output, {"h": h}, kept


def initial(name: str, shape: tuple[int, ...]) -> Array:
    """Nothing but the first unit, sqrt(d) / 4."""
    (d,) = shape
    return np.sqrt(d) / 4 * np.eye(d)[0]
