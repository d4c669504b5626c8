"""The parts: tensors by name, in safetensors format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

_CODES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "C64": torch.complex64,
}
"""The dtypes by what safetensors calls them."""
_DTYPES = [str(dtype).removeprefix("torch.") for dtype in _CODES.values()]

Spec = dict[str, tuple[str, tuple[int, ...]]]
"""Dtype and shape by name."""


def spec_of(tensors: Mapping[str, Tensor]) -> Spec:
    """The dtypes and shapes of tensors, which may be on the meta device."""
    return {name: (dtype_name(x), tuple(x.shape)) for name, x in tensors.items()}


def dtype_name(x: Tensor) -> str:
    """The name of a dtype.

    Raises:
        ValueError: it cannot be written.
    """
    name = str(x.dtype).removeprefix("torch.")
    if name not in _DTYPES:
        raise ValueError(f"tensors of {name} cannot be written, but {', '.join(_DTYPES)} can")
    return name


def pack(tensors: Mapping[str, Tensor]) -> bytes:
    """Tensors as a part."""
    spec_of(tensors)
    # Copies, because safetensors refuses tensors that share memory.
    kept = {
        name: x.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, x in tensors.items()
    }
    return safetensors.torch.save(kept)


def unpack(part: bytes, spec: Spec) -> dict[str, Tensor]:
    """The tensors of a part, which must have these names, dtypes and shapes.

    Raises:
        ValueError: it is damaged, or holds other tensors.
    """
    found = unpack_all(part)
    check(found, spec)
    return {name: found[name] for name in spec}


def unpack_all(part: bytes) -> dict[str, Tensor]:
    """The tensors of a part. None takes more memory than the part has bytes for it.

    Raises:
        ValueError: it is damaged.
    """
    try:
        entries = safetensors.deserialize(part)  # type: ignore[no-untyped-call]
    except safetensors.SafetensorError as error:
        raise ValueError(f"a part is not a safetensors file ({error})") from error
    return {name: _tensor(name, entry) for name, entry in entries}


def check(tensors: Mapping[str, Tensor], spec: Spec) -> None:
    """Raise ValueError unless these are the names, dtypes and shapes of the tensors."""
    if different := spec.keys() ^ tensors.keys():
        name = min(different)
        raise ValueError(f"the tensor {name!r} is {'missing' if name in spec else 'not expected'}")
    for name, (dtype, shape) in spec.items():
        x = tensors[name]
        if (dtype_name(x), tuple(x.shape)) != (dtype, shape):
            got = f"{dtype_name(x)} {tuple(x.shape)}"
            raise ValueError(f"{name} must be {dtype} {shape}, got {got}")


def _tensor(name: str, entry: Mapping[str, Any]) -> Tensor:
    dtype = _CODES.get(entry["dtype"])
    if dtype is None:
        raise ValueError(f"{name} has dtype {entry['dtype']}, not one of {list(_CODES)}")
    data = bytearray(entry["data"])
    if not data:
        return torch.empty(entry["shape"], dtype=dtype)
    return torch.frombuffer(data, dtype=dtype).reshape(entry["shape"])
