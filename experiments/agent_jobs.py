"""Agents in environments, as jobs: their names, their checks, and their rows in a table."""

from __future__ import annotations

import math
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from rlgates.experiments import logs, manifest
from rlgates.experiments.configs import NOT_LEARNED_FROM, STUDY, TrainConfig, laid_over, smoke
from rlgates.experiments.gate_runs import gates_of_run
from rlgates.experiments.horizon import agent_rows
from rlgates.experiments.jobs import CURVE_POINTS, Job, Kind, Stop
from rlgates.experiments.runs import check, run_folder, run_title
from rlgates.experiments.supervised_gates import unit_rows
from rlgates.experiments.tables import Row
from rlgates.experiments.train import GOAL, Result, core_parameters, describe, finished, train


class _Agents(Kind):
    def check(self, config: TrainConfig) -> None:
        check(config)

    def prepare(self, config: TrainConfig) -> None:
        """Environments need no data."""

    def smoke(self, config: TrainConfig) -> TrainConfig:
        return smoke(config)

    def title(self, config: TrainConfig) -> str:
        return run_title(config)

    def label(self, job: Job) -> str:
        return f"{job.config.core} seed {job.seed}"

    def settings(self, config: TrainConfig) -> dict[str, Any]:
        # Options that a core does not have do not make it another comparison.
        options = laid_over(STUDY.core_options, config.core_options)
        plain = manifest.plain(replace(config, core="", core_options=options))
        return {name: value for name, value in plain.items() if name not in NOT_LEARNED_FROM}

    def folder(self, job: Job) -> Path:
        return run_folder(_config(job), job.seed)

    def finished(self, job: Job) -> Result | None:
        return finished(_config(job), job.seed)

    def train(self, job: Job, stop: Stop, bar: bool | None) -> Result:
        return train(_config(job), job.seed, stop=stop, bar=bar)

    def describe(self, job: Job, result: Result) -> list[str]:
        return [describe(_config(job), job.seed, result)]

    def aim(self, config: TrainConfig) -> tuple[str, bool]:
        return "success", True

    def score(self, job: Job, result: Result) -> float:
        return math.nan if result.ended == "diverged" else result.success

    def row(self, job: Job, result: Result) -> dict[str, Any]:
        config = _config(job)
        return {
            "title": run_title(config),
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
            f"steps_to_{GOAL}": result.steps_to_goal or "",
            "parameters": core_parameters(config),
            "seconds": result.seconds,
            "steps_per_second": round(result.steps / max(result.seconds, 0.1)),
            "config": self.digest(config),
            "env": config.env,
            "env_settings": shlex.join(f"{name}={v}" for name, v in config.env_settings.items()),
            **manifest.last_session(self.folder(job)),
        }

    def curve(self, job: Job, result: Result) -> list[Row]:
        rows = logs.read_rows(self.folder(job) / "progress.csv")
        steps = logs.column(rows, logs.STEPS)
        grid = np.linspace(steps[0], steps[-1], min(CURVE_POINTS, len(steps)))
        success = np.interp(grid, steps, logs.column(rows, "rollout/success_rate"))
        return [
            {"steps": f"{x:.0f}", "success": f"{y:.3f}"} for x, y in zip(grid, success, strict=True)
        ]

    def gates(self, job: Job, result: Result) -> list[Row]:
        before, after = gates_of_run(self.folder(job), _config(job), job.seed)
        return unit_rows((before, after)) if after.forget else []

    def horizon(self, job: Job, result: Result) -> list[Row]:
        return agent_rows(_config(job), job.seed, job.horizon)


def _config(job: Job) -> TrainConfig:
    assert isinstance(job.config, TrainConfig)
    return job.config


KIND = _Agents()
