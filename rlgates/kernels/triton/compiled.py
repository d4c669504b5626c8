"""The Triton kernels of gated layers as operators of torch.library, for torch.compile.

As in `rlgates.kernels.ops`, tensors are laid flat: `inputs` are those of `launch.Inputs` that there
are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op

from rlgates.kernels.layout import NO_GATE
from rlgates.kernels.scan import raise_second_derivative
from rlgates.kernels.spec import CellSpec
from rlgates.kernels.triton import op

_PROBLEM = "str cell, str activation, str auxiliary, int chunk_size, float beta, bool half"


def run(
    spec: CellSpec,
    x: Tensor,
    state: Tensor,
    episode_starts: Tensor | None,
    initial: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """As `op.run`."""
    inputs = [tensor for tensor in op.prepare(spec, x, state, initial) if tensor is not None]
    half = torch.is_autocast_enabled(inputs[0].device.type)
    saves = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs)
    gate = spec.gate or NO_GATE
    outputs, last, *_ = _cell(inputs, episode_starts, spec.cell, *gate, spec.constant, half, saves)
    return outputs, torch.cat([outputs[-1], last], dim=-1) if spec.cell == "lstm" else last


def _all(cell: str, inputs: Sequence[Tensor]) -> op.Tensors:
    """Those of `launch.Inputs`, with None for those that there are not."""
    rest = iter(inputs)
    fields = ["projected", "h", "c", "weight", "bias", "initial_h", "initial_c"]
    absent = {name for name, of in (("c", "lstm"), ("bias", "gru_after")) if cell != of}
    return tuple(None if name in absent else next(rest, None) for name in fields)


def _problem(inputs: Sequence[Tensor], options: Sequence[Any]) -> Any:
    (*layer, half), projected, h = options, inputs[0], inputs[1]
    precision = "bf16" if half else op.matmul_precision()
    return op.launcher().GatedProblem(*layer, precision, *projected.shape[:2], h.shape[1])


def _starts(episode_starts: Tensor | None) -> Tensor | None:
    return None if episode_starts is None else episode_starts.contiguous().view(torch.uint8)


@custom_op(
    "rlgates::triton_cell",
    mutates_args=(),
    schema=f"(Tensor[] inputs, Tensor? episode_starts, {_PROBLEM}, bool saves) -> Tensor[]",
)
def _cell(inputs: Sequence[Tensor], episode_starts: Tensor | None, *options: Any) -> list[Tensor]:
    *problem, saves = options
    described = _problem(inputs, problem)
    tensors = op.read_inputs(described, _all(problem[0], inputs), inputs[0].device)
    with torch.cuda.device_of(inputs[0]):
        outputs, cells, *saved = op.forward(described, saves, _starts(episode_starts), *tensors)
    if not saves:
        return [outputs, cells[-1]]
    return [outputs, cells[-1].clone(), *(t for t in (cells, *saved) if t is not None)]


@_cell.register_fake
def _(inputs: Sequence[Tensor], episode_starts: Tensor | None, *options: Any) -> list[Tensor]:
    cell, *_, half, saves = options
    projected, h, *_ = inputs
    steps, batch_size, width = projected.shape
    units, new = h.shape[1], h.new_empty
    results = [new(steps, batch_size, units), new(batch_size, units)]
    if not saves:
        return results
    dtype = torch.bfloat16 if half else torch.float32
    results += [
        new(steps + 1, batch_size, units),
        new(steps, batch_size, units, dtype=dtype),
        new(steps, batch_size, width, dtype=dtype),
    ]
    return [*results, new(steps, batch_size, units)] if cell == "gru_after" else results


@custom_op(
    "rlgates::triton_cell_backward",
    mutates_args=(),
    schema="(Tensor[] inputs, Tensor[] saved, Tensor d_outputs, Tensor d_state, "
    f"Tensor? episode_starts, {_PROBLEM}) -> Tensor[]",
)
def _cell_backward(
    inputs: Sequence[Tensor],
    saved: Sequence[Tensor],
    d_outputs: Tensor,
    d_state: Tensor,
    episode_starts: Tensor | None,
    *problem: Any,
) -> list[Tensor]:
    described = _problem(inputs, problem)
    tensors = op.read_inputs(described, _all(problem[0], inputs), inputs[0].device)
    cells, h_prev, gates, *extra = saved
    results = cells, h_prev, gates, extra[0] if extra else None
    d_h, d_c = (None, d_state) if problem[0] == "lstm" else (d_state, None)
    with torch.cuda.device_of(inputs[0]):
        gradients = op.backward(
            *(described, True, _starts(episode_starts), tensors[3]),
            *(*results, *tensors[5:], d_outputs, d_h, d_c),
        )
    found = (d for d in gradients if d is not None)
    return [d.to(x.dtype) for d, x in zip(found, inputs, strict=True)]


@_cell_backward.register_fake
def _(inputs: Sequence[Tensor], *_: Any) -> list[Tensor]:
    return [torch.empty_like(x, memory_format=torch.contiguous_format) for x in inputs]


def _setup(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    tensors, episode_starts, *ctx.problem, _ = inputs
    ctx.num_inputs = len(tensors)
    ctx.save_for_backward(episode_starts, *tensors, *output[2:])


def _gradients(ctx: Any, gradients: Sequence[Tensor]) -> tuple[Any, ...]:
    episode_starts, *tensors = ctx.saved_tensors
    inputs, saved = tensors[: ctx.num_inputs], tensors[ctx.num_inputs :]
    result = _cell_backward(inputs, saved, *gradients[:2], episode_starts, *ctx.problem)
    needs = ctx.needs_input_grad[0]
    kept = [d if need else None for d, need in zip(result, needs, strict=True)]
    return kept, *[None] * (len(ctx.problem) + 2)


_cell.register_autograd(_gradients, setup_context=_setup)
_cell_backward.register_autograd(raise_second_derivative)
