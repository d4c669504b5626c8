"""The public implementations that cores are timed against."""

from __future__ import annotations

import importlib
import json
from importlib import metadata
from pathlib import Path

import pytest
import torch
from torch import nn

from rlgates import make_core
from rlgates.experiments.bench.references import (
    REFERENCES,
    number_of_weights,
    reference_run,
    reference_version,
)
from rlgates.experiments.bench.rivals import Shape
from rlgates.experiments.cli.main import main
from rlgates.registry import CORES


@pytest.mark.filterwarnings("ignore")  # of the packages
@pytest.mark.parametrize("core", REFERENCES)
def test_references_map_sequences_and_train(core: str) -> None:
    assert core in CORES
    if reference_version(core) is None:
        pytest.skip(f"{REFERENCES[core].package} is not installed")
    reference = REFERENCES[core]
    layer, forward = reference.make(importlib.import_module(reference.module), 3, 8)
    x = torch.randn(2, 5, 3, requires_grad=True)
    y = forward(x)
    assert y.shape[:2] == (2, 5)
    y.square().sum().backward()
    assert x.grad is not None
    assert x.grad.abs().sum() > 0
    assert any(weight.grad is not None for weight in layer.parameters())


@pytest.mark.parametrize("parameters", [300, 3_000, 40_000])
def test_references_are_as_large_as_the_core(
    parameters: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    whole = REFERENCES["elman"]

    def make(*arguments: object) -> object:
        made.append(whole.make(*arguments))  # type: ignore[arg-type]
        return made[-1]

    monkeypatch.setitem(REFERENCES, "elman", whole._replace(make=make))  # type: ignore[arg-type]
    reference_run("elman", parameters, Shape(4, 2, 3, 8))()
    sizes = [sum(weight.numel() for weight in layer.parameters()) for layer, _ in made]
    assert abs(sizes[-1] - parameters) == min(abs(size - parameters) for size in sizes)
    assert abs(sizes[-1] - parameters) < 0.2 * parameters


def test_complex_parameters_count_twice() -> None:
    layer = nn.Linear(3, 5, bias=False, dtype=torch.complex64)
    assert number_of_weights(layer) == 2 * number_of_weights(nn.Linear(3, 5, bias=False)) == 30


def test_a_core_is_timed_against_its_reference(tmp_path: Path) -> None:
    words = ["bench", "cores", "--shapes", "4x2x3x8", "1x2x3x8", "--threads", "1", "--others"]
    words += ["--cores", "elman", "lstm", "--pairs", "2", "--results", str(tmp_path)]
    assert main(words) == 0
    cases = json.loads((tmp_path / "core_speed.json").read_text())["cores"]
    timed = cases["elman"]["4x2x3x8/1"]
    assert timed["public_version"] == f"torch {metadata.version('torch')}"
    assert len(timed["public"]) == len(timed["nn.LSTM"])
    assert "public" not in cases["elman"]["1x2x3x8/1"], "it steps with code of its own"
    assert "public" not in cases["lstm"]["4x2x3x8/1"]
    assert "public implementation" in (tmp_path / "core_speed.md").read_text()


def test_what_is_not_installed_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = REFERENCES["elman"]._replace(module="no_such_package")
    monkeypatch.setitem(REFERENCES, "elman", missing)
    assert reference_version("elman") is None
    assert make_core("elman", 3, 8).output_size == 8
