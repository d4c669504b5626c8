"""Check the cores on a GPU; measure their speed, that of agents and environments, and learning.

One JSON file holds the device, the versions, each check with its error, each time with its range,
and all failures. A failure does not stop the benchmark.
"""

from __future__ import annotations

import platform
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import torch

import rlgates
from rlgates.agents.compilation import CompileMode
from rlgates.errors import check_choice, check_number, check_size
from rlgates.experiments.bench.children import (
    Entry,
    Measurement,
    Outcome,
    Workers,
    run_here,
)
from rlgates.experiments.bench.configs import GPU_PARTS, GpuBenchConfig
from rlgates.experiments.bench.gpu_agents import Training, end_to_end, environment
from rlgates.experiments.bench.gpu_cores import GATED, compare, correct, first_run, launch_modes
from rlgates.experiments.bench.gpu_learning import PRECISION, SEEDS, Lesson, learning
from rlgates.experiments.configs.base import MAX_ENVS
from rlgates.experiments.report.outputs import OUTPUTS, redraw_output
from rlgates.experiments.runs.files import write_json
from rlgates.experiments.runs.locks import locked
from rlgates.experiments.runs.provenance import PACKAGES, git_state, now
from rlgates.experiments.sweep.workers import available_cpus
from rlgates.registry import check_options, list_cores

MAIN = ("ur_lstm", "lstm")  # cores to time at all shapes that count most, and to train by default
OTHERS = ("om_lstm", "gru", "ur_janet", "mingru", "gilr", "minlstm", "lru")
QUICK = ("lstm", "ur_lstm", "om_lstm", "mingru")  # cores to check
SHAPES = ((128, 128, 256), (256, 2048, 128), (128, 4096, 256))  # T, B and H
PRECISIONS = ("float32", "tf32", "bf16")
ENVIRONMENTS = (
    "rlgates/PassiveMatch-v0",
    "rlgates/ActiveMatch-v0",
    "rlgates/PassiveTMaze-v0",
    "rlgates/KeyToDoor-v0",
    "rlgates/RepeatPrevious-v0",
    "rlgates/StatelessCartPole-v0",
)
# Share of the total time after which no measurement of a part begins.
UNTIL = {"correct": 0.3, "speed": 0.6, "ways": 0.65, "end_to_end": 0.9}  # of the other parts 1
LIMIT = 180.0  # seconds after which a measurement is stopped; compilation of an agent takes minutes
LATE = 60.0  # seconds after which an agent is stopped that should have ended its training by itself
MAX_WORKERS = 16
WARM_UP_STEPS = 16  # T of the runs that compile kernels: like the others a multiple of 16

Shape = tuple[int, int, int]
Case = tuple[str, str, Shape]  # core, precision; T, B and H


class Report:
    """The results so far, written after each measurement.

    Args:
        path: of the JSON file.
        about: facts about the whole run.
    """

    def __init__(self, path: Path, **about: Any) -> None:
        self.path = path
        self.content: Entry = {"about": about, "failures": [], "left_out": []}

    def add(self, outcome: Outcome) -> None:
        """Write the numbers of a measurement, or its failure, and print them."""
        part, of, _ = outcome.measurement
        entries = self.content.setdefault(part, [])
        if outcome.numbers is not None:
            entries.append({**of, **outcome.numbers})
            words = (
                f"{key}={_short(value)}"
                for key, value in entries[-1].items()
                if not isinstance(value, dict)  # a curve
            )
            print(part, *words, flush=True)
        elif outcome.error is not None:
            self.content["failures"].append({"part": part, **of, "error": outcome.error})
            print(part, of, f"FAILED: {outcome.error.splitlines()[-1]}", flush=True)
        else:
            self.content["left_out"].append({"part": part, **of})
        self.write()

    def write(self) -> None:
        with locked(self.path.parent):
            write_json(self.path, self.content)


def _short(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_short, value))}]"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


class Sizes(NamedTuple):
    """The sizes of the full, the quick and the CPU benchmark.

    Attributes:
        check: T, B, I and H of the checks.
        shapes: T, B and H of the timings that count most.
        steps, hidden, batches: T, and the H and B, of the others.
        repeats: timed runs of each contestant.
        training: sizes of the agent.
        compiles: the options `compile` of the agent.
        num_envs, num_ids: batch size of the environments to time, and how many these are.
        lesson: what agents learn.
    """

    check: tuple[int, int, int, int]
    shapes: tuple[Shape, ...]
    steps: int
    hidden: tuple[int, ...]
    batches: tuple[int, ...]
    repeats: int
    training: Training
    compiles: tuple[bool | str, ...]
    num_envs: int
    num_ids: int
    lesson: Lesson

    @classmethod
    def of(cls, config: GpuBenchConfig) -> Sizes:
        if config.device == "cpu":
            training = Training(num_envs=4, steps=16, units=8, iterations=2)
            lesson = Lesson(num_envs=4, distractor_steps=3, units=8, total_steps=200)
            return cls(
                (3, 2, 3, 4), ((4, 2, 4),), 4, (4,), (2,), 1, training, (False,), 4, 1, lesson
            )
        lesson = Lesson(config.num_envs, config.distractor_steps)
        if config.quick:
            training = Training(num_envs=1024, steps=64, units=256, iterations=5)
            small = (7, 5, 9, 17)
            return cls(
                small, SHAPES[:1], 128, (64,), (1024,), 5, training, (False,), 65_536, 2, lesson
            )
        hidden, batches = (64, 128, 256, 512, 1024), (16, 128, 1024, 4096)
        training = Training(num_envs=4096, steps=128, units=256, iterations=5)
        compiles = (False, True, "reduce-overhead")
        check = (19, 7, 9, 33)
        return cls(check, SHAPES, 128, hidden, batches, 7, training, compiles, 65_536, 6, lesson)

    def timed(self) -> Iterator[Case]:
        """Yield core, precision and (T, B, H), the most informative first; none twice."""
        for shape in self.shapes:
            for core in MAIN:
                for precision in PRECISIONS:
                    yield core, precision, shape
        for precision in ("tf32", "bf16"):
            for h in self.hidden:
                for b in self.batches:
                    if (self.steps, b, h) not in self.shapes:
                        yield "ur_lstm", precision, (self.steps, b, h)
        for core in OTHERS:
            yield core, "tf32", self.shapes[0]


def bench_gpu(config: GpuBenchConfig) -> Path:
    """Make all checks and measurements, print a line for each, and write `gpu_bench.json`.

    Raises:
        ValueError: an unknown core, part or device, a number out of range, or no GPU, and the
            device is not "cpu".
    """
    check_choice("device", config.device, ("cuda", "cpu"))
    for name in config.cores:
        check_options(name, {})
    for part in config.parts:
        check_choice("part", part, GPU_PARTS)
    check_size("num_envs", config.num_envs, maximum=MAX_ENVS)
    check_size("jobs", config.jobs)
    if config.minutes is not None:
        check_number("minutes", config.minutes, above=0)
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("torch finds no GPU here; --device cpu tests the benchmark itself.")
    sizes = Sizes.of(config)
    sizes.lesson.config(MAIN[0], torch.device(config.device)).check()
    (path,) = OUTPUTS["gpu_bench"].source_paths(Path(config.results))
    seconds = 60 * (config.minutes or (1.0 if config.quick else 10.0))
    report = Report(path, **_about(config), shapes=sizes.shapes)
    begin = time.monotonic()
    with Workers() as workers:
        for part in (part for part in GPU_PARTS if part in config.parts):
            until = begin + UNTIL.get(part, 1.0) * seconds
            for stage in stages(part, config, sizes, until):
                for outcome in _outcomes(stage, config.device, workers, until):
                    report.add(outcome)
            report.content["about"]["end"] = now()
            report.write()
            redraw_output("gpu_bench", path.parent)
    return path


def _outcomes(stage: Stage, device: str, workers: Workers, until: float) -> Iterator[Outcome]:
    if device == "cpu":
        yield from run_here(stage.groups, until)
        return
    with ExitStack() as stack:
        if stage.own:
            workers = stack.enter_context(Workers())
        yield from workers.run(stage.groups, stage.workers, until, stage.limit)


class Stage(NamedTuple):
    """Measurements that are made together.

    Attributes:
        groups: those of a group in a row, in one process.
        workers: groups at a time.
        own: whether no process has measured anything before.
        limit: seconds after which a measurement is stopped.
    """

    groups: Sequence[Sequence[Measurement]]
    workers: int = 1
    own: bool = False
    limit: float = LIMIT


def stages(part: str, config: GpuBenchConfig, sizes: Sizes, until: float) -> Iterator[Stage]:
    """Yield what a part consists of.

    Args:
        part: one of `GPU_PARTS`.
        config: of the benchmark.
        sizes: of the measurements.
        until: value of `time.monotonic` at which the part ends.
    """
    device, every = torch.device(config.device), min(available_cpus(), MAX_WORKERS)
    if part == "correct":
        cores = config.cores or (QUICK if config.quick else list_cores())
        yield Stage([_checks(core, sizes, device) for core in cores], every)
    elif part == "speed":
        cases = list(sizes.timed())
        if config.device == "cuda":
            short = [(*case[:2], (WARM_UP_STEPS, *case[2][1:])) for case in cases]
            yield Stage(_compiled(_timings(short, 1, device)), every)
        yield Stage([list(_timings(cases, sizes.repeats, device))])
    elif part == "ways":
        if config.device == "cuda":
            shapes = [(WARM_UP_STEPS, *shape[1:]) for shape in sizes.shapes]
            yield Stage(_compiled(_ways(shapes, 1, device)), every)
        yield Stage([list(_ways(sizes.shapes, sizes.repeats, device))])
    elif part == "end_to_end":
        agents = [[agent] for agent in _agents(sizes, device)]
        yield Stage(agents, len(agents), own=True)
    elif part == "learning":
        yield from _lessons(config, sizes.lesson, device, until)
    else:
        yield Stage([_environments(sizes, device)])


def _checks(core: str, sizes: Sizes, device: torch.device) -> list[Measurement]:
    return [
        Measurement(
            "correct",
            {"core": core, "precision": precision},
            partial(correct, core, precision, device, sizes.check),
        )
        for precision in (PRECISIONS if core in GATED else PRECISIONS[:1])
    ]


def _timings(cases: Iterable[Case], repeats: int, device: torch.device) -> Iterator[Measurement]:
    for core, precision, (t, b, h) in cases:
        for resets in (False, True):
            of = {"core": core, "precision": precision, "T": t, "B": b, "H": h, "resets": resets}
            run = partial(compare, core, precision, t, b, h, resets, device, repeats)
            yield Measurement("speed", of, run)


def _ways(shapes: Iterable[Shape], repeats: int, device: torch.device) -> Iterator[Measurement]:
    for t, b, h in shapes:
        for precision in PRECISIONS[1:]:
            of = {"precision": precision, "T": t, "B": b, "H": h}
            run = partial(launch_modes, precision, t, b, h, device, repeats)
            yield Measurement("ways", of, run)


def _compiled(short: Iterable[Measurement]) -> list[list[Measurement]]:
    """Turn timings of short sequences into first runs, which compile the kernels for all others.

    Those that differ in the batch size alone are in a group: they share kernels.
    """
    groups: dict[str, list[Measurement]] = {}
    for part, of, measure in short:
        kernel = str({name: value for name, value in of.items() if name != "B"})
        first = Measurement("compiled", {"for": part, **of}, partial(first_run, measure))
        groups.setdefault(kernel, []).append(first)
    return list(groups.values())


def _agents(sizes: Sizes, device: torch.device) -> Iterator[Measurement]:
    cases: list[tuple[bool | str, str, Training]] = [
        (compile, precision, sizes.training)
        for compile in sizes.compiles
        for precision in PRECISIONS[1:]
    ]
    # Fewer steps one after the other, of more sequences.
    cases.append((sizes.compiles[-1], "bf16", sizes.training._replace(minibatches=1)))
    for compile, precision, training in cases:
        of = {"compile": compile, "precision": precision, **training._asdict()}
        run = partial(end_to_end, compile, precision, device, training)
        yield Measurement("end_to_end", of, run)


def _environments(sizes: Sizes, device: torch.device) -> list[Measurement]:
    number = sizes.num_envs
    return [
        Measurement(
            "environments",
            {"env": env, "precision": "float32", "num_envs": number},
            partial(environment, env, number, device),
        )
        for env in ENVIRONMENTS[: sizes.num_ids]
    ]


def _lessons(
    config: GpuBenchConfig, lesson: Lesson, device: torch.device, until: float
) -> Iterator[Stage]:
    """Yield trainings, as many as there are jobs in a stage: all of them begin at once.

    A stage that begins has an equal share of the time that is left, and its trainings end with it.
    """
    cases = [(core, seed) for core in config.cores or MAIN for seed in SEEDS]
    parts = [cases[first : first + config.jobs] for first in range(0, len(cases), config.jobs)]
    compile: bool | CompileMode = "reduce-overhead" if config.device == "cuda" else False
    about = {
        "precision": PRECISION,
        "compile": compile,
        "distractor_steps": lesson.distractor_steps,
        "num_envs": lesson.num_envs,
        "jobs": config.jobs,
    }
    for count, part in zip(range(len(parts), 0, -1), parts, strict=True):
        left = (until - time.monotonic()) / count
        options = (lesson, compile, device, config.folder, time.monotonic() + left)
        groups = [
            [
                Measurement(
                    "learning",
                    {"core": core, "seed": seed, **about},
                    partial(learning, core, seed, *options),
                )
            ]
            for core, seed in part
        ]
        yield Stage(groups, len(groups), own=True, limit=left + LATE)


def _about(config: GpuBenchConfig) -> Entry:
    about: Entry = {
        "start": now(),
        "device": config.device,
        "quick": config.quick,
        "parts": config.parts,
        "versions": _versions(),
        "cuda": torch.version.cuda,
        "git": git_state(),
    }
    if config.device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        about["gpu"] = {
            "name": properties.name,
            "capability": f"{properties.major}.{properties.minor}",
            "memory_gib": properties.total_memory / 2**30,
            "processors": properties.multi_processor_count,
            "driver": _driver(),
        }
        about["versions"]["cudnn"] = torch.backends.cudnn.version()
    return about


def _versions() -> dict[str, Any]:
    """Python and those of the packages that are installed."""
    found: dict[str, Any] = {"python": platform.python_version(), "rlgates": rlgates.__version__}
    for name in (*PACKAGES, "triton"):
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def _driver() -> str | None:
    """The version of the driver, if there is a tool that knows it."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        run = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return run.stdout.splitlines()[0].strip()
