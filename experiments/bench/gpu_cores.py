"""The cores on a GPU: their errors, and their times beside those of cuDNN."""

from __future__ import annotations

import copy
import math
import time
import timeit
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn

from rlgates import Core, make_core
from rlgates.experiments.bench.children import Entry
from rlgates.kernels.recording import recording

# Largest allowed error of any output or gradient, relative to max(1, its largest absolute value).
TOLERANCES = {"float32": 1e-4, "tf32": 3e-2, "bf16": 1e-1}
GATED = ("lstm", "ur_lstm", "om_lstm", "gru", "ur_janet")
# Small sizes: plain loops on a GPU are slow.
SMALL: dict[str, dict[str, Any]] = {"rma": {"num_slots": 16, "top_k": 8}}
RESETS = 0.03  # share of the steps at which an episode starts
# cuDNN has read outside of its memory where steps * sequences * 4 * units exceeded 2**31. Half of
# it is safe, and still thousands of sequences.
MAX_NUMBERS = 2**30
ENOUGH = 0.5  # seconds of timed runs, if there were a few

Run = Callable[[], object]


@contextmanager
def arithmetic(precision: str, device: torch.device) -> Iterator[AbstractContextManager[object]]:
    """Compute in float32, tf32 or bfloat16; yields the autocast for forward passes."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = precision == "tf32"
    try:
        # Without its cache: around a whole training it would keep the first weights.
        bf16 = torch.autocast(device.type, torch.bfloat16, cache_enabled=False)
        yield bf16 if precision == "bf16" else nullcontext()
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before


def outputs_and_gradients(
    core: Core, x: Tensor, state: Tensor, episode_starts: Tensor
) -> list[Tensor]:
    """The outputs, the final state and all gradients."""
    x = x.detach().requires_grad_()
    outputs, final = core(x, state, episode_starts)
    weights = torch.linspace(-1, 1, outputs.numel(), dtype=outputs.dtype, device=x.device)
    value = (outputs * weights.view_as(outputs)).sum() + 0.3 * final.square().sum()
    leaves = [x, *core.parameters()]
    gradients: list[Tensor | None] = list(torch.autograd.grad(value, leaves, allow_unused=True))
    return [outputs.detach(), final.detach(), *(g for g in gradients if g is not None)]


def correct(name: str, precision: str, device: torch.device, size: Any) -> Entry:
    """The largest error of a core against the plain loop in float64, with episode starts.

    Raises:
        AssertionError: the error exceeds the tolerance.
    """
    steps, batch_size, input_size, hidden_size = size
    if name == "gato":
        hidden_size += hidden_size % 2  # it has two halves
    # Rounding would change the order in which a DNC sorts equal slots, at the start all, and on
    # which side of a ReLU's kink a number of an RMC is, where gradients jump.
    dtype = torch.float64 if name.endswith(("dnc", "rmc")) else torch.float32
    generator = torch.Generator().manual_seed(0)
    core = make_core(name, input_size, hidden_size, generator=generator, **SMALL.get(name, {}))
    core = core.to(device, dtype)
    x = torch.randn(steps, batch_size, input_size, generator=generator).to(device, dtype)
    episode_starts = (torch.rand(steps, batch_size, generator=generator) < 0.2).to(device)
    state = core.initial_state(batch_size)
    reference = copy.deepcopy(core).double()
    reference.backend = "plain"
    core.backend = "triton" if device.type == "cpu" and name in GATED else "auto"
    errors = []
    for seed in range(3):
        torch.manual_seed(seed)  # a few cores draw random numbers
        expected = outputs_and_gradients(reference, x.double(), state.double(), episode_starts)
        torch.manual_seed(seed)
        with arithmetic(precision, device) as autocast, autocast:
            results = outputs_and_gradients(core, x, state, episode_starts)
        pairs = [(r.double(), e) for r, e in zip(results, expected, strict=True) if e.numel()]
        errors.append(
            max(float((r - e).abs().max() / e.abs().max().clamp(min=1)) for r, e in pairs)
        )
        x = -x
    entry = {"backend": core.backend_used, "error": max(errors)}
    assert max(errors) < TOLERANCES[precision], entry
    return entry


def training(module: nn.Module, x: Tensor, forward: Callable[[], list[Tensor]]) -> Run:
    """A forward and a backward pass, to the inputs and the weights."""
    leaves = [x, *module.parameters()]

    def run() -> None:
        value = torch.stack([outputs.float().sum() for outputs in forward()]).sum()
        torch.autograd.grad(value, leaves, allow_unused=True)

    return run


def first_run(measure: Callable[[], Entry]) -> Entry:
    """The seconds of a measurement that compiles kernels; Triton keeps them for other processes."""
    begin = time.monotonic()
    measure()
    return {"seconds": time.monotonic() - begin}


def compare(
    core: str,
    precision: str,
    T: int,
    B: int,
    H: int,
    resets: bool,
    device: torch.device,
    repeats: int,
) -> Entry:
    """Time a core and `nn.LSTM` in the same precision, forward and backward, H inputs.

    On a GPU also as replayed CUDA graphs, which do not wait for launches from Python.

    Args:
        core, precision, T, B, H: what to time.
        resets: whether episodes start inside the sequences; `nn.LSTM` gets them padded.
        device, repeats: where, and how many times.
    """
    layer, lstm = make_core(core, H, H).to(device), nn.LSTM(H, H).to(device)
    lstm.flatten_parameters()
    x = torch.randn(T, B, H, device=device, requires_grad=True)
    starts = torch.rand(T, B, generator=torch.Generator().manual_seed(0)) < RESETS
    slots, shape = padding(starts, H)
    episode_starts = starts.to(device) if resets else None
    slots = slots.to(device)

    def cudnn() -> list[Tensor]:
        if resets:
            return split(lstm, x, slots, shape)
        return [lstm(part)[0] for part in x.chunk(pieces(T, B, H), 1)]

    with arithmetic(precision, device) as autocast:

        def cast(forward: Callable[[], list[Tensor]]) -> list[Tensor]:
            with autocast:
                return forward()

        contestants = {
            "core": training(layer, x, lambda: cast(lambda: [layer(x, None, episode_starts)[0]])),
            "cudnn": training(lstm, x, lambda: cast(cudnn)),
        }
        entry = timed(contestants, repeats, device)
        if device.type == "cuda":
            entry |= {f"{name}_mib": peak_mib(run) for name, run in contestants.items()}
            graphs: dict[str, Run] = {}
            for name, run in contestants.items():
                try:
                    graphs[f"{name}_graph"] = recorded(run)
                except RuntimeError as error:  # it is the eager times' loss if the device works
                    torch.cuda.synchronize()
                    entry[f"{name}_graph_error"] = str(error).splitlines()[0]
            entry |= timed(graphs, repeats, device)
    for way in ("", "_graph"):
        if {f"core{way}_ms", f"cudnn{way}_ms"} <= entry.keys():
            entry[f"speedup{way}"] = entry[f"cudnn{way}_ms"] / entry[f"core{way}_ms"]
    return {"backend": layer.backend_used, "pieces": shape[0] if resets else 1, **entry}


def pieces(length: int, sequences: int, units: int) -> int:
    """Into how many parts cuDNN's batch must be split; see `MAX_NUMBERS`."""
    return math.ceil(sequences / max(1, MAX_NUMBERS // (4 * units * length)))


def padding(episode_starts: Tensor, units: int) -> tuple[Tensor, tuple[int, int, int]]:
    """Lay out the episodes of sequences as padded sequences.

    Args:
        episode_starts: (T, B) bool.
        units: of the layer.

    Returns:
        slots: (T * B,), the index of each step in the flattened padded batch.
        shape: pieces, steps and sequences of the padded batch.
    """
    first = episode_starts.t().clone()
    first[:, 0] = True
    batch_size, steps = first.shape
    begins = first.flatten().nonzero().flatten()
    episode = first.flatten().cumsum(0) - 1
    step = torch.arange(steps * batch_size) - begins[episode]
    length = int(step.max()) + 1
    parts = pieces(length, len(begins), units)
    sequences = math.ceil(len(begins) / parts)
    slots = (episode // sequences * length + step) * sequences + episode % sequences
    return slots.view(batch_size, steps).t().flatten(), (parts, length, sequences)


def split(lstm: nn.LSTM, x: Tensor, slots: Tensor, shape: tuple[int, int, int]) -> list[Tensor]:
    """Run `nn.LSTM` on padded episodes, which replaces resets; see `padding`.

    Returns:
        the outputs of each piece, padded.
    """
    padded = x.new_zeros(math.prod(shape), x.shape[-1]).index_copy(0, slots, x.flatten(0, 1))
    return [lstm(piece)[0] for piece in padded.view(*shape, -1)]


def recorded(run: Run) -> Run:
    """Record a run as a CUDA graph, and return its replay."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    graph = torch.cuda.CUDAGraph()
    with recording():
        with torch.cuda.stream(stream):  # lazy initialization must not be part of the graph
            for _ in range(2):
                run()
        torch.cuda.current_stream().wait_stream(stream)
        with torch.cuda.graph(graph):
            run()
    return graph.replay


def timed(contestants: Mapping[str, Run], repeats: int, device: torch.device) -> Entry:
    """Median and range of the milliseconds of each, interleaved, after two runs of warm-up."""
    for run in contestants.values():
        for _ in range(2):
            run()
    times: dict[str, list[float]] = {name: [] for name in contestants}
    begin = time.monotonic()
    for round_ in range(repeats):
        if round_ >= 3 and time.monotonic() > begin + ENOUGH:
            break
        for name, run in contestants.items():
            times[name].append(milliseconds(run, device))
    entry: Entry = {}
    for name, values in times.items():
        entry[f"{name}_ms"] = float(np.median(values))
        entry[f"{name}_range"] = [min(values), max(values)]
    return entry


def peak_mib(run: Run) -> float:
    """The memory that a run adds, at its peak."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    run()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def milliseconds(run: Run, device: torch.device) -> float:
    """The time of a run, by the clock of the device."""
    if device.type != "cuda":
        return 1e3 * timeit.timeit(run, number=1)
    torch.cuda.synchronize()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    run()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end))


def launch_modes(
    precision: str, T: int, B: int, H: int, device: torch.device, repeats: int
) -> Entry:
    """Time one launch for all steps, and one launch or more per step."""
    from rlgates.kernels.triton import launch

    core = make_core("ur_lstm", H, H, backend="triton").to(device)
    x = torch.randn(T, B, H, device=device, requires_grad=True)
    run = training(core, x, lambda: [core(x)[0]])

    def limited(fused_units: int) -> Run:
        def limited_run() -> None:
            with (
                patch.object(launch, "MAX_FUSED_UNITS", fused_units),
                patch.object(launch, "MAX_PERSISTENT_BYTES", 0),
            ):
                run()

        return limited_run

    with arithmetic(precision, device) as autocast, autocast:
        return timed({"launches": limited(0), "fused": limited(256)}, repeats, device)
