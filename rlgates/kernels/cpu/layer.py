"""Cells on the CPU: their tensors checked, native code called, and made differentiable."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rlgates.kernels import layout
from rlgates.kernels.cpu import abi
from rlgates.kernels.layout import NO_GATE, Shapes, shapes_of
from rlgates.kernels.memory import CPU, readable
from rlgates.kernels.scan import raise_second_derivative
from rlgates.kernels.spec import CellSpec

_CALL = abi.integers(layout.CALL)
_LAYER, _PROBABILITIES = abi.integers(layout.LAYER), abi.numbers(layout.PROBABILITIES)
_ADDRESSES = abi.integers((("episode_starts", 1),), layout.TENSORS)
_NO_WEIGHTS = [0] * layout.WEIGHTS


class Plan(NamedTuple):
    """All that is known of a cell before its tensors.

    Attributes:
        input_size: I.
        shapes: of its tensors.
        noise_width: how many random numbers a step takes.
        packed: the fields `LAYER` and `PROBABILITIES` of the arguments.
        missing: null pointers for the weights that other cells have.
    """

    input_size: int
    shapes: Shapes
    noise_width: int
    packed: bytes
    missing: list[int]


def plan_of(spec: CellSpec, input_size: int) -> Plan:
    """The plan of a cell; its weights do not matter."""
    return _plan(spec[0], spec[1], (), *spec[3:], input_size)


@cache
def _plan(*spec: Any) -> Plan:
    cell = CellSpec(*spec[:-1])
    input_size: int = spec[-1]
    activation, auxiliary, chunk_size = cell.gate or NO_GATE
    ids = -1, -1
    if activation:
        ids = layout.ACTIVATIONS.index(activation), [*layout.AUXILIARIES].index(auxiliary)
    shapes = shapes_of(cell, input_size)
    noise_widths = shapes.noise_widths(cell)
    table = shapes.table_columns
    place = table.start, table.stop - table.start
    widths = shapes.projected, shapes.output_size, shapes.state_size, *place, *noise_widths
    numel = [math.prod(shape) for shape in shapes.weights]
    packed = _LAYER.pack(
        *([*layout.CELLS].index(cell.cell), *ids, chunk_size),
        *abi.padded(cell.sizes, layout.SIZES),
        *(input_size, *widths),
        *abi.padded(shapes.parts, layout.PARTS),
        *abi.padded(shapes.saved, layout.SAVED),
        *abi.padded(numel, layout.WEIGHTS),
    ) + _PROBABILITIES.pack(cell.dropout, *abi.padded(cell.zoneout, layout.PARTS), cell.constant)
    return Plan(input_size, shapes, noise_widths[1], packed, [0] * (layout.WEIGHTS - len(numel)))


class Problem(NamedTuple):
    """One layer over a sequence, without the tensors that may need a gradient.

    Attributes:
        plan: of its cell.
        steps, batch_size, threads: T, B, and how many threads may run it.
        episode_starts: (T, B) bool, or None.
        noise: (T, B, noise_width), uniform in [0, 1); None if there is none.
    """

    plan: Plan
    steps: int
    batch_size: int
    threads: int
    episode_starts: Tensor | None
    noise: Tensor | None


class Inputs(NamedTuple):
    """All tensors of a layer that may need a gradient, or these gradients.

    Attributes:
        x: (T, B, I).
        state: before the first step, (B, S).
        initial: at the start of an episode, (B, S); None for zeros.
        weights: as in `CellSpec`.
    """

    x: Tensor
    state: Tensor
    initial: Tensor | None
    weights: Sequence[Tensor]

    @property
    def flat(self) -> tuple[Tensor | None, ...]:
        return self.x, self.state, self.initial, *self.weights

    @classmethod
    def from_flat(cls, tensors: Sequence[Any]) -> Inputs:
        x, state, initial, *weights = tensors
        return cls(x, state, initial, weights)


def run(
    spec: CellSpec,
    x: Tensor,
    state: Tensor,
    episode_starts: Tensor | None,
    initial: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Run a layer over a sequence, all float32 on the CPU.

    Args:
        spec: the cell, its sizes and its weights.
        x: its inputs (T, B, I).
        state: its state before the first step, (B, S).
        episode_starts: (T, B) bool, or None; true where an episode starts.
        initial: the state there, (B, S); zeros by default.

    Returns:
        outputs (T, B, O) and the final state (B, S).

    Raises:
        ValueError: shapes or dtypes do not fit together.
    """
    call = prepare(spec, x, state, episode_starts, initial, abi.num_threads())
    return run_layers([call])[0]


def run_layers(layers: Sequence[tuple[Problem, Inputs]]) -> list[tuple[Tensor, Tensor]]:
    """Run a prepared layer, or two independent ones: outputs and final state of each.

    Two layers run side by side if each is to be run by one thread and there are more.
    """
    if torch.is_grad_enabled():
        tensors = [tensor for _, inputs in layers for tensor in inputs.flat]
        for tensor in tensors:
            if tensor is not None and tensor.requires_grad:
                problems = [problem for problem, _ in layers]
                flat = _Layers.apply(problems, *tensors)  # type: ignore[no-untyped-call]
                return list(zip(flat[::2], flat[1::2], strict=True))
    return forward(layers, [None] * len(layers))


def prepare(
    spec: CellSpec,
    x: Tensor,
    state: Tensor,
    episode_starts: Tensor | None,
    initial: Tensor | None,
    threads: int,
) -> tuple[Problem, Inputs]:
    """The problem and its tensors, checked: the kernel gets addresses, without bounds.

    Raises:
        ValueError: shapes or dtypes do not fit together.
    """
    steps, batch_size, input_size = x.shape
    plan = plan_of(spec, input_size)
    noise = None
    if plan.noise_width:
        size = steps, batch_size, plan.noise_width
        noise = torch.rand(size, dtype=torch.float32, device=CPU)
    problem = Problem(plan, steps, batch_size, threads, episode_starts, noise)
    return check(problem, Inputs(x, state, initial, spec.weights))


def check(problem: Problem, inputs: Inputs) -> tuple[Problem, Inputs]:
    """The problem and its tensors as native code reads them.

    Raises:
        ValueError: shapes, dtypes or devices do not fit together, or memory was freed.
    """
    plan, steps, batch_size, _, starts, noise = problem
    x, state, initial, weights = inputs
    state_shape = batch_size, plan.shapes.state_size
    if starts is not None:
        starts = readable("episode_starts", starts, (steps, batch_size), torch.bool)
    if noise is not None:
        noise = readable("the noise", noise, (steps, batch_size, plan.noise_width))
    elif plan.noise_width:
        raise ValueError("a cell with dropout or zoneout needs noise.")
    return problem._replace(episode_starts=starts, noise=noise), Inputs(
        readable("x", x, (steps, batch_size, plan.input_size)),
        readable("state", state, state_shape, rows=True),
        None if initial is None else readable("the initial state", initial, state_shape, rows=True),
        [
            readable("a weight", weight, shape)
            for weight, shape in zip(weights, plan.shapes.weights, strict=True)
        ],
    )


# ---- native code -------------------------------------------------------------------------------


def forward(
    layers: Sequence[tuple[Problem, Inputs]], saved: Sequence[Tensor | None]
) -> list[tuple[Tensor, Tensor]]:
    """Run one layer, or two side by side: outputs and final states; fills in what is saved."""
    results, packed = [], []
    for (problem, inputs), save in zip(layers, saved, strict=True):
        new, batch_size = inputs.x.new_empty, problem.batch_size
        outputs = new(problem.steps, batch_size, problem.plan.shapes.output_size)
        final = new(batch_size, problem.plan.shapes.state_size)
        results.append((outputs, final))
        places = outputs.data_ptr(), final.data_ptr(), abi.address(save), 0, 0, 0, 0, *_NO_WEIGHTS
        packed.append(_pack(problem, inputs, (False, False), places))
    abi._native.layer_forward(b"".join(packed), _workers([problem for problem, _ in layers]))
    return results


class Backward(NamedTuple):
    """A backward pass to run: problem, inputs and what was saved of the forward pass, the gradients
    of its results (None for zeros), and which inputs need one."""

    problem: Problem
    inputs: Inputs
    saved: Tensor
    d_outputs: Tensor | None
    d_final: Tensor | None
    needs: Inputs


def run_backward(layers: Sequence[Backward]) -> list[list[Tensor | None]]:
    """The gradients of `Inputs.flat` of each layer, None where none is needed.

    Raises:
        ValueError: hooks on saved tensors made others of them, as in `check`.
    """
    return gradients([_checked(layer) for layer in layers])


def gradients(layers: Sequence[Backward]) -> list[list[Tensor | None]]:
    """`run_backward` of tensors that are as `forward` read and wrote them."""
    places = [_new_gradients(layer) for layer in layers]
    packed = [_pack_backward(*pair) for pair in zip(layers, places, strict=True)]
    abi._native.layer_backward(b"".join(packed), _workers([layer.problem for layer in layers]))
    return [
        [d if need else None for d, need in zip(d_layer.flat, layer.needs.flat, strict=True)]
        for layer, d_layer in zip(layers, places, strict=True)
    ]


def _checked(layer: Backward) -> Backward:
    """The backward pass with tensors as native code reads them."""
    plan, steps, batch_size, *_ = layer.problem
    shapes = plan.shapes
    saved = readable("what was saved", layer.saved, (shapes.saved_size(steps, batch_size),))
    d_outputs, d_final = layer.d_outputs, layer.d_final
    if d_outputs is not None:
        shape = steps, batch_size, shapes.output_size
        d_outputs = readable("the gradient of the outputs", d_outputs, shape)
    if d_final is not None:
        shape_of_state = batch_size, shapes.state_size
        d_final = readable("the gradient of the final state", d_final, shape_of_state)
    problem, inputs = check(layer.problem, layer.inputs)
    return Backward(problem, inputs, saved, d_outputs, d_final, layer.needs)


def _new_gradients(layer: Backward) -> Inputs:
    """Where native code writes gradients: None where it does not."""
    x, state, initial, weights = layer.inputs
    dense, needs = torch.contiguous_format, layer.needs
    d_state = torch.empty_like(state, memory_format=dense)
    table = layer.problem.plan.shapes.table_columns
    for columns in (d_state,) if needs.state or needs.initial else _beside(d_state, table):
        columns.zero_()
    if layer.d_final is not None:
        d_state.copy_(layer.d_final)
    d_initial = None
    if needs.initial and initial is not None:
        d_initial = torch.empty_like(initial, memory_format=dense)
    # Without a projection the cell itself needs the place of d_x.
    needs_x = needs.x or not layer.problem.plan.shapes.projects_input
    needs_weights = any(needs.weights)
    d_x: Any = torch.empty_like(x) if needs_x else None
    d_weights: Any = [torch.empty_like(w) if needs_weights else None for w in weights]
    return Inputs(d_x, d_state, d_initial, d_weights)


def _beside(state: Tensor, table: slice) -> tuple[Tensor, Tensor]:
    return state[:, : table.start], state[:, table.stop :]


def _pack_backward(layer: Backward, d: Inputs) -> bytes:
    others = layer.saved, layer.d_outputs, *d.flat
    places = [0, 0, *map(abi.address, others), *layer.problem.plan.missing]
    flags = bool(layer.needs.state or layer.needs.initial), any(layer.needs.weights)
    return _pack(layer.problem, layer.inputs, flags, places)


def _workers(problems: Sequence[Problem]) -> int:
    """How many layers run at a time."""
    alone = len(problems) == 1 or problems[0].threads > 1
    return 1 if alone else min(len(problems), abi.num_threads())


def _pack(
    problem: Problem, inputs: Inputs, flags: tuple[bool, bool], places: Sequence[int]
) -> bytes:
    plan, steps, batch_size, threads, episode_starts, noise = problem
    x, state, initial, weights = inputs
    strides = state.stride(0), 0 if initial is None else initial.stride(0)
    return (
        # A backward pass may run in a process that was forked since.
        _CALL.pack(min(threads, abi.num_threads()), steps, batch_size, *flags, *strides)
        + plan.packed
        + _ADDRESSES.pack(
            abi.address(episode_starts),
            x.data_ptr(),
            abi.address(noise),
            state.data_ptr(),
            abi.address(initial),
            *[weight.data_ptr() for weight in weights],
            *plan.missing,
            *places,
        )
    )


# ---- in autograd -------------------------------------------------------------------------------


class _Layers(torch.autograd.Function):
    """Layers with gradients for all their `Inputs`."""

    @staticmethod
    def forward(ctx: Any, problems: Sequence[Problem], *tensors: Any) -> tuple[Tensor, ...]:
        inputs = split(problems, tensors)
        saved = [new_saved(problem, x) for problem, (x, *_) in zip(problems, inputs, strict=True)]
        ctx.set_materialize_grads(False)
        # Saving episode starts and noise lets autograd detect a change in place, and free them.
        ctx.problems = [p._replace(episode_starts=None, noise=None) for p in problems]
        others = [tensor for problem in problems for tensor in problem[4:]]
        ctx.save_for_backward(*others, *saved, *tensors)
        results = forward(list(zip(problems, inputs, strict=True)), saved)
        return tuple(tensor for result in results for tensor in result)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        problems, needs_grad = ctx.problems, ctx.needs_input_grad[1:]
        tensors = (*ctx.saved_tensors, *gradients)
        return None, *_LayersBackward.apply(problems, needs_grad, *tensors)  # type: ignore[no-untyped-call]


class _LayersBackward(torch.autograd.Function):
    """The backward pass, which is not differentiable: a second derivative raises an error."""

    @staticmethod
    def forward(
        ctx: Any, problems: Sequence[Problem], needs_grad: Sequence[bool], *tensors: Any
    ) -> tuple[Tensor | None, ...]:
        count = len(problems)
        others, saved = tensors[: 2 * count], tensors[2 * count : 3 * count]
        gradients = tensors[len(tensors) - 2 * count :]
        inputs = split(problems, tensors[3 * count : len(tensors) - 2 * count])
        calls = []
        for k, needs in enumerate(split(problems, needs_grad)):
            starts, noise = others[2 * k : 2 * k + 2]
            problem = problems[k]._replace(episode_starts=starts, noise=noise)
            d_outputs, d_final = gradients[2 * k : 2 * k + 2]
            of_layer: Any = saved[k]
            calls.append(Backward(problem, inputs[k], of_layer, d_outputs, d_final, needs))
        return tuple(chain(*run_backward(calls)))

    backward = staticmethod(raise_second_derivative)


def new_saved(problem: Problem, x: Tensor) -> Tensor:
    """Where the forward pass writes what the backward pass reads."""
    return x.new_empty(problem.plan.shapes.saved_size(problem.steps, problem.batch_size))


def split(problems: Sequence[Problem], values: Sequence[Any]) -> list[Inputs]:
    """The `Inputs` of each layer, from all of them side by side."""
    result, rest = [], values
    for problem in problems:
        count = 3 + len(problem.plan.shapes.weights)
        result.append(Inputs.from_flat(rest[:count]))
        rest = rest[count:]
    return result
