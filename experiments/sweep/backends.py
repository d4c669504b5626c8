"""Backends that make the runs of a sweep: this machine, submitit on SLURM, or Ray."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from rlgates.errors import check_choice, check_size
from rlgates.experiments.runs.jobs import NOT_STARTED, Job, JobResult, Stop, run_job
from rlgates.experiments.runs.stopping import ignoring_interrupts
from rlgates.experiments.sweep.config import BackendName
from rlgates.experiments.sweep.workers import run_parallel, unlocked_first

POLL_SECONDS = 0.5
SACCT_SECONDS = 5.0  # between forced queries of SLURM's accounting, once a sweep is stopping
SLURM_TIMEOUT_MINUTES = 240
MAX_REQUEUES = 1_000_000  # after a timeout; the run resumes from its checkpoint each time


@dataclass(frozen=True)
class Backend:
    """Where runs are made.

    Attributes:
        name: "local": processes on this machine; "submitit": a SLURM job array, or local
            processes where there is no SLURM; "ray": a Ray cluster, by default a new one on this
            machine.
        jobs: runs at a time.
        options: of submitit's executor (`timeout_min`, `slurm_partition`, ..., and `cluster`),
            or of `ray.init` (`address`, ...).
        folder: for the files of the backend; on a cluster, all machines must share it.
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
    def uses_this_machine(self) -> bool:
        """Whether the runs share the processors of this machine."""
        options = self.options or {}
        if self.name == "submitit":
            default = "slurm" if shutil.which("srun") else "local"
            return str(options.get("cluster", default)) != "slurm"
        return self.name == "local" or not options.get("address")

    def run(self, jobs: Sequence[Job], stop: Stop) -> Generator[JobResult]:
        """Make the runs and yield their results as they end; after `stop` active runs are saved.

        Raises:
            ValueError: the backend is not installed or not reachable, lacks such an option, or
                refuses the runs.
        """
        if self.name == "local":
            return run_parallel(jobs, stop, self.jobs)
        cluster = {"submitit": _Submitit, "ray": _Ray}[self.name](self, jobs)
        return _run_on_cluster(jobs, stop, self, cluster)


@dataclass(frozen=True)
class RemoteJob:
    """A run for another process, perhaps on another machine that shares the files.

    Attributes:
        job: the run.
        cwd: working directory, which the run folder may be relative to.
        stop_file: the run is saved and stopped once this file exists.
    """

    job: Job
    cwd: str
    stop_file: str

    def __call__(self) -> JobResult:
        """Make the run."""
        os.chdir(self.cwd)
        last_check, stopped = 0.0, False

        def stop() -> bool:
            nonlocal last_check, stopped
            if not stopped and time.monotonic() - last_check > POLL_SECONDS:
                last_check, stopped = time.monotonic(), os.path.exists(self.stop_file)
            return stopped

        return run_job(self.job, stop, bar=False)

    def checkpoint(self) -> Any:
        """For submitit, after a timeout or preemption: requeue the same job, which resumes."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


class _Cluster(ABC):
    """What submits runs to another program.

    Attributes:
        slots: runs that may be submitted at a time.
    """

    slots: int

    @abstractmethod
    def submit(self, jobs: Sequence[RemoteJob]) -> Sequence[Any]:
        """Submit the runs; one handle for each."""

    @abstractmethod
    def done(self, handle: Any) -> bool:
        """Whether a run has ended."""

    @abstractmethod
    def result(self, handle: Any) -> JobResult | None:
        """The result of a run; None if it was cancelled before it started.

        Raises:
            Exception: its process or machine is gone.
        """

    @abstractmethod
    def cancel_pending(self, handles: Sequence[Any]) -> None:
        """Cancel the runs that have not started."""

    @abstractmethod
    def close(self) -> None:
        """Release the cluster."""


class _Submitit(_Cluster):
    """On SLURM all runs form one job array, which is requeued task by task after a timeout.

    Without SLURM submitit starts local processes, no more than `backend.jobs` at a time.
    """

    def __init__(self, backend: Backend, jobs: Sequence[Job]) -> None:
        try:
            import submitit
        except ImportError as error:
            raise ValueError("backend 'submitit' needs it: pip install submitit") from error
        options = {
            "timeout_min": SLURM_TIMEOUT_MINUTES,
            "cpus_per_task": _max_threads(jobs),
            "slurm_array_parallelism": backend.jobs,
            **(backend.options or {}),
        }
        cluster = options.pop("cluster", None)
        try:
            self.executor = submitit.AutoExecutor(
                backend.folder / "submitit", cluster=cluster, slurm_max_num_timeout=MAX_REQUEUES
            )
            self.executor.update_parameters(**options)
        except (ValueError, TypeError, NameError, RuntimeError) as error:
            raise _submitit_error(error) from error
        self.on_slurm = self.executor.cluster == "slurm"
        self.slots = len(jobs) if self.on_slurm else backend.jobs
        self._stopping = False
        self._last_sacct = 0.0

    def submit(self, jobs: Sequence[RemoteJob]) -> Sequence[Any]:
        if self.on_slurm:
            try:
                with self.executor.batch():
                    handles = [self.executor.submit(job) for job in jobs]
            except RuntimeError as error:  # as of a partition that does not exist
                raise _submitit_error(error) from error
            return handles
        with ignoring_interrupts():
            return [self.executor.submit(job) for job in jobs]

    def done(self, handle: Any) -> bool:
        # submitit queries SLURM every ten minutes; a cancelled task has no other sign of its end.
        # One query updates all tasks.
        force = self._stopping and time.monotonic() - self._last_sacct > SACCT_SECONDS
        if force:
            self._last_sacct = time.monotonic()
        return bool(handle.done(force_check=force))

    def result(self, handle: Any) -> JobResult | None:
        if self._stopping and not handle.paths.result_pickle.exists():
            state = handle.watcher.get_state(handle.job_id, mode="cache")
            if state.startswith("CANCELLED"):
                return None
        job_result: JobResult = handle.result()
        return job_result

    def cancel_pending(self, handles: Sequence[Any]) -> None:
        if self.on_slurm:
            self._stopping = True
            arrays = dict.fromkeys(handle.job_id.partition("_")[0] for handle in handles)
            subprocess.run(["scancel", "--state=PENDING", *arrays], check=False)

    def close(self) -> None:
        """No resource is held."""


def _submitit_error(error: Exception) -> ValueError:
    return ValueError(f"submitit: {' '.join(str(error).split())}")


class _Ray(_Cluster):
    """One Ray task for each run."""

    def __init__(self, backend: Backend, jobs: Sequence[Job]) -> None:
        try:
            import ray
        except ImportError as error:
            raise ValueError("backend 'ray' needs it: pip install ray") from error
        self.ray = ray
        options = {"include_dashboard": False, "log_to_driver": False, "logging_level": "warning"}
        threads = _max_threads(jobs)
        if backend.uses_this_machine:
            options |= {"num_cpus": backend.jobs * threads, "_node_ip_address": "127.0.0.1"}
        try:
            ray.init(**{**options, **(backend.options or {})})
        except (ValueError, TypeError, RuntimeError, ConnectionError) as error:
            raise ValueError(f"ray: {error}") from error
        gpus = float(any(job.config.device == "cuda" for job in jobs))
        self.task = ray.remote(num_cpus=threads, num_gpus=gpus, max_retries=0)(_call)
        self.slots = backend.jobs

    def submit(self, jobs: Sequence[RemoteJob]) -> Sequence[Any]:
        return [self.task.remote(job) for job in jobs]

    def done(self, handle: Any) -> bool:
        return bool(self.ray.wait([handle], timeout=0)[0])

    def result(self, handle: Any) -> JobResult | None:
        job_result: JobResult = self.ray.get(handle)
        return job_result

    def cancel_pending(self, handles: Sequence[Any]) -> None:
        """No more than `slots` runs are submitted: all of them start at once."""

    def close(self) -> None:
        self.ray.shutdown()


def _max_threads(jobs: Sequence[Job]) -> int:
    return max((job.config.threads for job in jobs), default=1)


def _call(job: Callable[[], JobResult]) -> JobResult:
    return job()


def _run_on_cluster(
    jobs: Sequence[Job], stop: Stop, backend: Backend, cluster: _Cluster
) -> Generator[JobResult]:
    """As `run_parallel`, through a cluster."""
    folder = backend.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    stop_file = folder / f"stop-{uuid.uuid4().hex}"
    queue, running = unlocked_first(jobs), list[tuple[Job, Any]]()

    def request_stop() -> None:
        if stop_file.exists():
            return
        try:  # before others end, in whose places they would start
            cluster.cancel_pending([handle for _, handle in running])
        finally:
            stop_file.touch()

    try:
        while True:
            if not stop() and (batch := list(islice(queue, cluster.slots - len(running)))):
                remote = [RemoteJob(job, os.getcwd(), str(stop_file)) for job in batch]
                running += zip(batch, cluster.submit(remote), strict=True)
            if not running:
                break
            if stop():
                request_stop()
            ended = [pair for pair in running if cluster.done(pair[1])]
            running = [pair for pair in running if pair not in ended]
            for job, handle in ended:
                try:
                    job_result = cluster.result(handle)
                except Exception as error:  # the process or its machine is gone
                    job_result = JobResult(job, error=f"{type(error).__name__}: {error}")
                yield job_result or JobResult(job, error=NOT_STARTED, interrupted=True)
            if not ended:
                time.sleep(POLL_SECONDS)
        for job in queue:
            yield JobResult(job, error=NOT_STARTED, interrupted=True)
    finally:
        try:
            if running:  # the caller failed; the runs are saved before this process ends
                request_stop()
            while not all(cluster.done(handle) for _, handle in running):
                time.sleep(POLL_SECONDS)
        finally:
            cluster.close()
            with suppress(OSError):
                stop_file.unlink(missing_ok=True)
