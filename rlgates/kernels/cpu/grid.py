"""Features of small images with few colours on the CPU, and their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rlgates.kernels import layout
from rlgates.kernels.cpu import abi
from rlgates.kernels.memory import CPU, readable
from rlgates.kernels.scan import raise_second_derivative

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
    inputs = read_inputs(x, cell_weight, cell_bias, place_weight, place_bias)
    if torch.is_grad_enabled() and any(weight.requires_grad for weight in inputs[1:]):
        return _Grid.apply(*inputs)  # type: ignore[no-any-return, no-untyped-call]
    features, count, *_ = _computed(*inputs)
    return None if count > layout.COLOURS else features


def read_inputs(x: Tensor, *weights: Tensor, device: torch.device = CPU) -> list[Tensor]:
    """The arguments of `run` as kernels read them: they get addresses, without bounds."""
    return [readable("x", x, x.shape, device=device), *_read_weights(x.shape, weights, device)]


def _read_weights(
    shape: Sequence[int], weights: Sequence[Tensor], device: torch.device = CPU
) -> list[Tensor]:
    """The weights as kernels read them, for images of a shape."""
    (_, channels, places), (cell_dim, place_dim) = shape, _dims(weights)
    shapes = {
        "cell_weight": (cell_dim, channels),
        "cell_bias": (cell_dim,),
        "place_weight": (place_dim, places * cell_dim),
        "place_bias": (place_dim,),
    }
    return [
        readable(name, tensor, expected, device=device)
        for (name, expected), tensor in zip(shapes.items(), weights, strict=True)
    ]


def _dims(weights: Sequence[Tensor]) -> tuple[int, int]:
    return weights[0].shape[0], weights[2].shape[0]


def empty(x: Tensor, *weights: Tensor) -> list[Tensor]:
    """What the forward pass writes: features (N, O + D), the number of colours, and the colours."""
    (images, channels, places), dims = x.shape, _dims(weights)
    return [
        x.new_empty(images, sum(dims)),
        x.new_zeros(1, dtype=torch.int64),
        x.new_empty(layout.COLOURS, channels),
        x.new_empty(images, places, dtype=torch.uint8),
    ]


def _computed(x: Tensor, *weights: Tensor) -> list[Tensor]:
    results = empty(x, *weights)
    abi._native.grid_forward(_pack(x, weights, results))
    return results


def _pack(
    x: Tensor | None, weights: Sequence[Tensor], results: Sequence[Tensor], *gradients: Tensor
) -> bytes:
    _, _, palette, colours = results
    sizes = abi.num_threads(), len(colours), palette.shape[1], colours.shape[1], *_dims(weights)
    tensors = x, *weights, *results, *gradients
    missing = [0] * (layout.length(layout.GRID_TENSORS) - len(tensors))
    return _ARGUMENTS.pack(*sizes, *map(abi.address, tensors), *missing)


class _Grid(torch.autograd.Function):
    """The features with gradients for the weights; None as `run`."""

    @staticmethod
    def forward(ctx: Any, *inputs: Tensor) -> Tensor | None:
        features, count, *rest = _computed(*inputs)
        if count > layout.COLOURS:
            return None
        x, cell_weight, cell_bias, place_weight, _ = inputs
        ctx.shape = x.shape
        # Images and features may then be changed in place.
        saved = cell_weight, cell_bias, place_weight, features.clone(), count, *rest
        ctx.save_for_backward(*saved)
        return features

    @staticmethod
    def backward(ctx: Any, d_features: Tensor) -> tuple[Tensor | None, ...]:
        gradients = _GridBackward.apply(ctx.shape, *ctx.saved_tensors, d_features)  # type: ignore[no-untyped-call]
        return None, *gradients


class _GridBackward(torch.autograd.Function):
    """The backward pass, which is not differentiable."""

    @staticmethod
    def forward(ctx: Any, shape: Sequence[int], *tensors: Tensor) -> tuple[Tensor, ...]:
        *weights, _, _, _, _, d_features = tensors
        place_bias = weights[2].new_empty(len(weights[2]))  # which is not read
        saved = _read_saved(shape, [*weights, place_bias], tensors[3:7])
        return tuple(_gradients(*saved, d_features))

    backward = staticmethod(raise_second_derivative)


def _read_saved(
    shape: Sequence[int], weights: Sequence[Tensor], results: Sequence[Tensor]
) -> tuple[list[Tensor], list[Tensor]]:
    """The weights and the results of `empty`, which hooks may have changed."""
    weights = _read_weights(shape, weights)
    x = torch.empty(shape, dtype=torch.float32, device="meta")
    return weights, [
        readable("what was saved", tensor, like.shape, like.dtype)
        for tensor, like in zip(results, empty(x, *weights), strict=True)
    ]


def _gradients(
    weights: Sequence[Tensor], results: Sequence[Tensor], d_features: Tensor
) -> list[Tensor]:
    d_features = readable("a gradient", d_features, results[0].shape)
    gradients = [torch.empty_like(weight) for weight in weights]
    abi._native.grid_backward(_pack(None, weights, results, d_features, *gradients))
    return gradients


# ---- for compiled graphs, which cannot choose by the number of colours ---------------------------


def forward(x: Tensor, *weights: Tensor) -> list[Tensor]:
    """As `empty`, computed: the features also of images with too many colours."""
    inputs = read_inputs(x, *weights)
    features, count, palette, colours = _computed(*inputs)
    found = int(count)
    if found > layout.COLOURS:
        features, found = _by_torch(*inputs), 0
        colours.zero_()
    palette[found:] = 0  # an operator has no results that were never written
    return [features, count, palette, colours]


def backward(
    x: Tensor, weights: Sequence[Tensor], results: Sequence[Tensor], d_features: Tensor
) -> list[Tensor]:
    """The gradients of the weights, from the results of `forward`."""
    x = readable("x", x, x.shape)
    weights, results = _read_saved(x.shape, weights, results)
    if results[1] <= layout.COLOURS:
        return _gradients(weights, results, d_features)
    return _gradients_by_torch(x, weights, results[0], d_features)


def _cells_by_torch(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """What the cells see, (N, P, C), and the cells, (N, P, D)."""
    seen = (2 * x - 1).transpose(1, 2)
    return seen, nn.functional.linear(seen, weight, bias).relu()


def _by_torch(
    x: Tensor, cell_weight: Tensor, cell_bias: Tensor, place_weight: Tensor, place_bias: Tensor
) -> Tensor:
    _, cells = _cells_by_torch(x, cell_weight, cell_bias)
    places = nn.functional.linear(cells.flatten(1), place_weight, place_bias).relu()
    return torch.cat([places, cells.amax(dim=1)], dim=1)


def _gradients_by_torch(
    x: Tensor, weights: Sequence[Tensor], features: Tensor, d_features: Tensor
) -> list[Tensor]:
    # By hand: an operator runs below autograd.
    cell_weight, cell_bias, place_weight, _ = weights
    seen, cells = _cells_by_torch(x, cell_weight, cell_bias)
    d_places, d_most = d_features.split([len(place_weight), len(cell_weight)], dim=1)
    d_places = d_places.masked_fill(features[:, : len(place_weight)] <= 0, 0)
    d_cells = (d_places @ place_weight).view_as(cells)
    d_cells.scatter_add_(1, cells.argmax(dim=1, keepdim=True), d_most.unsqueeze(1))
    d_cells = d_cells.masked_fill(cells <= 0, 0).flatten(0, 1)
    return [
        d_cells.t() @ seen.flatten(0, 1),
        d_cells.sum(0),
        d_places.t() @ cells.flatten(1),
        d_places.sum(0),
    ]
