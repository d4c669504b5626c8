"""Recurrent PPO with masks of the actions."""

from __future__ import annotations

import warnings
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import sb3_contrib.ppo_recurrent.policies as contrib_policies
import torch
from gymnasium import spaces
from sb3_contrib import MaskablePPO
from sb3_contrib.common.envs import InvalidActionEnvDiscrete
from sb3_contrib.common.maskable import callbacks as contrib_callbacks
from sb3_contrib.common.maskable.utils import get_action_masks
from sb3_contrib.common.wrappers import ActionMasker
from stable_baselines3.common.callbacks import BaseCallback
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
from rlgates.agents import MaskableEvalCallback, evaluate_policy

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
    assert evaluate_policy(agent, env, 10).returns.mean() > 60  # of 100; at random 10


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
    assert callback.model is agent
    with pytest.raises(ValueError, match=r"the evaluation has no method action_masks"):
        agent.learn(64, callback=MaskableEvalCallback(toy(n_envs=1), warn=False))
    unmasked = MaskableEvalCallback(toy(n_envs=1), eval_freq=8, use_masking=False, warn=False)
    agent.learn(64, callback=unmasked)
    assert unmasked.last_mean_reward > 2


def test_masks_where_those_of_maskable_ppo_are() -> None:
    env, seen = toy(kind=Masked), []

    class Watch(BaseCallback):
        def _on_step(self) -> bool:
            seen.append(self.locals["action_masks"])
            return True

    agent = model(env)
    assert agent.rollout_buffer.action_masks is None
    agent.learn(64, callback=Watch())
    assert all(isinstance(masks, np.ndarray) and masks.dtype == bool for masks in seen)
    np.testing.assert_array_equal(agent.rollout_buffer.action_masks, np.stack(seen))
    ours, theirs = agent.rollout_buffer, MaskablePPO("MlpPolicy", env, n_steps=16).rollout_buffer
    assert ours.action_masks.shape == theirs.action_masks.shape
    assert ours.action_masks.dtype == theirs.action_masks.dtype

    agent.set_env(make_vec_env(lambda: ActionMasker(Toy(BOX, spaces.Discrete(3)), _first), 4))
    _, callback = agent._setup_learn(64)
    rollout = agent.env, callback, agent.rollout_buffer, 16
    assert agent.collect_rollouts(*rollout, use_masking=True)
    assert agent.rollout_buffer.action_masks is not None
    assert agent.collect_rollouts(*rollout)
    assert (agent.rollout_buffer.actions == 0).all()
    assert agent.collect_rollouts(*rollout, use_masking=False)
    assert (agent.rollout_buffer.actions != 0).any()
    assert agent.rollout_buffer.action_masks is None


class Recall(gym.Env[Any, Any]):
    """A cue at step 0 is to be repeated at step 2, which is paid 1."""

    observation_space = spaces.Box(-1.0, 1.0, (1,))
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t, self.cue = 0, int(self.np_random.integers(2))
        return np.array([2.0 * self.cue - 1], np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = float(self.t == 2 and action == self.cue)
        self.t += 1
        return np.zeros(1, np.float32), reward, self.t == 3, False, {}

    def action_masks(self) -> np.ndarray[Any, Any]:
        return np.ones(2, bool)


class Remembers(MaskableMlpLstmPolicy):
    """Repeats the sign of the last observation that was not 0."""

    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = False,
        action_masks: Any = None,
    ) -> Any:
        _, halves = super().predict(observation, state, episode_start, True, action_masks)
        before = halves[0] * 0 if state is None else state[0]  # type: ignore[index]
        memory = np.where(observation[:, 0] == 0, before[0, :, 0], observation[:, 0])
        state = tuple(half * 0 + memory[None, :, None] for half in halves)  # type: ignore[union-attr]
        return (memory > 0).astype(int), state


def test_evaluations_carry_the_memory_along() -> None:
    agent = model(make_vec_env(Recall, 4, seed=0), Remembers)
    env = make_vec_env(Recall, 3, seed=1)
    assert evaluate_policy(agent, env, 30).returns.mean() == 1
    callback = MaskableEvalCallback(env, eval_freq=16, n_eval_episodes=30, warn=False)
    agent.learn(64, callback=callback)
    assert callback.best_mean_reward == callback.last_mean_reward == 1


def test_a_lost_state_gives_one_warning_at_the_users_line() -> None:
    env = make_vec_env(Recall, 2, seed=0)
    agent, starts = model(env), np.array([True, False])
    masks = get_action_masks(env)
    with pytest.warns(UserWarning, match="no state in the middle of an episode") as found:
        _, state = agent.predict(env.reset(), None, starts, action_masks=masks)
    assert [warning.filename for warning in found] == [__file__]
    agent.predict(env.reset(), None, starts, action_masks=masks)  # warnings are errors here
    other = model(env)
    with warnings.catch_warnings(action="error"):  # where it is no mistake
        other.predict(env.reset(), state, starts, action_masks=masks)
        other.predict(env.reset(), None, np.ones(2, bool), action_masks=masks)
        other.predict(env.reset(), action_masks=masks)
    theirs = contrib_callbacks.MaskableEvalCallback(env, eval_freq=16, warn=False)
    with pytest.warns(UserWarning, match="use those of rlgates.agents") as found:
        other.learn(64, callback=theirs)
    assert [warning.filename for warning in found] == [__file__]


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
