"""The LSTM with every gate in NumPy: one map, one step, one layer at a time.

Named arrays go in and come out; the number behind the dot is the layer. In: the input `x`
(..., T, B, I), the state `h.0`, `c.0`, ... (..., B, d), and for each map k of a layer
`W_x_k.0`, `W_h_k.0`, `b_k.0`, `b_h_k.0`. Out: `outputs`, the final `h.0`, `c.0`, ... and the
effective forget gates `forget.0`, ...
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from twins.gates import Array, pair, sigmoid

Named = dict[str, Array]


def lstm(gate: str, given: Named, starts: NDArray[np.bool_], chunk: int = 1) -> Named:
    """Run over the sequence; where `starts` (T, B), an episode begins with a state of zeros."""
    x, result = given["x"], {}
    for layer in range(sum(name.startswith("h.") for name in given)):
        w = {
            name[: -len(f".{layer}")]: a for name, a in given.items() if name.endswith(f".{layer}")
        }
        maps = [name.removeprefix("W_x_") for name in w if name.startswith("W_x_")]
        h, c, outputs, forget = w["h"], w["c"], [], []
        for t in range(x.shape[-3]):
            fresh = starts[t][:, None]
            h, c = np.where(fresh, 0.0, h), np.where(fresh, 0.0, c)
            z = {k: _affine(w, k, x[..., t, :, :], h) for k in maps}
            f, i = pair(gate, z, chunk)
            c = f * c + i * np.tanh(z["u"])
            h = sigmoid(z["o"]) * np.tanh(c)
            outputs.append(h)
            forget.append(f)
        x = _stack(outputs)
        result |= {f"h.{layer}": h, f"c.{layer}": c, f"forget.{layer}": _stack(forget)}
    return {"outputs": x, **result}


def _affine(w: Named, k: str, x: Array, h: Array) -> Array:
    """W_x_k x + b_k + W_h_k h + b_h_k for every row of the batch."""
    from_x = np.einsum("...bi,...ki->...bk", x, w[f"W_x_{k}"])
    from_h = np.einsum("...bi,...ki->...bk", h, w[f"W_h_{k}"])
    return from_x + w[f"b_{k}"][..., None, :] + from_h + w[f"b_h_{k}"][..., None, :]


def _stack(steps: list[Array]) -> Array:
    """The steps on an axis before (B, d); leading axes may come in at a later step."""
    return np.stack(np.broadcast_arrays(*steps), axis=-3)
