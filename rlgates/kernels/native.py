"""Gated layers in native code: their sizes checked, and their place in autograd."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from rlgates.gates import AUXILIARIES
from rlgates.kernels import calls
from rlgates.kernels.calls import Inputs, Kept, Results, Sizes
from rlgates.kernels.recurrence import Recurrence

_DENSE = torch.contiguous_format


def _forward(sizes: Sizes, starts: Tensor | None, inputs: Inputs, kept: Kept | None) -> Results:
    new, state = inputs.x.new_empty, (sizes.rows, sizes.units)
    last_c = None if inputs.first_c is None else new(state)
    results = Results(new(sizes.steps, *state), new(state), last_c)
    calls.forward(sizes, starts, inputs, results, kept)
    return results


class _Sequence(torch.autograd.Function):
    """`_forward` with gradients for all its inputs."""

    @staticmethod
    def forward(
        ctx: Any, sizes: Sizes, starts: Tensor | None, *tensors: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        inputs = Inputs._make(tensors)
        new, state = inputs.x.new_empty, (sizes.steps, sizes.rows, sizes.units)
        kept = Kept(
            gates=new(sizes.steps, sizes.rows, sizes.columns),
            entering=new(state),
            cells=None if inputs.first_c is None else new(state),
            extra=new(state) if sizes.joint < sizes.columns else None,
        )
        ctx.set_materialize_grads(False)
        ctx.sizes = sizes
        # The starts go the same way as the rest, so that a change in place is noticed.
        ctx.save_for_backward(starts, *inputs, *kept)
        return _forward(sizes, starts, inputs, kept)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        tensors = (*ctx.saved_tensors, *gradients)
        found = _Backward.apply(ctx.sizes, ctx.needs_input_grad[2:], *tensors)  # type: ignore[no-untyped-call]
        return None, None, *found


class _Backward(torch.autograd.Function):
    """The way back, which has no way back: who asks for a second derivative is told so."""

    @staticmethod
    def forward(
        ctx: Any,
        sizes: Sizes,
        wanted: tuple[bool, ...],
        starts: Tensor | None,
        *tensors: Tensor | None,
    ) -> tuple[Tensor | None, ...]:
        inputs, kept = Inputs._make(tensors[:7]), Kept._make(tensors[7:11])
        d_outputs, d_h, d_c = tensors[11:]
        wants_x, *wants_weights, wants_h, _ = wanted
        gradients = Inputs._make(
            (
                torch.empty_like(inputs.x) if wants_x else None,
                *(torch.empty_like(w) if any(wants_weights) else None for w in inputs[1:5]),
                own(inputs.first_h, d_h),
                None if inputs.first_c is None else own(inputs.first_c, d_c),
            )
        )
        sizes = sizes._replace(wants_first=wants_h, threads=calls.threads())
        d_outputs = None if d_outputs is None else d_outputs.contiguous()
        calls.backward(sizes, starts, inputs, kept, d_outputs, gradients)
        return tuple(d if want else None for d, want in zip(gradients, wanted, strict=True))

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> None:
        raise RuntimeError(
            "native code has no second derivative: give the core backend='plain' for one."
        )


def own(like: Tensor, gradient: Tensor | None) -> Tensor:
    """A gradient that may be written into; zeros if there is none."""
    if gradient is None:
        return torch.zeros_like(like, memory_format=_DENSE)
    return gradient.clone(memory_format=_DENSE)


def run(
    x: Tensor, state: tuple[Tensor, ...], starts: Tensor | None, layer: Recurrence
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Run a layer over a sequence, all float32 on the CPU.

    Args:
        x: its inputs (T, B, I).
        state: h, and c of an LSTM, each (B, H).
        starts: (T, B) bool, where the state is zero again.
        layer: the cell, its gate and its weights.

    Returns:
        outputs (T, B, H) and the final state.

    Raises:
        ValueError: shapes or dtypes that do not fit together.
    """
    sizes, inputs = _checked(x, state, starts, layer)
    starts = None if starts is None else starts.contiguous()
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in inputs):
        outputs, *final = _Sequence.apply(sizes, starts, *inputs)  # type: ignore[no-untyped-call]
    else:
        outputs, *final = _forward(sizes, starts, inputs, None)
    return outputs, tuple(part for part in final if part is not None)


@cache
def layout(
    cell: str, activation: str, auxiliary: str, units: int, chunk_size: int
) -> tuple[tuple[int, int, int], int, int]:
    """The numbers of the three kinds, and the columns: all of them, and those made together."""
    kinds = (
        list(calls.CELLS).index(cell),
        calls.ACTIVATIONS.index(activation),
        calls.AUXILIARIES.index(auxiliary),
    )
    own, maps = calls.CELLS[cell], AUXILIARIES[auxiliary]
    masters = sum(name.startswith("m") for name in maps)
    columns = (len(own) + len(maps) - masters) * units + masters * units // chunk_size
    return kinds, columns, columns - units * ("reset" in own)


def _checked(
    x: Tensor, state: tuple[Tensor, ...], starts: Tensor | None, layer: Recurrence
) -> tuple[Sizes, Inputs]:
    """What the kernel needs, of shapes that fit together: addresses know no bounds."""
    steps, rows, width = x.shape
    units = layer.weight_hh.shape[1]
    kinds, columns, joint = layout(
        layer.cell, layer.activation, layer.auxiliary, units, layer.chunk_size
    )
    h, *c = (part if part.stride(1) == 1 else part.contiguous() for part in state)
    weights = (weight.contiguous() for weight in layer.weights)
    inputs = Inputs._make((x.contiguous(), *weights, h, c[0] if c else None))
    shapes = (
        (steps, rows, width),
        (columns, width),
        (columns, units),
        (columns,),
        (columns,),
        (rows, units),
        (rows, units),
    )
    for name, tensor, shape in zip(Inputs._fields, inputs, shapes, strict=True):
        if tensor is not None and (tensor.shape != shape or tensor.dtype != torch.float32):
            raise ValueError(
                f"{name} must be float32 of shape {shape}, "
                f"got {tensor.dtype} of shape {tuple(tensor.shape)}."
            )
    sizes = Sizes(
        *kinds,
        chunk_size=layer.chunk_size,
        beta=layer.beta,
        threads=calls.threads(),
        steps=steps,
        rows=rows,
        inputs=width,
        units=units,
        columns=columns,
        joint=joint,
        first_h_stride=h.stride(0),
        first_c_stride=c[0].stride(0) if c else 0,
    )
    return sizes, inputs
