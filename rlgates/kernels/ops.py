"""The kernels as operators of torch.library, so that torch.compile keeps them.

Each has a fake implementation, which computes shapes alone, and an autograd formula. Eager calls do
not come here: for them an `autograd.Function` costs less than an operator.

Operators take tensors, numbers and words, so a layer and its inputs are laid flat: `inputs` are all
tensors that may need a gradient. The results are the outputs, the final state and, with `saves`,
what the backward pass reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op

from rlgates.kernels import channels as channel_kernels
from rlgates.kernels import scan as scans
from rlgates.kernels.cpu import abi, layer
from rlgates.kernels.cpu import channels as cpu_channels
from rlgates.kernels.cpu import grid as cpu_grid
from rlgates.kernels.cpu import memories as cpu_memories
from rlgates.kernels.cpu import scan as cpu_scan
from rlgates.kernels.layout import NO_GATE, shapes_of
from rlgates.kernels.spec import CellSpec, Channels, MemorySteps

# A `CellSpec` without its weights. Without a gate, activation is "".
_SCHEMA = "str cell, int[] sizes, str activation, str auxiliary, int chunk_size, float dropout, "
_SCHEMA += "float[] zoneout, bool training, float constant"
_SCHEMA_SIZE = _SCHEMA.count(",") + 1


def _needs_grad(tensors: Sequence[Tensor | None]) -> bool:
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


def _spread(gradients: Sequence[Tensor], needs: Sequence[bool]) -> list[Tensor | None]:
    rest = iter(gradients)
    return [next(rest) if need else None for need in needs]


# ---- cells -------------------------------------------------------------------------------------


def run(
    spec: CellSpec,
    x: Tensor,
    state: Tensor,
    episode_starts: Tensor | None,
    initial: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """As `rlgates.kernels.cpu.layer.run`."""
    inputs = [x, state, *spec.weights, *([] if initial is None else [initial])]
    # torch.library takes an empty list for a nested result.
    rest = spec.dropout, list(spec.zoneout) or [0.0], spec.training, spec.constant
    noise, width = None, shapes_of(spec, x.shape[2]).noise_widths(spec)[1]
    if width:
        noise = x.new_empty(*x.shape[:2], width).uniform_()
    options = spec.cell, list(spec.sizes), *(spec.gate or NO_GATE), *rest
    outputs, final, *_ = _layer(inputs, episode_starts, noise, *options, _needs_grad(inputs))
    return outputs, final


def _spec(
    cell: str,
    sizes: Sequence[int],
    activation: str,
    auxiliary: str,
    chunk_size: int,
    dropout: float,
    zoneout: Sequence[float],
    training: bool,
    constant: float,
) -> CellSpec:
    gate = (activation, auxiliary, chunk_size) if activation else None
    return CellSpec(cell, tuple(sizes), (), gate, dropout, tuple(zoneout), training, constant)


def _problem(
    inputs: Sequence[Tensor],
    episode_starts: Tensor | None,
    noise: Tensor | None,
    options: Sequence[Any],
) -> tuple[layer.Problem, layer.Inputs]:
    (steps, batch_size, input_size), (x, state, *weights) = inputs[0].shape, inputs
    plan = layer.plan_of(_spec(*options), input_size)
    initial = weights.pop() if len(weights) > len(plan.shapes.weights) else None
    problem = layer.Problem(plan, steps, batch_size, abi.num_threads(), episode_starts, noise)
    return layer.check(problem, layer.Inputs(x, state, initial, weights))


@custom_op(
    "rlgates::layer",
    mutates_args=(),
    schema=f"(Tensor[] inputs, Tensor? episode_starts, Tensor? noise, {_SCHEMA}, bool saves) "
    "-> Tensor[]",
)
def _layer(
    inputs: Sequence[Tensor], episode_starts: Tensor | None, noise: Tensor | None, *options: Any
) -> list[Tensor]:
    *spec, saves = options
    problem, tensors = _problem(inputs, episode_starts, noise, spec)
    saved = layer.new_saved(problem, tensors.x) if saves else None
    ((outputs, final),) = layer.forward([(problem, tensors)], [saved])
    return [outputs, final] if saved is None else [outputs, final, saved]


@_layer.register_fake
def _(
    inputs: Sequence[Tensor], episode_starts: Tensor | None, noise: Tensor | None, *options: Any
) -> list[Tensor]:
    *spec, saves = options
    x = inputs[0]
    steps, batch_size, input_size = x.shape
    shapes = shapes_of(_spec(*spec), input_size)
    results = [
        x.new_empty(steps, batch_size, shapes.output_size),
        x.new_empty(batch_size, shapes.state_size),
    ]
    return [*results, x.new_empty(shapes.saved_size(steps, batch_size))] if saves else results


@custom_op(
    "rlgates::layer_backward",
    mutates_args=(),
    schema="(Tensor[] inputs, Tensor saved, Tensor d_outputs, Tensor d_final, "
    f"Tensor? episode_starts, Tensor? noise, {_SCHEMA}, bool[] needs) -> Tensor[]",
)
def _layer_backward(
    inputs: Sequence[Tensor],
    saved: Tensor,
    d_outputs: Tensor,
    d_final: Tensor,
    episode_starts: Tensor | None,
    noise: Tensor | None,
    *options: Any,
) -> list[Tensor]:
    *spec, needs = options
    problem, tensors = _problem(inputs, episode_starts, noise, spec)
    x, state, *weights = needs
    initial: Any = weights.pop() if tensors.initial is not None else False
    in_order = layer.Inputs(x, state, initial, weights)
    call = layer.Backward(problem, tensors, saved, d_outputs, d_final, in_order)
    d_x, d_state, d_initial, *d_weights = layer.run_backward([call])[0]
    return [d for d in (d_x, d_state, *d_weights, d_initial) if d is not None]


@_layer_backward.register_fake
def _(inputs: Sequence[Tensor], *others: Any) -> list[Tensor]:
    return [
        torch.empty_like(tensor, memory_format=torch.contiguous_format)
        for tensor, need in zip(inputs, others[-1], strict=True)
        if need
    ]


def _layer_setup(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    tensors, episode_starts, noise, *ctx.spec, _ = inputs
    ctx.save_for_backward(episode_starts, noise, *output[2:], *tensors)


def _layer_gradients(ctx: Any, gradients: Sequence[Tensor]) -> tuple[Any, ...]:
    episode_starts, noise, saved, *inputs = ctx.saved_tensors
    needs = list(ctx.needs_input_grad[0])
    d_outputs, d_final, *_ = gradients
    result = _layer_backward(
        inputs, saved, d_outputs, d_final, episode_starts, noise, *ctx.spec, needs
    )
    return _spread(result, needs), *[None] * (_SCHEMA_SIZE + 3)


_layer.register_autograd(_layer_gradients, setup_context=_layer_setup)
_layer_backward.register_autograd(scans.raise_second_derivative)


# ---- linear recurrences ------------------------------------------------------------------------


def _scan_kernel(like: Tensor) -> scans.ScanKernel:
    if like.is_cpu:
        return cpu_scan
    from rlgates.kernels.triton import scan as triton_scan

    return triton_scan


def scan(problem: scans.ScanProblem, b: Tensor) -> tuple[Tensor, Tensor]:
    """As `rlgates.kernels.scan.scan` with the kernel of the device."""
    states = _scan(b, *problem)
    return states, states[-1].clone()


@custom_op(
    "rlgates::scan",
    mutates_args=(),
    schema="(Tensor b, Tensor a, Tensor h_0, Tensor? initial, Tensor? episode_starts, "
    "bool is_complex) -> Tensor",
)
def _scan(b: Tensor, *problem: Any) -> Tensor:
    with torch.no_grad():
        return scans.scan(scans.ScanProblem(*problem), b, _scan_kernel(b))[0]


@_scan.register_fake
def _(b: Tensor, *problem: Any) -> Tensor:
    return torch.empty_like(b, memory_format=torch.contiguous_format)


@custom_op(
    "rlgates::scan_backward",
    mutates_args=(),
    schema="(Tensor d_states, Tensor states, Tensor a, Tensor h_0, Tensor? initial, "
    "Tensor? episode_starts, bool is_complex, bool[] needs) -> Tensor[]",
)
def _scan_backward(d_states: Tensor, states: Tensor, *options: Any) -> list[Tensor]:
    *problem, needs = options
    result = scans.backward(
        _scan_kernel(states), needs, scans.ScanProblem(*problem), states, d_states, None
    )
    return [gradient for gradient in result if gradient is not None]


@_scan_backward.register_fake
def _(d_states: Tensor, states: Tensor, a: Tensor, h_0: Tensor, *others: Any) -> list[Tensor]:
    likes = states, a, h_0, h_0
    return [
        torch.empty_like(like, memory_format=torch.contiguous_format)
        for like, need in zip(likes, others[-1], strict=True)
        if need
    ]


def _scan_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, *tensors, ctx.is_complex = inputs
    ctx.save_for_backward(*tensors, output)


def _scan_gradients(ctx: Any, d_states: Tensor) -> tuple[Any, ...]:
    *problem, states = ctx.saved_tensors
    needs = list(ctx.needs_input_grad[:4])
    result = _scan_backward(d_states, states, *problem, ctx.is_complex, needs)
    return *_spread(result, needs), None, None


_scan.register_autograd(_scan_gradients, setup_context=_scan_setup)
_scan_backward.register_autograd(scans.raise_second_derivative)


# ---- channels with a linear system each, and memories of keys and values -----------------------


def _operator(
    name: str,
    schema: str,
    like: tuple[int, int],
    new_kept: Callable[..., Sequence[Tensor]],
    run: Callable[..., tuple[Tensor, Tensor]],
    run_backward: Callable[..., list[Tensor | None]],
) -> Any:
    """The operator of a kernel, and one for its backward pass.

    Args:
        name: "rlgates::" goes in front.
        schema: of the inputs.
        like: which of the inputs have the shapes of the outputs and of the last state.
        new_kept, run, run_backward: as those of `rlgates.kernels.cpu.memories`.

    Returns:
        a function of the inputs, the episode starts and whether there will be a backward pass,
        which gives the outputs, the last state and, if so, what is kept for it.
    """
    schema += ", Tensor? episode_starts"

    @custom_op(f"rlgates::{name}", mutates_args=(), schema=f"({schema}, bool saves) -> Tensor[]")
    def forward(*args: Any) -> list[Tensor]:
        *inputs, episode_starts, saves = args
        kept = new_kept(inputs) if saves else None
        return [*run(inputs, episode_starts, kept), *(kept or ())]

    @forward.register_fake
    def _(*args: Any) -> list[Tensor]:
        *inputs, _, saves = args
        results = [inputs[place].new_empty(inputs[place].shape) for place in like]
        return [*results, *new_kept(inputs)] if saves else results

    @custom_op(
        f"rlgates::{name}_backward",
        mutates_args=(),
        schema=f"({schema}, Tensor[] kept, Tensor d_outputs, Tensor d_last) -> Tensor[]",
    )
    def backward(*args: Any) -> list[Tensor]:
        *inputs, episode_starts, kept, d_outputs, d_last = args
        gradients = run_backward(inputs, episode_starts, kept, d_outputs, d_last)
        # Some may be views of one tensor, and results of an operator may not share memory.
        return [d.clone() if d._is_view() else d for d in gradients if d is not None]

    @backward.register_fake
    def _(*args: Any) -> list[Tensor]:
        *inputs, _, _, _, _ = args
        return [tensor.new_empty(tensor.shape) for tensor in inputs if tensor is not None]

    def setup(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
        *inputs_and_starts, _ = inputs
        ctx.count = len(inputs_and_starts)
        ctx.save_for_backward(*inputs_and_starts, *output[2:])

    def d_inputs(ctx: Any, gradients: Sequence[Tensor]) -> tuple[Any, ...]:
        *inputs, episode_starts = ctx.saved_tensors[: ctx.count]
        kept = ctx.saved_tensors[ctx.count :]
        result = backward(*inputs, episode_starts, kept, *gradients[:2])
        return *_spread(result, [tensor is not None for tensor in inputs]), None, None

    forward.register_autograd(d_inputs, setup_context=setup)
    backward.register_autograd(scans.raise_second_derivative)
    return forward


_channels = _operator(
    "channels",
    "Tensor u, Tensor? step, Tensor? step_bias, Tensor? gate, Tensor a, Tensor b, Tensor c, "
    "Tensor skip, Tensor h_0, Tensor? initial",
    (0, 8),
    channel_kernels.new_kept,
    partial(channel_kernels.forward, cpu_channels),
    partial(channel_kernels.backward, cpu_channels),
)
_memories = _operator(
    "memories",
    "Tensor q, Tensor k, Tensor v, Tensor? decay, Tensor? removal, Tensor? rate, Tensor before, "
    "Tensor? initial",
    (2, 6),
    cpu_memories.new_kept,
    cpu_memories.forward,
    cpu_memories.backward,
)


def channels(
    systems: Channels, h_0: Tensor, initial: Tensor | None, episode_starts: Tensor | None
) -> tuple[Tensor, Tensor]:
    """As `rlgates.kernels.channels.run` on the CPU."""
    inputs = *systems, h_0, initial
    outputs, last, *_ = _channels(*inputs, episode_starts, _needs_grad(inputs))
    return outputs, last


def memories(
    steps: MemorySteps, before: Tensor, initial: Tensor | None, episode_starts: Tensor | None
) -> tuple[Tensor, Tensor]:
    """As `rlgates.kernels.cpu.memories.run`."""
    inputs = *steps, before, initial
    y, last, *_ = _memories(*inputs, episode_starts, _needs_grad(inputs))
    return y, last


# ---- small images ------------------------------------------------------------------------------


def grid(x: Tensor, *weights: Tensor) -> Tensor:
    """As `rlgates.kernels.cpu.grid.run`, of images with any number of colours."""
    features: Tensor = _grid(x, list(weights))[0]
    return features


@custom_op("rlgates::grid", mutates_args=(), schema="(Tensor x, Tensor[] weights) -> Tensor[]")
def _grid(x: Tensor, weights: Sequence[Tensor]) -> list[Tensor]:
    return cpu_grid.forward(x, *weights)


@_grid.register_fake
def _(x: Tensor, weights: Sequence[Tensor]) -> list[Tensor]:
    return cpu_grid.empty(x, *weights)


@custom_op(
    "rlgates::grid_backward",
    mutates_args=(),
    schema="(Tensor x, Tensor[] weights, Tensor[] saved, Tensor d_features) -> Tensor[]",
)
def _grid_backward(
    x: Tensor, weights: Sequence[Tensor], saved: Sequence[Tensor], d_features: Tensor
) -> list[Tensor]:
    return cpu_grid.backward(x, weights, saved, d_features)


@_grid_backward.register_fake
def _(x: Tensor, weights: Sequence[Tensor], *_: Any) -> list[Tensor]:
    return [torch.empty_like(weight) for weight in weights]


def _grid_setup(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    x, weights = inputs
    ctx.save_for_backward(x, *weights, *output)


def _grid_gradients(ctx: Any, gradients: Sequence[Tensor]) -> tuple[Any, ...]:
    x, *rest = ctx.saved_tensors
    return None, _grid_backward(x, rest[:4], rest[4:], gradients[0])


_grid.register_autograd(_grid_gradients, setup_context=_grid_setup)
_grid_backward.register_autograd(scans.raise_second_derivative)
