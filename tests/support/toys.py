"""Small agents and environments."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env
from torch import nn

from rlgates import RecurrentA2C, RecurrentPPO

CRITICS: dict[str, dict[str, Any]] = {
    "separate": {},
    "shared": {"shared_lstm": True, "enable_critic_lstm": False},
    "shared, both gradients": {
        "shared_lstm": True,
        "enable_critic_lstm": False,
        "shared_gradient": "both",
    },
    "none": {"enable_critic_lstm": False},
}


class Toy(gym.Env[Any, Any]):
    """Random observations of any space, in episodes of 3 to 9 steps."""

    def __init__(self, observation: spaces.Space[Any], action: spaces.Space[Any]) -> None:
        self.observation_space, self.action_space = observation, action

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.remaining = int(self.np_random.integers(3, 10))
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(np.asarray(action))
        self.remaining -= 1
        return self.observation_space.sample(), 1.0, self.remaining == 0, False, {}


class Masked(Toy):
    """Of each choice all but one outcome may be forbidden, at random; it must be obeyed."""

    def action_masks(self) -> np.ndarray[Any, Any]:
        space: Any = self.action_space
        sizes = {"Discrete": lambda: [space.n], "MultiDiscrete": lambda: space.nvec}
        self.masks = []
        for size in sizes.get(type(space).__name__, lambda: [2] * space.n)():
            allowed = self.np_random.random(size) < 0.5
            allowed[self.np_random.integers(size)] = True
            self.masks.append(allowed)
        return np.concatenate(self.masks)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        chosen = np.atleast_1d(action).astype(int)
        assert all(mask[one] for mask, one in zip(self.masks, chosen, strict=True))
        return super().step(action)


BOX = spaces.Box(-1.0, 1.0, (3,))
IMAGE = spaces.Box(0, 255, (5, 5, 3), np.uint8)


def toy(
    observation: spaces.Space[Any] = BOX,
    action: spaces.Space[Any] | None = None,
    n_envs: int = 4,
    kind: type[Toy] = Toy,
) -> Any:
    return make_vec_env(lambda: kind(observation, action or spaces.Discrete(3)), n_envs, seed=0)


def model(
    env: Any = None, policy: Any = "MlpLstmPolicy", algorithm: Any = RecurrentPPO, **kwargs: Any
) -> Any:
    policy_kwargs = {"core": "ur_lstm", "lstm_hidden_size": 7, **kwargs.pop("policy_kwargs", {})}
    settings = {"n_steps": 16, "seed": 0, "device": "cpu"}
    if algorithm is not RecurrentA2C:
        settings |= {"batch_size": 32, "n_epochs": 2}
    return algorithm(policy, env or toy(), policy_kwargs=policy_kwargs, **{**settings, **kwargs})


def parameters(agent: Any) -> torch.Tensor:
    return nn.utils.parameters_to_vector(agent.policy.parameters()).detach().clone()


def rollout_actions(agent: Any, env: Any, steps: int = 20) -> np.ndarray[Any, Any]:
    """Deterministic actions from a fixed seed, with the state carried along."""
    env.seed(3)
    obs, state, episode_starts, actions = env.reset(), None, np.ones(env.num_envs, bool), []
    for _ in range(steps):
        action, state = agent.predict(obs, state, episode_starts, deterministic=True)
        obs, _, episode_starts, _ = env.step(action)
        actions.append(action)
    return np.stack(actions)


def collected(agent: Any, rollouts: int = 2) -> Any:
    """The buffer after some rollouts; all but the first start within episodes."""
    for _ in range(rollouts):
        _, callback = agent._setup_learn(64, reset_num_timesteps=agent._last_obs is None)
        assert agent.collect_rollouts(agent.env, callback, agent.rollout_buffer, agent.n_steps)
    agent.policy.set_training_mode(False)  # as during the rollout: no dropout
    buffer = agent.rollout_buffer
    return getattr(buffer, "sequences", buffer)


def check_identity(agent: Any, chunks: list[tuple[int, int]], batch_size: int) -> None:
    """Before the first update, evaluating the buffer reproduces the stored values.

    Args:
        agent: any of ours.
        chunks: chunk length and burn-in; if not those of the agent, states are made again.
        batch_size: steps of a minibatch.
    """
    buffer = collected(agent)
    assert buffer.episode_starts[1:].any()
    for chunk_len, burn_in in chunks:
        if (chunk_len, burn_in) != (buffer.chunk_len, buffer.burn_in):
            buffer.chunk_len, buffer.burn_in = chunk_len, burn_in
            buffer.refresh(agent.policy)
        for batch in buffer.minibatches(batch_size, agent.policy):
            with torch.no_grad():
                evaluation = agent._evaluate(batch)
            close = {"rtol": 1e-5, "atol": 1e-6}
            torch.testing.assert_close(evaluation.log_probs, batch.old_log_prob, **close)
            torch.testing.assert_close(evaluation.values, batch.old_values, **close)
