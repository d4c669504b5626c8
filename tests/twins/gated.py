"""One step of the LSTM, GRU, JANET and Mogrifier LSTM with every gate in NumPy."""

from __future__ import annotations

import numpy as np

from twins.gates import Array, pair, sigmoid
from twins.sequence import Named, affine, linear, maps


def lstm(
    w: Named, x: Array, state: Named, gate: str, chunk_size: int = 1
) -> tuple[Array, Named, Array]:
    """Hochreiter and Schmidhuber 1997, Gers et al. 2000, with any gate."""
    h, c = state["h"], state["c"]
    z = {k: affine(w, k, x, h) for k in maps(w)}
    f, i = pair(gate, z, chunk_size)
    c = f * c + i * np.tanh(z["u"])
    h = sigmoid(z["o"]) * np.tanh(c)
    return h, {"h": h, "c": c}, f


def gru(
    w: Named, x: Array, state: Named, gate: str, chunk_size: int = 1, reset: str = "after"
) -> tuple[Array, Named, Array]:
    """Cho et al. 2014, in either order of reset gate and recurrent weights, with any gate."""
    h = state["h"]
    rho = sigmoid(affine(w, "reset", x, h))
    z = {k: affine(w, k, x, h) for k in maps(w, but=("reset", "u"))}
    f, i = pair(gate, z, chunk_size)
    if reset == "after":
        recurrent = rho * linear(h, w["W_h_u"], w["b_h_u"])
    else:
        recurrent = linear(rho * h, w["W_h_u"], w["b_h_u"])
    u = np.tanh(linear(x, w["W_x_u"], w["b_u"]) + recurrent)
    h = f * h + i * u
    return h, {"h": h}, f


def janet(
    w: Named, x: Array, state: Named, gate: str, beta: float = 1.0
) -> tuple[Array, Named, Array]:
    """Van der Westhuizen and Lasenby 2018: what is not forgotten, shifted by beta, is written."""
    c = state["h"]
    z = {k: affine(w, k, x, c) for k in maps(w, but=("u",))}
    f, _ = pair(gate, z)
    _, i = pair(gate, {**z, "f": z["f"] - beta})
    c = f * c + i * np.tanh(affine(w, "u", x, c))
    return c, {"h": c}, f


def dilated_gru(
    w: Named,
    x: Array,
    state: Named,
    gate: str,
    levels: int = 4,
    dilation: int = 2,
    chunk_size: int = 1,
) -> tuple[Array, Named, Array]:
    """Chang et al. 2017, eq. 1, with GRU cells: level n skips dilation ** (n - 1) steps."""
    after, gates = {}, []
    for n in range(1, levels + 1):
        here = {k.removesuffix(f"_{n}"): a for k, a in w.items() if k.endswith(f"_{n}")}
        before = state[f"h{n}"]
        assert before.shape[-2] == dilation ** (n - 1)
        x, _, f = gru(here, x, {"h": before[..., 0, :]}, gate, chunk_size)
        last = x[..., None, :]
        rest = before[..., 1:, :]
        rest = np.broadcast_to(rest, (*last.shape[:-2], *rest.shape[-2:]))
        after[f"h{n}"] = np.concatenate([rest, last], -2)
        gates.append(f)
    return x, after, np.concatenate(np.broadcast_arrays(*gates), -1)


def lem(w: Named, x: Array, state: Named, dt: float = 1.0) -> tuple[Array, Named, Array]:
    """Rusch et al. 2022, eq. 3."""
    y, z = state["y"], state["z"]
    of_x = {k: linear(x, w[f"V_{k}"], w[f"b_{k}"]) for k in "12zy"}
    of_y = {k: linear(y, w[f"W_{k}"]) for k in "12z"}
    dt_z, dt_y = (dt * sigmoid(of_x[k] + of_y[k]) for k in "12")
    z = (1 - dt_z) * z + dt_z * np.tanh(of_x["z"] + of_y["z"])
    y = (1 - dt_y) * y + dt_y * np.tanh(of_x["y"] + linear(z, w["W_y"]))
    return y, {"y": y, "z": z}, np.where((1 - dt_z).real < 0, 0, 1 - dt_z)


def mogrifier(
    w: Named,
    x: Array,
    state: Named,
    gate: str,
    chunk_size: int = 1,
    rounds: int = 5,
    cap_input: bool = True,
) -> tuple[Array, Named, Array]:
    """Melis et al. 2020: input and h scale each other in turn, then enter an LSTM."""
    h, c = state["h"], state["c"]
    for n in range(1, rounds + 1):
        if n % 2:
            x = 2 * sigmoid(mixed(w, n, h)) * x
        else:
            h = 2 * sigmoid(mixed(w, n, x)) * h
    z = {k: affine(w, k, x, h) for k in maps(w, but=("u", "o"))}
    f, i = pair(gate, z, chunk_size)
    if cap_input:
        i = np.where(i.real > 1 - f.real, 1 - f, i)
    c = f * c + i * np.tanh(affine(w, "u", x, h))
    h = sigmoid(affine(w, "o", x, h)) * np.tanh(c)
    return h, {"h": h, "c": c}, f


def mixed(w: Named, n: int, by: Array) -> Array:
    """The affine map of one round, of full or of low rank."""
    if f"Q_{n}" in w:
        return linear(by, w[f"Q_{n}"], w[f"q_{n}"])
    return linear(linear(by, w[f"Q_{n}_right"]), w[f"Q_{n}_left"], w[f"q_{n}"])
