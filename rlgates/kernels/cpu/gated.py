"""Gated layers on the CPU: shapes checked, and the kernels made differentiable."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rlgates.gates import AUXILIARIES
from rlgates.kernels.cpu import abi
from rlgates.kernels.cpu.abi import GatedArgs, Inputs, Outputs, SavedTensors, Sizes
from rlgates.kernels.spec import GatedLayer, State


class LayerInputs(NamedTuple):
    """A layer, its inputs (T, B, I), its state h, and c of an LSTM, each (B, H), and, unless it is
    zero, the state at the start of an episode."""

    layer: GatedLayer
    x: Tensor
    state: State
    initial: State = ()


def run(
    layer: GatedLayer,
    x: Tensor,
    state: State,
    episode_starts: Tensor | None,
    initial: State = (),
) -> tuple[Tensor, State]:
    """Run a layer over a sequence, all float32 on the CPU.

    Args:
        layer: the cell, its gate and its weights.
        x: its inputs (T, B, I).
        state: h, and c of an LSTM, each (B, H).
        episode_starts: (T, B) bool, true where an episode starts.
        initial: the state there, as `state`; zeros by default.

    Returns:
        outputs (T, B, H) and the final state.

    Raises:
        ValueError: shapes or dtypes do not fit together.
    """
    return run_together([LayerInputs(layer, x, state, initial)], episode_starts)[0]


def run_together(
    layers: Sequence[LayerInputs], episode_starts: Tensor | None
) -> list[tuple[Tensor, State]]:
    """As `run`, of one layer, or of two independent ones with a thread each."""
    episode_starts = None if episode_starts is None else episode_starts.contiguous()
    checked = [check(*layer) for layer in layers]
    sizes = [layer_sizes for layer_sizes, _ in checked]
    if len(sizes) > 1:
        sizes = [layer_sizes._replace(threads=1) for layer_sizes in sizes]
    tensors = [tensor for _, inputs in checked for tensor in inputs]
    results: Sequence[Sequence[Any]]
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors):
        flat = _Gated.apply(sizes, episode_starts, *tensors)  # type: ignore[no-untyped-call]
        results = _split(flat, len(Outputs._fields))
    else:
        results = _forward(_args(sizes, episode_starts, tensors), [None] * len(sizes))
    return [
        (outputs, tuple(part for part in final if part is not None)) for outputs, *final in results
    ]


def _forward(layers: Sequence[GatedArgs], saved: Sequence[SavedTensors | None]) -> list[Outputs]:
    results = [new_outputs(layer.sizes, layer.inputs) for layer in layers]
    abi.forward(list(zip(layers, results, saved, strict=True)))
    return results


def new_outputs(sizes: Sizes, inputs: Inputs) -> Outputs:
    """Where the forward pass writes."""
    new, state = inputs.x.new_empty, (sizes.batch_size, sizes.units)
    c_n = None if inputs.c_0 is None else new(state)
    return Outputs(new(sizes.steps, *state), new(state), c_n)


def new_saved_tensors(sizes: Sizes, inputs: Inputs) -> SavedTensors:
    """Where it writes what the backward pass reads."""
    new, state = inputs.x.new_empty, (sizes.steps, sizes.batch_size, sizes.units)
    return SavedTensors(
        gates=new(sizes.steps, sizes.batch_size, sizes.columns),
        h_prev=new(state),
        cells=None if inputs.c_0 is None else new(state),
        extra=new(state) if sizes.joint_columns < sizes.columns else None,
    )


def _args(
    sizes: Sequence[Sizes], episode_starts: Tensor | None, tensors: Sequence[Tensor | None]
) -> list[GatedArgs]:
    layers = _split(tensors, len(Inputs._fields))
    return [
        GatedArgs(layer_sizes, episode_starts, Inputs._make(inputs))
        for layer_sizes, inputs in zip(sizes, layers, strict=True)
    ]


def _split(values: Sequence[Any], size: int) -> list[Sequence[Any]]:
    return [values[first : first + size] for first in range(0, len(values), size)]


class _Gated(torch.autograd.Function):
    """`_forward` with gradients for all inputs of the layers."""

    @staticmethod
    def forward(
        ctx: Any, sizes: Sequence[Sizes], episode_starts: Tensor | None, *tensors: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        layers = _args(sizes, episode_starts, tensors)
        saved = [new_saved_tensors(layer.sizes, layer.inputs) for layer in layers]
        ctx.set_materialize_grads(False)
        ctx.sizes = sizes
        # Saving the episode starts too lets autograd detect a change in place.
        ctx.save_for_backward(episode_starts, *tensors, *chain(*saved))
        return tuple(chain(*_forward(layers, saved)))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        tensors = (*ctx.saved_tensors, *gradients)
        result = _GatedBackward.apply(ctx.sizes, ctx.needs_input_grad[2:], *tensors)  # type: ignore[no-untyped-call]
        return None, None, *result


class _GatedBackward(torch.autograd.Function):
    """The backward pass, which is not differentiable: a second derivative raises an error."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor | None, ...]:
        return backward(*arguments)

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> None:
        raise RuntimeError(NOT_TWICE_DIFFERENTIABLE)


def backward(
    sizes: Sequence[Sizes], needs_grad: Sequence[bool], *unpacked: Tensor | None
) -> tuple[Tensor | None, ...]:
    """The gradients of all `Inputs` of the layers, None where none is needed.

    Args:
        sizes: of each layer.
        needs_grad: of each field of `Inputs`, layer by layer.
        unpacked: the episode starts, then the `Inputs` of all layers, their `SavedTensors`, and the
            gradients of their `Outputs`.
    """
    num_inputs, num_outputs = len(needs_grad), len(sizes) * len(Outputs._fields)
    # Hooks on saved tensors may have changed their strides.
    episode_starts, *tensors = (t if t is None else t.contiguous() for t in unpacked)
    layers = zip(
        _args(sizes, episode_starts, tensors[:num_inputs]),
        _split(needs_grad, len(Inputs._fields)),
        _split(tensors[num_inputs:-num_outputs], len(SavedTensors._fields)),
        _split(tensors[-num_outputs:], len(Outputs._fields)),
        strict=True,
    )
    threads = abi.num_threads() if len(sizes) == 1 else 1
    calls, result = [], []
    for args, needs, saved, (d_outputs, d_h, d_c) in layers:
        gradients = _new_gradients(args.inputs, needs, d_h, d_c)
        layer_sizes = args.sizes._replace(needs_state_grad=needs[5], threads=threads)
        args = args._replace(sizes=layer_sizes)
        calls.append((args, SavedTensors._make(saved), d_outputs, gradients))
        result += [d if need else None for d, need in zip(gradients, needs, strict=True)]
    abi.backward(calls)
    return tuple(result)


NOT_TWICE_DIFFERENTIABLE = (
    "native code is not twice differentiable: give the core backend='plain' for a second "
    "derivative."
)


def _new_gradients(
    inputs: Inputs, needs_grad: Sequence[bool], d_h: Tensor | None, d_c: Tensor | None
) -> Inputs:
    needs_x, needs_weights, needs_initial = needs_grad[0], needs_grad[1:5], needs_grad[7:]
    return Inputs._make(
        (
            torch.empty_like(inputs.x) if needs_x else None,
            *(torch.empty_like(w) if any(needs_weights) else None for w in inputs[1:5]),
            writable_gradient(inputs.h_0, d_h),
            None if inputs.c_0 is None else writable_gradient(inputs.c_0, d_c),
            *(
                writable_gradient(p, None) if p is not None and any(needs_initial) else None
                for p in inputs[7:]
            ),
        )
    )


def writable_gradient(like: Tensor, gradient: Tensor | None) -> Tensor:
    """A contiguous copy of a gradient, zeros for None: kernels accumulate into it."""
    if gradient is None:
        return torch.zeros_like(like, memory_format=torch.contiguous_format)
    return gradient.clone(memory_format=torch.contiguous_format)


@cache
def layout(
    cell: str, activation: str, auxiliary: str, units: int, chunk_size: int
) -> tuple[tuple[int, int, int], int, int]:
    """The ids of cell, activation and auxiliary, `columns` and `joint_columns` of csrc/abi.h."""
    ids = (
        list(abi.CELLS).index(cell),
        abi.ACTIVATIONS.index(activation),
        abi.AUXILIARIES.index(auxiliary),
    )
    cell_maps, gate_maps = abi.CELLS[cell], AUXILIARIES[auxiliary].maps
    masters = sum(name.startswith("m") for name in gate_maps)
    columns = (len(cell_maps) + len(gate_maps) - masters) * units + masters * units // chunk_size
    return ids, columns, columns - units * ("reset" in cell_maps)


def _rows(state: State) -> tuple[Tensor | None, Tensor | None]:
    """h and c (or None), with contiguous rows."""
    h, c, *_ = (*state, None, None)
    return tuple(
        part if part is None or part.stride(1) == 1 else part.contiguous() for part in (h, c)
    )  # type: ignore[return-value]


def check(layer: GatedLayer, x: Tensor, state: State, initial: State) -> tuple[Sizes, Inputs]:
    """The arguments of the kernel, with all shapes checked: it gets addresses, without bounds."""
    steps, batch_size, input_size = x.shape
    units = layer.weight_hh.shape[1]
    ids, columns, joint_columns = layout(
        layer.cell, layer.activation, layer.auxiliary, units, layer.chunk_size
    )
    h, c = _rows(state)
    initial_h, initial_c = _rows(initial)
    weights = (weight.contiguous() for weight in layer.weights)
    inputs = Inputs._make((x.contiguous(), *weights, h, c, initial_h, initial_c))
    shapes = (
        (steps, batch_size, input_size),
        (columns, input_size),
        (columns, units),
        (columns,),
        (columns,),
        *[(batch_size, units)] * 4,
    )
    for name, tensor, shape in zip(Inputs._fields, inputs, shapes, strict=True):
        if tensor is not None and (tensor.shape != shape or tensor.dtype != torch.float32):
            raise ValueError(
                f"{name} must be float32 of shape {shape}, "
                f"got {tensor.dtype} of shape {tuple(tensor.shape)}."
            )
    sizes = Sizes(
        *ids,
        chunk_size=layer.chunk_size,
        beta=layer.beta,
        threads=abi.num_threads(),
        steps=steps,
        batch_size=batch_size,
        input_size=input_size,
        units=units,
        columns=columns,
        joint_columns=joint_columns,
    )
    return sizes, inputs
