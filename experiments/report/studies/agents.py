"""Studies of agents: tables, learning curves, and the readers of their curves and settings."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from rlgates.experiments.analysis.stats import iqm, median_reached
from rlgates.experiments.configs.agent import SUCCESS_THRESHOLD, AgentConfig
from rlgates.experiments.configs.base import parse_pairs
from rlgates.experiments.plots.curves import (
    Curve,
    draw_panels,
    new_figure,
    plot_panels,
)
from rlgates.experiments.plots.titles import title_words
from rlgates.experiments.report.environments import MATCH_IDS, phase_images
from rlgates.experiments.report.rows import (
    TITLE,
    iqm_text,
    markdown,
    numbers,
    provenance,
    read_frame,
    seeds_text,
    total_time,
)
from rlgates.experiments.report.studies.paired import steps_and_success
from rlgates.experiments.runs.files import Row
from rlgates.experiments.runs.text import steps_text, time_text


def env_settings(row: Row) -> dict[str, Any]:
    """Parse the settings of a run's environment."""
    return parse_pairs(shlex.split(row["env_settings"]))


def chance_levels(rows: pd.DataFrame) -> dict[str, float | None]:
    """Return the success rate without memory in each environment; None where it is unknown."""
    return {
        row[TITLE]: AgentConfig(env=row["env"], env_settings=env_settings(row)).chance
        for row in rows.drop_duplicates(TITLE).to_dict("records")
    }


def read_curves(path: Path) -> dict[str, list[Curve]]:
    """Read the success rates of agents in training, by the title of their environment."""
    points = read_frame(path)
    panels: dict[str, list[Curve]] = {}
    if "steps" not in points:
        return panels
    # The others belong to networks, and to agents that are judged by their return.
    points = points[(points["steps"] != "") & (points["mean_return"] == "")]
    for (title, core, seed), run in points.groupby([TITLE, "core", "seed"], sort=False):
        curve = Curve(core, int(seed), numbers(run, "steps"), numbers(run, "success"))
        panels.setdefault(title, []).append(curve)
    return panels


def agent_tables(rows: pd.DataFrame) -> str:
    """Format a table per environment: success, steps to the goal, parameters, time."""
    return "\n".join(_table(group) for _, group in rows.groupby(TITLE, sort=False))


def _table(rows: pd.DataFrame) -> str:
    first = rows.iloc[0]
    over = seeds_text(rows)
    if rows["seed"].nunique() > 1:
        over = f"interquartile mean over {over} with its 95 % bootstrap interval"
    known = bool((rows["best"] != "").any())  # not of runs without curves
    heads = (
        title_words(first[TITLE]),
        "success",
        *["best in training"] * known,
        f"steps to {SUCCESS_THRESHOLD}",
        "parameters",
        "time per run",
    )
    lines = [
        [f"`{core}`", *_cells(group, known)] for core, group in rows.groupby("core", sort=False)
    ]
    best = (
        "Best in training: the same mean, of each run's highest success rate in training, from "
        "which it may fall again. "
    ) * known
    stop = first["stop_success"]
    early = f"; a run ends sooner when {float(stop):.0%} succeed" if stop else ""
    note = (
        f"Success on {int(first['episodes']):,} fresh episodes per seed: {over}. "
        f"{best}Training steps until {SUCCESS_THRESHOLD:.0%} of the last training episodes "
        "succeeded: median, and how many seeds got there. Parameters: of the core. Budget: "
        f"{steps_text(float(first['budget']))} steps{early}. Time: median, with "
        f"{first['threads']} thread per run; {total_time(rows)}. "
        f"{provenance(rows)}.\n"
    )
    return markdown(heads, lines) + "\n" + note


def _cells(rows: pd.DataFrame, with_best: bool) -> list[str]:
    success, best = numbers(rows, "success"), numbers(rows[rows["best"] != ""], "best")
    diverged = int((rows["ended"] == "diverged").sum())
    times = [steps_and_success(row) for row in rows.to_dict("records")]
    median, count = median_reached([time if reached else None for time, reached in times])
    parameters = rows.iloc[0]["parameters"]
    shortest = min((time for time, reached in times if not reached), default=0.0)
    when = steps_text(median) if median else f"> {steps_text(shortest)}"
    return [
        iqm_text(success) + (f", {diverged} diverged" if diverged else ""),
        *([f"{iqm(best):.2f}" if len(best) else ""] if with_best else []),
        f"{when} ({count} of {len(rows)})",
        f"{int(parameters):,}" if parameters else "",
        time_text(float(np.median(numbers(rows, "seconds")))),
    ]


def draw_agents(results: Path, name: str, rows: pd.DataFrame) -> list[Path]:
    """Draw the learning curves of a study of agents.

    Args:
        results: folder of the CSV files.
        name: of the study.
        rows: its runs, of agents.

    Returns:
        `<name>.png`, and `<name>_readme.png` where all runs are of one Match environment.
    """
    panels = read_curves(results / f"{name}_curves.csv")
    if not panels:
        return []
    diverged = rows[rows["ended"] == "diverged"]
    lost = set(zip(diverged[TITLE], diverged["core"], diverged["seed"].astype(int), strict=True))
    panels = {
        title: [run._replace(diverged=(title, run.core, run.seed) in lost) for run in runs]
        for title, runs in panels.items()
    }
    figure, readme = (results / f"{name}{suffix}" for suffix in (".png", "_readme.png"))
    levels = chance_levels(rows)
    draw_panels(panels, figure, levels)
    env_id, *others = rows["env"].unique()
    if others or env_id not in MATCH_IDS:
        return [figure]
    images = phase_images(env_id, env_settings(rows.iloc[0]))
    with new_figure(readme, (11.5, 4.4)) as sheet:
        parts: Any = sheet.subfigures(1, 2, width_ratios=(1, 2.6))
        left, right = parts
        column = left.subplots(len(images), 1, squeeze=False)[:, 0]
        for axes, image in zip(column, images, strict=True):
            axes.imshow(image, interpolation="lanczos")
            axes.set_axis_off()
        top = left.axes[0]
        for x, text in ((0.02, "agent's view"), (0.41, "whole board")):
            top.text(x, 1.06, text, transform=top.transAxes, fontsize=10)
        plot_panels(right, panels, levels)
    return [figure, readme]
