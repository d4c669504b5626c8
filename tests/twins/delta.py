"""One step of the memories with the delta rule, in NumPy."""

from __future__ import annotations

import numpy as np

from twins.gates import Array, sigmoid
from twins.sequence import Named, linear, relu


def fwp(w: Named, x: Array, state: Named, projections: int = 1) -> tuple[Array, Named, None]:
    """Schlag et al. 2021, eq. 23 to 27, with the features of eq. 37."""
    heads = state["S"].shape[-3]

    def features(z: Array) -> Array:
        r = relu(np.concatenate([z, -z], -1))
        phi = np.concatenate([r * np.roll(r, i, -1) for i in range(1, projections + 1)], -1)
        total = phi.sum(-1, keepdims=True)
        return phi / np.where(total.real > 1e-6, total, 1e-6)

    k, q, v = (by_head(linear(x, w[f"W_{name}"]), heads) for name in "kqv")
    memory, y = corrected(state["S"], features(k), features(q), v, sigmoid(linear(x, w["W_beta"])))
    return y, {"S": memory}, None


def deltanet(w: Named, x: Array, state: Named) -> tuple[Array, Named, Array]:
    """Yang et al. 2025, eq. 10, and their layer without its convolutions."""
    heads = state["S"].shape[-3]

    def silu(z: Array) -> Array:
        return z * sigmoid(z)

    k, q, v = (by_head(silu(linear(x, w[f"W_{name}"])), heads) for name in "kqv")
    k, q = (z / np.sqrt((z**2).sum(-1, keepdims=True)) for z in (k, q))
    z = linear(x, w["W_a"]) + w["b_a"][..., None, :]
    a = np.exp(-np.exp(w["A"])[..., None, :] * np.log1p(np.exp(z)))
    kept = a[..., None, None] * state["S"]
    memory, y = corrected(kept, k, q, v, sigmoid(linear(x, w["W_beta"])))
    y = by_head(y, heads)
    y = y / np.sqrt((y**2).mean(-1, keepdims=True) + 1e-5) * w["gain"][..., None, None, :]
    gated = y.reshape(*y.shape[:-2], -1) * silu(linear(x, w["W_g"]))
    return linear(gated, w["W_o"]), {"S": memory}, a


def by_head(z: Array, heads: int) -> Array:
    return z.reshape(*z.shape[:-1], heads, -1)


def corrected(kept: Array, k: Array, q: Array, v: Array, beta: Array) -> tuple[Array, Array]:
    """The memory with the value of k corrected, and what q reads of it, heads side by side."""
    wrong = v - np.einsum("...vk,...k->...v", kept, k)
    memory = kept + np.einsum("...,...v,...k->...vk", beta, wrong, k)
    y = np.einsum("...vk,...k->...v", memory, q)
    return memory, y.reshape(*y.shape[:-2], -1)
