"""The runner of agents in environments."""

from __future__ import annotations

import math
import shlex
from typing import Any

import numpy as np

from rlgates.experiments.configs.agent import SUCCESS_THRESHOLD, AgentConfig
from rlgates.experiments.configs.base import options_text
from rlgates.experiments.configs.identity import comparison, digest, identity
from rlgates.experiments.configs.presets import smoke
from rlgates.experiments.runs import logs
from rlgates.experiments.runs.agent.build import build, count_core_parameters
from rlgates.experiments.runs.agent.gates import gates_of_run
from rlgates.experiments.runs.agent.horizon import agent_rows
from rlgates.experiments.runs.agent.train import AgentResult, train
from rlgates.experiments.runs.files import Row
from rlgates.experiments.runs.gates import unit_rows
from rlgates.experiments.runs.runner import CURVE_POINTS, Job, Runner, Stop
from rlgates.experiments.runs.text import ending_text, steps_text, time_text


class AgentRunner(Runner[AgentConfig, AgentResult]):
    """Agents in environments."""

    config_type, result_type = AgentConfig, AgentResult

    def smoke(self, config: AgentConfig) -> AgentConfig:
        return smoke(config)

    def label(self, job: Job) -> str:
        return f"{job.config.core} seed {job.seed}"

    def train(self, job: Job, stop: Stop, bar: bool | None) -> AgentResult:
        return train(self.config(job), job.seed, stop=stop, bar=bar)

    def describe(self, job: Job, result: AgentResult) -> list[str]:
        config = self.config(job)
        chance = config.chance
        return [
            f"{config.core} on {config.title}, seed {job.seed}: "
            f"success {result.success:.2f} [{result.low:.2f}, {result.high:.2f}] "
            f"over {result.episodes:,} fresh episodes after {steps_text(result.steps)} steps "
            f"in {time_text(result.seconds)}{'' if chance is None else f' (chance {chance:.2f})'}"
            f"{ending_text(result.ended)} "
            f"-> {job.folder.path / 'curve.png'}"
        ]

    def objective(self, config: AgentConfig) -> tuple[str, bool]:
        return "success", True

    def score(self, job: Job, result: AgentResult) -> float:
        return math.nan if result.ended == "diverged" else result.success

    def row(self, job: Job, result: AgentResult) -> dict[str, Any]:
        config = self.config(job)
        return {
            "title": config.title,
            "core": config.core,
            "seed": job.seed,
            "success": round(result.success, 4),
            "low": round(result.low, 4),
            "high": round(result.high, 4),
            "last_phase_reward": round(result.last_phase_reward, 4),
            "episodes": result.episodes,
            "budget": config.total_steps,
            "stop_success": config.stop_success or "",
            "steps": result.steps,
            "ended": result.ended,
            f"steps_to_{SUCCESS_THRESHOLD}": result.steps_to_threshold or "",
            "core_options": options_text(identity(config)["core_options"]),
            "parameters": count_core_parameters(build(config, 0)[0]),
            "seconds": result.seconds,
            "steps_per_second": round(result.steps / max(result.seconds, 0.1)),
            "config": digest(comparison(config)),
            "env": config.env,
            "env_settings": shlex.join(f"{name}={v}" for name, v in config.env_settings.items()),
            **job.folder.provenance(),
        }

    def curve(self, job: Job, result: AgentResult) -> list[Row]:
        rows = logs.read_rows(job.folder.path / "progress.csv")
        steps = logs.column(rows, logs.STEPS)
        grid = np.linspace(steps[0], steps[-1], min(CURVE_POINTS, len(steps)))
        success = np.interp(grid, steps, logs.column(rows, "rollout/success_rate"))
        return [
            {"steps": f"{x:.0f}", "success": f"{y:.3f}"} for x, y in zip(grid, success, strict=True)
        ]

    def gates(self, job: Job, result: AgentResult) -> list[Row]:
        return unit_rows(*gates_of_run(job.folder.path, self.config(job), job.seed))

    def horizon(self, job: Job, result: AgentResult) -> list[Row]:
        return agent_rows(self.config(job), job.seed, job.horizon)
