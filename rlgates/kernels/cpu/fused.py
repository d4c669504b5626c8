"""Fused cells on the CPU: their shapes, checked, and the kernels made differentiable."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rlgates.kernels.cpu import abi, gated
from rlgates.kernels.spec import FusedCell, State


class Shapes(NamedTuple):
    """The shapes of a cell's tensors.

    Attributes:
        input_size, output_size: widths of x and of the outputs.
        parts: widths of the parts of the state.
        weights: shapes of the weights.
        saved: widths of the tensors saved for the backward pass, see the cell's header in csrc.
        projects_input: whether the first two weights project the input, as matrix and bias, and
            the steps read that projection.
        noise: width of the uniform noise for dropout.
    """

    input_size: int
    output_size: int
    parts: tuple[int, ...]
    weights: tuple[tuple[int, ...], ...]
    saved: tuple[int, ...] = ()
    projects_input: bool = True
    noise: int = 0

    @property
    def projected(self) -> int:
        """Width of the projected input; 0 if it is not projected."""
        return self.weights[0][0] if self.projects_input else 0


def _gato(inputs: int, units: int, inner: int, *flags: int) -> Shapes:
    maps = 2 + (inner or 1)
    out = (inner, units), (units if inner else 0,)
    weights = (maps * units, inputs), (maps * units,), (maps, units), *out
    return Shapes(inputs, 2 * units, (units, units), weights)


def _rru(inputs: int, units: int, inner: int, upper: int, outputs: int, *flags: int) -> Shapes:
    layers = (inner, units), (upper, inner, inner), (upper, inner)
    out = (units + outputs, inner), (units + outputs,), (units,), (units,)
    weights = (inner, inputs), (inner,), *layers, *out
    saved = inner, 1, (upper + 1) * inner, units + outputs
    return Shapes(inputs, outputs, (units,), weights, saved, noise=inner)


def _mogrifier(
    inputs: int, units: int, columns: int, rounds: int, capped: int, *gate: int
) -> Shapes:
    activation, auxiliary, chunk_size = gate
    names = abi.ACTIVATIONS[activation], abi.AUXILIARIES[auxiliary]
    _, lstm_columns, _ = gated.layout("lstm", *names, units, chunk_size)
    x, h = (rounds + 1) // 2, rounds // 2
    maps = (columns, inputs), (lstm_columns, units), (columns,)
    weights = *maps, (x, inputs, units), (x, inputs), (h, units, inputs), (h, units)
    saved = columns, x * inputs, x * inputs, h * units, h * units, units
    return Shapes(inputs, units, (units, units), weights, saved, projects_input=False)


def _nru(
    inputs: int, units: int, memory: int, heads: int, side: int, rectified: int, normalized: int
) -> Shapes:
    if side**2 != heads * memory:
        raise ValueError(
            f"heads * memory must be side * side, got {heads} heads of {memory} and side {side}."
        )
    both, columns, norm = units + memory, 2 * heads + 4 * side, units if normalized else 0
    maps = (units, inputs), (units,), (units, both), (columns, both), (columns,)
    weights = *maps, (norm,), (norm,)
    return Shapes(inputs, units, (units, memory), weights, (both, both, units, 1, columns))


# In the order of `FusedCellId` of csrc/abi.h: the shapes, from the input size and `sizes`.
CELLS: dict[str, Callable[..., Shapes]] = {
    "gato": _gato,
    "rru": _rru,
    "mogrifier": _mogrifier,
    "nru": _nru,
}


def run(
    layer: FusedCell,
    x: Tensor,
    state: State,
    episode_starts: Tensor | None,
    initial: State | None,
) -> tuple[Tensor, State]:
    """Run a layer over a sequence, all float32 on the CPU.

    Args:
        layer: the cell, its sizes and its weights.
        x: its inputs (T, B, I).
        state: the parts of its state before the first step, each (B, width).
        episode_starts: (T, B) bool, or None; true where an episode starts.
        initial: the parts of the state there; None without episode starts.

    Returns:
        outputs (T, B, O) and the final state.

    Raises:
        ValueError: shapes or dtypes do not fit together.
    """
    problem = problem_of(layer, x)
    inputs = check(problem, Inputs(x, state, initial or (), layer.weights))
    if episode_starts is not None and not initial:
        raise ValueError("episode starts need an initial state, got none.")
    episode_starts = None if episode_starts is None else episode_starts.contiguous()
    noise = None
    if layer.dropout:
        shape = problem.steps, problem.batch_size, problem.shapes.noise
        noise = torch.rand(shape, dtype=x.dtype, device=x.device)
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs.flat):
        outputs, *final = _Fused.apply(problem, episode_starts, noise, *inputs.flat)  # type: ignore[no-untyped-call]
    else:
        results = new_outputs(problem, x)
        forward(problem, episode_starts, noise, inputs, results, SavedTensors())
        outputs, final = results
    return outputs, tuple(final)


# ---- arguments ---------------------------------------------------------------------------------


class Problem(NamedTuple):
    """A layer over a sequence: all arguments but the tensors."""

    cell: int
    sizes: tuple[int, ...]
    dropout: float
    decay: float
    shapes: Shapes
    steps: int
    batch_size: int


class Inputs(NamedTuple):
    """All tensors that may need a gradient, or these gradients.

    `state` is that before the first step, `initial` that at the start of an episode.
    """

    x: Tensor
    state: Sequence[Tensor]
    initial: Sequence[Tensor]
    weights: Sequence[Tensor]

    @classmethod
    def from_flat(cls, problem: Problem, tensors: Sequence[Any]) -> Inputs:
        """From a flat sequence, in which the initial state may be missing."""
        parts, weights = len(problem.shapes.parts), len(problem.shapes.weights)
        states = tensors[1 : len(tensors) - weights]
        return cls(tensors[0], states[:parts], states[parts:], tensors[len(tensors) - weights :])

    @property
    def flat(self) -> tuple[Tensor, ...]:
        return self.x, *self.state, *self.initial, *self.weights


class Outputs(NamedTuple):
    """The outputs (T, B, O) and the final state, or their gradients."""

    outputs: Tensor | None
    final: Sequence[Tensor] = ()

    @property
    def flat(self) -> tuple[Any, ...]:
        return self.outputs, *self.final


class SavedTensors(NamedTuple):
    """What the forward pass saves: the states (T + 1, B, width), and what else the cell needs."""

    states: Sequence[Tensor] = ()
    others: Sequence[Tensor] = ()

    @property
    def flat(self) -> tuple[Tensor, ...]:
        return *self.states, *self.others


_PARTS, _SIZES, _WEIGHTS, _SAVED = 2, 8, 10, 6  # lengths of the arrays in `FusedArgs` of csrc/abi.h
_LAYOUT = struct.Struct("=6q2d74q")


def _padded(numbers: Sequence[int], length: int) -> list[int]:
    return [*numbers, *[0] * (length - len(numbers))]


def _pointers(*tensors: Tensor | None, length: int = 1) -> list[int]:
    return _padded([0 if tensor is None else tensor.data_ptr() for tensor in tensors], length)


def _pack(
    problem: Problem,
    needs_grad: tuple[bool, bool],
    episode_starts: Tensor | None,
    noise: Tensor | None,
    inputs: Inputs,
    outputs: Outputs,
    saved: SavedTensors,
    d_outputs: Outputs,
    d: Inputs | None,
) -> bytes:
    """The bytes of a `FusedArgs` of csrc/abi.h; None is a null pointer."""
    shapes = problem.shapes
    return _LAYOUT.pack(
        *(problem.cell, abi.num_threads(), problem.steps, problem.batch_size, *needs_grad),
        *(problem.dropout, problem.decay),
        *_padded(problem.sizes, _SIZES),
        *(shapes.input_size, shapes.projected, shapes.output_size, shapes.noise),
        *_padded(shapes.parts, _PARTS),
        *_padded(shapes.saved, _SAVED),
        *_padded([weight.numel() for weight in inputs.weights], _WEIGHTS),
        *_pointers(episode_starts, inputs.x, noise, length=3),
        *_pointers(*inputs.state, length=_PARTS),
        *_pointers(*inputs.initial, length=_PARTS),
        *_pointers(*inputs.weights, length=_WEIGHTS),
        *_pointers(outputs.outputs),
        *_pointers(*outputs.final, length=_PARTS),
        *_pointers(*saved.states, length=_PARTS),
        *_pointers(*saved.others, length=_SAVED),
        *_pointers(d_outputs.outputs, d and d.x, length=2),
        *_pointers(*(d.state if d else ()), length=_PARTS),
        *_pointers(*(d.initial if d else ()), length=_PARTS),
        *_pointers(*(d.weights if d else ()), length=_WEIGHTS),
    )


def problem_of(layer: FusedCell, x: Tensor) -> Problem:
    """The problem of a layer on its inputs x (T, B, I); its weights do not matter."""
    sizes = layer.sizes
    if layer.gate is not None:
        activation, auxiliary, chunk_size = layer.gate
        ids = abi.ACTIVATIONS.index(activation), abi.AUXILIARIES.index(auxiliary)
        sizes = *sizes, *ids, chunk_size
    steps, batch_size, input_size = x.shape
    shapes = CELLS[layer.cell](input_size, *sizes)
    cell = list(CELLS).index(layer.cell)
    return Problem(cell, sizes, layer.dropout, layer.decay, shapes, steps, batch_size)


def check(problem: Problem, inputs: Inputs) -> Inputs:
    """The inputs, contiguous, with all shapes checked: the kernel gets addresses, without bounds.

    Raises:
        ValueError: shapes or dtypes do not fit together.
    """
    shapes = problem.shapes
    state = [(problem.batch_size, width) for width in shapes.parts]
    expected = [(problem.steps, problem.batch_size, shapes.input_size), *state]
    expected += [*state] if inputs.initial else []
    for tensor, shape in zip(inputs.flat, [*expected, *shapes.weights], strict=True):
        if tensor.shape != shape or tensor.dtype != torch.float32:
            raise ValueError(
                f"the tensors of native code must be float32 of shape {shape}, "
                f"got {tensor.dtype} of shape {tuple(tensor.shape)}."
            )
    return Inputs.from_flat(problem, [tensor.contiguous() for tensor in inputs.flat])


# ---- the kernels in autograd -------------------------------------------------------------------


def new_outputs(problem: Problem, x: Tensor) -> Outputs:
    """Where the forward pass writes."""
    new, shapes = x.new_empty, problem.shapes
    return Outputs(
        new(problem.steps, problem.batch_size, shapes.output_size),
        [new(problem.batch_size, width) for width in shapes.parts],
    )


def new_saved_tensors(problem: Problem, x: Tensor) -> SavedTensors:
    """Where it writes what the backward pass reads."""
    new, shapes = x.new_empty, problem.shapes
    steps, batch_size = problem.steps, problem.batch_size
    return SavedTensors(
        [new(steps + 1, batch_size, width) for width in shapes.parts],
        [new(steps, batch_size, width) for width in shapes.saved],
    )


def forward(
    problem: Problem,
    episode_starts: Tensor | None,
    noise: Tensor | None,
    inputs: Inputs,
    outputs: Outputs,
    saved: SavedTensors,
) -> None:
    """Run the kernel, which fills in outputs and saved tensors."""
    args = _pack(
        problem, (False, False), episode_starts, noise, inputs, outputs, saved, Outputs(None), None
    )
    abi._native.fused_forward(args)


class _Fused(torch.autograd.Function):
    """`forward` with gradients for all inputs."""

    @staticmethod
    def forward(
        ctx: Any,
        problem: Problem,
        episode_starts: Tensor | None,
        noise: Tensor | None,
        *tensors: Tensor,
    ) -> tuple[Tensor | None, ...]:
        outputs = new_outputs(problem, tensors[0])
        saved = new_saved_tensors(problem, tensors[0])
        ctx.set_materialize_grads(False)
        ctx.problem = problem
        # Saving the episode starts too lets autograd detect a change in place.
        ctx.save_for_backward(episode_starts, noise, *saved.flat, *tensors)
        forward(problem, episode_starts, noise, Inputs.from_flat(problem, tensors), outputs, saved)
        return outputs.flat

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        tensors = (*ctx.saved_tensors, *gradients)
        needs_grad = ctx.needs_input_grad[3:]
        result = _FusedBackward.apply(ctx.problem, needs_grad, *tensors)  # type: ignore[no-untyped-call]
        return None, None, None, *result


class _FusedBackward(torch.autograd.Function):
    """The backward pass, which is not differentiable: a second derivative raises an error."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor | None, ...]:
        return backward(*arguments)

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> None:
        raise RuntimeError(gated.NOT_TWICE_DIFFERENTIABLE)


def backward(
    problem: Problem, needs_grad: Sequence[bool], *unpacked: Any
) -> tuple[Tensor | None, ...]:
    """The gradients of all `Inputs`, flat, None where none is needed.

    Args:
        problem: the layer and its sizes.
        needs_grad: of each tensor of `Inputs`.
        unpacked: episode starts, noise, the `SavedTensors`, the `Inputs`, and the gradients of the
            `Outputs`, flat.
    """
    shapes = problem.shapes
    # Hooks on saved tensors may have changed their strides.
    tensors: list[Any]
    episode_starts, noise, *tensors = (t if t is None else t.contiguous() for t in unpacked)
    parts, others = len(shapes.parts), len(shapes.saved)
    saved = SavedTensors(tensors[:parts], tensors[parts : parts + others])
    tensors = tensors[parts + others :]
    inputs = Inputs.from_flat(problem, tensors[: len(needs_grad)])
    d_outputs, *d_final = tensors[len(needs_grad) :]
    if d_outputs is None:
        d_outputs = inputs.x.new_zeros(problem.steps, problem.batch_size, shapes.output_size)
    empty, needs = inputs.x.new_empty(0), Inputs.from_flat(problem, needs_grad)
    d = Inputs(
        torch.empty_like(inputs.x) if needs_grad[0] or not shapes.projects_input else empty,
        [
            gated.writable_gradient(part, d_part)
            for part, d_part in zip(inputs.state, d_final, strict=True)
        ],
        [torch.zeros_like(part) for part in inputs.initial],
        [torch.zeros_like(weight) for weight in inputs.weights],
    )
    args = _pack(
        problem,
        (any(needs.state), any(needs.weights)),
        episode_starts,
        noise,
        inputs,
        Outputs(None),
        saved,
        Outputs(d_outputs),
        d,
    )
    abi._native.fused_backward(args)
    return tuple(d if need else None for d, need in zip(d.flat, needs_grad, strict=True))
