"""Gated layers on a GPU: when Triton kernels can run them, and the kernels made differentiable.

Triton comes with PyTorch for CUDA and is imported when it is first needed. If TRITON_INTERPRET=1 is
set by then, its interpreter runs the kernels on any device, slowly: for tests.

Products follow torch: operands in float32, in tf32 where torch.backends.cuda.matmul allows it, or
in bfloat16 under autocast to it, and so is what is kept of the gates for the backward pass. Sums,
gates and states are always float32.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rlgates.kernels.layout import ACTIVATIONS, AUXILIARIES, STACKED_CELLS
from rlgates.kernels.memory import readable
from rlgates.kernels.scan import raise_second_derivative
from rlgates.kernels.spec import CellSpec

if TYPE_CHECKING:
    from rlgates.kernels.triton.launch import GatedProblem

Tensors = tuple[Tensor | None, ...]

INSTALLED = importlib.util.find_spec("triton") is not None  # torch.compile cannot trace an import


def launcher() -> Any:
    """The module that launches the kernels; it imports Triton."""
    return importlib.import_module("rlgates.kernels.triton.launch")


# ---- when they can run -------------------------------------------------------------------------


def unsupported_reason(
    spec: CellSpec,
    x: Tensor,
    state: Tensor,
    episode_starts: Tensor | None,
    initial: Tensor | None = None,
) -> str | None:
    """Why the kernels cannot run this layer on its inputs `x`; None if they can."""
    if spec.cell not in STACKED_CELLS or spec.gate is None:
        return f"it has no {spec.cell}"
    activation, auxiliary, _ = spec.gate
    if activation not in ACTIVATIONS or auxiliary not in AUXILIARIES:
        return f"it has no {auxiliary} gates of {activation}"
    if spec.dropout or any(spec.zoneout):
        return "it has no dropout and no zoneout"
    device, compiles = x.device, torch.compiler.is_compiling()
    if (reason := now_unsupported_reason(device)) is not None:
        return reason
    tensors = state, *spec.weights, *(() if initial is None else (initial,))
    for tensor in tensors if torch.is_autocast_enabled(device.type) else (x, *tensors):
        if tensor.dtype is not torch.float32:
            return f"it takes float32, got {tensor.dtype}"
    starts = [] if episode_starts is None else [episode_starts]
    devices = {tensor.device for tensor in (*tensors, *starts)}
    if devices != {device}:
        return f"all tensors must be on one device, got {device} and {devices}"
    if device.type == "cuda" and not compiles and not torch.cuda.is_current_stream_capturing():
        return _launch_error(gated_problem(spec, 1, 1), device)
    return None


def now_unsupported_reason(device: torch.device) -> str | None:
    """Why no kernel can run on a device, under the present autocast; None if some can."""
    compiles = torch.compiler.is_compiling()
    reason = (_uncached_reason if compiles else device_unsupported_reason)(device)
    if reason is not None or not torch.is_autocast_enabled(device.type):
        return reason
    if torch.get_autocast_dtype(device.type) is not torch.bfloat16:
        return "it follows autocast in bfloat16 alone"
    if device.type == "cuda" and torch.cuda.get_device_capability(device)[0] < 8:
        return "the device has no tensor cores for bfloat16"
    return None


def _uncached_reason(device: torch.device) -> str | None:
    """As `device_unsupported_reason`, without importing Triton; torch.compile can trace it."""
    interpreted = device.type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1"
    runs = interpreted or (device.type == "cuda" and torch.version.hip is None)
    if not runs:
        return f"it runs on CUDA devices, got {device}"
    return None if INSTALLED else "triton cannot be imported: it is not installed"


@cache
def device_unsupported_reason(device: torch.device) -> str | None:
    """Why no kernel can run on a device; None if some can."""
    if (reason := _uncached_reason(device)) is not None:
        return reason
    try:
        interpreted = launcher().INTERPRETED
    except ImportError as error:
        return f"triton cannot be imported ({error})"
    runs = interpreted or device.type == "cuda"
    return None if runs else f"it runs on CUDA devices, got {device}"


@cache
def _launch_error(problem: GatedProblem, device: torch.device) -> str | None:
    """Why the kernels of a problem fail on a device; None if they run.

    They are tried with a batch of one: they are compiled for any batch size.
    """
    launch = launcher()
    error: str | None = None if launch.INTERPRETED else launch.launch_error(problem, device)
    return error


def _precision(device: torch.device) -> str:
    return "bf16" if torch.is_autocast_enabled(device.type) else matmul_precision()


def matmul_precision() -> str:
    """Of products in float32: "tf32" where torch allows it, else "ieee"."""
    matmul = torch.backends.cuda.matmul
    # From torch 2.9 on `fp32_precision` is authoritative, and `allow_tf32` may raise.
    precision = getattr(matmul, "fp32_precision", None)
    allowed = matmul.allow_tf32 if precision is None else precision == "tf32"
    return "tf32" if allowed else "ieee"


def gated_problem(spec: CellSpec, steps: int, batch_size: int) -> GatedProblem:
    """The problem of a layer over T steps of a batch of B."""
    precision, gate = _precision(spec.weights[0].device), spec.gate or ()
    return launcher().GatedProblem(  # type: ignore[no-any-return]
        spec.cell, *gate, spec.constant, precision, steps, batch_size, *spec.sizes
    )


# ---- running them ------------------------------------------------------------------------------


def run(
    spec: CellSpec,
    x: Tensor,
    state: Tensor,
    episode_starts: Tensor | None,
    initial: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Run a layer over a sequence, all on one device.

    Args:
        spec: the cell, its gate and its weights, float32.
        x: its inputs (T, B, I), float32 or what autocast takes.
        state: h, then c of an LSTM, (B, S) float32.
        episode_starts: (T, B) bool, true where an episode starts.
        initial: the state there, (B, S) float32; None for zeros.

    Returns:
        outputs (T, B, H) and the final state (B, S), float32.

    Raises:
        ValueError: shapes do not fit together, or memory was freed.
    """
    problem = gated_problem(spec, *x.shape[:2])
    tensors = read_inputs(problem, prepare(spec, x, state, initial), x.device)
    assert tensors[0] is not None
    starts = None
    if episode_starts is not None:
        (starts,) = _read({"episode_starts": x.shape[:2]}, (episode_starts,), x.device)
        assert starts is not None
        starts = starts.view(torch.uint8)
    final: list[Tensor]
    with torch.cuda.device_of(x), torch.autocast(x.device.type, enabled=False):
        if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors):
            trace = tensors[0][:0].clone()
            outputs, *final = _Gated.apply(problem, starts, trace, *tensors)  # type: ignore[no-untyped-call]
        else:
            outputs, cells, *_ = forward(problem, False, starts, *tensors)
            final = [cells[-1]] if tensors[2] is None else [outputs[-1], cells[-1]]
        return outputs, torch.cat(final, dim=-1)


def prepare(spec: CellSpec, x: Tensor, state: Tensor, initial: Tensor | None) -> Tensors:
    """The tensors of `launch.Inputs`, from the arguments of `run`."""
    weight_ih, bias_ih, weight_hh, bias_hh = spec.weights
    after = spec.cell == "gru_after"  # its reset gate acts on the recurrent bias too
    bias = bias_ih if after else bias_ih + bias_hh
    projected = torch.nn.functional.linear(x, weight_ih, bias)
    h, *c = state.split(spec.sizes[0], dim=1)
    initials = [] if initial is None else list(initial.split(spec.sizes[0], dim=1))
    initial_h, initial_c, *_ = (*initials, None, None)
    return (
        _expanded_masters(projected, spec, -1),
        h,
        c[0] if c else None,
        _expanded_masters(weight_hh, spec, 0),
        _expanded_masters(bias_hh, spec, 0) if after else None,
        initial_h,
        initial_c,
    )


def _expanded_masters(stacked: Tensor, spec: CellSpec, dim: int) -> Tensor:
    """Stacked maps with the columns (or rows) of the master maps repeated for each unit."""
    _, auxiliary, chunk = spec.gate or ("", "untied", 1)
    (units,) = spec.sizes
    maps = AUXILIARIES[auxiliary]
    if chunk == 1 or "mi" not in maps:
        return stacked
    begin = units * (maps.index("mi") + spec.cell.startswith("gru"))
    masters = 2 * units // chunk
    rest = stacked.shape[dim] - begin - masters
    before, middle, after = stacked.split([begin, masters, rest], dim=dim)
    return torch.cat([before, middle.repeat_interleave(chunk, dim), after], dim=dim)


Shapes = dict[str, tuple[int, ...]]
_STATES = "h", "c"
"""What may be columns of a state, whose rows are further apart."""


def _inputs(problem: GatedProblem) -> Shapes:
    """The shapes of `launch.Inputs`."""
    state = problem.batch_size, problem.units
    return {
        "the projected input": (problem.steps, problem.batch_size, problem.width),
        "h": state,
        "c": state,
        "the recurrent weight": (problem.width, problem.units),
        "the recurrent bias": (problem.width,),
        "the initial h": state,
        "the initial c": state,
    }


def _saved(problem: GatedProblem) -> Shapes:
    """The shapes of what the backward pass reads."""
    steps, *state = problem.steps, problem.batch_size, problem.units
    inputs = _inputs(problem)
    return {
        "episode_starts": (steps, state[0]),
        "the recurrent weight": inputs["the recurrent weight"],
        "the states": (steps + 1, *state),
        "the states before": (steps, *state),
        "the gates": (steps, state[0], problem.width),
        "the extra states": (steps, *state),
        "the initial h": inputs["h"],
        "the initial c": inputs["h"],
        "the gradient of the outputs": (steps, *state),
        "the gradient of h": inputs["h"],
        "the gradient of c": inputs["h"],
    }


def read_inputs(problem: GatedProblem, tensors: Tensors, device: torch.device) -> Tensors:
    """The tensors of `launch.Inputs`, checked."""
    return _read(_inputs(problem), tensors, device)


def _read(shapes: Shapes, tensors: Tensors, device: torch.device) -> Tensors:
    """The tensors as kernels read them: they get addresses, without bounds."""
    return tuple(
        None
        if tensor is None
        else readable(name, tensor, shape, tensor.dtype, device, rows=name in _STATES)
        for (name, shape), tensor in zip(shapes.items(), tensors, strict=True)
    )


def forward(
    problem: GatedProblem, save: bool, episode_starts: Tensor | None, *inputs: Tensor | None
) -> Any:
    launch = launcher()
    return launch.forward(problem, launch.Inputs(*inputs), episode_starts, save)


def backward(
    problem: GatedProblem,
    needs_weight_grad: bool,
    episode_starts: Tensor | None,
    weight: Tensor | None,
    *tensors: Tensor | None,
) -> Any:
    launch = launcher()
    inputs = launch.Inputs(None, None, None, weight, None, *tensors[4:6])
    results = launch.Results(None, *tensors[:4])
    return launch.backward(
        problem, inputs, episode_starts, results, *tensors[6:], needs_weight_grad
    )


class _Gated(torch.autograd.Function):
    """A sequence with gradients for all of `launch.Inputs`."""

    @staticmethod
    def forward(
        ctx: Any,
        problem: GatedProblem,
        episode_starts: Tensor | None,
        trace: Tensor,
        *inputs: Tensor | None,
    ) -> Tensors:
        outputs, *saved = forward(problem, True, episode_starts, *inputs)
        ctx.set_materialize_grads(False)
        ctx.problem = problem
        # Saving the episode starts too lets autograd detect a change in place. The last four are
        # not read; they tell autograd on what a second derivative would depend: `trace` (empty, in
        # place of the projected inputs), h, c and bias.
        reads = episode_starts, inputs[3], *saved, *inputs[5:]
        ctx.save_for_backward(*reads, trace, *inputs[1:3], inputs[4])
        final = saved[0][-1].clone()
        return (outputs, final) if inputs[2] is None else (outputs, outputs[-1].clone(), final)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Tensors:
        result = _GatedBackward.apply(  # type: ignore[no-untyped-call]
            ctx.problem, any(ctx.needs_input_grad[6:8]), *ctx.saved_tensors, *gradients
        )
        needs_grad = ctx.needs_input_grad[3:]
        result = (d if need else None for d, need in zip(result, needs_grad, strict=True))
        return None, None, None, *result


class _GatedBackward(torch.autograd.Function):
    """The backward pass, which is not differentiable: a second derivative raises an error."""

    @staticmethod
    def forward(
        ctx: Any, problem: GatedProblem, needs_weight_grad: bool, *tensors: Tensor | None
    ) -> Tensors:
        trace, gradients = tensors[8], tensors[12:]
        assert trace is not None
        missing = () if len(gradients) > 2 else (None,)
        arguments = _read(_saved(problem), (*tensors[:8], *gradients, *missing), trace.device)
        with torch.cuda.device_of(trace), torch.autocast(trace.device.type, enabled=False):
            result = backward(problem, needs_weight_grad, *arguments)
        return (result[0].to(trace.dtype), *result[1:])

    backward = staticmethod(raise_second_derivative)
