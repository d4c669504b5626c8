"""What Stable-Baselines3 and sb3-contrib promise of an algorithm, of those here.

The cases are those that both projects test.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.callbacks import (
    BaseCallback,
    CallbackList,
    CheckpointCallback,
    EvalCallback,
    EveryNTimesteps,
    StopTrainingOnMaxEpisodes,
    StopTrainingOnNoModelImprovement,
    StopTrainingOnRewardThreshold,
)
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import FakeImageEnv
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import VecFrameStack, VecNormalize, sync_envs_normalization
from support.toys import BOX, CRITICS, IMAGE, Toy, model, parameters, rollout_actions, toy
from torch import nn

from rlgates import MaskableRecurrentPPO, RecurrentA2C, RecurrentPPO

both_algorithms = pytest.mark.parametrize("algorithm", [RecurrentPPO, RecurrentA2C])
SMALL = {"lstm_hidden_size": 4}
DROPOUT = {"n_lstm_layers": 2, "lstm_kwargs": {"dropout": 0.5}}


def learn(agent: Any, steps: int) -> Any:
    """Learn, and check that the weights have changed and are finite."""
    before = parameters(agent)
    agent.learn(steps)
    after = parameters(agent)
    assert after.isfinite().all()
    assert not torch.equal(after, before)
    return agent


# The arguments of sb3-contrib, with its defaults: batch_size=128 of rollouts with 16 steps.
smaller_rollouts = pytest.mark.filterwarnings("ignore:batch_size = 128 does not divide")
no_dropout = pytest.mark.filterwarnings("ignore:dropout=0.5 between LSTM layers is off")


@smaller_rollouts
@no_dropout
@pytest.mark.parametrize(
    "policy_kwargs",
    [
        {},
        {"share_features_extractor": False},
        CRITICS["shared"],
        {**SMALL, **DROPOUT},
        {**SMALL, **DROPOUT, "enable_critic_lstm": False},
        {**SMALL, "enable_critic_lstm": False, "share_features_extractor": False},
    ],
    ids=str,
)
@pytest.mark.parametrize("policy", ["MlpLstmPolicy", "CnnLstmPolicy", "MultiInputLstmPolicy"])
def test_policy_options(policy: str, policy_kwargs: dict[str, Any]) -> None:
    env: Any = "CartPole-v1"
    if policy == "CnnLstmPolicy":
        env = FakeImageEnv(screen_height=40, screen_width=40, n_channels=3)
        policy_kwargs = {**policy_kwargs, "features_extractor_kwargs": {"features_dim": 32}}
    elif policy == "MultiInputLstmPolicy":
        env = toy(spaces.Dict(obs=BOX), n_envs=1)
    agent = RecurrentPPO(policy, env, n_steps=16, seed=0, n_epochs=2, policy_kwargs=policy_kwargs)
    learn(agent, 32)
    assert agent.num_timesteps == 32


@smaller_rollouts
@pytest.mark.parametrize("env", ["Pendulum-v1", "CartPole-v1"])
@both_algorithms
def test_environments_by_name(algorithm: Any, env: str) -> None:
    learn(algorithm("MlpLstmPolicy", env, n_steps=16, seed=0, policy_kwargs=SMALL), 32)


@smaller_rollouts
def test_actions_of_two_axes_train_and_are_evaluated() -> None:
    env = toy(action=spaces.Box(-1.0, 1.0, (2, 2)), n_envs=1)
    agent = RecurrentPPO("MlpLstmPolicy", env, n_steps=64, n_epochs=2, policy_kwargs=SMALL)
    learn(agent, 64)
    assert evaluate_policy(agent, env, n_eval_episodes=3)[0] > 2


@pytest.mark.parametrize("critic", [{}, {"enable_critic_lstm": True}, {"shared_lstm": True}])
def test_a_shared_core_excludes_a_critic_of_its_own(critic: dict[str, Any]) -> None:
    both = {"shared_lstm": True, "enable_critic_lstm": True, **critic}
    with pytest.raises(ValueError, match="choose one"):
        model(policy_kwargs=both)


# gSDE


class Recorded(gym.Wrapper[Any, Any, Any, Any]):
    """Keeps the actions it gets."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.actions: list[Any] = []

    def step(self, action: Any) -> Any:
        self.actions.append(action)
        return super().step(action)


@pytest.mark.parametrize("use_expln", [False, True])
@pytest.mark.parametrize("squash_output", [False, True])
@both_algorithms
def test_gsde(algorithm: Any, squash_output: bool, use_expln: bool) -> None:
    """Stored actions are in [-1, 1] if they are squashed; the environment's are rescaled."""
    env = Recorded(gym.make("Pendulum-v1"))
    policy_kwargs = {
        **SMALL, "log_std_init": -2, "use_expln": use_expln, "squash_output": squash_output,
        "net_arch": [64],
    }  # fmt: skip
    agent = model(
        env, algorithm=algorithm, n_steps=64, use_sde=True, sde_sample_freq=4, seed=1,
        policy_kwargs=policy_kwargs,
    )  # fmt: skip
    learn(agent, 255)
    stored = agent.rollout_buffer.actions.flatten()
    given = np.concatenate(env.actions[-64:])
    assert np.abs(stored).max() <= (1 if squash_output else 2)
    np.testing.assert_allclose(given, stored * 2 if squash_output else stored, atol=1e-6)
    agent.policy.reset_noise()


def test_noise_needs_actions_of_a_box() -> None:
    with pytest.raises(ValueError, match="continuous actions"):
        model(use_sde=True)
    box = toy(action=spaces.Box(-1.0, 1.0, (1,)))
    with pytest.raises(AssertionError, match="use_sde=True"):
        model(box, policy_kwargs={"squash_output": True})


# predict


@pytest.mark.parametrize(
    "action",
    [
        spaces.Discrete(3),
        spaces.MultiDiscrete([2, 3]),
        spaces.MultiBinary(3),
        spaces.Box(-1.0, 1.0, (2, 2)),
        spaces.Box(-1.0, 1.0, (2,), np.float64),
    ],
    ids=str,
)
@both_algorithms
def test_predict(algorithm: Any, action: spaces.Space[Any]) -> None:
    env = toy(action=action)
    agent = model(env, algorithm=algorithm)
    obs = env.reset()
    for deterministic in (False, True):
        actions, states = agent.predict(obs, deterministic=deterministic)
        assert actions.shape == (4, *action.shape)
        single, state = agent.predict(obs[0], deterministic=deterministic)
        assert single.shape == action.shape
        assert action.contains(single.astype(action.dtype))
        assert [half.shape for half in states] == [(1, 4, 7)] * 2
        assert [half.shape for half in state] == [(1, 1, 7)] * 2
        agent.predict(obs, states, np.zeros(4), deterministic)
        assert not agent.policy.training
    with pytest.raises(ValueError, match="Unexpected observation shape"):
        agent.predict(obs[:, :2])
    with pytest.raises(ValueError, match="got a tuple"):
        agent.predict((obs[0], {}))
    np.testing.assert_array_equal(  # a tuple, or a list, of numbers is an observation
        agent.predict(tuple(obs[0].tolist()), deterministic=True)[0],
        agent.predict(obs[0], deterministic=True)[0],
    )


@both_algorithms
def test_equal_seeds_make_equal_agents(algorithm: Any) -> None:
    def run(seed: int) -> tuple[torch.Tensor, np.ndarray[Any, Any]]:
        agent = model(toy(), algorithm=algorithm, seed=seed).learn(128)
        return parameters(agent), rollout_actions(agent, toy())

    (weights, actions), (same, same_actions), (others, _) = run(1), run(1), run(2)
    assert torch.equal(weights, same)
    np.testing.assert_array_equal(actions, same_actions)
    assert not torch.equal(weights, others)


# Spaces


@pytest.mark.parametrize(
    "action",
    [spaces.Dict(a=spaces.Discrete(2)), spaces.Tuple([spaces.Discrete(2)])],
    ids=["Dict", "Tuple"],
)
@both_algorithms
def test_nested_actions_are_refused(algorithm: Any, action: spaces.Space[Any]) -> None:
    with pytest.raises(AssertionError, match="only supports"):
        model(toy(action=action), algorithm=algorithm)


class InDict(gym.ObservationWrapper[Any, Any, Any]):
    """The observation as the only part of a dictionary."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.observation_space = spaces.Dict(a=env.observation_space)

    def observation(self, observation: Any) -> Any:
        return {"a": observation}


@both_algorithms
def test_a_dict_of_one_part_is_that_part(algorithm: Any) -> None:
    """Equal seeds give equal weights, and so equal actions."""
    seen = [
        rollout_actions(model(env, policy, algorithm).learn(64), env)
        for env, policy in (
            (make_vec_env("CartPole-v1", 4, seed=0), "MlpLstmPolicy"),
            (
                make_vec_env("CartPole-v1", 4, seed=0, wrapper_class=InDict),
                "MultiInputLstmPolicy",
            ),
        )
    ]
    np.testing.assert_array_equal(*seen)


@pytest.mark.parametrize("policy", ["MlpLstmPolicy", "CnnLstmPolicy"])
def test_dictionaries_need_their_own_policy(policy: str) -> None:
    with pytest.raises(ValueError, match="use MultiInputLstmPolicy"):
        model(toy(spaces.Dict(a=BOX)), policy)


@pytest.mark.parametrize(
    ("space", "policy"),
    [
        (BOX, "MlpLstmPolicy"),
        (IMAGE, "CnnLstmPolicy"),
        (spaces.Dict(a=BOX, b=IMAGE), "MultiInputLstmPolicy"),
    ],
    ids=["box", "image", "dict"],
)
@both_algorithms
def test_stacked_frames(space: spaces.Space[Any], policy: str, algorithm: Any) -> None:
    learn(model(VecFrameStack(toy(space), 2), policy, algorithm), 128)


@pytest.mark.parametrize("space", [BOX, spaces.Dict(a=BOX, b=BOX)], ids=["box", "dict"])
@both_algorithms
def test_vec_normalize(space: spaces.Space[Any], algorithm: Any, tmp_path: Path) -> None:
    policy = "MlpLstmPolicy" if space is BOX else "MultiInputLstmPolicy"
    env = VecNormalize(toy(space))
    agent = model(env, policy, algorithm)
    evaluation = VecNormalize(toy(space), training=False, norm_reward=False)
    learn(agent, 128)
    sync_envs_normalization(env, evaluation)
    assert evaluate_policy(agent, evaluation, n_eval_episodes=4)[0] > 2
    agent.save(tmp_path / "model")
    env.save(str(tmp_path / "statistics"))
    loaded_env = VecNormalize.load(str(tmp_path / "statistics"), toy(space))
    loaded = algorithm.load(tmp_path / "model", env=loaded_env)
    assert loaded.get_vec_normalize_env() is loaded_env
    learn(loaded, 64)


# Training and evaluation mode


class Normalizing(BaseFeaturesExtractor):
    """Layers that behave differently in training."""

    def __init__(self, space: Any) -> None:
        super().__init__(space, features_dim=5)
        self.layers = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Dropout(0.5))

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        return self.layers(observations)  # type: ignore[no-any-return]


@both_algorithms
def test_updates_alone_are_in_training_mode(algorithm: Any) -> None:
    agent = model(algorithm=algorithm, policy_kwargs={"features_extractor_class": Normalizing})
    norm: Any = agent.policy.features_extractor.layers[1]
    obs = toy().reset()
    _, callback = agent._setup_learn(64)
    agent.collect_rollouts(agent.env, callback, agent.rollout_buffer, 16)
    first, _ = agent.predict(obs, deterministic=True)
    again, _ = agent.predict(obs, deterministic=True)
    np.testing.assert_array_equal(first, again)
    assert norm.num_batches_tracked == 0
    agent.train()
    assert agent.policy.training
    assert norm.num_batches_tracked > 0
    agent.predict(obs)
    assert not agent.policy.training


# Callbacks


@both_algorithms
def test_callbacks(algorithm: Any, tmp_path: Path) -> None:
    agent = model(algorithm=algorithm)
    by_steps = CheckpointCallback(save_freq=16, save_path=str(tmp_path))
    by_event = CheckpointCallback(save_freq=1, save_path=str(tmp_path), name_prefix="event")
    evaluation = EvalCallback(
        toy(n_envs=1),
        eval_freq=16,
        n_eval_episodes=2,
        callback_on_new_best=StopTrainingOnRewardThreshold(reward_threshold=1e9),
        callback_after_eval=StopTrainingOnNoModelImprovement(10, min_evals=1),
        best_model_save_path=str(tmp_path / "best"),
        warn=False,
    )
    events = EveryNTimesteps(n_steps=64, callback=by_event)
    episodes = StopTrainingOnMaxEpisodes(max_episodes=10_000)
    agent.learn(128, callback=CallbackList([by_steps, evaluation, events, episodes]))
    assert by_event.locals["new_obs"] is by_steps.locals["new_obs"]
    assert agent.observation_space.contains(by_steps.locals["new_obs"][0])
    assert events.num_timesteps == agent.num_timesteps == 128
    assert events.n_calls == 32
    assert episodes.n_episodes > 0
    names = {path.name for path in tmp_path.glob("*.zip")}
    assert {"rl_model_64_steps.zip", "event_64_steps.zip"} <= names
    loaded = algorithm.load(tmp_path / "rl_model_128_steps.zip")
    assert loaded.num_timesteps == 128
    algorithm.load(tmp_path / "best" / "best_model")
    agent.learn(64, callback=[by_steps])
    agent.learn(64, callback=lambda _locals, _globals: True)


@both_algorithms
def test_a_callback_stops_training(algorithm: Any) -> None:
    class Stop(BaseCallback):
        def _on_step(self) -> bool:
            return self.n_calls < 5

    agent = model(algorithm=algorithm)
    before = parameters(agent)
    agent.learn(1_000, callback=Stop())
    assert agent.num_timesteps == 5 * 4
    assert torch.equal(parameters(agent), before)
    learn(agent, 64)


def test_training_stops_after_a_number_of_episodes() -> None:
    env = make_vec_env("Pendulum-v1", 2, env_kwargs={"max_episode_steps": 50})
    agent = model(env, n_steps=64, batch_size=128)
    agent.learn(1_000, callback=StopTrainingOnMaxEpisodes(max_episodes=1))
    assert agent.num_timesteps == 2 * 50


# Files


@both_algorithms
def test_a_loaded_model_goes_on_as_the_saved_one(algorithm: Any, tmp_path: Path) -> None:
    def go_on(agent: Any) -> torch.Tensor:
        agent.set_env(toy())
        agent.set_random_seed(5)
        return parameters(agent.learn(64, reset_num_timesteps=False))

    agent = model(algorithm=algorithm, learning_rate=lambda remaining: 1e-3 * remaining).learn(64)
    agent.save(tmp_path / "model")
    loaded = algorithm.load(tmp_path / "model")
    assert loaded.num_timesteps == 64
    assert torch.equal(parameters(loaded), parameters(agent))
    assert torch.equal(go_on(loaded), go_on(agent))


@both_algorithms
def test_parameters_are_exchanged(algorithm: Any) -> None:
    agent, other = model(algorithm=algorithm, seed=1), model(algorithm=algorithm, seed=2)
    agent.learn(64)
    found = copy.deepcopy(agent.get_parameters())
    assert set(found) == {"policy", "policy.optimizer"}
    other.set_parameters(found)
    assert torch.equal(parameters(other), parameters(agent))
    key = next(iter(found["policy"]))
    with pytest.raises(RuntimeError, match="Missing key"):
        other.set_parameters({**found, "policy": {key: found["policy"][key]}})
    other.set_parameters({"policy": found["policy"]}, exact_match=False)
    with pytest.raises(ValueError, match="do not match"):
        other.set_parameters({"policy": found["policy"]})


@both_algorithms
def test_parts_of_a_model_are_left_out_or_replaced(algorithm: Any, tmp_path: Path) -> None:
    agent = model(algorithm=algorithm)
    agent.save(tmp_path / "model", exclude=["n_steps"], include=["_last_obs"])
    loaded = algorithm.load(tmp_path / "model", custom_objects={"learning_rate": 1.0, "gamma": 0.5})
    assert loaded.n_steps == (5 if algorithm is RecurrentA2C else 128)  # the defaults
    assert (loaded.learning_rate, loaded.gamma) == (1.0, 0.5)


@both_algorithms
def test_an_environment_with_other_spaces_is_refused(algorithm: Any, tmp_path: Path) -> None:
    agent = model(algorithm=algorithm)
    agent.save(tmp_path / "model")
    for other in (toy(spaces.Box(-1.0, 1.0, (2,))), toy(action=spaces.Discrete(5))):
        with pytest.raises(ValueError, match="spaces do not match"):
            algorithm.load(tmp_path / "model", env=other)
        with pytest.raises(ValueError, match="spaces do not match"):
            agent.set_env(other)


@pytest.mark.parametrize("algorithm", [RecurrentPPO, RecurrentA2C, MaskableRecurrentPPO])
def test_a_model_without_an_environment_predicts_but_does_not_learn(
    algorithm: Any, tmp_path: Path
) -> None:
    agent = model(algorithm=algorithm)
    agent.save(tmp_path / "model")
    loaded = algorithm.load(tmp_path / "model")
    assert loaded.get_env() is None
    loaded.predict(toy().reset())
    with pytest.raises(ValueError, match="has no environment: pass env to load, or call set_env"):
        loaded.learn(64)


@pytest.mark.parametrize("algorithm", [RecurrentPPO, RecurrentA2C, MaskableRecurrentPPO])
def test_learning_is_logged(algorithm: Any, tmp_path: Path) -> None:
    agent = model(algorithm=algorithm, stats_window_size=5, tensorboard_log=str(tmp_path))
    kwargs = {"use_masking": False} if algorithm is MaskableRecurrentPPO else {}
    agent.learn(128, log_interval=1, tb_log_name="here", **kwargs)
    assert (tmp_path / "here_1").is_dir()
    assert agent.ep_info_buffer.maxlen == 5
    recorded = agent.logger.name_to_value
    assert {"train/value_loss", "train/entropy_loss", "train/n_updates"} <= recorded.keys()


def test_an_environment_that_ends_at_once() -> None:
    class Short(Toy):
        def reset(self, **kwargs: Any) -> Any:
            result = super().reset(**kwargs)
            self.remaining = 1
            return result

    for algorithm in (RecurrentPPO, RecurrentA2C):
        agent = model(toy(kind=Short), algorithm=algorithm)
        learn(agent, 64)
        assert agent.rollout_buffer.episode_starts.all()
