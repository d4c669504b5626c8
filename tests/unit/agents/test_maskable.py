"""Recurrent PPO with masks of the actions."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sb3_contrib.ppo_recurrent.policies as contrib_policies
import torch
from gymnasium import spaces
from sb3_contrib.common.envs import InvalidActionEnvDiscrete
from sb3_contrib.common.maskable.callbacks import MaskableEvalCallback
from sb3_contrib.common.maskable.evaluation import evaluate_policy
from sb3_contrib.common.maskable.utils import get_action_masks
from sb3_contrib.common.wrappers import ActionMasker
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.policies import ActorCriticPolicy
from support import toys
from support.toys import BOX, IMAGE, Masked, Toy, parameters, toy

from rlgates import (
    MaskableMlpLstmPolicy,
    MaskableRecurrentPPO,
    MlpLstmPolicy,
    RecurrentA2C,
    RecurrentPPO,
)

model = partial(toys.model, algorithm=MaskableRecurrentPPO)
ACTIONS: dict[str, spaces.Space[Any]] = {
    "discrete": spaces.Discrete(4),
    "multi-discrete": spaces.MultiDiscrete([2, 3]),
    "multi-binary": spaces.MultiBinary(3),
}


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize(
    ("space", "policy"),
    [
        (BOX, "MlpLstmPolicy"),
        (IMAGE, "CnnLstmPolicy"),
        (spaces.Dict(a=BOX, b=IMAGE), "MultiInputLstmPolicy"),
    ],
    ids=["box", "image", "dict"],
)
def test_forbidden_actions_are_never_taken(
    space: spaces.Space[Any], policy: str, action: str
) -> None:
    env = toy(space, ACTIONS[action], kind=Masked)
    agent = model(env, policy)
    before = parameters(agent)
    agent.learn(128)
    assert not torch.equal(before, parameters(agent))
    assert parameters(agent).isfinite().all()
    observation, state, episode_starts = env.reset(), None, np.ones(4, bool)
    for _ in range(10):
        masks = get_action_masks(env)
        chosen, state = agent.predict(observation, state, episode_starts, action_masks=masks)
        observation, _, episode_starts, _ = env.step(chosen)  # asserts


def test_masks_may_stand_last_among_the_arguments_of_predict() -> None:
    """As in MaskablePPO."""
    agent, mask = model(toy(kind=Masked)), np.array([False, True, False])
    for one in (agent, agent.policy):
        assert one.predict(BOX.sample(), None, None, False, mask)[0] == 1


@pytest.mark.parametrize("action", ACTIONS)
def test_identity(action: str) -> None:
    """Before the first update, evaluating the buffer reproduces the stored values."""
    agent = model(toy(BOX, ACTIONS[action], kind=Masked), chunk_len=8)
    _, callback = agent._setup_learn(64)
    agent.collect_rollouts(agent.env, callback, agent.rollout_buffer, 16)
    for batch in agent.rollout_buffer.sequences.minibatches(32, agent.policy):
        with torch.no_grad():
            evaluation = agent._evaluate(batch)
            unmasked = agent.policy.evaluate(
                batch.observations, batch.actions, batch.states, batch.episode_starts
            )
        torch.testing.assert_close(evaluation.log_probs, batch.old_log_prob)
        assert not torch.allclose(unmasked.log_probs, batch.old_log_prob)
        assert (evaluation.entropy < unmasked.entropy).any()


def test_it_learns_among_few_allowed_actions() -> None:
    env = make_vec_env(lambda: InvalidActionEnvDiscrete(dim=20, n_invalid_actions=10), 4, seed=0)
    agent = model(env, n_steps=64, batch_size=64, n_epochs=6, learning_rate=3e-3, gamma=0.4)
    agent.learn(8_192)
    reward, _ = evaluate_policy(agent, env, n_eval_episodes=10, warn=False)
    assert reward > 60  # of 100; at random 10


def test_save_and_load(tmp_path: Path) -> None:
    env = toy(kind=Masked)
    agent = model(env).learn(64)
    agent.save(tmp_path / "model")
    loaded = MaskableRecurrentPPO.load(tmp_path / "model", env=env)
    assert torch.equal(parameters(loaded), parameters(agent))
    loaded.learn(64)


@pytest.mark.parametrize("suffix", ["zip", "rlgates"])
@pytest.mark.parametrize("algorithm", [RecurrentPPO, RecurrentA2C])
def test_other_algorithms_would_drop_the_masks(algorithm: Any, suffix: str, tmp_path: Path) -> None:
    path, name = tmp_path / f"model.{suffix}", algorithm.__name__
    model(toy(kind=Masked)).save(path)
    message = f"load it with MaskableRecurrentPPO.load, not {name}.load"
    with pytest.raises(ValueError, match=message):
        algorithm.load(path)
    with pytest.raises(ValueError, match=f"MaskableMlpLstmPolicy takes action masks.* {message}"):
        toys.model(toy(kind=Masked), MaskableMlpLstmPolicy, algorithm)


def test_without_masks() -> None:
    agent = model(toy())
    with pytest.raises(ValueError, match="has no method action_masks"):
        agent.learn(64)
    agent.learn(64, use_masking=False)
    agent.set_env(make_vec_env(lambda: ActionMasker(Toy(BOX, spaces.Discrete(3)), _first), 4))
    agent.learn(64)
    assert (agent.rollout_buffer.actions == 0).all()
    agent.learn(64, use_masking=False)
    assert (agent.rollout_buffer.actions != 0).any()


def _first(_: Any) -> np.ndarray[Any, Any]:
    return np.array([True, False, False])


def test_evaluation_callback(tmp_path: Path) -> None:
    agent, other = model(toy(kind=Masked)), toy(kind=Masked, n_envs=1)
    callback = MaskableEvalCallback(other, eval_freq=16, n_eval_episodes=2, warn=False)
    agent.learn(64, callback=callback)
    assert callback.last_mean_reward > 2


def test_an_environment_with_masks_of_another_width_is_refused() -> None:
    four = make_vec_env(lambda: ActionMasker(Toy(BOX, spaces.Discrete(4)), _first), 4)
    with pytest.raises(ValueError, match=r"action_masks must be \(4, 4\).* got \(4, 3\)"):
        model(four).learn(64)


def test_bad_input() -> None:
    for unmasked in (MlpLstmPolicy, contrib_policies.MlpLstmPolicy):
        with pytest.raises(TypeError, match=r"must take action masks.* got MlpLstmPolicy"):
            model(toy(kind=Masked), unmasked)
    with pytest.raises(TypeError, match=r"must be one of rlgates.* got ActorCriticPolicy"):
        model(toy(kind=Masked), ActorCriticPolicy)
    with pytest.raises(ValueError, match="masks are for Discrete, MultiDiscrete and MultiBinary"):
        model(toy(action=spaces.Box(-1.0, 1.0, (2,))))
    with pytest.raises(ValueError, match="sequences='upstream' was removed"):
        model(toy(), sequences="upstream")
