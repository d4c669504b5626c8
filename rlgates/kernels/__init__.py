"""Fast paths: the same functions as the loop of `rlgates.core.Core`, and when they are taken.

The plain loop is the truth. A fast path equals it in outputs, final state and all gradients;
where none can run, the loop does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from rlgates.kernels import calls, loop, native, native_scan, scan, triton
from rlgates.kernels.recurrence import Loop, Recurrence
from rlgates.kernels.scan import Linear, Scan

if TYPE_CHECKING:
    from rlgates.cell import Cell, State

__all__ = [
    "BACKENDS",
    "Linear",
    "Loop",
    "Recurrence",
    "Result",
    "Scan",
    "have_few_rows",
    "run",
    "run_together",
]

BACKENDS = ("auto", "plain", "native", "scan", "triton")

_NOT_BUILT = "the extension rlgates.kernels._native was not built at installation"
_logger = logging.getLogger(__name__)


class Task(NamedTuple):
    """A layer to be run over a sequence, see `run`; `tensors` are x, the state and weights."""

    layer: Any
    x: Tensor
    state: State
    starts: Tensor | None
    initial: Callable[[], State]
    own_start: bool
    tensors: tuple[Tensor, ...]


class Path(NamedTuple):
    """A way to run a task: why it cannot (None if it can), how it does, and whether it pays."""

    why_not: Callable[[Task], str | None]
    run: Callable[[Task], tuple[Tensor, State]]
    pays: Callable[[Task], bool] = lambda task: True


class Result(NamedTuple):
    """Outputs (T, B, O), the parts of the final state, and the backend that made them."""

    outputs: Tensor
    state: State
    backend: str


# ---- gated layers ------------------------------------------------------------------------------


def _not_native(task: Task) -> str | None:
    if task.starts is not None and not task.own_start:
        return "it starts an episode from zeros, not from a learned state"
    return _not_gate(task.layer.activation, task.layer.auxiliary) or _not_on_cpu(task)


def _not_gate(activation: str, auxiliary: str) -> str | None:
    if activation not in calls.ACTIVATIONS:
        return f"it has no gates of {activation}"
    return None if auxiliary in calls.AUXILIARIES else f"it has no {auxiliary} gates"


def _not_on_cpu(task: Task) -> str | None:
    if torch.is_autocast_enabled("cpu"):
        return "it does not follow autocast"
    return _not_native_scan(task)


def _native(task: Task) -> tuple[Tensor, State]:
    return native.run(task.x, task.state, task.starts, task.layer)


def _not_triton(task: Task) -> str | None:
    if task.starts is not None and not task.own_start:
        return "it starts an episode from zeros, not from a learned state"
    return triton.why_not(task.x, task.state, task.starts, task.layer)


def _triton(task: Task) -> tuple[Tensor, State]:
    return triton.run(task.x, task.state, task.starts, task.layer)


# ---- layers with weights of their own ----------------------------------------------------------


def _not_native_loop(task: Task) -> str | None:
    gate = task.layer.gate
    return (gate and _not_gate(*gate[:2])) or _not_on_cpu(task)


def _native_loop(task: Task) -> tuple[Tensor, State]:
    initial = None if task.starts is None else task.initial()
    return loop.run(task.layer, task.x, task.state, task.starts, initial)


# ---- layers that are linear in their state -----------------------------------------------------


def _not_native_scan(task: Task) -> str | None:
    for tensor in task.tensors:
        if not tensor.is_cpu or tensor.dtype is not torch.float32:
            return f"it takes float32 on the CPU, got {tensor.dtype} on {tensor.device}"
    return None if calls.built() else _NOT_BUILT


def _not_triton_scan(task: Task) -> str | None:
    for tensor in task.tensors:
        if not tensor.is_cuda or tensor.dtype is not torch.float32:
            return f"it takes float32 on a GPU, got {tensor.dtype} on {tensor.device}"
    return _triton_fails()


@cache
def _triton_fails() -> str | None:
    """Why Triton is of no use here: it may be absent, or lack what it compiles with."""
    try:
        from rlgates.kernels import triton_scan

        triton_scan.try_it()
    except Exception as error:
        return f"Triton does not work: {type(error).__name__}: {error}"
    return None


def _scan(task: Task, kernel: scan.Kernel | None) -> tuple[Tensor, State]:
    initial = None if task.starts is None else task.initial()
    return scan.run(task.layer, task.x, task.state, task.starts, initial, kernel)


def _triton_scan(task: Task) -> tuple[Tensor, State]:
    from rlgates.kernels import triton_scan

    return _scan(task, triton_scan)


def _scan_pays(task: Task) -> bool:
    """It makes few operations of many: of small steps, as those of a GPU always are."""
    numbers = sum(part.numel() for part in task.state)
    return len(task.x) >= 8 and (numbers <= 4096 or not task.x.is_cpu)


# ---- the choice --------------------------------------------------------------------------------

# The paths of each kind of layer, the best one first: a new one is a line here and its name in
# BACKENDS.
_PATHS: dict[type, dict[str, Path]] = {
    Recurrence: {
        "native": Path(_not_native, _native),
        "triton": Path(_not_triton, _triton, lambda task: task.x.is_cuda),  # else interpreted
    },
    Loop: {"native": Path(_not_native_loop, _native_loop)},
    Scan: {
        "native": Path(_not_native_scan, lambda task: _scan(task, native_scan)),
        "triton": Path(_not_triton_scan, _triton_scan),
        "scan": Path(lambda task: None, lambda task: _scan(task, None), _scan_pays),
    },
}


def _unusual(task: Task) -> str | None:
    """Why the plain loop alone can run this; None if a path may."""
    if torch.compiler.is_compiling():
        return "torch.compile traces the plain loop"
    # Private names of torch, as they are in 2.13, for who watches the operations of torch.
    if (
        torch._C._get_tracing_state() is not None
        or torch._C._are_functorch_transforms_active()
        or torch._C._len_torch_dispatch_stack() > 0
        or forward_ad._current_level >= 0
    ):
        return "a tracer, torch.func or forward-mode differentiation is active"
    for tensor in task.tensors:
        if type(tensor) is not Tensor and type(tensor) is not torch.nn.Parameter:
            return f"it takes plain tensors, got {type(tensor).__name__}"
    if task.starts is not None and task.starts.device != task.x.device:
        return f"the starts must be on {task.x.device}, got {task.starts.device}"
    return None


def run(
    cell: Cell,
    x: Tensor,
    state: State,
    starts: Tensor | None,
    initial: Callable[[], State],
    backend: str,
    own_start: bool = True,
) -> Result | None:
    """Run one layer over a sequence on a fast path.

    Args:
        cell: the layer.
        x: its inputs (T, B, I).
        state: the parts of its state before the first step.
        starts: (T, B) bool, true where an episode starts.
        initial: gives the parts of the state from where it does.
        backend: one of `BACKENDS`.
        own_start: whether that is the cell's own initial state.

    Returns:
        what came out; None if the plain loop has to run.

    Raises:
        ValueError: the backend was asked for and cannot run this, with the reason.
    """
    if backend == "plain":
        return None
    layer = cell.recurrence()
    tensors = (x, *state, *getattr(layer, "weights", ()))
    task = Task(layer, x, state, starts, initial, own_start, tensors)
    paths = _PATHS.get(type(layer), {})
    reason = "this core has no such fast path"
    for name in paths if backend == "auto" else {backend} & paths.keys():
        path = paths[name]
        refusal = _unusual(task) or path.why_not(task)
        if refusal is None and (backend == name or path.pays(task)):
            return Result(*path.run(task), name)
        reason = refusal or reason
        if refusal is _NOT_BUILT and backend == "auto":
            _log_once(f"this is several times slower than native code: {refusal}.")
    if backend != "auto":
        raise ValueError(f"the {backend} backend cannot run this: {reason}.")
    return None


def have_few_rows(steps: int, rows: int) -> bool:
    """Whether two layers are faster side by side than with all threads for one after the other."""
    threads = calls.threads()
    return threads > 1 and (steps == 1 or rows < threads)


def run_together(
    layers: Sequence[tuple[Cell, Tensor, State]], starts: Tensor | None
) -> list[Result] | None:
    """Run two layers side by side, each in a thread of its own.

    Args:
        layers: cells, their inputs (T, B, I) and the parts of their states; each starts an
            episode from its own initial state.
        starts: (T, B) bool, or None.

    Returns:
        what came out of each; None where that is impossible.
    """
    described = []
    for cell, x, state in layers:
        layer = cell.recurrence()
        tensors = (x, *state, *getattr(layer, "weights", ()))
        task = Task(layer, x, state, starts, lambda: (), True, tensors)
        if type(layer) is not Recurrence or _unusual(task) or _not_native(task):
            return None
        described.append((x, state, layer))
    return [Result(*made, "native") for made in native.run_together(described, starts)]


@cache
def _log_once(message: str) -> None:
    _logger.warning(message)
