"""Shared by all twins: layers, time and episode starts around a step in NumPy.

Named arrays go in and come out; the number behind the dot is the layer. In: the input `x`
(..., T, B, I), each part of the state, `h.0`, `c.0`, ... (..., B, *shape), and each weight by
its gate name, `W_x_f.0`, ... Out: `outputs`, the final parts and, of a gated core, the
effective forget gates `forget.0`, ... Leading axes carry the directions of a derivative.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twins.gates import Array

Named = dict[str, Array]
# One step from the weights, the input (..., B, I) and the parts of the state: the output
# (..., B, O), the new parts, and the forget gates (..., B, d) if there are any.
Step = Callable[..., tuple[Array, Named, Array | None]]
# An initial part from its name and shape (without the batch).
Initial = Callable[[str, tuple[int, ...]], Array]


def zeros(name: str, shape: tuple[int, ...]) -> Array:
    return np.zeros(shape)


def run(
    step: Step,
    shapes: dict[str, tuple[int, ...]],
    arrays: Named,
    episode_starts: NDArray[np.bool_],
    initial: Initial = zeros,
    **options: Any,
) -> Named:
    """Run a step over the sequence, with `episode_starts` (T, B)."""
    x, result = arrays["x"], {}
    layers = sorted({int(name.rpartition(".")[2]) for name in arrays if name != "x"})
    for layer in layers:
        suffix = f".{layer}"
        here = {k.removesuffix(suffix): a for k, a in arrays.items() if k.endswith(suffix)}
        weights = {k: a for k, a in here.items() if k not in shapes}
        state = {k: here[k] for k in shapes}
        first = {k: initial(k, shape) for k, shape in shapes.items()}
        outputs, gates = [], []
        for t in range(x.shape[-3]):
            fresh = {
                k: episode_starts[t].reshape(-1, *[1] * len(shape)) for k, shape in shapes.items()
            }
            state = {k: np.where(fresh[k], first[k], state[k]) for k in shapes}
            output, state, forget = step(weights, x[..., t, :, :], state, **options)
            outputs.append(output)
            if forget is not None:
                gates.append(forget)
        x = _stack(outputs)
        result |= {f"{k}.{layer}": part for k, part in state.items()}
        if gates:
            result[f"forget.{layer}"] = _stack(gates)
    return {"outputs": x, **result}


def linear(x: Array, weight: Array, bias: Array | None = None) -> Array:
    """weight x + bias for every row: x (..., B, I), weight (..., O, I), bias (..., O)."""
    z = np.einsum("...bi,...oi->...bo", x, weight)
    return z if bias is None else z + bias[..., None, :]


def affine(w: Named, k: str, x: Array, h: Array) -> Array:
    """L_k(x, h) = W_x_k x + b_k + W_h_k h + b_h_k."""
    return linear(x, w[f"W_x_{k}"], w[f"b_{k}"]) + linear(h, w[f"W_h_{k}"], w[f"b_h_{k}"])


def rows(vector: Array, x: Array) -> Array:
    """A vector (..., d) for every row of x (..., B, I)."""
    return np.repeat(vector[..., None, :], x.shape[-2], axis=-2)


def relu(z: Array) -> Array:
    return np.where(z.real > 0, z, 0)


def maps(w: Named, but: tuple[str, ...] = ()) -> list[str]:
    """The maps of the gate: all that have a weight on the input, but those named."""
    named = [name.removeprefix("W_x_") for name in w if name.startswith("W_x_")]
    return [name for name in named if name not in but]


def _stack(steps: list[Array]) -> Array:
    """The steps on an axis before (B, d); leading axes may come in at a later step."""
    return np.stack(np.broadcast_arrays(*steps), axis=-3)
