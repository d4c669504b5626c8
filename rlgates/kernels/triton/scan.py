"""The linear recurrence in Triton, for float32 on a GPU: one kernel each way.

A program runs a few units of one batch entry through all steps; both are independent. Nothing is
summed across programs, so that results are deterministic.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from rlgates.kernels.scan import ScanGradients, ScanProblem

# Units of a program: only a warp, since batch entries and units are all the parallelism there is.
_UNITS = 64
# How many steps are loaded ahead of the one that is computed.
_STAGES = tl.constexpr(4)


@triton.jit
def get(pointer, units, mask, re_else, im_else, COMPLEX: tl.constexpr):
    """A number, or another one where the mask is false; `im` of a real number is never read."""
    re = tl.load(pointer, mask=mask, other=re_else)
    if COMPLEX:
        return re, tl.load(pointer + units, mask=mask, other=im_else)
    return re, im_else


@triton.jit
def put(pointer, re, im, units, mask, COMPLEX: tl.constexpr):
    tl.store(pointer, re, mask=mask)
    if COMPLEX:
        tl.store(pointer + units, im, mask=mask)


@triton.jit
def times_conj(x_re, x_im, y_re, y_im, COMPLEX: tl.constexpr):
    """x conj(y)"""
    if COMPLEX:
        return x_re * y_re + x_im * y_im, x_im * y_re - x_re * y_im
    return x_re * y_re, x_im


@triton.jit(do_not_specialize=["steps", "batch_size"])
def _forward(
    a,
    b,
    h_0,
    initial,
    episode_starts,
    states,
    steps,
    batch_size,
    units,
    step,
    a_step_stride,
    a_row_stride,
    h_0_stride,
    initial_stride,
    COMPLEX: tl.constexpr,
    UNITS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    unit = tl.program_id(1) * UNITS + tl.arange(0, UNITS)
    mask = unit < units
    zero = tl.full((UNITS,), 0.0, tl.float32)
    here = row * units + unit
    if COMPLEX:
        here += row * units
    a += row * a_row_stride + unit
    b += here
    states += here
    re, im = get(h_0 + row * h_0_stride + unit, units, mask, zero, zero, COMPLEX)
    if episode_starts is not None:
        episode_starts += row
        begin = initial + row * initial_stride + unit
        initial_re, initial_im = get(begin, units, mask, zero, zero, COMPLEX)
    for _ in tl.range(0, steps, num_stages=_STAGES):
        if episode_starts is not None:
            start = tl.load(episode_starts) != 0
            re = tl.where(start, initial_re, re)
            im = tl.where(start, initial_im, im)
            episode_starts += batch_size
        a_re, a_im = get(a, units, mask, zero, zero, COMPLEX)
        b_re, b_im = get(b, units, mask, zero, zero, COMPLEX)
        if COMPLEX:
            old = re
            re = b_re + a_re * old - a_im * im
            im = b_im + a_re * im + a_im * old
        else:
            re = b_re + a_re * re
        put(states, re, im, units, mask, COMPLEX)
        a += a_step_stride
        b += step
        states += step


@triton.jit(do_not_specialize=["steps", "batch_size"])
def _backward(
    a,
    h_0,
    initial,
    episode_starts,
    states,
    d_states,
    d_carry,
    d_a,
    d_a_sums,
    d_b,
    d_initial,
    steps,
    batch_size,
    units,
    step,
    a_step_stride,
    a_row_stride,
    h_0_stride,
    initial_stride,
    COMPLEX: tl.constexpr,
    UNITS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    unit = tl.program_id(1) * UNITS + tl.arange(0, UNITS)
    mask = unit < units
    zero = tl.full((UNITS,), 0.0, tl.float32)
    here = row * units + unit
    if COMPLEX:
        here += row * units
    last = (steps - 1).to(tl.int64)
    a += last * a_step_stride + row * a_row_stride + unit
    at = last * step + here
    h_0_re, h_0_im = get(h_0 + row * h_0_stride + unit, units, mask, zero, zero, COMPLEX)
    if episode_starts is not None:
        episode_starts += last * batch_size + row
        begin = initial + row * initial_stride + unit
        initial_re, initial_im = get(begin, units, mask, zero, zero, COMPLEX)
    re, im = get(d_carry + here, units, mask, zero, zero, COMPLEX)
    begin_sum_re, begin_sum_im = zero, zero
    sum_re, sum_im = zero.to(tl.float64), zero.to(tl.float64)
    t = last
    for _ in tl.range(0, steps, num_stages=_STAGES):
        if d_states is not None:
            d_re, d_im = get(d_states + at, units, mask, zero, zero, COMPLEX)
            re += d_re
            im += d_im
        if d_b is not None:
            put(d_b + at, re, im, units, mask, COMPLEX)
        if episode_starts is not None:
            start = tl.load(episode_starts) != 0
            episode_starts -= batch_size
        if d_a is not None or d_a_sums is not None:
            older = unit < tl.where(t > 0, units, 0)
            old_re, old_im = get(states + at - step, units, older, h_0_re, h_0_im, COMPLEX)
            if episode_starts is not None:
                old_re = tl.where(start, initial_re, old_re)
                old_im = tl.where(start, initial_im, old_im)
            da_re, da_im = times_conj(re, im, old_re, old_im, COMPLEX)
            if d_a is not None:
                put(d_a + at, da_re, da_im, units, mask, COMPLEX)
            if d_a_sums is not None:
                sum_re += da_re.to(tl.float64)
                sum_im += da_im.to(tl.float64)
        a_re, a_im = get(a, units, mask, zero, zero, COMPLEX)
        re, im = times_conj(re, im, a_re, a_im, COMPLEX)
        if episode_starts is not None:
            begin_sum_re += tl.where(start, re, 0.0)
            begin_sum_im += tl.where(start, im, 0.0)
            re = tl.where(start, 0.0, re)
            im = tl.where(start, 0.0, im)
        a -= a_step_stride
        at -= step
        t -= 1
    put(d_carry + here, re, im, units, mask, COMPLEX)
    if d_initial is not None:
        put(d_initial + here, begin_sum_re, begin_sum_im, units, mask, COMPLEX)
    if d_a_sums is not None:
        put(d_a_sums + here, sum_re, sum_im, units, mask, COMPLEX)


def forward(problem: ScanProblem, b: Tensor, states: Tensor) -> None:
    """See `rlgates.kernels.scan.ScanKernel`."""
    a, h_0, initial, episode_starts, _ = problem
    _launch(_forward, problem, b, a, b, h_0, initial, episode_starts, states)


def backward(problem: ScanProblem, states: Tensor, d: ScanGradients) -> None:
    """See `rlgates.kernels.scan.ScanKernel`."""
    a, h_0, initial, episode_starts, _ = problem
    _launch(_backward, problem, states, a, h_0, initial, episode_starts, states, *d)


def _launch(kernel: Any, problem: ScanProblem, like: Tensor, *tensors: Tensor | None) -> None:
    steps, batch_size, width = like.shape
    units = width // 2 if problem.is_complex else width
    block = min(_UNITS, triton.next_power_of_2(units))
    if batch_size == 0:
        return
    with torch.cuda.device_of(like):
        kernel[batch_size, triton.cdiv(units, block)](
            *tensors,
            *(steps, batch_size, units, batch_size * width),
            *problem.strides,
            COMPLEX=problem.is_complex,
            UNITS=block,
            num_warps=1,
            enable_fp_fusion=True,  # the default, but Triton 3.9 warns where it is not set
        )


def run_one_step() -> None:
    """Run one step on a GPU; raises what fails where Triton does not work."""
    one = torch.ones(1, 1, 1, dtype=torch.float32, device="cuda")
    problem = ScanProblem(one, one[0], None, None, is_complex=False)
    forward(problem, one, torch.empty_like(one))
