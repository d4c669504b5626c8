"""The comparison of cores behind the README's table: made, gathered, summed up."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from rlgates.errors import check_size
from rlgates.experiments import logs, manifest
from rlgates.experiments.configs import (
    NOT_LEARNED_FROM,
    STUDY,
    StudyConfig,
    TrainConfig,
    fitting,
    laid_over,
    parse_pairs,
    preset,
)
from rlgates.experiments.figures import Curve, draw_panels
from rlgates.experiments.files import read_json, write_atomically
from rlgates.experiments.launch import Outcome, Run, run_all
from rlgates.experiments.pictures import draw_readme
from rlgates.experiments.runs import chance, run_folder, run_title
from rlgates.experiments.stats import iqm, iqm_interval, median_reached
from rlgates.experiments.tables import Row, key, merge, read
from rlgates.experiments.text import steps_text, time_text
from rlgates.experiments.train import GOAL

CURVE_POINTS = 60  # of each run in the committed table


def grid(study: StudyConfig) -> list[Run]:
    """All runs of a study, seed by seed, so that what is there early covers all cores.

    Raises:
        ValueError: an unknown preset, or nothing to compare.
    """
    for name in ("cores", "presets", "seeds"):
        if not getattr(study, name):
            raise ValueError(f"{name} must not be empty.")
    check_size("jobs", study.jobs)
    runs = []
    for seed in study.seeds:
        for name in study.presets:
            base = replace(preset(name + "-smoke" * study.smoke), threads=study.threads)
            if study.total_steps is not None:
                base = replace(base, total_steps=study.total_steps)
            for core in study.cores:
                options = fitting(base.core_options, core)
                config = replace(base, core=core, core_options=options, seeds=study.seeds)
                runs.append((config, seed))
    return runs


def run_study(study: StudyConfig) -> list[Outcome]:
    """Make what is missing of a study, and write its tables and pictures.

    Writes `<name>.csv` (a row a run), `<name>_curves.csv`, `<name>.md` (the tables of the README)
    and the pictures into `study.results`. Runs that are in the table with the same config are
    not made again, so that a study can be made in parts, and on more than one machine.

    Raises:
        ValueError: the table holds runs of other settings.
    """
    results = Path("runs/smoke" if study.smoke else study.results)
    table, curves = (results / f"{study.name}{end}.csv" for end in ("", "_curves"))
    there = read(table)
    made = {key(row) for row in there}
    configs = {row["title"]: row["config"] for row in there}
    runs, missing = grid(study), []
    for config, seed in runs:
        title, settings = run_title(config), digest(config)
        if configs.get(title, settings) != settings:
            raise ValueError(
                f"{table} holds runs of {title} with other settings, which cannot be compared: "
                "choose another --name, or remove them from the tables."
            )
        if (title, config.core, str(seed)) not in made:
            missing.append((config, seed))
    if there:
        print(f"{len(runs) - len(missing)} runs are in {table} already")
    outcomes = run_all(missing, study.jobs)
    done = [outcome for outcome in outcomes if outcome.result is not None]
    if done:
        merge(table, [result_row(outcome) for outcome in done])
        merge(curves, [row for end in done for row in curve_rows(end.config, end.seed)])
    if done or there:
        redraw(results)
        print(f"\n{(results / f'{study.name}.md').read_text()}")
    return outcomes


def digest(config: TrainConfig) -> str:
    """A few letters that differ when cores cannot be compared: other settings or budget."""
    # Options that a core does not have do not make it another comparison.
    options = laid_over(STUDY.core_options, config.core_options)
    plain = manifest.plain(replace(config, core="", core_options=options))
    settings = {name: value for name, value in plain.items() if name not in NOT_LEARNED_FROM}
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]


def result_row(outcome: Outcome) -> Row:
    """One run as a row of the study's table."""
    config, result = outcome.config, outcome.result
    assert result is not None
    session = read_json(manifest.manifest_path(run_folder(config, outcome.seed)))["sessions"][-1]
    git = session["git"] or {"commit": "", "dirty": ""}
    row = {
        "title": run_title(config),
        "core": config.core,
        "seed": outcome.seed,
        "success": round(result.success, 4),
        "low": round(result.low, 4),
        "high": round(result.high, 4),
        "last_phase_reward": round(result.last_phase_reward, 4),
        "episodes": result.episodes,
        "budget": config.total_steps,
        "stop_success": config.stop_success or "",
        "steps": result.steps,
        f"steps_to_{GOAL}": result.steps_to_goal or "",
        "seconds": result.seconds,
        "steps_per_second": round(result.steps / max(result.seconds, 0.1)),
        "config": digest(config),
        "env": config.env,
        "env_settings": " ".join(f"{name}={value}" for name, value in config.env_settings.items()),
        "commit": git["commit"],
        "dirty": git["dirty"],
        "cpus": session["cpus"],
        "threads": session["threads"],
        **session["versions"],
    }
    return {name: str(value) for name, value in row.items()}


def curve_rows(config: TrainConfig, seed: int) -> list[Row]:
    """The learning curve of a run, at a few points."""
    rows = logs.read_rows(run_folder(config, seed) / "progress.csv")
    steps = logs.column(rows, logs.STEPS)
    grid_ = np.linspace(steps[0], steps[-1], min(CURVE_POINTS, len(steps)))
    success = np.interp(grid_, steps, logs.column(rows, "rollout/success_rate"))
    run = {"title": run_title(config), "core": config.core, "seed": str(seed)}
    return [
        {**run, "steps": f"{x:.0f}", "success": f"{y:.3f}"}
        for x, y in zip(grid_, success, strict=True)
    ]


def redraw(results: Path) -> list[Path]:
    """Draw all pictures and tables again from the CSV files in a folder.

    Returns:
        the files that were written.

    Raises:
        ValueError: there are no results.
    """
    written = []
    for path in sorted(results.glob("*_curves.csv")):
        name = path.name.removesuffix("_curves.csv")
        rows = read(results / f"{name}.csv")
        if "env" not in rows[0]:  # of supervised tasks
            continue
        panels = read_curves(path)
        settings = parse_pairs(rows[0]["env_settings"].split())
        config = TrainConfig(env=rows[0]["env"], env_settings=settings)
        level = chance(config)
        picture, readme, table = (
            results / f"{name}{end}" for end in (".png", "_readme.png", ".md")
        )
        draw_panels(panels, picture, level)
        write_atomically(table, summary(rows, name).encode())
        written += [picture, table]
        if len({row["env"] for row in rows}) == 1:
            draw_readme(panels, config.env, settings, readme, level)
            written.append(readme)
    if not written:
        raise ValueError(f"no results in {results}; `rlgates study` makes them.")
    return written


def read_curves(path: Path) -> dict[str, list[Curve]]:
    """The curves in a table, by the title of their environment."""
    panels: dict[str, list[Curve]] = {}
    runs: dict[tuple[str, str, str], list[Row]] = {}
    for row in read(path):
        runs.setdefault((row["title"], row["core"], row["seed"]), []).append(row)
    for (title, core, seed), rows in runs.items():
        steps, success = logs.column(rows, "steps"), logs.column(rows, "success")
        panels.setdefault(title, []).append(Curve(core, int(seed), steps, success))
    return panels


def summary(rows: Sequence[Row], name: str) -> str:
    """The tables of a study: IQM and interval over seeds, steps to the goal, time."""
    command = "rlgates study" + (f" --name {name}" if name != StudyConfig.name else "")
    titles = dict.fromkeys(row["title"] for row in rows)
    parts = [[row for row in rows if row["title"] == title] for title in titles]
    return "\n".join(_table(part, command) for part in parts)


def _table(rows: Sequence[Row], command: str) -> str:
    """The table of one environment, with all that is needed to make it again."""
    first, seeds = rows[0], sorted({int(row["seed"]) for row in rows})
    lines = [[first["title"], "success", f"steps to {GOAL}", "time a run"], ["---"] * 4]
    for core in dict.fromkeys(row["core"] for row in rows):
        lines.append([f"`{core}`", *_cells([row for row in rows if row["core"] == core])])
    stop = first["stop_success"]
    early = f"; a run ends sooner when {float(stop):.0%} succeed" if stop else ""
    commits = ", ".join(dict.fromkeys(row["commit"][:7] for row in rows))
    note = (
        f"Success on {int(first['episodes']):,} fresh episodes a seed: interquartile mean over "
        f"seeds {seeds[0]} to {seeds[-1]} with its 95 % bootstrap interval. Steps of training "
        f"until {GOAL:.0%} of the last training episodes succeeded: median, and how many seeds "
        f"got there. Budget {steps_text(float(first['budget']))} steps{early}. Time: median, with "
        f"{first['threads']} thread a run. `{command} --jobs 2`, commit {commits}.\n"
    )
    return "".join(f"| {' | '.join(line)} |\n" for line in lines) + "\n" + note


def _cells(rows: Sequence[Row]) -> list[str]:
    success = logs.column(list(rows), "success")
    low, high = iqm_interval(success)
    reached = [float(row[f"steps_to_{GOAL}"]) if row[f"steps_to_{GOAL}"] else None for row in rows]
    median, count = median_reached(reached)
    seconds = float(np.median(logs.column(list(rows), "seconds")))
    when = steps_text(median) if median else f"> {steps_text(float(rows[0]['budget']))}"
    return [
        f"{iqm(success):.2f} [{low:.2f}, {high:.2f}]",
        f"{when} ({count} of {len(rows)})",
        time_text(seconds),
    ]
