"""Cells with weights of their own in native code: their sizes checked, their place in autograd."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rlgates.kernels import calls, native
from rlgates.kernels.recurrence import Loop
from rlgates.kernels.shapes import CELLS, Shapes

_PARTS, _SIZES, _WEIGHTS, _KEPT = 2, 8, 10, 6  # as many as `Loop` of call.h has room for


class _Task(NamedTuple):
    """A layer over a sequence: all but the numbers."""

    cell: int
    sizes: tuple[int, ...]
    rate: float
    shapes: Shapes
    steps: int
    rows: int


class _Given(NamedTuple):
    """The numbers that go in, or their gradients: `fresh` is the state where an episode starts."""

    x: Tensor
    first: Sequence[Tensor]
    fresh: Sequence[Tensor]
    weights: Sequence[Tensor]

    @classmethod
    def of(cls, task: _Task, tensors: Sequence[Any]) -> _Given:
        """From a flat list, in which the fresh state may be missing."""
        parts, weights = len(task.shapes.parts), len(task.shapes.weights)
        states = tensors[1 : len(tensors) - weights]
        return cls(tensors[0], states[:parts], states[parts:], tensors[len(tensors) - weights :])

    @property
    def flat(self) -> tuple[Tensor, ...]:
        return self.x, *self.first, *self.fresh, *self.weights


class _Made(NamedTuple):
    """What comes out, or its gradients: what the steps leave (T, B, O), and the final state."""

    outputs: Tensor | None
    last: Sequence[Tensor] = ()


class _Kept(NamedTuple):
    """What the way back needs, see `Loop` of call.h."""

    entering: Sequence[Tensor] = ()
    others: Sequence[Tensor] = ()


_LAYOUT = struct.Struct("=6qd74q")


def _filled(numbers: Sequence[int], size: int) -> list[int]:
    return [*numbers, *[0] * (size - len(numbers))]


def _at(*tensors: Tensor | None, room: int = 1) -> list[int]:
    return _filled([0 if tensor is None else tensor.data_ptr() for tensor in tensors], room)


def _pack(
    task: _Task,
    wants: tuple[bool, bool],
    starts: Tensor | None,
    noise: Tensor | None,
    given: _Given,
    made: _Made,
    kept: _Kept,
    d_made: _Made,
    d: _Given | None,
) -> bytes:
    """As `Loop` of call.h is laid out; an address is 0 for none."""
    shapes = task.shapes
    return _LAYOUT.pack(
        *(task.cell, calls.threads(), task.steps, task.rows, *wants, task.rate),
        *_filled(task.sizes, _SIZES),
        *(shapes.inputs, shapes.projected, shapes.outputs, shapes.noise),
        *_filled(shapes.parts, _PARTS),
        *_filled(shapes.kept, _KEPT),
        *_filled([weight.numel() for weight in given.weights], _WEIGHTS),
        *_at(starts, given.x, noise, room=3),
        *_at(*given.first, room=_PARTS),
        *_at(*given.fresh, room=_PARTS),
        *_at(*given.weights, room=_WEIGHTS),
        *_at(made.outputs),
        *_at(*made.last, room=_PARTS),
        *_at(*kept.entering, room=_PARTS),
        *_at(*kept.others, room=_KEPT),
        *_at(d_made.outputs, d and d.x, room=2),
        *_at(*(d.first if d else ()), room=_PARTS),
        *_at(*(d.fresh if d else ()), room=_PARTS),
        *_at(*(d.weights if d else ()), room=_WEIGHTS),
    )


def _forward(
    task: _Task, starts: Tensor | None, noise: Tensor | None, given: _Given, kept: _Kept
) -> _Made:
    new = given.x.new_empty
    made = _Made(
        new(task.steps, task.rows, task.shapes.outputs),
        [new(task.rows, width) for width in task.shapes.parts],
    )
    call = _pack(task, (False, False), starts, noise, given, made, kept, _Made(None), None)
    calls._native.loop_forward(call)
    return made


class _Sequence(torch.autograd.Function):
    """`_forward` with gradients for all that is given."""

    @staticmethod
    def forward(
        ctx: Any, task: _Task, starts: Tensor | None, noise: Tensor | None, *tensors: Tensor
    ) -> tuple[Tensor | None, ...]:
        given, shapes, new = _Given.of(task, tensors), task.shapes, tensors[0].new_empty
        whole = task.steps, task.rows
        kept = _Kept(
            [new(task.steps + 1, task.rows, width) for width in shapes.parts],
            [new(*whole, width) for width in shapes.kept],
        )
        ctx.set_materialize_grads(False)
        ctx.task = task
        # The starts go the same way as the rest, so that a change in place is noticed.
        ctx.save_for_backward(starts, noise, *kept.entering, *kept.others, *tensors)
        made = _forward(task, starts, noise, given, kept)
        return made.outputs, *made.last

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        tensors = (*ctx.saved_tensors, *gradients)
        wanted = ctx.needs_input_grad[3:]
        found = _Backward.apply(ctx.task, wanted, *tensors)  # type: ignore[no-untyped-call]
        return None, None, None, *found


class _Backward(torch.autograd.Function):
    """The way back, which has no way back: who asks for a second derivative is told so."""

    @staticmethod
    def forward(
        ctx: Any,
        task: _Task,
        wanted: tuple[bool, ...],
        starts: Tensor | None,
        noise: Tensor | None,
        *tensors: Any,
    ) -> tuple[Tensor | None, ...]:
        parts, others = len(task.shapes.parts), len(task.shapes.kept)
        kept = _Kept(tensors[:parts], tensors[parts : parts + others])
        tensors = tensors[parts + others :]
        given = _Given.of(task, tensors[: len(wanted)])
        d_outputs, *d_last = tensors[len(wanted) :]
        if d_outputs is None:
            d_outputs = given.x.new_zeros(task.steps, task.rows, task.shapes.outputs)
        no_numbers, wants = given.x.new_empty(0), _Given.of(task, wanted)
        d = _Given(
            torch.empty_like(given.x) if wanted[0] or not task.shapes.projects else no_numbers,
            [native.own(part, d) for part, d in zip(given.first, d_last, strict=True)],
            [torch.zeros_like(part) for part in given.fresh],
            [torch.zeros_like(weight) for weight in given.weights],
        )
        d_made = _Made(d_outputs.contiguous())
        either = any(wants.first), any(wants.weights)
        call = _pack(task, either, starts, noise, given, _Made(None), kept, d_made, d)
        calls._native.loop_backward(call)
        return tuple(d if want else None for d, want in zip(d.flat, wanted, strict=True))

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> None:
        raise RuntimeError(
            "native code has no second derivative: give the core backend='plain' for one."
        )


def run(
    layer: Loop,
    x: Tensor,
    state: tuple[Tensor, ...],
    starts: Tensor | None,
    initial: tuple[Tensor, ...] | None,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Run a layer over a sequence, all float32 on the CPU.

    Args:
        layer: the cell, and what stands around its steps.
        x: its inputs (T, B, I).
        state: the parts of its state before the first step, each (B, width).
        starts: (T, B) bool, or None; true where an episode starts.
        initial: the parts of the state from where it does; None without starts.

    Returns:
        outputs (T, B, O) and the final state.

    Raises:
        ValueError: shapes or dtypes that do not fit together.
    """
    task = _task(layer, x)
    given = _Given(x, state, initial or (), layer.weights)
    given = _Given.of(task, [tensor.contiguous() for tensor in given.flat])
    _check(task, given)
    if starts is not None and not initial:
        raise ValueError("where an episode starts its state must be known.")
    starts = None if starts is None else starts.contiguous()
    noise = None
    if layer.noisy:
        shape = task.steps, task.rows, task.shapes.noise
        noise = torch.rand(shape, dtype=x.dtype, device=x.device)
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in given.flat):
        outputs, *last = _Sequence.apply(task, starts, noise, *given.flat)  # type: ignore[no-untyped-call]
    else:
        outputs, last = _forward(task, starts, noise, given, _Kept())
    return outputs, tuple(last)


def _task(layer: Loop, x: Tensor) -> _Task:
    sizes = layer.sizes
    if layer.gate is not None:
        activation, auxiliary, chunk_size = layer.gate
        kinds = calls.ACTIVATIONS.index(activation), calls.AUXILIARIES.index(auxiliary)
        sizes = *sizes, *kinds, chunk_size
    steps, rows, width = x.shape
    shapes = CELLS[layer.cell](width, *sizes)
    return _Task(list(CELLS).index(layer.cell), sizes, layer.rate, shapes, steps, rows)


def _check(task: _Task, given: _Given) -> None:
    """Whether the shapes fit together: addresses know no bounds."""
    shapes, state = task.shapes, [(task.rows, width) for width in task.shapes.parts]
    want = [(task.steps, task.rows, shapes.inputs), *state]
    want += [*state] if given.fresh else []
    for tensor, shape in zip(given.flat, [*want, *shapes.weights], strict=True):
        if tensor.shape != shape or tensor.dtype != torch.float32:
            raise ValueError(
                f"what native code is given must be float32 of shape {shape}, "
                f"got {tensor.dtype} of shape {tuple(tensor.shape)}."
            )
