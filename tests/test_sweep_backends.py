"""A study made here, by submitit or by Ray, stopped or killed: always the same numbers."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from rlgates.experiments import cli
from rlgates.experiments.files import read_json
from rlgates.experiments.sweep_book import Book
from rlgates.experiments.tables import Row, read

MINE = """
from dataclasses import replace
from rlgates.experiments.studies import Arm, Study
from rlgates.experiments.supervised_tiers import task_config
SMALL = replace(task_config("copy", "smoke"), updates={updates}, eval_every=10, save_minutes=1e-3)
ARM = Arm(SMALL, {cores}, gates={cores})
STUDY = Study(title="mine", laptop=(ARM,), seeds=tuple(range({seeds})))
"""
LONG = """
LONG = Arm(replace(SMALL, updates=10**8, save_minutes=60), ("lstm",), variant="long")
STUDY = Study(title="mine", laptop=(ARM, LONG), seeds=(0,))
"""
NOT_THE_SAME = ("seconds", "dirty", "command")
COMMAND = [sys.executable, "-m", "rlgates.experiments.cli", "sweep", "mine.py"]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def _study(updates: int, cores: tuple[str, ...], seeds: int) -> None:
    Path("mine.py").write_text(MINE.format(updates=updates, cores=cores, seeds=seeds))


def _rows(results: str) -> dict[tuple[str, str], Row]:
    """What each core and seed came to, but for the times."""
    rows = read(Path(results) / "mine.csv")
    found = {
        (row["core"], row["seed"]): {k: v for k, v in row.items() if k not in NOT_THE_SAME}
        for row in rows
    }
    assert len(found) == len(rows)
    return found


@pytest.mark.parametrize("backend", ["submitit", "ray"])
def test_every_backend_gives_the_same_numbers(
    backend: str, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip(backend)
    _study(20, ("lstm", "gru"), 1)
    line = ["sweep", "mine.py", "--jobs", "2"]
    assert cli.main([*line, "--results", "local", "--folder", "runs"]) == 0
    options = ["--backend", backend]
    if backend == "submitit":
        options += ["--backend-options", "cluster=local", "timeout_min=5"]
    assert cli.main([*line, *options, "--results", backend, "--folder", "elsewhere"]) == 0
    assert _rows(backend) == _rows("local")
    assert len(_rows("local")) == 2
    curves, gates = (
        [
            Path(results, f"mine_{end}.csv").read_text().splitlines()
            for results in ("local", backend)
        ]
        for end in ("curves", "gates")
    )
    assert sorted(curves[0]) == sorted(curves[1])
    assert sorted(gates[0]) == sorted(gates[1])
    assert capfd.readouterr().out.count("[2 of 2] copy, delay 4") == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--backend submitit --backend-options timeout=3", "submitit: Parameter 'timeout'"),
        ("--backend submitit --backend-options cluster=pbs", "any executor named pbs"),
        ("--backend ray --backend-options adress=auto", "ray: Unknown keyword argument(s)"),
    ],
)
def test_wrong_options_are_said(
    options: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip(options.split()[1])
    _study(20, ("lstm",), 1)
    assert cli.main(["sweep", "mine.py", *options.split()]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("backend", ["submitit", "ray"])
def test_a_backend_that_is_not_installed(
    backend: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, backend, None)
    _study(20, ("lstm",), 1)
    assert cli.main(["sweep", "mine.py", "--backend", backend]) == 2
    assert f"pip install {backend}" in capsys.readouterr().err


@pytest.mark.parametrize("backend", ["submitit", "ray"])
def test_runs_elsewhere_end_with_the_sweep_that_fails(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(backend)
    _study(20, ("lstm",), 1)
    Path("mine.py").write_text(Path("mine.py").read_text() + LONG)

    def full(*_: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(Book, "add", full)
    assert cli.main([*COMMAND[3:], "--jobs", "2", "--backend", backend]) == 2
    (manifest,) = Path("runs/mine/long").rglob("manifest.json")
    assert read_json(manifest)["status"] == "interrupted"
    assert not list(Path("runs").rglob("stop-*"))


def _ended(process: subprocess.Popen[str]) -> Any:
    """Its exit code, once all of its workers are gone, too."""
    errors = process.communicate(timeout=120)[1]  # which they have open as long as they live
    # A worker that is just being made when the first process is killed complains.
    assert "Traceback" not in errors or process.returncode == -9
    return process.returncode


@pytest.mark.parametrize(
    ("runs", "kills"), [((2, 2), 2), pytest.param((4, 10), 20, marks=pytest.mark.slow)]
)
def test_killed_at_random_moments(runs: tuple[int, int], kills: int) -> None:
    cores = ("lstm", "gru", "ur_lstm", "janet")[: runs[0]]
    _study(200, cores, runs[1])
    assert cli.main(["sweep", "mine.py", "--jobs", "2", "--results", "whole", "--folder", "w"]) == 0
    moments = random.Random(int.from_bytes(os.urandom(4)))
    line = [*COMMAND, "--jobs", "2", "--results", "killed", "--folder", "runs"]
    codes = []
    for _ in range(kills):
        process = subprocess.Popen(
            line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        begun, goal = time.monotonic(), moments.uniform(0.0, 2.0)
        seen = len(list(Path("runs").rglob("progress.csv")))
        while process.poll() is None and time.monotonic() - begun < 60:
            if len(list(Path("runs").rglob("progress.csv"))) > seen:
                time.sleep(goal)
                break
            time.sleep(0.02)
        process.send_signal(moments.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM]))
        codes.append(_ended(process))
    assert set(codes) <= {-9, 0, 130}
    assert -9 in codes or kills < 5
    assert subprocess.run(line, check=False, capture_output=True).returncode == 0
    whole = _rows("whole")
    assert _rows("killed") == whole
    assert len(whole) == runs[0] * runs[1]
    for end in ("curves", "gates"):
        tables = [Path(name, f"mine_{end}.csv").read_text() for name in ("whole", "killed")]
        assert sorted(tables[0].splitlines()) == sorted(tables[1].splitlines())
