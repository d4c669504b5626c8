"""The linear recurrence in log2(T) operations of torch, on any device and of any dtype."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from rlgates.kernels.scan import Problem


class _Doubling(torch.autograd.Function):
    """h_t = a_t h_{t-1} + b_t from h = 0, and h_t = b_t where an episode starts.

    After n rounds a state holds what the last 2^n inputs left in it. Factors are multiplied and
    that is all: nothing is divided by them and no logarithm taken, so they may be 0. A product of
    n of them is wrong by n roundings at most. The gradient is the same recurrence from the other
    end, and has gradients of any order.

    a is (T, B, S), or (1, 1, S) if it is the same in every step and row. It may be complex.
    """

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, starts: Tensor | None) -> Tensor:
        ctx.steady = a.shape[:2] != b.shape[:2]
        h, reach = b.clone(), 1
        # For the steps from `reach` on: the product of the last `reach` factors, and whether an
        # episode started at one of them.
        factor = _exactly(a) if ctx.steady else a[1:]
        cut = None if starts is None else starts[1:].unsqueeze(-1)
        while reach < len(h):
            older = factor.to(h.dtype) * h[:-reach]
            if cut is not None:
                older.masked_fill_(cut, 0)
                cut = cut[reach:] | cut[:-reach]
            h[reach:] += older
            factor = factor * factor if ctx.steady else factor[reach:] * factor[:-reach]
            reach *= 2
        ctx.save_for_backward(a, h, starts)
        return h

    @staticmethod
    def backward(ctx: Any, d_h: Tensor) -> tuple[Tensor | None, Tensor, None]:
        a, h, starts = ctx.saved_tensors
        later = a if ctx.steady else _from_the_end(a)
        ends = None if starts is None else _from_the_end(starts)
        d_b = _Doubling.apply(later.conj(), d_h.flip(0), ends).flip(0)  # type: ignore[no-untyped-call]
        if not ctx.needs_input_grad[0]:
            return None, d_b, None
        d_a = d_b[1:] * h[:-1].conj()
        if starts is not None:
            d_a = d_a.masked_fill(starts[1:].unsqueeze(-1), 0)
        if ctx.steady:
            return d_a.sum((0, 1), keepdim=True), d_b, None
        return torch.cat([torch.zeros_like(h[:1]), d_a]), d_b, None


def _exactly(a: Tensor) -> Tensor:
    """In float64, since a square is twice as wrong as its root; Metal has none."""
    return a if a.device.type == "mps" else a.to(torch.promote_types(a.dtype, torch.float64))


def _from_the_end(x: Tensor) -> Tensor:
    """x_0 and then x_{T-1}, ..., x_1: what stands between two steps, seen from the other end."""
    return x.roll(-1, 0).flip(0)


def states(problem: Problem, into: Tensor) -> Tensor:
    """The states (T, B, S) after each step, from b: see `rlgates.kernels.scan`."""
    factor, first, initial, starts, paired = problem
    if paired:
        factor, into, first = map(_complex, (factor, into, first))
        initial = None if initial is None else _complex(initial)
    if factor.ndim == 1:
        factor = factor.expand(1, 1, -1)
    # Where the state that enters is known, what it leaves becomes part of b.
    if starts is None or initial is None:
        into = torch.cat([torch.addcmul(into[:1], factor[:1], first), into[1:]])
    else:
        begin = starts.unsqueeze(-1)
        known = torch.where(begin[:1], initial, first), torch.where(begin[1:], initial, 0)
        into = torch.addcmul(into, factor, torch.cat(known))
    h: Tensor = _Doubling.apply(factor, into, starts)  # type: ignore[no-untyped-call]
    return torch.cat([h.real, h.imag], dim=-1) if paired else h


def _complex(x: Tensor) -> Tensor:
    re, im = x.chunk(2, dim=-1)
    return torch.complex(re, im)
