"""Launches that are recorded and replayed: here without a graph, which needs a GPU."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from interpreted import DEVICE, REASON

pytest.importorskip("triton", reason=REASON)
from test_triton import check_against_loop, go, inputs, seeded

from rlgates.kernels import triton_graph

# exp(100) is infinite, and its reciprocal the 0 that it should be
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.fixture(autouse=True)
def no_recordings() -> Iterator[None]:
    triton_graph.forget()
    yield
    triton_graph.forget()


def test_a_recorded_pass_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    go("steps", monkeypatch)
    core = seeded("ur_lstm", 5)
    x, state, starts = inputs(core, 3, 4)
    for turn in range(3):  # in the second one it is recorded
        with torch.no_grad():
            core.cells[0].weight_hh.mul_(1.1)
        check_against_loop(core, (turn + 1) * x, state, starts)
        recorded = [recording is not None for recording in triton_graph._recordings.values()]
        assert recorded == [turn > 0] * 2  # forward and backward


def test_a_recorded_pass_may_wait_for_its_way_back(monkeypatch: pytest.MonkeyPatch) -> None:
    go("steps", monkeypatch)
    core = seeded("lstm", 3)
    x, state, starts = inputs(core, 2, 4)
    for scale in (1.0, 2.0):
        core(scale * x, state, starts)[0].sum().backward()
    core.zero_grad()
    early, kept = core(x, state, starts)[0], core(-x, state, starts)[0].clone()
    early.sum().backward()
    got = core.cells[0].weight_hh.grad
    core.backend = "plain"
    core.zero_grad()
    core(x, state, starts)[0].sum().backward()
    torch.testing.assert_close(got, core.cells[0].weight_hh.grad)
    torch.testing.assert_close(kept, core(-x, state, starts)[0])


def test_a_recording_made_in_inference_mode_serves_outside(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    go("steps", monkeypatch)
    core, x = seeded("lstm", 3), torch.ones(4, 2, 5, device=DEVICE)
    with torch.inference_mode():
        for _ in range(2):
            core(x)
    with torch.no_grad():
        got = core(-x)
    core.backend = "plain"
    torch.testing.assert_close(got, core(-x))


def test_few_recordings_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    go("steps", monkeypatch)
    monkeypatch.setattr(triton_graph, "KEPT", 2)
    core = seeded("lstm", 3)
    with torch.no_grad():
        for rows in (1, 2, 3, 1, 1):
            core(torch.ones(4, rows, 5, device=DEVICE))
    kept = triton_graph._recordings
    assert [recording is not None for recording in kept.values()] == [False, True]


def test_a_recording_that_fails_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    go("steps", monkeypatch)
    monkeypatch.setattr(triton_graph, "_failed", False)

    def fail(*_: Any) -> None:
        raise RuntimeError("no graphs today")

    monkeypatch.setattr(triton_graph, "Recording", fail)
    core = seeded("lstm", 3)
    with torch.no_grad(), caplog.at_level(logging.WARNING, logger="rlgates.kernels"):
        for _ in range(4):
            core(torch.ones(4, 2, 5, device=DEVICE))
    assert [record.message for record in caplog.records] == [
        "no CUDA graph can be recorded, launches go one by one: no graphs today."
    ]
