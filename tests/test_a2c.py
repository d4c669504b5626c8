"""Recurrent A2C."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conformance.cases import every_family, small
from gymnasium import spaces
from toys import BOX, CRITICS, PICTURE, parameters, rollout_actions, toy

from rlgates import RecurrentA2C
from rlgates.agents import A2C_PRESETS


def model(env: Any = None, policy: str = "MlpLstmPolicy", **kwargs: Any) -> RecurrentA2C:
    policy_kwargs = {"core": "ur_lstm", "lstm_hidden_size": 6, **kwargs.pop("policy_kwargs", {})}
    settings = {"n_steps": 8, "seed": 0, "device": "cpu", **kwargs}
    return RecurrentA2C(policy, env or toy(), policy_kwargs=policy_kwargs, **settings)


@every_family
def test_every_family_trains_and_is_saved(name: str, tmp_path: Path) -> None:
    env = toy()
    agent = model(env, policy_kwargs={"core": name, "core_kwargs": small(name)})
    before = parameters(agent)
    agent.learn(96)
    assert parameters(agent).isfinite().all()
    assert not torch.equal(before, parameters(agent))
    agent.save(tmp_path / "model")
    loaded = RecurrentA2C.load(tmp_path / "model", env=env)
    np.testing.assert_array_equal(rollout_actions(loaded, env), rollout_actions(agent, env))
    loaded.learn(32)


@pytest.mark.parametrize("critic", CRITICS)
def test_an_update_is_one_step_down_the_gradient_of_the_published_loss(critic: str) -> None:
    """By hand from the buffer, with a plain optimizer whose step is the gradient itself."""
    optimizer = {"optimizer_class": torch.optim.SGD, "optimizer_kwargs": {}}
    agent = model(
        policy_kwargs={**CRITICS[critic], **optimizer},
        learning_rate=0.1,
        ent_coef=0.3,
        vf_coef=0.7,
        max_grad_norm=1e9,
        sum_over_time=True,
    )
    _, callback = agent._setup_learn(64)
    agent.collect_rollouts(agent.env, callback, agent.rollout_buffer, 8)
    policy, buffer = copy.deepcopy(agent.policy), agent.rollout_buffer
    policy.set_training_mode(True)
    agent.train()
    seen = policy.evaluate(
        buffer.observations.flatten(0, 1), buffer.actions.flatten(), buffer.states[0], buffer.starts
    )
    weight = buffer.returns - buffer.values
    per_step = (
        -weight * seen.log_probs - 0.3 * seen.entropy + 0.7 * (buffer.returns - seen.values) ** 2
    )
    per_step.sum(0).mean().backward()
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter -= 0.1 * (0 if parameter.grad is None else parameter.grad)
    for got, want in zip(agent.policy.parameters(), policy.parameters(), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "action",
    [spaces.Box(-1.0, 1.0, (2,)), spaces.MultiDiscrete([2, 3]), spaces.MultiBinary(2)],
    ids=str,
)
def test_action_spaces_train(action: spaces.Space[Any]) -> None:
    assert parameters(model(toy(action=action)).learn(64)).isfinite().all()


@pytest.mark.parametrize(
    ("space", "policy"),
    [
        (PICTURE, "CnnLstmPolicy"),
        (spaces.Dict(a=BOX, b=PICTURE), "MultiInputLstmPolicy"),
        (spaces.MultiDiscrete([2, 3]), "MlpLstmPolicy"),
        (spaces.Discrete(4), "MlpLstmPolicy"),
    ],
    ids=str,
)
def test_observation_spaces_train(space: spaces.Space[Any], policy: str) -> None:
    assert parameters(model(toy(space), policy).learn(64)).isfinite().all()


def test_gsde_trains() -> None:
    agent = model(toy(action=spaces.Box(-1.0, 1.0, (2,))), use_sde=True, sde_sample_freq=4)
    assert parameters(agent.learn(64)).isfinite().all()


def test_optimizers() -> None:
    assert type(model().policy.optimizer) is torch.optim.RMSprop
    assert type(model(use_rms_prop=False).policy.optimizer) is torch.optim.Adam


# Those of the RMA agent and its controls stand in test_rma_policy.
@pytest.mark.parametrize("name", [n for n in A2C_PRESETS if n.startswith("hung2019_gamma")])
def test_presets(name: str) -> None:
    preset = copy.deepcopy(A2C_PRESETS[name])
    gamma = preset["gamma"]
    assert name == f"hung2019_gamma_{'1' if gamma == 1 else str(gamma)[2:]}"
    agent = model(**preset)
    group = agent.policy.optimizer.param_groups[0]
    assert (group["betas"], group["eps"], agent.gae_lambda) == ((0.0, 0.95), 1e-6, gamma)
    agent.learn(64)
    assert A2C_PRESETS[name] == preset


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="chunk_len must divide n_steps = 8"):
        model(chunk_len=3)
    with pytest.raises(TypeError, match="sum_over_time"):
        model(sum_over_time=1)
    with pytest.raises(ValueError, match="Did you mean 'ur_lstm'"):
        model(policy_kwargs={"core": "ur_lstmm"})
