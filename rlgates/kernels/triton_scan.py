"""The linear recurrence in Triton, for float32 on a GPU: one kernel each way.

A program takes a few units of one row through all of time; units and rows never meet. Nothing is
added up across programs, so that every run gives the same numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from rlgates.kernels import scan

if TYPE_CHECKING:
    from rlgates.kernels.scan import Gradients, Problem

# As few units a program as fill a warp: they are all that can be spread over the GPU.
_UNITS = 64
# So many steps are on their way from the memory while one is computed.
_AHEAD = tl.constexpr(4)


@triton.jit
def _get(pointer, units, mask, re_else, im_else, PAIRED: tl.constexpr):
    """A number, or another one where the mask is false. Nobody looks at an im of a real one."""
    re = tl.load(pointer, mask=mask, other=re_else)
    if PAIRED:
        return re, tl.load(pointer + units, mask=mask, other=im_else)
    return re, im_else


@triton.jit
def _put(pointer, re, im, units, mask, PAIRED: tl.constexpr):
    tl.store(pointer, re, mask=mask)
    if PAIRED:
        tl.store(pointer + units, im, mask=mask)


@triton.jit
def _turned_back(x_re, x_im, y_re, y_im, PAIRED: tl.constexpr):
    """x conj(y)"""
    if PAIRED:
        return x_re * y_re + x_im * y_im, x_im * y_re - x_re * y_im
    return x_re * y_re, x_im


@triton.jit(do_not_specialize=["steps", "rows"])
def _forward(
    factor,
    into,
    first,
    initial,
    starts,
    states,
    steps,
    rows,
    units,
    step,
    factor_step,
    factor_row,
    first_row,
    initial_row,
    PAIRED: tl.constexpr,
    UNITS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    unit = tl.program_id(1) * UNITS + tl.arange(0, UNITS)
    mask = unit < units
    zero = tl.full((UNITS,), 0.0, tl.float32)
    here = row * units + unit
    if PAIRED:
        here += row * units
    factor += row * factor_row + unit
    into += here
    states += here
    re, im = _get(first + row * first_row + unit, units, mask, zero, zero, PAIRED)
    if starts is not None:
        starts += row
        begin = initial + row * initial_row + unit
        begin_re, begin_im = _get(begin, units, mask, zero, zero, PAIRED)
    for _ in tl.range(0, steps, num_stages=_AHEAD):
        if starts is not None:
            start = tl.load(starts) != 0
            re = tl.where(start, begin_re, re)
            im = tl.where(start, begin_im, im)
            starts += rows
        a_re, a_im = _get(factor, units, mask, zero, zero, PAIRED)
        b_re, b_im = _get(into, units, mask, zero, zero, PAIRED)
        if PAIRED:
            old = re
            re = b_re + a_re * old - a_im * im
            im = b_im + a_re * im + a_im * old
        else:
            re = b_re + a_re * re
        _put(states, re, im, units, mask, PAIRED)
        factor += factor_step
        into += step
        states += step


@triton.jit(do_not_specialize=["steps", "rows"])
def _backward(
    factor,
    first,
    initial,
    starts,
    states,
    d_states,
    d_carry,
    d_factor,
    d_factor_sums,
    d_into,
    d_initial,
    steps,
    rows,
    units,
    step,
    factor_step,
    factor_row,
    first_row,
    initial_row,
    PAIRED: tl.constexpr,
    UNITS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    unit = tl.program_id(1) * UNITS + tl.arange(0, UNITS)
    mask = unit < units
    zero = tl.full((UNITS,), 0.0, tl.float32)
    here = row * units + unit
    if PAIRED:
        here += row * units
    last = (steps - 1).to(tl.int64)
    factor += last * factor_step + row * factor_row + unit
    at = last * step + here
    first_re, first_im = _get(first + row * first_row + unit, units, mask, zero, zero, PAIRED)
    if starts is not None:
        starts += last * rows + row
        begin = initial + row * initial_row + unit
        begin_re, begin_im = _get(begin, units, mask, zero, zero, PAIRED)
    re, im = _get(d_carry + here, units, mask, zero, zero, PAIRED)
    begin_sum_re, begin_sum_im = zero, zero
    sum_re, sum_im = zero.to(tl.float64), zero.to(tl.float64)
    t = last
    for _ in tl.range(0, steps, num_stages=_AHEAD):
        if d_states is not None:
            d_re, d_im = _get(d_states + at, units, mask, zero, zero, PAIRED)
            re += d_re
            im += d_im
        if d_into is not None:
            _put(d_into + at, re, im, units, mask, PAIRED)
        if starts is not None:
            start = tl.load(starts) != 0
            starts -= rows
        if d_factor is not None or d_factor_sums is not None:
            older = unit < tl.where(t > 0, units, 0)
            old_re, old_im = _get(states + at - step, units, older, first_re, first_im, PAIRED)
            if starts is not None:
                old_re = tl.where(start, begin_re, old_re)
                old_im = tl.where(start, begin_im, old_im)
            da_re, da_im = _turned_back(re, im, old_re, old_im, PAIRED)
            if d_factor is not None:
                _put(d_factor + at, da_re, da_im, units, mask, PAIRED)
            if d_factor_sums is not None:
                sum_re += da_re.to(tl.float64)
                sum_im += da_im.to(tl.float64)
        a_re, a_im = _get(factor, units, mask, zero, zero, PAIRED)
        re, im = _turned_back(re, im, a_re, a_im, PAIRED)
        if starts is not None:
            begin_sum_re += tl.where(start, re, 0.0)
            begin_sum_im += tl.where(start, im, 0.0)
            re = tl.where(start, 0.0, re)
            im = tl.where(start, 0.0, im)
        factor -= factor_step
        at -= step
        t -= 1
    _put(d_carry + here, re, im, units, mask, PAIRED)
    if d_initial is not None:
        _put(d_initial + here, begin_sum_re, begin_sum_im, units, mask, PAIRED)
    if d_factor_sums is not None:
        _put(d_factor_sums + here, sum_re, sum_im, units, mask, PAIRED)


def forward(problem: Problem, into: Tensor, states: Tensor) -> None:
    """See `rlgates.kernels.scan.Kernel`."""
    factor, first, initial, starts, _ = problem
    _launch(_forward, problem, into, factor, into, first, initial, starts, states)


def backward(problem: Problem, states: Tensor, d: Gradients) -> None:
    """See `rlgates.kernels.scan.Kernel`."""
    factor, first, initial, starts, _ = problem
    _launch(_backward, problem, states, factor, first, initial, starts, states, *d)


def _launch(kernel: Any, problem: Problem, like: Tensor, *tensors: Tensor | None) -> None:
    steps, rows, width = like.shape
    units = width // 2 if problem.paired else width
    block = min(_UNITS, triton.next_power_of_2(units))
    if rows == 0:
        return
    with torch.cuda.device_of(like):
        kernel[rows, triton.cdiv(units, block)](
            *tensors,
            *(steps, rows, units, rows * width),
            *problem.strides,
            PAIRED=problem.paired,
            UNITS=block,
            num_warps=1,
            enable_fp_fusion=True,  # not asked for by name it is a warning
        )


def try_it() -> None:
    """Run a step on a GPU; raises whatever is amiss with Triton here."""
    one = torch.ones(1, 1, 1, device="cuda")
    problem = scan.Problem(one, one[0], None, None, paired=False)
    forward(problem, one, torch.empty_like(one))
