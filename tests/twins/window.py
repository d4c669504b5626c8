"""One step of the cores with a memory of a bounded number of steps, in NumPy."""

from __future__ import annotations

import numpy as np

from twins.gates import Array
from twins.sequence import Named, linear


def leaky_relu(z: Array) -> Array:
    return np.where(z.real > 0, z, 0.01 * z)


def frame_stack(w: Named, x: Array, state: Named) -> tuple[Array, Named, None]:
    """POPGym: each input compressed, then two layers on the last of them."""
    rows = followed(state["rows"], linear(x, w["weight_c"]))
    # By number of the compressed input, then by time.
    flat = np.swapaxes(rows, -1, -2).reshape(*rows.shape[:-2], -1)
    y = leaky_relu(linear(flat, w["weight_1"], w["bias_1"]))
    return leaky_relu(linear(y, w["weight_2"], w["bias_2"])), {"rows": rows[..., 1:, :]}, None


def frame_conv(w: Named, x: Array, state: Named) -> tuple[Array, Named, None]:
    """POPGym: a convolution over time; each input adds its part to the outputs that see it."""
    added = [linear(x, w["weight"][..., k, :, :]) for k in range(w["weight"].shape[-3])]
    later = [state["pending"][..., k, :] for k in range(len(added) - 1)] + [0]
    sums = np.broadcast_arrays(*(one + other for one, other in zip(added, later, strict=True)))
    return sums[0] + w["bias"][..., None, :], {"pending": np.stack(sums[1:], -2)}, None


def positional(w: Named, x: Array, state: Named) -> tuple[Array, Named, None]:
    """An affine map of the input and of sines and cosines of the step, and a tanh."""
    d = w["bias"].shape[-1]
    angles = [state["step"][..., 0] / 10_000 ** (2 * (i // 2) / d) for i in range(d)]
    p = np.stack([np.cos(a) if i % 2 else np.sin(a) for i, a in enumerate(angles)], -1)
    y = np.tanh(linear(x, w["weight"], w["bias"]) + linear(p, w["weight_p"]))
    return y, {"step": state["step"] + 1}, None


def followed(past: Array, row: Array) -> Array:
    """The rows of the past (..., B, K, D), and one more (..., B, D)."""
    leading = np.broadcast_shapes(past.shape[:-2], row.shape[:-1])
    past = np.broadcast_to(past, (*leading, *past.shape[-2:]))
    return np.concatenate([past, np.broadcast_to(row, (*leading, row.shape[-1]))[..., None, :]], -2)
