"""Gated layers on a GPU: when kernels in Triton can run them, and their place in autograd.

Triton comes with PyTorch for CUDA, and is imported when it is first asked for. If the environment
has TRITON_INTERPRET=1 by then, its interpreter runs the kernels, slowly, on any device: for tests.

Products follow torch: float32 factors, or tf32 where torch.backends.cuda.matmul allows it, or
bfloat16 under autocast in it. Sums, gates and states are float32 in every case.
"""

from __future__ import annotations

import importlib
import logging
import os
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rlgates.gates import AUXILIARIES
from rlgates.kernels.recurrence import Recurrence

if TYPE_CHECKING:
    from rlgates.kernels.triton_launch import Problem

ACTIVATIONS = ("sigmoid", "fast", "iterated_fast", "softsign", "cumax")
CELLS = ("lstm", "gru_after", "gru_before", "janet")

_logger = logging.getLogger(__name__)


def _launch() -> Any:
    return importlib.import_module("rlgates.kernels.triton_launch")


def _replayed() -> Any:
    return importlib.import_module("rlgates.kernels.triton_graph").replayed


def why_not(
    x: Tensor, state: tuple[Tensor, ...], starts: Tensor | None, layer: Recurrence
) -> str | None:
    """Why the kernels cannot run this layer on its inputs `x`; None if they can."""
    if layer.activation not in ACTIVATIONS or layer.cell not in CELLS:
        return f"it has no {layer.cell} with gates of {layer.activation}"
    device = x.device
    reason = unable(device)
    if reason is not None:
        return reason
    autocast = torch.is_autocast_enabled(device.type)
    if autocast and torch.get_autocast_dtype(device.type) is not torch.bfloat16:
        return "it follows autocast in bfloat16 alone"
    if autocast and device.type == "cuda" and torch.cuda.get_device_capability(device)[0] < 8:
        return "the device has no tensor cores for bfloat16"
    tensors = *state, *layer.weights
    for tensor in tensors if autocast else (x, *tensors):
        if tensor.dtype is not torch.float32:
            return f"it takes float32, got {tensor.dtype}"
    others = {tensor.device for tensor in (*tensors, *([] if starts is None else [starts]))}
    if others != {device}:
        return f"all tensors must be on one device, got {device} and {others}"
    if device.type == "cuda" and not torch.cuda.is_current_stream_capturing():
        return _failed(problem(layer, 1, 1), device)
    return None


@cache
def unable(device: torch.device) -> str | None:
    """Why no kernel can run on a device, which the log is told once; None if some may."""
    interpreted = device.type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1"
    if device.type != "cuda" and not interpreted:
        return f"it runs on CUDA devices, got {device}"
    try:
        launch = _launch()
    except ImportError as error:
        reason = f"triton cannot be imported ({error})"
    else:
        if launch.INTERPRETED or (device.type == "cuda" and torch.version.hip is None):
            return None
        reason = f"it runs on CUDA devices, got {device}"
    if device.type == "cuda":
        _warn(reason)
    return reason


@cache
def _failed(problem: Problem, device: torch.device) -> str | None:
    """Why the kernels of a problem fail on a device, which the log is told; None if they run.

    They are tried on a single row, since what they are built for has no other number of rows.
    """
    launch = _launch()
    reason = None if launch.INTERPRETED else launch.trial(problem, device)
    if reason is not None:
        _warn(reason)
    return reason


@cache
def _warn(reason: str) -> None:
    _logger.warning("the plain loop runs, many times slower on a GPU than kernels: %s.", reason)


def _precision(device: torch.device) -> str:
    if torch.is_autocast_enabled(device.type):
        return "bf16"
    matmul = torch.backends.cuda.matmul
    # From torch 2.9 on this one has the answer, and the other one is not always to be read.
    precision = getattr(matmul, "fp32_precision", None)
    allowed = matmul.allow_tf32 if precision is None else precision == "tf32"
    return "tf32" if allowed else "ieee"


def problem(layer: Recurrence, steps: int, rows: int) -> Problem:
    """What the kernels are told of a layer over T steps of B rows."""
    return _launch().Problem(  # type: ignore[no-any-return]
        *layer[:4], layer.beta, _precision(layer.weight_hh.device), steps, rows,
        layer.weight_hh.shape[1],
    )  # fmt: skip


Tensors = tuple[Tensor | None, ...]


def _forward(problem: Problem, keep: bool, starts: Tensor | None, *inputs: Tensor | None) -> Any:
    launch = _launch()
    return launch.forward(problem, launch.Inputs(*inputs), starts, keep)


def _backward(problem: Problem, wants: bool, starts: Tensor | None, *tensors: Tensor | None) -> Any:
    launch = _launch()
    weight, *tensors = tensors  # type: ignore[assignment]
    inputs = launch.Inputs(None, None, None, weight, None)
    results = launch.Results(None, *tensors[:4])
    return launch.backward(problem, inputs, starts, results, *tensors[4:], wants)


class _Sequence(torch.autograd.Function):
    """A pass with gradients for projected inputs, h, c, weights and bias."""

    @staticmethod
    def forward(
        ctx: Any, problem: Problem, starts: Tensor | None, trace: Tensor, *inputs: Tensor | None
    ) -> Tensors:
        tensors = starts, *inputs
        outputs, *kept = _replayed()(partial(_forward, problem, True), tensors)
        ctx.set_materialize_grads(False)
        ctx.problem = problem
        # The starts go the same way as the rest, so that a change in place is noticed. Not read
        # is what tells autograd on what a second derivative would depend: `trace` (which stands
        # for the projected inputs and is empty), h, c and bias.
        ctx.save_for_backward(starts, inputs[3], *kept, trace, *inputs[1:3], inputs[4])
        final = kept[0][-1].clone()
        return (outputs, final) if inputs[2] is None else (outputs, outputs[-1].clone(), final)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Tensors:
        found = _Backward.apply(  # type: ignore[no-untyped-call]
            ctx.problem, any(ctx.needs_input_grad[6:]), *ctx.saved_tensors, *gradients
        )
        wanted = ctx.needs_input_grad[3:]
        found = (x if want else None for x, want in zip(found, wanted, strict=True))
        return None, None, None, *found


class _Backward(torch.autograd.Function):
    """The way back, which has no way back: who asks for a second derivative is told so."""

    @staticmethod
    def forward(ctx: Any, problem: Problem, wants: bool, *tensors: Tensor | None) -> Tensors:
        starts, weight, *kept = tensors[:6]
        trace, *_ = tensors[6:10]
        d_outputs, d_h, *d_c = tensors[10:]
        given = starts, weight, *kept, d_outputs, d_h, d_c[0] if d_c else None
        assert trace is not None
        with torch.cuda.device_of(trace), torch.autocast(trace.device.type, enabled=False):
            found = _replayed()(partial(_backward, problem, wants), given)
        return (found[0].to(trace.dtype), *found[1:])

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> None:
        raise RuntimeError(
            "kernels in Triton have no second derivative: give the core backend='plain' for one."
        )


def run(
    x: Tensor, state: tuple[Tensor, ...], starts: Tensor | None, layer: Recurrence
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Run a layer over a sequence, all on one device.

    Args:
        x: its inputs (T, B, I), float32 or what autocast takes.
        state: h, and c of an LSTM, each (B, H) float32.
        starts: (T, B) bool, where the state is zero again.
        layer: the cell, its gate and its weights, float32.

    Returns:
        outputs (T, B, H) and the final state, float32.

    Raises:
        ValueError: shapes that do not fit together.
    """
    after = layer.cell == "gru_after"  # whose reset gate acts on a bias of the recurrent side too
    bias = layer.bias_ih if after else layer.bias_ih + layer.bias_hh
    projected = torch.nn.functional.linear(x, layer.weight_ih, bias)
    h, *c = (part.contiguous() for part in state)
    tensors = (
        _widened(projected, layer, -1).contiguous(),
        h,
        c[0] if c else None,
        _widened(layer.weight_hh, layer, 0).contiguous(),
        _widened(layer.bias_hh, layer, 0).contiguous() if after else None,
    )
    told = problem(layer, len(x), len(h))
    _check(told, tensors)
    starts = None if starts is None else starts.contiguous().view(torch.uint8)
    with torch.cuda.device_of(x), torch.autocast(x.device.type, enabled=False):
        if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors):
            trace = tensors[0][:0].clone()
            outputs, *final = _Sequence.apply(told, starts, trace, *tensors)  # type: ignore[no-untyped-call]
            return outputs, tuple(final)
        given = starts, *tensors
        outputs, cells, *_ = _replayed()(partial(_forward, told, False), given)
    return outputs, (outputs[-1].clone(), cells[-1]) if c else (cells[-1],)


def _widened(stacked: Tensor, layer: Recurrence, dim: int) -> Tensor:
    """The same with a column, or row, of the master maps for each of their units."""
    chunk, units = layer.chunk_size, layer.weight_hh.shape[1]
    maps = AUXILIARIES[layer.auxiliary]
    if chunk == 1 or "mi" not in maps:
        return stacked
    begin = units * (maps.index("mi") + layer.cell.startswith("gru"))
    masters = 2 * units // chunk
    rest = stacked.shape[dim] - begin - masters
    before, middle, after = stacked.split([begin, masters, rest], dim=dim)
    return torch.cat([before, middle.repeat_interleave(chunk, dim), after], dim=dim)


def _check(problem: Problem, tensors: Tensors) -> None:
    """A ValueError unless all fit together: addresses know no bounds."""
    state = problem.rows, problem.units
    shapes = (
        (problem.steps, problem.rows, problem.width),
        state,
        state,
        (problem.width, problem.units),
        (problem.width,),
    )
    for tensor, shape in zip(tensors, shapes, strict=True):
        if tensor is not None and tensor.shape != shape:
            raise ValueError(f"must be of shape {shape}, got {tuple(tensor.shape)}.")
