"""The extension `_native`, and what it is told: addresses and sizes, packed as call.h says."""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

try:
    from rlgates.kernels import _native as _native  # which `native_scan` calls too
except ImportError:  # no compiler when the package was installed
    _native = None  # type: ignore[assignment]

# In the order of the enumerations in call.h. Of a cell, the maps beside those of its gate.
ACTIVATIONS = ("sigmoid", "fast", "iterated_fast", "softsign", "cumax")
AUXILIARIES = ("untied", "tied", "refine", "master")
CELLS = {
    "lstm": ("u", "o"),
    "gru_after": ("reset", "u"),
    "gru_before": ("reset", "u"),
    "janet": ("u",),
}

_forked = False


def _after_fork() -> None:
    """The threads of the parent are gone, and libgomp would wait for them for ever."""
    global _forked
    _forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def built() -> bool:
    """Whether the extension was built when the package was installed."""
    return _native is not None


def threads() -> int:
    """How many may run at once: as torch has it."""
    return 1 if _forked else torch.get_num_threads()


class Sizes(NamedTuple):
    """The numbers of a call."""

    cell: int
    activation: int
    auxiliary: int
    chunk_size: int
    beta: float
    threads: int
    steps: int
    rows: int
    inputs: int
    units: int
    columns: int
    joint: int
    first_h_stride: int
    first_c_stride: int
    wants_first: bool = False


class Inputs(NamedTuple):
    """All that may have a gradient, or these gradients."""

    x: Tensor
    weight_ih: Tensor
    weight_hh: Tensor
    bias_ih: Tensor
    bias_hh: Tensor
    first_h: Tensor
    first_c: Tensor | None


class Results(NamedTuple):
    """What comes out: the outputs (T, B, H), and the state after the last step."""

    outputs: Tensor
    last_h: Tensor
    last_c: Tensor | None


class Kept(NamedTuple):
    """What the forward pass leaves for the way back, each (T, B, width)."""

    gates: Tensor
    entering: Tensor
    cells: Tensor | None
    extra: Tensor | None


_LAYOUT = struct.Struct("=4qd33q")


def _pack(sizes: Sizes, *tensors: Tensor | None) -> bytes:
    """As `Call` of call.h is laid out; an address is 0 for none."""
    addresses = [0 if tensor is None else tensor.data_ptr() for tensor in tensors]
    return _LAYOUT.pack(*sizes, *addresses, *[0] * (23 - len(addresses)))


class Layer(NamedTuple):
    """A layer to be run: its numbers, its starts (T, B), and its tensors."""

    sizes: Sizes
    starts: Tensor | None
    inputs: Inputs


def forward(layers: Sequence[tuple[Layer, Results, Kept | None]]) -> None:
    """One layer over a sequence, or two side by side."""
    packed = (
        _pack(layer.sizes, layer.starts, *layer.inputs, *results, *(kept or ()))
        for layer, results, kept in layers
    )
    _native.forward(b"".join(packed))


def backward(layers: Sequence[tuple[Layer, Kept, Tensor | None, Inputs]]) -> None:
    """And back through time: layers, what they kept, gradients of the outputs, and gradients.

    In the latter there is room for those of x if they are wanted, and of all weights or of none;
    and there are those of the state after the last step, which become those of the first one.
    """
    packed = (
        _pack(*layer[:2], *layer.inputs, None, None, None, *kept, d_outputs, *gradients)
        for layer, kept, d_outputs, gradients in layers
    )
    _native.backward(b"".join(packed))
