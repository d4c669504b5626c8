"""The short causal convolution of selective state-space models on the CPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rlgates.kernels import layout
from rlgates.kernels.cpu import abi
from rlgates.kernels.memory import readable, readable_steps, step_stride
from rlgates.kernels.scan import raise_second_derivative

_ARGUMENTS = abi.integers(layout.CONV_CALL, (("episode_starts", 1),), layout.CONV_TENSORS)
_ADDRESSES = 1 + layout.length(layout.CONV_TENSORS)


def run(
    u: Tensor, window: Tensor, weight: Tensor, bias: Tensor, episode_starts: Tensor | None
) -> tuple[Tensor, Tensor]:
    """silu(bias + sum over the last steps of weight * u), in float32 on the CPU.

    Args:
        u: (T, B, C).
        window: u at earlier steps, the oldest first, (B, K - 1, C).
        weight, bias: (C, K), the present step last, and (C).
        episode_starts: (T, B) bool, true where no earlier step counts; or None.

    Returns:
        the convolved numbers (T, B, C), and the window after the last step.

    Raises:
        ValueError: shapes or dtypes do not fit together.
    """
    tensors = u, window, weight.t().flip(0), bias
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return _Conv.apply(episode_starts, *tensors)  # type: ignore[no-any-return, no-untyped-call]
    return _forward(episode_starts, tensors)


def _checked(
    episode_starts: Tensor | None, tensors: tuple[Tensor, ...]
) -> tuple[Tensor | None, tuple[Tensor, ...]]:
    u, window, weight, bias = tensors
    (_, batch_size, width), taps = u.shape, len(weight)
    if episode_starts is not None:
        episode_starts = readable("starts", episode_starts, u.shape[:2], torch.bool)
    window = readable("window", window, (batch_size, taps - 1, width), rows=True)
    if window.stride(1) != width:
        window = window.contiguous()
    return episode_starts, (
        readable_steps("u", u, u.shape),
        window,
        readable("weight", weight, (taps, width)),
        readable("bias", bias, (width,)),
    )


def _pack(
    episode_starts: Tensor | None, tensors: tuple[Tensor, ...], *others: Tensor | None
) -> bytes:
    u, window, weight, _ = tensors
    steps, batch_size, width = u.shape
    return _ARGUMENTS.pack(
        *(abi.num_threads(), steps, batch_size, width, len(weight), abi.row_groups(batch_size)),
        *(step_stride(u), window.stride(0)),
        *abi.padded(map(abi.address, (episode_starts, *tensors, *others)), _ADDRESSES),
    )


def _forward(episode_starts: Tensor | None, tensors: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    starts, read = _checked(episode_starts, tensors)
    outputs, last = (tensor.new_empty(tensor.shape) for tensor in tensors[:2])
    abi._native.conv_forward(_pack(starts, read, outputs, last))
    return outputs, last


class _Conv(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, episode_starts: Tensor | None, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(episode_starts, *tensors)
        return _forward(episode_starts, tensors)

    @staticmethod
    def backward(ctx: Any, d_outputs: Tensor, d_last: Tensor) -> tuple[Tensor | None, ...]:
        result = _ConvBackward.apply(*ctx.saved_tensors, d_outputs, d_last)  # type: ignore[no-untyped-call]
        return None, *result


class _ConvBackward(torch.autograd.Function):
    """The backward pass, which is not differentiable."""

    @staticmethod
    def forward(ctx: Any, episode_starts: Tensor | None, *rest: Tensor) -> tuple[Tensor, ...]:
        *tensors, d_outputs, d_last = rest
        starts, read = _checked(episode_starts, tuple(tensors))
        u, window, weight, bias = read
        d_outputs = readable("the gradient of the outputs", d_outputs, u.shape)
        d_last = readable("the gradient of the last window", d_last, window.shape)
        d_u, d_window = (tensor.new_zeros(tensor.shape) for tensor in (u, window))
        width = weight.numel(), bias.numel()
        sums = torch.zeros(abi.row_groups(u.shape[1]), sum(width), dtype=torch.float64)
        others = None, None, d_outputs, d_last, d_u, d_window, sums
        abi._native.conv_backward(_pack(starts, read, *others))
        d_weight, d_bias = sums.sum(0).float().split(width)
        return d_u, d_window, d_weight.view_as(weight), d_bias

    backward = staticmethod(raise_second_derivative)
