"""Runs side by side on this machine, in processes that each make one after the other."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Generator, Iterable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

from rlgates.errors import check_size
from rlgates.experiments import manifest
from rlgates.experiments.files import held
from rlgates.experiments.jobs import (
    NOT_BEGUN,
    Job,
    Outcome,
    Stop,
    check_all,
    kind_of,
    make,
    say_not_begun,
    told,
)
from rlgates.experiments.stopping import StopRequest


def run_all(jobs: Sequence[Job], workers: int = 1) -> list[Outcome]:
    """Make the runs, and say how each of them ended.

    Runs that were finished before are looked up; those that were stopped go on. A run that fails
    is written down in its manifest and does not stop the others. After Ctrl-C or SIGTERM the
    present runs are saved, and the others are not begun.

    Args:
        jobs: the runs.
        workers: runs at a time; with more than one, each in a process of its own.

    Returns:
        the outcomes, in the order of the runs.

    Raises:
        ValueError: before any work starts, if a config makes no sense, a folder holds a run with
            another config, or there are no data.
    """
    check_size("jobs", workers)
    outcomes = check_all(jobs)
    for outcome in outcomes:
        print("\n".join(told(outcome)), flush=True)
    made = [outcome.job for outcome in outcomes]
    left = [job for job in jobs if job not in made]
    with StopRequest().listening() as stop:
        for outcome in side_by_side(left, stop, workers):
            outcomes.append(outcome)
            if outcome.error != NOT_BEGUN:
                print("\n".join(told(outcome)), flush=True)
    say_not_begun(outcomes, len(jobs))
    return sorted(outcomes, key=lambda outcome: jobs.index(outcome.job))


class _Worker(NamedTuple):
    process: BaseProcess
    pipe: Connection


def processors() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def side_by_side(jobs: Iterable[Job], stop: Stop, workers: int) -> Generator[Outcome]:
    """How each run ended, as they end.

    A process that dies takes no other run with it: another one takes its place. After `stop`
    the runs under way are saved, and the others are not begun.

    Args:
        jobs: the runs; the next one is asked for when there is a worker for it, and after the
            caller has seen all that have ended. What another process is making comes last.
        stop: asked now and then.
        workers: runs at a time; with more than one, each in a process of its own.
    """
    if workers == 1 or (isinstance(jobs, Sequence) and len(jobs) == 1):
        yield from (make(job, stop) for job in free_first(jobs))
        return
    context = multiprocessing.get_context("spawn")
    event = context.Event()
    waiting = free_first(jobs)
    idle: list[_Worker] = []
    busy: dict[Connection, tuple[_Worker, Job]] = {}
    try:
        while True:
            while len(busy) < workers and not stop():
                job = next(waiting, None)
                if job is None:
                    break
                worker = idle.pop() if idle else _begin(context, event)
                worker.pipe.send(job)
                busy[worker.pipe] = worker, job
            if not busy:
                break
            for pipe in wait(list(busy), timeout=0.5):
                assert isinstance(pipe, Connection)
                worker, made = busy.pop(pipe)
                try:
                    outcome = pipe.recv()
                except (EOFError, ConnectionResetError):
                    yield _died(worker, made)
                else:
                    idle.append(worker)
                    yield outcome
            if stop():
                event.set()
        for job in waiting:
            yield Outcome(job, error=NOT_BEGUN, interrupted=True)
    finally:
        event.set()
        for worker in (*idle, *(worker for worker, _ in busy.values())):
            worker.pipe.close()
            worker.process.join()


def free_first(jobs: Iterable[Job]) -> Iterator[Job]:
    """The runs, those last that another process is making now."""
    later = []
    for job in jobs:
        if held(kind_of(job.config).folder(job)):
            later.append(job)
        else:
            yield job
    yield from later


def _begin(context: Any, event: Any) -> _Worker:
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, event))
    process.start()
    theirs.close()
    return _Worker(process, ours)


def _died(worker: _Worker, job: Job) -> Outcome:
    worker.process.join()
    error = f"the process ended with exit code {worker.process.exitcode}"
    manifest.end(kind_of(job.config).folder(job), "failed", error=error)
    return Outcome(job, error=error)


def _serve(pipe: Connection, event: Any) -> None:
    """What a worker does until there is nothing more to do."""
    parent = multiprocessing.parent_process()
    with StopRequest().listening() as asked:

        def stop() -> bool:
            return asked() or event.is_set() or (parent is not None and not parent.is_alive())

        while True:
            try:
                job = pipe.recv()
            except (EOFError, OSError):  # the first process is gone
                return
            outcome = make(job, stop, bar=False)
            try:
                pipe.send(outcome)
            except OSError:
                return
