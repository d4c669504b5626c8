"""The linear recurrence in native code, on the CPU: packed as `Scan` of call.h is laid out."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from torch import Tensor

from rlgates.kernels import calls

if TYPE_CHECKING:
    from rlgates.kernels.scan import Gradients, Problem

_LAYOUT = struct.Struct("=21q")


def _pack(problem: Problem, like: Tensor, *tensors: Tensor | None) -> bytes:
    """`tensors` are b, the states and the gradients; an address is 0 for none."""
    steps, rows, width = like.shape
    tensors = (problem.starts, problem.factor, problem.first, problem.initial, *tensors)
    addresses = [0 if tensor is None else tensor.data_ptr() for tensor in tensors]
    return _LAYOUT.pack(
        *(calls.threads(), steps, rows, width // (1 + problem.paired), width),
        *problem.strides,
        *addresses,
        *[0] * (12 - len(addresses)),
    )


def forward(problem: Problem, into: Tensor, states: Tensor) -> None:
    """See `rlgates.kernels.scan.Kernel`."""
    calls._native.scan_forward(_pack(problem, into, into, states))


def backward(problem: Problem, states: Tensor, d: Gradients) -> None:
    """See `rlgates.kernels.scan.Kernel`."""
    calls._native.scan_backward(_pack(problem, states, None, states, *d))
