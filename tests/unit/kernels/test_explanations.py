"""No slow path is silent: why a backend does not run is said, and logged once."""

from __future__ import annotations

import logging
from importlib import metadata

import pytest
import torch
from support.cases import build, every_core
from support.equivalence import random_inputs, typical_episode_starts
from support.native import needs_native

from rlgates import Cell, make_core
from rlgates.cores.feedforward import FeedForward
from rlgates.experiments.cli.main import main
from rlgates.kernels import BACKENDS, dispatch


@every_core
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_explanation_names_what_runs(name: str, dtype: torch.dtype) -> None:
    core = build(name, num_layers=2, dtype=dtype)
    x = random_inputs(core, 7)
    core(x, None, typical_episode_starts())
    explanations = core.explain_backend(x, typical_episode_starts())
    assert len(explanations) == 2
    for explanation in explanations:
        assert explanation.backend == core.backend_used
        if explanation.backend == "plain":
            assert set(explanation.passed_over) == set(BACKENDS) - {"auto", "plain"}
        assert all(explanation.passed_over.values())


def test_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    core = make_core("none", 3, 4)
    monkeypatch.setattr(FeedForward, "recurrence", Cell.recurrence)
    x = torch.zeros(2, 1, 3)
    (explanation,) = core.explain_backend(x)
    assert str(explanation) == "plain; native, scan, triton: this core has no such fast path"
    core = make_core("lstm", 3, 4, dtype=torch.float64)
    (explanation,) = core.explain_backend(x.double())
    assert "float64" in explanation.passed_over["native"]
    assert explanation.passed_over["triton"]
    core.backend = "plain"
    assert str(core.explain_backend(x.double())[0]) == "plain"


def test_a_layer_that_no_kernel_runs_as_it_is_says_why(caplog: pytest.LogCaptureFixture) -> None:
    dispatch._log_once.cache_clear()
    heads, hooked = make_core("slstm", 3, 4, num_heads=2), make_core("nru", 3, 4, layer_norm=True)
    hooked.cells[0].norm.register_forward_hook(lambda *_: None)
    x = torch.zeros(2, 1, 3)
    with caplog.at_level(logging.WARNING, logger="rlgates.kernels"):
        for core, reason in (
            (heads, "it takes one head, got num_heads=2"),
            (hooked, "it computes with the weights of modules that were replaced, or whose calls"),
        ):
            (explanation,) = core.explain_backend(x)
            assert explanation.backend == "plain"
            assert set(explanation.passed_over) == set(BACKENDS) - {"auto", "plain"}
            assert all(text.startswith(reason) for text in explanation.passed_over.values())
            core(x)
            assert core.backend_used == "plain"
            assert f"than native code: {reason}" in caplog.messages[-1]
            core.backend = "native"
            with pytest.raises(ValueError, match=f"native backend cannot run this: {reason}"):
                core(x)
    assert len(caplog.messages) == 2


@needs_native
def test_each_reason_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    dispatch._log_once.cache_clear()
    x = torch.zeros(2, 1, 3)
    with caplog.at_level(logging.WARNING, logger="rlgates.kernels"):
        for _ in range(3):
            make_core("lstm", 3, 4).double()(x.double())
            make_core("gru", 3, 4).double()(x.double())
            make_core("gru", 3, 4)(x)
    assert [record.getMessage() for record in caplog.records] == [
        f"core '{name}' runs in the plain PyTorch loop, several times slower than native code: it "
        "takes float32 on the CPU, got torch.float64 on cpu."
        for name in ("lstm", "gru")
    ]


def test_doctor(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    output = capsys.readouterr().out
    assert "ur_lstm" in output
    assert f"torch {metadata.version('torch')}" in output
