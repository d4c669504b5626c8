"""Channels with a linear system each in Triton, for float32 on a GPU: one kernel each way.

A program runs a few channels of one batch entry through all steps, with their states in registers.
Nothing is added up across programs but in sums of PyTorch, so that results are deterministic.

The backward pass goes through the chunks of steps from the last to the first. In each it computes
the states again from the one before the chunk, and writes them to a buffer of one chunk. Other
threads of the program may read them, which the compiler does not check: barriers separate the two.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from rlgates.kernels import layout
from rlgates.kernels.channels import FIXED, SHARED, ChannelGradients, ChannelProblem, Kept
from rlgates.kernels.triton.gates import sigmoid
from rlgates.kernels.triton.scan import get, put, times_conj
from rlgates.kernels.triton.step import add_to

# Numbers of the state of a program, for each of its warps: estimates, not yet measured on a GPU.
_NUMBERS = 128
_MAX_WARPS = 8
# How many steps are loaded ahead of the one that is computed.
_STAGES = tl.constexpr(4)
_CHUNK = tl.constexpr(layout.CHUNK)


@triton.jit
def _softplus(x):
    """log(1 + exp(x)), where it is small too: log(1 + y) is the series of 2 artanh(y / (2 + y))."""
    y = tl.exp(-tl.abs(x))
    w = y / (2.0 + y)
    v = w * w
    p = 0.111111111 + v * (0.0909090909 + v * 0.0769230769)
    p = 0.2 + v * (0.142857143 + v * p)
    return tl.where(x > 0.0, x, 0.0) + 2.0 * (w + w * v * (0.333333333 + v * p))


@triton.jit
def _tile_if(condition, here, number, size):
    """The mask of the numbers of the channels that there are; false for all without the condition.

    Triton 3.9's interpreter takes no mask that was combined with a scalar.
    """
    return here[:, None] & (number < tl.where(condition, size, 0))[None, :]


@triton.jit
def _rates(a, channel, unit, here, inside, SHARED: tl.constexpr):
    """The rates of selective systems, (channels, 1) or (channels, numbers)."""
    if SHARED:
        rates = tl.load(a + channel, mask=here, other=0.0)[:, None]
    else:
        rates = tl.load(a + unit, mask=inside, other=0.0)
    return rates


@triton.jit
def _advance(re, im, a_re, a_im, b_re, b_im, w, COMPLEX: tl.constexpr):
    """a h + w b"""
    if COMPLEX:
        return w * b_re + a_re * re - a_im * im, w * b_im + a_re * im + a_im * re
    return w * b_re + a_re * re, im


@triton.jit
def _dot(x_re, x_im, y_re, y_im, COMPLEX: tl.constexpr):
    """The sums over the numbers of each channel of products of real numbers, or of pairs."""
    products = x_re * y_re
    if COMPLEX:
        products += x_im * y_im
    return tl.sum(products, axis=1)


@triton.jit(do_not_specialize=["steps", "batch_size"])
def _forward(
    episode_starts,
    u,
    step,
    step_bias,
    gate,
    a,
    b,
    c,
    skip,
    h_0,
    initial,
    outputs,
    last,
    kept,
    y,
    steps,
    batch_size,
    channels,
    size,
    u_stride,
    step_stride,
    gate_stride,
    b_stride,
    c_stride,
    h_0_stride,
    initial_stride,
    COMPLEX: tl.constexpr,
    SHARED: tl.constexpr,
    CHANNELS: tl.constexpr,
    SIZE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    number = tl.arange(0, SIZE)
    here = channel < channels
    in_size = number < size
    inside = here[:, None] & in_size[None, :]
    unit = channel[:, None] * size + number[None, :]
    units = channels * size  # of one part of the state
    width = units
    if COMPLEX:
        width += units
    zero = tl.zeros((CHANNELS, SIZE), tl.float32)
    re, im = get(h_0 + row * h_0_stride + unit, units, inside, zero, zero, COMPLEX)
    if episode_starts is not None:
        begin = initial + row * initial_stride + unit
        initial_re, initial_im = get(begin, units, inside, zero, zero, COMPLEX)
    if COMPLEX:
        a_re, a_im = get(a + unit, units, inside, zero, zero, COMPLEX)
        b_re, b_im = get(b + unit, units, inside, zero, zero, COMPLEX)
        c_re, c_im = get(c + unit, units, inside, zero, zero, COMPLEX)
    else:
        rate = _rates(a, channel, unit, here, inside, SHARED)
        bias = tl.load(step_bias + channel, mask=here, other=0.0)
        a_im, b_im, c_im = zero, zero, zero
    skipped = tl.load(skip + channel, mask=here, other=0.0)
    place = row  # of a step and batch entry
    t = row * 0
    for _ in tl.range(0, steps, num_stages=_STAGES):
        if episode_starts is not None:
            start = tl.load(episode_starts + place) != 0
            re = tl.where(start, initial_re, re)
            im = tl.where(start, initial_im, im)
        u_t = tl.load(u + place * u_stride + channel, mask=here, other=0.0)
        w = u_t
        if not COMPLEX:
            raw = tl.load(step + place * step_stride + channel, mask=here, other=0.0) + bias
            of_step = _softplus(raw)
            w = of_step * u_t
            a_re = tl.exp(of_step[:, None] * rate)
            b_re = tl.load(b + place * b_stride + number, mask=in_size, other=0.0)[None, :]
            c_re = tl.load(c + place * c_stride + number, mask=in_size, other=0.0)[None, :]
        re, im = _advance(re, im, a_re, a_im, b_re, b_im, w[:, None], COMPLEX)
        value = _dot(c_re, c_im, re, im, COMPLEX) + skipped * u_t
        at = place * channels + channel
        if gate is not None:
            if y is not None:
                tl.store(y + at, value, mask=here)
            z = tl.load(gate + place * gate_stride + channel, mask=here, other=0.0)
            value *= z * sigmoid(z)
        tl.store(outputs + at, value, mask=here)
        place += batch_size
        t += 1
        if kept is not None:
            ends = _tile_if((t % _CHUNK == 0) & (t < steps), here, number, size)
            to = kept + ((t // _CHUNK - 1) * batch_size + row) * width + unit
            put(to, re, im, units, ends, COMPLEX)
    put(last + row * width + unit, re, im, units, inside, COMPLEX)


@triton.jit(do_not_specialize=["steps", "batch_size"])
def _backward(
    episode_starts,
    u,
    step,
    step_bias,
    gate,
    a,
    b,
    c,
    skip,
    h_0,
    initial,
    kept,
    y,
    d_outputs,
    d_carry,
    d_u,
    d_step,
    d_gate,
    d_b,
    d_c,
    d_initial,
    d_sums,
    states,
    steps,
    batch_size,
    channels,
    size,
    u_stride,
    step_stride,
    gate_stride,
    b_stride,
    c_stride,
    h_0_stride,
    initial_stride,
    COMPLEX: tl.constexpr,
    SHARED: tl.constexpr,
    CHANNELS: tl.constexpr,
    SIZE: tl.constexpr,
):
    """As `ChannelGradients`, but d_b and d_c are (programs of channels, T, B, N).

    d_sums  (B, ...) float64, zeros before: the sums over the steps
    states  (CHUNK, B, S): what each step of a chunk reads
    """
    row = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    number = tl.arange(0, SIZE)
    here = channel < channels
    in_size = number < size
    inside = here[:, None] & in_size[None, :]
    unit = channel[:, None] * size + number[None, :]
    units = channels * size
    width = units
    if COMPLEX:
        width += units
    zero = tl.zeros((CHANNELS, SIZE), tl.float32)
    none = tl.zeros((CHANNELS,), tl.float32)
    if episode_starts is not None:
        begin = initial + row * initial_stride + unit
        initial_re, initial_im = get(begin, units, inside, zero, zero, COMPLEX)
    if COMPLEX:
        a_re, a_im = get(a + unit, units, inside, zero, zero, COMPLEX)
        b_re, b_im = get(b + unit, units, inside, zero, zero, COMPLEX)
        c_re, c_im = get(c + unit, units, inside, zero, zero, COMPLEX)
        d_sums += row * (3 * width + channels)
        d_skip = d_sums + 3 * width + channel
    else:
        rate = _rates(a, channel, unit, here, inside, SHARED)
        bias = tl.load(step_bias + channel, mask=here, other=0.0)
        a_im, b_im, c_im = zero, zero, zero
        rates = channels if SHARED else units
        d_sums += row * (rates + 2 * channels)
        d_skip = d_sums + rates + channel
        # The sums over the channels of this program.
        part = tl.program_id(1).to(tl.int64) * steps * batch_size * size
    skipped = tl.load(skip + channel, mask=here, other=0.0)
    d_re, d_im = get(d_carry + row * width + unit, units, inside, zero, zero, COMPLEX)
    first_re, first_im = zero, zero
    chunk = (steps - 1) // _CHUNK
    for _ in tl.range(0, chunk + 1, num_stages=1):
        first = chunk * _CHUNK
        count = tl.minimum(steps - first, _CHUNK)
        mask = _tile_if(chunk == 0, here, number, size)
        re, im = get(h_0 + row * h_0_stride + unit, units, mask, zero, zero, COMPLEX)
        mask = _tile_if(chunk > 0, here, number, size)
        before = kept + ((chunk - 1).to(tl.int64) * batch_size + row) * width + unit
        re, im = get(before, units, mask, re, im, COMPLEX)
        place = first.to(tl.int64) * batch_size + row
        old = states + row * width + unit
        for _ in tl.range(0, count, num_stages=_STAGES):
            if episode_starts is not None:
                start = tl.load(episode_starts + place) != 0
                re = tl.where(start, initial_re, re)
                im = tl.where(start, initial_im, im)
            put(old, re, im, units, inside, COMPLEX)
            w = tl.load(u + place * u_stride + channel, mask=here, other=0.0)
            if not COMPLEX:
                raw = tl.load(step + place * step_stride + channel, mask=here, other=0.0) + bias
                of_step = _softplus(raw)
                w *= of_step
                a_re = tl.exp(of_step[:, None] * rate)
                b_re = tl.load(b + place * b_stride + number, mask=in_size, other=0.0)[None, :]
            re, im = _advance(re, im, a_re, a_im, b_re, b_im, w[:, None], COMPLEX)
            place += batch_size
            old += batch_size * width
        tl.debug_barrier()
        # Sums over the steps of a chunk in float32, of chunks in float64.
        d_a_re, d_a_im, d_b_re, d_b_im, d_c_re, d_c_im = zero, zero, zero, zero, zero, zero
        d_rate, skip_sum, bias_sum = none, none, none
        for _ in tl.range(0, count, num_stages=_STAGES):
            place -= batch_size
            old -= batch_size * width
            at = place * channels + channel
            re, im = get(old, units, inside, zero, zero, COMPLEX)
            u_t = tl.load(u + place * u_stride + channel, mask=here, other=0.0)
            d_y = tl.load(d_outputs + at, mask=here, other=0.0)
            if gate is not None:
                z = tl.load(gate + place * gate_stride + channel, mask=here, other=0.0)
                open = sigmoid(z)
                d_z = d_y * tl.load(y + at, mask=here, other=0.0) * open * (1.0 + z * (1.0 - open))
                tl.store(d_gate + at, d_z, mask=here)
                d_y *= z * open
            skip_sum += d_y * u_t
            w = u_t
            if not COMPLEX:
                raw = tl.load(step + place * step_stride + channel, mask=here, other=0.0) + bias
                of_step = _softplus(raw)
                w = of_step * u_t
                a_re = tl.exp(of_step[:, None] * rate)
                b_re = tl.load(b + place * b_stride + number, mask=in_size, other=0.0)[None, :]
                c_re = tl.load(c + place * c_stride + number, mask=in_size, other=0.0)[None, :]
            new_re, new_im = _advance(re, im, a_re, a_im, b_re, b_im, w[:, None], COMPLEX)
            d_re += d_y[:, None] * c_re
            if COMPLEX:
                d_im += d_y[:, None] * c_im
            d_w = _dot(b_re, b_im, d_re, d_im, COMPLEX)
            of_b, of_c = w[:, None] * d_re, d_y[:, None] * new_re
            if COMPLEX:
                d_b_re += of_b
                d_b_im += w[:, None] * d_im
                d_c_re += of_c
                d_c_im += d_y[:, None] * new_im
                of_a_re, of_a_im = times_conj(d_re, d_im, re, im, COMPLEX)
                d_a_re += of_a_re
                d_a_im += of_a_im
            else:
                to = part + place * size + number
                tl.store(d_b + to, tl.sum(of_b, axis=0), mask=in_size)
                tl.store(d_c + to, tl.sum(of_c, axis=0), mask=in_size)
            d_re, d_im = times_conj(d_re, d_im, a_re, a_im, COMPLEX)
            if not COMPLEX:
                slope = d_re * re  # of step * rate
                if SHARED:
                    d_rate += of_step * tl.sum(slope, axis=1)
                else:
                    d_a_re += of_step[:, None] * slope
                of_raw = (tl.sum(rate * slope, axis=1) + d_w * u_t) * sigmoid(raw)
                bias_sum += of_raw
                tl.store(d_step + at, of_raw, mask=here)
                d_w *= of_step
            tl.store(d_u + at, skipped * d_y + d_w, mask=here)
            if episode_starts is not None:
                start = tl.load(episode_starts + place) != 0
                first_re += tl.where(start, d_re, 0.0)
                first_im += tl.where(start, d_im, 0.0)
                d_re = tl.where(start, 0.0, d_re)
                d_im = tl.where(start, 0.0, d_im)
        if COMPLEX:
            add_to(d_sums + unit, d_a_re, inside)
            add_to(d_sums + unit + units, d_a_im, inside)
            add_to(d_sums + unit + width, d_b_re, inside)
            add_to(d_sums + unit + width + units, d_b_im, inside)
            add_to(d_sums + unit + 2 * width, d_c_re, inside)
            add_to(d_sums + unit + 2 * width + units, d_c_im, inside)
        else:
            if SHARED:
                add_to(d_sums + channel, d_rate, here)
            else:
                add_to(d_sums + unit, d_a_re, inside)
            add_to(d_skip + channels, bias_sum, here)
        add_to(d_skip, skip_sum, here)
        tl.debug_barrier()
        chunk -= 1
    put(d_carry + row * width + unit, d_re, d_im, units, inside, COMPLEX)
    if d_initial is not None:
        put(d_initial + row * width + unit, first_re, first_im, units, inside, COMPLEX)


def _tile(problem: ChannelProblem, warps: int) -> tuple[int, int]:
    """The channels of a program, and the numbers of each, in powers of 2."""
    _, _, channels, size, width = problem.sizes
    numbers = triton.next_power_of_2(size)
    parts = width // (channels * size)
    most = max(1, warps * _NUMBERS // (parts * numbers))
    return min(most, triton.next_power_of_2(channels)), numbers


def _launch(
    kernel: Any, problem: ChannelProblem, tile: tuple[int, int], *tensors: Tensor | None
) -> None:
    steps, batch_size, channels, size, _ = problem.sizes
    if batch_size == 0:
        return
    warps = max(1, tile[0] * tile[1] // _NUMBERS)
    with torch.cuda.device_of(problem.inputs[0]):
        kernel[batch_size, triton.cdiv(channels, tile[0])](
            *(problem.episode_starts, *problem.inputs, *tensors),
            *(steps, batch_size, channels, size, *problem.strides),
            COMPLEX=problem.kind == FIXED,
            SHARED=problem.kind == SHARED,
            CHANNELS=tile[0],
            SIZE=tile[1],
            num_warps=min(_MAX_WARPS, warps),
            enable_fp_fusion=True,  # the default, but Triton 3.9 warns where it is not set
        )


def forward(problem: ChannelProblem, outputs: Tensor, last: Tensor, kept: Kept | None) -> None:
    """See `rlgates.kernels.channels.ChannelKernel`."""
    _launch(_forward, problem, _tile(problem, 1), outputs, last, *(kept or (None, None)))


def backward(problem: ChannelProblem, kept: Kept, d: ChannelGradients) -> Tensor:
    """See `rlgates.kernels.channels.ChannelKernel`."""
    steps, batch_size, channels, _, width = problem.sizes
    # Programs of more channels leave fewer sums of theirs to add up.
    tile = _tile(problem, 1 if problem.kind == FIXED else _MAX_WARPS)
    programs = triton.cdiv(channels, tile[0])
    states = d.carry.new_empty(min(steps, layout.CHUNK), batch_size, width)
    sums = d.carry.new_zeros(batch_size, sum(problem.sums), dtype=torch.float64)
    d_b, d_c = (None if t is None else t.new_empty(programs, *t.shape) for t in (d.b, d.c))
    _launch(_backward, problem, tile, *kept, *d._replace(b=d_b, c=d_c), sums, states)
    for parts, total in ((d_b, d.b), (d_c, d.c)):
        if parts is not None:
            torch.sum(parts, 0, out=total)
    return sums
