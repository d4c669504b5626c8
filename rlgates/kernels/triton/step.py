"""One step without its products, in Triton: gates and states of a tile of batch rows and units.

The same code runs every cell with every gate. `advance` and `retreat` are the step itself, forward
and backward, for kernels that have its products in registers (`rlgates.kernels.triton.fused`).
`forward` and `backward` read them from memory: each is a kernel of its own after the products of
the step, which cuBLAS computes, or a part of a persistent kernel
(`rlgates.kernels.triton.persistent`). In the first case a program has one tile of batch rows and
units (all units if the gate is a cumax).

There are WIDTH columns of all maps in the order of the weights: the reset gate's if there is one,
then from X, F and U on those of i or r, of f (with mi and mf), and of the candidate u (with o).
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
def load_float(pointer, mask):
    return tl.load(pointer, mask=mask, other=0.0).to(tl.float32)


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
def pre_activation(
    projected, product, bias, unit, at: tl.constexpr, mask, UNITS: tl.constexpr,
    BIASED: tl.constexpr,
):  # fmt: skip
    """The pre-activation of the map that begins at column `at`: the sum of both products."""
    z = tl.load(projected + at, mask=mask, other=0.0).to(tl.float32) + product
    if BIASED:
        z += tl.load(bias + at + unit, mask=unit < UNITS, other=0.0)
    return z


@triton.jit
def state_before(
    cell, initial_cell, episode_starts, t, row, inside, batch_size,
    HAS_STARTS: tl.constexpr, HAS_INITIAL: tl.constexpr,
):  # fmt: skip
    """The state that step t reads, at `cell` or, where an episode starts, at `initial_cell`."""
    # At an episode start the old state is not read: it may be NaN.
    row_in = row < batch_size
    continues = continues_episode(episode_starts, t, row, row_in, batch_size, HAS_STARTS)
    before = tl.load(cell, mask=inside & continues, other=0.0)
    if HAS_INITIAL:
        starts = starts_episode(episode_starts, t, row, row_in, batch_size)
        before += tl.load(initial_cell, mask=inside & starts, other=0.0)
    return before


@triton.jit(do_not_specialize=["batch_size"])
def begin(
    h, cell, h_prev, cells, episode_starts, initial_h, batch_size, h_stride, cell_stride,
    UNITS: tl.constexpr, HAS_STARTS: tl.constexpr, HAS_INITIAL: tl.constexpr,
    BLOCK_ROWS: tl.constexpr, BLOCK_UNITS: tl.constexpr,
):  # fmt: skip
    """Write what the first step reads: the first of `cells` and of `h_prev`.

    h, cell  the state before it, (B, UNITS), with rows h_stride and cell_stride apart
    """
    row = (tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS))[:, None]
    unit = (tl.program_id(1) * BLOCK_UNITS + tl.arange(0, BLOCK_UNITS))[None, :]
    row_in = row < batch_size
    inside = row_in & (unit < UNITS)
    wide = row.to(tl.int64)
    place = wide * UNITS + unit
    tl.store(cells + place, tl.load(cell + wide * cell_stride + unit, mask=inside), mask=inside)
    before = state_before(
        h + wide * h_stride + unit, initial_h + place, episode_starts, 0, row, inside,
        batch_size, HAS_STARTS, HAS_INITIAL,
    )  # fmt: skip
    store_as(h_prev + place, before, inside)


@triton.jit
def advance(
    r, x, f, mi, mf, u, o, projected, bias, cells, h_prev, outputs, gates, extra, episode_starts,
    initial_h, initial_cell, batch_size, steps, beta, t, row, unit,
    UNITS: tl.constexpr, WIDTH: tl.constexpr, X: tl.constexpr, F: tl.constexpr, U: tl.constexpr,
    CELL: tl.constexpr, ACTIVATION: tl.constexpr, AUXILIARY: tl.constexpr, CHUNK: tl.constexpr,
    HAS_STARTS: tl.constexpr, HAS_INITIAL: tl.constexpr, SAVE: tl.constexpr,
):  # fmt: skip
    """The state and the output after step t, from its products with h.

    r, x, f, mi, mf, u, o  the products, (rows, units); those of maps a layer lacks are not read
    row, unit  (rows, 1) and (1, units), of the tile
    The other tensors are those of `forward`.
    """
    AFTER: tl.constexpr = CELL == "gru_after"
    size = batch_size.to(tl.int64) * UNITS
    wide = row.to(tl.int64)
    row_in = row < batch_size
    inside = row_in & (unit < UNITS)
    active = inside & (unit % CHUNK == 0)
    place = wide * UNITS + unit
    slot = wide * WIDTH + unit
    old = t if SAVE else t % 2
    new = t + 1 if SAVE else 1 - t % 2
    before = state_before(
        cells + old * size + place, initial_cell + place, episode_starts, t, row, inside,
        batch_size, HAS_STARTS, HAS_INITIAL,
    )  # fmt: skip
    projected += t * (batch_size.to(tl.int64) * WIDTH) + slot
    z_f = pre_activation(projected, f, bias, unit, F, inside, UNITS, AFTER)
    z_x = z_f
    z_mi = z_f
    z_mf = z_f
    if AUXILIARY != "tied":
        z_x = pre_activation(projected, x, bias, unit, X, inside, UNITS, AFTER)
    if AUXILIARY == "master":
        z_mi = pre_activation(projected, mi, bias, unit, F + UNITS, inside, UNITS, AFTER)
        z_mf = pre_activation(projected, mf, bias, unit, F + 2 * UNITS, inside, UNITS, AFTER)
    forget, i = effective(z_f, z_x, z_mi, z_mf, active, ACTIVATION, AUXILIARY)
    if CELL == "janet":
        _, i = effective(z_f - beta, z_x, z_mi, z_mf, active, ACTIVATION, AUXILIARY)
    if AFTER:
        z_r = pre_activation(projected, r, bias, unit, 0, inside, UNITS, True)
        u_h = u + tl.load(bias + U + unit, mask=unit < UNITS, other=0.0)
        z_u = pre_activation(projected, sigmoid(z_r) * u_h, bias, unit, U, inside, UNITS, False)
    else:
        z_u = pre_activation(projected, u, bias, unit, U, inside, UNITS, False)
    after = forget * before + i * tanh(z_u)
    output = after
    if CELL == "lstm":
        z_o = pre_activation(projected, o, bias, unit, U + UNITS, inside, UNITS, False)
        output = sigmoid(z_o) * tanh(after)
    tl.store(outputs + t * size + place, output, mask=inside)
    tl.store(cells + new * size + place, after, mask=inside)
    # What the next step's product reads.
    goes_on = row < tl.where(t == steps - 1, 0, batch_size)
    following = continues_episode(episode_starts, t + 1, row, goes_on, batch_size, HAS_STARTS)
    h_next = tl.where(following, output, 0.0)
    if HAS_INITIAL:
        starts = starts_episode(episode_starts, t + 1, row, goes_on, batch_size)
        h_next += tl.load(initial_h + place, mask=inside & starts, other=0.0)
    store_as(h_prev + new * size + place, h_next, inside & goes_on)
    if SAVE:
        gates += t * (batch_size.to(tl.int64) * WIDTH) + slot
        store_as(gates + U, z_u, inside)
        store_gate(gates, z_f, z_x, z_mi, z_mf, inside, F, X, UNITS, AUXILIARY)
        if CELL == "lstm":
            store_as(gates + U + UNITS, z_o, inside)
        if AFTER:
            store_as(gates, z_r, inside)
            tl.store(extra + t * size + place, u_h, mask=inside)


@triton.jit
def load_product(d_product, t, row, unit, batch_size, UNITS: tl.constexpr):
    """The gradient of h through the product of the step after t, or of the final h."""
    place = (1 - t % 2) * (batch_size.to(tl.int64) * UNITS) + row.to(tl.int64) * UNITS + unit
    return tl.load(d_product + place, mask=(row < batch_size) & (unit < UNITS), other=0.0)


@triton.jit
def retreat(
    d_h, gates, cells, extra, d_outputs, d_state, d_gates, d_recurrent, episode_starts,
    initial_cell, d_initial_h, d_initial_cell, batch_size, steps, beta, t, row, unit,
    UNITS: tl.constexpr, WIDTH: tl.constexpr, X: tl.constexpr, F: tl.constexpr, U: tl.constexpr,
    CELL: tl.constexpr, ACTIVATION: tl.constexpr, AUXILIARY: tl.constexpr, CHUNK: tl.constexpr,
    HAS_STARTS: tl.constexpr, HAS_INITIAL: tl.constexpr,
):  # fmt: skip
    """The backward pass of `advance`.

    d_h is what `load_product` returns; the tensors are those of `backward`. Returns the gradients
    of the products r, x, f, mi, mf, u, o (undefined for maps that a layer lacks).
    """
    size = batch_size.to(tl.int64) * UNITS
    wide = row.to(tl.int64)
    row_in = row < batch_size
    inside = row_in & (unit < UNITS)
    active = inside & (unit % CHUNK == 0)
    place = wide * UNITS + unit
    slot = t * (batch_size.to(tl.int64) * WIDTH) + wide * WIDTH + unit
    gates += slot
    d_gates += slot
    before = state_before(
        cells + t * size + place, initial_cell + place, episode_starts, t, row, inside,
        batch_size, HAS_STARTS, HAS_INITIAL,
    )  # fmt: skip
    # The gradient of the final state comes from no product, and no episode start cuts it off.
    final = t == steps - 1
    later = row < tl.where(final, 0, batch_size)
    carried = continues_episode(episode_starts, t + 1, row, later, batch_size, HAS_STARTS)
    carried = carried | (row < tl.where(final, batch_size, 0))
    d_output = tl.where(carried, d_h, 0.0)
    d_output += tl.load(d_outputs + t * size + place, mask=inside, other=0.0)
    d_after = tl.load(d_state + (1 - t % 2) * size + place, mask=inside, other=0.0)
    z_f = load_float(gates + F, inside)
    z_x = z_f
    z_mi = z_f
    z_mf = z_f
    if AUXILIARY != "tied":
        z_x = load_float(gates + X, inside)
    if AUXILIARY == "master":
        z_mi = load_float(gates + F + UNITS, inside)
        z_mf = load_float(gates + F + 2 * UNITS, inside)
    d_o = d_output
    if CELL == "lstm":
        squashed = tanh(tl.load(cells + (t + 1) * size + place, mask=inside, other=0.0))
        o = sigmoid(load_float(gates + U + UNITS, inside))
        d_o = d_output * squashed * (o * (1.0 - o))
        store_as(d_gates + U + UNITS, d_o, inside)
        d_after += d_output * o * (1.0 - squashed * squashed)
    else:
        d_after += d_output
    u = tanh(load_float(gates + U, inside))
    f, i = effective(z_f, z_x, z_mi, z_mf, active, ACTIVATION, AUXILIARY)
    if HAS_INITIAL:
        started = inside & starts_episode(episode_starts, t, row, row_in, batch_size)
        add_to(d_initial_cell + place, d_after * f, started)
        started = inside & starts_episode(episode_starts, t + 1, row, later, batch_size)
        add_to(d_initial_h + place, d_h, started)
    continues = continues_episode(episode_starts, t, row, row_in, batch_size, HAS_STARTS)
    tl.store(d_state + t % 2 * size + place, tl.where(continues, d_after * f, 0.0), mask=inside)
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
    d_r = d_u
    store_as(d_gates + U, d_u, inside)
    store_gate(d_gates, d_f, d_x, d_mi, d_mf, inside, F, X, UNITS, AUXILIARY)
    if CELL == "gru_after":
        reset = sigmoid(load_float(gates, inside))
        u_h = tl.load(extra + t * size + place, mask=inside, other=0.0)
        d_r = d_u * u_h * (reset * (1.0 - reset))
        d_u *= reset
        store_as(d_gates, d_r, inside)
        d_recurrent += slot
        store_as(d_recurrent, d_r, inside)
        store_as(d_recurrent + U, d_u, inside)
        store_gate(d_recurrent, d_f, d_x, d_mi, d_mf, inside, F, X, UNITS, AUXILIARY)
    return d_r, d_x, d_f, d_mi, d_mf, d_u, d_o


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
    WIDTH: tl.constexpr,
    X: tl.constexpr,
    F: tl.constexpr,
    U: tl.constexpr,
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

    projected  (T, B, WIDTH), the products with x, float32 or half precision
    recurrent  (B, WIDTH), the products with h
    bias       (WIDTH), added to the products with h; for "gru_after" only
    cells      (T + 1, B, UNITS): c of an LSTM, else h, starting with the first state;
               (2, B, UNITS) unless SAVE, by turns
    h_prev     (T, B, UNITS): h as the products read it, at an episode start 0 or the initial
               one; (2, B, UNITS) unless SAVE, by turns
    outputs    (T, B, UNITS)
    gates      (T, B, WIDTH): all pre-activations in the dtype of products, if SAVE
    extra      "gru_after": (T, B, UNITS), the recurrent part of the candidate, if SAVE;
               "gru_before": (B, UNITS), the reset state, for the second product
    episode_starts  (T, B), not 0 where an episode starts
    initial_h, initial_cell  (B, UNITS), h and what is in `cells` there, if HAS_INITIAL; else 0
    first_row  of the tile, in a persistent kernel; else each program has its own tile
    """
    if first_row is None:
        row = (tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS))[:, None]
        unit = (tl.program_id(1) * BLOCK_UNITS + tl.arange(0, BLOCK_UNITS))[None, :]
    else:
        row = (first_row + tl.arange(0, BLOCK_ROWS))[:, None]
        unit = tl.arange(0, BLOCK_UNITS)[None, :]
    inside = (row < batch_size) & (unit < UNITS)
    recurrent += row.to(tl.int64) * WIDTH + unit
    if RESET_ONLY:
        size = batch_size.to(tl.int64) * UNITS
        place = row.to(tl.int64) * UNITS + unit
        cell = cells + (t if SAVE else t % 2) * size + place
        h = state_before(
            cell, initial_cell + place, episode_starts, t, row, inside, batch_size,
            HAS_STARTS, HAS_INITIAL,
        )  # fmt: skip
        slot = t * (batch_size.to(tl.int64) * WIDTH) + row.to(tl.int64) * WIDTH + unit
        r = tl.load(recurrent, mask=inside, other=0.0)
        z_r = pre_activation(projected + slot, r, bias, unit, 0, inside, UNITS, False)
        store_as(extra + place, sigmoid(z_r) * h, inside)
        if SAVE:
            store_as(gates + slot, z_r, inside)
    else:
        f = tl.load(recurrent + F, mask=inside, other=0.0)
        r = f
        x = f
        mi = f
        mf = f
        o = f
        if CELL == "gru_after":
            r = tl.load(recurrent, mask=inside, other=0.0)
        if AUXILIARY != "tied":
            x = tl.load(recurrent + X, mask=inside, other=0.0)
        if AUXILIARY == "master":
            mi = tl.load(recurrent + F + UNITS, mask=inside, other=0.0)
            mf = tl.load(recurrent + F + 2 * UNITS, mask=inside, other=0.0)
        u = tl.load(recurrent + U, mask=inside, other=0.0)
        if CELL == "lstm":
            o = tl.load(recurrent + U + UNITS, mask=inside, other=0.0)
        advance(
            r, x, f, mi, mf, u, o, projected, bias, cells, h_prev, outputs, gates, extra,
            episode_starts, initial_h, initial_cell, batch_size, steps, beta, t, row, unit,
            UNITS, WIDTH, X, F, U, CELL, ACTIVATION, AUXILIARY, CHUNK,
            HAS_STARTS, HAS_INITIAL, SAVE,
        )  # fmt: skip


@triton.jit(do_not_specialize=["batch_size", "steps", "t"])
def backward(
    d_extra,
    gates,
    cells,
    extra,
    d_outputs,
    d_product,
    d_state,
    d_gates,
    d_recurrent,
    episode_starts,
    initial_cell,
    d_initial_h,
    d_initial_cell,
    batch_size,
    steps,
    beta,
    t,
    UNITS: tl.constexpr,
    WIDTH: tl.constexpr,
    X: tl.constexpr,
    F: tl.constexpr,
    U: tl.constexpr,
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
    d_product    (2, B, UNITS): gradient of h through the product of step t in t % 2, or of the
                 final h
    d_state      (2, B, UNITS): all other gradients of the state before step t in t % 2, or of the
                 final state
    d_gates      (T, B, WIDTH): of the projected inputs
    d_recurrent  (T, B, WIDTH): of the products with h, which differ for "gru_after"
    d_extra      (B, UNITS): of the reset state of "gru_before"
    d_initial_h, d_initial_cell  (B, UNITS), sums over the steps, if HAS_INITIAL; for a cell other
                 than an LSTM the two add up
    """
    if first_row is None:
        row = (tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS))[:, None]
        unit = (tl.program_id(1) * BLOCK_UNITS + tl.arange(0, BLOCK_UNITS))[None, :]
    else:
        row = (first_row + tl.arange(0, BLOCK_ROWS))[:, None]
        unit = tl.arange(0, BLOCK_UNITS)[None, :]
    if RESET_ONLY:
        size = batch_size.to(tl.int64) * UNITS
        place = row.to(tl.int64) * UNITS + unit
        row_in = row < batch_size
        inside = row_in & (unit < UNITS)
        h = state_before(
            cells + t * size + place, initial_cell + place, episode_starts, t, row, inside,
            batch_size, HAS_STARTS, HAS_INITIAL,
        )  # fmt: skip
        slot = t * (batch_size.to(tl.int64) * WIDTH) + row.to(tl.int64) * WIDTH + unit
        reset = sigmoid(load_float(gates + slot, inside))
        d_reset = tl.load(d_extra + place, mask=inside, other=0.0)
        store_as(d_gates + slot, d_reset * h * (reset * (1.0 - reset)), inside)
        if HAS_INITIAL:
            started = inside & starts_episode(episode_starts, t, row, row_in, batch_size)
            add_to(d_initial_cell + place, d_reset * reset, started)
        continues = continues_episode(episode_starts, t, row, row_in, batch_size, HAS_STARTS)
        d_h = tl.where(continues, d_reset * reset, 0.0)
        d_h += tl.load(d_state + t % 2 * size + place, mask=inside, other=0.0)
        tl.debug_barrier()  # other threads may still read here
        tl.store(d_state + t % 2 * size + place, d_h, mask=inside)
    else:
        d_h = load_product(d_product, t, row, unit, batch_size, UNITS)
        retreat(
            d_h, gates, cells, extra, d_outputs, d_state, d_gates, d_recurrent,
            episode_starts, initial_cell, d_initial_h, d_initial_cell, batch_size, steps, beta, t,
            row, unit, UNITS, WIDTH, X, F, U, CELL, ACTIVATION, AUXILIARY, CHUNK,
            HAS_STARTS, HAS_INITIAL,
        )  # fmt: skip
