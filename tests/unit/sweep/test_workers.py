"""What becomes of the runs of a sweep when its worker processes die; threads take their places."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import defaultdict
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from support.locks import locked_elsewhere
from support.tiny import TINY

from rlgates.experiments.runs.files import SUMS
from rlgates.experiments.runs.folder import read_manifest
from rlgates.experiments.runs.jobs import NOT_STARTED, Job, JobResult, check_all, run_job
from rlgates.experiments.sweep.workers import run_parallel

DEAD = "the process ended with exit code -9"


class Workers:
    """In place of multiprocessing: threads, each of which dies after so many runs.

    Attributes:
        gone: by seed, set once the worker that had the run is dead.
    """

    Event = staticmethod(threading.Event)
    Pipe = staticmethod(multiprocessing.Pipe)

    def __init__(self, runs: int) -> None:
        self.runs, self.gone = runs, defaultdict[int, threading.Event](threading.Event)

    def Process(self, target: Any, args: Any) -> threading.Thread:
        # The caller closes its copy of this end of the pipe.
        thread = threading.Thread(target=self.work, args=(Connection(os.dup(args[0].fileno())),))
        thread.exitcode = -9  # type: ignore[attr-defined]
        return thread

    def work(self, pipe: Connection) -> None:
        with pipe:
            job = pipe.recv()
            for _ in range(self.runs):
                pipe.send(JobResult(job, result="made"))
        self.gone[job.seed].set()


@pytest.fixture
def jobs(tmp_path: Path) -> list[Job]:
    return [Job(replace(TINY, folder=str(tmp_path)), seed) for seed in range(5)]


def test_workers_that_start_leave_an_interrupt_to_the_sweep(
    jobs: list[Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A terminal sends Ctrl-C to them too, long before they listen."""
    found = []

    class Noting(Workers):
        def Process(self, target: Any, args: Any) -> threading.Thread:
            thread = super().Process(target, args)
            start = thread.start

            def noted() -> None:
                found.append(signal.getsignal(signal.SIGINT))
                start()

            thread.start = noted  # type: ignore[method-assign]
            return thread

    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(multiprocessing, "get_context", lambda _: Noting(runs=1))
    assert len(list(run_parallel(jobs, lambda: False, 2))) == len(jobs)
    assert set(found) == {signal.SIG_IGN}
    assert signal.getsignal(signal.SIGINT) is before


def test_a_worker_that_died_idle_is_replaced(
    jobs: list[Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    workers = Workers(runs=1)
    monkeypatch.setattr(multiprocessing, "get_context", lambda _: workers)
    made = []
    for job_result in run_parallel(jobs, lambda: False, 2):
        assert workers.gone[job_result.job.seed].wait(60)
        made.append(job_result)
    assert [one.result for one in made] == ["made"] * 5
    assert sorted(one.job.seed for one in made) == list(range(5))


@pytest.mark.parametrize("idle", [False, True])
def test_a_signal_to_one_worker_stops_no_run_of_the_others(
    idle: bool, jobs: list[Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Signalled(Workers):
        def work(self, pipe: Connection) -> None:
            """Make runs; the worker that gets seed 0 starts none after it, like `_worker_loop`."""
            interrupted = False
            with pipe, suppress(EOFError):
                while True:
                    job = pipe.recv()
                    if interrupted:
                        pipe.send(JobResult(job, error=NOT_STARTED, interrupted=True))
                        continue
                    interrupted = job.seed == 0
                    stopped = interrupted and not idle
                    made = JobResult(job, result="made")
                    pipe.send(JobResult(job, error="saved", interrupted=True) if stopped else made)

    monkeypatch.setattr(multiprocessing, "get_context", lambda _: Signalled(runs=0))
    ended = {one.job.seed: one for one in run_parallel(jobs, lambda: False, 2)}
    assert ended[0].error == ("" if idle else "saved")
    assert [ended[seed].result for seed in range(1, 5)] == ["made"] * 4


def assert_dead(jobs: list[Job], monkeypatch: pytest.MonkeyPatch) -> None:
    """All workers die in their first runs, and each run ends with an error of its own."""
    monkeypatch.setattr(multiprocessing, "get_context", lambda _: Workers(runs=0))
    ended = list(run_parallel(jobs, lambda: False, 2))
    assert [(one.result, one.error) for one in ended] == [(None, DEAD)] * len(jobs)


def test_a_finished_run_stays_finished_when_its_worker_dies(
    jobs: list[Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    result = run_job(jobs[0]).result
    assert_dead(jobs[:2], monkeypatch)
    assert [one.result for one in check_all(jobs[:1])] == [result]
    manifest = read_manifest(jobs[1].folder.path)
    assert manifest is not None
    assert (manifest["status"], manifest["error"]) == ("failed", DEAD)


def test_the_manifest_of_another_process_is_left_alone(
    jobs: list[Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = jobs[0].folder
    folder.begin(0)
    before = folder.manifest.read_bytes()
    with locked_elsewhere(folder.path):
        assert_dead(jobs[:2], monkeypatch)
    assert folder.manifest.read_bytes() == before


def test_a_damaged_manifest_of_a_dead_worker_does_not_end_the_sweep(
    jobs: list[Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    for job in jobs[:2]:
        job.folder.begin(0)
    jobs[0].folder.manifest.write_text("{")
    (jobs[1].folder.path / SUMS).unlink()
    (jobs[1].folder.path / SUMS).mkdir()  # an OSError
    assert_dead(jobs[:3], monkeypatch)
    assert jobs[0].folder.manifest.read_text() == "{"
