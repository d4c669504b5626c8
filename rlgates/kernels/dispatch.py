"""Which backend runs a layer, in which order they are tried, and why one cannot run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from rlgates.kernels import ops, scan
from rlgates.kernels.cpu import abi, fused, gated
from rlgates.kernels.cpu import scan as cpu_scan
from rlgates.kernels.spec import FusedCell, GatedLayer, Layer, LinearScan, LoopOnly, State
from rlgates.kernels.triton import op as triton

BACKENDS = ("auto", "plain", "native", "scan", "triton")

_NOT_BUILT = "the extension rlgates.kernels.cpu._native was not built at installation"
_LEARNED_INITIAL_STATE = "it starts an episode from zeros, not from a learned state"
_logger = logging.getLogger(__name__)


class LayerCall(NamedTuple):
    """One layer to run over a sequence; see `run` for the arguments.

    Attributes:
        spec: what `Layer.recurrence` returned.
        tensors: x, the state and the weights.
    """

    spec: Any
    x: Tensor
    state: State
    episode_starts: Tensor | None
    initial_state: Callable[[], State]
    learned_initial_state: bool
    tensors: tuple[Tensor, ...]

    @property
    def initial_at_starts(self) -> State | None:
        """The initial state; None without episode starts, where it is not needed."""
        return None if self.episode_starts is None else self.initial_state()

    @property
    def learned_initial_at_starts(self) -> State:
        """The initial state if it is learned and needed, else (): gated layers start from zeros."""
        needed = self.learned_initial_state and self.episode_starts is not None
        return self.initial_state() if needed else ()


class Backend(NamedTuple):
    """One way to run a layer.

    Attributes:
        unsupported_reason: why it cannot run a call; None if it can.
        run: gives the outputs and the final state.
        is_worthwhile: whether "auto" takes it for a call that it can run.
    """

    unsupported_reason: Callable[[LayerCall], str | None]
    run: Callable[[LayerCall], tuple[Tensor, State]]
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
    """Outputs (T, B, O), the parts of the final state, and the backend that computed them."""

    outputs: Tensor
    state: State
    backend: str


# ---- gated layers ------------------------------------------------------------------------------


def _cpu_gated_unsupported_reason(call: LayerCall) -> str | None:
    return _gate_unsupported_reason(
        call.spec.activation, call.spec.auxiliary
    ) or _cpu_unsupported_reason(call)


def _cpu_gated(call: LayerCall) -> tuple[Tensor, State]:
    run = ops.run_gated if torch.compiler.is_compiling() else gated.run
    return run(call.spec, call.x, call.state, call.episode_starts, call.learned_initial_at_starts)


def _gate_unsupported_reason(activation: str, auxiliary: str) -> str | None:
    if activation not in abi.ACTIVATIONS:
        return f"it has no gates of {activation}"
    return None if auxiliary in abi.AUXILIARIES else f"it has no {auxiliary} gates"


def _triton_gated_unsupported_reason(call: LayerCall) -> str | None:
    if call.episode_starts is not None and call.learned_initial_state:
        return _LEARNED_INITIAL_STATE
    return triton.unsupported_reason(call.x, call.state, call.episode_starts, call.spec)


# ---- fused cells -------------------------------------------------------------------------------


def _cpu_fused_unsupported_reason(call: LayerCall) -> str | None:
    gate = call.spec.gate
    return (gate and _gate_unsupported_reason(*gate[:2])) or _cpu_unsupported_reason(call)


def _cpu_fused(call: LayerCall) -> tuple[Tensor, State]:
    run = ops.run_fused if torch.compiler.is_compiling() else fused.run
    return run(call.spec, call.x, call.state, call.episode_starts, call.initial_at_starts)


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


def _scan(call: LayerCall, function: Any = scan.scan) -> tuple[Tensor, State]:
    return scan.run(
        call.spec, call.x, call.state, call.episode_starts, call.initial_at_starts, function
    )


def _cpu_scan(call: LayerCall) -> tuple[Tensor, State]:
    compiles = torch.compiler.is_compiling()
    return _scan(call, ops.scan if compiles else partial(scan.scan, kernel=cpu_scan))


def _triton_scan(call: LayerCall) -> tuple[Tensor, State]:
    from rlgates.kernels.triton import scan as triton_scan

    return _scan(call, partial(scan.scan, kernel=triton_scan))


def _torch_scan_is_worthwhile(call: LayerCall) -> bool:
    """It replaces many operations by few: a gain where each is small, as always on a GPU."""
    numbers = sum(part.numel() for part in call.state)
    return len(call.x) >= 8 and (numbers <= 4096 or not call.x.is_cpu)


# ---- the choice --------------------------------------------------------------------------------

# The backends of each kind of layer, the fastest first. A new backend is a row here and a name in
# BACKENDS.
_BACKENDS: dict[type, dict[str, Backend]] = {
    GatedLayer: {
        "native": Backend(
            _cpu_gated_unsupported_reason,
            _cpu_gated,
        ),
        "triton": Backend(
            _triton_gated_unsupported_reason,
            lambda call: triton.run(call.x, call.state, call.episode_starts, call.spec),
            lambda call: call.x.is_cuda,  # on a CPU only Triton's slow interpreter runs
        ),
    },
    FusedCell: {
        "native": Backend(
            _cpu_fused_unsupported_reason,
            _cpu_fused,
        )
    },
    LinearScan: {
        "native": Backend(_cpu_unsupported_reason, _cpu_scan),
        "triton": Backend(_triton_scan_unsupported_reason, _triton_scan),
        "scan": Backend(lambda call: None, _scan, _torch_scan_is_worthwhile),
    },
}


def _call_unsupported_reason(call: LayerCall) -> str | None:
    """Why only the plain loop can run this call; None if a backend may."""
    if torch.compiler.is_exporting():
        return "exported programs contain the plain loop alone"
    if torch.compiler.is_compiling():
        return None if call.x.is_cpu else "torch.compile traces the plain loop on this device"
    # Private names of torch, as of 2.13: whoever traces or transforms its operations needs them.
    if (
        torch._C._get_tracing_state() is not None
        or torch._C._are_functorch_transforms_active()
        or torch._C._len_torch_dispatch_stack() > 0
        or forward_ad._current_level >= 0
    ):
        return "a tracer, torch.func or forward-mode differentiation is active"
    for tensor in call.tensors:
        if type(tensor) is not Tensor and type(tensor) is not torch.nn.Parameter:
            return f"it takes plain tensors, got {type(tensor).__name__}"
    starts = call.episode_starts
    if starts is not None and starts.device != call.x.device:
        return f"the episode starts must be on {call.x.device}, got {starts.device}"
    return None


def _call(
    layer: Layer,
    x: Tensor,
    state: State,
    episode_starts: Tensor | None,
    initial_state: Callable[[], State],
    learned: bool,
) -> LayerCall:
    if x.is_cpu and torch.is_autocast_enabled("cpu"):  # the kernels compute in float32 all the same
        with torch.autocast("cpu", enabled=False):
            spec = layer.recurrence()
        x = x if isinstance(spec, LinearScan) else x.to(torch.promote_types(x.dtype, torch.float32))
    else:
        spec = layer.recurrence()
    tensors = (x, *state, *getattr(spec, "weights", ()))
    return LayerCall(spec, x, state, episode_starts, initial_state, learned, tensors)


def run(
    layer: Layer,
    x: Tensor,
    state: State,
    episode_starts: Tensor | None,
    initial_state: Callable[[], State],
    backend: str,
    learned_initial_state: bool = False,
) -> Result | None:
    """Run one layer over a sequence with a kernel.

    Args:
        layer: the layer.
        x: its inputs (T, B, I).
        state: the parts of its state before the first step.
        episode_starts: (T, B) bool, true where an episode starts.
        initial_state: gives the parts of the state at the start of an episode.
        backend: one of `BACKENDS`.
        learned_initial_state: whether that state is learned, and not the layer's own.

    Returns:
        the result; None if the plain loop has to run.

    Raises:
        ValueError: `backend` names a kernel that cannot run this, with the reason.
    """
    if backend == "plain":
        return None
    call = _call(layer, x, state, episode_starts, initial_state, learned_initial_state)
    chosen = _choose(call, backend)
    fastest = "triton" if x.is_cuda else "native"
    if backend != "auto" and chosen.backend == "plain":
        raise ValueError(f"the {backend} backend cannot run this: {chosen.passed_over[backend]}.")
    slow = backend == "auto" and fastest in chosen.passed_over and call.spec is not None
    if slow and not torch.compiler.is_compiling():
        _log_once(chosen.backend, fastest, chosen.passed_over[fastest])
    if chosen.backend == "plain":
        return None
    return Result(*_BACKENDS[type(call.spec)][chosen.backend].run(call), chosen.backend)


def explain(
    layer: Layer,
    x: Tensor,
    state: State,
    episode_starts: Tensor | None,
    initial_state: Callable[[], State],
    backend: str,
    learned_initial_state: bool = False,
) -> Explanation:
    """Which backend `run` would take for the same arguments, and why not the others."""
    if backend == "plain":
        return Explanation("plain", {})
    call = _call(layer, x, state, episode_starts, initial_state, learned_initial_state)
    return _choose(call, backend)


def _choose(call: LayerCall, backend: str) -> Explanation:
    candidates = _BACKENDS.get(type(call.spec), {})
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
    unknown = (
        call.spec.reason if isinstance(call.spec, LoopOnly) else "this core has no such fast path"
    )
    return Explanation("plain", {**dict.fromkeys(BACKENDS[2:], unknown), **passed_over})


def side_by_side_is_faster(steps: int, batch_size: int) -> bool:
    """Whether two layers run faster with a thread each than one by one with all threads."""
    threads = abi.num_threads()
    return threads > 1 and (steps == 1 or batch_size < threads)


def run_together(
    layers: Sequence[tuple[Layer, Tensor, State, Callable[[], State], bool]],
    episode_starts: Tensor | None,
) -> list[Result] | None:
    """Run two layers side by side, with a thread each.

    Args:
        layers: layers, their inputs (T, B, I), the parts of their states, what gives the parts of
            their initial states, and whether these are learned: see `run`.
        episode_starts: (T, B) bool, or None.

    Returns:
        the result of each; None if they cannot run like this.
    """
    arguments = []
    for layer, x, state, initial_state, learned in layers:
        call = _call(layer, x, state, episode_starts, initial_state, learned)
        if (
            type(call.spec) is not GatedLayer
            or _call_unsupported_reason(call)
            or _cpu_gated_unsupported_reason(call)
        ):
            return None
        initial = call.learned_initial_at_starts
        arguments.append(gated.LayerInputs(call.spec, x, state, initial))
    return [Result(*result, "native") for result in gated.run_together(arguments, episode_starts)]


@cache
def _log_once(backend: str, faster: str, reason: str) -> None:
    running = "the plain loop" if backend == "plain" else f"the {backend} backend"
    _logger.warning("%s runs, several times slower than %s code: %s.", running, faster, reason)
