"""One step of the non-saturating recurrent unit in NumPy."""

from __future__ import annotations

import numpy as np

from twins.gates import Array
from twins.sequence import Named, linear, rows
from twins.sequence import relu as rectified


def nru(
    w: Named,
    x: Array,
    state: Named,
    num_heads: int = 4,
    relu: bool = False,
    layer_norm: bool = False,
) -> tuple[Array, Named, None]:
    """Chandar et al. 2019: heads add to and subtract from an unbounded memory."""
    m, before = state["m"], state["h"]
    z = linear(x, w["W_x_h"], w["b_h"]) + linear(before, w["W_h_h"]) + linear(m, w["W_m_h"])
    if layer_norm:
        z = z - z.mean(axis=-1, keepdims=True)
        z = z / np.sqrt((z * z).mean(axis=-1, keepdims=True) + 1e-5)
        z = z * rows(w["g_h"], x) + rows(w["o_h"], x)
    h = rectified(z)

    def read(k: str) -> Array:
        d = h.shape[-1]
        weight_h, weight_m = w[f"W_{k}"][..., :d], w[f"W_{k}"][..., d:]
        return linear(h, weight_h) + linear(m, weight_m, w[f"b_{k}"])

    def strengths(k: str) -> Array:
        return rectified(read(k)) if relu else read(k)

    def directions(k: str) -> Array:
        outer = read(f"{k}1")[..., :, None] * read(f"{k}2")[..., None, :]
        outer = outer.reshape(*outer.shape[:-2], num_heads, m.shape[-1])
        return unit(rectified(outer) if relu else outer)

    added = (strengths("alpha")[..., None] * directions("v")).mean(axis=-2)
    erased = (strengths("beta")[..., None] * directions("w")).mean(axis=-2)
    return h, {"h": h, "m": m + added - erased}, None


def unit(v: Array) -> Array:
    """The rows divided by their 5-norms, |v| continued analytically from either side."""
    size = np.where(v.real < 0, -v, v)
    norm = (size * size * size * size * size).sum(axis=-1, keepdims=True) ** 0.2
    return v / np.where(norm.real > 1e-12, norm, 1e-12)
