"""The forget gates of supervised runs before and after training, unit by unit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib import rc_context
from matplotlib.figure import Figure

from rlgates.core import Observation
from rlgates.experiments.figures import LOOK, save
from rlgates.experiments.gate_figures import (
    WIDTH,
    Growth,
    Pair,
    plot_growth,
    plot_histograms,
    plot_timescales,
    unit_means,
    unit_timescales,
)
from rlgates.experiments.gate_runs import growth
from rlgates.experiments.supervise import Run
from rlgates.experiments.supervised_configs import SupervisedConfig
from rlgates.experiments.supervised_evaluate import observed
from rlgates.experiments.supervised_saved import load_best
from rlgates.experiments.tables import Row, ordered, who

SEQUENCES = 32
QUANTILES = ("timescale_low", "timescale", "timescale_high")  # 10, 50 and 90 per cent


def gates_before_and_after(
    config: SupervisedConfig, seed: int
) -> tuple[Observation, Observation] | None:
    """What the cores of the untrained and of the best network do on the same held-out sequences.

    Returns:
        None if the core has no forget gates.

    Raises:
        ValueError: the run's best weights are gone, damaged, or of another run.
    """
    run = Run(config, seed)
    batch = next(run.held_out("valid"))
    before = observed(run.reader, batch, SEQUENCES, run.device)
    if not before.forget:
        return None
    run.reader.load_state_dict(load_best(run))
    return before, observed(run.reader, batch, SEQUENCES, run.device)


def unit_rows(pair: tuple[Observation, Observation] | None) -> list[Row]:
    """A row for each unit: its mean gate and its timescale, before and after training."""
    if pair is None:
        return []
    with torch.no_grad():
        columns = {
            f"{kind}_{when}": values(seen)
            for when, seen in zip(("before", "after"), pair, strict=True)
            for kind, values in (("gate", unit_means), ("timescale", unit_timescales))
        }
    return [
        {"unit": str(unit), **{name: f"{column[unit]:.5g}" for name, column in columns.items()}}
        for unit in range(len(columns["gate_before"]))
    ]


def growth_columns(folder: Path) -> dict[int, Row]:
    """The quantiles of the gates' timescales in steps that a run wrote down, by update."""
    found = growth(folder)
    if found is None:
        return {}
    return {
        int(step): {name: f"{value:.4g}" for name, value in zip(QUANTILES, values, strict=True)}
        for step, *values in zip(*found, strict=True)
    }


def _median_growth(points: Sequence[Row]) -> Growth | None:
    """The medians over seeds of what `growth_columns` gave, update by update."""
    seen: dict[int, list[list[float]]] = {}
    for point in points:
        if point.get(QUANTILES[0]):
            marks = [float(point[name]) for name in QUANTILES]
            seen.setdefault(int(point["update"]), []).append(marks)
    if not seen:
        return None
    updates = sorted(seen)
    medians = np.array([np.median(seen[update], axis=0) for update in updates])
    return Growth(np.array(updates, dtype=float), *medians.T)


def draw_unit_gates(
    title: str, rows: Sequence[Row], path: Path, points: Sequence[Row] = ()
) -> bool:
    """Histograms and timescales of all cores in the rows, before, after and during training.

    Args:
        title: of the task.
        rows: as `unit_rows` gives them.
        path: the PNG to be written.
        points: of the learning curves on that task, with the columns of `growth_columns`.

    Returns:
        whether there was any core.
    """
    means: dict[str, Pair] = {}
    scales: dict[str, Pair] = {}
    units: dict[str, list[Row]] = {}
    shown = [row for row in rows if row["title"] == title]
    cores = ordered(row["core"] for row in shown)
    for row in sorted(shown, key=lambda row: cores.index(row["core"])):
        units.setdefault(who(row), []).append(row)
    for name, mine in units.items():
        columns = {
            column: np.array([[float(row[column]) for row in mine]])
            for column in ("gate_before", "gate_after", "timescale_before", "timescale_after")
        }
        means[name] = columns["gate_before"], columns["gate_after"]
        before, after = columns["timescale_before"], columns["timescale_after"]
        scales[name] = np.exp(-1 / before), np.exp(-1 / after)
    if not means:
        return False
    grown = {
        name: found
        for name in means
        if (found := _median_growth([point for point in points if who(point) == name]))
    }
    kinds = 3 if grown else 2
    with rc_context(LOOK):
        figure = Figure(figsize=(0.6 + WIDTH * len(means), 3.2 * kinds), layout="constrained")
        parts: Any = figure.subfigures(kinds, 1)
        figure.suptitle(
            f"{title}: forget gates before{', during' * bool(grown)} and after training",
            fontsize=12,
            x=0.01,
            ha="left",
        )
        plot_histograms(parts[0], means)
        plot_timescales(parts[1], scales)
        if grown:
            plot_growth(parts[2], grown, list(means), "updates")
        save(figure, path)
    return True
