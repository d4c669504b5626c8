"""Recurrent A2C."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import pytest
import torch
from gymnasium import spaces
from support import toys
from support.toys import CRITICS

from rlgates import RecurrentA2C
from rlgates.agents import A2C_PRESETS
from rlgates.agents.a2c import _Settings

model = partial(toys.model, algorithm=RecurrentA2C, n_steps=8)


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
    policy, buffer = copy.deepcopy(agent.policy), agent.rollout_buffer.sequences
    policy.set_training_mode(True)
    agent.train()
    evaluation = policy.evaluate(
        buffer.observations.flatten(0, 1),
        buffer.actions.flatten(),
        buffer.states[0],
        buffer.episode_starts,
    )
    weight = buffer.returns - buffer.values
    per_step = (
        -weight * evaluation.log_probs
        - 0.3 * evaluation.entropy
        + 0.7 * (buffer.returns - evaluation.values) ** 2
    )
    per_step.sum(0).mean().backward()
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter -= 0.1 * (0 if parameter.grad is None else parameter.grad)
    for result, expected in zip(agent.policy.parameters(), policy.parameters(), strict=True):
        torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-6)


def test_without_an_entropy_the_log_probabilities_estimate_it() -> None:
    """Those of squashed actions have none: unlikely actions are to become likelier."""
    agent = model(
        toys.toy(action=spaces.Box(-1.0, 1.0, (2,))),
        policy_kwargs={"squash_output": True},
        use_sde=True,
        ent_coef=0.3,
    )
    (batch,) = toys.collected(agent).minibatches(None, agent.policy)
    evaluation, (loss, metrics) = agent._evaluate(batch), agent._loss(batch, _Settings(0.3, 0, 1))
    assert evaluation.entropy is None
    expected = evaluation.log_probs.mean()
    torch.testing.assert_close(metrics["entropy_loss"], expected)
    torch.testing.assert_close(loss, metrics["policy_loss"] + 0.3 * expected)


def test_optimizers() -> None:
    assert type(model().policy.optimizer) is torch.optim.RMSprop
    assert type(model(use_rms_prop=False).policy.optimizer) is torch.optim.Adam


@pytest.mark.parametrize(
    ("options", "unused"),
    [
        ({"policy_kwargs": {"optimizer_kwargs": {"eps": 0.1}}}, r"optimizer_kwargs=\{'eps': 0.1\}"),
        ({"policy_kwargs": {"optimizer_class": torch.optim.Adam}, "rms_prop_eps": 0.1}, "eps=0.1"),
        ({"use_rms_prop": False, "rms_prop_eps": 0.1}, "rms_prop_eps=0.1"),
    ],
)
def test_unused_options_of_the_optimizer_warn(options: dict[str, Any], unused: str) -> None:
    with pytest.warns(UserWarning, match=f"{unused} (is|are) not used"):
        agent = model(**options)
    assert agent.policy.optimizer.param_groups[0]["eps"] != 0.1


def test_options_of_the_optimizer_that_are_used() -> None:
    adam = {"optimizer_class": torch.optim.Adam, "optimizer_kwargs": {"eps": 0.1}}
    for options in (
        {"policy_kwargs": adam},
        {"policy_kwargs": {"optimizer_kwargs": {"eps": 0.1}}, "use_rms_prop": False},
        {"rms_prop_eps": 0.1},
    ):
        assert model(**options).policy.optimizer.param_groups[0]["eps"] == 0.1


def test_the_options_of_the_caller_stay_as_they_were() -> None:
    """So that those of another agent may be the same dictionary."""
    options = {"lstm_hidden_size": 4}
    RecurrentA2C("MlpLstmPolicy", toys.toy(), policy_kwargs=options, device="cpu")
    assert options == {"lstm_hidden_size": 4}


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
