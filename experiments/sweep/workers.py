"""Parallel runs on this machine, in worker processes."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

from rlgates.agents.ranks import Ranks
from rlgates.errors import check_size
from rlgates.experiments.runs.jobs import (
    NOT_STARTED,
    Job,
    JobResult,
    Stop,
    check_all,
    describe,
    print_not_started,
    run_job,
    runner_for,
)
from rlgates.experiments.runs.locks import locked
from rlgates.experiments.runs.pipes import survive_closed_pipes
from rlgates.experiments.runs.stopping import InterruptedRun, StopRequest, ignoring_interrupts


def run_all(jobs: Sequence[Job], workers: int = 1) -> list[JobResult]:
    """Make all runs and print how each of them ended.

    Finished runs are looked up; interrupted ones resume. A failing run is recorded in its manifest
    and does not stop the others. After Ctrl-C or SIGTERM the active runs are saved, and no more
    are started. Where torch.distributed is initialized, all its processes call this, and make the
    runs together, one after the other; the first failure ends them.

    Args:
        jobs: the runs.
        workers: runs at a time; with more than one, each in its own process.

    Returns:
        the results, in the order of the jobs.

    Raises:
        ValueError: before any work starts, if a config is invalid, a folder holds a run with
            another config, data are missing, or there are several processes and `workers`.
    """
    check_size("jobs", workers)
    ranks = Ranks.world()
    if workers > 1 and not ranks.is_alone:
        raise ValueError(f"jobs must be 1 where {ranks.size} processes make a run, got {workers}.")
    job_results = ranks.from_first(lambda: check_all(jobs))
    for job_result in job_results:
        print("\n".join(describe(job_result)), flush=True)
    finished = [job_result.job for job_result in job_results]
    pending = [job for job in jobs if job not in finished]
    with StopRequest(quiet=not ranks.is_first).listening() as stop:
        make = run_parallel if ranks.is_alone else _run_together
        for job_result in make(pending, stop, workers):
            job_results.append(job_result)
            if job_result.error != NOT_STARTED:
                print("\n".join(describe(job_result)), flush=True)
    print_not_started(job_results, len(jobs))
    return sorted(job_results, key=lambda job_result: jobs.index(job_result.job))


def _run_together(jobs: Sequence[Job], stop: Stop, _: int) -> Generator[JobResult]:
    """Make the runs in all processes of torch.distributed, until one fails."""
    failed = False
    for job in jobs:
        bar = None if Ranks.world().is_first else False
        job_result = JobResult(job, error=NOT_STARTED) if failed else run_job(job, stop, bar)
        failed = failed or not (job_result.result or job_result.interrupted)
        yield job_result


class _Worker(NamedTuple):
    process: BaseProcess
    pipe: Connection


def available_cpus() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_parallel(jobs: Iterable[Job], stop: Stop, workers: int) -> Generator[JobResult]:
    """Make the runs and yield their results as they end.

    If a worker process dies, its run fails, and another worker takes its place; so it does if a
    signal stops a worker, which saves its run. After `stop` the active runs are saved, and the
    others are not started.

    Args:
        jobs: the runs. The next one is requested when a worker is free and after the caller has
            received all results so far. Runs that another process is making come last.
        stop: polled regularly.
        workers: runs at a time; with more than one, each in its own process.
    """
    if workers == 1 or (isinstance(jobs, Sequence) and len(jobs) == 1):
        yield from (run_job(job, stop) for job in unlocked_first(jobs))
        return
    context = multiprocessing.get_context("spawn")
    stop_event = context.Event()
    queue = unlocked_first(jobs)
    idle: list[_Worker] = []
    busy: dict[Connection, tuple[_Worker, Job]] = {}
    try:
        while True:
            while len(busy) < workers and not stop():
                job = next(queue, None)
                if job is None:
                    break
                worker = _send(job, idle) or _start_worker(context, stop_event, job)
                busy[worker.pipe] = worker, job
            if not busy:
                break
            for pipe in wait(list(busy), timeout=0.5):
                assert isinstance(pipe, Connection)
                worker, job = busy.pop(pipe)
                try:
                    job_result = pipe.recv()
                except (EOFError, ConnectionResetError):
                    yield _dead_worker_result(worker, job)
                    continue
                if not job_result.interrupted or stop():
                    idle.append(worker)
                else:  # a signal to this process alone, which would start no further run
                    _end(worker)
                    if job_result.error == NOT_STARTED:
                        queue = chain((job,), queue)
                        continue
                yield job_result
            if stop():
                stop_event.set()
        for job in queue:
            yield JobResult(job, error=NOT_STARTED, interrupted=True)
    finally:
        stop_event.set()
        for worker in (*idle, *(worker for worker, _ in busy.values())):
            _end(worker)


def unlocked_first(jobs: Iterable[Job]) -> Iterator[Job]:
    """The jobs, with those at the end whose run folder another process has locked."""
    locked = []
    for job in jobs:
        if job.folder.is_locked:
            locked.append(job)
        else:
            yield job
    yield from locked


def _send(job: Job, idle: list[_Worker]) -> _Worker | None:
    """Give the job to an idle worker; None if none is alive."""
    while idle:
        worker = idle.pop()
        try:
            worker.pipe.send(job)
        except OSError:  # it was killed since its last run
            _end(worker)
        else:
            return worker
    return None


def _start_worker(context: Any, stop_event: Any, job: Job) -> _Worker:
    parent_end, worker_end = context.Pipe()
    process = context.Process(target=_worker_loop, args=(worker_end, stop_event))
    with ignoring_interrupts():
        process.start()
    worker_end.close()
    with suppress(OSError):  # it is dead already, which is noticed where its result is awaited
        parent_end.send(job)
    return _Worker(process, parent_end)


def _end(worker: _Worker) -> None:
    worker.pipe.close()
    worker.process.join()


def _dead_worker_result(worker: _Worker, job: Job) -> JobResult:
    worker.process.join()
    error = f"the process ended with exit code {worker.process.exitcode}"
    # It may have been measuring a finished run, or waiting for the process that makes the run.
    with (
        suppress(InterruptedRun, ValueError, OSError),
        locked(job.folder.path, stop=lambda: True),
    ):
        if runner_for(job.config).finished(job) is None:
            job.folder.end("failed", error=error)
    return JobResult(job, error=error)


def _worker_loop(pipe: Connection, stop_event: Any) -> None:
    """Make the runs that come through the pipe, until it is closed."""
    survive_closed_pipes()
    parent = multiprocessing.parent_process()
    with StopRequest().listening() as interrupted:

        def stop() -> bool:
            parent_died = parent is not None and not parent.is_alive()
            return interrupted() or stop_event.is_set() or parent_died

        while True:
            try:
                job = pipe.recv()
            except (EOFError, OSError):  # the parent closed the pipe, or died
                return
            job_result = run_job(job, stop, bar=False)
            try:
                pipe.send(job_result)
            except OSError:
                return
