"""Fused kernels in Triton: the gates are computed on the products of a step in registers.

In the persistent ones, `forward_fused` and `backward_fused`, a program owns some rows of the batch
for all steps, so that programs never wait for each other. It reads the recurrent weights again at
each step, from the L2 cache, in tiles that are loaded ahead; the steps of
`rlgates.kernels.triton.step` run on the sums of the products, in registers. Products are
transposed, weight times state: tensor cores want many rows on the left, and the weights have more
than the batch of a program.

Threads read what other threads of their program wrote one step before, behind a barrier. Within a
step nothing is read that is written, so that the loop over tiles may be pipelined.

`forward_step` and `backward_step` are a launch for each step: a program has a tile of the batch and
of the units. The weights are read once for a larger part of the batch, and wide layers are spread
over the device.
"""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from rlgates.kernels.triton.persistent import add_dot
from rlgates.kernels.triton.step import advance, load_product, retreat


@triton.jit
def add_product(total, weight, value, mask, PRECISION: tl.constexpr):
    """total + weight value^T, with a tile of the weight at the pointers `weight`."""
    left = tl.load(weight, mask=mask, other=0.0)
    right = tl.trans(value.to(left.dtype))
    return add_dot(left, right, total, PRECISION)


@triton.jit(do_not_specialize=["batch_size", "steps"])
def forward_fused(
    projected,
    bias,
    cells,
    h_prev,
    outputs,
    gates,
    extra,
    episode_starts,
    initial_h,
    initial_cell,
    weight,
    batch_size,
    steps,
    beta,
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
    PRECISION: tl.constexpr,
    BLOCK_BATCH: tl.constexpr,
    BLOCK_UNITS: tl.constexpr,
    BLOCK_INNER: tl.constexpr,
):
    """All steps, as `step.forward`, of BLOCK_BATCH rows; weight (WIDTH, UNITS).

    A product of BLOCK_UNITS units adds up over blocks of BLOCK_INNER units before the step.
    """
    TILES: tl.constexpr = (UNITS + BLOCK_UNITS - 1) // BLOCK_UNITS
    BLOCKS: tl.constexpr = (UNITS + BLOCK_INNER - 1) // BLOCK_INNER
    row = (tl.program_id(0) * BLOCK_BATCH + tl.arange(0, BLOCK_BATCH))[:, None]
    zero = tl.zeros((BLOCK_UNITS, BLOCK_BATCH), tl.float32)
    for t in tl.range(0, steps, num_stages=1):
        left = h_prev + (t if SAVE else t % 2) * (batch_size.to(tl.int64) * UNITS)
        left += row.to(tl.int64) * UNITS
        r = zero
        x = zero
        f = zero
        mi = zero
        mf = zero
        u = zero
        o = zero
        for i in tl.range(0, TILES * BLOCKS):  # one loop, so that loads run ahead past a tile
            unit = i // BLOCKS * BLOCK_UNITS + tl.arange(0, BLOCK_UNITS)
            inner = (i % BLOCKS * BLOCK_INNER + tl.arange(0, BLOCK_INNER))[None, :]
            h = tl.load(left + inner, mask=(row < batch_size) & (inner < UNITS), other=0.0)
            w = weight + unit[:, None] * UNITS + inner
            mask = (unit < UNITS)[:, None] & (inner < UNITS)
            if CELL == "gru_after":
                r = add_product(r, w, h, mask, PRECISION)
            if AUXILIARY != "tied":
                x = add_product(x, w + X * UNITS, h, mask, PRECISION)
            f = add_product(f, w + F * UNITS, h, mask, PRECISION)
            if AUXILIARY == "master":
                mi = add_product(mi, w + (F + UNITS) * UNITS, h, mask, PRECISION)
                mf = add_product(mf, w + (F + 2 * UNITS) * UNITS, h, mask, PRECISION)
            u = add_product(u, w + U * UNITS, h, mask, PRECISION)
            if CELL == "lstm":
                o = add_product(o, w + (U + UNITS) * UNITS, h, mask, PRECISION)
            if i % BLOCKS == BLOCKS - 1:
                advance(
                    tl.trans(r), tl.trans(x), tl.trans(f), tl.trans(mi), tl.trans(mf),
                    tl.trans(u), tl.trans(o), projected, bias, cells, h_prev, outputs, gates,
                    extra, episode_starts, initial_h, initial_cell, batch_size, steps, beta, t,
                    row, unit[None, :], UNITS, WIDTH, X, F, U, CELL, ACTIVATION, AUXILIARY, CHUNK,
                    HAS_STARTS, HAS_INITIAL, SAVE,
                )  # fmt: skip
                r = zero
                x = zero
                f = zero
                mi = zero
                mf = zero
                u = zero
                o = zero
        tl.debug_barrier()


@triton.jit(do_not_specialize=["batch_size", "steps"])
def backward_fused(
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
    weight,
    batch_size,
    steps,
    beta,
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
    PRECISION: tl.constexpr,
    BLOCK_BATCH: tl.constexpr,
    BLOCK_UNITS: tl.constexpr,
    BLOCK_INNER: tl.constexpr,
):
    """All steps backward, as `step.backward`, of BLOCK_BATCH rows; BLOCK_INNER covers all units.

    weight (UNITS, WIDTH) is transposed, because tensor cores read along the sum.
    """
    row = (tl.program_id(0) * BLOCK_BATCH + tl.arange(0, BLOCK_BATCH))[:, None]
    inner = tl.arange(0, BLOCK_INNER)
    for back in tl.range(0, steps, num_stages=1):
        t = steps - 1 - back
        total = tl.zeros((BLOCK_INNER, BLOCK_BATCH), tl.float32)
        for first in tl.range(0, UNITS, BLOCK_UNITS):
            unit = first + tl.arange(0, BLOCK_UNITS)
            d_h = load_product(d_product, t, row, unit[None, :], batch_size, UNITS)
            d_r, d_x, d_f, d_mi, d_mf, d_u, d_o = retreat(
                d_h, gates, cells, extra, d_outputs, d_state, d_gates, d_recurrent,
                episode_starts, initial_cell, d_initial_h, d_initial_cell, batch_size, steps,
                beta, t, row, unit[None, :], UNITS, WIDTH, X, F, U, CELL, ACTIVATION, AUXILIARY,
                CHUNK, HAS_STARTS, HAS_INITIAL,
            )  # fmt: skip
            w = weight + inner[:, None] * WIDTH + unit[None, :]
            mask = (inner < UNITS)[:, None] & (unit < UNITS)[None, :]
            if CELL == "gru_after":
                total = add_product(total, w, d_r, mask, PRECISION)
            if AUXILIARY != "tied":
                total = add_product(total, w + X, d_x, mask, PRECISION)
            total = add_product(total, w + F, d_f, mask, PRECISION)
            if AUXILIARY == "master":
                total = add_product(total, w + F + UNITS, d_mi, mask, PRECISION)
                total = add_product(total, w + F + 2 * UNITS, d_mf, mask, PRECISION)
            total = add_product(total, w + U, d_u, mask, PRECISION)
            if CELL == "lstm":
                total = add_product(total, w + U + UNITS, d_o, mask, PRECISION)
        result = d_product + t % 2 * (batch_size.to(tl.int64) * UNITS)
        result += row.to(tl.int64) * UNITS + inner[None, :]
        tl.store(result, tl.trans(total), mask=(row < batch_size) & (inner[None, :] < UNITS))
        tl.debug_barrier()


@triton.jit
def add_rows(total, value, weight, mask, PRECISION: tl.constexpr):
    """total + value weight, with a tile of the weight at the pointers `weight`."""
    return add_dot(value, tl.load(weight, mask=mask, other=0.0), total, PRECISION)


@triton.jit(do_not_specialize=["batch_size", "steps", "t"])
def forward_step(
    projected,
    bias,
    cells,
    h_prev,
    outputs,
    gates,
    extra,
    episode_starts,
    initial_h,
    initial_cell,
    weight,
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
    PRECISION: tl.constexpr,
    BLOCK_BATCH: tl.constexpr,
    BLOCK_UNITS: tl.constexpr,
    BLOCK_INNER: tl.constexpr,
):
    """Step t, as `step.forward`, of a tile of rows and units; weight (WIDTH, UNITS)."""
    row = (tl.program_id(0) * BLOCK_BATCH + tl.arange(0, BLOCK_BATCH))[:, None]
    unit = (tl.program_id(1) * BLOCK_UNITS + tl.arange(0, BLOCK_UNITS))[None, :]
    left = h_prev + (t if SAVE else t % 2) * (batch_size.to(tl.int64) * UNITS)
    left += row.to(tl.int64) * UNITS
    zero = tl.zeros((BLOCK_BATCH, BLOCK_UNITS), tl.float32)
    r = zero
    x = zero
    f = zero
    mi = zero
    mf = zero
    u = zero
    o = zero
    for first in tl.range(0, UNITS, BLOCK_INNER):
        inner = first + tl.arange(0, BLOCK_INNER)
        within = inner < UNITS
        h = tl.load(left + inner[None, :], mask=(row < batch_size) & within[None, :], other=0.0)
        w = weight + unit * UNITS + inner[:, None]
        mask = (unit < UNITS) & within[:, None]
        if CELL == "gru_after":
            r = add_rows(r, h, w, mask, PRECISION)
        if AUXILIARY != "tied":
            x = add_rows(x, h, w + X * UNITS, mask, PRECISION)
        f = add_rows(f, h, w + F * UNITS, mask, PRECISION)
        if AUXILIARY == "master":
            mi = add_rows(mi, h, w + (F + UNITS) * UNITS, mask, PRECISION)
            mf = add_rows(mf, h, w + (F + 2 * UNITS) * UNITS, mask, PRECISION)
        u = add_rows(u, h, w + U * UNITS, mask, PRECISION)
        if CELL == "lstm":
            o = add_rows(o, h, w + (U + UNITS) * UNITS, mask, PRECISION)
    advance(
        r, x, f, mi, mf, u, o, projected, bias, cells, h_prev, outputs, gates, extra,
        episode_starts, initial_h, initial_cell, batch_size, steps, beta, t, row, unit,
        UNITS, WIDTH, X, F, U, CELL, ACTIVATION, AUXILIARY, CHUNK,
        HAS_STARTS, HAS_INITIAL, SAVE,
    )  # fmt: skip


@triton.jit(do_not_specialize=["batch_size", "steps", "t"])
def backward_step(
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
    weight,
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
    PRECISION: tl.constexpr,
    BLOCK_BATCH: tl.constexpr,
    BLOCK_UNITS: tl.constexpr,
    BLOCK_INNER: tl.constexpr,
):
    """Step t backward, as `step.backward`, of BLOCK_BATCH rows and BLOCK_UNITS units.

    It begins with the product of step t + 1, in place of `d_product`, which has the gradient of the
    final h alone; weight (UNITS, WIDTH) is transposed.
    """
    row = (tl.program_id(0) * BLOCK_BATCH + tl.arange(0, BLOCK_BATCH))[:, None]
    unit = (tl.program_id(1) * BLOCK_UNITS + tl.arange(0, BLOCK_UNITS))[None, :]
    left = d_recurrent + (t + 1) * (batch_size.to(tl.int64) * WIDTH) + row.to(tl.int64) * WIDTH
    d_h = tl.zeros((BLOCK_BATCH, BLOCK_UNITS), tl.float32)
    for first in tl.range(0, tl.where(t == steps - 1, 0, WIDTH), BLOCK_INNER):
        inner = first + tl.arange(0, BLOCK_INNER)
        within = inner < WIDTH
        d = tl.load(left + inner[None, :], mask=(row < batch_size) & within[None, :], other=0.0)
        w = weight + unit * WIDTH + inner[:, None]
        d_h = add_rows(d_h, d, w, (unit < UNITS) & within[:, None], PRECISION)
    if t == steps - 1:
        d_h = load_product(d_product, t, row, unit, batch_size, UNITS)
    retreat(
        d_h, gates, cells, extra, d_outputs, d_state, d_gates, d_recurrent, episode_starts,
        initial_cell, d_initial_h, d_initial_cell, batch_size, steps, beta, t, row, unit,
        UNITS, WIDTH, X, F, U, CELL, ACTIVATION, AUXILIARY, CHUNK, HAS_STARTS, HAS_INITIAL,
    )  # fmt: skip
