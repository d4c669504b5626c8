"""Fast paths: the same functions as the loop of `rlgates.core.Core`, and when they are taken.

The plain loop is the truth. A fast path equals it in outputs, final state and all gradients;
where none can run, the loop does.
"""

from __future__ import annotations

import logging
from functools import cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.autograd import forward_ad

from rlgates.kernels import calls, native
from rlgates.kernels.recurrence import Recurrence

if TYPE_CHECKING:
    from rlgates.cell import Cell, State

__all__ = ["BACKENDS", "Recurrence", "run"]

BACKENDS = ("auto", "plain", "native")

_NOT_BUILT = "the extension rlgates.kernels._native was not built at installation"
_logger = logging.getLogger(__name__)


def _why_not(
    recurrence: Recurrence | None, x: Tensor, state: State, starts: Tensor | None
) -> str | None:
    """Why native code cannot run this; None if it can."""
    if torch.compiler.is_compiling():
        return "torch.compile traces the plain loop"
    if recurrence is None:
        return "this core has the plain loop alone"
    if (
        recurrence.activation not in calls.ACTIVATIONS
        or recurrence.auxiliary not in calls.AUXILIARIES
    ):
        return f"it has no {recurrence.auxiliary} gates of {recurrence.activation}"
    for tensor in (x, *state, *recurrence.weights):
        if not tensor.is_cpu or tensor.dtype is not torch.float32:
            return f"it takes float32 on the CPU, got {tensor.dtype} on {tensor.device}"
        if type(tensor) is not Tensor and type(tensor) is not torch.nn.Parameter:
            return f"it takes plain tensors, got {type(tensor).__name__}"
    if starts is not None and not starts.is_cpu:
        return f"the starts must be on the CPU, got {starts.device}"
    if torch.is_autocast_enabled("cpu"):
        return "it does not follow autocast"
    if _traced():
        return "a tracer, torch.func or forward-mode differentiation is active"
    if not calls.built():
        return _NOT_BUILT
    return None


def _traced() -> bool:
    """Whether somebody watches the operations of torch, who would not see native code."""
    # Private names of torch, as they are in 2.13.
    return (
        torch._C._get_tracing_state() is not None
        or torch._C._are_functorch_transforms_active()
        or torch._C._len_torch_dispatch_stack() > 0
        or forward_ad._current_level >= 0
    )


def run(
    cell: Cell,
    x: Tensor,
    state: State,
    starts: Tensor | None,
    backend: str,
    own_start: bool = True,
) -> tuple[Tensor, State] | None:
    """Run one layer over a sequence on a fast path.

    Args:
        cell: the layer.
        x: its inputs (T, B, I).
        state: the parts of its state before the first step.
        starts: (T, B) bool, true where an episode starts.
        backend: one of `BACKENDS`.
        own_start: whether an episode starts from the cell's own initial state.

    Returns:
        the outputs (T, B, O) and the final state; None if the plain loop has to run.

    Raises:
        ValueError: the backend is "native" and cannot run this, with the reason.
    """
    if backend == "plain":
        return None
    recurrence = cell.recurrence()
    reason = _why_not(recurrence, x, state, starts)
    if reason is None and starts is not None and not own_start:
        reason = "it starts an episode from zeros, not from a learned state"
    if recurrence is None or reason is not None:
        if backend == "native":
            raise ValueError(f"the native backend cannot run this: {reason}.")
        if reason is _NOT_BUILT:
            _log_once(f"the plain loop runs, several times slower than native code: {reason}.")
        return None
    return native.run(x, state, starts, recurrence)


@cache
def _log_once(message: str) -> None:
    _logger.warning(message)
