"""Figures of the forget gates of supervised runs, unit by unit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from rlgates.experiments.analysis.unit_gates import Growth
from rlgates.experiments.plots.forget_gates import Pair, draw_gates
from rlgates.experiments.plots.styles import in_core_order
from rlgates.experiments.plots.titles import title_words
from rlgates.experiments.report.rows import LABEL, numbers
from rlgates.experiments.runs.gates import QUANTILES


def draw_unit_gates(
    title: str, rows: pd.DataFrame, path: Path, points: pd.DataFrame | None = None
) -> bool:
    """Draw histograms and timescales of all cores before, during and after training.

    Args:
        title: the task; rows of other tasks are ignored.
        rows: a row per unit, with the columns of `runs.gates.unit_rows`.
        path: the PNG to write.
        points: learning curves of the task, with the columns of
            `runs.gates.growth_columns`; None: the panel of the training is left out.

    Returns:
        whether any core has forget gates.
    """
    if rows.empty or not (rows["title"] == title).any():
        return False
    rows = rows[rows["title"] == title]
    cores = in_core_order(rows["core"])
    rows = rows.sort_values("core", key=lambda column: column.map(cores.index), kind="stable")
    gates: dict[str, Pair] = {}
    timescales: dict[str, Pair] = {}
    for label, units in rows.groupby(LABEL, sort=False):
        before, after = (numbers(units, f"gate_{when}")[None] for when in ("before", "after"))
        gates[label] = before, after
        before, after = (numbers(units, f"timescale_{when}")[None] for when in ("before", "after"))
        timescales[label] = np.exp(-1 / before), np.exp(-1 / after)
    during = {label: growth for label in gates if (growth := _median_growth(points, label))}
    when = f"before{', during' * bool(during)} and after training"
    words = f"{title_words(title)}: forget gates {when}"
    draw_gates(gates, path, words, during, timescales, "updates")
    return True


def _median_growth(points: pd.DataFrame | None, label: str) -> Growth | None:
    """Take medians of the timescale quantiles over seeds, at the updates of any of them.

    All seeds count in each, those without a measurement there with what lies on the line between
    two; a run that stopped early keeps its last value.
    """
    if points is None or points.empty or QUANTILES[0] not in points:
        return None
    points = points[(points[LABEL] == label) & (points[QUANTILES[0]] != "")]
    if points.empty:
        return None
    runs = [
        (numbers(run, "update"), [numbers(run, name) for name in QUANTILES])
        for _, run in points.groupby("seed", sort=False)
    ]
    begin = max(updates[0] for updates, _ in runs)  # before it, not all were measured
    grid = np.unique(np.concatenate([updates for updates, _ in runs]))
    grid = grid[grid >= begin]
    values = [[np.interp(grid, updates, line) for line in lines] for updates, lines in runs]
    return Growth(grid, *np.median(values, axis=0))
