"""Networks on supervised tasks, as jobs: their names, their checks, and their rows in a table."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rlgates.experiments import logs, manifest
from rlgates.experiments.horizon import network_rows
from rlgates.experiments.jobs import CURVE_POINTS, Job, Kind, Stop
from rlgates.experiments.stopping import InterruptedRun
from rlgates.experiments.supervise import Run, finished
from rlgates.experiments.supervised_check import check, run_folder, task_title
from rlgates.experiments.supervised_configs import SupervisedConfig, learned_from
from rlgates.experiments.supervised_gates import gates_before_and_after, growth_columns, unit_rows
from rlgates.experiments.supervised_progress import Progress
from rlgates.experiments.supervised_saved import Learned
from rlgates.experiments.supervised_tiers import smoke
from rlgates.experiments.tables import Row
from rlgates.experiments.text import time_text
from rlgates.tasks import TASKS, make_task
from rlgates.tasks.protocols_cores import ablated


class _Networks(Kind):
    def check(self, config: SupervisedConfig) -> None:
        check(config)

    def prepare(self, config: SupervisedConfig) -> None:
        try:
            make_task(config.task, **config.task_settings).prepare()
        except (OSError, ImportError) as error:
            raise ValueError(f"{config.task}: {error}") from error

    def smoke(self, config: SupervisedConfig) -> SupervisedConfig:
        return smoke(config)

    def title(self, config: SupervisedConfig) -> str:
        return task_title(config)

    def label(self, job: Job) -> str:
        return f"{task_title(_config(job))}: {job.config.core} seed {job.seed}"

    def settings(self, config: SupervisedConfig) -> dict[str, Any]:
        settings = learned_from(config)
        return {name: settings[name] for name in settings if name not in ("core", "core_options")}

    def options(self, config: SupervisedConfig) -> str:
        return " ".join(f"{name}={value}" for name, value in config.core_options.items())

    def folder(self, job: Job) -> Path:
        return run_folder(_config(job), job.seed)

    def finished(self, job: Job) -> Learned | None:
        return finished(_config(job), job.seed)

    def train(self, job: Job, stop: Stop, bar: bool | None) -> Learned:
        config = _config(job)
        run = Run(config, job.seed)
        learned = run.go(stop, Progress(self.label(job), config.updates, config.epochs, bar))
        if learned is None:
            raise InterruptedRun(f"at {run.update:,} updates, saved in {run.folder}")
        return learned

    def describe(self, job: Job, result: Learned) -> list[str]:
        """The figures of a run beside what is known of its task."""
        config = _config(job)
        task = make_task(config.task, **config.task_settings)
        if result.test:
            figures = ", ".join(figures_text(result.test, task.metric))
            some = "" if config.eval_batches is None else f"{config.eval_batches} batches of "
            best = f"with the weights of update {result.best_update:,}, the best on valid"
            line = f"{self.label(job)}: {figures} on {some}test, {best}"
        else:
            line = f"{self.label(job)}: no figure that is a number"
        if task.baseline is not None:
            line += f"; loss without memory {task.baseline:.4f}"
        if result.diverged_at is not None:
            line += f"; diverged at update {result.diverged_at:,}"
            if (self.folder(job) / "checkpoint").exists():
                line += f", the last sound weights are in {self.folder(job) / 'checkpoint'}"
        line += f"; {result.losses[-1][0]:,} updates, {time_text(result.seconds)}"
        published = [
            f"  published: {task.metric} {row.value:g} of {row.core} on {row.split} ({row.source})"
            for row in sorted(task.published, key=lambda row: row.core != config.core)
        ]
        return [line, *published, f"  -> {self.folder(job)}"]

    def aim(self, config: SupervisedConfig) -> tuple[str, bool]:
        task = TASKS[config.task]
        return f"{task.metric} on valid", task.higher_is_better

    def score(self, job: Job, result: Learned) -> float:
        """The best one on the split "valid", whose weights are kept."""
        if result.diverged_at is not None or result.best_update is None:
            return math.nan
        metric = TASKS[_config(job).task].metric
        rows = logs.read_rows(self.folder(job) / "progress.csv")
        at = logs.column(rows, logs.STEPS) == result.best_update
        return float(logs.column(rows, f"eval/{metric}")[at][0])

    def row(self, job: Job, result: Learned) -> dict[str, Any]:
        config = _config(job)
        metric = TASKS[config.task].metric
        return {
            "title": task_title(config),
            "core": config.core,
            "seed": job.seed,
            "loss": f"{result.losses[-1][1]:.6f}",
            "accuracy": result.metrics.get("accuracy", ""),
            "baseline": "" if result.baseline is None else f"{result.baseline:.6f}",
            "diverged_at": "" if result.diverged_at is None else result.diverged_at,
            "updates": config.updates or "",
            "batch_size": config.batch_size,
            "hidden_size": config.hidden_size,
            "learning_rate": config.learning_rate,
            "core_options": self.options(config),
            "parameters": result.parameters,
            "state_size": result.state_size,
            "seconds": result.seconds,
            "config": self.digest(config),
            **manifest.last_session(self.folder(job)),
            "task": config.task,
            "optimizer": config.optimizer,
            "epochs": config.epochs or "",
            "stop_loss": config.stop_loss or "",
            "ended": result.ended,
            "made": result.losses[-1][0],
            "first_loss": f"{result.losses[0][1]:.6f}",
            "metric": metric,
            "test": f"{result.test[metric]:.6g}" if result.test else "",
            "published": published_figures(config),
        }

    def curve(self, job: Job, result: Learned) -> list[Row]:
        losses = [loss if math.isfinite(loss) else math.inf for _, loss in result.losses]
        count = len(losses)
        places = np.linspace(0, count - 1, min(CURVE_POINTS, count)).round().astype(int).tolist()
        lowest = losses.index(min(losses))  # which heat maps look for
        points = [result.losses[place] for place in sorted({*places, lowest})]
        scales = growth_columns(self.folder(job)) if "gates" in job.extras else {}
        return [
            {"update": str(update), "loss": f"{loss:.5f}", **scales.get(update, {})}
            for update, loss in points
        ]

    def gates(self, job: Job, result: Learned) -> list[Row]:
        if result.best_update is None:
            return []
        return unit_rows(gates_before_and_after(_config(job), job.seed))

    def horizon(self, job: Job, result: Learned) -> list[Row]:
        return network_rows(_config(job), job.seed, job.horizon, result)


def _config(job: Job) -> SupervisedConfig:
    assert isinstance(job.config, SupervisedConfig)
    return job.config


def published_figures(config: SupervisedConfig) -> str:
    """The papers' figures of that core on the test set, at their own sizes and budgets."""
    found = ablated(config.task, config.core_options) if config.core == "rru" else None
    if found is None:
        rows = make_task(config.task, **config.task_settings).published
        found = tuple(row.value for row in rows if (row.core, row.split) == (config.core, "test"))
    return " ".join(f"{value:g}" for value in found)


def figures_text(figures: Mapping[str, float], metric: str) -> list[str]:
    """Figures as people read them, the metric that runs are judged by first."""
    names = sorted(figures, key=lambda name: name != metric)
    return [f"{name} {figures[name]:.4f}" for name in names]


KIND = _Networks()
