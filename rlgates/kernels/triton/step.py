"""One step without its products, in Triton: gates and states of a tile of batch rows and units.

The same code runs every cell with every gate, forward and backward: as a kernel of its own after
the products of the step, which cuBLAS computes, or inside a persistent kernel, which runs all steps
(`rlgates.kernels.triton.persistent`). In the first case a program has one tile of batch rows and
units (all units if the gate is a cumax). There are MAPS maps of UNITS columns each, in the order of
the weights.
"""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from rlgates.kernels.triton.gates import effective, effective_backward, sigmoid, tanh


@triton.jit
def continues_episode(episode_starts, t, row, inside, batch_size, HAS_STARTS: tl.constexpr):
    """Which of the rows `inside` the batch continue an episode at step t."""
    if HAS_STARTS:
        start = tl.load(episode_starts + t * batch_size.to(tl.int64) + row, mask=inside, other=1)
        inside = inside & (start == 0)
    return inside


@triton.jit
def starts_episode(episode_starts, t, row, inside, batch_size):
    """Which of the rows `inside` the batch start an episode at step t."""
    start = tl.load(episode_starts + t * batch_size.to(tl.int64) + row, mask=inside, other=0)
    return inside & (start != 0)


@triton.jit
def add_to(pointer, value, mask):
    tl.store(pointer, tl.load(pointer, mask=mask, other=0.0) + value, mask=mask)


@triton.jit
def store_as(pointer, value, mask):
    tl.store(pointer, value.to(pointer.dtype.element_ty), mask=mask)


@triton.jit
def store_gate(
    pointer, f, x, mi, mf, mask,
    F: tl.constexpr, X: tl.constexpr, UNITS: tl.constexpr, AUXILIARY: tl.constexpr,
):  # fmt: skip
    """Store the maps of a gate that it has: f, i or r, mi and mf."""
    store_as(pointer + F, f, mask)
    if AUXILIARY != "tied":
        store_as(pointer + X, x, mask)
    if AUXILIARY == "master":
        store_as(pointer + F + UNITS, mi, mask)
        store_as(pointer + F + 2 * UNITS, mf, mask)


@triton.jit
def pre_activation(projected, recurrent, bias, unit, at: tl.constexpr, mask, BIASED: tl.constexpr):
    """The pre-activation of the map that begins at column `at`: the sum of both products."""
    z = tl.load(projected + at, mask=mask, other=0.0).to(tl.float32)
    z += tl.load(recurrent + at, mask=mask, other=0.0)
    if BIASED:
        z += tl.load(bias + at + unit, mask=unit >= 0, other=0.0)[None, :]
    return z


@triton.jit(do_not_specialize=["batch_size", "steps", "t"])
def forward(
    projected,
    recurrent,
    bias,
    cells,
    h_prev,
    outputs,
    gates,
    extra,
    episode_starts,
    initial_h,
    initial_cell,
    batch_size,
    steps,
    beta,
    t,
    UNITS: tl.constexpr,
    CELL: tl.constexpr,
    ACTIVATION: tl.constexpr,
    AUXILIARY: tl.constexpr,
    CHUNK: tl.constexpr,
    HAS_STARTS: tl.constexpr,
    HAS_INITIAL: tl.constexpr,
    SAVE: tl.constexpr,
    RESET_ONLY: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_UNITS: tl.constexpr,
    first_row=None,
):
    """Step t after its products; for "gru_before" two launches, the first with RESET_ONLY.

    projected  (T, B, MAPS * UNITS), the products with x, float32 or half precision
    recurrent  (B, MAPS * UNITS), the products with h
    bias       (MAPS * UNITS), added to the products with h; for "gru_after" only
    cells      (T + 1, B, UNITS): c of an LSTM, else h, starting with the first state;
               (1, B, UNITS) unless SAVE
    h_prev     (T, B, UNITS): h as the products read it, at an episode start 0 or the initial
               one; (1, B, UNITS) unless SAVE
    outputs    (T, B, UNITS)
    gates      (T, B, MAPS * UNITS): all pre-activations, if SAVE
    extra      "gru_after": (T, B, UNITS), the recurrent part of the candidate, if SAVE;
               "gru_before": (B, UNITS), the reset state, for the second product
    episode_starts  (T, B), not 0 where an episode starts
    initial_h, initial_cell  (B, UNITS), h and what is in `cells` there, if HAS_INITIAL; else 0
    first_row  of the tile, in a persistent kernel; else each program has its own tile
    """
    if first_row is None:
        row = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
        unit = tl.program_id(1) * BLOCK_UNITS + tl.arange(0, BLOCK_UNITS)
    else:
        row = first_row + tl.arange(0, BLOCK_ROWS)
        unit = tl.arange(0, BLOCK_UNITS)
    AFTER: tl.constexpr = CELL == "gru_after"
    GATE_MAPS: tl.constexpr = 4 if AUXILIARY == "master" else 1 if AUXILIARY == "tied" else 2
    X: tl.constexpr = UNITS if AFTER or CELL == "gru_before" else 0  # first map of the gate
    F: tl.constexpr = X if AUXILIARY == "tied" else X + UNITS
    U: tl.constexpr = X + GATE_MAPS * UNITS
    MAPS: tl.constexpr = U // UNITS + (2 if CELL == "lstm" else 1)
    size = batch_size.to(tl.int64) * UNITS
    row_in = row < batch_size
    inside = row_in[:, None] & (unit < UNITS)[None, :]
    active = inside & (unit % CHUNK == 0)[None, :]
    continues = (
        inside & continues_episode(episode_starts, t, row, row_in, batch_size, HAS_STARTS)[:, None]
    )
    wide = row.to(tl.int64)[:, None]
    place = wide * UNITS + unit[None, :]
    slot = wide * (MAPS * UNITS) + unit[None, :]
    projected += t * size * MAPS + slot
    recurrent += slot
    inner = tl.where(unit < UNITS, unit, -1)  # -1 where no bias may be read
    cell = cells + place
    if SAVE:
        cell += t * size
    # At an episode start the old state is not read: it may be NaN.
    before = tl.load(cell, mask=continues, other=0.0)
    if HAS_INITIAL:
        starts = starts_episode(episode_starts, t, row, row_in, batch_size)
        before += tl.load(initial_cell + place, mask=inside & starts[:, None], other=0.0)
    if RESET_ONLY:
        reset = sigmoid(pre_activation(projected, recurrent, bias, inner, 0, inside, False))
        store_as(extra + place, reset * before, inside)
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
        f, i = effective(z_f, z_x, z_mi, z_mf, active, ACTIVATION, AUXILIARY)
        if CELL == "janet":
            _, i = effective(z_f - beta, z_x, z_mi, z_mf, active, ACTIVATION, AUXILIARY)
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
        # What the next step's product reads.
        goes_on = row < tl.where(t == steps - 1, 0, batch_size)
        following = continues_episode(episode_starts, t + 1, row, goes_on, batch_size, HAS_STARTS)
        later = h_prev + place
        if SAVE:
            later += (t + 1) * size
        h_next = tl.where(following[:, None], output, 0.0)
        if HAS_INITIAL:
            starts = starts_episode(episode_starts, t + 1, row, goes_on, batch_size)
            h_next += tl.load(initial_h + place, mask=inside & starts[:, None], other=0.0)
        store_as(later, h_next, inside & goes_on[:, None])
        if SAVE:
            tl.store(cell + size, after, mask=inside)
            gates += t * size * MAPS + slot
            tl.store(gates + U, z_u, mask=inside)
            store_gate(gates, z_f, z_x, z_mi, z_mf, inside, F, X, UNITS, AUXILIARY)
            if CELL == "lstm":
                tl.store(gates + U + UNITS, z_o, mask=inside)
            elif CELL == "gru_before":
                z_r = pre_activation(projected, recurrent, bias, inner, 0, inside, False)
            if CELL == "gru_before" or AFTER:
                tl.store(gates, z_r, mask=inside)
            if AFTER:
                tl.store(extra + t * size + place, u_h, mask=inside)
        else:
            tl.debug_barrier()  # other threads may still read here
            tl.store(cell, after, mask=inside)


@triton.jit(do_not_specialize=["batch_size", "steps", "t"])
def backward(
    gates,
    cells,
    extra,
    d_outputs,
    d_product,
    d_state,
    d_gates,
    d_recurrent,
    d_extra,
    episode_starts,
    initial_cell,
    d_initial_h,
    d_initial_cell,
    batch_size,
    steps,
    beta,
    t,
    UNITS: tl.constexpr,
    CELL: tl.constexpr,
    ACTIVATION: tl.constexpr,
    AUXILIARY: tl.constexpr,
    CHUNK: tl.constexpr,
    HAS_STARTS: tl.constexpr,
    HAS_INITIAL: tl.constexpr,
    RESET_ONLY: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_UNITS: tl.constexpr,
    first_row=None,
):
    """The backward pass of step t; for "gru_before" two launches, the second with RESET_ONLY.

    gates, cells, extra  as `forward` saved them; `extra` for "gru_after" only
    d_outputs    (T, B, UNITS)
    d_product    (B, UNITS): gradient of h through the product of step t + 1, or of the final h
    d_state      (B, UNITS): all other gradients of the state after step t; becomes those of the
                 state before it
    d_gates      (T, B, MAPS * UNITS): of the projected inputs
    d_recurrent  (T, B, MAPS * UNITS): of the products with h, which differ for "gru_after"
    d_extra      (B, UNITS): of the reset state of "gru_before"
    d_initial_h, d_initial_cell  (B, UNITS), sums over the steps, if HAS_INITIAL; they are the same
                 tensor where h is what is in `cells`
    """
    if first_row is None:
        row = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
        unit = tl.program_id(1) * BLOCK_UNITS + tl.arange(0, BLOCK_UNITS)
    else:
        row = first_row + tl.arange(0, BLOCK_ROWS)
        unit = tl.arange(0, BLOCK_UNITS)
    AFTER: tl.constexpr = CELL == "gru_after"
    GATE_MAPS: tl.constexpr = 4 if AUXILIARY == "master" else 1 if AUXILIARY == "tied" else 2
    X: tl.constexpr = UNITS if AFTER or CELL == "gru_before" else 0
    F: tl.constexpr = X if AUXILIARY == "tied" else X + UNITS
    U: tl.constexpr = X + GATE_MAPS * UNITS
    MAPS: tl.constexpr = U // UNITS + (2 if CELL == "lstm" else 1)
    size = batch_size.to(tl.int64) * UNITS
    row_in = row < batch_size
    inside = row_in[:, None] & (unit < UNITS)[None, :]
    active = inside & (unit % CHUNK == 0)[None, :]
    continues = (
        inside & continues_episode(episode_starts, t, row, row_in, batch_size, HAS_STARTS)[:, None]
    )
    wide = row.to(tl.int64)[:, None]
    place = wide * UNITS + unit[None, :]
    slot = t * size * MAPS + wide * (MAPS * UNITS) + unit[None, :]
    gates += slot
    d_gates += slot
    before = tl.load(cells + t * size + place, mask=continues, other=0.0)
    if HAS_INITIAL:
        begins = starts_episode(episode_starts, t, row, row_in, batch_size)[:, None] & inside
        before += tl.load(initial_cell + place, mask=begins, other=0.0)
    if RESET_ONLY:
        reset = sigmoid(tl.load(gates, mask=inside, other=0.0))
        d_before = tl.load(d_extra + place, mask=inside, other=0.0)
        store_as(d_gates, d_before * before * (reset * (1.0 - reset)), inside)
        if HAS_INITIAL:
            add_to(d_initial_cell + place, d_before * reset, begins)
        d_before = tl.where(continues, d_before * reset, 0.0)
        d_before += tl.load(d_state + place, mask=inside, other=0.0)
        tl.debug_barrier()  # other threads may still read here
        tl.store(d_state + place, d_before, mask=inside)
    else:
        # The gradient of the final state comes from no product, and no episode start cuts it off.
        final = t == steps - 1
        carried = continues_episode(
            episode_starts, t + 1, row, row < tl.where(final, 0, batch_size), batch_size, HAS_STARTS
        )
        carried = carried | (row < tl.where(final, batch_size, 0))
        if HAS_INITIAL:
            later = row < tl.where(final, 0, batch_size)
            later = starts_episode(episode_starts, t + 1, row, later, batch_size)[:, None] & inside
            d_started = tl.load(d_product + place, mask=later, other=0.0)
            add_to(d_initial_h + place, d_started, later)
        d_output = tl.load(d_product + place, mask=inside & carried[:, None], other=0.0)
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
            store_as(d_gates + U + UNITS, d_output * squashed * (o * (1.0 - o)), inside)
            d_after += d_output * o * (1.0 - squashed * squashed)
        else:
            d_after += d_output
        u = tanh(tl.load(gates + U, mask=inside, other=0.0))
        f, i = effective(z_f, z_x, z_mi, z_mf, active, ACTIVATION, AUXILIARY)
        d_f = d_after * before
        d_i = d_after * u
        if CELL == "janet":
            low = z_f - beta
            _, i = effective(low, z_x, z_mi, z_mf, active, ACTIVATION, AUXILIARY)
            zero = tl.zeros_like(d_i)
            d_low, d_low_x, _, _ = effective_backward(
                zero, d_i, low, z_x, z_mi, z_mf, active, ACTIVATION, AUXILIARY
            )  # fmt: skip
            d_i = zero
        d_f, d_x, d_mi, d_mf = effective_backward(
            d_f, d_i, z_f, z_x, z_mi, z_mf, active, ACTIVATION, AUXILIARY
        )  # fmt: skip
        if CELL == "janet":
            d_f += d_low
            d_x += d_low_x
        d_u = d_after * i * (1.0 - u * u)
        store_as(d_gates + U, d_u, inside)
        store_gate(d_gates, d_f, d_x, d_mi, d_mf, inside, F, X, UNITS, AUXILIARY)
        if AFTER:
            reset = sigmoid(tl.load(gates, mask=inside, other=0.0))
            u_h = tl.load(extra + t * size + place, mask=inside, other=0.0)
            d_r = d_u * u_h * (reset * (1.0 - reset))
            store_as(d_gates, d_r, inside)
            d_recurrent += slot
            store_as(d_recurrent, d_r, inside)
            store_as(d_recurrent + U, d_u * reset, inside)
            store_gate(d_recurrent, d_f, d_x, d_mi, d_mf, inside, F, X, UNITS, AUXILIARY)
        if HAS_INITIAL:
            add_to(d_initial_cell + place, d_after * f, begins)
        tl.debug_barrier()  # other threads may still read here
        tl.store(d_state + place, tl.where(continues, d_after * f, 0.0), mask=inside)
