"""How runs are handed to a cluster, without one: a cluster of threads takes its place."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.tiny import TINY

from rlgates.experiments.runs.jobs import NOT_STARTED, Job, JobResult, check_all
from rlgates.experiments.sweep import backends
from rlgates.experiments.sweep.backends import Backend, RemoteJob


class Threads:
    """A cluster whose runs end at the next look; it keeps the number that were under way."""

    def __init__(self, slots: int, fail: Sequence[int] = ()) -> None:
        self.slots, self.fail = slots, fail
        self.active, self.most, self.cancelled, self.closed = 0, 0, 0, False

    def submit(self, jobs: Sequence[RemoteJob]) -> list[Future[JobResult]]:
        self.active += len(jobs)
        self.most = max(self.most, self.active)
        handles = [Future[JobResult]() for _ in jobs]
        for remote, handle in zip(jobs, handles, strict=True):
            if remote.job.seed in self.fail:
                handle.set_exception(OSError("the machine is gone"))
            else:
                handle.set_result(JobResult(remote.job, result="done"))
        return handles

    def done(self, handle: Future[JobResult]) -> bool:
        return handle.done()

    def result(self, handle: Future[JobResult]) -> JobResult | None:
        self.active -= 1
        return None if self.cancelled else handle.result()

    def cancel_pending(self, handles: Sequence[Future[JobResult]]) -> None:
        self.cancelled += 1

    def close(self) -> None:
        self.closed = True


JOBS = [Job(replace(TINY, folder="runs"), seed) for seed in range(5)]


@pytest.fixture(autouse=True)
def _tmp_cwd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(backends, "POLL_SECONDS", 0.001)


def run(cluster: Threads, stop: backends.Stop = lambda: False) -> list[JobResult]:
    """The results of `JOBS`."""
    backend = Backend(folder=Path("runs"))
    return list(backends._run_on_cluster(JOBS, stop, backend, cluster))  # type: ignore[arg-type]


@pytest.mark.parametrize("slots", [1, 2, 5])
def test_no_more_runs_are_submitted_than_there_are_slots(slots: int) -> None:
    cluster = Threads(slots)
    outcomes = run(cluster)
    assert sorted(one.job.seed for one in outcomes) == [0, 1, 2, 3, 4]
    assert all(one.result == "done" for one in outcomes)
    assert cluster.most == slots
    assert cluster.closed
    assert not list(Path("runs").glob("stop-*"))


def test_a_machine_that_is_gone_fails_its_run_alone() -> None:
    outcomes = {one.job.seed: one for one in run(Threads(2, fail=[3]))}
    assert outcomes[3].error == "OSError: the machine is gone"
    assert [seed for seed, one in outcomes.items() if one.result is None] == [3]


def test_after_a_stop_no_more_runs_are_submitted() -> None:
    polls = iter([False, *[True] * 100])
    cluster = Threads(2)
    outcomes = run(cluster, lambda: next(polls))
    assert cluster.most == 2
    assert cluster.cancelled == 1
    assert [(one.error, one.interrupted) for one in outcomes] == [(NOT_STARTED, True)] * 5


def test_slurm_gets_all_runs_at_once_and_local_processes_as_many_as_may_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("submitit")
    local = Backend("submitit", 2, {"cluster": "local"})
    assert backends._Submitit(local, JOBS).slots == 2
    monkeypatch.setattr("shutil.which", lambda _: "/usr/bin/srun")
    cluster = backends._Submitit(Backend("submitit", 2), JOBS)
    assert cluster.slots == len(JOBS)
    assert cluster.executor._executor.parameters["array_parallelism"] == 2


def test_a_run_that_slurm_requeues_is_the_same_run() -> None:
    pytest.importorskip("submitit")
    remote = RemoteJob(JOBS[0], "here", "stop")
    assert remote.checkpoint().function == remote


def test_remote_runs_do_not_share_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Backend("local").uses_this_machine
    assert Backend("ray").uses_this_machine
    assert not Backend("ray", options={"address": "auto"}).uses_this_machine
    monkeypatch.setattr("shutil.which", lambda _: None)
    assert Backend("submitit").uses_this_machine
    assert not Backend("submitit", options={"cluster": "slurm"}).uses_this_machine
    monkeypatch.setattr("shutil.which", lambda _: "/usr/bin/srun")
    assert not Backend("submitit").uses_this_machine
    on_a_gpu = replace(TINY, device="cuda", folder="there")
    check_all([Job(on_a_gpu, 0)], here=False)
    with pytest.raises(ValueError, match="unknown device 'gpu'"):
        check_all([Job(replace(TINY, device="gpu"), 0)], here=False)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="unknown amp 'bf15'"):
        check_all([Job(replace(TINY, amp="bf15"), 0)], here=False)  # type: ignore[arg-type]
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="cuda"):
            check_all([Job(on_a_gpu, 0)])
