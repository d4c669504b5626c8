"""One step of the recurrences that are linear in their state, in NumPy."""

from __future__ import annotations

import numpy as np

from twins.gates import Array, pair, sigmoid
from twins.sequence import Named, linear, rows


def mingru(
    w: Named, x: Array, state: Named, gate: str, chunk_size: int = 1, candidate: str = "g"
) -> tuple[Array, Named, Array]:
    """Feng et al. 2024, with any gate; its z is the input gate."""
    z = of_input(w, x)
    f, i = pair(gate, z, chunk_size)
    h = f * state["h"] + i * (positive(z["u"]) if candidate == "g" else z["u"])
    return h, {"h": h}, f


def gilr(
    w: Named, x: Array, state: Named, gate: str, chunk_size: int = 1
) -> tuple[Array, Named, Array]:
    """Martin and Cundy 2017, with any gate."""
    z = of_input(w, x)
    f, i = pair(gate, z, chunk_size)
    h = f * state["h"] + i * np.tanh(z["u"])
    return h, {"h": h}, f


def minlstm(w: Named, x: Array, state: Named, candidate: str = "g") -> tuple[Array, Named, Array]:
    """Feng et al. 2024: two gates, scaled so that their sum is one."""
    z = of_input(w, x)
    f, i = sigmoid(z["f"]), sigmoid(z["i"])
    f, i = f / (f + i), i / (f + i)
    h = f * state["h"] + i * (positive(z["u"]) if candidate == "g" else z["u"])
    return h, {"h": h}, f


def lru(
    w: Named, x: Array, state: Named, trainable_gamma: bool = True
) -> tuple[Array, Named, Array]:
    """Orvieto et al. 2023: a complex diagonal, in real and imaginary parts."""
    size, angle = np.exp(-np.exp(w["nu_log"])), np.exp(w["theta_log"])
    gamma = np.exp(w["gamma_log"]) if trainable_gamma else np.sqrt(1 - size**2)
    re, im = rows(size * np.cos(angle), x), rows(size * np.sin(angle), x)
    h_re, h_im = state["h_re"], state["h_im"]
    h_re, h_im = (
        re * h_re - im * h_im + rows(gamma, x) * linear(x, w["B_re"]),
        re * h_im + im * h_re + rows(gamma, x) * linear(x, w["B_im"]),
    )
    y = linear(h_re, w["C_re"]) - linear(h_im, w["C_im"]) + linear(x, w["D"])
    return y, {"h_re": h_re, "h_im": h_im}, rows(size, x)


def memoryless(w: Named, x: Array, state: Named) -> tuple[Array, Named, None]:
    """The floor: an affine map and a tanh."""
    return np.tanh(linear(x, w["weight"], w["bias"])), {}, None


def of_input(w: Named, x: Array) -> Named:
    """Every map, which reads the input alone."""
    names = [name.removeprefix("W_") for name in w if name.startswith("W_")]
    return {k: linear(x, w[f"W_{k}"], w[f"b_{k}"]) for k in names}


def positive(z: Array) -> Array:
    """x + 1/2 from 0 on, sigmoid(x) below."""
    return np.where(z.real >= 0, z + 0.5, sigmoid(z))


def ffm(w: Named, x: Array, state: Named, context_size: int = 4) -> tuple[Array, Named, Array]:
    """Morad et al. 2023: a matrix of traces and contexts, number i c + j for trace i, context j."""
    z = of_input(w, x)
    written = z["y"] * sigmoid(z["i"])
    size = np.exp(-np.where(w["alpha"].real < 0, -w["alpha"], w["alpha"]))
    angle = -w["omega"]
    re = size[..., :, None] * np.cos(angle)[..., None, :]
    im = size[..., :, None] * np.sin(angle)[..., None, :]
    flat = (*re.shape[:-2], -1)
    re, im = rows(re.reshape(flat), x), rows(im.reshape(flat), x)
    h_re, h_im = state["h_re"], state["h_im"]
    h_re, h_im = (
        re * h_re - im * h_im + np.repeat(written, context_size, axis=-1),
        re * h_im + im * h_re,
    )
    mixed = layer_norm(linear(h_re, w["C_re"]) + linear(h_im, w["C_im"], w["b_z"]))
    o = sigmoid(z["o"])
    return o * mixed + (1 - o) * z["s"], {"h_re": h_re, "h_im": h_im}, rows(size, x)


def layer_norm(z: Array) -> Array:
    """Without weights."""
    z = z - z.mean(axis=-1, keepdims=True)
    return z / np.sqrt((z * z).mean(axis=-1, keepdims=True) + 1e-5)
