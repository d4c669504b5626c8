"""Runs of `rlgates task`: one after the other or side by side, and what is said about them."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

from rlgates.errors import check_size
from rlgates.experiments.launch import StopRequest
from rlgates.experiments.supervise import Run
from rlgates.experiments.supervised_check import check, run_folder, task_title
from rlgates.experiments.supervised_configs import SupervisedConfig
from rlgates.experiments.supervised_progress import Progress
from rlgates.experiments.supervised_saved import Learned
from rlgates.experiments.text import time_text
from rlgates.tasks import TASKS, Task


@dataclass(frozen=True)
class TaskOutcome:
    """How a run ended: with a result, or with the reason why there is none."""

    config: SupervisedConfig
    seed: int
    result: Learned | None = None
    error: str = ""
    interrupted: bool = False


def run_tasks(config: SupervisedConfig, seeds: Sequence[int], jobs: int = 1) -> list[TaskOutcome]:
    """A run for each seed, `jobs` at a time, and a few lines about each that ends.

    Runs that were finished before are looked up; those that were stopped go on. A run that fails
    does not stop the others. After Ctrl-C or SIGTERM the present runs are saved, and the others
    are not begun.

    Raises:
        ValueError: before any work starts, if the config makes no sense or there are no data.
    """
    check_size("jobs", jobs)
    if not seeds or len(set(seeds)) < len(seeds):
        raise ValueError(f"seeds must be one or more different numbers, got {tuple(seeds)}.")
    for seed in seeds:
        check_size("seed", seed, minimum=0)
    try:
        task = check(config)
        task.prepare()
    except (TypeError, OSError, ImportError) as error:
        raise ValueError(str(error)) from error
    outcomes = []
    with StopRequest().listening() as stop:
        for outcome in made([(config, seed) for seed in seeds], jobs, stop):
            print("\n".join(told(outcome, task)), flush=True)
            outcomes.append(outcome)
    return outcomes


def made(
    runs: Sequence[tuple[SupervisedConfig, int]], jobs: int, stop: StopRequest
) -> Iterator[TaskOutcome]:
    """How each run of a config and a seed ended, `jobs` at a time, as they end."""
    jobs = min(jobs, len(runs))
    if jobs <= 1:
        for config, seed in runs:
            yield _one(config, seed, stop)
        return
    context = multiprocessing.get_context("spawn")
    event = context.Event()
    with ProcessPoolExecutor(jobs, context, _begin, (event,)) as pool:
        left = {pool.submit(_child, *run): run for run in runs}
        while left:
            done, _ = wait(left, timeout=0.5, return_when="FIRST_COMPLETED")
            if stop():
                event.set()
            for future in done:
                yield _fetched(*left.pop(future), future)


def _fetched(config: SupervisedConfig, seed: int, future: Future[TaskOutcome]) -> TaskOutcome:
    if (error := future.exception()) is not None:  # the process is gone
        return TaskOutcome(config, seed, error=f"{type(error).__name__}: {error}")
    return future.result()


def _one(
    config: SupervisedConfig, seed: int, stop: Callable[[], bool], bar: bool | None = None
) -> TaskOutcome:
    """Make a run in this process, if it is not too late."""
    if stop():
        return TaskOutcome(config, seed, error="not begun", interrupted=True)
    label = f"{task_title(config)}: {config.core} seed {seed}"
    try:
        run = Run(config, seed)
        result = run.go(stop, Progress(label, config.updates, config.epochs, bar))
    except Exception as error:
        return TaskOutcome(config, seed, error=f"{type(error).__name__}: {error}")
    if result is None:
        saved = f"at {run.update:,} updates, saved in {run.folder}"
        return TaskOutcome(config, seed, error=saved, interrupted=True)
    return TaskOutcome(config, seed, result)


_event: Any = None  # of a process of its own: set when all are to stop


def _begin(event: Any) -> None:
    """A process begins: Ctrl-C is for the first process, which sets the event."""
    global _event
    _event = event
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _child(config: SupervisedConfig, seed: int) -> TaskOutcome:
    parent = multiprocessing.parent_process()

    def stop() -> bool:
        return _event.is_set() or (parent is not None and not parent.is_alive())

    return _one(config, seed, stop, bar=False)


def told(outcome: TaskOutcome, task: Task) -> list[str]:
    """What a run reached beside what is known of its task, or why it has no result."""
    config, seed, result = outcome.config, outcome.seed, outcome.result
    label = f"{task_title(config)}: {config.core} seed {seed}"
    if result is None:
        how = "stopped" if outcome.interrupted else "failed"
        return [f"{label} {how}: {outcome.error}"]
    if result.test:
        figures = ", ".join(figures_text(result.test, task.metric))
        some = "" if config.eval_batches is None else f"{config.eval_batches} batches of "
        best = f"with the weights of update {result.best_update:,}, the best on valid"
        lines = [f"{label}: {figures} on {some}test, {best}"]
    else:
        lines = [f"{label}: no figure that is a number"]
    if task.baseline is not None:
        lines[0] += f"; loss without memory {task.baseline:.4f}"
    if result.diverged_at is not None:
        lines[0] += f"; diverged at update {result.diverged_at:,}"
    lines[0] += f"; {result.losses[-1][0]:,} updates, {time_text(result.seconds)}"
    lines += [
        f"  published: {task.metric} {row.value:g} of {row.core} on {row.split} ({row.source})"
        for row in task.published
    ]
    return [*lines, f"  -> {run_folder(config, seed)}"]


def figures_text(figures: Mapping[str, float], metric: str) -> list[str]:
    """Figures as people read them, the metric that runs are judged by first."""
    names = sorted(figures, key=lambda name: name != metric)
    return [f"{name} {figures[name]:.4f}" for name in names]


def listed() -> list[str]:
    """A line for each task: its name, its settings, its metric and what it is."""
    lines = []
    for name, task in TASKS.items():
        words = (task.__doc__ or "").strip().partition("\n")[0]
        settings = " ".join(task.settings) or "-"
        lines.append(f"{name:<18} {settings:<24} {task.metric:<12} {words}")
    return lines
