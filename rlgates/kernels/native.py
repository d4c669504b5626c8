"""The gated LSTM in native code: from tensors to `_native`, and its place in autograd."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import torch
from torch import Tensor

try:
    from rlgates.kernels import _native
except ImportError:  # no compiler when the package was installed
    _native = None  # type: ignore[assignment]

# In the order of the enumerations in native.cpp.
ACTIVATIONS = ("sigmoid", "fast", "iterated_fast", "softsign")
AUXILIARIES = ("untied", "tied", "refine")

_DENSE = torch.contiguous_format
_forked = False


def _after_fork() -> None:
    """The threads of the parent are gone, and libgomp would wait for them for ever."""
    global _forked
    _forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def built() -> bool:
    """Whether the extension was built when the package was installed."""
    return _native is not None


def _threads() -> int:
    return 1 if _forked else torch.get_num_threads()


class Problem(NamedTuple):
    """What the kernel is told beside the numbers: sizes, gate, starts; `args` in its order."""

    steps: int
    rows: int
    units: int
    activation: int
    auxiliary: int
    starts: Tensor | None

    @property
    def args(self) -> tuple[int, ...]:
        starts = 0 if self.starts is None else self.starts.data_ptr()
        return (_threads(), self.activation, self.auxiliary, *self[:3], starts)


def _rows(x: Tensor) -> Tensor:
    """`x` (B, H) with each row in one piece: then the stride between rows says it all."""
    return x if x.stride(1) == 1 else x.contiguous()


def _forward(
    problem: Problem, projected: Tensor, h: Tensor, c: Tensor, weight: Tensor, keep: bool
) -> tuple[Tensor, Tensor]:
    """Outputs (T, B, H), and the cell states: of all steps if `keep`, else (B, H) the last.

    `projected` (T, B, G H) is overwritten if `keep`: with what the backward pass needs.
    """
    steps, rows, units = problem[:3]
    outputs = projected.new_empty(steps, rows, units)
    cells = projected.new_empty((steps, rows, units) if keep else (rows, units))
    # For one step the weights are not worth packing: the product comes from torch.
    product = torch.mm(h, weight.t()) if steps == 1 else None
    _native.forward(
        *problem.args,
        h.data_ptr(),
        h.stride(0),
        c.data_ptr(),
        c.stride(0),
        weight.data_ptr(),
        projected.data_ptr(),
        cells.data_ptr(),
        keep,
        0 if product is None else product.data_ptr(),
        outputs.data_ptr(),
    )
    return outputs, cells


class _Sequence(torch.autograd.Function):
    """`_forward` with gradients for all four tensors."""

    @staticmethod
    def forward(
        ctx: Any, projected: Tensor, h: Tensor, c: Tensor, weight: Tensor, problem: Problem
    ) -> tuple[Tensor, Tensor, Tensor]:
        outputs, cells = _forward(problem, projected, h, c, weight, keep=True)
        ctx.set_materialize_grads(False)
        # The starts go the same way as the rest, so that a change in place is noticed.
        ctx.problem = problem._replace(starts=None)
        ctx.save_for_backward(problem.starts, projected, h, c, weight, cells)
        return outputs, outputs[-1].clone(), cells[-1].clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        wanted = ctx.needs_input_grad[:4]
        starts, *saved = ctx.saved_tensors
        problem = ctx.problem._replace(starts=starts)
        result = _Backward.apply(problem, wanted, *saved, *gradients)  # type: ignore[no-untyped-call]
        return (*(x if want else None for x, want in zip(result, wanted, strict=True)), None)


class _Backward(torch.autograd.Function):
    """The way back, which has no way back: who asks for a second derivative is told so."""

    @staticmethod
    def forward(
        ctx: Any,
        problem: Problem,
        wanted: tuple[bool, ...],
        gates: Tensor,
        h: Tensor,
        c: Tensor,
        weight: Tensor,
        cells: Tensor,
        d_outputs: Tensor | None,
        d_h: Tensor | None,
        d_c: Tensor | None,
    ) -> tuple[Tensor | None, ...]:
        _, wants_h, _, wants_weight = wanted
        d_outputs = torch.zeros_like(cells) if d_outputs is None else d_outputs.contiguous()
        # Gradients of the final state, which become those of the first one.
        d_h, d_c = (
            cells.new_zeros(h.shape) if d is None else d.clone(memory_format=_DENSE)
            for d in (d_h, d_c)
        )
        d_gates = torch.empty_like(gates)
        entering = None  # the outputs as they enter the next step, for the weights
        if wants_weight:
            entering = torch.empty_like(cells)
            entering[0] = h
            if problem.starts is not None:
                entering[0].masked_fill_(problem.starts[0].unsqueeze(-1), 0)
        _native.backward(
            *problem.args,
            c.data_ptr(),
            c.stride(0),
            weight.data_ptr(),
            gates.data_ptr(),
            cells.data_ptr(),
            d_outputs.data_ptr(),
            d_h.data_ptr(),
            d_c.data_ptr(),
            wants_h,
            d_gates.data_ptr(),
            0 if entering is None else entering.data_ptr(),
        )
        d_weight = None
        if entering is not None:
            # This way round it is a fifth faster than with the other factor transposed.
            d_weight = (entering.flatten(0, 1).t() @ d_gates.flatten(0, 1)).t()
        return d_gates, d_h, d_c, d_weight

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> None:
        raise RuntimeError(
            "native code has no second derivative: give the core backend='plain' for one."
        )


def lstm(
    projected: Tensor,
    state: tuple[Tensor, ...],
    starts: Tensor | None,
    activation: str,
    auxiliary: str,
    weight: Tensor,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Run an LSTM over its projected inputs, all float32 on the CPU.

    Args:
        projected: (T, B, G H), which is overwritten: nobody else may hold it.
        state: h and c, each (B, H).
        starts: (T, B) bool, where the state is zero again.
        activation, auxiliary: one of `ACTIVATIONS` and of `AUXILIARIES`.
        weight: the recurrent weights (G H, H).

    Returns:
        outputs (T, B, H) and the final h and c.

    Raises:
        ValueError: shapes or dtypes that do not fit together.
    """
    h, c = map(_rows, state)
    weight, projected = weight.contiguous(), projected.contiguous()
    steps, rows, units = projected.shape[0], len(h), weight.shape[1]
    maps = 3 if auxiliary == "tied" else 4
    shapes = (steps, rows, maps * units), (rows, units), (rows, units), (maps * units, units)
    for tensor, shape in zip((projected, h, c, weight), shapes, strict=True):
        if tensor.shape != shape or tensor.dtype != torch.float32:  # addresses know no bounds
            raise ValueError(f"must be float32 of shape {shape}, got {tensor.dtype}{tensor.shape}")
    problem = Problem(
        steps,
        rows,
        units,
        ACTIVATIONS.index(activation),
        AUXILIARIES.index(auxiliary),
        None if starts is None else starts.contiguous(),
    )
    tensors = (projected, h, c, weight)
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        outputs, h, c = _Sequence.apply(*tensors, problem)  # type: ignore[no-untyped-call]
        return outputs, (h, c)
    outputs, c = _forward(problem, *tensors, keep=False)
    return outputs, (outputs[-1], c)
