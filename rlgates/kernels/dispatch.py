"""Which backend runs a layer, in which order they are tried, and why one cannot run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from rlgates.kernels import channels, layout, ops, scan
from rlgates.kernels.cpu import abi, attention, conv, grid
from rlgates.kernels.cpu import actor_critic as cpu_actor_critic
from rlgates.kernels.cpu import channels as cpu_channels
from rlgates.kernels.cpu import heads as cpu_heads
from rlgates.kernels.cpu import layer as cpu_layer
from rlgates.kernels.cpu import memories as cpu_memories
from rlgates.kernels.cpu import scan as cpu_scan
from rlgates.kernels.cpu.heads import Heads, LossSettings, Taken
from rlgates.kernels.spec import AllSteps, CellSpec, Layer, LinearScan, Memories, NoKernel
from rlgates.kernels.triton import grid_op as triton_grid
from rlgates.kernels.triton import op as triton

BACKENDS = ("auto", "plain", "native", "scan", "triton")

_NOT_BUILT = "the extension rlgates.kernels.cpu._native was not built for this version"
_logger = logging.getLogger(__name__)


class LayerRequest(NamedTuple):
    """One layer to run over a sequence.

    Attributes:
        layer: the layer.
        x: its inputs (T, B, I).
        state: its state before the first step, (B, S).
        episode_starts: (T, B) bool, true where an episode starts; None for nowhere.
        initial: gives the state there, (B, S), or None for zeros.
        backend: one of `BACKENDS`.
        name: of the core, for messages.
    """

    layer: Layer
    x: Tensor
    state: Tensor
    episode_starts: Tensor | None
    initial: Callable[[], Tensor | None]
    backend: str
    name: str


class LayerCall(NamedTuple):
    """A request with what its layer says about itself, which backends judge and run.

    Attributes:
        spec: what `Layer.recurrence` returned.
        x, state, episode_starts: as in `LayerRequest`.
        initial: the state at episode starts; None for zeros, or without episode starts.
        tensors: all tensors, for checks.
    """

    spec: Any
    x: Tensor
    state: Tensor
    episode_starts: Tensor | None
    initial: Tensor | None
    tensors: tuple[Tensor, ...]


def _inputs(call: LayerCall) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    # torch 2.8 compiles neither slices, properties nor `_replace` of a NamedTuple.
    return call.x, call.state, call.episode_starts, call.initial


class Backend(NamedTuple):
    """One way to run a layer.

    Attributes:
        unsupported_reason: why it cannot run a call; None if it can.
        run: gives the outputs and the final state.
        is_worthwhile: whether "auto" takes it for a call that it can run.
    """

    unsupported_reason: Callable[[LayerCall], str | None]
    run: Callable[[LayerCall], tuple[Tensor, Tensor]]
    is_worthwhile: Callable[[LayerCall], bool] = lambda call: True


class Explanation(NamedTuple):
    """Which backend runs a layer, and why the others do not.

    Attributes:
        backend: the one that runs it.
        passed_over: why others do not: they cannot, or would not pay. Backends slower than the
            chosen one are left out.
    """

    backend: str
    passed_over: dict[str, str]

    def __str__(self) -> str:
        names: dict[str, list[str]] = {}
        for name, reason in self.passed_over.items():
            names.setdefault(reason, []).append(name)
        reasons = (f"{', '.join(who)}: {reason}" for reason, who in names.items())
        return "; ".join([self.backend, *reasons])


class Result(NamedTuple):
    """Outputs (T, B, O), the final state (B, S), and the backend that computed them."""

    outputs: Tensor
    state: Tensor
    backend: str


# ---- cells that run step by step ---------------------------------------------------------------


def _cpu_cell_unsupported_reason(call: LayerCall) -> str | None:
    activation, auxiliary, _ = call.spec.gate or (None, None, 1)
    if activation is not None and activation not in layout.ACTIVATIONS:
        return f"it has no gates of {activation}"
    if auxiliary is not None and auxiliary not in layout.AUXILIARIES:
        return f"it has no {auxiliary} gates"
    return _cpu_unsupported_reason(call)


def _cpu_cell(call: LayerCall) -> tuple[Tensor, Tensor]:
    run = ops.run if torch.compiler.is_compiling() else cpu_layer.run
    return run(call.spec, *_inputs(call))


def _triton_cell_unsupported_reason(call: LayerCall) -> str | None:
    return triton.unsupported_reason(call.spec, *_inputs(call))


def _triton_cell(call: LayerCall) -> tuple[Tensor, Tensor]:
    if torch.compiler.is_compiling():
        from rlgates.kernels.triton import compiled

        return compiled.run(call.spec, *_inputs(call))
    return triton.run(call.spec, *_inputs(call))


# ---- layers that are linear in their state -----------------------------------------------------


def _cpu_unsupported_reason(call: LayerCall) -> str | None:
    for tensor in call.tensors:
        if not tensor.is_cpu or tensor.dtype is not torch.float32:
            return f"it takes float32 on the CPU, got {tensor.dtype} on {tensor.device}"
    return None if abi.built() else _NOT_BUILT


def _triton_scan_unsupported_reason(call: LayerCall) -> str | None:
    for tensor in call.tensors:
        if not tensor.is_cuda or tensor.dtype is not torch.float32:
            return f"it takes float32 on a GPU, got {tensor.dtype} on {tensor.device}"
    if torch.compiler.is_compiling():  # which cannot trace a trial
        return None if triton.INSTALLED else "triton is not installed"
    return _triton_scan_error()


@cache
def _triton_scan_error() -> str | None:
    """What fails when the Triton scan runs one step: Triton, or its compiler, may be missing."""
    try:
        from rlgates.kernels.triton import scan as triton_scan

        triton_scan.run_one_step()
    except Exception as error:
        return f"Triton does not work: {type(error).__name__}: {error}"
    return None


def _scan(
    call: LayerCall, function: Any = scan.scan, run_channels: scan.RunChannels | None = None
) -> tuple[Tensor, Tensor]:
    return scan.run(call.spec, *_inputs(call), function, run_channels)


def _as_cell(call: LayerCall) -> LayerCall:
    """The call of the cell that native code runs in place of a scan; the same call without one."""
    if not isinstance(call.spec, LinearScan) or call.spec.cell is None:
        return call
    cell = call.spec.cell
    return LayerCall(cell, *_inputs(call), (*call.tensors, *cell.weights))


def _is_native_cell(call: LayerCall) -> bool:
    """Whether it is of a cell that native code can run."""
    if not isinstance(call.spec, CellSpec):
        return False
    return not (_call_unsupported_reason(call) or _cpu_cell_unsupported_reason(call))


def _cpu_scan(call: LayerCall) -> tuple[Tensor, Tensor]:
    cell = _as_cell(call)
    if _is_native_cell(cell):
        return _cpu_cell(cell)
    if torch.compiler.is_compiling():
        return _scan(call, ops.scan, ops.channels)
    return _scan(
        call, partial(scan.scan, kernel=cpu_scan), partial(channels.run, kernel=cpu_channels)
    )


def _triton_scan(call: LayerCall) -> tuple[Tensor, Tensor]:
    if torch.compiler.is_compiling():
        return _scan(call, ops.scan)
    from rlgates.kernels.triton import channels as triton_channels
    from rlgates.kernels.triton import scan as triton_scan

    return _scan(
        call, partial(scan.scan, kernel=triton_scan), partial(channels.run, kernel=triton_channels)
    )


def _torch_scan_is_worthwhile(call: LayerCall) -> bool:
    """It replaces many operations by few: a gain where each is small, as always on a GPU."""
    return len(call.x) >= 8 and (call.state.numel() <= 4096 or not call.x.is_cpu)


# ---- layers that compute all steps at once -----------------------------------------------------


def _native_scan(call: LayerCall) -> LayerCall:
    """The scan that native code and Triton run instead."""
    return LayerCall(call.spec.native, *_inputs(call), call.tensors)


def _cpu_all_steps(call: LayerCall) -> tuple[Tensor, Tensor]:
    if isinstance(call.spec.native, Memories):
        run = ops.memories if torch.compiler.is_compiling() else cpu_memories.run
        return call.spec.native.run(*_inputs(call), run)
    return _cpu_scan(_native_scan(call))


def _triton_all_steps(call: LayerCall) -> tuple[Tensor, Tensor]:
    return _triton_scan(_native_scan(call))


# ---- the choice --------------------------------------------------------------------------------

# The backends of each kind of layer, in the order in which "auto" tries them, the fastest first. A
# new backend is a row here and a name in BACKENDS.
_BACKENDS: dict[type, dict[str, Backend]] = {
    CellSpec: {
        "native": Backend(_cpu_cell_unsupported_reason, _cpu_cell),
        "triton": Backend(
            _triton_cell_unsupported_reason,
            _triton_cell,
            lambda call: call.x.is_cuda,  # on a CPU only Triton's slow interpreter runs
        ),
    },
    LinearScan: {
        "native": Backend(_cpu_unsupported_reason, _cpu_scan),
        "triton": Backend(_triton_scan_unsupported_reason, _triton_scan),
        "scan": Backend(lambda call: None, _scan, _torch_scan_is_worthwhile),
    },
    AllSteps: {
        "native": Backend(_cpu_unsupported_reason, _cpu_all_steps),
        "scan": Backend(
            lambda call: None,
            lambda call: call.spec.run(*_inputs(call)),
            lambda call: len(call.x) > 1,
        ),
        # After the scan, whose products of matrices run all steps of a block at once.
        "triton": Backend(_triton_scan_unsupported_reason, _triton_all_steps),
    },
}


def _candidates(spec: Any) -> dict[str, Backend]:
    """The backends that know such a layer."""
    known = _BACKENDS.get(type(spec), {})
    if not isinstance(spec, AllSteps) or isinstance(spec.native, LinearScan):
        return known
    names = ("scan",) if spec.native is None else ("native", "scan")
    return {name: known[name] for name in names}


def _is_transforming() -> bool:
    """Whether torch.func is active, also in what is compiled."""
    return torch._C._are_functorch_transforms_active()


def _transformed_reason(tensors: Sequence[Tensor]) -> str | None:
    """Who needs to see the operations of torch; None for nobody."""
    # Private names of torch, as of 2.13.
    if (
        torch._C._get_tracing_state() is not None
        or _is_transforming()
        or torch._C._len_torch_dispatch_stack() > 0
        or forward_ad._current_level >= 0
    ):
        return "a tracer, torch.func or forward-mode differentiation is active"
    for tensor in tensors:
        if type(tensor) is not Tensor and type(tensor) is not torch.nn.Parameter:
            return f"it takes plain tensors, got {type(tensor).__name__}"
    return None


def may_read(tensor: Tensor) -> bool:
    """Whether Python may look at its numbers: no operations are compiled, recorded or changed."""
    return not torch.compiler.is_compiling() and _transformed_reason((tensor,)) is None


def _is_exporting() -> bool:
    # In torch 2.8 `is_exporting()` is true in all that is compiled.
    return torch.compiler._is_exporting_flag


def _call_unsupported_reason(call: LayerCall) -> str | None:
    """Why only the plain loop can run this call; None if a backend may."""
    if _is_exporting():
        return "exported programs contain only the plain loop"
    if torch.compiler.is_compiling():
        return "torch.func is active" if _is_transforming() else None
    if (reason := _transformed_reason(call.tensors)) is not None:
        return reason
    starts = call.episode_starts
    if starts is not None and starts.device != call.x.device:
        return f"the episode starts must be on {call.x.device}, got {starts.device}"
    return None


def _call(request: LayerRequest) -> LayerCall:
    layer, x, state, episode_starts, initial, _, _ = request
    if x.is_cpu and torch.is_autocast_enabled("cpu"):  # the kernels compute in float32 all the same
        with torch.autocast("cpu", enabled=False):
            spec = layer.recurrence()
        if isinstance(spec, CellSpec):
            x = x.to(torch.promote_types(x.dtype, torch.float32))
    else:
        spec = layer.recurrence()
    weights = spec.weights if isinstance(spec, CellSpec) else ()
    starts = None if episode_starts is None else initial()
    tensors = x, state, *weights, *(() if starts is None else (starts,))
    return LayerCall(spec, x, state, episode_starts, starts, tensors)


def run(request: LayerRequest) -> Result | None:
    """Run one layer over a sequence with a kernel.

    Returns:
        the result; None if the plain loop has to run.

    Raises:
        ValueError: the backend cannot run this, with the reason.
    """
    backend = request.backend
    if backend == "plain":
        return None
    call = _call(request)
    chosen = _choose(call, backend)
    fastest = "triton" if call.x.is_cuda else "native"
    if backend != "auto" and chosen.backend == "plain":
        raise ValueError(f"the {backend} backend cannot run this: {chosen.passed_over[backend]}.")
    is_known = isinstance(call.spec, NoKernel) or fastest in _candidates(call.spec)
    missed = is_known and fastest in chosen.passed_over
    slow = backend == "auto" and missed
    if slow and not torch.compiler.is_compiling():
        how = "slower" if isinstance(call.spec, AllSteps) else "several times slower"
        _log_once(request.name, chosen.backend, how, fastest, chosen.passed_over[fastest])
    if chosen.backend == "plain":
        return None
    return Result(*_BACKENDS[type(call.spec)][chosen.backend].run(call), chosen.backend)


def explain(request: LayerRequest) -> Explanation:
    """Which backend `run` would take, and why not the others."""
    if request.backend == "plain":
        return Explanation("plain", {})
    return _choose(_call(request), request.backend)


def _choose(call: LayerCall, backend: str) -> Explanation:
    candidates = _candidates(call.spec)
    never = _call_unsupported_reason(call)
    passed_over: dict[str, str] = {}
    for name, candidate in candidates.items():
        if backend not in ("auto", name):
            continue
        reason = never or candidate.unsupported_reason(call)
        if reason is None:
            if backend == name or candidate.is_worthwhile(call):
                return Explanation(name, passed_over)
            reason = "it would not be faster here"
        passed_over[name] = reason
    unknown = "this core has no such fast path"
    if isinstance(call.spec, NoKernel):
        unknown = call.spec.reason
    return Explanation("plain", {**dict.fromkeys(BACKENDS[2:], unknown), **passed_over})


def run_together(requests: Sequence[LayerRequest]) -> list[Result] | None:
    """Run one or two layers in one call of native code; None if they cannot run like this.

    With few rows two layers run faster with a thread each than one by one with all threads.
    """
    layers = _prepared(requests)
    if layers is None:
        return None
    return [Result(*result, "native") for result in cpu_layer.run_layers(layers)]


def _prepared(
    requests: Sequence[LayerRequest],
) -> list[tuple[cpu_layer.Problem, cpu_layer.Inputs]] | None:
    """One or two layers for native code, and how many threads run each; None if it cannot."""
    if torch.compiler.is_compiling():
        return None
    calls = [_as_cell(_call(request)) for request in requests]
    for call, request in zip(calls, requests, strict=True):
        if request.backend not in ("auto", "native") or not _is_native_cell(call):
            return None
    threads, (steps, batch_size, _) = abi.num_threads(), requests[0].x.shape
    if len(calls) > 1 and (steps == 1 or batch_size < threads):
        threads = 1
    return [cpu_layer.prepare(call.spec, *_inputs(call), threads) for call in calls]


def _is_plain_cpu(tensors: Sequence[Tensor | None]) -> bool:
    """Whether native code may compute with these float32 tensors in place of torch."""
    if torch.compiler.is_compiling() or torch.is_autocast_enabled("cpu") or not abi.built():
        return False
    given = [tensor for tensor in tensors if tensor is not None]
    if not all(tensor.is_cpu and tensor.dtype is torch.float32 for tensor in given):
        return False
    return _transformed_reason(given) is None


def grid_features(x: Tensor, *weights: Tensor) -> Tensor | None:
    """The features of `rlgates.kernels.cpu.grid.run`; None where torch has to compute them."""
    if x.requires_grad or _is_exporting() or _is_transforming():
        return None
    if x.is_cuda:
        if not triton_grid.supports(x, *weights):
            return None
        transformed = not torch.compiler.is_compiling() and _transformed_reason((x, *weights))
        return None if transformed else triton_grid.run(x, *weights)
    if torch.compiler.is_compiling():
        is_native = all(tensor.is_cpu and tensor.dtype is torch.float32 for tensor in (x, *weights))
        is_native = is_native and abi.built() and not torch.is_autocast_enabled("cpu")
        return ops.grid(x, *weights) if is_native else None
    return grid.run(x, *weights) if _is_plain_cpu((x, *weights)) else None


def convolve(
    u: Tensor, window: Tensor, weight: Tensor, bias: Tensor, episode_starts: Tensor | None
) -> tuple[Tensor, Tensor] | None:
    """`rlgates.kernels.cpu.conv.run`; None where torch has to compute it."""
    if not _is_plain_cpu((u, window, weight, bias)):
        return None
    return conv.run(u, window, weight, bias, episode_starts)


def attend(
    q: Tensor, k: Tensor, v: Tensor, scores: Tensor, before: Tensor, length: Tensor
) -> tuple[Tensor, Tensor] | None:
    """`rlgates.kernels.cpu.attention.run`; None where torch has to compute it."""
    if not _is_plain_cpu((q, k, v, scores, before, length)):
        return None
    return attention.run(q, k, v, scores, before, length)


def supports_heads(heads: Heads) -> bool:
    """Whether native code may run these networks."""
    return cpu_heads.supports(heads) and _is_plain_cpu((*heads.actor, *heads.critic))


def head_outputs(
    heads: Heads, x: Tensor, critic_x: Tensor | None = None
) -> tuple[Tensor, Tensor] | None:
    """`rlgates.kernels.cpu.heads.outputs` of networks that are supported; None where torch has to
    compute them, as it has to for gradients."""
    if torch.is_grad_enabled() or not _is_plain_cpu((x, critic_x)):
        return None
    return cpu_heads.outputs(heads, x, critic_x)


def ppo_losses(
    heads: Heads, x: Tensor, critic_x: Tensor | None, taken: Taken, settings: LossSettings
) -> tuple[Tensor, ...] | None:
    """`rlgates.kernels.cpu.heads.ppo_losses` of networks that are supported; None where torch has
    to compute them."""
    if not _is_plain_cpu((x, critic_x, *taken[1:])):
        return None
    return cpu_heads.ppo_losses(heads, x, critic_x, taken, settings)


def ppo_losses_of_cores(
    requests: Sequence[LayerRequest],
    heads: Heads,
    detached: bool,
    taken: Taken,
    settings: LossSettings,
) -> tuple[Tensor, ...] | None:
    """`rlgates.kernels.cpu.actor_critic.ppo_losses` of networks that are supported.

    Args:
        requests: of one layer for actor and critic, or of one for each.
        heads, detached, taken, settings: as there.

    Returns:
        its scalars; None where cores and heads have to run one after the other.
    """
    if not _is_plain_cpu(taken[1:]):
        return None
    layers = _prepared(requests)
    if layers is None:
        return None
    return cpu_actor_critic.ppo_losses(layers, heads, detached, taken, settings)


@cache
def _log_once(name: str, backend: str, how: str, faster: str, reason: str) -> None:
    where = "plain PyTorch loop" if backend == "plain" else f"{backend} backend"
    message = "core %r runs in the %s, %s than %s code: %s."
    _logger.warning(message, name, where, how, faster, reason)
