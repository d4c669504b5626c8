"""One step of the reconstructive memory agent's core with every gate in NumPy."""

from __future__ import annotations

import numpy as np

from twins.gated import lstm
from twins.gates import Array
from twins.memory import flat, join, softmax, softplus
from twins.sequence import Named, linear


def rma(
    w: Named,
    x: Array,
    state: Named,
    gate: str,
    top_k: int = 50,
    chunk_size: int = 1,
    stop: bool = True,
) -> tuple[Array, Named, Array]:
    """Hung et al. 2019 and their code, both layers of the controller with any gate.

    With `stop` false the gradient flows through the memory into the z that was written, as
    differences have it. Without a memory in the state it is the agent without one.
    """
    remembers = "memory" in state
    read_before = [flat(state["reads"])] if remembers else []
    hidden = np.tanh(linear(join(x, state["h1"], state["h2"], *read_before), w["W_z1"], w["b_z1"]))
    z = linear(hidden, w["W_z2"], w["b_z2"])

    new: Named = {}
    below, forget = z, []
    for n in ("1", "2"):
        layer = {k.removesuffix(f"_{n}"): a for k, a in w.items() if k.endswith(f"_{n}")}
        h, parts, f = lstm(layer, below, {k: state[k + n] for k in "hc"}, gate, chunk_size)
        new |= {k + n: part for k, part in parts.items()}
        below = join(z, h)
        forget.append(f)
    controller = join(new["h1"], new["h2"])
    if not remembers:
        return join(z, controller), new, join(*forget)

    memory = state["memory"]
    slots, width = memory.shape[-2:]
    heads = state["reads"].shape[-2]
    asked = linear(controller, w["W_read"], w["b_read"])
    keys = asked[..., : heads * width].reshape(*asked.shape[:-1], heads, width)
    strengths = softplus(asked[..., heads * width :])
    cosine = np.einsum("...hl,...nl->...hn", unit(keys), unit(memory))
    weights = best(strengths[..., None] * cosine, top_k)
    reads = np.einsum("...hn,...nl->...hl", weights, memory)

    here = np.arange(slots) == state["step"].real % slots
    row = (z.real if stop else z)[..., None, :]
    new |= {
        "memory": np.where(here[..., None], row, memory),
        "reads": reads,
        "step": state["step"] + 1,
    }
    return join(z, controller, flat(reads)), new, join(*forget)


def unit(v: Array) -> Array:
    """v / |v|; a row of zeros stays zero, with zero derivative."""
    square = (v * v).sum(axis=-1, keepdims=True)
    nonzero = square.real > 0
    return np.where(nonzero, v / np.sqrt(np.where(nonzero, square, 1)), 0)


def best(logits: Array, top_k: int) -> Array:
    """The softmax over the `top_k` largest; the others get nothing."""
    order = np.argsort(-logits.real, axis=-1)[..., :top_k]
    weights = np.zeros_like(logits)
    np.put_along_axis(weights, order, softmax(np.take_along_axis(logits, order, -1)), -1)
    return weights
