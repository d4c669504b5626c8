"""One step of the recurrences that are linear in their state, in NumPy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.special import erf

from twins.gates import Array, pair, sigmoid
from twins.sequence import Named, linear, relu, rows


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


def rtu(w: Named, x: Array, state: Named, nonlinearity: str = "relu") -> tuple[Array, Named, Array]:
    """Elelimy et al. 2024, with a linear recurrence."""
    r, angle = np.exp(-np.exp(w["nu_log"])), np.exp(w["theta_log"])
    g, phi, gamma = (
        rows(part, x) for part in (r * np.cos(angle), r * np.sin(angle), np.sqrt(1 - r * r))
    )
    one, two = state["c1"], state["c2"]
    one, two = (
        g * one - phi * two + gamma * linear(x, w["W_1"]),
        g * two + phi * one + gamma * linear(x, w["W_2"]),
    )
    read = relu if nonlinearity == "relu" else np.tanh
    return together([read(one), read(two)]), {"c1": one, "c2": two}, rows(r, x)


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


def s4d(w: Named, x: Array, state: Named) -> tuple[Array, Named, Array]:
    """Gu et al. 2022: a channel is a row of A, with the zero-order hold; B = 1."""
    u = linear(x, w["W_u"], w["b_u"])
    step = np.exp(w["log_step"])[..., None]
    a, into = hold((-np.exp(w["a_re"]), w["a_im"]), step)
    h = tuple(state[k].reshape(*state[k].shape[:-1], *a[0].shape[-2:]) for k in ("h_re", "h_im"))
    h_re, h_im = times([every(part) for part in a], h)
    h_re, h_im = (
        part + every(f) * u[..., None] for part, f in zip((h_re, h_im), into, strict=True)
    )
    y = 2 * (every(w["C_re"]) * h_re - every(w["C_im"]) * h_im).sum(axis=-1) + rows(w["D"], x) * u
    g = y * (1 + erf(y / np.sqrt(2))) / 2
    h = linear(g, w["W_1"], w["b_1"]) * sigmoid(linear(g, w["W_2"], w["b_2"]))
    size = np.exp(-np.exp(w["a_re"]) * step)
    flat = (*size.shape[:-2], -1)
    new = {k: part.reshape(*part.shape[:-2], -1) for k, part in (("h_re", h_re), ("h_im", h_im))}
    return h, new, rows(size.reshape(flat), x)


def s5(
    w: Named, x: Array, state: Named, activation: str = "half_glu1", clip_eigs: bool = True
) -> tuple[Array, Named, Array]:
    """Smith et al. 2023, with the zero-order hold, and the output of its layer."""
    decay, step = w["lambda_re"], np.exp(w["log_step"])
    if clip_eigs:
        decay = np.where(decay.real < -1e-4, decay, -1e-4)
    a, into = hold((decay, w["lambda_im"]), step)
    written = times([rows(f, x) for f in into], (linear(x, w["B_re"]), linear(x, w["B_im"])))
    h = times([rows(part, x) for part in a], (state["h_re"], state["h_im"]))
    h_re, h_im = h[0] + written[0], h[1] + written[1]
    y = 2 * (linear(h_re, w["C_re"]) - linear(h_im, w["C_im"])) + linear(x, w["D"])
    g = y * (1 + np.tanh(np.sqrt(2 / np.pi) * (y + 0.044715 * y * y * y))) / 2
    gate = sigmoid(linear(g, w["W_2"], w["b_2"])) if "W_2" in w else 1
    out = {
        "half_glu1": g * gate,
        "half_glu2": y * gate,
        "full_glu": linear(g, w["W_1"], w["b_1"]) * gate if "W_1" in w else g,
        "gelu": g,
        "linear": y,
    }[activation]
    return out, {"h_re": h_re, "h_im": h_im}, rows(np.exp(decay * step), x)


def linear_transformer(
    w: Named, x: Array, state: Named, num_heads: int = 1
) -> tuple[Array, Named, None]:
    """Katharopoulos et al. 2020, head by head, in the block of POPGym."""
    n = layer_norm(x) * rows(w["g_n"], x) + rows(w["o_n"], x)
    keys, width = w["W_q"].shape[-2] // num_heads, w["W_v"].shape[-2] // num_heads
    q, k = (elu(linear(n, w[name])) + 1 for name in ("W_q", "W_k"))
    v, before = linear(n, w["W_v"]), state["h"]
    sums, counts, attended = [], [], []
    for head in range(num_heads):
        of_keys, of_values = (slice(head * m, (head + 1) * m) for m in (keys, width))
        s = before[..., head * keys * width : (head + 1) * keys * width]
        s = s.reshape(*s.shape[:-1], keys, width)
        s = s + k[..., of_keys, None] * v[..., None, of_values]
        z = before[..., num_heads * keys * width :][..., of_keys] + k[..., of_keys]
        above = np.einsum("...k,...kv->...v", q[..., of_keys], s)
        attended.append(above / ((q[..., of_keys] * z).sum(axis=-1, keepdims=True) + 1e-5))
        sums.append(s.reshape(*s.shape[:-2], -1))
        counts.append(z)
    a = together(attended)
    if "W_1" in w:
        a = relu(linear(relu(linear(a, w["W_1"], w["b_1"])), w["W_2"], w["b_2"]))
    y = a + linear(n, w["W_s"], w["b_s"])
    return y, {"h": together([*sums, *counts])}, None


def shm(w: Named, x: Array, state: Named) -> tuple[Array, Named, None]:
    """Le et al. 2025, in evaluation: theta is the mean of the rows."""
    n = layer_norm(x) * rows(w["g_n"], x) + rows(w["o_n"], x)
    k, q = (relu(linear(n, w[name])) for name in ("W_k", "W_q"))
    k, q = (part / (1e-5 + part.sum(axis=-1, keepdims=True)) for part in (k, q))
    theta = rows(w["theta"].mean(axis=-2), x)
    c = 1 + np.tanh(theta[..., :, None] * linear(n, w["W_c"])[..., None, :])
    v = sigmoid(linear(n, w["W_eta"])) * linear(n, w["W_v"])
    m = state["h"].reshape(*state["h"].shape[:-1], *c.shape[-2:])
    m = c * m + v[..., :, None] * k[..., None, :]
    y = np.einsum("...ij,...j->...i", m, q) + linear(n, w["W_s"], w["b_s"])
    return linear(y, w["W_o"], w["b_o"]), {"h": m.reshape(*m.shape[:-2], -1)}, None


def together(parts: list[Array]) -> Array:
    """The parts side by side; leading axes may be missing in some."""
    lead = np.broadcast_shapes(*(part.shape[:-1] for part in parts))
    return np.concatenate([np.broadcast_to(p, (*lead, p.shape[-1])) for p in parts], axis=-1)


def mamba(w: Named, x: Array, state: Named) -> tuple[Array, Named, Array]:
    """Gu and Dao 2023, with the inputs of the convolution at earlier steps in the state."""
    u, window = convolved(w, linear(x, w["W_u"]), state["x"])
    t = softplus(linear(linear(u, w["W_r"]), w["W_t"], w["b_t"]))
    decay = np.exp(-t[..., None] * np.exp(every(w["a_log"])))
    h = state["h"].reshape(*state["h"].shape[:-1], *decay.shape[-2:])
    h = decay * h + (t * u)[..., None] * linear(u, w["W_B"])[..., None, :]
    y = np.einsum("...en,...n->...e", h, linear(u, w["W_C"])) + rows(w["D"], x) * u
    y = linear(y * silu(linear(x, w["W_z"])), w["W_o"])
    new = {"x": window, "h": h.reshape(*h.shape[:-2], -1)}
    return y, new, decay.reshape(*decay.shape[:-2], -1)


def mamba2(w: Named, x: Array, state: Named) -> tuple[Array, Named, Array]:
    """Dao and Gu 2024, with the inputs of the convolution at earlier steps in the state."""
    together_ = together([linear(x, w[name]) for name in ("W_u", "W_B", "W_C")])
    both, window = convolved(w, together_, state["x"])
    inner, n = w["W_u"].shape[-2], w["W_B"].shape[-2]
    u, b, c = both[..., :inner], both[..., inner : inner + n], both[..., inner + n :]
    t = softplus(linear(x, w["W_t"], w["b_t"]))
    decay = np.exp(-t * np.exp(rows(w["a_log"], x)))

    def of_units(heads: Array) -> Array:
        return np.repeat(heads, inner // heads.shape[-1], axis=-1)

    h = state["h"].reshape(*state["h"].shape[:-1], inner, n)
    h = of_units(decay)[..., None] * h + (of_units(t) * u)[..., None] * b[..., None, :]
    y = np.einsum("...en,...n->...e", h, c) + of_units(rows(w["D"], x)) * u
    y = y * silu(linear(x, w["W_z"]))
    y = y / np.sqrt((y * y).mean(axis=-1, keepdims=True) + 1e-5) * rows(w["g"], x)
    return linear(y, w["W_o"]), {"x": window, "h": h.reshape(*h.shape[:-2], -1)}, decay


def convolved(w: Named, u: Array, window: Array) -> tuple[Array, Array]:
    """silu of the causal convolution (..., B, C), and the window (..., B, K - 1, C) after it."""
    lead = np.broadcast_shapes(u.shape[:-2], window.shape[:-3])
    u = np.broadcast_to(u, (*lead, *u.shape[-2:]))
    window = np.broadcast_to(window, (*lead, *window.shape[-3:]))
    inputs = np.concatenate([window, u[..., None, :]], axis=-2)
    total = np.einsum("...bkc,...ck->...bc", inputs, w["K"]) + rows(w["b_K"], u)
    return silu(total), inputs[..., 1:, :]


def silu(z: Array) -> Array:
    return z * sigmoid(z)


def softplus(z: Array) -> Array:
    return np.log(1 + np.exp(z))


def elu(z: Array) -> Array:
    """z from 0 on, exp(z) - 1 below."""
    return np.where(z.real > 0, z, np.exp(np.where(z.real > 0, 0, z)) - 1)


def hold(eigenvalues: tuple[Array, Array], step: Array) -> tuple[Sequence[Array], Sequence[Array]]:
    """exp(A step) and (exp(A step) - 1) / A, each as a real and an imaginary part."""
    re, im = eigenvalues
    a = np.exp(re * step) * np.cos(im * step), np.exp(re * step) * np.sin(im * step)
    square = re * re + im * im
    return a, times((a[0] - 1, a[1]), (re / square, -im / square))


def times(one: Sequence[Array], other: Sequence[Array]) -> tuple[Array, Array]:
    """The product of two complex numbers, each a real and an imaginary part."""
    (a, b), (c, d) = one, other
    return a * c - b * d, a * d + b * c


def every(matrix: Array) -> Array:
    """A matrix (..., d, n) for every row of a batch."""
    return matrix[..., None, :, :]


def layer_norm(z: Array) -> Array:
    """Without weights."""
    z = z - z.mean(axis=-1, keepdims=True)
    return z / np.sqrt((z * z).mean(axis=-1, keepdims=True) + 1e-5)
