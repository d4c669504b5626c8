"""Gated layers in native code: their sizes checked, and their place in autograd."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from rlgates.gates import AUXILIARIES
from rlgates.kernels import calls
from rlgates.kernels.calls import Inputs, Kept, Layer, Results, Sizes
from rlgates.kernels.recurrence import Recurrence

_DENSE = torch.contiguous_format


def _forward(layers: Sequence[Layer], kept: Sequence[Kept | None]) -> list[Results]:
    results = []
    for sizes, _, inputs in layers:
        new, state = inputs.x.new_empty, (sizes.rows, sizes.units)
        last_c = None if inputs.first_c is None else new(state)
        results.append(Results(new(sizes.steps, *state), new(state), last_c))
    calls.forward(list(zip(layers, results, kept, strict=True)))
    return results


def _room(sizes: Sizes, inputs: Inputs) -> Kept:
    new, state = inputs.x.new_empty, (sizes.steps, sizes.rows, sizes.units)
    return Kept(
        gates=new(sizes.steps, sizes.rows, sizes.columns),
        entering=new(state),
        cells=None if inputs.first_c is None else new(state),
        extra=new(state) if sizes.joint < sizes.columns else None,
    )


def _layers(
    sizes: Sequence[Sizes], starts: Tensor | None, tensors: Sequence[Tensor | None]
) -> list[Layer]:
    parts = _parts(tensors, len(Inputs._fields))
    return [
        Layer(numbers, starts, Inputs._make(part))
        for numbers, part in zip(sizes, parts, strict=True)
    ]


def _parts(values: Sequence[Any], size: int) -> list[Sequence[Any]]:
    return [values[first : first + size] for first in range(0, len(values), size)]


class _Sequence(torch.autograd.Function):
    """`_forward` with gradients for all inputs of the layers."""

    @staticmethod
    def forward(
        ctx: Any, sizes: Sequence[Sizes], starts: Tensor | None, *tensors: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        layers = _layers(sizes, starts, tensors)
        kept = [_room(layer.sizes, layer.inputs) for layer in layers]
        ctx.set_materialize_grads(False)
        ctx.sizes = sizes
        # The starts go the same way as the rest, so that a change in place is noticed.
        ctx.save_for_backward(starts, *tensors, *chain(*kept))
        return tuple(chain(*_forward(layers, kept)))

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
        sizes: Sequence[Sizes],
        wanted: tuple[bool, ...],
        starts: Tensor | None,
        *tensors: Tensor | None,
    ) -> tuple[Tensor | None, ...]:
        inputs, results = len(wanted), len(sizes) * len(Results._fields)
        each = zip(
            _layers(sizes, starts, tensors[:inputs]),
            _parts(wanted, len(Inputs._fields)),
            _parts(tensors[inputs:-results], len(Kept._fields)),
            _parts(tensors[-results:], len(Results._fields)),
            strict=True,
        )
        threads = calls.threads() if len(sizes) == 1 else 1
        ways, found = [], []
        for layer, wants, kept, (d_outputs, d_h, d_c) in each:
            gradients = _gradients(layer.inputs, wants, d_h, d_c)
            numbers = layer.sizes._replace(wants_first=wants[5], threads=threads)
            d_outputs = None if d_outputs is None else d_outputs.contiguous()
            layer = layer._replace(sizes=numbers)
            ways.append((layer, Kept._make(kept), d_outputs, gradients))
            found += [d if want else None for d, want in zip(gradients, wants, strict=True)]
        calls.backward(ways)
        return tuple(found)

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> None:
        raise RuntimeError(
            "native code has no second derivative: give the core backend='plain' for one."
        )


def _gradients(
    inputs: Inputs, wanted: Sequence[bool], d_h: Tensor | None, d_c: Tensor | None
) -> Inputs:
    wants_x, *wants_weights, _, _ = wanted
    return Inputs._make(
        (
            torch.empty_like(inputs.x) if wants_x else None,
            *(torch.empty_like(w) if any(wants_weights) else None for w in inputs[1:5]),
            own(inputs.first_h, d_h),
            None if inputs.first_c is None else own(inputs.first_c, d_c),
        )
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
    return run_together([(x, state, layer)], starts)[0]


def run_together(
    layers: Sequence[tuple[Tensor, tuple[Tensor, ...], Recurrence]], starts: Tensor | None
) -> list[tuple[Tensor, tuple[Tensor, ...]]]:
    """As `run`, of one layer, or of two that know nothing of each other, each with a thread."""
    starts = None if starts is None else starts.contiguous()
    checked = [_checked(x, state, starts, layer) for x, state, layer in layers]
    sizes = [numbers for numbers, _ in checked]
    if len(sizes) > 1:
        sizes = [numbers._replace(threads=1) for numbers in sizes]
    tensors = [tensor for _, inputs in checked for tensor in inputs]
    results: Sequence[Sequence[Any]]
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors):
        made = _Sequence.apply(sizes, starts, *tensors)  # type: ignore[no-untyped-call]
        results = _parts(made, len(Results._fields))
    else:
        results = _forward(_layers(sizes, starts, tensors), [None] * len(sizes))
    return [
        (outputs, tuple(part for part in final if part is not None)) for outputs, *final in results
    ]


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
