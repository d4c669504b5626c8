"""Killed, out of space, locked out, side by side: what is made is that of an uninterrupted run.

`--faults N` has 2 N signals for each command; `make test-faults` does.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.processes import killed, limit_files, run, start
from support.tiny import agent, equal, scalars, table, tiny, words

from rlgates.experiments.runs.files import Row, read_json, read_table
from rlgates.experiments.runs.folder import read_checkpoint

VARYING = ("seconds", "steps_per_second")  # columns
STUDY = """
from dataclasses import replace
from rlgates.experiments.configs.task import TaskConfig
from rlgates.experiments.studies import Arm, Study
from rlgates.experiments.studies.space import Range

CONFIG = TaskConfig(
    task_settings={"delay": 2}, hidden_size=8, updates=40, batch_size=4, eval_every=4,
    eval_sequences=16, checkpoint_minutes=0.0, gate_rows=0,
)
STUDY = Study(
    title="mine", laptop=(Arm(CONFIG, ("lstm", "gru"), gates=("lstm",)),), seeds=(0, 1),
    space={"learning_rate": Range(1e-3, 1e-1, log=True)},
)
"""


class Command(ABC):
    """A command that is attacked, in a folder."""

    @abstractmethod
    def words(self, folder: Path) -> list[str]:
        """The command line."""

    @abstractmethod
    def assert_same(self, folder: Path, straight: Path) -> None:
        """What two commands have made is the same."""


def weights(path: Path) -> dict[str, Any]:
    network: dict[str, Any] = read_checkpoint(path)["network"]
    return network


def same_networks(folder: Path, straight: Path) -> None:
    """All networks of one folder are those of the other, bit for bit, and so are their tables."""
    runs = sorted(path.parent.relative_to(straight) for path in straight.rglob("last.pt"))
    assert runs
    for place in runs:
        for name in ("last.pt", "best.pt"):
            assert equal(weights(folder / place / name), weights(straight / place / name)), place
        assert (folder / place / "progress.csv").read_text() == (
            straight / place / "progress.csv"
        ).read_text()


def plain(rows: list[Row]) -> list[Row]:
    """The rows without what varies from call to call, in any order."""
    kept = [{name: cell for name, cell in row.items() if name not in VARYING} for row in rows]
    return sorted(kept, key=str)


class Train(Command):
    def config(self, folder: Path) -> Any:
        return tiny(folder, total_steps=12 * 56, eval_every=200)

    def words(self, folder: Path) -> list[str]:
        return words(self.config(folder))

    def assert_same(self, folder: Path, straight: Path) -> None:
        one, other = self.config(folder), self.config(straight)
        assert equal(agent(one, 0), agent(other, 0))
        assert table(one, 0) == table(other, 0)
        assert scalars(one, 0) == scalars(other, 0)


class Task(Command):
    def words(self, folder: Path) -> list[str]:
        line = "task copy --tier smoke --task-settings delay=3 --updates 60 --eval-every 5"
        return [*line.split(), "--checkpoint-minutes", "0", "--folder", str(folder)]

    def assert_same(self, folder: Path, straight: Path) -> None:
        same_networks(folder, straight)


class Sweep(Command):
    def words(self, folder: Path) -> list[str]:
        results, runs = str(folder / "results"), str(folder / "runs")
        return ["sweep", "mine.py", "--jobs", "1", "--results", results, "--folder", runs]

    def assert_same(self, folder: Path, straight: Path) -> None:
        same_networks(folder / "runs", straight / "runs")
        for name in ("mine.csv", "mine_curves.csv", "mine_gates.csv"):
            rows, expected = (read_table(path / "results" / name) for path in (folder, straight))
            assert plain(rows) == plain(expected)


class Tune(Command):
    def words(self, folder: Path) -> list[str]:
        line = "tune mine.py --cores lstm --trials 3"
        return [*line.split(), "--results", str(folder), "--folder", str(folder / "runs")]

    def assert_same(self, folder: Path, straight: Path) -> None:
        rows, expected = (read_table(path / "mine_tune.csv") for path in (folder, straight))
        # A process that is killed while it samples leaves no trial, and the next has other values.
        assert [row["ended"] for row in rows] == ["finished"] * 3
        assert len({row["trial"] for row in rows}) == 3
        assert len({row["settings"] for row in rows}) == 3
        values = {row["settings"]: row["value"] for row in expected}
        for row in rows:
            assert values.get(row["settings"], row["value"]) == row["value"]
        both = [
            path.parent.relative_to(straight)
            for path in straight.rglob("last.pt")
            if (folder / path.relative_to(straight)).exists()
        ]
        for place in both:
            assert equal(weights(folder / place / "last.pt"), weights(straight / place / "last.pt"))


COMMANDS: dict[str, Command] = {
    "train": Train(),
    "task": Task(),
    "sweep": Sweep(),
    "tune": Tune(),
}


class Straight:
    """Each command, uninterrupted, and how long it took."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.made: dict[str, tuple[Path, float]] = {}

    def of(self, name: str) -> tuple[Path, float]:
        if name not in self.made:
            folder, log = self.folder / name, self.folder / f"{name}.log"
            start = time.monotonic()
            assert run(COMMANDS[name].words(folder), log) == 0, log.read_text()
            self.made[name] = folder, time.monotonic() - start
        return self.made[name]


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Straight:
    return Straight(tmp_path_factory.mktemp("straight"))


@pytest.fixture(autouse=True)
def _study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(STUDY)


@pytest.mark.parametrize("name", COMMANDS)
def test_signals_at_random_moments(
    name: str, straight: Straight, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    command, (reference, seconds) = COMMANDS[name], straight.of(name)
    seed = int.from_bytes(os.urandom(4))
    moments, log = random.Random(seed), tmp_path / "log"
    folder = tmp_path / "killed"
    sent = 0
    while sent < 2 * request.config.getoption("faults"):
        code = killed(command.words(folder), log, seconds, moments)
        assert code in (0, 130, -2, -9, -15), f"seed {seed}, exit code {code}: {log.read_text()}"
        assert "Traceback" not in log.read_text(), f"seed {seed}: {log.read_text()}"
        if code:
            sent += 1
        else:  # it was faster than the signal
            command.assert_same(folder, reference)
            shutil.rmtree(folder)
            seconds *= 0.8
    assert run(command.words(folder), log) == 0, log.read_text()
    command.assert_same(folder, reference)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_full_disk(
    name: str, straight: Straight, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    command, (reference, _) = COMMANDS[name], straight.of(name)
    largest = max(path.stat().st_size for path in reference.rglob("*") if path.is_file())
    sizes, log, folder = random.Random(0), tmp_path / "log", tmp_path / "full"
    for _ in range(2 * request.config.getoption("faults")):
        size = sizes.randrange(4096, largest)  # what it prints also goes into a file
        log.unlink(missing_ok=True)
        code = run(command.words(folder), log, limit_files(size))
        assert code in (0, 1, 2), f"{size} bytes, exit code {code}: {log.read_text()}"
        if "journal is damaged" in log.read_text():  # as the message says
            (folder / "runs/mine/tune-lstm.journal").unlink()
    if name == "tune" and run(command.words(folder), log) == 2:
        (folder / "runs/mine/tune-lstm.journal").unlink()
    assert run(command.words(folder), log) == 0, log.read_text()
    if name != "tune":  # a failed trial is sampled anew
        command.assert_same(folder, reference)


@pytest.mark.parametrize("name", COMMANDS)
def test_two_processes_make_one_run(name: str, straight: Straight, tmp_path: Path) -> None:
    command, (reference, _) = COMMANDS[name], straight.of(name)
    folder = tmp_path / "shared"
    logs = [tmp_path / f"log{number}" for number in range(2)]
    processes = [start(command.words(folder), log) for log in logs]
    codes = [process.end() for process in processes]
    assert codes == [0, 0], [log.read_text() for log in logs]
    command.assert_same(folder, reference)
    for manifest in folder.rglob("manifest.json"):
        assert len(read_json(manifest)["sessions"]) == 1


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can enter."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755)
    shutil.rmtree(folder)


@pytest.mark.parametrize("name", ["train", "task"])
def test_a_read_only_folder(name: str, open_folder: Path, straight: Straight) -> None:
    command, (reference, _) = COMMANDS[name], straight.of(name)
    shutil.copytree(reference, open_folder / "made")
    (open_folder / "empty").mkdir()
    for path in open_folder.rglob("*"):
        path.chmod(0o555 if path.is_dir() else 0o444)
    log = open_folder / "log"
    log.touch()
    log.chmod(0o666)

    def without_rights() -> None:
        if os.geteuid() == 0:  # to whom no folder is read-only
            os.setgid(65534)
            os.setuid(65534)

    before = {path: path.stat().st_mtime_ns for path in open_folder.rglob("*") if path != log}
    assert run(command.words(open_folder / "empty"), log, without_rights) == 2
    assert "cannot be written to: Permission denied" in log.read_text()
    assert run(command.words(open_folder / "made"), log, without_rights) == 0, log.read_text()
    assert "(finished before)" in log.read_text()
    after = {path: path.stat().st_mtime_ns for path in open_folder.rglob("*") if path != log}
    assert after == before
