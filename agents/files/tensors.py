"""The parts: tensors by name, in safetensors format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "int64": torch.int64,
    "int32": torch.int32,
    "int16": torch.int16,
    "int8": torch.int8,
    "uint8": torch.uint8,
    "bool": torch.bool,
    "complex64": torch.complex64,
}
_CODES = {
    "F64": "float64",
    "F32": "float32",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U8": "uint8",
    "BOOL": "bool",
    "C64": "complex64",
}

Spec = dict[str, tuple[str, tuple[int, ...]]]
"""Dtype and shape by name."""


def spec_of(tensors: Mapping[str, Tensor]) -> Spec:
    """The dtypes and shapes of tensors, which may be on the meta device."""
    return {name: (dtype_name(x), tuple(x.shape)) for name, x in tensors.items()}


def dtype_name(x: Tensor) -> str:
    """The name of a dtype.

    Raises:
        ValueError: it is not in `DTYPES`.
    """
    name = str(x.dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise ValueError(f"tensors of {name} cannot be written, but {', '.join(DTYPES)} can")
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

    No memory is allocated for a shape: safetensors checks that the bytes are there.

    Raises:
        ValueError: it is damaged, or holds other tensors.
    """
    entries = _entries(part)
    if missing := spec.keys() ^ entries.keys():
        name = min(missing)
        raise ValueError(f"the tensor {name!r} is {'missing' if name in spec else 'not expected'}")
    return {name: _tensor(name, entries[name], *spec[name]) for name in spec}


def unpack_shapes(part: bytes, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """The tensors of a part, which must have these names and shapes, and any dtype.

    Raises:
        ValueError: as `unpack`.
    """
    found = {name: _CODES.get(entry["dtype"], "") for name, entry in _entries(part).items()}
    return unpack(part, {name: (found.get(name, ""), shape) for name, shape in shapes.items()})


def _entries(part: bytes) -> dict[str, Any]:
    try:
        return dict(safetensors.deserialize(part))  # type: ignore[no-untyped-call]
    except safetensors.SafetensorError as error:
        raise ValueError(f"a part is no safetensors file ({error})") from error


def _tensor(name: str, entry: Mapping[str, Any], dtype: str, shape: tuple[int, ...]) -> Tensor:
    found = _CODES.get(entry["dtype"], entry["dtype"]), tuple(entry["shape"])
    if found != (dtype, shape):
        raise ValueError(f"{name} must be {dtype} {shape}, got {found[0]} {found[1]}")
    data = bytearray(entry["data"])
    if not data:
        return torch.empty(shape, dtype=DTYPES[dtype])
    return torch.frombuffer(data, dtype=DTYPES[dtype]).reshape(shape)
