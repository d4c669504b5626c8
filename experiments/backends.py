"""Where the runs of a sweep are made: here, by SLURM through submitit, or on a Ray cluster."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
import uuid
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlgates.errors import check_choice, check_size
from rlgates.experiments.jobs import NOT_BEGUN, Job, Outcome, Stop, make
from rlgates.experiments.sweep_config import BackendName
from rlgates.experiments.workers import free_first, side_by_side

POLL = 0.5  # seconds
TIMEOUT = 240  # minutes of a job of SLURM
REQUEUED = 1_000_000  # times at most: each time the run has gone on from its checkpoint


@dataclass(frozen=True)
class Backend:
    """Where runs are made.

    Attributes:
        name: "local": in processes of this machine; "submitit": by SLURM where there is one, else
            in processes that submitit starts here; "ray": on a Ray cluster, or one that is
            started here.
        jobs: runs at a time.
        options: of submitit's executor (`timeout_min`, `slurm_partition`, ..., and `cluster`),
            or of `ray.init` (`address`, ...).
        folder: for what the backend writes, which all machines see.
    """

    name: BackendName = "local"
    jobs: int = 1
    options: Mapping[str, Any] | None = None
    folder: Path = Path("runs")

    def __post_init__(self) -> None:
        check_choice("backend", self.name, ("local", "submitit", "ray"))
        check_size("jobs", self.jobs)
        if self.options and self.name == "local":
            raise ValueError(f"backend 'local' has no options, got {', '.join(self.options)}.")

    @property
    def here(self) -> bool:
        """Whether runs are made on this machine, and share its processors."""
        options = self.options or {}
        if self.name == "submitit":
            found = "slurm" if shutil.which("srun") else "local"
            return str(options.get("cluster", found)) != "slurm"
        return self.name == "local" or not options.get("address")

    def ended(self, jobs: Sequence[Job], stop: Stop) -> Generator[Outcome]:
        """How each run ended, as they end; after `stop` those under way are saved.

        Raises:
            ValueError: the backend is not there, or has no such option.
        """
        if self.name == "submitit":
            return _elsewhere(jobs, stop, self, _Submitit(self, jobs))
        if self.name == "ray":
            return _elsewhere(jobs, stop, self, _Ray(self, jobs))
        return side_by_side(jobs, stop, self.jobs)


@dataclass(frozen=True)
class Remote:
    """A run that another process makes, perhaps on another machine with the same files.

    Attributes:
        job: the run.
        cwd: folder that its own is relative to.
        stopped: file whose being there asks all runs to stop.
    """

    job: Job
    cwd: str
    stopped: str

    def __call__(self) -> Outcome:
        """Make it."""
        os.chdir(self.cwd)
        looked, there = 0.0, False

        def stop() -> bool:
            nonlocal looked, there
            if not there and time.monotonic() - looked > POLL:
                looked, there = time.monotonic(), os.path.exists(self.stopped)
            return there

        return make(self.job, stop, bar=False)

    def checkpoint(self) -> Any:
        """What submitit is to put back into the queue when the time is up: the run goes on."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


class _Submitit:
    """One job of the cluster for each run, which goes back into the queue when its time is up."""

    def __init__(self, backend: Backend, jobs: Sequence[Job]) -> None:
        try:
            import submitit
        except ImportError as error:
            raise ValueError("backend 'submitit' needs it: pip install submitit") from error
        usual = {"timeout_min": TIMEOUT, "cpus_per_task": _threads(jobs)}
        options = usual | dict(backend.options or {})
        cluster = options.pop("cluster", None)
        try:
            self.executor = submitit.AutoExecutor(
                backend.folder / "submitit", cluster=cluster, slurm_max_num_timeout=REQUEUED
            )
            self.executor.update_parameters(**options)
        except (ValueError, TypeError, NameError, RuntimeError) as error:
            raise ValueError(f"submitit: {' '.join(str(error).split())}") from error

    def submit(self, remote: Remote) -> Any:
        if threading.current_thread() is not threading.main_thread():
            return self.executor.submit(remote)
        # What is started here leaves Ctrl-C to the sweep, which asks the runs to stop.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            return self.executor.submit(remote)
        finally:
            signal.signal(signal.SIGINT, before)

    def done(self, handle: Any) -> bool:
        return bool(handle.done())

    def outcome(self, handle: Any) -> Outcome:
        outcome: Outcome = handle.result()
        return outcome

    def close(self) -> None:
        """Nothing stays open."""


class _Ray:
    """One task of the cluster for each run."""

    def __init__(self, backend: Backend, jobs: Sequence[Job]) -> None:
        try:
            import ray
        except ImportError as error:
            raise ValueError("backend 'ray' needs it: pip install ray") from error
        self.ray = ray
        options = {"include_dashboard": False, "log_to_driver": False, "logging_level": "warning"}
        threads = _threads(jobs)
        if backend.here:
            options |= {"num_cpus": backend.jobs * threads, "_node_ip_address": "127.0.0.1"}
        try:
            ray.init(**{**options, **(backend.options or {})})
        except (ValueError, TypeError, RuntimeError, ConnectionError) as error:
            raise ValueError(f"ray: {error}") from error
        gpus = float(any(job.config.device == "cuda" for job in jobs))
        self.make = ray.remote(num_cpus=threads, num_gpus=gpus, max_retries=0)(_call)

    def submit(self, remote: Remote) -> Any:
        return self.make.remote(remote)

    def done(self, handle: Any) -> bool:
        return bool(self.ray.wait([handle], timeout=0)[0])

    def outcome(self, handle: Any) -> Outcome:
        outcome: Outcome = self.ray.get(handle)
        return outcome

    def close(self) -> None:
        self.ray.shutdown()


def _threads(jobs: Sequence[Job]) -> int:
    return max((job.config.threads for job in jobs), default=1)


def _call(remote: Callable[[], Outcome]) -> Outcome:
    return remote()


def _elsewhere(
    jobs: Sequence[Job], stop: Stop, backend: Backend, cluster: _Submitit | _Ray
) -> Generator[Outcome]:
    """As `side_by_side`, by submitit or Ray."""
    folder = backend.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    stopped = folder / f"stop-{uuid.uuid4().hex}"
    waiting, running = free_first(jobs), list[tuple[Job, Any]]()
    try:
        while True:
            while len(running) < backend.jobs and not stop():
                job = next(waiting, None)
                if job is None:
                    break
                running.append((job, cluster.submit(Remote(job, os.getcwd(), str(stopped)))))
            if not running:
                break
            if stop():
                stopped.touch()
            ended = [pair for pair in running if cluster.done(pair[1])]
            running = [pair for pair in running if pair not in ended]
            for job, handle in ended:
                try:
                    yield cluster.outcome(handle)
                except Exception as error:  # the process or its machine is gone
                    yield Outcome(job, error=f"{type(error).__name__}: {error}")
            if not ended:
                time.sleep(POLL)
        for job in waiting:
            yield Outcome(job, error=NOT_BEGUN, interrupted=True)
    finally:
        try:
            if running:  # whoever asked for them has failed: they are saved before it ends
                stopped.touch()
            while not all(cluster.done(handle) for _, handle in running):
                time.sleep(POLL)
        finally:
            cluster.close()
            with suppress(OSError):
                stopped.unlink(missing_ok=True)
