"""Helpers for code over NumPy arrays and torch tensors, where the array API standard has none."""

from __future__ import annotations

from functools import lru_cache
from types import SimpleNamespace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
"""A NumPy array, or a torch tensor on any device."""


def namespace(array: Any) -> Any:
    """The array API namespace of `array`."""
    return np if isinstance(array, np.ndarray) else _torch_namespace()


@lru_cache(maxsize=1)
def _torch_namespace() -> Any:
    # Not `array_api_compat.array_namespace`, which torch 2.8 cannot compile.
    import array_api_compat.torch

    return array_api_compat.torch


def row_starts(rows: int, width: int, like: Array) -> Array:
    """The index at which each row of a flattened (rows, width) array begins, (rows,)."""
    if isinstance(like, np.ndarray):
        return _row_starts(rows, width)
    first: Array = namespace(like).arange(0, rows * width, width, device=like.device)
    return first


@lru_cache(maxsize=64)
def _row_starts(rows: int, width: int) -> Array:
    first = np.arange(0, rows * width, width)
    first.flags.writeable = False  # shared by all callers
    return first


def entry(values: Array, columns: Array) -> Array:
    """One entry of each row of `values` (B, n): `values[row, columns[row]]`, (B,)."""
    rows, width = values.shape
    return look_up(values.reshape(-1), row_starts(rows, width, columns) + columns)


def look_up(table: Array, index: Array) -> Array:
    """`table[index]`: rows of `table`, for an `index` of any shape."""
    if isinstance(table, np.ndarray):
        return table.take(index, axis=0)  # several times faster than indexing
    return table[index]


def fill(values: Array, index: Any, number: int) -> None:
    """`values[index] = number`: torch would copy the number to a GPU, and wait for that."""
    xp = namespace(values)
    values[index] = xp.full((), number, dtype=values.dtype, device=values.device)


def select(mask: Array, chosen: Any, other: Any) -> Any:
    """Rows of `chosen` where `mask` (B,) is true, else of `other`; arrays or dicts of arrays."""
    if isinstance(chosen, dict):
        return {name: select(mask, chosen[name], other[name]) for name in chosen}
    xp = namespace(mask)
    return xp.where(mask.reshape((-1,) + (1,) * (chosen.ndim - 1)), chosen, other)


def row_of(values: Any, row: int) -> Any:
    """Row `row` of an array, or of each array of a dict."""
    if isinstance(values, dict):
        return {name: part[row] for name, part in values.items()}
    return values[row]


def rows_of(values: Any, rows: Array) -> Any:
    """The `rows` (n,) of an array, or of each array of a dict."""
    if isinstance(values, dict):
        return {name: rows_of(part, rows) for name, part in values.items()}
    return look_up(values, rows)


def put(rows: Array, chosen: Any, other: Any) -> Any:
    """A copy of `other` with `chosen` in its `rows` (n,); arrays or dicts of arrays."""
    if isinstance(chosen, dict):
        return {name: put(rows, chosen[name], other[name]) for name in chosen}
    values: Array = namespace(other).asarray(other, copy=True)
    values[rows] = chosen
    return values


def drop_alpha(pixels: Array, *shape: int) -> Array:
    """Colours of `RGBA` numbers, int32 (B, n), as uint8 (B, *shape, 3)."""
    xp = namespace(pixels)
    channels = pixels.view(xp.uint8).reshape((-1, *shape, 4))
    colors: Array = xp.empty((pixels.shape[0], *shape, 3), dtype=xp.uint8, device=pixels.device)
    for channel in range(3):  # one long copy each: several times faster than short ones
        colors[..., channel] = channels[..., channel]
    return colors


class Tables:
    """Look-up tables, as NumPy arrays and copied once to each device where they are used."""

    def __init__(self, **tables: Array) -> None:
        self._tables = SimpleNamespace(**tables)
        self._copies: dict[Any, SimpleNamespace] = {}

    def on_device_of(self, array: Array) -> Any:
        """The tables as attributes, of the kind and on the device of `array`."""
        if isinstance(array, np.ndarray):
            return self._tables
        device = array.device
        if device not in self._copies:
            xp = namespace(array)
            self._copies[device] = SimpleNamespace(
                **{name: xp.asarray(t, device=device) for name, t in vars(self._tables).items()}
            )
        return self._copies[device]
