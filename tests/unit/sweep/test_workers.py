"""What becomes of the runs of a sweep when its worker processes die; threads take their places."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections import defaultdict
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from support.tiny import TINY

from rlgates.experiments.runs.jobs import Job, JobResult
from rlgates.experiments.sweep.workers import run_parallel


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
