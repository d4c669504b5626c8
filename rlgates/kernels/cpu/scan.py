"""The linear recurrence on the CPU: a `ScanKernel` whose arguments csrc/abi.h declares."""

from __future__ import annotations

import struct

from torch import Tensor

from rlgates.kernels.cpu import abi
from rlgates.kernels.scan import ScanGradients, ScanProblem

_LAYOUT = struct.Struct("=21q")
_POINTERS = 12


def _pack(problem: ScanProblem, like: Tensor, *tensors: Tensor | None) -> bytes:
    """The bytes of a `ScanArgs`; `tensors` are b, states and gradients, None a null pointer."""
    steps, batch_size, width = like.shape
    tensors = (problem.episode_starts, problem.a, problem.h_0, problem.initial, *tensors)
    pointers = [0 if tensor is None else tensor.data_ptr() for tensor in tensors]
    return _LAYOUT.pack(
        *(abi.num_threads(), steps, batch_size, width // (1 + problem.is_complex), width),
        *problem.strides,
        *pointers,
        *[0] * (_POINTERS - len(pointers)),
    )


def forward(problem: ScanProblem, b: Tensor, states: Tensor) -> None:
    """See `rlgates.kernels.scan.ScanKernel`."""
    abi._native.scan_forward(_pack(problem, b, b, states))


def backward(problem: ScanProblem, states: Tensor, d: ScanGradients) -> None:
    """See `rlgates.kernels.scan.ScanKernel`."""
    abi._native.scan_backward(_pack(problem, states, None, states, *d))
