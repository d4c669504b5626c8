"""Agents as their configs describe them: untrained, or with the weights of a finished run."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper
from stable_baselines3.common.vec_env.base_vec_env import VecEnvStepReturn

from rlgates.agents import RecurrentA2C, RecurrentPPO
from rlgates.agents.ranks import ALONE, Ranks
from rlgates.atomic import write_atomically
from rlgates.envs import BatchedEnv
from rlgates.envs.sb3 import BatchedVecEnv
from rlgates.experiments.configs.agent import AgentConfig
from rlgates.experiments.configs.gym import GymConfig
from rlgates.experiments.configs.gym_env import pick_policy
from rlgates.experiments.runs.agent.evaluate import last_phase_reward
from rlgates.experiments.runs.folder import read_config

Agent = RecurrentPPO | RecurrentA2C
AGENT_FILE, BEST_FILE = "model.rlgates", "best.rlgates"
AGENTS: dict[str, type[Agent]] = {"ppo": RecurrentPPO, "a2c": RecurrentA2C}


class ScaledReward(VecEnvWrapper):
    """Scales rewards; the returns reported at the end of an episode stay unscaled.

    Adds the last phase's reward to the `episode` record, which SB3 averages.
    """

    def __init__(self, venv: VecEnv, scale: float) -> None:
        super().__init__(venv)
        self.scale = scale

    def reset(self) -> Any:
        return self.venv.reset()

    def step_wait(self) -> VecEnvStepReturn:
        obs, rewards, dones, infos = self.venv.step_wait()
        for env in np.flatnonzero(dones):
            infos[env]["episode"]["last_phase_reward"] = last_phase_reward(infos[env])
        return obs, rewards * np.float32(self.scale), dones, infos


def build(config: AgentConfig, seed: int, ranks: Ranks = ALONE) -> tuple[Agent, BatchedVecEnv]:
    """The untrained model, and its unwrapped environments: those of this rank."""
    ranks = ranks.split(config.n_envs)
    env = BatchedVecEnv(BatchedEnv(config.make_spec(), ranks.count, seed, ranks.first))
    model = make_agent(
        config, ScaledReward(env, config.reward_scale), seed, distributed=not ranks.is_alone
    )
    return model, env


def make_agent(config: AgentConfig, env: VecEnv, seed: int, **arguments: Any) -> Agent:
    """The untrained model in given environments.

    Args:
        config: of the agent; its device is that of the agent alone.
        env: all environments of this rank, their rewards scaled.
        seed: of all random numbers of the agent.
        arguments: further ones of the algorithm.
    """
    n_steps = config.rollout_steps
    return AGENTS[config.algo](
        pick_policy(env.observation_space),
        env,
        n_steps=n_steps,
        stats_window_size=config.window,
        policy_kwargs={
            "core": config.core,
            "core_kwargs": dict(config.core_options),
            "lstm_hidden_size": config.hidden_size,
            "shared_lstm": config.critic == "shared",
            "shared_gradient": "both" if config.critic == "shared" else "actor",
            "enable_critic_lstm": config.critic == "separate",
            "net_arch": list(config.net_arch),
        },
        seed=seed,
        device=config.device,
        **algorithm_arguments(config, n_steps * config.n_envs // config.n_minibatches),
        **arguments,
    )


def algorithm_arguments(config: AgentConfig | GymConfig, batch_size: int) -> dict[str, Any]:
    """The arguments of the algorithm that both kinds of config set.

    Args:
        config: of the agent.
        batch_size: steps of a minibatch in PPO.
    """
    rate: Any = config.learning_rate
    arguments: dict[str, Any] = {
        "learning_rate": LinearSchedule(rate, 0.0, 1.0) if config.linear_schedule else rate,
        "gamma": config.gamma,
        "gae_lambda": config.gae_lambda,
        "normalize_advantage": config.normalize_advantage,
        "ent_coef": config.ent_coef,
        "vf_coef": config.vf_coef,
        "max_grad_norm": config.max_grad_norm,
    }
    if config.algo == "a2c":
        return {**arguments, "use_rms_prop": False}
    return {
        **arguments,
        "batch_size": batch_size,
        "n_epochs": config.n_epochs,
        "clip_range": config.clip_range,
    }


def count_core_parameters(model: Any) -> int:
    """Parameters of an agent's memory, including a separate one of the critic."""
    cores = model.policy.lstm_actor, model.policy.lstm_critic
    return sum(p.numel() for core in cores if core is not None for p in core.parameters())


def read_agent_config(folder: Path) -> tuple[AgentConfig, int]:
    """The config and the seed of the agent's run in `folder`.

    Raises:
        ValueError: there is no run, one of a task, or one of another version of rlgates.
    """
    config, seed = read_config(folder)
    if isinstance(config, GymConfig):
        raise ValueError(
            f"{folder} holds a run in {config.env}, but this is only for runs in the environments "
            "of rlgates. `rlgates film` shows the gates of an agent in any that renders images."
        )
    if not isinstance(config, AgentConfig):
        raise ValueError(f"{folder} does not hold a run of `rlgates train`.")
    return config, seed


def save_agent(model: Any, path: Path) -> None:
    """Write an agent of rlgates in the safe format, atomically."""
    content = io.BytesIO()
    model.save(content, format="safe")
    write_atomically(path, content.getvalue())


def load_agent(folder: Path, config: AgentConfig, seed: int) -> Agent:
    """The agent of the finished run in `folder`, with its last weights.

    Raises:
        ValueError: there is none.
    """
    weights = agent_file(folder)
    model, _ = build(config, seed)
    model.set_parameters(weights, device=model.device)
    return model


def agent_file(folder: Path, best: bool = False) -> Path:
    """The file of the agent in the folder of a finished run, which runs no code when loaded.

    Args:
        folder: of the run.
        best: the agent of the best evaluation during training, not the last one.

    Raises:
        ValueError: there is none, or only the pickled one of an earlier version.
    """
    if best:
        if not (folder / BEST_FILE).exists():
            raise ValueError(f"{folder} has no {BEST_FILE}: there was no evaluation in training.")
        return folder / BEST_FILE
    file, pickled = folder / AGENT_FILE, folder / "model.zip"
    if file.exists():
        return file
    if pickled.exists():
        raise ValueError(
            f"{pickled} is of an earlier version, and runs code when it is loaded. If you trust "
            f"it: rlgates convert {pickled} --trust, and --algo a2c if it is one of A2C."
        )
    raise ValueError(f"{folder} holds no finished run: it has no {AGENT_FILE}.")
