"""Features of small images with few colours on the CPU, and their gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rlgates.kernels import layout
from rlgates.kernels.cpu import abi
from rlgates.kernels.memory import readable

_ARGUMENTS = abi.integers(layout.GRID_CALL, layout.GRID_TENSORS)


def run(
    x: Tensor, cell_weight: Tensor, cell_bias: Tensor, place_weight: Tensor, place_bias: Tensor
) -> Tensor | None:
    """What is where in images, and what is anywhere: see `rlgates.agents.encoders.GridEncoder`.

    With cells = relu(cell_weight (2 x - 1) + cell_bias) at each of P places, the features are
    relu(place_weight cells + place_bias), then the maximum of the cells over the places. All are
    float32 on the CPU.

    Args:
        x: images (N, C, P), which get no gradient.
        cell_weight, cell_bias: (D, C) and (D).
        place_weight, place_bias: (O, P * D) and (O).

    Returns:
        the features (N, O + D); None if the images have more than `layout.COLOURS` colours.

    Raises:
        ValueError: shapes or dtypes do not fit together.
    """
    images, channels, places = x.shape
    (cell_dim, _), (place_dim, _) = cell_weight.shape, place_weight.shape
    inputs = [
        readable("x", x, (images, channels, places)),
        readable("cell_weight", cell_weight, (cell_dim, channels)),
        readable("cell_bias", cell_bias, (cell_dim,)),
        readable("place_weight", place_weight, (place_dim, places * cell_dim)),
        readable("place_bias", place_bias, (place_dim,)),
    ]
    colours = torch.empty(images, places, dtype=torch.uint8)
    palette, count = x.new_empty(layout.COLOURS, channels), torch.zeros(1, dtype=torch.int64)
    features = x.new_empty(images, place_dim + cell_dim)
    tensors = [*inputs, features, count, palette, colours]
    abi._native.grid_forward(_pack(tensors))
    if count > layout.COLOURS:
        return None
    if torch.is_grad_enabled() and any(weight.requires_grad for weight in inputs[1:]):
        features = _Grid.apply(*tensors)  # type: ignore[no-untyped-call]
    return features


def _pack(tensors: list[Tensor], *gradients: Tensor) -> bytes:
    (images, channels, places), cell_dim = tensors[0].shape, tensors[2].numel()
    sizes = abi.num_threads(), images, channels, places, cell_dim, tensors[4].numel()
    missing = [0] * (layout.length(layout.GRID_TENSORS) - len(tensors) - len(gradients))
    return _ARGUMENTS.pack(*sizes, *map(abi.address, (*tensors, *gradients)), *missing)


class _Grid(torch.autograd.Function):
    """The features that were computed, with gradients for the weights."""

    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> Tensor:
        features = tensors[5].view_as(tensors[5])
        ctx.save_for_backward(*tensors[:5], features, *tensors[6:])
        return features

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_features: Tensor) -> tuple[Tensor | None, ...]:
        # Hooks on saved tensors may have changed their strides.
        tensors = [tensor.contiguous() for tensor in ctx.saved_tensors]
        d_features = readable("a gradient", d_features, tensors[5].shape)
        gradients = [torch.empty_like(weight) for weight in tensors[1:5]]
        abi._native.grid_backward(_pack(tensors, d_features, *gradients))
        return None, *gradients, None, None, None, None
