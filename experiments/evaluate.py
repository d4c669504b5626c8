"""How good an agent is on fresh episodes, with an interval."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from scipy.stats import binomtest
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.vec_env import VecEnv, VecTransposeImage, is_vecenv_wrapped

from rlgates.agents.evaluation import evaluate_policy
from rlgates.envs.sb3 import make_vec_env
from rlgates.errors import check_size

MAX_ROWS = 256


class Evaluation(NamedTuple):
    """What was seen.

    Attributes:
        episodes: how many were played.
        success: share of successful episodes.
        low, high: its 95 % interval (Wilson).
        last_phase_reward: mean reward of the last phase, in the environment's unit; the return
            where episodes have no phases.
    """

    episodes: int
    success: float
    low: float
    high: float
    last_phase_reward: float


def evaluation_seed(seed: int, final: bool) -> int:
    """The environments' seed of an evaluation: no training run has it (all below 2**32)."""
    return seed + (1 if final else 2) * 2**32


def fresh_env(
    model: BaseAlgorithm, env: str, env_settings: Mapping[str, Any], rows: int, seed: int
) -> VecEnv:
    """Environments of their own for a model, with its observations as it was trained on them."""
    venv: VecEnv = make_vec_env(env, rows, seed=seed, **env_settings)
    trained_in = model.get_env()
    if trained_in is not None and is_vecenv_wrapped(trained_in, VecTransposeImage):
        venv = VecTransposeImage(venv)
    return venv


def evaluate(
    model: BaseAlgorithm,
    env: str,
    env_settings: Mapping[str, Any],
    episodes: int,
    seed: int,
    deterministic: bool = True,
) -> Evaluation:
    """Play fresh episodes and count the successes.

    As `rlgates.agents.evaluate_policy` plays them.

    Args:
        model: with a policy for that environment.
        env, env_settings: which environment.
        episodes: how many, at least 1.
        seed: of the environments and of the drawn actions.
        deterministic: take the likeliest action; else draw it.

    Raises:
        ValueError: no episodes, or an environment or setting that does not exist.
    """
    rows = min(check_size("episodes", episodes), MAX_ROWS)
    venv = fresh_env(model, env, env_settings, rows, seed)
    return evaluate_in(model, venv, episodes, seed, deterministic)


def evaluate_in(
    model: Any, venv: VecEnv, episodes: int, seed: int, deterministic: bool
) -> Evaluation:
    """As `evaluate`, in given environments and with whatever has a model's `predict`."""
    seen = evaluate_policy(model, venv, episodes, deterministic, seed)
    wins = int(seen.metrics["is_success"].sum())
    interval = binomtest(wins, episodes).proportion_ci(method="wilson")
    rewards = seen.metrics.get("last_phase_reward", seen.returns)
    return Evaluation(
        episodes, wins / episodes, float(interval.low), float(interval.high), float(rewards.mean())
    )


def last_phase_reward(info: Mapping[str, Any]) -> float:
    """From the info of an episode's end; the return where there are no phases."""
    return float(info.get("last_phase_reward", info["episode"]["r"]))
