"""Evaluate an agent on fresh episodes, with a confidence interval."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.vec_env import VecEnv, VecTransposeImage, is_vecenv_wrapped

from rlgates.agents.evaluation import evaluate_policy
from rlgates.envs.sb3 import make_vec_env
from rlgates.errors import check_size
from rlgates.experiments.configs.agent import AgentConfig

MAX_ENVS = 256


class Evaluation(NamedTuple):
    """The result of an evaluation.

    Attributes:
        episodes: number of episodes.
        success: share of successful episodes.
        low, high: 95 % Wilson interval of `success`.
        last_phase_reward: mean reward of the last phase, in the environment's unit; the return
            where episodes have no phases.
    """

    episodes: int
    success: float
    low: float
    high: float
    last_phase_reward: float


def evaluation_seed(seed: int, final: bool) -> int:
    """The environment seed of an evaluation, above all training seeds (below 2**32)."""
    return seed + (1 if final else 2) * 2**32


def fresh_env(model: BaseAlgorithm, config: AgentConfig, num_envs: int, seed: int) -> VecEnv:
    """New environments for a model, with the observation wrapper it was trained with."""
    venv: VecEnv = make_vec_env(config.env, num_envs, seed=seed, **config.env_settings)
    train_env = model.get_env()
    if train_env is not None and is_vecenv_wrapped(train_env, VecTransposeImage):
        venv = VecTransposeImage(venv)
    return venv


def evaluate(model: BaseAlgorithm, config: AgentConfig, episodes: int, seed: int) -> Evaluation:
    """Evaluate on fresh episodes with `rlgates.agents.evaluate_policy`.

    Args:
        model: with a policy for the environment of the config.
        config: has the environment, and whether actions are sampled.
        episodes: number of episodes, at least 1.
        seed: of the environments and of sampled actions.

    Raises:
        ValueError: no episodes, or an unknown environment or setting.
    """
    num_envs = min(check_size("episodes", episodes), MAX_ENVS)
    venv = fresh_env(model, config, num_envs, seed)
    return evaluate_in(model, venv, episodes, seed, config.eval_deterministic)


def evaluate_in(
    model: Any, venv: VecEnv, episodes: int, seed: int, deterministic: bool
) -> Evaluation:
    """As `evaluate`, in existing environments, for any `model` with `predict`."""
    from scipy.stats import binomtest  # delays the start of every command

    results = evaluate_policy(model, venv, episodes, deterministic, seed)
    wins = int(results.metrics["is_success"].sum())
    interval = binomtest(wins, episodes).proportion_ci(method="wilson")
    rewards = results.metrics.get("last_phase_reward", results.returns)
    return Evaluation(
        episodes, wins / episodes, float(interval.low), float(interval.high), float(rewards.mean())
    )


def last_phase_reward(info: Mapping[str, Any]) -> float:
    """The last phase's reward in the final info of an episode; the return without phases."""
    return float(info.get("last_phase_reward", info["episode"]["r"]))
