"""Gated layers as kernels in Triton: steps of `triton_rows`, alone or in a walk through time.

Two ways to run a sequence, with one source for all that a step is beside its products:

    a step is a launch   after the products of the step, which cuBLAS makes; a program has one
                         tile of rows and units (all units of a row where the gate is a cumax)
    a walk               a program owns some rows and walks through all steps with its own
                         products, where the recurrent weights are small enough to be read again
                         each step; rows never meet, so programs never wait for each other

Threads of a program read here what others of them wrote: a barrier stands between, and loops
around stores are not pipelined, since the compiler looks for neither.
"""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl
from triton import knobs

from rlgates.kernels.triton_rows import backward_rows, forward_rows

INTERPRETED = tl.constexpr(bool(knobs.runtime.interpret))


@triton.jit
def product(
    left,
    weight,
    result,
    row,
    rows,
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
    """result (B, OUTER) = left (B, INNER) weight (OUTER, INNER)^T, of rows `row`."""
    wide = row.to(tl.int64)[:, None]
    row_in = (row < rows)[:, None]
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
            if INTERPRETED:  # which has no products of bfloat16
                x = x.to(tl.float32)
                w = w.to(tl.float32)
            total = tl.dot(x, w, total, input_precision=PRECISION)
        tl.store(result + wide * RESULT_STRIDE + outer[None, :], total, mask=row_in & outer_in)


@triton.jit(do_not_specialize=["rows", "steps", "t"])
def forward(
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
    t,
    UNITS: tl.constexpr,
    CELL: tl.constexpr,
    ACTIVATION: tl.constexpr,
    AUXILIARY: tl.constexpr,
    CHUNK: tl.constexpr,
    STARTS: tl.constexpr,
    KEEP: tl.constexpr,
    RESETS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_UNITS: tl.constexpr,
):
    """What step t does with its products; of "gru_before" two launches, with RESETS the first.

    projected  (T, B, MAPS * UNITS), the products of the inputs, float32 or half precision
    recurrent  (B, MAPS * UNITS), those of the state
    bias       (MAPS * UNITS), added to those of the state; of "gru_after" alone
    cells      (T + 1, B, UNITS): c of an LSTM, else h, the first of them given; (1, B, UNITS)
               unless KEEP
    entering   (T, B, UNITS): h as the products read it, 0 where an episode starts, the first
               given; (1, B, UNITS) unless KEEP
    outputs    (T, B, UNITS)
    gates      (T, B, MAPS * UNITS): all pre-activations, if KEEP
    aside      "gru_after": (T, B, UNITS), the recurrent part of the candidate, if KEEP;
               "gru_before": (B, UNITS), the reset state, for the second product
    starts     (T, B), not 0 where the state is left out
    """
    row = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    unit = tl.program_id(1) * BLOCK_UNITS + tl.arange(0, BLOCK_UNITS)
    forward_rows(
        t, row, unit,
        projected, recurrent, bias, cells, entering, outputs, gates, aside, starts,
        rows, steps, beta,
        UNITS, CELL, ACTIVATION, AUXILIARY, CHUNK, STARTS, KEEP, RESETS,
    )  # fmt: skip


@triton.jit(do_not_specialize=["rows", "steps"])
def forward_walk(
    projected,
    recurrent,
    bias,
    cells,
    entering,
    outputs,
    gates,
    aside,
    starts,
    weight,
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
    WIDTH: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_UNITS: tl.constexpr,
    BLOCK_OUTER: tl.constexpr,
    BLOCK_INNER: tl.constexpr,
    BLOCK_WALK: tl.constexpr,
):
    """All steps, as `forward`, of BLOCK_WALK rows; weight (MAPS * UNITS = WIDTH, UNITS)."""
    BEFORE: tl.constexpr = CELL == "gru_before"
    FIRST: tl.constexpr = WIDTH - UNITS if BEFORE else WIDTH  # columns of the first product
    own = tl.program_id(0) * BLOCK_WALK
    walked = own + tl.arange(0, BLOCK_WALK)
    unit = tl.arange(0, BLOCK_UNITS)
    for t in tl.range(0, steps, num_stages=1):
        left = entering
        if KEEP:
            left += t * rows.to(tl.int64) * UNITS
        product(
            left, weight, recurrent, walked, rows,
            UNITS, FIRST, UNITS, UNITS, WIDTH, PRECISION, BLOCK_WALK, BLOCK_OUTER, BLOCK_INNER,
        )  # fmt: skip
        tl.debug_barrier()
        if BEFORE:
            for sub in tl.range(0, BLOCK_WALK, BLOCK_ROWS, num_stages=1):
                forward_rows(
                    t, own + sub + tl.arange(0, BLOCK_ROWS), unit,
                    projected, recurrent, bias, cells, entering, outputs, gates, aside, starts,
                    rows, steps, beta,
                    UNITS, CELL, ACTIVATION, AUXILIARY, CHUNK, STARTS, KEEP, True,
                )  # fmt: skip
            tl.debug_barrier()
            product(
                aside, weight + FIRST * UNITS, recurrent + FIRST, walked, rows,
                UNITS, UNITS, UNITS, UNITS, WIDTH, PRECISION, BLOCK_WALK, BLOCK_OUTER, BLOCK_INNER,
            )  # fmt: skip
            tl.debug_barrier()
        for sub in tl.range(0, BLOCK_WALK, BLOCK_ROWS, num_stages=1):
            forward_rows(
                t, own + sub + tl.arange(0, BLOCK_ROWS), unit,
                projected, recurrent, bias, cells, entering, outputs, gates, aside, starts,
                rows, steps, beta,
                UNITS, CELL, ACTIVATION, AUXILIARY, CHUNK, STARTS, KEEP, False,
            )  # fmt: skip
        tl.debug_barrier()


@triton.jit(do_not_specialize=["rows", "steps", "t"])
def backward(
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
    t,
    UNITS: tl.constexpr,
    CELL: tl.constexpr,
    ACTIVATION: tl.constexpr,
    AUXILIARY: tl.constexpr,
    CHUNK: tl.constexpr,
    STARTS: tl.constexpr,
    RESETS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_UNITS: tl.constexpr,
):
    """The way back through step t; of "gru_before" two launches, with RESETS the second.

    gates, cells, aside  as `forward` left them; `aside` of "gru_after" alone
    d_outputs    (T, B, UNITS)
    d_product    (B, UNITS): of h as the product of step t + 1 read it, or of the final h
    d_state      (B, UNITS): of the state after step t, then of the one before, all else that
                 comes from later steps
    d_gates      (T, B, MAPS * UNITS): of the projected inputs
    d_recurrent  (T, B, MAPS * UNITS): of the products of the state, where "gru_after" has others
    d_aside      (B, UNITS): of the reset state of "gru_before"
    """
    row = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    unit = tl.program_id(1) * BLOCK_UNITS + tl.arange(0, BLOCK_UNITS)
    backward_rows(
        t, row, unit,
        gates, cells, aside, d_outputs, d_product, d_state, d_gates, d_recurrent, d_aside, starts,
        rows, steps, beta,
        UNITS, CELL, ACTIVATION, AUXILIARY, CHUNK, STARTS, RESETS,
    )  # fmt: skip


@triton.jit(do_not_specialize=["rows", "steps"])
def backward_walk(
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
    weight,
    rows,
    steps,
    beta,
    UNITS: tl.constexpr,
    CELL: tl.constexpr,
    ACTIVATION: tl.constexpr,
    AUXILIARY: tl.constexpr,
    CHUNK: tl.constexpr,
    STARTS: tl.constexpr,
    WIDTH: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_UNITS: tl.constexpr,
    BLOCK_OUTER: tl.constexpr,
    BLOCK_INNER: tl.constexpr,
    BLOCK_WALK: tl.constexpr,
):
    """Back through all steps, as `backward`, of BLOCK_WALK rows.

    weight (UNITS, WIDTH): transposed, because tensor cores read along the sum.
    """
    BEFORE: tl.constexpr = CELL == "gru_before"
    FIRST: tl.constexpr = WIDTH - UNITS if BEFORE else WIDTH
    own = tl.program_id(0) * BLOCK_WALK
    walked = own + tl.arange(0, BLOCK_WALK)
    unit = tl.arange(0, BLOCK_UNITS)
    for back in tl.range(0, steps, num_stages=1):
        t = steps - 1 - back
        for sub in tl.range(0, BLOCK_WALK, BLOCK_ROWS, num_stages=1):
            backward_rows(
                t, own + sub + tl.arange(0, BLOCK_ROWS), unit,
                gates, cells, aside, d_outputs, d_product, d_state, d_gates, d_recurrent,
                d_aside, starts, rows, steps, beta,
                UNITS, CELL, ACTIVATION, AUXILIARY, CHUNK, STARTS, False,
            )  # fmt: skip
        tl.debug_barrier()
        left = d_recurrent + t * rows.to(tl.int64) * WIDTH
        if BEFORE:
            product(
                left + FIRST, weight + FIRST, d_aside, walked, rows,
                UNITS, UNITS, WIDTH, WIDTH, UNITS, PRECISION, BLOCK_WALK, BLOCK_OUTER, BLOCK_INNER,
            )  # fmt: skip
            tl.debug_barrier()
            for sub in tl.range(0, BLOCK_WALK, BLOCK_ROWS, num_stages=1):
                backward_rows(
                    t, own + sub + tl.arange(0, BLOCK_ROWS), unit,
                    gates, cells, aside, d_outputs, d_product, d_state, d_gates, d_recurrent,
                    d_aside, starts, rows, steps, beta,
                    UNITS, CELL, ACTIVATION, AUXILIARY, CHUNK, STARTS, True,
                )  # fmt: skip
            tl.debug_barrier()
        product(
            left, weight, d_product, walked, rows,
            FIRST, UNITS, WIDTH, WIDTH, UNITS, PRECISION, BLOCK_WALK, BLOCK_OUTER, BLOCK_INNER,
        )  # fmt: skip
        tl.debug_barrier()
