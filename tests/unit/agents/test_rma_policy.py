"""The Reconstructive Memory Agent: data flow, losses, and what it shares with sb3-contrib."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from sb3_contrib.common.recurrent.type_aliases import RNNStates
from support.rma import SMALL, rma_env, rma_model
from support.toys import check_identity, collected, parameters, rollout_actions, toy
from torch import Tensor, nn

from rlgates import RecurrentA2C, RecurrentPPO, RMAPolicy
from rlgates.agents import A2C_PRESETS
from rlgates.envs.sb3 import make_vec_env
from rlgates.envs.torch import make_torch_env

NO_MEMORY = {"memory": False}


def test_the_promised_line_has_the_published_size() -> None:
    policy = RecurrentA2C("RMAPolicy", rma_env(1), device="cpu").policy
    assert isinstance(policy, RMAPolicy)
    # 2,048 of these are a second bias of the two LSTM layers, which stays zero in sum.
    assert sum(p.numel() for p in policy.parameters()) - 2048 == 3_111_876
    assert policy.features_dim == 505
    assert policy.lstm_actor.core.output_size == 1312


CASES: dict[str, dict[str, Any]] = {
    "full": {},
    "plain gate": {"core": "rma"},
    "no reconstruction": {"reconstruction": False},
    "no memory": {"reconstruction": False, "core_kwargs": NO_MEMORY},
    "memoryless, reconstructing": {"core_kwargs": NO_MEMORY},
}


@pytest.mark.parametrize("case", CASES)
def test_identity(case: str) -> None:
    check_identity(rma_model(**CASES[case]), [(8, 0), (4, 0)], 16)


def test_sb3_contribs_methods_say_the_same() -> None:
    model = rma_model()
    buffer, policy = collected(model), model.policy
    observations = {
        name: part.transpose(0, 1).flatten(0, 1) for name, part in buffer.observations.items()
    }
    episode_starts = buffer.episode_starts.T.flatten().float()
    actions = buffer.actions.T.flatten()
    pair = policy.lstm_actor.pack(buffer.states[0].pi)
    values, log_probs, entropy = policy.evaluate_actions(
        observations, actions, RNNStates(pair, pair), episode_starts
    )
    close = {"rtol": 1e-5, "atol": 1e-6}
    torch.testing.assert_close(values.view(4, 8).T, buffer.values, **close)
    torch.testing.assert_close(log_probs.view(4, 8).T, buffer.log_probs, **close)
    torch.testing.assert_close(
        policy.predict_values(observations, pair, episode_starts), values, **close
    )
    distribution, _ = policy.get_distribution(observations, pair, episode_starts)
    torch.testing.assert_close(distribution.log_prob(actions), log_probs, **close)
    torch.testing.assert_close(distribution.entropy(), entropy, **close)
    first = {name: part[0] for name, part in buffer.observations.items()}
    _, first_values, _, _ = policy.forward(
        first, RNNStates(pair, pair), buffer.episode_starts[0].float()
    )
    torch.testing.assert_close(first_values.flatten(), buffer.values[0], **close)


def test_losses_are_those_of_the_decoders() -> None:
    """Averages over steps, with episode starts inside rollouts."""
    model = rma_model(image_weight=7.0, strength_weight=0.3, strength_hinge=0.1)
    buffer, policy = collected(model), model.policy
    (batch,) = buffer.minibatches(None, policy)
    evaluation = policy.evaluate(
        batch.observations, batch.actions, batch.states, batch.episode_starts
    )
    latents = policy.latents(batch.observations, batch.states, batch.episode_starts)
    cell, steps = policy.lstm_actor.core.cells[0], (8, 4)
    observations = {name: part.unflatten(0, steps) for name, part in batch.observations.items()}
    assert (observations["previous_action"].sum(-1) == 0).any()
    latent, strengths = cell.split(latents.outputs).latent, cell.read_strengths(latents.outputs)
    actions = observations["previous_action"].argmax(-1)
    expected = policy.reconstruction(
        latent,
        observations["observation"],
        actions,
        observations["previous_reward"][..., 0],
        strengths,
    )
    for name, loss in expected._asdict().items():
        torch.testing.assert_close(evaluation.auxiliary[f"{name}_loss"], loss / 8)
    decoded = policy.reconstruction.decode(latent)
    pixels = observations["observation"] / 255
    entropy = nn.functional.binary_cross_entropy_with_logits(decoded.image, pixels)
    torch.testing.assert_close(evaluation.auxiliary["image_loss"], 7 * entropy)
    hinged = 0.3 * strengths.clamp(min=0.1).sum(-1).mean()
    torch.testing.assert_close(evaluation.auxiliary["strength_loss"], hinged)


def test_strong_reads_cost_the_same_without_decoders() -> None:
    model = rma_model(reconstruction=False, strength_weight=0.3, strength_hinge=0.1)
    (batch,) = collected(model).minibatches(None, model.policy)
    given = batch.observations, batch.states, batch.episode_starts
    latents = model.policy.latents(*given)
    strengths = model.policy.lstm_actor.core.cells[0].read_strengths(latents.outputs)
    assert strengths.shape[-1] > 1
    (loss,) = model.policy.auxiliary_losses(batch.observations, latents).values()
    torch.testing.assert_close(loss, 0.3 * strengths.clamp(min=0.1).sum(-1).mean())


def test_options_of_decoders_are_checked_without_decoders() -> None:
    for name, value in {
        "channels": 0,
        "image_weight": -1,
        "action_weight": -1,
        "reward_weight": -1,
        "strength_weight": -1,
        "strength_hinge": np.nan,
    }.items():
        for reconstruction in (True, False):
            with pytest.raises(ValueError, match=f"{name} must be"):
                rma_model(reconstruction=reconstruction, **{name: value})


def test_published_weights() -> None:
    policy = RecurrentA2C("RMAPolicy", rma_env(1), device="cpu").policy
    decoders = policy.reconstruction
    weights = (decoders.image_weight, decoders.action_weight, decoders.reward_weight)
    assert weights == (50, 1, 1)
    assert (decoders.strength_weight, decoders.strength_hinge) == (5e-5, 2)
    assert policy.mlp_extractor.gradient_limit == 10


def test_an_update_follows_the_published_loss() -> None:
    """Summed over time, averaged over environments; by a plain step down the gradient."""
    optimizer = {"optimizer_class": torch.optim.SGD, "optimizer_kwargs": {}}
    model = RecurrentA2C(
        "RMAPolicy", rma_env(), n_steps=13, seed=0, device="cpu", sum_over_time=True,
        learning_rate=1e-3, ent_coef=0.3, vf_coef=0.2, max_grad_norm=float("inf"),
        policy_kwargs={**SMALL, **optimizer},
    )  # fmt: skip
    _, callback = model._setup_learn(52)
    model.collect_rollouts(model.env, callback, model.rollout_buffer, 13)
    policy, buffer = copy.deepcopy(model.policy), model.rollout_buffer.sequences
    model.train()
    flat: Any = {name: part.flatten(0, 1) for name, part in buffer.observations.items()}
    latents = policy.latents(flat, buffer.states[0], buffer.episode_starts)
    evaluation = policy.evaluate(
        flat, buffer.actions.flatten(), buffer.states[0], buffer.episode_starts
    )
    cell = policy.lstm_actor.core.cells[0]
    per_step = (
        -(buffer.returns - buffer.values) * evaluation.log_probs
        - 0.3 * evaluation.entropy
        + 0.2 * (buffer.returns - evaluation.values) ** 2
    )
    losses = policy.reconstruction(
        cell.split(latents.outputs).latent,
        buffer.observations["observation"],
        buffer.observations["previous_action"].argmax(-1),
        buffer.observations["previous_reward"].squeeze(-1),
        cell.read_strengths(latents.outputs),
    )
    (per_step.sum(0).mean() + losses.total).backward()
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter -= 1e-3 * (0 if parameter.grad is None else parameter.grad)
    for result, expected in zip(model.policy.parameters(), policy.parameters(), strict=True):
        torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", [RecurrentA2C, RecurrentPPO])
@pytest.mark.parametrize("case", CASES)
def test_trains_and_is_saved(case: str, kind: Any, tmp_path: Path) -> None:
    env = rma_env()
    model = rma_model(env, kind, **CASES[case])
    before = {name: p.detach().clone() for name, p in model.policy.named_parameters()}
    model.learn(96)
    after = dict(model.policy.named_parameters())
    assert all(p.isfinite().all() for p in after.values())
    assert [name for name, p in after.items() if torch.equal(before[name], p)] == []
    decodes = CASES[case].get("reconstruction", True)
    assert ("train/image_loss" in model.logger.name_to_value) == decodes
    assert "train/strength_loss" in model.logger.name_to_value
    model.save(tmp_path / "model")
    model.policy.save(tmp_path / "policy")
    loaded = kind.load(tmp_path / "model", env=env)
    expected = rollout_actions(model, env)
    np.testing.assert_array_equal(rollout_actions(loaded, env), expected)
    policy = RMAPolicy.load(tmp_path / "policy")
    np.testing.assert_array_equal(rollout_actions(policy, env), expected)
    assert repr(policy) == repr(model.policy)
    assert policy._decoder_options == model.policy._decoder_options
    loaded.learn(32)


@pytest.mark.parametrize("kind", [RecurrentA2C, RecurrentPPO])
def test_environments_of_tensors_train_the_same(kind: Any) -> None:
    one, other = (
        rma_model(rma_env(make=make), kind).learn(96) for make in (make_vec_env, make_torch_env)
    )
    torch.testing.assert_close(parameters(one), parameters(other))


def test_large_images_use_nature_cnn() -> None:
    space = rma_env(1).observation_space.spaces
    large = spaces.Dict({**space, "observation": spaces.Box(0, 255, (36, 40, 3), np.uint8)})
    model = rma_model(toy(large, spaces.Discrete(4), n_envs=2), channels=2).learn(32)
    assert type(model.policy.features_extractor.picture).__name__ == "NatureCNN"
    assert model.policy.reconstruction.image_shape == (3, 36, 40)


@pytest.mark.parametrize("name", [name for name in A2C_PRESETS if "rma" in name or "lstm" in name])
def test_presets(name: str) -> None:
    preset = copy.deepcopy(A2C_PRESETS[name])
    options = preset["policy_kwargs"]
    sizes = {**SMALL, **options, "core": "ur_rma"}
    sizes["core_kwargs"] = {**SMALL["core_kwargs"], **options.get("core_kwargs", {})}
    model = RecurrentA2C(
        "RMAPolicy", rma_env(), n_steps=13, device="cpu", **{**preset, "policy_kwargs": sizes}
    ).learn(104)
    assert (model.tvt is not None) == ("tvt" in name)
    assert (model.policy.reconstruction is not None) == ("rma" in name)
    assert model.policy.lstm_actor.core.cells[0].memory == ("rma" in name or "mem" in name)


def test_gradients_of_the_losses_reach_the_encoder() -> None:
    model = rma_model()
    buffer, policy = collected(model), model.policy
    (batch,) = buffer.minibatches(None, policy)
    losses: dict[str, Tensor] = model._evaluate(batch).auxiliary
    for name in ("image_loss", "action_loss", "reward_loss"):
        (gradient,) = torch.autograd.grad(
            losses[name], policy.features_extractor.picture[0].weight, retain_graph=True
        )
        assert gradient.any()
