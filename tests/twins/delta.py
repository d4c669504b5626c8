"""One step of the memories with the delta rule, in NumPy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from twins.gates import Array, sigmoid
from twins.sequence import Named, linear, relu, rows


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


def rwkv7(w: Named, x: Array, state: Named, num_heads: int = 1) -> tuple[Array, Named, Array]:
    """Peng et al. 2025, eq. 3 to 22, without the values of another layer."""
    mu = {j: rows(row, x) for j, row in zip("rwkvag", np.moveaxis(w["mu"], -2, 0), strict=True)}
    weights = {j: w[f"W_{j}" if j in "rkv" else f"W_{j}1"] for j in "rkvwag"}
    added = [linear(mu[j] * x, weights[j]) for j in weights]
    axes = np.broadcast_shapes(*[part.shape[:-1] for part in added])
    later = np.concatenate([np.broadcast_to(a, (*axes, a.shape[-1])) for a in added], -1)
    ends = np.cumsum([weight.shape[-2] for weight in weights.values()])[:-1]
    of_last = dict(zip(weights, np.split(state["before"], ends, -1), strict=True))
    mixed = {j: linear(x - mu[j] * x, weights[j]) + of_last[j] for j in weights}

    def low_rank(name: str, between: Callable[[Array], Array]) -> Array:
        return linear(between(mixed[name]), w[f"W_{name}2"])

    r, k, v = (mixed[j] for j in "rkv")
    decay = np.exp(-np.exp(-0.5) * sigmoid(rows(w["w_0"], x) + low_rank("w", np.tanh)))
    a = sigmoid(rows(w["a_0"], x) + low_rank("a", lambda z: z))
    gate = low_rank("g", sigmoid)
    kappa, k = k * rows(w["k_k"], x), k * (1 + (a - 1) * rows(w["k_a"], x))

    def heads(z: Array) -> Array:
        return z.reshape(*z.shape[:-1], num_heads, -1)

    r, k, v, a, kappa, by_head, r_k = map(heads, (r, k, v, a, kappa, decay, rows(w["r_k"], x)))
    kappa = kappa / np.sqrt((kappa**2).sum(-1, keepdims=True))
    memory = state["S"]
    removed = np.einsum("...vk,...k->...v", memory, kappa)
    memory = memory * by_head[..., None, :]
    memory = memory - removed[..., None] * (a * kappa)[..., None, :]
    memory = memory + v[..., None] * k[..., None, :]
    y = np.einsum("...vk,...k->...v", memory, r)
    y = y - y.mean(-1, keepdims=True)
    y = y / np.sqrt((y**2).mean(-1, keepdims=True) + 64e-5)
    y = y * heads(rows(w["gain"], x)) + heads(rows(w["bias"], x))
    y = y + (r * r_k * k).sum(-1, keepdims=True) * v
    h = linear(gate * y.reshape(*y.shape[:-2], -1), w["W_o"])
    return h, {"before": later, "S": memory}, decay
