"""Make runs of any kind, and say how they ended."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rlgates.agents.ranks import Ranks
from rlgates.errors import check_choice
from rlgates.experiments.configs.base import RunConfig
from rlgates.experiments.configs.devices import DEVICES
from rlgates.experiments.configs.gym import GymConfig
from rlgates.experiments.configs.modules import import_here
from rlgates.experiments.configs.task import TaskConfig
from rlgates.experiments.runs.agent.runner import AgentRunner
from rlgates.experiments.runs.files import Damaged, Row, check_folder, read_table, write_table
from rlgates.experiments.runs.gym.runner import GymRunner
from rlgates.experiments.runs.horizon import check_horizon
from rlgates.experiments.runs.locks import locked
from rlgates.experiments.runs.network.runner import TaskRunner
from rlgates.experiments.runs.runner import AnyRunner
from rlgates.experiments.runs.runner import Config as Config
from rlgates.experiments.runs.runner import Job as Job
from rlgates.experiments.runs.runner import Stop as Stop
from rlgates.experiments.runs.stopping import InterruptedRun
from rlgates.registry import core_names

RUNNERS: dict[str, AnyRunner] = {"agent": AgentRunner(), "gym": GymRunner(), "task": TaskRunner()}
NOT_STARTED = "not started"


@dataclass(frozen=True)
class JobResult:
    """The result of a job, or the reason why it has none.

    Attributes:
        job: the job.
        result: an `AgentResult`, `GymResult` or `TaskResult`, or None.
        error: why the result is missing.
        interrupted: the run can be continued.
        cached: the run had been finished by an earlier call.
    """

    job: Job
    result: Any = None
    error: str = ""
    interrupted: bool = False
    cached: bool = False


def runner_for(config: RunConfig) -> AnyRunner:
    """The runner of a config."""
    return RUNNERS[config.kind]


def check_all(jobs: Sequence[Job], here: bool = True) -> list[JobResult]:
    """Check all runs before any work starts, and fetch their data.

    Args:
        jobs: the runs.
        here: whether they are made on this machine, which must then have their device.

    Returns:
        the results of those that are already finished and measured.

    Raises:
        ValueError: an invalid config, or a folder that holds a run with another config or cannot be
            written to.
    """
    configs = {id(job.config): job.config for job in jobs}.values()
    horizons = {id(job.config): job for job in jobs if job.horizon}.values()
    try:
        for config in configs:
            runner_for(config).check(config if here else _on_any_machine(config))
        for job in horizons:
            assert not isinstance(job.config, GymConfig)  # see `Arm`
            check_horizon(job.config, job.horizon)
        results = [(job, _finished(job)) for job in jobs]
        done = [(job, result) for job, result in results if result is not None and _measured(job)]
        missing = [job for job, result in results if result is None or not _measured(job)]
        for config in {job.config.folder: job.config for job in missing}.values():
            check_folder("folder", Path(config.folder))
        for config in {job.config.title: job.config for job in missing}.values():
            runner_for(config).prepare(config)
    except (TypeError, OSError, ImportError) as error:
        raise ValueError(str(error)) from error
    return [JobResult(job, result, cached=True) for job, result in done]


def _on_any_machine(config: Config) -> Config:
    """The config with settings that need no certain device.

    Raises:
        ValueError: an unknown device.
    """
    check_choice("device", config.device, DEVICES)
    if isinstance(config, TaskConfig) and config.amp == "fp16":
        config = replace(config, amp="bf16")
    return replace(config, device="cpu")


def _finished(job: Job) -> Any:
    """The result of a run; None for a damaged one, so that it fails alone."""
    try:
        return runner_for(job.config).finished(job)
    except Damaged:
        return None


def _measured(job: Job) -> bool:
    """Whether all extras of a finished run exist: it may have been killed before."""
    return all((job.folder.path / f"{extra}.csv").exists() for extra in job.extras)


def run_job(job: Job, stop: Stop = lambda: False, bar: bool | None = None) -> JobResult:
    """Make a run in this process, unless `stop` is true already, or look up its result.

    A failure of training is recorded in the manifest of the run. Where torch.distributed is
    initialized, all its processes make the run together and get the result, and rank 0 alone
    writes.

    Args:
        job: the run.
        stop: called after each update; if it returns true, the run is saved and stopped.
        bar: draw a progress bar; by default, on a terminal.
    """
    ranks = Ranks.world()
    if any(ranks.gather(stop())):
        return JobResult(job, error=NOT_STARTED, interrupted=True)
    runner = runner_for(job.config)
    try:
        if job.config.core not in core_names():
            for module in job.modules:
                import_here(module)
        if ranks.is_first and job.folder.is_locked:  # it may take hours
            path = job.folder.path
            print(f"another process is working in {path}: waiting for its end", file=sys.stderr)
        with locked(job.folder.path, stop) if ranks.is_first else nullcontext():
            finished = ranks.from_first(lambda: runner.finished(job))
            result = _train(runner, job, stop, bar) if finished is None else finished
            for name in job.extras if ranks.is_first else ():
                _measure(runner, job, result, name)
            return JobResult(job, result, cached=finished is not None)
    except InterruptedRun as reason:
        return JobResult(job, error=str(reason), interrupted=True)
    except Exception as error:
        return JobResult(job, error=f"{type(error).__name__}: {error}")


def _train(runner: AnyRunner, job: Job, stop: Stop, bar: bool | None) -> Any:
    try:
        return runner.train(job, stop, bar)
    except InterruptedRun:
        raise
    except Exception:
        if not Ranks.world().is_first:  # which writes the manifest, but does not know this
            traceback.print_exc()
            raise
        with suppress(OSError):  # a full disk may be the reason
            job.folder.end("failed", error=traceback.format_exc())
        raise


def _measure(runner: AnyRunner, job: Job, result: Any, extra: str) -> None:
    """Write `<extra>.csv` into the folder of a finished run, unless it exists."""
    path = job.folder.path / f"{extra}.csv"
    if path.exists():
        return
    try:
        rows = getattr(runner, extra)(job, result)
    except Exception:
        traceback.print_exc()  # the manifest is that of the run, which has not failed
        raise
    write_table(path, rows, list(rows[0]) if rows else ["nothing"])


def extra_rows(job: Job, extra: str) -> list[Row]:
    """What was measured besides the result of a finished run."""
    return read_table(job.folder.path / f"{extra}.csv")


def describe(result: JobResult) -> list[str]:
    """How a job ended, in a line, and further lines of detail."""
    runner, job = runner_for(result.job.config), result.job
    variant = f"{job.variant}: " if job.variant else ""
    if result.result is None:
        how = "stopped" if result.interrupted else "failed"
        return [f"{variant}{runner.label(job)} {how}: {result.error}"]
    first, *details = runner.describe(job, result.result)
    return [variant + first + " (finished before)" * result.cached, *details]


def print_not_started(results: Sequence[JobResult], count: int) -> None:
    """Print how many of so many runs were not started after a stop, if any."""
    waiting = sum(result.error == NOT_STARTED for result in results)
    if waiting:
        print(f"{waiting} of {count} runs were not started", flush=True)
