"""The generated tasks: their sequences, losses and baselines."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from support.equivalence import seeded

from rlgates import make_core
from rlgates.experiments.tasks import (
    TASKS,
    Adding,
    Copy,
    CopyABA,
    Forgetting,
    GeneratedTask,
    SequenceModel,
    make_task,
)

GENERATED = [name for name, kind in TASKS.items() if issubclass(kind, GeneratedTask)]


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_a_prediction_that_is_not_finite_is_wrong(broken: float) -> None:
    task = Copy(0)
    batch = task.sample(2, seeded(0))
    predictions = torch.nn.functional.one_hot(batch.targets, task.output_size).float()
    right = batch.targets[0, 0]
    # Of NaN and inf argmax is the place, of -inf it is another one: the right one each time.
    predictions[0, 0, right - 1 if broken < 0 else right] = broken
    assert task.metrics(predictions, batch)["accuracy"] == pytest.approx(0.95)


@pytest.mark.parametrize("delay", [0, 1, 7])
def test_copy(delay: int) -> None:
    task = Copy(delay)
    batch = task.sample(500, seeded(0))
    inputs, targets = batch[:2]
    assert inputs.shape == (delay + 20, 500, 10)
    assert (inputs.sum(dim=-1) == 1).all()
    tokens = inputs.argmax(dim=-1)
    assert torch.equal(tokens[:10], targets + 1)
    assert (tokens[10 : 10 + delay] == 0).all()
    assert (tokens[-10:] == 9).all()
    assert torch.bincount(targets.flatten(), minlength=8).min() > 500
    right = torch.nn.functional.one_hot(targets, 8) * 100.0
    assert task.loss(right, batch) < 1e-6
    assert task.metrics(right, batch)["accuracy"] == 1
    blind = torch.zeros_like(right)
    assert task.loss(blind, batch).item() == pytest.approx(task.baseline) == math.log(8)
    assert task.metrics(right.roll(1, dims=0), batch)["accuracy"] < 0.2


def test_copy_with_one_cue() -> None:
    one, ten = (Copy(4, cues).sample(3, seeded(0)) for cues in ("one", "ten"))
    tokens = one.inputs.argmax(dim=-1)
    assert (tokens[14] == 9).all()
    assert (tokens[10:14] == 0).all()
    assert (tokens[15:] == 0).all()
    assert torch.equal(one.targets, ten.targets)
    assert torch.equal(one.inputs[:15], ten.inputs[:15])


def test_copy_aba() -> None:
    task = CopyABA(7, 5)
    tokens, targets, mask, episode_starts = task.sample(400, seeded(0))
    assert mask is None
    assert episode_starts is None
    assert tokens.shape == (5 + 7 + 4, 400)
    assert tokens.dtype == torch.int64
    assert torch.equal(tokens[:5], targets + 1)
    assert (tokens[5:12] == 0).all()
    assert torch.equal(tokens[12:], tokens[:4])
    assert torch.bincount(targets.flatten(), minlength=10).min() > 100
    batch = task.sample(400, seeded(0))
    blind = torch.zeros(5, 400, 10)
    assert task.loss(blind, batch).item() == pytest.approx(task.baseline) == math.log(10)
    assert task.metrics(blind, batch)["probability"].item() == pytest.approx(0.1)
    right = torch.nn.functional.one_hot(targets, 10) * 100.0
    assert task.metrics(right, batch) == {"probability": 1, "accuracy": 1}
    assert CopyABA().sample(1, seeded(0)).inputs.shape == (139, 1)


def test_forgetting_is_adding() -> None:
    ours, plain = (task.sample(3, seeded(0)) for task in (Forgetting(), Adding(500)))
    assert torch.equal(ours.inputs, plain.inputs)
    assert torch.equal(ours.targets, plain.targets)


@pytest.mark.parametrize("steps", [2, 3, 20])
def test_adding(steps: int) -> None:
    task = Adding(steps)
    batch = task.sample(20_000, seeded(0))
    inputs, targets = batch[:2]
    assert inputs.shape == (steps, 20_000, 2)
    assert targets.shape == (1, 20_000, 1)
    numbers, markers = inputs.unbind(-1)
    assert set(markers.unique().tolist()) <= {0, 1}
    for part in (markers[: steps // 2], markers[steps // 2 :]):
        assert (part.sum(dim=0) == 1).all()
        assert (part.mean(dim=1) > 0.8 / len(part)).all(), "some places are never marked"
    assert 0 <= numbers.min() <= numbers.max() < 1
    expected = (numbers * (markers == 1)).sum(dim=0)
    torch.testing.assert_close(targets[0, :, 0], expected)
    assert task.loss(torch.ones_like(targets), batch).item() == pytest.approx(1 / 6, abs=5e-3)
    assert task.baseline == 1 / 6
    assert task.metrics(targets, batch) == {}


@pytest.mark.parametrize("name", GENERATED)
def test_the_same_generator_gives_the_same_sequences(name: str) -> None:
    task = make_task(name)
    before = torch.get_rng_state()
    one, same, other = (task.sample(3, seeded(n)) for n in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(map(torch.equal, one[:2], same[:2]))
    assert not torch.equal(one.inputs, other.inputs)
    if task.tokens:
        assert one.inputs.dtype == torch.int64
        assert 0 <= one.inputs.min() <= one.inputs.max() < task.input_size
    else:
        assert one.inputs.shape[-1] == task.input_size
    assert task.starts_inside == (one.episode_starts is not None)


@pytest.mark.parametrize("name", GENERATED)
def test_a_model_predicts_the_scored_steps(name: str) -> None:
    task = make_task(name, **{TASKS[name].settings[0]: 5})
    batch = task.sample(3, seeded(0))
    model = SequenceModel(make_core("ur_lstm", task.input_size, 4), task)
    predictions = model(batch.inputs)
    assert predictions.shape == (task.scored, 3, task.output_size)
    task.loss(predictions, batch).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize(
    ("name", "settings", "error", "message"),
    [
        ("coppy", {}, ValueError, "unknown task 'coppy'. Did you mean 'copy'"),
        ("copy", {"dely": 3}, ValueError, "Did you mean 'delay'"),
        ("copy", {"delay": -1}, ValueError, "delay must be at least 0, got -1"),
        ("copy", {"delay": 1.5}, TypeError, "delay must be an integer"),
        ("copy", {"cues": "ten "}, ValueError, "unknown cues 'ten '. Did you mean 'ten'"),
        ("copy_aba", {"length": 0}, ValueError, "length must be at least 1, got 0"),
        ("lte_program", {"nesting": 11}, ValueError, "nesting must be at most 10, got 11"),
        ("lte_control", {"length": 16}, ValueError, "length must be at most 15, got 16"),
        ("lte_control", {"curriculum": "mixed"}, ValueError, "Did you mean 'mix'"),
        ("adding", {"steps": 1}, ValueError, "steps must be at least 2, got 1"),
        ("smnist", {"data_dir": 3}, TypeError, "data_dir must be a path or None, got 3"),
        ("smnist", {"pool": 3}, ValueError, "pool must divide 28 and 28, got 3"),
        ("scifar", {"pool": 0}, ValueError, "pool must be at least 1, got 0"),
        ("pmnist", {"permutation": "row"}, ValueError, "Did you mean 'rows'"),
        ("ptb_words", {"window": 0}, ValueError, "window must be at least 1"),
        ("ptb_words", {"random_windows": 1}, TypeError, "must be True or False"),
        ("enwik8", {"restart": 1.0}, ValueError, "restart must be at least 0 and below 1"),
        ("text8", {"prefix": "yes"}, TypeError, "must be True or False"),
        ("jsb", {"steps": 0}, ValueError, "steps must be at least 1"),
        ("imdb", {"words": 2}, ValueError, "words must be at least 3"),
        ("icu", {"table": 3}, TypeError, "table must be a path or None"),
    ],
)
def test_bad_settings(name: str, settings: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make_task(name, **settings)
