"""One step of the differentiable neural computer with every gate in NumPy."""

from __future__ import annotations

import numpy as np

from twins.gated import lstm
from twins.gates import Array, sigmoid
from twins.memory import flat, join, softmax, softplus
from twins.sequence import Named, linear

EPSILON = 1e-6


def dnc(
    w: Named,
    x: Array,
    state: Named,
    gate: str,
    clip: float | None = 20.0,
    chunk_size: int = 1,
    stop: bool = True,
) -> tuple[Array, Named, Array]:
    """Graves et al. 2016 and their code, the controller with any gate.

    With `stop` false the gradient flows through the usage into the write weights, as
    differences have it.
    """
    num_writes, slots = state["write_weights"].shape[-2:]
    num_reads, word = state["reads"].shape[-2:]

    def clipped(z: Array) -> Array:
        if clip is None:
            return z
        return np.where(np.abs(z.real) > clip, np.sign(z.real) * clip, z)

    inputs = join(x, flat(state["reads"]))
    h, new, forget = lstm(w, inputs, state, gate, chunk_size)
    h, c = clipped(h), clipped(new["c"])

    def interface(name: str, *shape: int) -> Array:
        z = linear(h, w[f"W_{name}"], w[f"b_{name}"])
        return z.reshape(*z.shape[:-1], *shape)

    write_words = interface("write_vectors", num_writes, word)
    erase = sigmoid(interface("erase_vectors", num_writes, word))
    free = sigmoid(interface("free_gate", num_reads))
    allocate = sigmoid(interface("allocation_gate", num_writes))
    write = sigmoid(interface("write_gate", num_writes))
    modes = softmax(interface("read_mode", num_reads, 1 + 2 * num_writes))
    backward, forward = modes[..., :num_writes], modes[..., num_writes : 2 * num_writes]

    written = state["write_weights"]
    written = written.real if stop else written
    usage = state["usage"]
    usage = usage + (1 - usage) * (1 - np.prod(1 - written, axis=-2))
    usage = usage * np.prod(1 - free[..., None] * state["read_weights"], axis=-2)

    by_content = content(
        interface("write_keys", num_writes, word),
        interface("write_strengths", num_writes),
        state["memory"],
    )
    raised, weights = usage, []
    for k in range(num_writes):
        ga, gw = allocate[..., k, None], write[..., k, None]
        a = allocation(raised)
        raised = raised + (1 - raised) * ga * gw * a
        weights.append(gw * (ga * a + (1 - ga) * by_content[..., k, :]))
    ww = np.stack(np.broadcast_arrays(*weights), axis=-2)

    memory = state["memory"] * np.prod(1 - ww[..., None] * erase[..., None, :], axis=-3)
    memory = memory + np.einsum("...kn,...kw->...nw", ww, write_words)

    to, after = ww[..., :, None], ww[..., None, :]
    before = state["precedence"]
    link = (1 - to - after) * state["link"] + to * before[..., None, :]
    link = link * (1 - np.eye(slots))
    precedence = (1 - ww.sum(axis=-1, keepdims=True)) * before + ww

    wr = state["read_weights"]
    wr = (
        modes[..., -1, None]
        * content(
            interface("read_keys", num_reads, word),
            interface("read_strengths", num_reads),
            memory,
        )
        + np.einsum("...rk,...kij,...rj->...ri", forward, link, wr)
        + np.einsum("...rk,...kji,...rj->...ri", backward, link, wr)
    )
    reads = np.einsum("...rn,...nw->...rw", wr, memory)
    output = clipped(linear(join(h, flat(reads)), w["W_out"], w["b_out"]))
    return (
        output,
        {
            "h": h,
            "c": c,
            "memory": memory,
            "read_weights": wr,
            "write_weights": ww,
            "link": link,
            "precedence": precedence,
            "usage": usage,
            "reads": reads,
        },
        forget,
    )


def content(keys: Array, strengths: Array, memory: Array) -> Array:
    """Content weights (..., heads, N) for keys (..., heads, W)."""

    def norm(v: Array) -> Array:
        return np.sqrt((v * v).sum(axis=-1) + EPSILON)

    norms = norm(keys)[..., :, None] * norm(memory)[..., None, :]
    cosine = np.einsum("...kw,...nw->...kn", keys, memory) / (norms + EPSILON)
    return softmax(softplus(strengths)[..., None] * cosine)


def allocation(usage: Array) -> Array:
    """Allocation weights (..., N), least used slots first."""
    usage = EPSILON + (1 - EPSILON) * usage
    order = np.argsort(usage.real, axis=-1, kind="stable")
    rising = np.take_along_axis(usage, order, axis=-1)
    product = np.cumprod(rising, axis=-1)
    before = np.concatenate([np.ones_like(rising[..., :1]), product[..., :-1]], axis=-1)
    return np.take_along_axis((1 - rising) * before, np.argsort(order, axis=-1), axis=-1)
