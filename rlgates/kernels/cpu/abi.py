"""The extension `_native` and the arguments of its gated kernels, packed as csrc/abi.h declares."""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

try:
    from rlgates.kernels.cpu import _native as _native
except ImportError:  # no compiler when the package was installed
    _native = None  # type: ignore[assignment]

# In the order of the enumerations in csrc/abi.h. Of a cell, the maps beside those of its gate.
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
    """The parent's threads do not exist in the child, where libgomp would wait for them forever."""
    global _forked
    _forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def built() -> bool:
    """Whether the extension was built when the package was installed."""
    return _native is not None


def num_threads() -> int:
    """How many threads a kernel may use: `torch.get_num_threads`, but 1 in a forked process."""
    return 1 if _forked else torch.get_num_threads()


class Sizes(NamedTuple):
    """The scalars of `GatedArgs`, in its order; `joint_columns` is explained there."""

    cell: int
    activation: int
    auxiliary: int
    chunk_size: int
    beta: float
    threads: int
    steps: int
    batch_size: int
    input_size: int
    units: int
    columns: int
    joint_columns: int
    needs_state_grad: bool = False


class Inputs(NamedTuple):
    """All tensors that may need a gradient, or these gradients.

    `h_0` and `c_0` are the state before the first step, `initial_h` and `initial_c` that at the
    start of an episode, None for zeros.
    """

    x: Tensor
    weight_ih: Tensor
    weight_hh: Tensor
    bias_ih: Tensor
    bias_hh: Tensor
    h_0: Tensor
    c_0: Tensor | None
    initial_h: Tensor | None = None
    initial_c: Tensor | None = None


class Outputs(NamedTuple):
    """The outputs (T, B, H), and the state after the last step."""

    outputs: Tensor
    h_n: Tensor
    c_n: Tensor | None


class SavedTensors(NamedTuple):
    """What the forward pass saves for the backward pass, each (T, B, width)."""

    gates: Tensor
    h_prev: Tensor
    cells: Tensor | None
    extra: Tensor | None


class GatedArgs(NamedTuple):
    """One layer to run; `episode_starts` is (T, B)."""

    sizes: Sizes
    episode_starts: Tensor | None
    inputs: Inputs

    def pack(self, *others: Tensor | None) -> bytes:
        """The bytes of a `GatedArgs` of csrc/abi.h; None is a null pointer."""
        tensors = (self.episode_starts, *self.inputs, *others)
        strides = [0 if part is None else part.stride(0) for part in self.inputs[5:]]
        pointers = [0 if tensor is None else tensor.data_ptr() for tensor in tensors]
        rest = [0] * (_POINTERS - len(pointers))
        return _LAYOUT.pack(*self.sizes, *strides, *pointers, *rest)


_LAYOUT = struct.Struct("=4qd39q")
_POINTERS = 27


def forward(layers: Sequence[tuple[GatedArgs, Outputs, SavedTensors | None]]) -> None:
    """Run one layer over a sequence, or two side by side."""
    packed = (args.pack(*outputs, *(saved or ())) for args, outputs, saved in layers)
    _native.gated_forward(b"".join(packed))


def backward(layers: Sequence[tuple[GatedArgs, SavedTensors, Tensor | None, Inputs]]) -> None:
    """Run the backward pass: arguments, saved tensors, d_outputs, and gradients of the inputs.

    The gradients are allocated by the caller: of x if it needs one, of all weights or of none.
    Those of the state hold the gradients of the final state, and become those of the first one.
    """
    packed = (
        args.pack(None, None, None, *saved, d_outputs, *gradients)
        for args, saved, d_outputs, gradients in layers
    )
    _native.gated_backward(b"".join(packed))
