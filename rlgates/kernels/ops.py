"""The kernels as operators of torch.library, so that torch.compile keeps them.

Each has a fake implementation, which computes shapes alone, and an autograd formula. Eager calls do
not come here: for them an `autograd.Function` costs less than an operator.

Operators take tensors, numbers and words, so a layer and its inputs are laid flat: `inputs` are all
tensors that may need a gradient. The results are the outputs, the final state and, with `saves`,
what the backward pass reads.
"""

from __future__ import annotations

from collections.abc import Sequence
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


def _needs_grad(tensors: Sequence[Tensor]) -> bool:
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def _spread(gradients: Sequence[Tensor], needs: Sequence[bool]) -> list[Tensor | None]:
    rest = iter(gradients)
    return [next(rest) if need else None for need in needs]


def _raise(*_: Any) -> None:
    raise RuntimeError(layer.NOT_TWICE_DIFFERENTIABLE)


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
_layer_backward.register_autograd(_raise)


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
_scan_backward.register_autograd(_raise)


# ---- channels with a linear system each --------------------------------------------------------


def channels(
    systems: Channels, h_0: Tensor, initial: Tensor | None, episode_starts: Tensor | None
) -> tuple[Tensor, Tensor]:
    """As `rlgates.kernels.channels.run` on the CPU."""
    inputs = *systems, h_0, initial
    given = [tensor for tensor in inputs if tensor is not None]
    outputs, last, *_ = _channels(*inputs, episode_starts, _needs_grad(given))
    return outputs, last


_CHANNELS = "Tensor u, Tensor? step, Tensor? step_bias, Tensor? gate, Tensor a, Tensor b, "
_CHANNELS += "Tensor c, Tensor skip, Tensor h_0, Tensor? initial, Tensor? episode_starts"


@custom_op("rlgates::channels", mutates_args=(), schema=f"({_CHANNELS}, bool saves) -> Tensor[]")
def _channels(u: Tensor, *others: Any) -> list[Tensor]:
    *inputs, episode_starts, saves = u, *others
    kept = channel_kernels.new_kept(inputs) if saves else None
    return [*channel_kernels.forward(cpu_channels, inputs, episode_starts, kept), *(kept or ())]


@_channels.register_fake
def _(u: Tensor, *others: Any) -> list[Tensor]:
    h_0, saves = others[7], others[-1]
    results = [u.new_empty(u.shape), h_0.new_empty(h_0.shape)]
    return [*results, *channel_kernels.new_kept((u, *others))] if saves else results


@custom_op(
    "rlgates::channels_backward",
    mutates_args=(),
    schema=f"({_CHANNELS}, Tensor states, Tensor y, Tensor d_outputs, Tensor d_last) -> Tensor[]",
)
def _channels_backward(u: Tensor, *others: Any) -> list[Tensor]:
    *inputs, episode_starts, states, y, d_outputs, d_last = u, *others
    kept = channel_kernels.Kept(states, y)
    gradients = channel_kernels.backward(
        cpu_channels, inputs, episode_starts, kept, d_outputs, d_last
    )
    # Sums are views of one tensor, and results of an operator may not share memory.
    return [d.clone() if d._is_view() else d for d in gradients if d is not None]


@_channels_backward.register_fake
def _(u: Tensor, *others: Any) -> list[Tensor]:
    inputs = u, *others[:9]
    return [tensor.new_empty(tensor.shape) for tensor in inputs if tensor is not None]


def _channels_setup(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    ctx.save_for_backward(*inputs[:-1], *output[2:])


def _channels_gradients(ctx: Any, gradients: Sequence[Tensor]) -> tuple[Any, ...]:
    *inputs, episode_starts, states, y = ctx.saved_tensors
    result = _channels_backward(*inputs, episode_starts, states, y, *gradients[:2])
    return *_spread(result, [tensor is not None for tensor in inputs]), None, None


_channels.register_autograd(_channels_gradients, setup_context=_channels_setup)
_channels_backward.register_autograd(_raise)


# ---- memories of keys and values ---------------------------------------------------------------


def memories(
    steps: MemorySteps, before: Tensor, initial: Tensor | None, episode_starts: Tensor | None
) -> tuple[Tensor, Tensor]:
    """As `rlgates.kernels.cpu.memories.run`."""
    inputs = *steps, before, initial
    given = [tensor for tensor in inputs if tensor is not None]
    y, last, *_ = _memories(*inputs, episode_starts, _needs_grad(given))
    return y, last


_MEMORIES = "Tensor q, Tensor k, Tensor v, Tensor? decay, Tensor? removal, Tensor? rate, "
_MEMORIES += "Tensor before, Tensor? initial, Tensor? episode_starts"


@custom_op("rlgates::memories", mutates_args=(), schema=f"({_MEMORIES}, bool saves) -> Tensor[]")
def _memories(q: Tensor, *others: Any) -> list[Tensor]:
    *inputs, episode_starts, saves = q, *others
    kept = cpu_memories.new_kept(inputs) if saves else None
    results = cpu_memories.forward(inputs, episode_starts, kept)
    return [*results, *([] if kept is None else [kept])]


@_memories.register_fake
def _(q: Tensor, *others: Any) -> list[Tensor]:
    v, before, saves = others[1], others[5], others[-1]
    results = [v.new_empty(v.shape), before.new_empty(before.shape)]
    return [*results, cpu_memories.new_kept((q, *others))] if saves else results


@custom_op(
    "rlgates::memories_backward",
    mutates_args=(),
    schema=f"({_MEMORIES}, Tensor kept, Tensor d_y, Tensor d_last) -> Tensor[]",
)
def _memories_backward(q: Tensor, *others: Any) -> list[Tensor]:
    *inputs, episode_starts, kept, d_y, d_last = q, *others
    gradients = cpu_memories.backward(inputs, episode_starts, kept, d_y, d_last)
    return [gradient for gradient in gradients if gradient is not None]


@_memories_backward.register_fake
def _(q: Tensor, *others: Any) -> list[Tensor]:
    inputs = q, *others[:7]
    return [tensor.new_empty(tensor.shape) for tensor in inputs if tensor is not None]


def _memories_setup(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    ctx.save_for_backward(*inputs[:-1], *output[2:])


def _memories_gradients(ctx: Any, gradients: Sequence[Tensor]) -> tuple[Any, ...]:
    *inputs, episode_starts, kept = ctx.saved_tensors
    result = _memories_backward(*inputs, episode_starts, kept, *gradients[:2])
    return *_spread(result, [tensor is not None for tensor in inputs]), None, None


_memories.register_autograd(_memories_gradients, setup_context=_memories_setup)
_memories_backward.register_autograd(_raise)


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
_grid_backward.register_autograd(_raise)
