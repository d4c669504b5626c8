"""Make the runs of a study on supervised tasks, and keep what they came to in small CSV files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rlgates.errors import check_choice, check_size, unknown
from rlgates.experiments.launch import StopRequest
from rlgates.experiments.manifest import git_state, versions
from rlgates.experiments.supervised_check import check, digest, task_title
from rlgates.experiments.supervised_configs import SupervisedConfig
from rlgates.experiments.supervised_gates import gate_rows
from rlgates.experiments.supervised_launch import TaskOutcome, made
from rlgates.experiments.supervised_saved import Learned
from rlgates.experiments.supervised_studies import STUDIES, Comparison, SupervisedStudy
from rlgates.experiments.supervised_tables import redraw_study
from rlgates.experiments.supervised_tiers import smoke
from rlgates.experiments.tables import Row, key, merge, read
from rlgates.experiments.text import time_text
from rlgates.tasks import TASKS, make_task


def grid(study: SupervisedStudy) -> list[tuple[SupervisedConfig, int, bool]]:
    """All runs, seed by seed, so that what is there early covers all cores.

    Returns:
        for each run its config, its seed, and whether its gates are kept.

    Raises:
        ValueError, TypeError, OSError, ImportError: a name that is not known, a setting that makes
            no sense, or a task that has no data here.
    """
    check_size("jobs", study.jobs)
    comparisons = STUDIES[check_choice("study", study.name, STUDIES)]
    known = list(dict.fromkeys(comparison.config.task for comparison in comparisons))
    for task in study.tasks:
        if task not in known:
            raise unknown(f"task of the study {study.name!r}", task, known)
    if not study.seeds or len(set(study.seeds)) < len(study.seeds):
        raise ValueError(f"seeds must be one or more different numbers, got {study.seeds}.")
    chosen = [row for row in comparisons if not study.tasks or row.config.task in study.tasks]
    runs = [
        (config, seed, comparison.gates and seed == min(study.seeds))
        for seed in study.seeds
        for comparison in chosen
        for config in _configs(comparison, study)
    ]
    for config, seed, _ in runs:
        check_size("seed", seed, minimum=0)
        if seed == study.seeds[0]:
            check(config)
    return runs


def _configs(comparison: Comparison, study: SupervisedStudy) -> list[SupervisedConfig]:
    configs = [comparison.of(core) for core in study.cores or comparison.cores]
    if study.smoke:
        return [smoke(config) for config in configs]
    return [replace(config, folder=f"runs/{study.name}") for config in configs]


def run_supervised_study(study: SupervisedStudy) -> list[TaskOutcome]:
    """Make what is missing, and write the tables and pictures; how the runs ended.

    Runs that are in the table with the same settings are not made again. A run that is stopped
    goes on when the study is started again; one that fails does not stop the others.

    Raises:
        ValueError: before any work starts, if the study makes no sense, its data are not there,
            or its results have runs with other settings.
    """
    results = Path("runs/smoke" if study.smoke else study.results)
    table, curves, gates = (results / f"{study.name}{end}.csv" for end in ("", "_curves", "_gates"))
    try:
        runs = grid(study)
    except (TypeError, OSError, ImportError) as error:
        raise ValueError(str(error)) from error
    there = {key(row): row["config"] for row in read(table)}
    missing, kept = [], set()
    for config, seed, keep in runs:
        known = there.get((task_title(config), config.core, str(seed)))
        if known not in (None, digest(config)):
            raise ValueError(
                f"{table} holds runs of {task_title(config)} with other settings: choose other "
                "--results, or remove them."
            )
        if known is None:
            missing.append((config, seed))
            if keep:
                kept.add((task_title(config), config.core, seed))
    if len(runs) > len(missing):
        print(f"{len(runs) - len(missing)} of {len(runs)} runs are in {table} already", flush=True)
    _prepare([config for config, _ in missing])
    outcomes = []
    with StopRequest().listening() as stop:
        for outcome in made(missing, study.jobs, stop):
            outcomes.append(outcome)
            print(_line(outcome), flush=True)
            config, seed = outcome.config, outcome.seed
            if outcome.result is None:
                continue
            title = task_title(config)
            merge(table, [_row(config, seed, outcome.result)])
            merge(curves, _curve(config, seed, outcome.result))
            if (title, config.core, seed) in kept and outcome.result.best_update is not None:
                rows = gate_rows(title, config, seed)
                if rows:
                    merge(gates, rows)
    redraw_study(results, study.name)
    return outcomes


def _prepare(configs: Sequence[SupervisedConfig]) -> None:
    """Have the data of all tasks, so that none is missing in the end, or fetched twice.

    Raises:
        ValueError: some are not to be had.
    """
    tasks = {task_title(config): config for config in configs}
    for config in tasks.values():
        try:
            make_task(config.task, **config.task_settings).prepare()
        except (OSError, ImportError) as error:
            raise ValueError(f"{config.task}: {error}") from error


def _line(outcome: TaskOutcome) -> str:
    config, learned = outcome.config, outcome.result
    label = f"{task_title(config)}: {config.core} seed {outcome.seed}"
    if learned is None:
        return f"{label} {'stopped' if outcome.interrupted else 'failed'}: {outcome.error}"
    end = f"loss {learned.losses[-1][1]:.4f}"
    if learned.baseline is not None:
        end += f" (without memory {learned.baseline:.4f})"
    if learned.diverged_at is not None:
        end += f", diverged at update {learned.diverged_at:,}"
    return f"{label}: {end}, {learned.losses[-1][0]:,} updates, {time_text(learned.seconds)}"


def _row(config: SupervisedConfig, seed: int, learned: Learned) -> Row:
    git = git_state() or {"commit": "", "dirty": ""}
    metric = TASKS[config.task].metric
    row = {
        "title": task_title(config),
        "core": config.core,
        "seed": seed,
        "loss": f"{learned.losses[-1][1]:.6f}",
        "accuracy": learned.metrics.get("accuracy", ""),
        "baseline": "" if learned.baseline is None else f"{learned.baseline:.6f}",
        "diverged_at": "" if learned.diverged_at is None else learned.diverged_at,
        "updates": config.updates or "",
        "batch_size": config.batch_size,
        "hidden_size": config.hidden_size,
        "learning_rate": config.learning_rate,
        "core_options": " ".join(f"{k}={v}" for k, v in config.core_options.items()),
        "parameters": learned.parameters,
        "state_size": learned.state_size,
        "seconds": learned.seconds,
        "config": digest(config),
        "commit": git["commit"],
        "dirty": git["dirty"],
        **versions(),
        "task": config.task,
        "optimizer": config.optimizer,
        "epochs": config.epochs or "",
        "stop_loss": config.stop_loss or "",
        "ended": learned.ended,
        "made": learned.losses[-1][0],
        "first_loss": f"{learned.losses[0][1]:.6f}",
        "metric": metric,
        "test": f"{learned.test[metric]:.6g}" if learned.test else "",
        "published": _published(config),
    }
    return {name: str(value) for name, value in row.items()}


def _published(config: SupervisedConfig) -> str:
    """The papers' figures of that core on the test set, at their own sizes and budgets."""
    task = make_task(config.task, **config.task_settings)
    found = [row.value for row in task.published if (row.core, row.split) == (config.core, "test")]
    return " ".join(f"{value:g}" for value in found)


def _curve(config: SupervisedConfig, seed: int, learned: Learned) -> Sequence[Row]:
    run = {"title": task_title(config), "core": config.core, "seed": str(seed)}
    return [{**run, "update": str(k), "loss": f"{loss:.5f}"} for k, loss in learned.losses]
