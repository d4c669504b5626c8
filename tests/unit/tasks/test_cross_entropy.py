"""Decoder and cross-entropy in chunks: the same loss and gradients, without all predictions."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
from support.tiny import TINY
from torch import Tensor
from torch.nn.functional import cross_entropy, linear

from rlgates.experiments.runs.network.train import TaskRun
from rlgates.experiments.tasks import Batch
from rlgates.experiments.tasks import cross_entropy as chunks
from rlgates.experiments.tasks.cross_entropy import linear_cross_entropy
from rlgates.experiments.tasks.task import GeneratedTask


def problem(rows: int, width: int, classes: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    shapes = (rows, width), (classes, width), (classes,)
    tensors = [3 * torch.randn(s, generator=generator, dtype=dtype) for s in shapes]
    targets = torch.randint(classes, (rows,), generator=generator)
    return *(tensor.requires_grad_() for tensor in tensors), targets


def both(
    hidden: Tensor, weight: Tensor, bias: Tensor, targets: Tensor
) -> list[tuple[Tensor, tuple[Tensor, ...]]]:
    losses = (
        linear_cross_entropy(hidden, weight, bias, targets),
        cross_entropy(linear(hidden, weight, bias), targets),
    )
    inputs = hidden, weight, bias
    return [(loss, torch.autograd.grad(0.3 * loss, inputs)) for loss in losses]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(
    ("rows", "width", "classes", "numbers"),
    [(1, 3, 5, 2**20), (37, 5, 1003, 4 * 1003), (24, 7, 50, 6 * 50), (9, 4, 300, 1)],
)
def test_equals_torch(
    rows: int,
    width: int,
    classes: int,
    numbers: int,
    dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(chunks, "PREDICTIONS", numbers)
    found, expected = both(*problem(rows, width, classes, dtype))
    torch.testing.assert_close(found, expected, rtol=2e-5, atol=1e-6)


def test_gradcheck(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "PREDICTIONS", 2 * 6)
    *tensors, targets = problem(5, 3, 6, torch.float64)
    assert torch.autograd.gradcheck(lambda *x: linear_cross_entropy(*x, targets), tensors)


@pytest.mark.parametrize("trained", range(3))
def test_a_gradient_alone(trained: int) -> None:
    *tensors, targets = problem(5, 3, 6, torch.float64)
    for index, tensor in enumerate(tensors):
        tensor.requires_grad_(index == trained)
    found, expected = (
        torch.autograd.grad(loss, tensors[trained])[0]
        for loss in (
            linear_cross_entropy(*tensors, targets),
            cross_entropy(linear(*tensors), targets),
        )
    )
    torch.testing.assert_close(found, expected)


def test_logits_without_bounds() -> None:
    """As in torch, a probability of 0 has a finite loss, and NaN stays NaN."""
    hidden = torch.tensor([[1e4], [-1e4]], requires_grad=True)
    weight, bias = torch.tensor([[1.0], [-1.0]]), torch.zeros(2)
    targets = torch.tensor([1, 0])
    loss = linear_cross_entropy(hidden, weight, bias, targets)
    assert loss.item() == cross_entropy(linear(hidden, weight, bias), targets).item() == 2e4
    assert torch.autograd.grad(loss, hidden)[0].flatten().tolist() == [1.0, -1.0]
    assert linear_cross_entropy(hidden * torch.nan, weight, bias, targets).isnan()


def test_a_second_backward_pass() -> None:
    *tensors, targets = problem(5, 3, 6, torch.float64)
    loss = linear_cross_entropy(*tensors, targets)
    first, second = (torch.autograd.grad(loss, tensors, retain_graph=True) for _ in range(2))
    torch.testing.assert_close(first, second, rtol=0, atol=0)


MEMORY = r"""
import re, torch
from pathlib import Path
from torch.nn.functional import cross_entropy, linear
from rlgates.experiments.tasks.cross_entropy import linear_cross_entropy
torch.set_num_threads(1)
hidden, weight = torch.randn(4096, 8, requires_grad=True), torch.randn(16384, 8, requires_grad=True)
bias, targets = torch.zeros(16384, requires_grad=True), torch.randint(16384, (4096,))
# Not ru_maxrss, which starts at that of the process that started this one.
def peak():
    return int(re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())[1])
before = peak()
linear_cross_entropy(hidden, weight, bias, targets).backward()
chunks = peak()
cross_entropy(linear(hidden, weight, bias), targets).backward()
whole = peak()
print(chunks - before, whole - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory() -> None:
    """256 MiB of predictions are never held; torch holds them, and more."""
    found = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, check=True)
    chunked, whole = (int(number) / 1024 for number in found.stdout.split())
    assert chunked < 64
    assert whole > 256


# ---- in runs -----------------------------------------------------------------------------------


class ManyWords(GeneratedTask):
    """The token before, of 1,500."""

    tokens = True
    input_size = output_size = 1_500

    def sample(self, batch_size: int, generator: torch.Generator) -> Batch:
        tokens = torch.randint(1_500, (7, batch_size), generator=generator)
        mask = torch.rand(7, batch_size, generator=generator) < 0.8
        mask[0] = True
        return Batch(tokens, tokens.roll(1, 0), mask)


@pytest.mark.parametrize("tied", [False, True])
def test_training_is_the_same(
    tied: bool, monkeypatch: pytest.MonkeyPatch, in_tmp_path: None
) -> None:
    monkeypatch.setattr("rlgates.experiments.tasks.TASKS", {"words": ManyWords})
    monkeypatch.setattr("rlgates.experiments.configs.task.TASKS", {"words": ManyWords})
    settings: dict[str, Any] = {"task": "words", "task_settings": {}, "tied": tied}
    config = replace(TINY, **settings, embedding_size=8, folder="runs")
    weights = []
    for apart in (False, True):
        run = TaskRun(config, 3)
        if apart:
            monkeypatch.setattr(run.task, "decoder_loss", lambda *_: None)
        else:
            hidden = run.network.unroll_hidden(torch.zeros(7, 1, dtype=torch.int64))[0]
            batch = Batch(*(torch.zeros(7, 1, dtype=torch.int64),) * 2)
            assert run.task.decoder_loss(hidden, run.network.decoder, batch) is not None
        for _ in range(5):
            run.learn()
        weights.append(torch.nn.utils.parameters_to_vector(run.network.parameters()))
    torch.testing.assert_close(*weights, rtol=1e-4, atol=1e-6)


def test_where_predictions_are_needed() -> None:
    task, batch = ManyWords(), Batch(*(torch.zeros(2, 1, dtype=torch.int64),) * 2)
    few, many = torch.nn.Linear(3, 999), torch.nn.Linear(3, 1_500)
    assert task.decoder_loss(torch.zeros(2, 1, 3), many, batch) is not None
    assert task.decoder_loss(torch.zeros(2, 1, 3), few, batch) is None
    assert task.decoder_loss(torch.zeros(2, 1, 3).double(), many.double(), batch) is None

    class Own(ManyWords):
        def loss(self, predictions: Tensor, batch: Batch) -> Tensor:
            return predictions.square().mean()

    assert Own().decoder_loss(torch.zeros(2, 1, 3), torch.nn.Linear(3, 1_500), batch) is None
