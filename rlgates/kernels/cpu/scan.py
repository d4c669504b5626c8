"""The linear recurrence on the CPU: a `ScanKernel`."""

from __future__ import annotations

from torch import Tensor

from rlgates.kernels import layout
from rlgates.kernels.cpu import abi
from rlgates.kernels.scan import ScanGradients, ScanProblem

_ARGUMENTS = abi.integers(layout.SCAN_CALL, (("episode_starts", 1),), layout.SCAN_TENSORS)
_ADDRESSES = 1 + layout.length(layout.SCAN_TENSORS)


def _pack(problem: ScanProblem, like: Tensor, *tensors: Tensor | None) -> bytes:
    """The bytes of a `ScanArgs`; `tensors` are b, states and gradients, None a null pointer."""
    steps, batch_size, width = like.shape
    tensors = (problem.episode_starts, problem.a, problem.h_0, problem.initial, *tensors)
    return _ARGUMENTS.pack(
        *(abi.num_threads(), steps, batch_size, width // (1 + problem.is_complex), width),
        *problem.strides,
        *abi.padded(map(abi.address, tensors), _ADDRESSES),
    )


def forward(problem: ScanProblem, b: Tensor, states: Tensor) -> None:
    """See `rlgates.kernels.scan.ScanKernel`."""
    abi._native.scan_forward(_pack(problem, b, b, states))


def backward(problem: ScanProblem, states: Tensor, d: ScanGradients) -> None:
    """See `rlgates.kernels.scan.ScanKernel`."""
    abi._native.scan_backward(_pack(problem, states, None, states, *d))
