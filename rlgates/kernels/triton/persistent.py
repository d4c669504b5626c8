"""Persistent kernels in Triton: one launch runs a gated layer over all steps.

A program owns some rows of the batch and computes their products too, for recurrent weights small
enough to be read again at each step. Rows are independent, so programs never wait for each other.
The steps between the products are those of `rlgates.kernels.triton.step`; the products go through
memory, for what needs all units of a row, or a second product (else `rlgates.kernels.triton.fused`
is faster).

Threads read what other threads of their program wrote. The compiler does not check for that, so
barriers separate the two, and loops around stores are not pipelined.
"""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl
from triton import knobs

from rlgates.kernels.triton.step import backward, forward

INTERPRETED = tl.constexpr(bool(knobs.runtime.interpret))


@triton.jit
def add_dot(left, right, total, PRECISION: tl.constexpr):
    """left right + total."""
    if INTERPRETED:  # the interpreter has no products of bfloat16
        left = left.to(tl.float32)
        right = right.to(tl.float32)
    return tl.dot(left, right, total, input_precision=PRECISION)


@triton.jit
def product(
    left,
    weight,
    result,
    row,
    batch_size,
    INNER: tl.constexpr,
    OUTER: tl.constexpr,
    LEFT_STRIDE: tl.constexpr,
    WEIGHT_STRIDE: tl.constexpr,
    RESULT_STRIDE: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_OUTER: tl.constexpr,
    BLOCK_INNER: tl.constexpr,
):
    """result (B, OUTER) = left (B, INNER) weight (OUTER, INNER)^T, for the rows `row` of B."""
    wide = row.to(tl.int64)[:, None]
    row_in = (row < batch_size)[:, None]
    for tile in tl.range(0, OUTER, BLOCK_OUTER, num_stages=1):
        outer = tile + tl.arange(0, BLOCK_OUTER)
        outer_in = (outer < OUTER)[None, :]
        total = tl.zeros((BLOCK_ROWS, BLOCK_OUTER), tl.float32)
        for start in tl.range(0, INNER, BLOCK_INNER):
            inner = start + tl.arange(0, BLOCK_INNER)
            inner_in = inner < INNER
            x = left + wide * LEFT_STRIDE + inner[None, :]
            w = weight + outer[None, :] * WEIGHT_STRIDE + inner[:, None]
            x = tl.load(x, mask=row_in & inner_in[None, :], other=0.0)
            w = tl.load(w, mask=inner_in[:, None] & outer_in, other=0.0)
            total = add_dot(x, w, total, PRECISION)
        tl.store(result + wide * RESULT_STRIDE + outer[None, :], total, mask=row_in & outer_in)


@triton.jit(do_not_specialize=["batch_size", "steps"])
def forward_persistent(
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
    BLOCK_ROWS: tl.constexpr,
    BLOCK_UNITS: tl.constexpr,
    BLOCK_OUTER: tl.constexpr,
    BLOCK_INNER: tl.constexpr,
    BLOCK_BATCH: tl.constexpr,
):
    """All steps, as `forward`, of BLOCK_BATCH rows; weight (WIDTH, UNITS)."""
    RESET_BEFORE: tl.constexpr = CELL == "gru_before"
    FIRST: tl.constexpr = WIDTH - UNITS if RESET_BEFORE else WIDTH  # columns of the first product
    first_row = tl.program_id(0) * BLOCK_BATCH
    row = first_row + tl.arange(0, BLOCK_BATCH)
    for t in tl.range(0, steps, num_stages=1):
        left = h_prev + (t if SAVE else t % 2) * batch_size.to(tl.int64) * UNITS
        product(
            left, weight, recurrent, row, batch_size,
            UNITS, FIRST, UNITS, UNITS, WIDTH, PRECISION, BLOCK_BATCH, BLOCK_OUTER, BLOCK_INNER,
        )  # fmt: skip
        tl.debug_barrier()
        if RESET_BEFORE:
            for sub in tl.range(0, BLOCK_BATCH, BLOCK_ROWS, num_stages=1):
                forward(
                    projected, recurrent, bias, cells, h_prev, outputs, gates, extra,
                    episode_starts, initial_h, initial_cell, batch_size, steps, beta, t,
                    UNITS, WIDTH, X, F, U, CELL, ACTIVATION, AUXILIARY, CHUNK,
                    HAS_STARTS, HAS_INITIAL, SAVE, True, BLOCK_ROWS, BLOCK_UNITS, first_row + sub,
                )  # fmt: skip
            tl.debug_barrier()
            product(
                extra, weight + FIRST * UNITS, recurrent + FIRST, row, batch_size,
                UNITS, UNITS, UNITS, UNITS, WIDTH, PRECISION, BLOCK_BATCH, BLOCK_OUTER, BLOCK_INNER,
            )  # fmt: skip
            tl.debug_barrier()
        for sub in tl.range(0, BLOCK_BATCH, BLOCK_ROWS, num_stages=1):
            forward(
                projected, recurrent, bias, cells, h_prev, outputs, gates, extra, episode_starts,
                initial_h, initial_cell, batch_size, steps, beta, t,
                UNITS, WIDTH, X, F, U, CELL, ACTIVATION, AUXILIARY, CHUNK,
                HAS_STARTS, HAS_INITIAL, SAVE, False, BLOCK_ROWS, BLOCK_UNITS, first_row + sub,
            )  # fmt: skip
        tl.debug_barrier()


@triton.jit(do_not_specialize=["batch_size", "steps"])
def backward_persistent(
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
    BLOCK_ROWS: tl.constexpr,
    BLOCK_UNITS: tl.constexpr,
    BLOCK_OUTER: tl.constexpr,
    BLOCK_INNER: tl.constexpr,
    BLOCK_BATCH: tl.constexpr,
):
    """All steps backward, as `backward`, of BLOCK_BATCH rows.

    weight (UNITS, WIDTH) is transposed, because tensor cores read along the sum.
    """
    RESET_BEFORE: tl.constexpr = CELL == "gru_before"
    FIRST: tl.constexpr = WIDTH - UNITS if RESET_BEFORE else WIDTH
    first_row = tl.program_id(0) * BLOCK_BATCH
    row = first_row + tl.arange(0, BLOCK_BATCH)
    for back in tl.range(0, steps, num_stages=1):
        t = steps - 1 - back
        for sub in tl.range(0, BLOCK_BATCH, BLOCK_ROWS, num_stages=1):
            backward(
                d_extra, gates, cells, extra, d_outputs, d_product, d_state, d_gates, d_recurrent,
                episode_starts, initial_cell, d_initial_h, d_initial_cell, batch_size, steps,
                beta, t, UNITS, WIDTH, X, F, U, CELL, ACTIVATION, AUXILIARY, CHUNK,
                HAS_STARTS, HAS_INITIAL, False, BLOCK_ROWS, BLOCK_UNITS, first_row + sub,
            )  # fmt: skip
        tl.debug_barrier()
        left = d_recurrent + t * batch_size.to(tl.int64) * WIDTH
        if RESET_BEFORE:
            product(
                left + FIRST, weight + FIRST, d_extra, row, batch_size,
                UNITS, UNITS, WIDTH, WIDTH, UNITS, PRECISION, BLOCK_BATCH, BLOCK_OUTER, BLOCK_INNER,
            )  # fmt: skip
            tl.debug_barrier()
            for sub in tl.range(0, BLOCK_BATCH, BLOCK_ROWS, num_stages=1):
                backward(
                    d_extra, gates, cells, extra, d_outputs, d_product, d_state, d_gates,
                    d_recurrent, episode_starts, initial_cell, d_initial_h, d_initial_cell,
                    batch_size, steps, beta, t,
                    UNITS, WIDTH, X, F, U, CELL, ACTIVATION, AUXILIARY, CHUNK,
                    HAS_STARTS, HAS_INITIAL, True, BLOCK_ROWS, BLOCK_UNITS, first_row + sub,
                )  # fmt: skip
            tl.debug_barrier()
        product(
            left, weight, d_product + t % 2 * batch_size.to(tl.int64) * UNITS, row, batch_size,
            FIRST, UNITS, WIDTH, WIDTH, UNITS, PRECISION, BLOCK_BATCH, BLOCK_OUTER, BLOCK_INNER,
        )  # fmt: skip
        tl.debug_barrier()
