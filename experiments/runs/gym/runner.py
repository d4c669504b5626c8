"""The runner of agents in environments of gymnasium."""

from __future__ import annotations

import math
import shlex
import warnings
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np

from rlgates.agents.sequences.core_module import CoreModule
from rlgates.experiments.configs.base import options_text
from rlgates.experiments.configs.gym import GymConfig
from rlgates.experiments.configs.identity import comparison, digest, identity
from rlgates.experiments.runs.agent.build import count_core_parameters
from rlgates.experiments.runs.files import Row
from rlgates.experiments.runs.gym.envs import make_envs
from rlgates.experiments.runs.gym.train import (
    GymResult,
    build,
    find_steps_to_goal,
    read_evaluations,
    train,
)
from rlgates.experiments.runs.runner import Job, Runner, Stop
from rlgates.experiments.runs.text import ending_text, steps_text, time_text


class GymRunner(Runner[GymConfig, GymResult]):
    """Agents in environments of gymnasium."""

    config_type, result_type = GymConfig, GymResult

    def check(self, config: GymConfig) -> None:
        config.check()
        # What the algorithm and the policy take is known when they are made.
        one = replace(config, n_envs=1, vec_env="dummy")
        with closing(make_envs(one, 0, training=True)) as env, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            build(one, 0, env)

    def smoke(self, config: GymConfig) -> GymConfig:
        # Value transport needs whole episodes.
        n_steps = config.n_steps if "tvt" in config.algo_kwargs else 16
        steps = 2 * n_steps * config.n_envs
        algo_kwargs = dict(config.algo_kwargs)
        if "chunk_len" in algo_kwargs:
            algo_kwargs |= {"chunk_len": n_steps // 2, "burn_in": 0}
        return replace(
            config,
            algo_kwargs=algo_kwargs,
            hidden_size=16,
            n_steps=n_steps,
            batch_size=n_steps // 2 * config.n_envs,
            n_epochs=1,
            total_steps=steps,
            eval_every=steps // 2,
            eval_episodes=2,
            final_episodes=2,
        )

    def train(self, job: Job, stop: Stop, bar: bool | None) -> GymResult:
        return train(self.config(job), job.seed, stop=stop, bar=bar)

    def describe(self, job: Job, result: GymResult) -> list[str]:
        config = self.config(job)
        success = "" if result.success is None else f"success {result.success:.2f}, "
        reached = (
            "its outputs are no longer finite"
            if math.isnan(result.mean_return)
            else f"{success}return {result.mean_return:.4g} [{result.low:.4g}, {result.high:.4g}] "
            f"over {config.final_episodes} fresh episodes"
        )
        return [
            f"{self.label(job)}: {reached} after "
            f"{steps_text(result.steps)} steps in {time_text(result.seconds)}"
            f"{ending_text(result.ended)} "
            f"-> {job.folder.path / 'curve.png'}"
        ]

    def objective(self, config: GymConfig) -> tuple[str, bool]:
        return "return", True

    def score(self, job: Job, result: GymResult) -> float:
        return math.nan if result.ended == "diverged" else result.mean_return

    def row(self, job: Job, result: GymResult) -> dict[str, Any]:
        config = self.config(job)
        threshold, best = config.reward_threshold, config.best_return
        steps_to_goal = find_steps_to_goal(
            job.folder.path, config, result.mean_return, result.steps
        )
        return {
            "title": config.title,
            "core": config.core,
            "seed": job.seed,
            "mean_return": round(result.mean_return, 3),
            "success": "" if result.success is None else round(result.success, 4),
            "episodes": config.final_episodes,
            "success_return": "" if threshold is None else threshold,
            "best_return": "" if best is None else best,
            "worst_return": "" if best is None else config.worst_return,
            "published": config.published,
            # Not that of the result: since then the goal may have been set anew.
            "steps_to_goal": steps_to_goal or "",
            "budget": config.total_steps,
            "steps": result.steps,
            "ended": result.ended,
            "algo": config.algo,
            "core_options": options_text(identity(config)["core_options"]),
            **_sizes(config),
            "seconds": result.seconds,
            "config": digest(comparison(config)),
            "env": config.env,
            "env_settings": shlex.join(f"{name}={v}" for name, v in config.env_settings.items()),
            **job.folder.provenance(),
        }

    def curve(self, job: Job, result: GymResult) -> list[Row]:
        steps, returns = read_evaluations(job.folder.path)
        if not len(steps):
            steps, returns = np.array([result.steps]), np.array([result.mean_return])
        return [
            {"steps": f"{step:.0f}", "mean_return": f"{value:.3f}"}
            for step, value in zip(steps.tolist(), returns.tolist(), strict=True)
        ]


def _sizes(config: GymConfig) -> dict[str, int]:
    """Parameters of the agent's memory, and numbers in its state."""
    # On the CPU: the machine that writes the tables of a cluster's runs may have no GPU.
    config = replace(config, vec_env="dummy", device="cpu")
    with closing(make_envs(config, 0, training=True)) as env:
        model: Any = build(config, 0, env)
        memory = model.policy.lstm_actor
        ours = isinstance(memory, CoreModule)
        return {
            "parameters": count_core_parameters(model),
            "state_size": memory.core.state_size if ours else 2 * memory.hidden_size,
        }
