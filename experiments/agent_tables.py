"""The tables and pictures of studies of agents, out of their CSV files."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlgates.experiments import logs
from rlgates.experiments.against import steps
from rlgates.experiments.configs import TrainConfig, parse_pairs
from rlgates.experiments.figures import Curve, draw_panels
from rlgates.experiments.pictures import PLAYED, draw_readme
from rlgates.experiments.runs import chance
from rlgates.experiments.stats import iqm, iqm_interval, median_reached
from rlgates.experiments.tables import Row, heading, made_by, markdown, read, spent
from rlgates.experiments.text import steps_text, time_text
from rlgates.experiments.train import GOAL


def draw_agents(results: Path, name: str, rows: Sequence[Row]) -> list[Path]:
    """Draw the learning curves of a study of agents; the files that were written."""
    panels = read_curves(results / f"{name}_curves.csv")
    if not panels:
        return []
    picture, readme = (results / f"{name}{end}" for end in (".png", "_readme.png"))
    levels = chances(rows)
    draw_panels(panels, picture, levels)
    env, *others = {row["env"] for row in rows}
    if others or env not in PLAYED:
        return [picture]
    draw_readme(panels, env, env_settings(rows[0]), readme, levels)
    return [picture, readme]


def env_settings(row: Row) -> dict[str, Any]:
    """Of the environment of a run."""
    return parse_pairs(shlex.split(row["env_settings"]))


def chances(rows: Sequence[Row]) -> dict[str, float | None]:
    """Success without memory in each environment, by its heading; None where it is unknown."""
    first = {heading(row): row for row in reversed(rows)}
    return {
        title: chance(TrainConfig(env=row["env"], env_settings=env_settings(row)))
        for title, row in first.items()
    }


def read_curves(path: Path) -> dict[str, list[Curve]]:
    """The curves of agents in a table, by the heading of their environment."""
    panels: dict[str, list[Curve]] = {}
    runs: dict[tuple[str, str, str], list[Row]] = {}
    for row in read(path):
        if not row.get("steps"):
            continue  # of a network
        runs.setdefault((heading(row), row["core"], row["seed"]), []).append(row)
    for (title, core, seed), rows in runs.items():
        steps, success = logs.column(rows, "steps"), logs.column(rows, "success")
        panels.setdefault(title, []).append(Curve(core, int(seed), steps, success))
    return panels


def summary(rows: Sequence[Row]) -> str:
    """The tables of a study: IQM and interval over seeds, steps to the goal, time."""
    titles = dict.fromkeys(map(heading, rows))
    return "\n".join(_table([row for row in rows if heading(row) == title]) for title in titles)


def _table(rows: Sequence[Row]) -> str:
    """The table of one environment, with all that is needed to make it again."""
    first, seeds = rows[0], sorted({int(row["seed"]) for row in rows})
    heads = (heading(first), "success", f"steps to {GOAL}", "parameters", "time a run")
    lines = [
        [f"`{core}`", *_cells([row for row in rows if row["core"] == core])]
        for core in dict.fromkeys(row["core"] for row in rows)
    ]
    stop = first["stop_success"]
    early = f"; a run ends sooner when {float(stop):.0%} succeed" if stop else ""
    note = (
        f"Success on {int(first['episodes']):,} fresh episodes a seed: interquartile mean over "
        f"seeds {seeds[0]} to {seeds[-1]} with its 95 % bootstrap interval. Steps of training "
        f"until {GOAL:.0%} of the last training episodes succeeded: median, and how many seeds "
        f"got there. Parameters: of the core. Budget {steps_text(float(first['budget']))} "
        f"steps{early}. Time: median, with {first['threads']} thread a run; {spent(rows)}. "
        f"{made_by(rows)}.\n"
    )
    return markdown(heads, lines) + "\n" + note


def _cells(rows: Sequence[Row]) -> list[str]:
    success = logs.column(list(rows), "success")
    low, high = iqm_interval(success)
    diverged = sum(row.get("ended") == "diverged" for row in rows)
    times = [steps(row) for row in rows]
    median, count = median_reached([time if reached else None for time, reached in times])
    seconds = float(np.median(logs.column(list(rows), "seconds")))
    parameters = rows[0].get("parameters")
    more = min((time for time, reached in times if not reached), default=0.0)
    when = steps_text(median) if median else f"> {steps_text(more)}"
    return [
        f"{iqm(success):.2f}"
        + (f" [{low:.2f}, {high:.2f}]" if len(rows) > 1 else "")
        + (f", {diverged} diverged" if diverged else ""),
        f"{when} ({count} of {len(rows)})",
        f"{int(parameters):,}" if parameters else "",
        time_text(seconds),
    ]
