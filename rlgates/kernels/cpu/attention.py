"""Attention to a bounded number of steps on the CPU, in float32."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rlgates.kernels import layout
from rlgates.kernels.cpu import abi
from rlgates.kernels.memory import readable, readable_steps, step_stride
from rlgates.kernels.scan import raise_second_derivative

_ARGUMENTS = abi.integers(layout.ATTENTION_CALL, layout.ATTENTION_TENSORS)
_ADDRESSES = layout.length(layout.ATTENTION_TENSORS)


def run(
    q: Tensor, k: Tensor, v: Tensor, scores: Tensor, before: Tensor, length: Tensor
) -> tuple[Tensor, Tensor]:
    """sum of softmax(q k_s + score) v_s over the last steps s, in float32 on the CPU.

    Args:
        q, k, v: of all heads, (T, B, d).
        scores: added to the products, the oldest step first and the present one last, (heads, T,
            B, window).
        before: keys, then values of the window - 1 steps before the first one, the oldest first,
            (B, 2 (window - 1) d).
        length: how many steps of its episode there are before each, (T, B, 1), without gradient.

    Returns:
        the sums (T, B, d), and keys and values of the last window - 1 steps as in `before`, with
        zeros for those of earlier episodes.

    Raises:
        ValueError: shapes or dtypes do not fit together.
    """
    tensors = q, k, v, scores, before
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return _Attention.apply(length, *tensors)  # type: ignore[no-any-return, no-untyped-call]
    return _forward(length, tensors, None)


def _checked(length: Tensor, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    q, k, v, scores, before = tensors
    steps, batch_size, width = q.shape
    heads, *_, window = scores.shape
    if width % heads:
        raise ValueError(f"q must be as wide as {heads} heads, got {width}.")
    return (
        readable("q", q, q.shape),
        readable_steps("k", k, q.shape),
        readable_steps("v", v, q.shape),
        readable("scores", scores, (heads, steps, batch_size, window)),
        readable("length", length, (steps, batch_size, 1)),
        readable("before", before, (batch_size, 2 * (window - 1) * width), rows=True),
    )


def _pack(tensors: tuple[Tensor, ...], *others: Tensor | None) -> bytes:
    q, k, v, scores, _, before = tensors
    steps, batch_size, width = q.shape
    heads, *_, window = scores.shape
    return _ARGUMENTS.pack(
        *(abi.num_threads(), steps, batch_size, heads, width // heads, window),
        *(step_stride(k), step_stride(v), before.stride(0)),
        *abi.padded(map(abi.address, (*tensors, *others)), _ADDRESSES),
    )


def _forward(
    length: Tensor, tensors: tuple[Tensor, ...], weights: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Also fills in `weights`, those of softmax, if given."""
    checked = _checked(length, tensors)  # they live until native code has read them
    outputs, last = (tensor.new_empty(tensor.shape) for tensor in (tensors[0], tensors[-1]))
    abi._native.attention_forward(_pack(checked, outputs, last, weights))
    return outputs, last


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, length: Tensor, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        weights = tensors[3].new_empty(tensors[3].shape)
        ctx.save_for_backward(length, weights, *tensors)
        return _forward(length, tensors, weights)

    @staticmethod
    def backward(ctx: Any, d_outputs: Tensor, d_last: Tensor) -> tuple[Tensor | None, ...]:
        result = _AttentionBackward.apply(*ctx.saved_tensors, d_outputs, d_last)  # type: ignore[no-untyped-call]
        return None, *result


class _AttentionBackward(torch.autograd.Function):
    """The backward pass, which is not differentiable."""

    @staticmethod
    def forward(ctx: Any, length: Tensor, weights: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        *tensors, d_outputs, d_last = rest
        checked = _checked(length, tuple(tensors))
        q, _, _, scores, before = tensors
        weights = readable("the weights", weights, scores.shape)
        d_outputs = readable("the gradient of the outputs", d_outputs, q.shape)
        d_last = readable("the gradient of the last keys and values", d_last, before.shape)
        d_q, d_scores = (tensor.new_empty(tensor.shape) for tensor in (q, scores))
        d_k, d_v, d_before = (tensor.new_zeros(tensor.shape) for tensor in (q, q, before))
        gradients = d_q, d_k, d_v, d_scores, d_before
        others = None, None, weights, d_outputs, d_last, *gradients
        abi._native.attention_backward(_pack(checked, *others))
        return gradients

    backward = staticmethod(raise_second_derivative)
