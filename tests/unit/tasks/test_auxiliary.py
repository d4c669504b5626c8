"""The auxiliary loss of Trinh et al. 2018 against a loop, what it learns, and runs with it."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.tiny import stop_after
from torch import nn

from rlgates import make_core
from rlgates.experiments.configs.identity import identity
from rlgates.experiments.configs.task import TaskConfig, build_auxiliary, build_model
from rlgates.experiments.configs.tiers import task_config
from rlgates.experiments.runs import logs
from rlgates.experiments.runs.network.train import TaskRun
from rlgates.experiments.runs.stopping import InterruptedRun
from rlgates.experiments.tasks import (
    TASKS,
    AuxiliaryKind,
    AuxiliaryLoss,
    make_sequence_model,
    make_task,
)


def small(folder: Path, **changes: Any) -> TaskConfig:
    config = TaskConfig(task_settings={"delay": 4}, core="lstm", hidden_size=8, folder=str(folder))
    config = replace(config, updates=6, batch_size=4, eval_every=2, eval_sequences=16)
    return replace(config, auxiliary="reconstruct", auxiliary_steps=6, **changes)


@pytest.mark.parametrize("kind", ["reconstruct", "predict"])
@pytest.mark.parametrize("task", ["copy_aba", "adding"])
@pytest.mark.parametrize("core", ["ur_lstm", "lru"])
def test_loss_equals_a_loop_over_steps(kind: AuxiliaryKind, task: str, core: str) -> None:
    config = TaskConfig(task=task, task_settings={}, core=core, hidden_size=8, num_layers=2)
    config = replace(config, auxiliary=kind, auxiliary_steps=5)
    network = build_model(config, config.make_task()).double()
    auxiliary = build_auxiliary(config, network)
    assert auxiliary is not None
    auxiliary.double()
    inputs = network_inputs(task, 12)
    torch.manual_seed(4)
    anchor, first, end = auxiliary.draw_segment(12)
    torch.manual_seed(4)
    loss = auxiliary(network, inputs)

    _, state = network.core(network.encode(inputs[:anchor]))
    upper, losses = auxiliary.upper.initial_state(3), []
    for step in range(first, end - 1):
        hidden, state = auxiliary.lower(network.encode(inputs[step : step + 1]), state)
        output, upper = auxiliary.upper(hidden, upper)
        prediction, target = auxiliary.decoder(output[0]), inputs[step + 1]
        if target.is_floating_point():
            losses.append((prediction - target).square().mean())
        else:
            losses.append(nn.functional.cross_entropy(prediction, target))
    torch.testing.assert_close(loss, torch.stack(losses).mean())
    loss.backward()
    grads = [weight.grad for weight in network.core.parameters() if weight.grad is not None]
    assert any(grad.abs().sum() > 0 for grad in grads), "the state at the anchor is not trained"


def network_inputs(task: str, steps: int) -> torch.Tensor:
    batch = make_task(task).sample(3, torch.Generator().manual_seed(0))  # type: ignore[attr-defined]
    inputs: torch.Tensor = batch.inputs[:steps]
    return inputs.double() if inputs.is_floating_point() else inputs


@pytest.mark.parametrize("steps", [4, 100])
def test_segments_lie_beside_the_anchor(steps: int) -> None:
    torch.manual_seed(0)
    cores = make_core("gru", 3, 4), make_core("gru", 4, 4)
    for kind in ("reconstruct", "predict"):
        auxiliary = AuxiliaryLoss(*cores, width=3, kind=kind, steps=steps)  # type: ignore[arg-type]
        length = 7 if steps == 4 else 5  # too short for 100
        seen = {auxiliary.draw_segment(length) for _ in range(100)}
        assert {end - first for _, first, end in seen} == {4}
        last = length - 4
        if kind == "reconstruct":
            assert seen == {(at + 4, at, at + 4) for at in range(last + 1)}
        else:
            assert seen == {(at, at, at + 4) for at in range(1, last + 1)}
    with pytest.raises(ValueError, match="at least 3, got 2"):
        auxiliary.draw_segment(2)


def test_the_state_learns_to_tell_what_was_seen() -> None:
    """Random tokens are told better than by chance only from the state."""
    torch.manual_seed(0)
    network = make_sequence_model(make_task("copy_aba"), "lstm", 32)
    assert network.num_tokens is not None
    cores = make_core("lstm", network.num_tokens, 32), make_core("lstm", 32, 32)
    auxiliary = AuxiliaryLoss(*cores, width=network.num_tokens, kind="reconstruct", steps=3)
    optimizer = torch.optim.Adam([*network.parameters(), *auxiliary.parameters()], 0.01)
    losses = []
    for _ in range(300):
        loss = auxiliary(network, torch.randint(network.num_tokens, (6, 64)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert sum(losses[:10]) / 10 > 0.95 * math.log(network.num_tokens)
    assert sum(losses[-10:]) / 10 < 0.5 * math.log(network.num_tokens)


def test_a_run_trains_with_it_alone_and_then_with_both(tmp_path: Path) -> None:
    run = TaskRun(small(tmp_path, auxiliary_updates=3), 0)
    assert run.auxiliary is not None
    decoders = run.network.decoder, run.auxiliary.decoder
    before = [decoder.weight.clone() for decoder in decoders]
    for update in range(1, 5):
        run.learn()
        after = [decoder.weight.clone() for decoder in decoders]
        assert torch.equal(after[0], before[0]) == (update <= 3)
        assert not torch.equal(after[1], before[1])
    learned = TaskRun(small(tmp_path, auxiliary_updates=3), 0).train()
    assert learned.ended == "budget"
    rows = logs.read_rows(run.folder.path / "progress.csv")
    means = logs.column(rows, "train/auxiliary_loss")[1:]  # each of two updates
    assert len(means) == 3
    assert means.max() < 1.5 * means.min()


def test_sequences_that_start_within_a_batch_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TASKS["lte_program"], "starts_inside", False)  # a task that does not say so
    config = replace(task_config("lte_program", "smoke"), folder=str(tmp_path))
    run = TaskRun(replace(config, auxiliary="predict", auxiliary_steps=5), 0)
    with pytest.raises(ValueError, match="'lte_program' it would learn the padding"):
        run.learn()


def test_patience_waits_for_the_first_updates(tmp_path: Path) -> None:
    config = small(tmp_path, patience=1, auxiliary_updates=6, learning_rate=1e-9)
    assert TaskRun(replace(config, updates=20), 0).train().steps == 8


def test_an_interrupted_run_goes_on_as_if_it_had_not_been(tmp_path: Path) -> None:
    whole = TaskRun(small(tmp_path / "whole", auxiliary_updates=2), 1)
    expected = whole.train()
    config = small(tmp_path / "parts", auxiliary_updates=2)
    with pytest.raises(InterruptedRun):
        TaskRun(config, 1).train(stop=stop_after(3))
    last = TaskRun(config, 1)
    assert last.train().losses == expected.losses
    assert all(map(torch.equal, last.parameters, whole.parameters))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"auxiliary": "reconstuct"}, "Did you mean 'reconstruct'"),
        ({"auxiliary": "none", "auxiliary_updates": 1}, "is for auxiliary='reconstruct'"),
        ({"task": "ptb_words", "task_settings": {}, "updates": 1}, "go on from batch to batch"),
        ({"task": "lte_program", "task_settings": {}}, "may start within one"),
        ({"auxiliary_steps": 1}, "auxiliary_steps must be at least 2"),
    ],
)
def test_bad_settings(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=words):
        replace(small(tmp_path), **changes).check()


def test_runs_without_it_are_those_of_before(tmp_path: Path) -> None:
    config = small(tmp_path)
    without = identity(replace(config, auxiliary="none", auxiliary_steps=9))
    assert not [name for name in without if name.startswith("auxiliary")]
    added = {"auxiliary": "reconstruct", "auxiliary_steps": 6, "auxiliary_updates": 0}
    assert identity(config) == {**without, **added}
