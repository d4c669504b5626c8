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
from torch import Tensor, nn
from toys import collected, parameters, rollout_actions, toy

from rlgates import RecurrentA2C, RecurrentPPO, RMAPolicy
from rlgates.agents import A2C_PRESETS
from rlgates.envs.sb3 import make_vec_env
from rlgates.envs.torch import make_torch_env

TASK = "rlgates/PassiveMatch-v0"
SHORT: dict[str, Any] = {"explore_steps": 3, "distractor_steps": 4, "reward_steps": 6}
VIEW = {"add_previous_action": True, "add_previous_reward": True}
SMALL: dict[str, Any] = {
    "core": "ur_rma",
    "lstm_hidden_size": 6,
    "code_size": 12,
    "head_size": 10,
    "channels": 4,
    "core_kwargs": {"latent_size": 8, "num_slots": 13, "num_heads": 2, "top_k": 4},
}
EMPTY = {"memory": False}


def rma_env(n_envs: int = 4, make: Any = make_vec_env, **settings: Any) -> Any:
    return make(TASK, n_envs, seed=0, **{**SHORT, **VIEW, **settings})


def agent(env: Any = None, kind: Any = RecurrentA2C, **kwargs: Any) -> Any:
    """A small one; what is not for the algorithm is for the policy."""
    given = ("n_steps", "batch_size", "gamma", "tvt", "sequences", "chunk_len", "policy_kwargs")
    settings = {name: kwargs.pop(name) for name in given if name in kwargs}
    if kind is RecurrentPPO:
        settings = {"batch_size": None, "n_epochs": 2, **settings}
    options = {**SMALL, **kwargs}
    options["core_kwargs"] = {**SMALL["core_kwargs"], **kwargs.get("core_kwargs", {})}
    settings = {"n_steps": 8, "seed": 0, "device": "cpu", "policy_kwargs": options, **settings}
    return kind("RMAPolicy", env or rma_env(), **settings)


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
    "no memory": {"reconstruction": False, "core_kwargs": EMPTY},
    "memoryless, reconstructing": {"core_kwargs": EMPTY},
}


@pytest.mark.parametrize("case", CASES)
def test_identity(case: str) -> None:
    """Evaluating the buffer gives what was stored, with starts in mid-rollout."""
    model = agent(**CASES[case])
    buffer = collected(model)
    assert buffer.starts[1:].any()
    for chunk_len in (8, 4):
        buffer.chunk_len = chunk_len
        buffer.refresh(model.policy)
        for batch in buffer.minibatches(16, model.policy):
            with torch.no_grad():
                seen = model._evaluate(batch)
            torch.testing.assert_close(seen.log_probs, batch.log_probs, rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(seen.values, batch.values, rtol=1e-5, atol=1e-6)


def test_sb3_contribs_methods_say_the_same() -> None:
    model = agent()
    buffer, policy = collected(model), model.policy
    seen = {name: part.transpose(0, 1).flatten(0, 1) for name, part in buffer.observations.items()}
    starts = buffer.starts.T.flatten().float()
    actions = buffer.actions.T.flatten()
    pair = policy.lstm_actor.pack(buffer.states[0].pi)
    values, log_probs, entropy = policy.evaluate_actions(
        seen, actions, RNNStates(pair, pair), starts
    )
    close = {"rtol": 1e-5, "atol": 1e-6}
    torch.testing.assert_close(values.view(4, 8).T, buffer.values, **close)
    torch.testing.assert_close(log_probs.view(4, 8).T, buffer.log_probs, **close)
    torch.testing.assert_close(policy.predict_values(seen, pair, starts), values, **close)
    distribution, _ = policy.get_distribution(seen, pair, starts)
    torch.testing.assert_close(distribution.log_prob(actions), log_probs, **close)
    torch.testing.assert_close(distribution.entropy(), entropy, **close)
    first = {name: part[0] for name, part in buffer.observations.items()}
    _, given, _, _ = policy.forward(first, RNNStates(pair, pair), buffer.starts[0].float())
    torch.testing.assert_close(given.flatten(), buffer.values[0], **close)


def test_losses_are_those_of_the_decoders() -> None:
    """And averages over steps, with starts in mid-rollout."""
    model = agent(image_weight=7.0, strength_weight=0.3, strength_hinge=0.1)
    buffer, policy = collected(model), model.policy
    (batch,) = buffer.minibatches(None, policy)
    seen = policy.evaluate(batch.observations, batch.actions, batch.states, batch.starts)
    latents = policy.latents(batch.observations, batch.states, batch.starts)
    cell, steps = policy.lstm_actor.core.cells[0], (8, 4)
    given = {name: part.unflatten(0, steps) for name, part in batch.observations.items()}
    assert (given["previous_action"].sum(-1) == 0).any()
    latent, strengths = cell.split(latents.outputs).latent, cell.read_strengths(latents.outputs)
    actions = given["previous_action"].argmax(-1)
    want = policy.reconstruction(
        latent, given["observation"], actions, given["previous_reward"][..., 0], strengths
    )
    for name, loss in want._asdict().items():
        torch.testing.assert_close(seen.auxiliary[f"{name}_loss"], loss / 8)
    decoded = policy.reconstruction.decode(latent)
    pixels = given["observation"] / 255
    entropy = nn.functional.binary_cross_entropy_with_logits(decoded.image, pixels)
    torch.testing.assert_close(seen.auxiliary["image_loss"], 7 * entropy)
    hinged = 0.3 * strengths.clamp(min=0.1).sum(-1).mean()
    torch.testing.assert_close(seen.auxiliary["strength_loss"], hinged)


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
    policy, buffer = copy.deepcopy(model.policy), model.rollout_buffer
    model.train()
    flat: Any = {name: part.flatten(0, 1) for name, part in buffer.observations.items()}
    latents = policy.latents(flat, buffer.states[0], buffer.starts)
    seen = policy.evaluate(flat, buffer.actions.flatten(), buffer.states[0], buffer.starts)
    cell = policy.lstm_actor.core.cells[0]
    per_step = (
        -(buffer.returns - buffer.values) * seen.log_probs
        - 0.3 * seen.entropy
        + 0.2 * (buffer.returns - seen.values) ** 2
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
    for got, want in zip(model.policy.parameters(), policy.parameters(), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", [RecurrentA2C, RecurrentPPO])
@pytest.mark.parametrize("case", CASES)
def test_trains_and_is_saved(case: str, kind: Any, tmp_path: Path) -> None:
    env = rma_env()
    model = agent(env, kind, **CASES[case])
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
    want = rollout_actions(model, env)
    np.testing.assert_array_equal(rollout_actions(loaded, env), want)
    policy = RMAPolicy.load(tmp_path / "policy")
    np.testing.assert_array_equal(rollout_actions(policy, env), want)
    assert repr(policy) == repr(model.policy)
    assert policy._decoder_options == model.policy._decoder_options
    loaded.learn(32)


@pytest.mark.parametrize("kind", [RecurrentA2C, RecurrentPPO])
def test_environments_of_tensors_train_the_same(kind: Any) -> None:
    one, other = (
        agent(rma_env(make=make), kind).learn(96) for make in (make_vec_env, make_torch_env)
    )
    torch.testing.assert_close(parameters(one), parameters(other))


def test_large_pictures_are_read_by_nature_cnn() -> None:
    space = rma_env(1).observation_space.spaces
    large = spaces.Dict({**space, "observation": spaces.Box(0, 255, (36, 40, 3), np.uint8)})
    model = agent(toy(large, spaces.Discrete(4), n_envs=2), channels=2).learn(32)
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


def test_upstreams_minibatches_know_no_auxiliary_losses() -> None:
    with pytest.raises(ValueError, match="sequences='whole'"):
        agent(kind=RecurrentPPO, sequences="upstream", batch_size=32)


def test_gradients_of_the_losses_reach_the_encoder() -> None:
    model = agent()
    buffer, policy = collected(model), model.policy
    (batch,) = buffer.minibatches(None, policy)
    losses: dict[str, Tensor] = model._evaluate(batch).auxiliary
    for name in ("image_loss", "action_loss", "reward_loss"):
        (gradient,) = torch.autograd.grad(
            losses[name], policy.features_extractor.picture[0].weight, retain_graph=True
        )
        assert gradient.any()
