"""The CPU kernels as operators of torch.library, so that torch.compile keeps them.

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

from rlgates.kernels import scan as scans
from rlgates.kernels.cpu import abi, fused, gated
from rlgates.kernels.cpu import scan as cpu_scan
from rlgates.kernels.spec import FusedCell, GatedLayer, State

_GATED = "str cell, str activation, str auxiliary, int chunk_size, float beta"
_FUSED = "str cell, int[] sizes, str activation, str auxiliary, int chunk_size, "
_FUSED += "float dropout, float decay"  # without a gate, activation is ""


def _needs_grad(tensors: Sequence[Tensor]) -> bool:
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def _contiguous(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.contiguous()


def _raise(*_: Any) -> None:
    raise RuntimeError(gated.NOT_TWICE_DIFFERENTIABLE)


# ---- gated layers ------------------------------------------------------------------------------


def run_gated(
    layer: GatedLayer, x: Tensor, state: State, episode_starts: Tensor | None, initial: State
) -> tuple[Tensor, State]:
    """As `rlgates.kernels.cpu.gated.run`."""
    inputs = [x, *layer.weights, *state, *initial]
    options = *layer[:4], layer.beta
    outputs, *others = _gated(inputs, episode_starts, *options, _needs_grad(inputs))
    return outputs, tuple(others[: len(state)])


def _gated_problem(
    inputs: Sequence[Tensor], cell: str, activation: str, auxiliary: str, chunk: int, beta: float
) -> tuple[abi.Sizes, abi.Inputs]:
    x, w_ih, w_hh, b_ih, b_hh, *states = inputs
    parts = _num_parts(cell)
    layer = GatedLayer(cell, activation, auxiliary, chunk, w_ih, w_hh, b_ih, b_hh, beta)
    return gated.check(layer, x, tuple(states[:parts]), tuple(states[parts:]))


def _num_parts(cell: str) -> int:
    return 2 if cell == "lstm" else 1


@custom_op(
    "rlgates::gated",
    mutates_args=(),
    schema=f"(Tensor[] inputs, Tensor? episode_starts, {_GATED}, bool saves) -> Tensor[]",
)
def _gated(inputs: Sequence[Tensor], episode_starts: Tensor | None, *options: Any) -> list[Tensor]:
    *layer, saves = options
    sizes, checked = _gated_problem(inputs, *layer)
    outputs = gated.new_outputs(sizes, checked)
    saved = gated.new_saved_tensors(sizes, checked) if saves else None
    abi.forward([(abi.GatedArgs(sizes, _contiguous(episode_starts), checked), outputs, saved)])
    return [tensor for tensor in (*outputs, *(saved or ())) if tensor is not None]


@_gated.register_fake
def _(inputs: Sequence[Tensor], episode_starts: Tensor | None, *options: Any) -> list[Tensor]:
    cell, *_, saves = options
    x, weight_ih, weight_hh, *_ = inputs
    (steps, batch_size, _), columns, units = x.shape, weight_ih.shape[0], weight_hh.shape[1]
    state = [(batch_size, units)] * _num_parts(cell)
    saved = [(steps, batch_size, columns), *[(steps, batch_size, units)] * (1 + (cell != "janet"))]
    shapes = [(steps, batch_size, units), *state, *(saved if saves else ())]
    return [x.new_empty(shape) for shape in shapes]


@custom_op(
    "rlgates::gated_backward",
    mutates_args=(),
    schema="(Tensor[] inputs, Tensor[] saved, Tensor[] d_outputs, Tensor? episode_starts, "
    f"{_GATED}, bool[] needs) -> Tensor[]",
)
def _gated_backward(
    inputs: Sequence[Tensor],
    saved: Sequence[Tensor],
    d_outputs: Sequence[Tensor],
    episode_starts: Tensor | None,
    *options: Any,
) -> list[Tensor]:
    *layer, needs = options
    sizes, checked = _gated_problem(inputs, *layer)
    given, kept, gradients = iter(needs), iter(saved), [*d_outputs, None]
    # Those that are absent are None again.
    all_needs = [tensor is not None and next(given) for tensor in checked]
    places = gated.new_saved_tensors(sizes._replace(steps=0), checked)
    all_saved = [None if place is None else next(kept) for place in places]
    result = gated.backward(
        [sizes], all_needs, episode_starts, *checked, *all_saved, *gradients[:3]
    )
    return [gradient for gradient in result if gradient is not None]


@_gated_backward.register_fake
def _(inputs: Sequence[Tensor], *others: Any) -> list[Tensor]:
    return [
        torch.empty_like(tensor, memory_format=torch.contiguous_format)
        for tensor, need in zip(inputs, others[-1], strict=True)
        if need
    ]


def _gated_setup(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    tensors, episode_starts, *layer, _ = inputs
    ctx.layer, ctx.num_inputs, ctx.num_outputs = layer, len(tensors), 1 + _num_parts(layer[0])
    ctx.save_for_backward(episode_starts, *tensors, *output[ctx.num_outputs :])


def _gated_gradients(ctx: Any, gradients: Sequence[Tensor]) -> tuple[Any, ...]:
    episode_starts, *tensors = ctx.saved_tensors
    inputs, saved = tensors[: ctx.num_inputs], tensors[ctx.num_inputs :]
    needs = list(ctx.needs_input_grad[0])
    d_outputs = list(gradients[: ctx.num_outputs])
    result = _gated_backward(inputs, saved, d_outputs, episode_starts, *ctx.layer, needs)
    return _spread(result, needs), *[None] * (len(ctx.layer) + 2)


def _spread(gradients: Sequence[Tensor], needs: Sequence[bool]) -> list[Tensor | None]:
    rest = iter(gradients)
    return [next(rest) if need else None for need in needs]


_gated.register_autograd(_gated_gradients, setup_context=_gated_setup)
_gated_backward.register_autograd(_raise)


# ---- fused cells -------------------------------------------------------------------------------


def run_fused(
    layer: FusedCell,
    x: Tensor,
    state: State,
    episode_starts: Tensor | None,
    initial: State | None,
) -> tuple[Tensor, State]:
    """As `rlgates.kernels.cpu.fused.run`."""
    inputs = [x, *state, *(initial or ()), *layer.weights]
    gate = layer.gate or ("", "", 1)
    options = layer.cell, list(layer.sizes), *gate, layer.dropout, layer.decay
    noise = None
    if layer.dropout:
        noise = x.new_empty(*x.shape[:2], fused.problem_of(layer, x).shapes.noise).uniform_()
    outputs, *others = _fused(inputs, episode_starts, noise, *options, _needs_grad(inputs))
    return outputs, tuple(others[: len(state)])


def _fused_problem(
    inputs: Sequence[Tensor],
    cell: str,
    sizes: Sequence[int],
    activation: str,
    auxiliary: str,
    chunk_size: int,
    dropout: float,
    decay: float,
) -> tuple[fused.Problem, fused.Inputs]:
    gate = (activation, auxiliary, chunk_size) if activation else None
    layer = FusedCell(cell, tuple(sizes), (), gate, dropout, decay)
    problem = fused.problem_of(layer, inputs[0])
    return problem, fused.check(problem, fused.Inputs.from_flat(problem, inputs))


def _fused_results(
    problem: fused.Problem, x: Tensor, saves: bool
) -> tuple[fused.Outputs, fused.SavedTensors]:
    saved = fused.new_saved_tensors(problem, x) if saves else fused.SavedTensors()
    return fused.new_outputs(problem, x), saved


@custom_op(
    "rlgates::fused",
    mutates_args=(),
    schema="(Tensor[] inputs, Tensor? episode_starts, Tensor? noise, "
    f"{_FUSED}, bool saves) -> Tensor[]",
)
def _fused(
    inputs: Sequence[Tensor], episode_starts: Tensor | None, noise: Tensor | None, *options: Any
) -> list[Tensor]:
    *layer, saves = options
    problem, checked = _fused_problem(inputs, *layer)
    outputs, saved = _fused_results(problem, checked.x, saves)
    fused.forward(problem, _contiguous(episode_starts), noise, checked, outputs, saved)
    return [*outputs.flat, *saved.flat]


@_fused.register_fake
def _(
    inputs: Sequence[Tensor], episode_starts: Tensor | None, noise: Tensor | None, *options: Any
) -> list[Tensor]:
    *layer, saves = options
    outputs, saved = _fused_results(_fused_problem(inputs, *layer)[0], inputs[0], saves)
    return [*outputs.flat, *saved.flat]


@custom_op(
    "rlgates::fused_backward",
    mutates_args=(),
    schema="(Tensor[] inputs, Tensor[] saved, Tensor[] d_outputs, Tensor? episode_starts, "
    f"Tensor? noise, {_FUSED}, bool[] needs) -> Tensor[]",
)
def _fused_backward(
    inputs: Sequence[Tensor],
    saved: Sequence[Tensor],
    d_outputs: Sequence[Tensor],
    episode_starts: Tensor | None,
    noise: Tensor | None,
    *options: Any,
) -> list[Tensor]:
    *layer, needs = options
    problem, checked = _fused_problem(inputs, *layer)
    result = fused.backward(
        problem, needs, episode_starts, noise, *saved, *checked.flat, *d_outputs
    )
    return [gradient for gradient in result if gradient is not None]


@_fused_backward.register_fake
def _(inputs: Sequence[Tensor], *others: Any) -> list[Tensor]:
    return [
        torch.empty_like(tensor, memory_format=torch.contiguous_format)
        for tensor, need in zip(inputs, others[-1], strict=True)
        if need
    ]


def _fused_setup(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    tensors, episode_starts, noise, *layer, _ = inputs
    problem, _ = _fused_problem(tensors, *layer)
    ctx.layer, ctx.num_inputs = layer, len(tensors)
    ctx.num_outputs = 1 + len(problem.shapes.parts)
    ctx.save_for_backward(episode_starts, noise, *tensors, *output[ctx.num_outputs :])


def _fused_gradients(ctx: Any, gradients: Sequence[Tensor]) -> tuple[Any, ...]:
    episode_starts, noise, *tensors = ctx.saved_tensors
    inputs, saved = tensors[: ctx.num_inputs], tensors[ctx.num_inputs :]
    needs = list(ctx.needs_input_grad[0])
    d_outputs = list(gradients[: ctx.num_outputs])
    result = _fused_backward(inputs, saved, d_outputs, episode_starts, noise, *ctx.layer, needs)
    return _spread(result, needs), *[None] * (len(ctx.layer) + 3)


_fused.register_autograd(_fused_gradients, setup_context=_fused_setup)
_fused_backward.register_autograd(_raise)


# ---- linear recurrences ------------------------------------------------------------------------


def scan(problem: scans.ScanProblem, b: Tensor) -> tuple[Tensor, Tensor]:
    """As `rlgates.kernels.scan.scan` with the kernel of the CPU."""
    states = _scan(b, *problem)
    return states, states[-1]


@custom_op(
    "rlgates::scan",
    mutates_args=(),
    schema="(Tensor b, Tensor a, Tensor h_0, Tensor? initial, Tensor? episode_starts, "
    "bool is_complex) -> Tensor",
)
def _scan(b: Tensor, *problem: Any) -> Tensor:
    with torch.no_grad():
        return scans.scan(scans.ScanProblem(*problem), b, cpu_scan)[0]


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
    result = scans.backward(cpu_scan, needs, scans.ScanProblem(*problem), states, d_states, None)
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
