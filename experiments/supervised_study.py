"""Every core on the same supervised tasks with the same small budget."""

from __future__ import annotations

import math
import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path

import numpy as np

from rlgates.errors import check_size, unknown
from rlgates.experiments import logs
from rlgates.experiments.files import write_atomically
from rlgates.experiments.manifest import git_state, versions
from rlgates.experiments.supervise import Run
from rlgates.experiments.supervised_check import check, digest, task_title
from rlgates.experiments.supervised_configs import (
    CORE_OPTIONS,
    PRESETS,
    SupervisedConfig,
    SupervisedStudy,
)
from rlgates.experiments.supervised_figures import draw_losses
from rlgates.experiments.supervised_saved import Learned
from rlgates.experiments.tables import Row, key, merge, read
from rlgates.experiments.text import time_text


def grid(study: SupervisedStudy) -> list[tuple[SupervisedConfig, int]]:
    """All runs, seed by seed, so that what is there early covers all cores.

    Raises:
        ValueError, TypeError: a name that is not known, or a setting that makes no sense.
    """
    check_size("jobs", study.jobs)
    for field in ("presets", "cores", "seeds"):
        if not getattr(study, field):
            raise ValueError(f"{field} must not be empty.")
    runs = []
    for seed in study.seeds:
        for name in study.presets:
            if name not in PRESETS:
                raise unknown("preset", name, PRESETS)
            base = PRESETS[name + "-smoke" * study.smoke]
            for core in study.cores:
                config = replace(base, core=core, core_options=CORE_OPTIONS.get(core, {}))
                check(config)
                runs.append((config, seed))
    return runs


def run_supervised_study(study: SupervisedStudy) -> int:
    """Make what is missing, and write the tables and pictures; the number of failed runs.

    Runs that are in the table with the same settings are not made again. A run that is stopped
    goes on when the study is started again.
    """
    results = Path("runs/smoke" if study.smoke else study.results)
    table, curves = (results / f"{study.name}{end}.csv" for end in ("", "_curves"))
    there = {key(row): row["config"] for row in read(table)}
    missing = []
    for config, seed in grid(study):
        known = there.get((task_title(config), config.core, str(seed)))
        if known not in (None, digest(config)):
            raise ValueError(f"{table} holds runs with other settings: choose another --name.")
        if known is None:
            missing.append((config, seed))
    failed = 0
    for config, seed, future in _side_by_side(missing, study.jobs):
        if error := future.exception():
            print(f"{config.core} on {config.task}, seed {seed} failed: {error}", flush=True)
            failed += 1
            continue
        learned = future.result()
        assert learned is not None, "nobody asked it to stop"
        print(_line(config, seed, learned), flush=True)
        merge(table, [_row(config, seed, learned)])
        merge(curves, _curve(config, seed, learned))
    redraw_supervised(results, study.name)
    return failed


def _side_by_side(
    runs: Sequence[tuple[SupervisedConfig, int]], jobs: int
) -> Iterator[tuple[SupervisedConfig, int, Future[Learned | None]]]:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        futures = {pool.submit(_run, config, seed): (config, seed) for config, seed in runs}
        try:
            for future in as_completed(futures):
                yield (*futures[future], future)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _run(config: SupervisedConfig, seed: int) -> Learned | None:
    return Run(config, seed).go()


def _line(config: SupervisedConfig, seed: int, learned: Learned) -> str:
    end = f"loss {learned.losses[-1][1]:.4f}"
    if learned.baseline is not None:
        end += f" (without memory {learned.baseline:.4f})"
    if learned.diverged_at is not None:
        end += f", diverged at update {learned.diverged_at:,}"
    return f"{task_title(config)}: {config.core} seed {seed}: {end}, {time_text(learned.seconds)}"


def _row(config: SupervisedConfig, seed: int, learned: Learned) -> Row:
    git = git_state() or {"commit": "", "dirty": ""}
    row = {
        "title": task_title(config),
        "core": config.core,
        "seed": seed,
        "loss": f"{learned.losses[-1][1]:.6f}",
        "accuracy": learned.metrics.get("accuracy", ""),
        "baseline": "" if learned.baseline is None else f"{learned.baseline:.6f}",
        "diverged_at": "" if learned.diverged_at is None else learned.diverged_at,
        "updates": config.updates,
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
    }
    return {name: str(value) for name, value in row.items()}


def _curve(config: SupervisedConfig, seed: int, learned: Learned) -> list[Row]:
    run = {"title": task_title(config), "core": config.core, "seed": str(seed)}
    return [{**run, "update": str(k), "loss": f"{loss:.5f}"} for k, loss in learned.losses]


def redraw_supervised(results: Path, name: str = "supervised") -> list[Path]:
    """Draw the pictures and the table again from the CSV files; the files that were written."""
    rows = read(results / f"{name}.csv")
    if not rows:
        return []
    written = [results / f"{name}.md"]
    titles = list(dict.fromkeys(row["title"] for row in rows))
    write_atomically(written[0], "\n".join(_table(rows, title) for title in titles).encode())
    for title in titles:
        curves: dict[str, list[tuple[list[float], list[float]]]] = {}
        runs: dict[tuple[str, str], list[Row]] = {}
        for row in read(results / f"{name}_curves.csv"):
            if row["title"] == title:
                runs.setdefault((row["core"], row["seed"]), []).append(row)
        for (core, _), points in runs.items():
            line = [float(p["update"]) for p in points], [float(p["loss"]) for p in points]
            curves.setdefault(core, []).append(line)
        baseline = next(float(row["baseline"]) for row in rows if row["title"] == title)
        path = results / f"{name}_{title.partition(',')[0]}.png"
        draw_losses(title, curves, baseline, path)
        written.append(path)
    return written


def _table(rows: Sequence[Row], title: str) -> str:
    """Loss at the end for each core, the best first."""
    mine = [row for row in rows if row["title"] == title]
    first, seeds = mine[0], sorted({int(row["seed"]) for row in mine})
    by_core = {core: [r for r in mine if r["core"] == core] for core in _in_order(mine, "core")}
    losses = {core: logs.column(list(some), "loss") for core, some in by_core.items()}
    middle = {core: float(np.median(some)) for core, some in losses.items()}
    ranked = sorted(middle, key=lambda core: float(np.nan_to_num(middle[core], nan=math.inf)))
    lines = [f"| {title} | loss | worst seed | diverged | parameters | time a run |\n"]
    lines.append(f"|{' --- |' * 6}\n")
    for core in ranked:
        some = by_core[core]
        diverged = sum(row["diverged_at"] != "" for row in some)
        seconds = float(np.median(logs.column(list(some), "seconds")))
        lines.append(
            f"| `{core}` | {_loss(middle[core])} | {_loss(losses[core].max())} "
            f"| {diverged} of {len(some)} | {int(some[0]['parameters']):,} "
            f"| {time_text(seconds)} |\n"
        )
    commits = ", ".join(dict.fromkeys(row["commit"][:7] for row in mine))
    return "".join(lines) + (
        f"\nLoss on sequences that were not trained on, after {int(first['updates']):,} updates "
        f"of {first['batch_size']} fresh sequences (median over seeds {seeds[0]} to {seeds[-1]}, "
        f"or as many as there are); without memory {float(first['baseline']):.4f} at best. d = "
        f"{first['hidden_size']}, Adam, rate {first['learning_rate']}, nothing tuned. "
        f"`rlgates supervise`, commit {commits}.\n"
    )


def _loss(value: float) -> str:
    return f"{value:.4f}" if value < 100 else f"{value:.1e}"


def _in_order(rows: Sequence[Row], name: str) -> list[str]:
    return list(dict.fromkeys(row[name] for row in rows))
