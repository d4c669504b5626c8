"""Recurrences that are linear in their state, h_t = a_t h_{t-1} + b_t, for all steps at once.

`native_scan` and `triton_scan` run through time in one pass over the numbers; `doubling` takes
log2(T) operations of torch, on any device. All mean what the loop over `LinearCell.step` does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch import Tensor

from rlgates.kernels import doubling

if TYPE_CHECKING:
    from rlgates.cell import State


class Linear(NamedTuple):
    """A step h' = a * h + b and its output, for all steps: what the input decides of them.

    Numbers are real, with S = d, or complex, with S = 2 d: the real parts, then the imaginary.

    Attributes:
        factor: a, (T, B, S); (S,) if it is the same in every step and row.
        into: b, (T, B, S).
        beside: what the output reads beside h, (T, B, R); None if it reads h alone.
    """

    factor: Tensor
    into: Tensor
    beside: Tensor | None = None


class Scan(NamedTuple):
    """What a fast path needs of a cell that is linear in its state: see `LinearCell`."""

    linear: Callable[[Tensor], Linear]
    read: Callable[[Tensor, Tensor | None], Tensor]


class Problem(NamedTuple):
    """All of a scan but b; sizes as in `Linear`.

    Attributes:
        factor: a.
        first: the state before the first step, (B, S).
        initial: the state where an episode starts, (B, S); None without starts.
        starts: (T, B) bool, or None.
        paired: whether numbers are complex.
    """

    factor: Tensor
    first: Tensor
    initial: Tensor | None
    starts: Tensor | None
    paired: bool

    def in_rows(self) -> Problem:
        """The same with the numbers of every row in one piece, whatever lies between rows."""
        return Problem(
            _in_rows(self.factor),
            _in_rows(self.first),
            None if self.initial is None else _in_rows(self.initial),
            None if self.starts is None else self.starts.contiguous(),
            self.paired,
        )

    @property
    def strides(self) -> tuple[int, int, int, int]:
        """Of the factor between steps and between rows, of `first` and `initial` between rows."""
        steady = self.factor.ndim == 1
        step, row = (0, 0) if steady else self.factor.stride()[:2]
        return (
            step,
            row,
            self.first.stride(0),
            0 if self.initial is None else self.initial.stride(0),
        )


class Gradients(NamedTuple):
    """What the way back is given and what it fills in; sizes as in `Linear`.

    Attributes:
        states: given, of the state after each step, (T, B, S); None for zeros.
        carry: given, of the last state, (B, S); becomes that of the first.
        factor, into, initial: to be filled, as `Linear` and `Problem` have them, but None where
            nobody wants it, or the factor is the same in every step.
        factor_sums: then its sums over the steps, (B, S), in float64.
    """

    states: Tensor | None
    carry: Tensor
    factor: Tensor | None
    factor_sums: Tensor | None
    into: Tensor | None
    initial: Tensor | None


class Kernel(Protocol):
    """A scan of float32 in one pass each way. Tensors (T, B, S) are dense, others `in_rows`."""

    def forward(self, problem: Problem, into: Tensor, states: Tensor) -> None:
        """Fill in the states after each step, from b."""

    def backward(self, problem: Problem, states: Tensor, d: Gradients) -> None:
        """Fill in the gradients."""


class _Sequence(torch.autograd.Function):
    """The states after each step, and the last one, by a `Kernel`."""

    @staticmethod
    def forward(
        ctx: Any,
        kernel: Kernel,
        into: Tensor,
        factor: Tensor,
        first: Tensor,
        initial: Tensor | None,
        starts: Tensor | None,
        paired: bool,
    ) -> tuple[Tensor, Tensor]:
        states = _states(kernel, Problem(factor, first, initial, starts, paired), into)
        ctx.set_materialize_grads(False)
        ctx.kernel, ctx.paired = kernel, paired
        # The starts go the same way as the rest, so that a change in place is noticed.
        ctx.save_for_backward(factor, first, initial, starts, states)
        return states, states[-1].clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        _, *wanted, _, _ = ctx.needs_input_grad
        *problem, states = ctx.saved_tensors
        result = _Backward.apply(  # type: ignore[no-untyped-call]
            ctx.kernel, wanted, ctx.paired, *problem, states, *gradients
        )
        return (None, *result, None, None)


class _Backward(torch.autograd.Function):
    """The way back, which has no way back: who asks for a second derivative is told so."""

    @staticmethod
    def forward(
        ctx: Any,
        kernel: Kernel,
        wanted: list[bool],
        paired: bool,
        factor: Tensor,
        first: Tensor,
        initial: Tensor | None,
        starts: Tensor | None,
        states: Tensor,
        d_states: Tensor | None,
        d_final: Tensor | None,
    ) -> tuple[Tensor | None, ...]:
        wants_into, wants_factor, wants_first, wants_initial = wanted
        steady = factor.ndim == 1
        last = states[-1]
        d = Gradients(
            None if d_states is None else d_states.contiguous(),
            torch.zeros_like(last) if d_final is None else torch.empty_like(last).copy_(d_final),
            torch.empty_like(states) if wants_factor and not steady else None,
            torch.zeros_like(last, dtype=torch.float64) if wants_factor and steady else None,
            torch.empty_like(states) if wants_into else None,
            torch.zeros_like(last) if wants_initial else None,
        )
        kernel.backward(Problem(factor, first, initial, starts, paired).in_rows(), states, d)
        d_factor = d.factor if d.factor_sums is None else d.factor_sums.sum(0).to(factor.dtype)
        return d.into, d_factor, d.carry if wants_first else None, d.initial

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> None:
        raise RuntimeError(
            "this fast path has no second derivative: give the core backend='scan' for one."
        )


def _states(kernel: Kernel, problem: Problem, into: Tensor) -> Tensor:
    into = into.contiguous()
    states = torch.empty_like(into)
    kernel.forward(problem.in_rows(), into, states)
    return states


def _in_rows(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def scan(problem: Problem, into: Tensor, kernel: Kernel | None) -> tuple[Tensor, Tensor]:
    """The states (T, B, S) after each step of h_t = a_t h_{t-1} + b_t, and the last one (B, S).

    Args:
        problem: all but b.
        into: b, (T, B, S).
        kernel: what runs it, in float32; None for `doubling`, which takes any one dtype.

    Raises:
        ValueError: shapes, dtypes or devices that do not fit together.
    """
    factor, first, initial, *_ = problem
    shape, state = into.shape, into.shape[1:]
    sizes = [(into, shape), (factor, shape if factor.ndim > 1 else shape[2:]), (first, state)]
    sizes += [] if initial is None else [(initial, state)]
    dtype = into.dtype if kernel is None else torch.float32
    for tensor, size in sizes:  # addresses know no bounds
        if tensor.shape != size or tensor.dtype != dtype or tensor.device != into.device:
            raise ValueError(
                f"must be {dtype} of shape {tuple(size)} on {into.device}, "
                f"got {tensor.dtype}{tuple(tensor.shape)} on {tensor.device}."
            )
    if kernel is None:
        states = doubling.states(problem, into)
    elif torch.is_grad_enabled() and any(tensor.requires_grad for tensor, _ in sizes):
        return _Sequence.apply(kernel, into, *problem)  # type: ignore[no-untyped-call, no-any-return]
    else:
        states = _states(kernel, problem, into)
    return states, states[-1]


def run(
    cell: Scan,
    x: Tensor,
    state: State,
    starts: Tensor | None,
    initial: State | None,
    kernel: Kernel | None,
) -> tuple[Tensor, State]:
    """Run a linear cell over x (T, B, I): outputs (T, B, O) and the parts of the final state.

    Args:
        cell: what it does.
        x: its inputs (T, B, I).
        state: the parts of its state before the first step: h, or its two parts.
        starts: (T, B) bool, or None; true where an episode starts.
        initial: the parts of the state from where it does; None without starts.
        kernel: as for `scan`.

    Raises:
        ValueError: a and b that do not fit the state.
    """
    paired = len(state) == 2
    factor, into, beside = cell.linear(x)
    # Autocast, and weights in half precision, may leave some of them narrower than others.
    dtype = torch.promote_types(into.dtype, state[0].dtype)
    first, begin = _joined(state).to(dtype), None
    if initial is not None:
        begin = _joined(initial).to(dtype)
    problem = Problem(factor.to(dtype), first, begin, starts, paired)
    states, final = scan(problem, into.to(dtype), kernel)
    outputs = cell.read(states, beside)
    if outputs is states and states.requires_grad:
        outputs = states.clone()  # the backward pass needs them as they are
    return outputs, tuple(final.chunk(2, dim=-1)) if paired else (final,)


def _joined(state: State) -> Tensor:
    return state[0] if len(state) == 1 else torch.cat(state, dim=-1)
