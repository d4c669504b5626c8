"""Temporal value transport, against a loop over heads and episodes, and by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from support.rma import SHORT, VIEW, rma_env, rma_model

from rlgates import RecurrentA2C, RecurrentPPO, make_core
from rlgates.agents.tvt import TVT, MemoryReads, check_whole_episodes, recompute_reads
from rlgates.envs.sb3 import make_vec_env

Array = np.ndarray[Any, Any]


def slow_twin(
    strengths: Array, weights: Array, rows: Array, values: Array, window: int, tvt: TVT
) -> Array:
    """One head of one episode: (T,), (T, K), rows written at these steps (T, K), (T,)."""
    steps, bonus = len(values), np.zeros_like(values)
    best = rows[np.arange(steps), weights.argmax(1)]
    cut = np.where(np.arange(steps) - best > window, strengths, 0)
    t = 0
    while t < steps:
        run = []
        while t < steps and cut[t] > tvt.threshold:
            run.append(t)
            t += 1
        if run:
            reading = max(run, key=lambda step: cut[step])  # the first of several
            for row, weight in zip(rows[reading], weights[reading], strict=True):
                if row < reading and reading - row > window:
                    bonus[row] += tvt.alpha * weight * values[reading]
        t += 1
    return bonus


@pytest.mark.parametrize("gamma", [0.5, 0.8, 0.92])
@pytest.mark.parametrize("seed", range(3))
def test_equals_the_slow_twin(seed: int, gamma: float) -> None:
    """Two episodes in each of three environments, of different lengths; tied strengths."""
    generator = np.random.default_rng(seed)
    steps, batch, heads, top_k, tvt = 60, 3, 2, 5, TVT()
    strengths = generator.integers(0, 8, (steps, batch, heads)) / 2.0
    weights = -np.sort(-generator.dirichlet(np.ones(top_k), (steps, batch, heads)))
    values = generator.normal(size=(steps, batch))
    episode_starts, ages = np.zeros((steps, batch), bool), np.zeros(weights.shape, int)
    expected = np.zeros((steps, batch))
    for row, cut in enumerate((20, 31, 45)):
        episode_starts[[0, cut], row] = True
        for begin, end in ((0, cut), (cut, steps)):
            segment = slice(begin, end)
            times = np.arange(end - begin)
            # any row of the memory, also those that are not written yet
            rows = generator.integers(0, end - begin, (end - begin, heads, top_k))
            ages[segment, row] = np.maximum(times[:, None, None] - rows, 0)
            for head in range(heads):
                expected[segment, row] += slow_twin(
                    strengths[segment, row, head], weights[segment, row, head], rows[:, head],
                    values[segment, row], int(1 / (1 - gamma)), tvt,
                )  # fmt: skip
    reads = MemoryReads(*map(torch.as_tensor, (strengths, weights, ages)))
    result = tvt.rewards(reads, torch.as_tensor(episode_starts), torch.as_tensor(values), gamma)
    assert np.count_nonzero(expected) > 10
    np.testing.assert_allclose(result.numpy(), expected, atol=1e-12)


def transport(strengths: list[float], ages: list[int], **options: Any) -> list[float]:
    """One environment, one head that reads one row; the value of step t is 100 + t."""
    settings = {"window": 2, "alpha": 1.0, **options}
    episode_starts = torch.zeros(len(ages), 1, dtype=torch.bool)
    episode_starts[settings.pop("episode_starts", [0])] = True
    values = 100 + torch.arange(len(ages), dtype=torch.float32)
    parts = torch.tensor(strengths).view(-1, 1, 1), torch.ones(len(ages), 1, 1, 1)
    reads = MemoryReads(*parts, torch.tensor(ages).view(-1, 1, 1, 1))
    return (
        TVT(**settings).rewards(reads, episode_starts, values.unsqueeze(1), 0.9).flatten().tolist()
    )


def test_the_value_goes_to_the_step_that_was_read() -> None:
    assert transport([0, 0, 0, 0, 3, 0], [0, 0, 0, 0, 4, 0]) == [104, 0, 0, 0, 0, 0]
    assert transport([0, 0, 0, 0, 3, 0], [0, 0, 0, 0, 4, 0], alpha=0.5)[0] == 52


def test_near_and_empty_rows_receive_nothing() -> None:
    assert transport([0, 0, 0, 0, 3, 0], [0, 0, 0, 0, 3, 0]) == [0, 104, 0, 0, 0, 0]
    assert transport([0, 0, 0, 0, 3, 0], [0, 0, 0, 0, 2, 0]) == [0] * 6
    assert transport([0, 0, 0, 0, 3, 0], [0] * 6, window=0) == [0] * 6


def test_the_threshold_must_be_passed() -> None:
    assert transport([0, 0, 0, 0, 2, 0], [0, 0, 0, 0, 4, 0]) == [0] * 6
    assert transport([0, 0, 0, 0, 2, 0], [0, 0, 0, 0, 4, 0], threshold=1.9)[0] == 104


def test_a_run_transports_once_from_its_strongest_read() -> None:
    ages = [0, 0, 0, 3, 4, 5, 0, 7]
    assert transport([0, 0, 0, 3, 5, 4, 0, 4], ages)[0] == 104 + 107
    assert transport([0, 0, 0, 5, 5, 5, 5, 5], ages)[0] == 103 + 107  # a near row ends a run too
    assert transport([0, 0, 0, 3, 5, 4, 9, 4], ages)[0] == 104 + 107


def test_an_episode_ends_a_run() -> None:
    strengths, ages = [0, 0, 0, 3, 4, 3, 3, 3], [0, 0, 0, 3, 4, 0, 0, 0]
    both = [*strengths, *strengths], [*ages[:4], 4, 5, 6, 7, 0, 0, 0, 3, 4, 5, 6, 7]
    result = transport(*both, episode_starts=[0, 8])
    assert result == [104] + [0] * 7 + [112] + [0] * 7
    across = transport([3] * 8, [0, 0, 0, 3, 0, 0, 0, 3], episode_starts=[0, 4])
    assert across == [103, 0, 0, 0, 107, 0, 0, 0]


def test_weights_share_the_value_except_near_rows() -> None:
    reads = MemoryReads(
        torch.tensor([0.0, 0, 0, 0, 0, 3]).view(6, 1, 1),
        torch.tensor([0.5, 0.3, 0.2]).expand(6, 1, 1, 3),
        torch.tensor([[0, 0, 0]] * 5 + [[5, 1, 4]]).view(6, 1, 1, 3),
    )
    episode_starts = torch.tensor([[True], *[[False]] * 5])
    result = TVT(window=2).rewards(reads, episode_starts, torch.full((6, 1), 10.0), 0.9)
    torch.testing.assert_close(result.flatten(), torch.tensor([4.5, 1.8, 0, 0, 0, 0]))


@pytest.mark.parametrize(
    ("gamma", "window"), [(0.92, 12), (0.96, 24), (0.5, 2), (0.0, 1), (1.0, 25)]
)
def test_the_window_is_the_horizon_of_the_discount(gamma: float, window: int) -> None:
    assert TVT().window_for(gamma) == window
    assert TVT(window=3).window_for(gamma) == 3
    with pytest.warns(DeprecationWarning, match="window_for"):
        assert TVT().horizon(gamma) == window


def test_reads_are_those_of_the_rollout() -> None:
    """Also where the memory is full: a step of age a has its z in the row that was read."""
    torch.manual_seed(0)
    options = {"latent_size": 4, "num_slots": 6, "num_heads": 2, "top_k": 3}
    core = make_core("ur_rma", 5, 3, **options)
    x, episode_starts = torch.randn(16, 2, 5), torch.zeros(16, 2, dtype=torch.bool)
    episode_starts[0] = True
    episode_starts[5, 0] = episode_starts[10, 1] = True
    outputs, _ = core(x, None, episode_starts)
    cell: Any = core.cells[0]
    reads = recompute_reads(cell, outputs, episode_starts)
    parts = cell.split(outputs)
    expected = parts.reads.unflatten(-1, (2, 4))
    torch.testing.assert_close(reads.strengths, cell.read_strengths(outputs))
    begin = (torch.arange(16).unsqueeze(1) * episode_starts).cummax(0).values
    for t in range(16):
        for row in range(2):
            for head in range(2):
                total = torch.zeros(4)
                for weight, age in zip(
                    reads.weights[t, row, head], reads.ages[t, row, head], strict=True
                ):
                    assert 0 <= age <= min(6, t - int(begin[t, row]))
                    if age:
                        total += weight * parts.latent[t - age, row]
                torch.testing.assert_close(total, expected[t, row, head])


def pushed(model: Any) -> Any:
    """The agent, with reads strong enough to be transported."""
    cell = model.policy.lstm_actor.core.cells[0]
    with torch.no_grad():
        cell.b_read[-cell.num_heads :] = 4.0
    return model


@pytest.mark.parametrize("kind", [RecurrentA2C, RecurrentPPO])
def test_rollouts_receive_transported_value(kind: Any) -> None:
    n_steps = 26  # two episodes
    model = pushed(rma_model(rma_env(), kind, n_steps=n_steps, tvt=TVT(window=3), gamma=0.9))
    plain = pushed(rma_model(rma_env(), kind, n_steps=n_steps, gamma=0.9))
    for one in (model, plain):
        _, callback = one._setup_learn(104)
        torch.manual_seed(3)
        one.collect_rollouts(one.env, callback, one.rollout_buffer, n_steps)
    buffer, before = model.rollout_buffer.sequences, plain.rollout_buffer.sequences
    assert torch.equal(buffer.actions, before.actions)
    cell = model.policy.lstm_actor.core.cells[0]
    reads = recompute_reads(cell, buffer.outputs, buffer.episode_starts)
    bonus = TVT(window=3).rewards(reads, buffer.episode_starts, buffer.values, 0.9)
    assert (bonus != 0).any()
    torch.testing.assert_close(buffer.rewards, before.rewards + bonus)
    assert not torch.allclose(buffer.returns, before.returns)
    logged = model.logger.name_to_value["rollout/tvt_reward"]
    assert logged == pytest.approx(bonus.sum().item() / 8, rel=1e-5)
    assert not hasattr(before, "outputs")
    previous = buffer.observations["previous_reward"][1:, :, 0] * ~buffer.episode_starts[1:]
    assert torch.equal(
        previous, before.rewards[:-1] * ~before.episode_starts[1:]
    )  # the agent sees none


def test_training_and_saving(tmp_path: Any) -> None:
    model = pushed(rma_model(rma_env(), RecurrentA2C, n_steps=13, tvt=TVT(alpha=0.5))).learn(104)
    model.save(tmp_path / "model")
    loaded = RecurrentA2C.load(tmp_path / "model", env=rma_env())
    assert loaded.tvt == TVT(alpha=0.5)
    loaded.learn(52)


@pytest.mark.parametrize(
    ("n_steps", "message"),
    [(12, "none is within n_steps = 12"), (20, "n_steps must be 13 or a multiple of it, got 20")],
)
def test_episodes_must_be_whole(n_steps: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rma_model(rma_env(), n_steps=n_steps, tvt=TVT()).learn(n_steps * 4)


def test_episodes_of_several_lengths_are_refused() -> None:
    episode_starts = torch.zeros(9, 2, dtype=torch.bool)
    episode_starts[[0, 4], 0] = episode_starts[[0, 7], 1] = True
    with pytest.raises(ValueError, match="one length: they last 4 to 7 steps"):
        check_whole_episodes(episode_starts, torch.tensor([False, False]))
    check_whole_episodes(episode_starts, torch.tensor([True, True]))


def test_what_cannot_transport_is_refused() -> None:
    env = make_vec_env("rlgates/PassiveMatch-v0", 2, **SHORT)
    with pytest.raises(ValueError, match=r"needs the core 'rma'.*got 'ur_lstm'"):
        RecurrentA2C("CnnLstmPolicy", env, policy_kwargs={"core": "ur_lstm"}, tvt=TVT())
    with pytest.raises(ValueError, match="with memory"):
        rma_model(rma_env(), core_kwargs={"memory": False}, reconstruction=False, tvt=TVT())
    layers = {"core": "rma", "n_lstm_layers": 2, "lstm_hidden_size": 4}
    with pytest.raises(ValueError, match=r"needs a core of one layer.*got n_lstm_layers=2"):
        RecurrentA2C("CnnLstmPolicy", env, policy_kwargs=layers, tvt=TVT())
    with pytest.raises(TypeError, match=r"tvt must be an rlgates.agents.TVT or None, got True"):
        rma_model(rma_env(), tvt=True)
    with pytest.raises(ValueError, match="alpha must be at least 0"):
        TVT(alpha=-1)
    with pytest.raises(ValueError, match="threshold must be at least 0"):
        TVT(threshold=-0.1)
    with pytest.raises(TypeError, match="window must be an integer"):
        TVT(window=1.5)


def test_other_policies_with_an_rma_transport_too() -> None:
    env = make_vec_env("rlgates/PassiveMatch-v0", 2, seed=0, **SHORT, **VIEW)
    sizes = {"latent_size": 8, "num_slots": 13, "top_k": 4}
    kwargs = {"core": "f_rma", "lstm_hidden_size": 6, "core_kwargs": sizes}
    RecurrentA2C(
        "MultiInputLstmPolicy", env, n_steps=13, policy_kwargs=kwargs, tvt=TVT(), device="cpu"
    ).learn(26)
