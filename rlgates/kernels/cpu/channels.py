"""Channels with a linear system each on the CPU: a `ChannelKernel`."""

from __future__ import annotations

import torch
from torch import Tensor

from rlgates.kernels import layout
from rlgates.kernels.channels import ChannelGradients, ChannelProblem, Kept
from rlgates.kernels.cpu import abi

_ARGUMENTS = abi.integers(layout.CHANNELS_CALL, (("episode_starts", 1),), layout.CHANNELS_TENSORS)
_ADDRESSES = 1 + layout.length(layout.CHANNELS_TENSORS)


def _pack(problem: ChannelProblem, groups: int, *others: Tensor | None) -> bytes:
    """The bytes of a `ChannelArgs`, with the outputs and gradients."""
    tensors = problem.episode_starts, *problem.inputs, *others
    return _ARGUMENTS.pack(
        *(abi.num_threads(), *problem.sizes, problem.kind, groups, sum(problem.sums)),
        *problem.strides,
        *abi.padded(map(abi.address, tensors), _ADDRESSES),
    )


def _groups(problem: ChannelProblem) -> int:
    return abi.row_groups(problem.sizes[1])


def forward(problem: ChannelProblem, outputs: Tensor, last: Tensor, kept: Kept | None) -> None:
    """See `rlgates.kernels.channels.ChannelKernel`."""
    packed = _pack(problem, _groups(problem), outputs, last, *(kept or ()))
    abi._native.channels_forward(packed)


def backward(problem: ChannelProblem, kept: Kept, d: ChannelGradients) -> Tensor:
    """See `rlgates.kernels.channels.ChannelKernel`."""
    groups = _groups(problem)
    sums = torch.zeros(groups, sum(problem.sums), dtype=torch.float64)
    abi._native.channels_backward(_pack(problem, groups, None, None, *kept, *d, sums))
    return sums
