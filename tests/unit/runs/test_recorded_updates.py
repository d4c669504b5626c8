"""Updates of supervised runs as CUDA graphs: on a CPU with a tape, and on a GPU."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support import tape
from support.tiny import TINY, stop_after
from torch import Tensor

from rlgates.agents import recording
from rlgates.agents.recording import Recorded
from rlgates.experiments.configs.task import TaskConfig
from rlgates.experiments.runs.network import train
from rlgates.experiments.runs.network.evaluate import read
from rlgates.experiments.runs.network.train import TaskRun
from rlgates.experiments.runs.stopping import InterruptedRun
from rlgates.experiments.tasks import Batch, SequenceModel

PLAIN: dict[str, Any] = {"core_options": {"backend": "plain"}, "updates": 12, "eval_every": 4}
RUNS: dict[str, TaskConfig] = {
    "as they are": replace(TINY, **PLAIN),
    "no clipping": replace(TINY, **PLAIN, max_grad_norm=None),
    "dropout": replace(TINY, **PLAIN, input_dropout=0.5, output_dropout=0.5),
    "another optimizer": replace(TINY, **PLAIN, decoder_size=8, optimizer="rmsprop"),
}


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs on the CPU, of operations of torch alone, as there are on a GPU."""
    monkeypatch.setattr(recording, "record", tape.record)
    monkeypatch.setattr(train, "can_record", lambda device: True)


def weights(run: TaskRun) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in run.network.parameters()])


@pytest.mark.usefixtures("graphs")
@pytest.mark.parametrize("name", RUNS)
def test_graphs_compute_the_same(name: str, tmp_path: Path) -> None:
    runs = []
    for cuda_graphs in (True, False):
        folder = str(tmp_path / str(cuda_graphs))
        run = TaskRun(replace(RUNS[name], folder=folder, cuda_graphs=cuda_graphs), 0)
        run.train()
        runs.append(run)
    one, other = runs
    for recorded in (one._gradients, one._figures_of, one._trace_gates):
        assert isinstance(recorded, Recorded)
        assert recorded.replays
    assert not isinstance(other._gradients, Recorded)
    assert one.losses == other.losses
    assert torch.equal(weights(one), weights(other))


@pytest.mark.usefixtures("graphs")
def test_a_state_is_carried_from_graph_to_graph(tmp_path: Path) -> None:
    """The results of a replay are in the memory that the next one writes to."""
    runs = []
    for cuda_graphs in (True, False):
        folder = str(tmp_path / str(cuda_graphs))
        run = TaskRun(replace(TINY, **PLAIN, folder=folder, cuda_graphs=cuda_graphs), 0)
        run.task.carries_state = True
        for _ in range(8):
            run.learn()
        runs.append(run)
    one, other = runs
    assert one.state is not None
    assert other.state is not None
    assert torch.equal(one.state, other.state)
    assert torch.equal(weights(one), weights(other))


def goes_on(config: TaskConfig, tmp_path: Path) -> None:
    """A stopped run ends with the weights of one that was not stopped."""
    whole = TaskRun(replace(config, folder=str(tmp_path / "whole")), 3)
    expected = whole.train()
    stopped = replace(config, folder=str(tmp_path / "stopped"))
    with pytest.raises(InterruptedRun):
        TaskRun(stopped, 3).train(stop=stop_after(5))
    last = TaskRun(stopped, 3)
    assert last.train().losses == expected.losses
    assert torch.equal(weights(last), weights(whole))


@pytest.mark.usefixtures("graphs")
def test_graphs_of_several_lengths_share_their_gradients(tmp_path: Path) -> None:
    runs = []
    for cuda_graphs in (True, False):
        folder = str(tmp_path / str(cuda_graphs))
        run = TaskRun(replace(TINY, **PLAIN, folder=folder, cuda_graphs=cuda_graphs), 0)
        draw, lengths = run.feed.draw, itertools.cycle((0, 1, 2))

        def shortened(draw: Any = draw, lengths: Any = lengths) -> Batch:
            batch = draw()
            return batch._replace(inputs=batch.inputs[next(lengths) :])

        run.feed.draw = shortened  # type: ignore[method-assign]
        for _ in range(18):
            run.learn()
        runs.append(run)
    one, other = runs
    assert isinstance(one._gradients, Recorded)
    assert [kept.calls for kept in one._gradients._recordings] == [6, 6, 6]
    assert torch.equal(weights(one), weights(other))


@pytest.mark.usefixtures("graphs")
def test_a_stopped_run_goes_on_with_a_new_graph(tmp_path: Path) -> None:
    goes_on(RUNS["dropout"], tmp_path)


@pytest.mark.usefixtures("graphs")
def test_masked_targets_and_auxiliary_losses_have_no_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(TINY, **PLAIN, folder=str(tmp_path))
    with_auxiliary = TaskRun(replace(config, auxiliary="predict", auxiliary_steps=2), 0)
    assert not isinstance(with_auxiliary._gradients, Recorded)
    run = TaskRun(config, 0)
    batch = run.feed.draw()
    targets = batch.targets
    masks = [torch.ones_like(targets, dtype=torch.bool), torch.zeros_like(targets) > 0]
    batches = iter([Batch(batch.inputs, targets, mask) for mask in masks])
    monkeypatch.setattr(run.feed, "draw", lambda: next(batches))
    run.learn()
    before = weights(run)
    run.learn()  # no target counts
    assert torch.equal(before, weights(run))
    assert isinstance(run._gradients, Recorded)
    assert not run._gradients._recordings


def test_numbers_of_a_tensor_are_read() -> None:
    assert read(torch.tensor([1.5, -2.0])) == [1.5, -2.0]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
class TestOnAGpu:
    """What a tape cannot show."""

    @pytest.mark.parametrize("core", ["ur_lstm", "gru", "gato", "minlstm"])
    @pytest.mark.parametrize("amp", ["none", "bf16"])
    def test_graphs_learn_as_launches_do(self, core: str, amp: str, tmp_path: Path) -> None:
        losses = []
        for cuda_graphs in (True, False):
            config = replace(RUNS["dropout"], core=core, core_options={}, device="cuda", amp=amp)
            folder = str(tmp_path / str(cuda_graphs))
            run = TaskRun(replace(config, folder=folder, cuda_graphs=cuda_graphs), 0)
            losses.append([loss for _, loss in run.train().losses])
            if cuda_graphs:
                assert isinstance(run._gradients, Recorded)
                assert run._gradients.replays
        assert losses[0] == pytest.approx(losses[1], rel=1e-4 if amp == "none" else 1e-2)

    def test_a_stopped_run_goes_on_bit_for_bit(self, tmp_path: Path) -> None:
        goes_on(replace(RUNS["dropout"], core_options={}, device="cuda"), tmp_path)

    def test_a_network_that_waits_is_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        unroll = SequenceModel.unroll_hidden

        def waits(network: SequenceModel, inputs: Tensor, *args: Any) -> Any:
            float(network.decoder.bias.sum())
            return unroll(network, inputs, *args)

        monkeypatch.setattr(SequenceModel, "unroll_hidden", waits)
        run = TaskRun(replace(TINY, **PLAIN, device="cuda", folder=str(tmp_path)), 0)
        with pytest.raises(ValueError, match=r"never waits for the GPU: .*\. Pass --no-cuda-gr"):
            run.train()
