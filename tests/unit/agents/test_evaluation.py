"""Evaluation of models by whole episodes, on environments whose numbers are known."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from sb3_contrib import MaskablePPO
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    VecEnvWrapper,
    VecMonitor,
    VecNormalize,
)
from support.toys import model, toy

from rlgates import MaskableRecurrentPPO
from rlgates.agents import Estimate, PolicyEvaluation, evaluate_policy
from rlgates.agents.evaluation import POLL_STEPS
from rlgates.envs.sb3 import make_vec_env
from rlgates.envs.torch import make_torch_env

SHORT = {"explore_steps": 1, "distractor_steps": 1, "reward_steps": 15, "end_on_choice": True}


class Known(gym.Env[Any, Any]):
    """Episodes of a fixed length, reward 1 per step; every second one is a success."""

    observation_space = spaces.Box(0.0, 100.0, (1,))
    action_space = spaces.Discrete(3)

    def __init__(self, length: int) -> None:
        self.length, self.episode = length, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        self.episode += 1
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        done = self.t == self.length
        info: dict[str, Any] = {"is_success": self.episode % 2 == 0, "text": "no number"}
        if done:
            info |= {"last_phase_reward": np.float32(2.5), "parts": np.ones(3)}
        if done and self.length > 3:
            info["long"] = 7
        return np.full(1, self.t, np.float32), 1.0, done, False, info


class Counting:
    """A model whose state counts the steps of an episode, and checks it against what it sees."""

    def __init__(self) -> None:
        self.calls = 0

    def predict(self, obs: Any, state: Any, episode_start: Any, deterministic: bool) -> Any:
        state = np.zeros(len(obs)) if state is None else np.where(episode_start, 0, state)
        np.testing.assert_array_equal(state, obs[:, 0])
        self.calls += 1
        return np.zeros(len(obs), np.int64), state + 1


def batch(*lengths: int, wrapper: Any = lambda env: env) -> DummyVecEnv:
    return DummyVecEnv([lambda n=n: wrapper(Known(n)) for n in lengths])


@pytest.mark.parametrize("wrapper", [lambda env: env, Monitor], ids=["bare", "monitor"])
def test_every_environment_runs_an_equal_share(wrapper: Any) -> None:
    evaluation = evaluate_policy(Counting(), batch(1, 2, 9, wrapper=wrapper), 11)
    assert sorted(evaluation.lengths) == [1] * 3 + [2] * 4 + [9] * 4
    assert sorted(evaluation.returns) == sorted(evaluation.lengths)
    assert evaluation.metrics["is_success"].sum() == 1 + 2 + 2
    assert set(evaluation.metrics) == {"is_success", "last_phase_reward", "long"}
    assert evaluation.metrics["is_success"].mean() == pytest.approx(evaluation.success.mean)  # type: ignore[union-attr]
    assert evaluation.last_phase_reward == Estimate(2.5, 2.5, 2.5, 11)
    assert evaluation.estimate("long") == Estimate(7.0, 7.0, 7.0, 4)


def test_returns_are_those_of_a_monitor() -> None:
    class Doubled(gym.RewardWrapper[Any, Any]):
        def reward(self, reward: Any) -> float:
            return 2 * float(reward)

    inside = evaluate_policy(Counting(), batch(4, wrapper=lambda e: Doubled(Monitor(e))), 2)
    outside = evaluate_policy(Counting(), batch(4, wrapper=Doubled), 2)
    assert inside.returns.tolist() == [4, 4]
    assert outside.returns.tolist() == [8, 8]
    assert evaluate_policy(Counting(), VecMonitor(batch(4)), 2).returns.tolist() == [4, 4]

    class AllDoubled(VecEnvWrapper):
        def reset(self) -> Any:
            return self.venv.reset()

        def step_wait(self) -> Any:
            obs, rewards, dones, infos = self.venv.step_wait()
            return obs, 2 * rewards, dones, infos

    assert evaluate_policy(Counting(), AllDoubled(batch(4)), 2).returns.tolist() == [8, 8]
    above = AllDoubled(VecMonitor(batch(4)))
    assert evaluate_policy(Counting(), above, 2).returns.tolist() == [4, 4]


def test_a_monitored_episode_goes_on_where_a_wrapper_ends_one() -> None:
    class Lives(gym.Wrapper[Any, Any, Any, Any]):
        """Each loss of a life ends an episode, and only the last one resets the environment."""

        over = True

        def reset(self, **options: Any) -> Any:
            return self.env.reset(**options) if self.over else (np.zeros(1, np.float32), {})

        def step(self, action: Any) -> Any:
            obs, reward, self.over, truncated, info = self.env.step(action)
            lost = self.env.unwrapped.t % 2 == 0  # type: ignore[attr-defined]
            return 0 * obs, reward, self.over or lost, truncated, info

    class Idle:
        def predict(self, obs: Any, state: Any, episode_start: Any, deterministic: bool) -> Any:
            return np.zeros(len(obs), np.int64), None

    monitored = evaluate_policy(Idle(), batch(5, wrapper=lambda env: Lives(Monitor(env))), 3)
    assert monitored.lengths.tolist() == [5, 5, 5]
    assert evaluate_policy(Idle(), batch(5, wrapper=Lives), 3).lengths.tolist() == [2, 2, 1]


def test_returns_are_those_before_normalization() -> None:
    env = VecNormalize(batch(4, 4), norm_obs=False, training=False)
    assert evaluate_policy(Counting(), env, 2).returns.tolist() == [4, 4]
    env.norm_reward = False
    assert evaluate_policy(Counting(), env, 2).returns.tolist() == [4, 4]


def test_success_has_two_names() -> None:
    evaluation = evaluate_policy(Counting(), batch(4), 2)
    assert evaluation.estimate("success") == evaluation.success
    with pytest.raises(ValueError, match="unknown number of an evaluation 'success'"):
        PolicyEvaluation(np.zeros(1), np.ones(1), {}).estimate("success")


def test_one_gymnasium_environment() -> None:
    counting = Counting()
    evaluation = evaluate_policy(counting, Known(5), 3)
    assert evaluation.lengths.tolist() == [5, 5, 5]
    assert counting.calls == 15


def test_the_last_observation_is_no_metric() -> None:
    env = toy(spaces.Discrete(5), n_envs=2)
    assert evaluate_policy(model(env), env, 4).metrics == {}


def test_what_is_printed() -> None:
    metrics = {
        "is_success": np.array([0.0, 1, 1, 1]),
        "last_phase_reward": np.array([np.nan, 2, 2, 2]),
    }
    evaluation = PolicyEvaluation(np.array([1.0, 2, 3, 4]), np.full(4, 5.0), metrics)
    assert str(evaluation).splitlines() == [
        "4 episodes, mean and 95 % interval",
        f"return             {evaluation.estimate('return')}",
        "length             5 [5, 5]",
        "is_success         0.75 [0.25, 1]",
        "last_phase_reward  2 [2, 2] in 3 episodes",
    ]
    with pytest.raises(ValueError, match="Did you mean 'return'"):
        evaluation.estimate("returns")


def test_the_interval_is_that_of_a_mean() -> None:
    values = np.random.default_rng(1).normal(3.0, 2.0, size=400)
    estimate = PolicyEvaluation(values, values, {}).estimate("return")
    error = 1.96 * values.std() / 20
    assert estimate.mean == pytest.approx(values.mean())
    assert estimate.low == pytest.approx(values.mean() - error, abs=0.15 * error)
    assert estimate.high == pytest.approx(values.mean() + error, abs=0.15 * error)
    assert estimate == PolicyEvaluation(values, values, {}).estimate("return")
    assert PolicyEvaluation(values, values, {}).success is None
    assert PolicyEvaluation(values, values, {}).last_phase_reward is None


def test_seeds_fix_environments_and_sampled_actions() -> None:
    def lengths(seed: int, deterministic: bool = False) -> list[float]:
        env = make_vec_env("rlgates/PassiveMatch-v0", 4, **SHORT)
        return evaluate_policy(agent, env, 40, deterministic, seed).lengths.tolist()

    agent = model(make_vec_env("rlgates/PassiveMatch-v0", 4, 0, **SHORT), "CnnLstmPolicy")
    before = torch.get_rng_state()
    assert lengths(1) == lengths(1)
    assert lengths(1) != lengths(2)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("deterministic", [True, False])
def test_tensors_and_arrays_give_equal_results(deterministic: bool) -> None:
    name, policy = "rlgates/PassiveMatch-v0", "CnnLstmPolicy"
    learner = model(make_vec_env(name, 4, 0, **SHORT), policy)
    batched = evaluate_policy(learner, make_torch_env(name, 5, **SHORT), 43, deterministic, seed=3)
    assert not learner.policy.training, "dropout would act"
    stepped = evaluate_policy(learner, make_vec_env(name, 5, **SHORT), 43, deterministic, seed=3)
    assert POLL_STEPS * 5 > 43  # what is beyond the number asked for is not counted
    assert set(batched.metrics) == set(stepped.metrics) >= {"is_success", "last_phase_reward"}
    assert len(batched.returns) == 43
    assert batched.returns.tolist() == pytest.approx(stepped.returns.tolist(), abs=1e-5)
    for metric, values in stepped.metrics.items():
        assert batched.metrics[metric].tolist() == pytest.approx(values.tolist(), abs=1e-5)


class Masked(Known):
    """Only the last action is allowed."""

    def action_masks(self) -> Any:
        return np.array([False, False, True])

    def step(self, action: Any) -> Any:
        assert action == 2
        return super().step(action)


@pytest.mark.parametrize(
    "make",
    [
        lambda env: model(env, algorithm=MaskableRecurrentPPO),
        lambda env: MaskablePPO("MlpPolicy", env, seed=0, device="cpu"),
    ],
    ids=["rlgates", "sb3-contrib"],
)
def test_a_maskable_model_gets_the_masks(make: Any) -> None:
    env = DummyVecEnv([lambda: Masked(4) for _ in range(2)])
    assert evaluate_policy(make(env), env, 6, deterministic=False).lengths.tolist() == [4] * 6


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="n_eval_episodes must be at least 1, got 0"):
        evaluate_policy(Counting(), Known(3), 0)
    with pytest.raises(TypeError, match="need a model of rlgates, got Counting"):
        evaluate_policy(Counting(), make_torch_env("rlgates/PassiveMatch-v0", 2))
