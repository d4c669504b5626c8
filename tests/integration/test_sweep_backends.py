"""A study made locally, by submitit or by Ray, stopped or killed: always the same numbers."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import fake_slurm

from rlgates.experiments.cli import main as cli
from rlgates.experiments.configs.tiers import task_config
from rlgates.experiments.runs.files import Row, read_json, read_table
from rlgates.experiments.runs.jobs import NOT_STARTED, Job
from rlgates.experiments.sweep import backends
from rlgates.experiments.sweep.backends import Backend
from rlgates.experiments.sweep.results import StudyResults

pytestmark = pytest.mark.usefixtures("in_tmp_path")
MINE = """
from dataclasses import replace
from rlgates.experiments.studies import Arm, Study
from rlgates.experiments.configs.tiers import task_config
SMALL = replace(task_config("copy", "smoke"), updates={updates}, eval_every=10)
SMALL = replace(SMALL, checkpoint_minutes=1e-3)
ARM = Arm(SMALL, {cores}, gates={cores})
STUDY = Study(title="mine", laptop=(ARM,), seeds=tuple(range({seeds})))
"""
LONG = """
LONG = Arm(replace(SMALL, updates=10**8, checkpoint_minutes=60), ("lstm",), variant="long")
STUDY = Study(title="mine", laptop=(ARM, LONG), seeds=(0,))
"""
VARYING = ("seconds", "dirty", "command")
COMMAND = [sys.executable, "-m", "rlgates", "sweep", "mine.py"]


def _study(updates: int, cores: tuple[str, ...], seeds: int) -> None:
    Path("mine.py").write_text(MINE.format(updates=updates, cores=cores, seeds=seeds))


def _rows(results: str) -> dict[tuple[str, str], Row]:
    """The row of each core and seed, without columns that vary."""
    rows = read_table(Path(results) / "mine.csv")
    table = {
        (row["core"], row["seed"]): {k: v for k, v in row.items() if k not in VARYING}
        for row in rows
    }
    assert len(table) == len(rows)
    return table


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of a SLURM that runs on this machine."""
    fake_slurm.install(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    return tmp_path / "bin"


def _equal_tables(one: str, other: str) -> bool:
    """Whether two result folders hold the same runs, curves and gates."""
    lines = [
        [
            sorted(Path(results, f"mine_{suffix}.csv").read_text().splitlines())
            for suffix in ("curves", "gates")
        ]
        for results in (one, other)
    ]
    return lines[0] == lines[1] and _rows(one) == _rows(other)


@pytest.mark.parametrize("backend", ["submitit", pytest.param("ray", marks=pytest.mark.slow)])
def test_every_backend_gives_the_same_numbers(
    backend: str, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip(backend)
    _study(20, ("lstm", "gru"), 1)
    line = ["sweep", "mine.py"]
    assert cli.main([*line, "--jobs", "1", "--results", "local", "--folder", "runs"]) == 0
    line += ["--backend", backend, "--jobs", "1" if backend == "ray" else "2"]
    if backend == "submitit":
        line += ["--backend-options", "cluster=local", "timeout_min=5"]
    assert cli.main([*line, "--results", backend, "--folder", "elsewhere"]) == 0
    assert _equal_tables(backend, "local")
    assert len(_rows("local")) == 2
    assert capfd.readouterr().out.count("[2 of 2] copy, delay 4") == 2


@pytest.mark.slow
def test_a_sweep_on_slurm_is_one_job_array(slurm: Path) -> None:
    pytest.importorskip("submitit")
    _study(20, ("lstm", "gru"), 1)
    line = ["sweep", "mine.py", "--jobs", "1"]
    assert cli.main([*line, "--results", "local", "--folder", "runs"]) == 0
    line += ["--backend", "submitit", "--results", "slurm", "--folder", "elsewhere"]
    assert cli.main(line) == 0
    assert _equal_tables("slurm", "local")
    assert fake_slurm.log(slurm)[:4] == ["array 0-1%1", "start 0", "end 0", "start 1"]


def test_a_stopped_sweep_on_slurm_cancels_what_has_not_started(
    slurm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("submitit")
    monkeypatch.setattr(backends, "SACCT_SECONDS", 0.5)
    config = replace(task_config("copy", "smoke"), updates=10**8, checkpoint_minutes=60)
    jobs = [Job(config, seed) for seed in (0, 1)]

    def stop() -> bool:
        return any(Path(config.folder).rglob("progress.csv"))

    outcomes = Backend("submitit", 1, folder=Path("elsewhere")).run(jobs, stop)
    first, second = sorted(outcomes, key=lambda outcome: outcome.job.seed)
    assert (first.job.seed, first.interrupted) == (0, True)
    assert "saved in" in first.error
    assert (second.job.seed, second.error) == (1, NOT_STARTED)
    assert fake_slurm.log(slurm)[:4] == ["array 0-1%1", "start 0", "cancel", "cancelled 1"]
    assert not list(Path("elsewhere").rglob("stop-*"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--backend submitit --backend-options timeout=3", "submitit: Parameter 'timeout'"),
        ("--backend submitit --backend-options cluster=pbs", "any executor named pbs"),
        ("--backend ray --backend-options adress=auto", "ray: Unknown keyword argument(s)"),
    ],
)
def test_wrong_options_are_refused(
    options: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip(options.split()[1])
    _study(20, ("lstm",), 1)
    assert cli.main(["sweep", "mine.py", *options.split()]) == 2
    assert message in capsys.readouterr().err


def test_what_slurm_refuses_is_said(slurm: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("submitit")
    sbatch = slurm / "sbatch"
    sbatch.write_text("#!/bin/sh\necho 'sbatch: error: invalid partition specified' >&2\nexit 1\n")
    _study(20, ("lstm",), 2)
    assert cli.main(["sweep", "mine.py", "--backend", "submitit"]) == 2
    error = capsys.readouterr().err
    assert "rlgates: error: submitit: sbatch: error: invalid partition specified" in error


@pytest.mark.parametrize("backend", ["submitit", "ray"])
def test_a_backend_that_is_not_installed(
    backend: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, backend, None)
    _study(20, ("lstm",), 1)
    assert cli.main(["sweep", "mine.py", "--backend", backend]) == 2
    assert f"pip install {backend}" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["submitit", pytest.param("ray", marks=pytest.mark.slow)])
def test_remote_runs_are_saved_when_the_sweep_fails(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(backend)
    _study(20, ("lstm",), 1)
    Path("mine.py").write_text(Path("mine.py").read_text() + LONG)

    def disk_full(*_: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(StudyResults, "add", disk_full)
    assert cli.main([*COMMAND[3:], "--jobs", "2", "--backend", backend]) == 2
    (manifest,) = Path("runs/mine/long").rglob("manifest.json")
    assert read_json(manifest)["status"] == "interrupted"
    assert not list(Path("runs").rglob("stop-*"))


def _exit_code(process: subprocess.Popen[str]) -> Any:
    """The exit code, once the process and all of its workers have ended."""
    errors = process.communicate(timeout=120)[1]  # which workers hold open as long as they live
    # A worker that is starting when the first process is killed complains.
    assert "Traceback" not in errors or process.returncode == -9
    return process.returncode


@pytest.mark.slow  # `make test` kills single runs
@pytest.mark.parametrize(("runs", "kills"), [((2, 1), 1), ((4, 10), 20)])
def test_a_sweep_killed_at_random_moments_gives_the_same_numbers(
    runs: tuple[int, int], kills: int
) -> None:
    cores = ("lstm", "gru", "ur_lstm", "janet")[: runs[0]]
    _study(200, cores, runs[1])
    line = ["sweep", "mine.py", "--jobs", "1", "--results", "whole", "--folder", "w"]
    assert cli.main(line) == 0
    generator = random.Random(int.from_bytes(os.urandom(4)))
    line = [*COMMAND, "--jobs", "2", "--results", "killed", "--folder", "runs"]
    codes = []
    for _ in range(kills):
        process = subprocess.Popen(
            line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        start, delay = time.monotonic(), generator.uniform(0.0, 2.0)
        logs = len(list(Path("runs").rglob("progress.csv")))
        while process.poll() is None and time.monotonic() - start < 60:
            if len(list(Path("runs").rglob("progress.csv"))) > logs:
                time.sleep(delay)
                break
            time.sleep(0.02)
        process.send_signal(generator.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM]))
        codes.append(_exit_code(process))
    assert set(codes) <= {-9, 0, 130}
    assert -9 in codes or kills < 5
    assert cli.main([*line[3:], "--jobs", "1"]) == 0
    assert _equal_tables("killed", "whole")
    assert len(_rows("whole")) == runs[0] * runs[1]
