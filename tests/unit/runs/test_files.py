"""Several processes write into one folder: each file is whole, and none is lost."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.locks import locked_elsewhere
from support.tiny import tiny

from rlgates.atomic import write_atomically
from rlgates.experiments.bench import cores, envs, tasks
from rlgates.experiments.bench.configs import EnvBenchConfig, TaskBenchConfig
from rlgates.experiments.bench.gpu import Report
from rlgates.experiments.report import outputs
from rlgates.experiments.report.claims import ledger
from rlgates.experiments.runs.files import read_table, write_table
from rlgates.experiments.runs.folder import RunFolder
from rlgates.experiments.runs.locks import is_locked, locked


def test_two_writers_of_a_file_do_not_meet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, sync = tmp_path / "file", os.fsync

    def overtaken(file: int) -> None:
        monkeypatch.setattr(os, "fsync", sync)
        write_atomically(path, b"other")
        sync(file)

    monkeypatch.setattr(os, "fsync", overtaken)
    write_atomically(path, b"one")
    assert path.read_bytes() == b"one"
    assert list(tmp_path.iterdir()) == [path]


def test_a_checkpoint_is_not_on_disk_before_its_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    folder = RunFolder(tiny(tmp_path), 0)
    folder.begin(0)
    with closing(folder.open_logs(None)) as logger:
        logger.record("some/value", 1.0)
        logger.dump(3)
        monkeypatch.setattr(os, "fsync", lambda file: synced.append(os.fstat(file).st_ino))
        folder.save({}, logger)
    logs = [folder.path / "progress.csv", *folder.path.glob("events.*")]
    assert synced[:2] == [path.stat().st_ino for path in logs]
    assert synced[2] == folder.checkpoint.stat().st_ino


def test_others_may_read_what_is_written(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        write_atomically(tmp_path / "file", b"")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o644


def test_no_temporary_file_remains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(_: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", stopped)
        with pytest.raises(KeyboardInterrupt):
            write_atomically(tmp_path / "file", b"new")
    assert not list(tmp_path.iterdir())
    folder = RunFolder(tiny(tmp_path), 0)
    left = folder.path / "checkpoint.0123.tmp"  # of a process that could not even do that
    left.parent.mkdir(parents=True)
    left.touch()
    folder.begin(0)
    assert not left.exists()


def test_a_thread_may_lock_a_folder_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with locked(tmp_path):
        with locked(Path()):
            pass
        assert is_locked(tmp_path)
        waiting = threading.Thread(target=lambda: locked(tmp_path).__enter__(), daemon=True)
        waiting.start()
        waiting.join(0.3)
        assert waiting.is_alive()
    waiting.join()


TIMED = {"task": "copy", "title": "Copy", "batch_ms": "1", "update_ms": "2", "ratio": "2"}


def bench_tasks(results: Path) -> None:
    tasks.bench_tasks(TaskBenchConfig(tasks=("copy",), results=str(results)))


def bench_envs(results: Path) -> None:
    env = "rlgates/PassiveMatch-v0"
    envs.bench_envs(EnvBenchConfig(envs=(env,), cases=("native:4",), results=str(results)))


def bench_cores(results: Path) -> None:
    case = {cores.REFERENCE: cores.Comparison(6, *[1.0] * 7), "run": "1", "backend": "plain"}
    cases = {f"{cores.TABLE_SHAPE}/1": case}
    content = {"cores": {"lstm": cases}, "runs": {"1": {"torch": "2", "commit": ""}}}
    cores.write_costs(results, "lstm", content)


WRITERS: dict[str, Callable[[Path], Any]] = {
    "tasks": bench_tasks,
    "envs": bench_envs,
    "cores": bench_cores,
    "gpu": lambda results: Report(results / "gpu.json").write(),
    "ledger": ledger.write_ledger,
    "figures": lambda results: list(outputs.redraw(results, results / "README.md")),
    "output": lambda results: outputs.redraw_output("task_speed", results),
}


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a table, where all that takes time is left out."""
    monkeypatch.setattr(tasks, "timed", lambda *_: TIMED)
    monkeypatch.setattr(envs, "measure", lambda *_: [1e6])
    monkeypatch.setitem(
        outputs.OUTPUTS, "task_speed", outputs.OUTPUTS["task_speed"]._replace(draw=draw)
    )
    for module in (tasks, envs):
        monkeypatch.setattr(module, "redraw_output", lambda *_: [])
    monkeypatch.setattr(ledger, "judge_claims", lambda _: {})
    monkeypatch.setattr(outputs, "redraw_studies", lambda _: [])
    monkeypatch.setattr(outputs, "draw_environments", lambda path: path.touch())
    folder = tmp_path / "results"
    folder.mkdir()
    write_table(folder / "task_speed.csv", [{**TIMED, "task": "adding"}], list(TIMED))
    return folder


def draw(source: Path, table: Path) -> None:
    table.write_text(str(len(read_table(source))))


@contextmanager
def waits(work: Callable[[], Any], folder: Path) -> Iterator[None]:
    """The work begins before the block, and ends after it: until then, the folder is locked."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    with locked_elsewhere(folder):
        thread.start()
        thread.join(1.0)
        assert thread.is_alive(), errors
        yield
    thread.join(60)
    assert not thread.is_alive()
    assert not errors


@pytest.mark.parametrize("name", WRITERS)
def test_what_writes_results_waits_for_other_writers(name: str, results: Path) -> None:
    with waits(lambda: WRITERS[name](results), results):
        pass
    with locked(results):
        WRITERS[name](results)


def test_rows_that_others_write_while_a_task_is_timed_are_kept(results: Path) -> None:
    table = results / "task_speed.csv"
    with waits(lambda: bench_tasks(results), results):
        rows = [{**TIMED, "task": task} for task in ("adding", "digits")]
        write_table(table, rows, list(TIMED))
    assert {row["task"] for row in read_table(table)} == {"adding", "copy", "digits"}


def test_figures_of_nothing_create_no_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no results in"):
        list(outputs.redraw(tmp_path / "results", tmp_path / "README.md"))
    assert not list(tmp_path.iterdir())
