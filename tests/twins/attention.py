"""One step of the layers that attend to the last steps, in NumPy."""

from __future__ import annotations

import numpy as np

from twins.gates import Array, sigmoid
from twins.sequence import Named, linear, relu
from twins.window import followed


def normalized(w: Named, name: str, x: Array) -> Array:
    """Layer norm."""
    x = x - x.mean(-1, keepdims=True)
    x = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5)
    return x * w[f"{name}.weight"][..., None, :] + w[f"{name}.bias"][..., None, :]


def layer(w: Named, name: str, x: Array) -> Array:
    return linear(x, w[f"{name}.weight"], w.get(f"{name}.bias"))


def _before(w: Named, x: Array, state: Named) -> tuple[Array, Array, Named]:
    """e, the reads of the heads, and the new state: Dai et al. 2019, sec. 3.3, with ages."""
    e = layer(w, "embed", x)
    q, k, v = np.split(layer(w, "query_key_value", normalized(w, "norm_1", e)), 3, -1)
    keys, values = followed(state["keys"], k), followed(state["values"], v)
    window, d, heads = keys.shape[-2], e.shape[-1], w["u"].shape[-2]
    size = d // heads
    known = np.maximum(state["length"][..., 0].real, 0) + 0.5
    reads = []
    for head in range(heads):
        columns = slice(head * size, (head + 1) * size)
        scores = []
        for row in range(window):
            age = window - 1 - row
            angles = [age / 10_000 ** (2 * (i // 2) / d) for i in range(d)]
            p = np.array([[np.cos(a) if i % 2 else np.sin(a) for i, a in enumerate(angles)]])
            of_age = layer(w, "position", p)[..., columns]
            content = (q[..., columns] + w["u"][..., head, None, :]) * keys[..., row, columns]
            position = (q[..., columns] + w["w"][..., head, None, :]) * of_age
            score = (content + position).sum(-1) / np.sqrt(size)
            scores.append(np.where(age > known, -np.inf, score))
        exponentials = np.exp(np.stack(np.broadcast_arrays(*scores), -1))
        weights = exponentials / exponentials.sum(-1, keepdims=True)
        reads.append(np.einsum("...bk,...bkd->...bd", weights, values[..., columns]))
    new = {"keys": keys[..., 1:, :], "values": values[..., 1:, :]}
    new["length"] = state["length"] + 1
    return e, np.concatenate(np.broadcast_arrays(*reads), -1), new


def transformer(w: Named, x: Array, state: Named) -> tuple[Array, Named, None]:
    """Vaswani et al. 2017, the layer norms in front."""
    e, reads, state = _before(w, x, state)
    y = e + layer(w, "out", reads)
    return y + layer(w, "outer", relu(layer(w, "inner", normalized(w, "norm_2", y)))), state, None


def gtrxl(w: Named, x: Array, state: Named) -> tuple[Array, Named, None]:
    """Parisotto et al. 2020, sec. 3.2, with the GRU's gates."""

    def join(number: int, x: Array, branch: Array) -> Array:
        W = np.split(w[f"gate_{number}.weight"], 3, -2)
        U = np.split(w[f"carry_{number}.weight"], 3, -2)
        y, shift = relu(branch), w[f"shift_{number}"][..., None, :]
        r = sigmoid(linear(y, W[0]) + linear(x, U[0]))
        z = sigmoid(linear(y, W[1]) + linear(x, U[1]) - shift)
        return (1 - z) * x + z * np.tanh(linear(y, W[2]) + linear(r * x, U[2]))

    e, reads, state = _before(w, x, state)
    y = join(1, e, layer(w, "out", reads))
    inner = relu(layer(w, "inner", normalized(w, "norm_2", y)))
    return join(2, y, layer(w, "outer", inner)), state, None
