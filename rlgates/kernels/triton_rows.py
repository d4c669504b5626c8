"""What a step does beside its products, in Triton: gates and states of a tile of rows and units.

The same code runs every cell with every gate, forward and backward: as a kernel of its own after
a product of cuBLAS, or inside the kernels of `triton_kernels` that walk through time. Maps are
UNITS wide each and stand beside each other, MAPS of them, in the order of the weights.
"""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from rlgates.kernels.triton_gates import effective, effective_backward, sigmoid, tanh


@triton.jit
def carry_on(starts, t, row, inside, rows, STARTS: tl.constexpr):
    """Which of these rows are `inside` and go on with their old state at step t."""
    if STARTS:
        start = tl.load(starts + t * rows.to(tl.int64) + row, mask=inside, other=1)
        inside = inside & (start == 0)
    return inside


@triton.jit
def put(pointer, value, mask):
    tl.store(pointer, value.to(pointer.dtype.element_ty), mask=mask)


@triton.jit
def pre_activation(projected, recurrent, bias, unit, at: tl.constexpr, mask, BIASED: tl.constexpr):
    """Of the map that begins at column `at`, from both products."""
    z = tl.load(projected + at, mask=mask, other=0.0).to(tl.float32)
    z += tl.load(recurrent + at, mask=mask, other=0.0)
    if BIASED:
        z += tl.load(bias + at + unit, mask=unit >= 0, other=0.0)[None, :]
    return z


@triton.jit
def forward_rows(
    t,
    row,
    unit,
    projected,
    recurrent,
    bias,
    cells,
    entering,
    outputs,
    gates,
    aside,
    starts,
    rows,
    steps,
    beta,
    UNITS: tl.constexpr,
    CELL: tl.constexpr,
    ACTIVATION: tl.constexpr,
    AUXILIARY: tl.constexpr,
    CHUNK: tl.constexpr,
    STARTS: tl.constexpr,
    KEEP: tl.constexpr,
    RESETS: tl.constexpr,
):
    """Step t; the arguments are explained at `triton_kernels.forward`."""
    AFTER: tl.constexpr = CELL == "gru_after"
    EXTRA: tl.constexpr = 4 if AUXILIARY == "master" else 1 if AUXILIARY == "tied" else 2
    X: tl.constexpr = UNITS if AFTER or CELL == "gru_before" else 0  # where the gate's maps begin
    F: tl.constexpr = X if AUXILIARY == "tied" else X + UNITS
    U: tl.constexpr = X + EXTRA * UNITS
    MAPS: tl.constexpr = U // UNITS + (2 if CELL == "lstm" else 1)
    size = rows.to(tl.int64) * UNITS
    row_in = row < rows
    inside = row_in[:, None] & (unit < UNITS)[None, :]
    mass = inside & (unit % CHUNK == 0)[None, :]
    going_on = inside & carry_on(starts, t, row, row_in, rows, STARTS)[:, None]
    wide = row.to(tl.int64)[:, None]
    place = wide * UNITS + unit[None, :]
    slot = wide * (MAPS * UNITS) + unit[None, :]
    projected += t * size * MAPS + slot
    recurrent += slot
    inner = tl.where(unit < UNITS, unit, -1)  # where a bias may be read
    cell = cells + place
    if KEEP:
        cell += t * size
    # Where an episode starts the old state is not read: it may be NaN.
    before = tl.load(cell, mask=going_on, other=0.0)
    if RESETS:
        reset = sigmoid(pre_activation(projected, recurrent, bias, inner, 0, inside, False))
        put(aside + place, reset * before, inside)
    else:
        z_f = pre_activation(projected, recurrent, bias, inner, F, inside, AFTER)
        z_x = z_f
        z_mi = z_f
        z_mf = z_f
        if AUXILIARY != "tied":
            z_x = pre_activation(projected, recurrent, bias, inner, X, inside, AFTER)
        if AUXILIARY == "master":
            z_mi = pre_activation(projected, recurrent, bias, inner, F + UNITS, inside, AFTER)
            z_mf = pre_activation(projected, recurrent, bias, inner, F + 2 * UNITS, inside, AFTER)
        f, i = effective(z_f, z_x, z_mi, z_mf, mass, ACTIVATION, AUXILIARY)
        if CELL == "janet":
            _, i = effective(z_f - beta, z_x, z_mi, z_mf, mass, ACTIVATION, AUXILIARY)
        if AFTER:
            z_r = pre_activation(projected, recurrent, bias, inner, 0, inside, True)
            u_h = tl.load(recurrent + U, mask=inside, other=0.0)
            u_h += tl.load(bias + U + inner, mask=inner >= 0, other=0.0)[None, :]
            z_u = tl.load(projected + U, mask=inside, other=0.0).to(tl.float32)
            z_u += sigmoid(z_r) * u_h
        else:
            z_u = pre_activation(projected, recurrent, bias, inner, U, inside, False)
        after = f * before + i * tanh(z_u)
        output = after
        if CELL == "lstm":
            z_o = pre_activation(projected, recurrent, bias, inner, U + UNITS, inside, False)
            output = sigmoid(z_o) * tanh(after)
        tl.store(outputs + t * size + place, output, mask=inside)
        # What the next step's product reads: 0 where an episode starts.
        following = row_in & (row < tl.where(t == steps - 1, 0, rows))
        following = carry_on(starts, t + 1, row, following, rows, STARTS)
        later = entering + place
        if KEEP:
            later += (t + 1) * size
        shown = tl.where(following[:, None], output, 0.0)
        put(later, shown, inside & (row < tl.where(t == steps - 1, 0, rows))[:, None])
        if KEEP:
            tl.store(cell + size, after, mask=inside)
            gates += t * size * MAPS + slot
            tl.store(gates + F, z_f, mask=inside)
            tl.store(gates + U, z_u, mask=inside)
            if AUXILIARY != "tied":
                tl.store(gates + X, z_x, mask=inside)
            if AUXILIARY == "master":
                tl.store(gates + F + UNITS, z_mi, mask=inside)
                tl.store(gates + F + 2 * UNITS, z_mf, mask=inside)
            if CELL == "lstm":
                tl.store(gates + U + UNITS, z_o, mask=inside)
            elif CELL == "gru_before":
                z_r = pre_activation(projected, recurrent, bias, inner, 0, inside, False)
            if CELL == "gru_before" or AFTER:
                tl.store(gates, z_r, mask=inside)
            if AFTER:
                tl.store(aside + t * size + place, u_h, mask=inside)
        else:
            tl.debug_barrier()  # others may have read here
            tl.store(cell, after, mask=inside)


@triton.jit
def backward_rows(
    t,
    row,
    unit,
    gates,
    cells,
    aside,
    d_outputs,
    d_product,
    d_state,
    d_gates,
    d_recurrent,
    d_aside,
    starts,
    rows,
    steps,
    beta,
    UNITS: tl.constexpr,
    CELL: tl.constexpr,
    ACTIVATION: tl.constexpr,
    AUXILIARY: tl.constexpr,
    CHUNK: tl.constexpr,
    STARTS: tl.constexpr,
    RESETS: tl.constexpr,
):
    """The way back through step t; the arguments are explained at `triton_kernels.backward`."""
    AFTER: tl.constexpr = CELL == "gru_after"
    EXTRA: tl.constexpr = 4 if AUXILIARY == "master" else 1 if AUXILIARY == "tied" else 2
    X: tl.constexpr = UNITS if AFTER or CELL == "gru_before" else 0
    F: tl.constexpr = X if AUXILIARY == "tied" else X + UNITS
    U: tl.constexpr = X + EXTRA * UNITS
    MAPS: tl.constexpr = U // UNITS + (2 if CELL == "lstm" else 1)
    size = rows.to(tl.int64) * UNITS
    row_in = row < rows
    inside = row_in[:, None] & (unit < UNITS)[None, :]
    mass = inside & (unit % CHUNK == 0)[None, :]
    going_on = inside & carry_on(starts, t, row, row_in, rows, STARTS)[:, None]
    wide = row.to(tl.int64)[:, None]
    place = wide * UNITS + unit[None, :]
    slot = t * size * MAPS + wide * (MAPS * UNITS) + unit[None, :]
    gates += slot
    d_gates += slot
    before = tl.load(cells + t * size + place, mask=going_on, other=0.0)
    if RESETS:
        reset = sigmoid(tl.load(gates, mask=inside, other=0.0))
        d_before = tl.load(d_aside + place, mask=inside, other=0.0)
        put(d_gates, d_before * before * (reset * (1.0 - reset)), inside)
        d_before = tl.where(going_on, d_before * reset, 0.0)
        d_before += tl.load(d_state + place, mask=inside, other=0.0)
        tl.debug_barrier()  # others may have read here
        tl.store(d_state + place, d_before, mask=inside)
    else:
        # The gradient of the final state has come from no product, and no start cuts it off.
        final = t == steps - 1
        lasting = carry_on(starts, t + 1, row, row < tl.where(final, 0, rows), rows, STARTS)
        lasting = lasting | (row < tl.where(final, rows, 0))
        d_output = tl.load(d_product + place, mask=inside & lasting[:, None], other=0.0)
        d_output += tl.load(d_outputs + t * size + place, mask=inside, other=0.0)
        d_after = tl.load(d_state + place, mask=inside, other=0.0)
        z_f = tl.load(gates + F, mask=inside, other=0.0)
        z_x = z_f
        z_mi = z_f
        z_mf = z_f
        if AUXILIARY != "tied":
            z_x = tl.load(gates + X, mask=inside, other=0.0)
        if AUXILIARY == "master":
            z_mi = tl.load(gates + F + UNITS, mask=inside, other=0.0)
            z_mf = tl.load(gates + F + 2 * UNITS, mask=inside, other=0.0)
        if CELL == "lstm":
            squashed = tanh(tl.load(cells + (t + 1) * size + place, mask=inside, other=0.0))
            o = sigmoid(tl.load(gates + U + UNITS, mask=inside, other=0.0))
            put(d_gates + U + UNITS, d_output * squashed * (o * (1.0 - o)), inside)
            d_after += d_output * o * (1.0 - squashed * squashed)
        else:
            d_after += d_output
        u = tanh(tl.load(gates + U, mask=inside, other=0.0))
        f, i = effective(z_f, z_x, z_mi, z_mf, mass, ACTIVATION, AUXILIARY)
        d_f = d_after * before
        d_i = d_after * u
        if CELL == "janet":
            low = z_f - beta
            _, i = effective(low, z_x, z_mi, z_mf, mass, ACTIVATION, AUXILIARY)
            zero = tl.zeros_like(d_i)
            d_low, d_low_x, _, _ = effective_backward(
                zero, d_i, low, z_x, z_mi, z_mf, mass, ACTIVATION, AUXILIARY
            )  # fmt: skip
            d_i = zero
        d_f, d_x, d_mi, d_mf = effective_backward(
            d_f, d_i, z_f, z_x, z_mi, z_mf, mass, ACTIVATION, AUXILIARY
        )  # fmt: skip
        if CELL == "janet":
            d_f += d_low
            d_x += d_low_x
        d_u = d_after * i * (1.0 - u * u)
        put(d_gates + F, d_f, inside)
        put(d_gates + U, d_u, inside)
        if AUXILIARY != "tied":
            put(d_gates + X, d_x, inside)
        if AUXILIARY == "master":
            put(d_gates + F + UNITS, d_mi, inside)
            put(d_gates + F + 2 * UNITS, d_mf, inside)
        if AFTER:
            reset = sigmoid(tl.load(gates, mask=inside, other=0.0))
            u_h = tl.load(aside + t * size + place, mask=inside, other=0.0)
            d_r = d_u * u_h * (reset * (1.0 - reset))
            put(d_gates, d_r, inside)
            d_recurrent += slot
            put(d_recurrent, d_r, inside)
            put(d_recurrent + F, d_f, inside)
            put(d_recurrent + U, d_u * reset, inside)
            if AUXILIARY != "tied":
                put(d_recurrent + X, d_x, inside)
            if AUXILIARY == "master":
                put(d_recurrent + F + UNITS, d_mi, inside)
                put(d_recurrent + F + 2 * UNITS, d_mf, inside)
        tl.debug_barrier()  # others may have read here
        tl.store(d_state + place, tl.where(going_on, d_after * f, 0.0), mask=inside)
