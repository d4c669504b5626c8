"""The table of costs: who is timed, against what, and what is written down."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch

from rlgates import make_core
from rlgates.experiments import bench
from rlgates.experiments.cli import main

ENV = "rlgates/PassiveMatch-v0"


def test_a_pair_is_timed_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ratio is the median over pairs of neighbours, and so does not drift with the machine."""
    core, reference = make_core("gru", 2, 3), make_core("lstm", 2, 3)
    order, clock = [], iter([9.0, 9.0, 2.0, 1.0, 40.0, 10.0, 9.0, 3.0])

    def run(given: object, x: torch.Tensor) -> float:
        order.append("core" if given is core else "reference")
        return next(clock)

    monkeypatch.setattr(bench, "run", run)
    ratio, least = bench.relative_time(core, reference, torch.zeros(1, 1, 2), pairs=3)
    assert (ratio, least) == (3.0, 2.0)
    assert order == ["core", "reference"] * 4


def test_a_run_is_forward_and_backward() -> None:
    core = make_core("gru", 2, 3)
    assert bench.run(core, torch.ones(4, 1, 2)) > 0
    assert all(parameter.grad is not None for parameter in core.parameters())


def test_the_table_grows_and_keeps_its_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ["--steps", "2", "--batch-size", "2", "--size", "4", "--pairs", "1"]
    for cores in (["none", "gru"], ["lstm"]):
        assert main(["bench", "cores", *small, "--results", str(tmp_path), "--cores", *cores]) == 0
    assert "x lstm" in capsys.readouterr().out
    (tmp_path / "parity.csv").write_text("core,float64,float32\ngru,1.0e-15,2.0e-07\n")
    with (tmp_path / "core_costs.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["core"] for row in rows] == ["lstm", "gru", "none"]
    assert [int(row["state_size"]) for row in rows] == [8, 4, 0]
    assert all(float(row["relative_time"]) > 0 for row in rows)
    text = bench.table(tmp_path)
    assert "| `gru` | 1.0e-15 | 2.0e-07 | 120 | 4 | 4 |" in text
    assert "T=2 B=2 d=4 threads=1" in text


def test_an_unknown_core_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "cores", "--cores", "lstn"]) == 2
    assert "Did you mean 'lstm'" in capsys.readouterr().err


def test_environments_are_timed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", "envs", "--results", str(tmp_path), "--repeats", "1", "--envs", ENV]
    assert main([*words, "--cases", "native:2000", "sb3:2000"]) == 0
    assert main([*words, "--cases", "torch:2000"]) == 0
    assert "M steps/s" in capsys.readouterr().out
    with (tmp_path / "env_speed.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["front_end"] for row in rows] == ["native", "sb3", "torch"]
    assert all(float(row["million_steps"]) > 0 for row in rows)
    text = (tmp_path / "env_speed.md").read_text()
    heads = ("environment", "`BatchedEnv` x 2,000", "SB3 `VecEnv` x 2,000", "torch, CPU x 2,000")
    assert f"| {' | '.join(heads)} |" in text
    assert f"| `{ENV}` | {rows[0]['million_steps']} M [" in text


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--envs", "rlgates/PassivMatch-v0"], "Did you mean 'rlgates/PassiveMatch-v0'"),
        (["--cases", "nativ:64"], "unknown front end 'nativ'. Did you mean 'native'?"),
        (["--cases", "native"], "cases are written front_end:num_envs, got native:."),
        (["--repeats", "0"], "repeats must be at least 1, got 0"),
    ],
)
def test_unknown_environments_and_cases_are_errors(words, text, tmp_path, capsys) -> None:
    assert main(["bench", "envs", "--results", str(tmp_path), *words]) == 2
    assert text in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
