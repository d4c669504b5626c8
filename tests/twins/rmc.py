"""One step of the relational memory core with every gate in NumPy."""

from __future__ import annotations

import numpy as np

from twins.gates import Array, pair
from twins.memory import flat, join, softmax
from twins.sequence import Named, linear, maps, relu


def identity(name: str, shape: tuple[int, ...]) -> Array:
    """The initial memory: the identity of the slots, with columns added or cut off."""
    slots, units = shape
    return np.eye(slots, units)


def rmc(
    w: Named,
    x: Array,
    state: Named,
    gate: str | None,
    num_heads: int = 1,
    num_blocks: int = 1,
    mlp_layers: int = 2,
    key_size: int | None = None,
    chunk_size: int = 1,
) -> tuple[Array, Named, Array | None]:
    """Santoro et al. 2018, with any gate (None: the rows replace the memory)."""
    memory = state["memory"]
    slots, units = memory.shape[-2:]
    head = units // num_heads
    key = head if key_size is None else key_size
    x_in = linear(x, w["W_in"], w["b_in"])[..., None, :]
    a = join(memory, x_in, axis=-2)
    for n in range(num_blocks):
        qkv = per_row(a, w[f"W_qkv_{n}"], w[f"b_qkv_{n}"])
        qkv = normalized(qkv, w[f"g_qkv_{n}"], w[f"o_qkv_{n}"])
        qkv = qkv.reshape(*qkv.shape[:-1], num_heads, 2 * key + head)
        q, k, v = np.split(qkv, [key, 2 * key], axis=-1)
        weights = softmax(np.einsum("...shk,...zhk->...hsz", q, k) / np.sqrt(key))
        attended = flat(np.einsum("...hsz,...zhv->...shv", weights, v))
        a = normalized(a + attended, w[f"g_att_{n}"], w[f"o_att_{n}"])
        inner = a
        for j in range(mlp_layers):
            inner = per_row(inner, w[f"W_mlp_{j}"], w[f"b_mlp_{j}"])
            if j < mlp_layers - 1:
                inner = relu(inner)
        a = normalized(a + inner, w[f"g_mlp_{n}"], w[f"o_mlp_{n}"])
    new = a[..., :slots, :]
    if gate is None:
        return flat(new), {"memory": new}, None
    squashed = np.tanh(memory)
    z: Named = {
        k: per_row(x_in, w[f"W_x_{k}"], w[f"b_{k}"])
        + per_row(squashed, w[f"W_h_{k}"], w[f"b_h_{k}"])
        for k in maps(w)
    }
    f, i = pair(gate, z, chunk_size)
    memory = f * memory + i * np.tanh(new)
    return flat(memory), {"memory": memory}, flat(f)


def per_row(x: Array, weight: Array, bias: Array) -> Array:
    """weight x + bias for every row of a memory: x (..., B, S, I)."""
    return np.einsum("...bsi,...oi->...bso", x, weight) + bias[..., None, None, :]


def normalized(x: Array, gain: Array, offset: Array) -> Array:
    """Every row with mean 0 and variance 1, times a gain plus an offset."""
    x = x - x.mean(axis=-1, keepdims=True)
    x = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + 1e-5)
    return x * gain[..., None, None, :] + offset[..., None, None, :]
