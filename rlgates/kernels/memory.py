"""Tensors as memory: kernels get addresses, without bounds, so all is checked before."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

CPU = torch.device("cpu")


def check(
    name: str, tensor: Tensor, shape: Sequence[int], dtype: torch.dtype, device: torch.device
) -> None:
    """Raise a ValueError if the tensor has another shape, dtype or device."""
    if tensor.shape != shape or tensor.dtype != dtype or tensor.device != device:
        raise ValueError(
            f"{name} must be {dtype} of shape {tuple(shape)} on {device}, "
            f"got {tensor.dtype} of shape {tuple(tensor.shape)} on {tensor.device}."
        )


def readable(
    name: str,
    tensor: Tensor,
    shape: Sequence[int],
    dtype: torch.dtype = torch.float32,
    device: torch.device = CPU,
    rows: bool = False,
) -> Tensor:
    """The tensor as memory that a kernel can read: the same one, or a copy of its numbers.

    Args:
        name: what it is, for errors.
        tensor: any tensor: also one of PyTorch's zeros without memory, or a view with negated
            numbers.
        shape, dtype, device: what it must have.
        rows: whether its rows may be any distance apart, also 0; else it is contiguous.

    Raises:
        ValueError: another shape, dtype or device, or its memory was freed.
    """
    # As in `check`, without a call: this runs for every tensor of every call.
    if tensor.shape != shape or tensor.dtype is not dtype or tensor.device != device:
        check(name, tensor, shape, dtype, device)
    if tensor._is_zerotensor():
        return tensor.clone(memory_format=torch.contiguous_format)
    try:
        size = tensor.untyped_storage().nbytes()
    except NotImplementedError as error:  # in a backward pass under vmap, which began without it
        raise ValueError(
            f"{name} has no memory, got {type(tensor).__name__}: give the core backend='plain'."
        ) from error
    # The address alone would not tell: that of a view has an offset.
    if not size and tensor.numel():
        raise ValueError(f"the memory of {name} was freed.")
    if tensor.is_neg():
        tensor = tensor.resolve_neg()
    return tensor if rows and tensor.stride(-1) == 1 else tensor.contiguous()


def readable_steps(
    name: str, tensor: Tensor, shape: Sequence[int], device: torch.device = CPU
) -> Tensor:
    """As `readable`, of float32 (T, B, N): its rows are a `step_stride` apart."""
    tensor = readable(name, tensor, shape, device=device, rows=True)
    steps, batch_size, _ = shape
    even = min(steps, batch_size) <= 1 or tensor.stride(0) == batch_size * tensor.stride(1)
    return tensor if even else tensor.contiguous()


def step_stride(tensor: Tensor | None) -> int:
    """The distance between the rows of `readable_steps`; 0 for None."""
    if tensor is None:
        return 0
    return tensor.stride(1) if tensor.shape[1] > 1 else tensor.stride(0)
