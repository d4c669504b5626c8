"""The bench for a GPU, its pieces on the CPU: what it measures, and what it says of failures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from support.interpreted import MISSING, REASON
from torch import nn

from rlgates.experiments.bench import gpu as gpu_bench
from rlgates.experiments.cli.main import main

CPU = torch.device("cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "gpu"]) == 2
    assert "torch finds no GPU here" in capsys.readouterr().err


def test_it_runs_to_its_end_whatever_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no such kernel")

    for name in ("compare", "launch_modes"):
        monkeypatch.setattr(gpu_bench, name, fail)
    words = ["bench", "gpu", "--device", "cpu", "--results", str(tmp_path), "--cores", "mingru"]
    assert main(words) == 0
    assert "FAILED: RuntimeError: no such kernel" in capsys.readouterr().out
    found = json.loads((tmp_path / gpu_bench.NAME).read_text())
    assert {"start", "end", "device", "versions", "git"} <= found["about"].keys()
    assert [entry["core"] for entry in found["correct"]] == ["mingru"]
    assert found["correct"][0]["error"] < 1e-5
    assert found["environments"][0]["million_steps_per_second"] > 0
    assert not found["speed"]
    parts = {failure["part"] for failure in found["failures"]}
    assert parts == {"speed", "ways"}
    assert all("no such kernel" in failure["error"] for failure in found["failures"])


def test_what_there_is_no_time_for_is_left_out(tmp_path: Path) -> None:
    report = gpu_bench.Report(tmp_path / "a.json", seconds=-1)
    report.add("ways", {"H": 3}, dict)
    report.write()
    found = json.loads((tmp_path / "a.json").read_text())
    assert found["left_out"] == [{"part": "ways", "H": 3}]
    assert found["ways"] == []


def test_a_wrong_core_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    right = gpu_bench.correct("mingru", "float32", CPU, (3, 2, 3, 4))
    assert right["error"] < 1e-5
    monkeypatch.setattr(gpu_bench, "TOLERANCES", {"float32": 0.0})
    with pytest.raises(AssertionError, match="'error'"):
        gpu_bench.correct("mingru", "float32", CPU, (3, 2, 3, 4))


def test_pieces_of_a_sequence_are_its_episodes() -> None:
    starts = torch.tensor([[False, True], [False, False], [True, False], [False, False]])
    lengths, order = gpu_bench.episodes(starts)
    assert lengths.tolist() == [2, 2, 4]
    assert order.tolist() == [0, 2, 4, 6, 1, 3, 5, 7]
    lstm, x = nn.LSTM(3, 4), torch.randn(4, 2, 3)
    outputs = gpu_bench.split(lstm, x, lengths.tolist(), order)
    torch.testing.assert_close(outputs[:2, 1], lstm(x[2:, 0])[0])
    torch.testing.assert_close(outputs[:, 2], lstm(x[:, 1])[0])


def test_a_core_is_timed_beside_cudnn() -> None:
    found = gpu_bench.compare("mingru", "float32", 3, 2, 4, CPU, repeats=1)
    assert found["backend"]
    for name in ("core_ms", "cudnn_ms", "core_resets_ms", "cudnn_resets_ms", "speedup_resets"):
        assert found[name] > 0


@pytest.mark.skipif(MISSING, reason=REASON)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_kernels_are_checked() -> None:
    assert gpu_bench.correct("ur_lstm", "tf32", CPU, (2, 2, 3, 4))["backend"] == "triton"


@pytest.mark.slow
@pytest.mark.skipif(MISSING, reason=REASON)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_kernels_are_timed_both_ways() -> None:
    found = gpu_bench.launch_modes(4, 2, 4, CPU, repeats=1)
    for name in ("tf32_launches_ms", "tf32_walk_ms", "bf16_walk_ms"):
        assert found[name] > 0
