"""Check the cores on a GPU, and measure their speed and memory.

One JSON file holds the device, the versions, each check with its error, each time with its range,
and all failures. A failure does not stop the benchmark.
"""

from __future__ import annotations

import copy
import time
import timeit
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from rlgates import Core, make_core
from rlgates.envs import ENVS
from rlgates.envs.engine.actions import random_actions
from rlgates.envs.torch import make_torch_env
from rlgates.errors import check_choice
from rlgates.experiments.bench.configs import GpuBenchConfig
from rlgates.experiments.runs.files import write_json
from rlgates.experiments.runs.locks import locked
from rlgates.experiments.runs.provenance import git_state, now, versions
from rlgates.registry import list_cores

NAME = "gpu_bench.json"
# Largest allowed error of any output or gradient, relative to max(1, its largest absolute value).
TOLERANCES = {"float32": 1e-4, "tf32": 3e-2, "bf16": 1e-1}
GATED = ("lstm", "ur_lstm", "om_lstm", "gru", "ur_janet")
SCANNED = ("mingru", "gilr", "minlstm", "lru")
# Share of the total time after which no measurement of a part begins.
UNTIL = {"correct": 0.4, "speed": 0.75, "ways": 0.9, "environments": 1.0}
# Small sizes: plain loops on a GPU are slow.
SMALL: dict[str, dict[str, Any]] = {"rma": {"num_slots": 16}}

Entry = dict[str, Any]


class Report:
    """The results so far, written after each measurement.

    Args:
        path: of the JSON file.
        seconds: for all parts; measurements that would begin too late are listed as left out.
        about: facts about the whole run.
    """

    def __init__(self, path: Path, seconds: float, **about: Any) -> None:
        self.path = path
        self.start, self.seconds = time.monotonic(), seconds
        self.content: Entry = {"about": about, "failures": [], "left_out": []}

    def add(self, part: str, of: Entry, measure: Callable[[], Entry]) -> None:
        """Append the result of `measure`, or its failure, to a part; `of` identifies it."""
        entries = self.content.setdefault(part, [])
        if time.monotonic() > self.start + UNTIL[part] * self.seconds:
            self.content["left_out"].append({"part": part, **of})
            return
        try:
            entries.append({**of, **measure()})
            print(
                part, *(f"{key}={_short(value)}" for key, value in entries[-1].items()), flush=True
            )
        except Exception as error:
            trace = traceback.format_exc(limit=-4)
            self.content["failures"].append({"part": part, **of, "error": trace})
            print(part, of, f"FAILED: {type(error).__name__}: {error}", flush=True)
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
        self.write()

    def write(self) -> None:
        with locked(self.path.parent):
            write_json(self.path, self.content)


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def bench_gpu(config: GpuBenchConfig) -> Path:
    """Make all checks and measurements, print a line for each, and write `gpu_bench.json`.

    Raises:
        ValueError: no GPU, and the device is not "cpu".
    """
    check_choice("device", config.device, ("cuda", "cpu"))
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("torch finds no GPU here; --device cpu tests the benchmark itself.")
    sizes = Sizes.of(config)
    path = Path(config.results) / NAME
    minutes = config.minutes or (1.0 if config.quick else 10.0)
    report = Report(path, 60 * minutes, **_about(config))
    device = torch.device(config.device)
    default_cores = (*GATED[:3], *SCANNED[:1]) if config.quick else list_cores()
    for name in config.cores or default_cores:
        for precision in ("float32", *(("tf32", "bf16") if name in GATED else ())):
            of = {"core": name, "precision": precision}
            report.add("correct", of, partial(correct, name, precision, device, sizes.check))
    for core, precision, (t, b, h) in sizes.timed():
        of = {"core": core, "precision": precision, "T": t, "B": b, "H": h}
        report.add("speed", of, partial(compare, core, precision, t, b, h, device, sizes.repeats))
    for t, b, h in (shape for shape in sizes.shapes if shape[-1] <= 512):
        of = {"T": t, "B": b, "H": h}
        report.add("ways", of, partial(launch_modes, t, b, h, device, sizes.repeats))
    for env in tuple(ENVS)[: sizes.num_ids]:
        of = {"env": env, "num_envs": sizes.num_envs}
        report.add("environments", of, partial(environment, env, sizes.num_envs, device))
    report.content["about"]["end"] = now()
    report.write()
    return path


def _about(config: GpuBenchConfig) -> Entry:
    about: Entry = {
        "start": now(),
        "device": config.device,
        "quick": config.quick,
        "versions": versions(),
        "cuda": torch.version.cuda,
        "git": git_state(),
    }
    with suppress(PackageNotFoundError):
        about["versions"]["triton"] = version("triton")
    if config.device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        about["gpu"] = {
            "name": properties.name,
            "capability": f"{properties.major}.{properties.minor}",
            "memory_gib": properties.total_memory / 2**30,
            "processors": properties.multi_processor_count,
        }
        about["versions"]["cudnn"] = torch.backends.cudnn.version()
    return about


class Sizes(NamedTuple):
    """The sizes of the full, the quick and the CPU benchmark.

    Attributes:
        check: T, B, I and H of the checks.
        steps, hidden, batches: T, and the H and B, of the timings.
        num_envs, num_ids: batch size of the environments to time, and how many these are.
        repeats: timed runs of each contestant.
    """

    check: tuple[int, int, int, int]
    steps: int
    hidden: tuple[int, ...]
    batches: tuple[int, ...]
    num_envs: int
    num_ids: int | None
    repeats: int

    @classmethod
    def of(cls, config: GpuBenchConfig) -> Sizes:
        if config.device == "cpu":
            return cls((3, 2, 3, 4), 4, (4,), (2,), 4, 1, 1)
        if config.quick:
            return cls((7, 5, 9, 17), 128, (64, 256), (16, 1024), 65_536, 2, 5)
        batches, hidden = (16, 128, 1024, 4096), (64, 128, 256, 512, 1024)
        return cls((19, 7, 9, 33), 128, hidden, batches, 65_536, None, 9)

    @property
    def shapes(self) -> list[tuple[int, int, int]]:
        """T, B and H of all timings."""
        return [(self.steps, b, h) for h in self.hidden for b in self.batches]

    def timed(self) -> Iterator[tuple[str, str, tuple[int, int, int]]]:
        """Yield core, precision and (T, B, H), the most informative first."""
        for precision in ("tf32", "bf16", "float32"):
            for shape in self.shapes:
                yield "ur_lstm", precision, shape
        middle = self.steps, self.batches[-2:][0], self.hidden[len(self.hidden) // 2]
        for core in ("om_lstm", "gru", "ur_janet", *SCANNED):
            yield core, "tf32", middle


@contextmanager
def arithmetic(precision: str, device: torch.device) -> Iterator[AbstractContextManager[object]]:
    """Compute in float32, tf32 or bfloat16; yields the autocast for forward passes."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = precision == "tf32"
    try:
        bf16 = torch.autocast(device.type, torch.bfloat16)
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
    generator = torch.Generator().manual_seed(0)
    core = make_core(name, input_size, hidden_size, generator=generator, **SMALL.get(name, {})).to(
        device
    )
    x = torch.randn(steps, batch_size, input_size, generator=generator).to(device)
    episode_starts = (torch.rand(steps, batch_size, generator=generator) < 0.2).to(device)
    state = core.initial_state(batch_size)
    reference = copy.deepcopy(core).double()
    reference.backend = "plain"
    core.backend = "triton" if device.type == "cpu" and name in GATED else "auto"
    errors = []
    for _ in range(3):
        expected = outputs_and_gradients(reference, x.double(), state.double(), episode_starts)
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


def timed(
    contestants: Mapping[str, Callable[[], object]], repeats: int, device: torch.device
) -> Entry:
    """Median, minimum and maximum of the milliseconds of each, interleaved, and its peak memory."""
    entry: Entry = {}
    for name, run in contestants.items():
        for _ in range(3):  # compile kernels
            run()
        if device.type == "cuda":
            torch.cuda.synchronize()
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            run()
            torch.cuda.synchronize()
            entry[f"{name}_mib"] = (torch.cuda.max_memory_allocated() - before) / 2**20
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(repeats):
        for name, run in contestants.items():
            times[name].append(_milliseconds(run, device))
    for name, values in times.items():
        entry[f"{name}_ms"] = float(np.median(values))
        entry[f"{name}_range"] = [min(values), max(values)]
    return entry


def _milliseconds(run: Callable[[], object], device: torch.device) -> float:
    if device.type != "cuda":
        return 1e3 * timeit.timeit(run, number=1)
    torch.cuda.synchronize()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    run()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end))


def compare(
    core: str, precision: str, T: int, B: int, H: int, device: torch.device, repeats: int
) -> Entry:
    """Time a core and `nn.LSTM` in the same precision, forward and backward, H inputs."""
    layer = make_core(core, H, H).to(device)
    layer.backend = "triton" if device.type == "cpu" and core in GATED else "auto"
    lstm = nn.LSTM(H, H).to(device)
    x = torch.randn(T, B, H, device=device, requires_grad=True)
    generator = torch.Generator().manual_seed(0)
    episode_starts = torch.rand(T, B, generator=generator) < 0.02
    episode_lengths, order = episodes(episode_starts)
    lengths = episode_lengths.tolist()
    episode_starts, order = episode_starts.to(device), order.to(device)
    with arithmetic(precision, device) as autocast:

        def training(forward: Callable[[], Tensor]) -> Callable[[], None]:
            def run() -> None:
                with autocast:
                    outputs = forward()
                outputs.float().sum().backward()

            return run

        contestants = {
            "core": training(lambda: layer(x)[0]),
            "cudnn": training(lambda: lstm(x)[0]),
            "core_resets": training(lambda: layer(x, None, episode_starts)[0]),
            "cudnn_resets": training(lambda: split(lstm, x, lengths, order)),
        }
        entry = timed(contestants, repeats, device)
    for kind in ("", "_resets"):
        entry[f"speedup{kind}"] = entry[f"cudnn{kind}_ms"] / entry[f"core{kind}_ms"]
    return {"backend": layer.backend_used, **entry}


def episodes(episode_starts: Tensor) -> tuple[Tensor, Tensor]:
    """Split sequences at episode starts (T, B).

    Returns:
        the length of each episode, and the index t * B + b of each step, episode by episode.
    """
    cut = episode_starts.t().clone()
    cut[:, 0] = True
    flat = cut.flatten().nonzero().flatten()
    lengths = torch.diff(flat, append=torch.tensor([cut.numel()]))
    batch_size, steps = cut.shape
    order = torch.arange(steps * batch_size).view(steps, batch_size).t().flatten()
    return lengths, order


def split(lstm: nn.LSTM, x: Tensor, lengths: list[int], order: Tensor) -> Tensor:
    """Run `nn.LSTM` on padded episodes, which replaces resets; see `episodes`."""
    parts = x.flatten(0, 1)[order].split(lengths)
    outputs: Tensor = lstm(nn.utils.rnn.pad_sequence(list(parts)))[0]
    return outputs


def launch_modes(T: int, B: int, H: int, device: torch.device, repeats: int) -> Entry:
    """Time a persistent kernel, and one launch per step."""
    from rlgates.kernels.triton import launch as triton_launch

    core = make_core("ur_lstm", H, H, backend="triton").to(device)
    x = torch.randn(T, B, H, device=device)

    def training(persistent_bytes: int) -> Callable[[], None]:
        def run() -> None:
            before = triton_launch.MAX_PERSISTENT_BYTES
            triton_launch.MAX_PERSISTENT_BYTES = persistent_bytes
            try:
                core(x)[0].sum().backward()
            finally:
                triton_launch.MAX_PERSISTENT_BYTES = before

        return run

    contestants = {"launches": training(0)}
    if H <= 256:
        contestants["walk"] = training(2**40)
    entry: Entry = {}
    for precision in ("tf32", "bf16"):
        with arithmetic(precision, device) as autocast, autocast:
            times = timed(contestants, repeats, device)
        entry |= {f"{precision}_{key}": value for key, value in times.items()}
    return entry


def environment(env: str, num_envs: int, device: torch.device, seconds: float = 1.0) -> Entry:
    """Million steps per second of a torch environment, with random actions and resets."""
    batch = make_torch_env(env, num_envs, seed=0, device=device)
    batch.reset()
    sampled = random_actions(batch.spec.action_space, np.random.default_rng(0), 16, num_envs)
    actions = torch.as_tensor(sampled, device=device)

    def play() -> None:
        for action in actions:
            batch.step(action)

    play()
    rates: list[float] = []
    begin = time.monotonic()
    while not rates or time.monotonic() - begin < seconds:
        rates.append(16 * num_envs / _milliseconds(play, device) / 1e3)
    entry = {"million_steps_per_second": float(np.median(rates)), "range": [min(rates), max(rates)]}
    if device.type == "cuda":
        entry["mib"] = torch.cuda.max_memory_allocated() / 2**20
    return entry
