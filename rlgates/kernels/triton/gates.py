"""The two axes of `rlgates.gates` as Triton functions, forward and backward.

A tile is (rows, units); for a cumax it has all units of a row. `active` masks the units that have a
pre-activation of their own: inside the layer, and for master gates the first unit of each chunk.
NaN stays NaN: values are clamped with `tl.where`, since on a device the minimum of a number and NaN
is the number.
"""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def clamp(x, bound: tl.constexpr):
    x = tl.where(x > bound, bound, x)
    return tl.where(x < -bound, -bound, x)


@triton.jit
def sigmoid(z):
    return 1.0 / (1.0 + tl.exp(-z))


@triton.jit
def tanh(x):
    """x P(x^2) / Q(x^2), accurate to a few ulp near 0 too, and never above 1."""
    x = clamp(x, 8.88)
    y = x * x
    p = 2.060902383e-5 + y * 1.335457569e-8
    q = 3.285629136e-4 + y * 7.776524217e-7
    p = 3.495584710e-3 + y * p
    q = 2.587696933e-2 + y * q
    p = 1.338102280e-1 + y * p
    q = 4.671433840e-1 + y * q
    return clamp(x * (1.0 + y * p) / (1.0 + y * q), 1.0)


@triton.jit
def hyperbolic(z):
    """sinh and cosh, clamped as in `rlgates.gates`."""
    up = tl.exp(clamp(z, 8.0))
    down = 1.0 / up
    return 0.5 * (up - down), 0.5 * (up + down)


@triton.jit
def through_clamp(z, d):
    """The gradient through that clamp: 0 beyond it and for NaN, whatever d is."""
    return tl.where(tl.abs(z) <= 8.0, d, 0.0)


@triton.jit
def masked_softmax(z, active):
    """The softmax along a row over the active units; 0 elsewhere."""
    z = tl.where(active, z, float("-inf"))
    exponentials = tl.exp(z - tl.max(z, axis=1)[:, None])
    return exponentials / tl.sum(exponentials, axis=1)[:, None]


@triton.jit
def activate(z, active, ACTIVATION: tl.constexpr):
    """The raw gate from its pre-activation."""
    if ACTIVATION == "cumax":
        value = tl.cumsum(masked_softmax(z, active), axis=1)
        value = tl.where(value > 1.0, 1.0, value)
    elif ACTIVATION == "softsign":
        y = 0.5 * z
        value = 0.5 + 0.5 * (y / (1.0 + tl.abs(y)))
    elif ACTIVATION == "iterated_fast":
        inner, _ = hyperbolic(z)
        outer, _ = hyperbolic(inner)
        value = sigmoid(outer)
    elif ACTIVATION == "fast":
        inner, _ = hyperbolic(z)
        value = sigmoid(inner)
    else:
        tl.static_assert(ACTIVATION == "sigmoid", "an activation without code")
        value = sigmoid(z)
    return value


@triton.jit
def activate_backward(d, z, active, ACTIVATION: tl.constexpr):
    """The gradient of the pre-activation z from that of the raw gate; 0 outside the layer."""
    if ACTIVATION == "cumax":
        share = masked_softmax(z, active)
        d_share = tl.cumsum(d, axis=1, reverse=True)
        d_z = share * (d_share - tl.sum(share * d_share, axis=1)[:, None])
    elif ACTIVATION == "softsign":
        rest = 1.0 / (1.0 + tl.abs(0.5 * z))
        d_z = d * 0.25 * rest * rest
        d_z = tl.where(tl.abs(z) < float("inf"), d_z, float("nan"))  # infinity over infinity
    elif ACTIVATION == "iterated_fast":
        inner, inner_slope = hyperbolic(z)
        outer, outer_slope = hyperbolic(inner)
        value = sigmoid(outer)
        d_z = d * (value * (1.0 - value) * outer_slope * inner_slope)
        d_z = through_clamp(z, through_clamp(inner, d_z))
    elif ACTIVATION == "fast":
        inner, slope = hyperbolic(z)
        value = sigmoid(inner)
        d_z = through_clamp(z, d * (value * (1.0 - value) * slope))
    else:
        tl.static_assert(ACTIVATION == "sigmoid", "an activation without code")
        value = sigmoid(z)
        d_z = d * (value * (1.0 - value))
    return d_z


@triton.jit
def activate_input(z, active, ACTIVATION: tl.constexpr):
    """The raw input gate: 1 - cumax beside a cumax, a sigmoid beside any other."""
    if ACTIVATION == "cumax":
        value = 1.0 - activate(z, active, "cumax")
    else:
        value = sigmoid(z)
    return value


@triton.jit
def activate_input_backward(d, z, active, ACTIVATION: tl.constexpr):
    if ACTIVATION == "cumax":
        d_z = activate_backward(-d, z, active, "cumax")
    else:
        d_z = activate_backward(d, z, active, "sigmoid")
    return d_z


@triton.jit
def effective(
    z_f, z_x, z_mi, z_mf, active, ACTIVATION: tl.constexpr, AUXILIARY: tl.constexpr
):  # fmt: skip
    """Forget and input gate from the maps f, i or r, mi and mf; maps a gate lacks are not read."""
    if AUXILIARY == "master":
        forget_master = activate(z_mf, active, ACTIVATION)
        input_master = activate_input(z_mi, active, ACTIVATION)
        overlap = forget_master * input_master
        f = sigmoid(z_f) * overlap + (forget_master - overlap)
        i = sigmoid(z_x) * overlap + (input_master - overlap)
    else:
        f = activate(z_f, active, ACTIVATION)
        if AUXILIARY == "untied":
            i = activate_input(z_x, active, ACTIVATION)
        else:
            if AUXILIARY == "refine":
                f = f * (f + 2.0 * sigmoid(z_x) * (1.0 - f))
            i = 1.0 - f
    return f, i


@triton.jit
def effective_backward(
    d_f, d_i, z_f, z_x, z_mi, z_mf, active, ACTIVATION: tl.constexpr, AUXILIARY: tl.constexpr
):  # fmt: skip
    """The gradients of the four maps from those of the gates; undefined for maps a gate lacks."""
    d_x = d_f
    d_mi = d_f
    d_mf = d_f
    if AUXILIARY == "master":
        f = sigmoid(z_f)
        i = sigmoid(z_x)
        forget_master = activate(z_mf, active, ACTIVATION)
        input_master = activate_input(z_mi, active, ACTIVATION)
        overlap = forget_master * input_master
        d_overlap = d_f * (f - 1.0) + d_i * (i - 1.0)
        d_mf = activate_backward(d_f + d_overlap * input_master, z_mf, active, ACTIVATION)
        d_mi = d_i + d_overlap * forget_master
        d_mi = activate_input_backward(d_mi, z_mi, active, ACTIVATION)
        d_x = d_i * overlap * (i * (1.0 - i))
        d_f = d_f * overlap * (f * (1.0 - f))
    elif AUXILIARY == "untied":
        d_x = activate_input_backward(d_i, z_x, active, ACTIVATION)
        d_f = activate_backward(d_f, z_f, active, ACTIVATION)
    else:
        both = d_f - d_i
        if AUXILIARY == "refine":
            f = activate(z_f, active, ACTIVATION)
            r = sigmoid(z_x)
            d_x = 2.0 * both * f * (1.0 - f) * (r * (1.0 - r))
            both = 2.0 * both * (f + r - 2.0 * r * f)
        d_f = activate_backward(both, z_f, active, ACTIVATION)
    return d_f, d_x, d_mi, d_mf
