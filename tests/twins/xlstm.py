"""One step of the cells of the xLSTM, in NumPy: the equations as they are, without a stabilizer."""

from __future__ import annotations

import numpy as np

from twins.gates import Array, pair, sigmoid
from twins.sequence import Named, linear, maps


def slstm(w: Named, x: Array, state: Named, gate: str) -> tuple[Array, Named, Array]:
    """Beck et al. 2024, eq. 8 to 14, with any forget gate of one unit. The state holds c and n
    divided by exp(m).
    """

    def affine(k: str) -> Array:
        blocks = w[f"W_h_{k}"]  # of each head
        parts = np.split(state["h"], blocks.shape[-3], -1)
        of_h = [linear(part, blocks[..., i, :, :]) for i, part in enumerate(parts)]
        return linear(x, w[f"W_x_{k}"], w[f"b_{k}"]) + np.concatenate(of_h, -1)

    f, _ = pair(gate, {k: affine(k) for k in maps(w, but=("i", "u", "o"))})
    i = np.exp(affine("i"))
    scale = np.exp(state["m"])
    c = f * state["c"] * scale + i * np.tanh(affine("u"))
    n = f * state["n"] * scale + i
    h = sigmoid(affine("o")) * c / n
    # The larger of what is kept and what is added has the weight 1; at the start only one is there.
    kept = np.where(state["n"].real == 0, 0, f * scale)
    new_scale = np.where(kept.real > i.real, kept, i)
    return h, {"h": h, "c": c / new_scale, "n": n / new_scale, "m": np.log(new_scale)}, f


def mlstm(w: Named, x: Array, state: Named) -> tuple[Array, Named, Array]:
    """Beck et al. 2024, eq. 19 to 27. The state holds C and n divided by exp(m)."""
    z = {k: linear(x, w[f"W_{k}"], w[f"b_{k}"]) for k in "qkvoif"}
    heads, keys = state["n"].shape[-2:]
    q, k, v = (z[name].reshape(*z[name].shape[:-1], heads, -1) for name in "qkv")
    k = k / np.sqrt(keys)
    f, i, scale = sigmoid(z["f"]), np.exp(z["i"]), np.exp(state["m"])
    kept = f * scale
    memory = np.einsum("...h,...hvk->...hvk", kept, state["C"])
    memory = memory + np.einsum("...h,...hv,...hk->...hvk", i, v, k)
    n = kept[..., None] * state["n"] + i[..., None] * k
    total = np.einsum("...hk,...hk->...h", n, q)
    total = np.where(total.real < 0, -total, total)
    read = (
        np.einsum("...hvk,...hk->...hv", memory, q) / np.where(total.real > 1, total, 1)[..., None]
    )
    h = sigmoid(z["o"]) * read.reshape(*read.shape[:-2], -1)
    new_scale = np.where(kept.real > i.real, kept, i)
    parts = {"C": memory / new_scale[..., None, None], "n": n / new_scale[..., None]}
    return h, {**parts, "m": np.log(new_scale)}, f
