"""The extension `_native`, and its arguments packed as `rlgates.kernels.layout` declares."""

from __future__ import annotations

import os
import struct
import warnings
from collections.abc import Iterable
from typing import TypeVar

import torch
from torch import Tensor

from rlgates.errors import check_choice
from rlgates.kernels import layout

INSTRUCTION_SETS = ("avx512", "avx2", "plain")
ISA = "RLGATES_ISA"
"""The variable of the environment that names one, for the whole process and those it starts."""

try:
    from rlgates.kernels.cpu import _native as _native
except ImportError:  # no compiler when the package was installed
    _native = None  # type: ignore[assignment]
else:
    # Addresses and sizes would be taken for others: a checkout may be newer than its build.
    if getattr(_native, "LAYOUT_DIGEST", None) != layout.digest():
        warnings.warn(
            "rlgates.kernels.cpu._native was built from another version of rlgates and is not "
            "used, which makes cores several times slower: install rlgates again.",
            stacklevel=2,
        )
        _native = None  # type: ignore[assignment]


def _use_named() -> None:
    """Use the instructions that `ISA` names; without them others would give other numbers."""
    name = os.environ.get(ISA)
    if not name:
        return
    check_choice(ISA, name, INSTRUCTION_SETS)
    if _native is not None:
        try:
            _native.use(name)
        except ValueError as error:
            raise ValueError(f"{ISA}: {error}.") from None


_use_named()

_Number = TypeVar("_Number", int, float)
_forked = False


def _after_fork() -> None:
    """The parent's threads do not exist in the child, where libgomp would wait for them forever."""
    global _forked
    _forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def built() -> bool:
    """Whether the extension was built when this version of the package was installed."""
    return _native is not None


def instruction_set() -> str:
    """The instructions that the kernels use; empty where they were not built."""
    return _native.use() if built() else ""


def num_threads() -> int:
    """How many threads a kernel may use: `torch.get_num_threads`, but 1 in a forked process."""
    return 1 if _forked else torch.get_num_threads()


def row_groups(batch_size: int) -> int:
    """Into how many groups rows are put whose sums are added in this order.

    It does not depend on the threads, so that the sums do not: it is the most that a call uses.
    """
    return min(16, batch_size)


def integers(*fields: layout.Fields) -> struct.Struct:
    """What packs these fields, as integers or addresses."""
    return struct.Struct(f"={sum(map(layout.length, fields))}q")


def numbers(fields: layout.Fields) -> struct.Struct:
    """What packs these fields as float64."""
    return struct.Struct(f"={layout.length(fields)}d")


def address(tensor: Tensor | None) -> int:
    """Where the tensor is in memory; 0, a null pointer, for None."""
    return 0 if tensor is None else tensor.data_ptr()


def padded(values: Iterable[_Number], length: int) -> list[_Number]:
    """The values, then zeros."""
    given = list(values)
    zeros: list[_Number] = [0] * (length - len(given))
    return given + zeros
