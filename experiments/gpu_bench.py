"""What a GPU makes of the cores: are they right, how fast are they, and what do they need?

One JSON file says it all: the device and the versions, each check with its error, each time with
its range, and every failure beside the rest. Nothing here stops at a failure.
"""

from __future__ import annotations

import copy
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rlgates import Core, make_core
from rlgates.cores import list_cores
from rlgates.envs import TASKS
from rlgates.envs.torch import make_torch_env
from rlgates.errors import check_choice
from rlgates.experiments.bench_configs import GpuBenchConfig
from rlgates.experiments.files import write_json
from rlgates.experiments.manifest import git_state, now, versions

NAME = "gpu_bench.json"
# Largest error of any output or gradient relative to the largest number, or 1, that passes.
TOLERANCES = {"float32": 1e-4, "tf32": 3e-2, "bf16": 1e-1}
GATED = ("lstm", "ur_lstm", "om_lstm", "gru", "ur_janet")
SCANNED = ("mingru", "gilr", "minlstm", "lru")
# When the last of each part may begin, as a share of the time for all.
UNTIL = {"correct": 0.4, "speed": 0.75, "ways": 0.9, "environments": 1.0}
# Not larger than they need to be: these are checks, and plain loops on a GPU are slow.
SMALL: dict[str, dict[str, Any]] = {"rma": {"num_slots": 16}}

Entry = dict[str, Any]


class Report:
    """What came out so far, written after each part: a bench that is cut short has told something.

    Args:
        path: of the JSON file.
        seconds: for all parts; what does not begin within those of its part is left out, and
            the file says so.
    """

    def __init__(self, path: Path, seconds: float, **about: Any) -> None:
        self.path = path
        self.start, self.seconds = time.monotonic(), seconds
        self.content: Entry = {"about": about, "failures": [], "left_out": []}

    def add(self, part: str, of: Entry, measure: Callable[[], Entry]) -> None:
        """Put what `measure` finds into a part, beside what it is of; or how it failed."""
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
            words = traceback.format_exc(limit=-4)
            self.content["failures"].append({"part": part, **of, "error": words})
            print(part, of, f"FAILED: {type(error).__name__}: {error}", flush=True)
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
        self.write()

    def write(self) -> None:
        write_json(self.path, self.content)


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def bench_gpu(config: GpuBenchConfig) -> Path:
    """Check and time everything, print a line for each, and write `gpu_bench.json`.

    Raises:
        ValueError: there is no GPU, and the device is not "cpu".
    """
    check_choice("device", config.device, ("cuda", "cpu"))
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("torch finds no GPU here; --device cpu tries the bench itself, slowly.")
    sizes = Sizes.of(config)
    path = Path(config.results) / NAME
    minutes = config.minutes or (1.0 if config.quick else 10.0)
    report = Report(path, 60 * minutes, **_about(config))
    device = torch.device(config.device)
    some = (*GATED[:3], *SCANNED[:1]) if config.quick else list_cores()
    for name in config.cores or some:
        for precision in ("float32", *(("tf32", "bf16") if name in GATED else ())):
            of = {"core": name, "precision": precision}
            report.add("correct", of, partial(correct, name, precision, device, sizes.check))
    for core, precision, (t, b, h) in sizes.timed():
        of = {"core": core, "precision": precision, "T": t, "B": b, "H": h}
        report.add("speed", of, partial(compare, core, precision, t, b, h, device, sizes.repeats))
    for t, b, h in sizes.ways:
        of = {"T": t, "B": b, "H": h}
        report.add("ways", of, partial(ways, t, b, h, device, sizes.repeats))
    for env in sizes.envs:
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


class Sizes:
    """What is measured: all of it, what fits in a minute, or the least that a CPU can do.

    Attributes:
        check: T, B, I and H of the checks.
        ways: T, B and H at which a walk and steps are compared.
        envs, num_envs: environments that are timed.
        repeats: timed runs of each contestant.
    """

    def __init__(
        self,
        check: tuple[int, int, int, int],
        steps: int,
        hidden: tuple[int, ...],
        batches: tuple[int, ...],
        num_envs: int,
        repeats: int,
    ) -> None:
        self.check, self.repeats = check, repeats
        self.steps, self.hidden, self.batches = steps, hidden, batches
        self.num_envs, self.envs = num_envs, tuple(TASKS)
        self.ways = [(steps, b, h) for h in hidden for b in batches if h <= 512]

    @classmethod
    def of(cls, config: GpuBenchConfig) -> Sizes:
        if config.device == "cpu":
            sizes = cls((3, 2, 3, 4), 4, (4,), (2,), 4, 1)
            sizes.envs = sizes.envs[:1]
        elif config.quick:
            sizes = cls((7, 5, 9, 17), 128, (64, 256), (16, 1024), 65_536, 5)
            sizes.envs = sizes.envs[:2]
        else:
            batches = (16, 128, 1024, 4096)
            sizes = cls((19, 7, 9, 33), 128, (64, 128, 256, 512, 1024), batches, 65_536, 9)
        return sizes

    def timed(self) -> Iterator[tuple[str, str, tuple[int, int, int]]]:
        """Core, precision, and (T, B, H), the most telling first."""
        sizes = [(self.steps, b, h) for h in self.hidden for b in self.batches]
        for precision in ("tf32", "bf16", "float32"):
            for size in sizes:
                yield "ur_lstm", precision, size
        middle = self.steps, self.batches[-2:][0], self.hidden[len(self.hidden) // 2]
        for core in ("om_lstm", "gru", "ur_janet", *SCANNED):
            yield core, "tf32", middle


@contextmanager
def arithmetic(precision: str, device: torch.device) -> Iterator[AbstractContextManager[object]]:
    """Products in float32, tf32 or bfloat16; gives the autocast for forward passes."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = precision == "tf32"
    try:
        bf16 = torch.autocast(device.type, torch.bfloat16)
        yield bf16 if precision == "bf16" else nullcontext()
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before


def everything(core: Core, x: Tensor, state: Tensor, starts: Tensor) -> list[Tensor]:
    """Outputs, final state and all gradients."""
    x = x.detach().requires_grad_()
    outputs, final = core(x, state, starts)
    weights = torch.linspace(-1, 1, outputs.numel(), dtype=outputs.dtype, device=x.device)
    value = (outputs * weights.view_as(outputs)).sum() + 0.3 * final.square().sum()
    wanted = [x, *core.parameters()]
    gradients: list[Tensor | None] = list(torch.autograd.grad(value, wanted, allow_unused=True))
    return [outputs.detach(), final.detach(), *(g for g in gradients if g is not None)]


def correct(name: str, precision: str, device: torch.device, size: Any) -> Entry:
    """The largest error of a core against the plain loop in float64, with starts inside.

    Raises:
        AssertionError: it is too large.
    """
    steps, rows, width, hidden = size
    generator = torch.Generator().manual_seed(0)
    core = make_core(name, width, hidden, generator=generator, **SMALL.get(name, {})).to(device)
    x = torch.randn(steps, rows, width, generator=generator).to(device)
    starts = (torch.rand(steps, rows, generator=generator) < 0.2).to(device)
    state = core.initial_state(rows)
    truth = copy.deepcopy(core).double()
    truth.backend = "plain"
    core.backend = "triton" if device.type == "cpu" and name in GATED else "auto"
    # Twice, and a third time: launches are recorded on the way, and have to be right when replayed.
    errors = []
    for _ in range(3):
        want = everything(truth, x.double(), state.double(), starts)
        with arithmetic(precision, device) as autocast, autocast:
            got = everything(core, x, state, starts)
        pairs = [(g.double(), w) for g, w in zip(got, want, strict=True) if w.numel()]
        errors.append(
            max(float((g - w).abs().max() / w.abs().max().clamp(min=1)) for g, w in pairs)
        )
        x = -x
    entry = {"backend": core.backend_used, "error": max(errors)}
    assert max(errors) < TOLERANCES[precision], entry
    return entry


def timed(
    contestants: Mapping[str, Callable[[], object]], repeats: int, device: torch.device
) -> Entry:
    """Milliseconds of each, in turns: median, least and largest; and its peak of memory."""
    found: Entry = {}
    for name, run in contestants.items():
        for _ in range(3):  # kernels are built, graphs recorded
            run()
        if device.type == "cuda":
            torch.cuda.synchronize()
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            run()
            torch.cuda.synchronize()
            found[f"{name}_mib"] = (torch.cuda.max_memory_allocated() - before) / 2**20
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(repeats):
        for name, run in contestants.items():
            times[name].append(_milliseconds(run, device))
    for name, values in times.items():
        found[f"{name}_ms"] = float(np.median(values))
        found[f"{name}_range"] = [min(values), max(values)]
    return found


def _milliseconds(run: Callable[[], object], device: torch.device) -> float:
    if device.type != "cuda":
        start = time.perf_counter()
        run()
        return 1e3 * (time.perf_counter() - start)
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
    """A core beside `nn.LSTM` in the same precision, forward and backward, H inputs."""
    mine = make_core(core, H, H).to(device)
    mine.backend = "triton" if device.type == "cpu" and core in GATED else "auto"
    theirs = nn.LSTM(H, H).to(device)
    x = torch.randn(T, B, H, device=device, requires_grad=True)
    generator = torch.Generator().manual_seed(0)
    starts = torch.rand(T, B, generator=generator) < 0.02
    pieces, order = episodes(starts)
    lengths = pieces.tolist()
    starts, order = starts.to(device), order.to(device)
    with arithmetic(precision, device) as autocast:

        def through(forward: Callable[[], Tensor]) -> Callable[[], None]:
            def run() -> None:
                with autocast:
                    outputs = forward()
                outputs.float().sum().backward()

            return run

        contestants = {
            "core": through(lambda: mine(x)[0]),
            "cudnn": through(lambda: theirs(x)[0]),
            "core_resets": through(lambda: mine(x, None, starts)[0]),
            "cudnn_resets": through(lambda: split(theirs, x, lengths, order)),
        }
        found = timed(contestants, repeats, device)
    for kind in ("", "_resets"):
        found[f"speedup{kind}"] = found[f"cudnn{kind}_ms"] / found[f"core{kind}_ms"]
    return {"backend": mine.backend_used, **found}


def episodes(starts: Tensor) -> tuple[Tensor, Tensor]:
    """The lengths of the pieces that begins (T, B) cut sequences into, and the order of steps.

    The second one holds, piece after piece, the place t * B + b of each step.
    """
    cut = starts.t().clone()
    cut[:, 0] = True
    flat = cut.flatten().nonzero().flatten()
    lengths = torch.diff(flat, append=torch.tensor([cut.numel()]))
    rows, steps = cut.shape
    order = torch.arange(steps * rows).view(steps, rows).t().flatten()
    return lengths, order


def split(lstm: nn.LSTM, x: Tensor, lengths: list[int], order: Tensor) -> Tensor:
    """`nn.LSTM` over the pieces of `episodes`, padded to the longest: what stands in for resets."""
    pieces = x.flatten(0, 1)[order].split(lengths)
    outputs: Tensor = lstm(nn.utils.rnn.pad_sequence(list(pieces)))[0]
    return outputs


def ways(T: int, B: int, H: int, device: torch.device, repeats: int) -> Entry:
    """One launch for all steps beside launches a step, in CUDA graphs and one by one."""
    from rlgates.kernels import triton_graph, triton_launch

    core = make_core("ur_lstm", H, H, backend="triton").to(device)
    x = torch.randn(T, B, H, device=device)

    def through(near: int, most: int) -> Callable[[], None]:
        def run() -> None:
            before = triton_launch.NEAR, triton_graph.MOST
            triton_launch.NEAR, triton_graph.MOST = near, most
            try:
                core(x)[0].sum().backward()
            finally:
                triton_launch.NEAR, triton_graph.MOST = before

        return run

    contestants = {"launches": through(0, 0), "graph": through(0, 2**40)}
    if H <= 256:
        contestants["walk"] = through(2**40, 0)
    entry: Entry = {}
    for precision in ("tf32", "bf16"):
        with arithmetic(precision, device) as autocast, autocast:
            found = timed(contestants, repeats, device)
        entry |= {f"{precision}_{key}": value for key, value in found.items()}
        triton_graph.forget()
    return entry


def environment(env: str, num_envs: int, device: torch.device, seconds: float = 1.0) -> Entry:
    """Million steps a second of an environment in torch, with random actions and resets."""
    batch = make_torch_env(env, num_envs, seed=0, device=device)
    batch.reset()
    count = int(batch.task.action_space.n)
    actions = torch.randint(count, (16, num_envs), device=device)

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
