"""The journal of a search: its two locks, and the trials of processes that are gone."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlgates.experiments.studies import Choice, Range

pytest.importorskip("optuna")

from rlgates.experiments.tune import journal as journal_module
from rlgates.experiments.tune.journal import Journal

SPACE = {"learning_rate": Range(1e-3, 1e-1, log=True), "hidden_size": Choice((4, 8))}


def open_journal(path: Path) -> Journal:
    return Journal(path / "tune.journal", "copy", SPACE, higher=False, settings={}, seed=0)


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    """The lock file of Optuna."""
    open_journal(tmp_path)
    return tmp_path / "tune.journal.lock"


@pytest.fixture
def searching(tmp_path: Path) -> Iterator[Journal]:
    """A journal in which this process works."""
    journal = open_journal(tmp_path)
    with journal.active_worker():
        yield journal


def test_a_lock_that_another_program_holds_is_waited_for(lock: Path, searching: Journal) -> None:
    lock.touch()
    written = threading.Event()

    def write() -> None:
        searching.ask(1)
        written.set()

    thread = threading.Thread(target=write)
    thread.start()
    assert not written.wait(0.5)
    assert lock.exists()
    lock.unlink()
    assert written.wait(60)
    thread.join()
    assert not lock.exists()


def test_the_lock_of_a_killed_process_is_taken_over(
    lock: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "LOCK_GRACE_PERIOD", 3)  # Optuna warns below that
    journal = open_journal(tmp_path)
    lock.touch()
    start = time.monotonic()
    with journal.active_worker():
        assert journal.ask(1) is not None
    assert time.monotonic() - start > 3
    assert not lock.exists()


def test_trials_of_a_process_that_is_gone_are_claimed_once(tmp_path: Path) -> None:
    gone, one, other = (open_journal(tmp_path) for _ in range(3))
    with gone.active_worker():
        trials = [gone.ask(3), gone.ask(3)]
        with one.active_worker():
            assert one.claim_stale_trials() == []
    with one.active_worker(), other.active_worker():
        assert one.claim_stale_trials() == trials
        assert other.claim_stale_trials() == []
        (third,) = [other.ask(3)]
        assert third is not None
        assert third.number == 2
        assert one.ask(3) is None


def test_no_folder_of_a_worker_stays(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    with journal.active_worker():
        journal.ask(1)
    assert [path.name for path in (tmp_path / "tune").iterdir()] == ["lock"]


def test_results_come_best_first_and_failures_last(searching: Journal) -> None:
    for value in (0.5, float("nan"), None, 0.25):
        trial = searching.ask(10)
        assert trial is not None
        searching.tell(trial, value, {"seconds": 1})
    assert [one.value for one in searching.results()] == [0.25, 0.5, float("inf"), None]
    assert [one.trial.number for one in searching.results()] == [3, 0, 1, 2]
