"""Features of small images on a GPU: when Triton kernels compute them, and their operator.

Products are in bfloat16 under autocast to it, as the features then are, in tf32 where
torch.backends.cuda.matmul allows it, and else in float32.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op

from rlgates.kernels.cpu.grid import read_inputs
from rlgates.kernels.memory import readable
from rlgates.kernels.scan import raise_second_derivative
from rlgates.kernels.triton import op

_logger = logging.getLogger(__name__)

_MOST_CHANNELS, _MOST_DIM, _MOST_OUT = 15, 64, 128
_MOST_PLACES = 2**15 - 1


def _kernels() -> Any:
    """The module of the kernels; it imports Triton."""
    return importlib.import_module("rlgates.kernels.triton.grid")


def supports(x: Tensor, *weights: Tensor) -> bool:
    """Whether the kernels take these images and weights."""
    if not x.is_cuda or op.now_unsupported_reason(x.device) is not None:
        return False
    if any(t.dtype is not torch.float32 or t.device != x.device for t in (x, *weights)):
        return False
    (_, channels, places), dim, out = x.shape, weights[0].shape[0], weights[2].shape[0]
    fits = channels <= _MOST_CHANNELS and places <= _MOST_PLACES
    if not (fits and dim <= _MOST_DIM and out <= _MOST_OUT):
        return False
    if torch.compiler.is_compiling() or torch.cuda.is_current_stream_capturing():
        return True
    return _runs(x.device)


@cache
def _runs(device: torch.device) -> bool:
    """Whether the kernels can be built and run on a device; tried once, with one image."""
    sizes = (1, 3, 4), (2, 3), (2,), (2, 8), (2,)
    x, *weights = (torch.zeros(size, dtype=torch.float32, device=device) for size in sizes)
    try:
        with torch.autocast(device.type, enabled=False):
            saved = _grid(x, weights, True, True)
            _grid_backward(x, weights, True, saved, saved[0])
            torch.cuda.synchronize()
    except Exception as error:  # no compiler for the launcher, an old driver, ...
        _logger.warning("small images: triton fails on %s (%s)", device, type(error).__name__)
        return False
    return True


def run(x: Tensor, *weights: Tensor) -> Tensor:
    """As `rlgates.kernels.cpu.grid.run`; float32, or bfloat16 under autocast."""
    saves = torch.is_grad_enabled() and any(weight.requires_grad for weight in weights)
    features: Tensor = _grid(x, list(weights), torch.is_autocast_enabled(x.device.type), saves)[0]
    return features


@custom_op(
    "rlgates::triton_grid",
    mutates_args=(),
    schema="(Tensor x, Tensor[] weights, bool half, bool saves) -> Tensor[]",
)
def _grid(x: Tensor, weights: Sequence[Tensor], half: bool, saves: bool) -> list[Tensor]:
    x, *weights = read_inputs(x, *weights, device=x.device)
    results = _empty(x, weights, half, saves)
    with torch.cuda.device_of(x):
        _kernels().forward(x, weights, _precision(half), *results, *[None] * (not saves))
    return results


def _precision(half: bool) -> str:
    return "bf16" if half else op.matmul_precision()


def _empty(x: Tensor, weights: Sequence[Tensor], half: bool, saves: bool) -> list[Tensor]:
    """Features (N, O + D); the place of each maximum (N, D), if it is saved."""
    images, dim, out = x.shape[0], weights[0].shape[0], weights[2].shape[0]
    features = x.new_empty(images, out + dim, dtype=torch.bfloat16 if half else torch.float32)
    return [features, *([x.new_empty(images, dim, dtype=torch.int16)] if saves else [])]


@_grid.register_fake
def _(x: Tensor, weights: Sequence[Tensor], half: bool, saves: bool) -> list[Tensor]:
    return _empty(x, weights, half, saves)


@custom_op(
    "rlgates::triton_grid_backward",
    mutates_args=(),
    schema="(Tensor x, Tensor[] weights, bool half, Tensor[] saved, Tensor d_features) -> Tensor[]",
)
def _grid_backward(
    x: Tensor, weights: Sequence[Tensor], half: bool, saved: Sequence[Tensor], d_features: Tensor
) -> list[Tensor]:
    x, *weights = read_inputs(x, *weights, device=x.device)
    # Hooks on saved tensors may have changed them.
    features, most_at = (
        readable("what was saved", tensor, like.shape, like.dtype, x.device)
        for tensor, like in zip(saved, _empty(x, weights, half, True), strict=True)
    )
    d_features = readable("a gradient", d_features, features.shape, features.dtype, x.device)
    with torch.cuda.device_of(x):
        gradients: list[Tensor] = _kernels().backward(
            x, weights, _precision(half), features, most_at, d_features
        )
    return gradients


@_grid_backward.register_fake
def _(x: Tensor, weights: Sequence[Tensor], *_: Any) -> list[Tensor]:
    return [torch.empty_like(w, memory_format=torch.contiguous_format) for w in weights]


def _setup(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    x, weights, ctx.half, _ = inputs
    ctx.save_for_backward(x, *weights, *output)


def _gradients(ctx: Any, gradients: Sequence[Tensor]) -> tuple[Any, ...]:
    x, *rest = ctx.saved_tensors
    result = _grid_backward(x, rest[:4], ctx.half, rest[4:], gradients[0])
    return None, result, None, None


_grid.register_autograd(_gradients, setup_context=_setup)
_grid_backward.register_autograd(raise_second_derivative)
