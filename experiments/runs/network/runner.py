"""The runner of networks on supervised tasks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rlgates.experiments.configs.base import options_text
from rlgates.experiments.configs.identity import comparison, digest, identity
from rlgates.experiments.configs.published.zakovskis2023 import ablation_result
from rlgates.experiments.configs.task import TaskConfig
from rlgates.experiments.configs.tiers import smoke
from rlgates.experiments.runs import logs
from rlgates.experiments.runs.files import Row
from rlgates.experiments.runs.gates import growth_columns, unit_rows
from rlgates.experiments.runs.network.extras import gates_before_and_after, network_rows
from rlgates.experiments.runs.network.train import TaskResult, TaskRun
from rlgates.experiments.runs.progress import Progress
from rlgates.experiments.runs.runner import CURVE_POINTS, Job, Runner, Stop
from rlgates.experiments.runs.text import ending_text, time_text
from rlgates.experiments.tasks import TASKS


class TaskRunner(Runner[TaskConfig, TaskResult]):
    """Networks on supervised tasks."""

    config_type, result_type = TaskConfig, TaskResult

    def prepare(self, config: TaskConfig) -> None:
        try:
            config.make_task().prepare()
        except (OSError, ImportError) as error:
            raise ValueError(f"{config.task}: {error}") from error

    def smoke(self, config: TaskConfig) -> TaskConfig:
        return smoke(config)

    def train(self, job: Job, stop: Stop, bar: bool | None) -> TaskResult:
        config = self.config(job)
        progress = Progress(self.label(job), "updates", config.updates, bar, config.max_minutes)
        return TaskRun(config, job.seed).train(stop, progress)

    def describe(self, job: Job, result: TaskResult) -> list[str]:
        """The figures of a run beside those of its task."""
        config = self.config(job)
        task = config.make_task()
        if result.test:
            names = sorted(result.test, key=lambda name: name != task.metric)
            figures = ", ".join(f"{name} {result.test[name]:.4f}" for name in names)
            part = "" if config.eval_batches is None else f"{config.eval_batches} batches of "
            best = f"with the weights of update {result.best_step:,}, the best on valid"
            line = f"{self.label(job)}: {figures} on {part}test, {best}"
        else:
            line = f"{self.label(job)}: no finite figure"
        if task.baseline is not None:
            line += f"; loss without memory {task.baseline:.4f}"
        if result.diverged_at is not None:
            line += f"; diverged at update {result.diverged_at:,}"
            if (job.folder.path / "checkpoint").exists():
                line += f", the last finite weights are in {job.folder.path / 'checkpoint'}"
        line += f"; {result.steps:,} updates, {time_text(result.seconds)}"
        if result.ended == "time":
            line += ending_text(result.ended)
        published = [
            f"  published: {task.metric} {row.value:g} of {row.core} on {row.split} ({row.source})"
            for row in sorted(task.published, key=lambda row: row.core != config.core)
        ]
        return [line, *published, f"  -> {job.folder.path}"]

    def objective(self, config: TaskConfig) -> tuple[str, bool]:
        task = TASKS[config.task]
        return f"{task.metric} on valid", task.higher_is_better

    def score(self, job: Job, result: TaskResult) -> float:
        """The best metric on the split "valid"."""
        if result.diverged_at is not None or result.best_step is None:
            return math.nan
        metric = TASKS[self.config(job).task].metric
        rows = logs.read_rows(job.folder.path / "progress.csv")
        at = logs.column(rows, logs.STEPS) == result.best_step
        return float(logs.column(rows, f"eval/{metric}")[at][0])

    def row(self, job: Job, result: TaskResult) -> dict[str, Any]:
        config = self.config(job)
        metric = TASKS[config.task].metric
        return {
            "title": config.title,
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
            "core_options": options_text(identity(config)["core_options"]),
            "parameters": result.parameters,
            "state_size": result.state_size,
            "seconds": result.seconds,
            "config": digest(comparison(config)),
            **job.folder.provenance(),
            "task": config.task,
            "optimizer": config.optimizer,
            "epochs": config.epochs or "",
            "stop_loss": config.stop_loss or "",
            "ended": result.ended,
            "made": result.losses[-1][0],
            "first_loss": f"{result.losses[0][1]:.6f}",
            "metric": metric,
            "test": f"{result.test[metric]:.6g}" if result.test else "",
            **{  # of words by their frequency, say
                f"test_{name}": f"{value:.6g}"
                for name, value in result.test.items()
                if name.startswith(f"{metric}_")
            },
            "published": published_figures(config),
        }

    def curve(self, job: Job, result: TaskResult) -> list[Row]:
        losses = [loss if math.isfinite(loss) else math.inf for _, loss in result.losses]
        count = len(losses)
        places = np.linspace(0, count - 1, min(CURVE_POINTS, count)).round().astype(int).tolist()
        lowest = losses.index(min(losses))  # shown in heat maps
        points = [result.losses[place] for place in sorted({*places, lowest})]
        scales = growth_columns(job.folder.path) if "gates" in job.extras else {}
        return [
            {"update": str(update), "loss": f"{loss:.5f}", **scales.get(update, {})}
            for update, loss in points
        ]

    def gates(self, job: Job, result: TaskResult) -> list[Row]:
        if result.best_step is None:
            return []
        before, after = gates_before_and_after(self.config(job), job.seed)
        biases = before.of_biases, after.of_biases
        return unit_rows(before.on_sequences, after.on_sequences, biases)

    def horizon(self, job: Job, result: TaskResult) -> list[Row]:
        return network_rows(self.config(job), job.seed, job.horizon, result)


def published_figures(config: TaskConfig) -> str:
    """The papers' figures of the core on the test set, at the papers' sizes and budgets."""
    rows = config.make_task().published
    if not rows:  # as with other settings than the paper's
        return ""
    values = ablation_result(config.task, config.core_options) if config.core == "rru" else None
    if values is None:
        values = tuple(row.value for row in rows if (row.core, row.split) == (config.core, "test"))
    return " ".join(f"{value:g}" for value in values)
