"""The lowest loss of networks over learning rates and sizes: heat maps, and a table of the best."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.patches import Rectangle

from rlgates.experiments.plots.curves import new_figure
from rlgates.experiments.plots.styles import in_core_order
from rlgates.experiments.plots.titles import title_words
from rlgates.experiments.report.rows import (
    file_slug,
    markdown,
    numbers,
    provenance,
    read_frame,
    seeds_text,
    test_figures,
    total_time,
)
from rlgates.experiments.runs.text import steps_text

Place = tuple[int, float]
"""Hidden size and learning rate."""
COLUMNS = 2  # of panels
COLORS = colormaps["viridis"]
DIVERGED = "#dddddd"
FRAME = "#D55E00"
QUANTILE = 0.9  # of the losses, up to which colours differ: the worst may be far off


class Cell(NamedTuple):
    """The runs of one learning rate and size.

    Attributes:
        loss: the lowest on held-out sequences during a run, its median over the runs that did
            not diverge; None if all did.
        updates: after which it was reached, the median of these runs; None if all diverged.
        diverged: the number of runs that did.
        runs: the number of all runs.
        test: the metric on the test set, its median; None if no run has one.
    """

    loss: float | None
    updates: float | None
    diverged: int
    runs: int
    test: float | None


class HeatMap(NamedTuple):
    """The cells of one core on one task; those without runs are missing.

    Attributes:
        core: its name.
        rates: of all cores on that task, rising.
        sizes: of this core, rising.
        cells: by size and rate.
    """

    core: str
    rates: tuple[float, ...]
    sizes: tuple[int, ...]
    cells: Mapping[Place, Cell]

    @property
    def losses(self) -> dict[Place, float]:
        """The losses of the cells that have one."""
        return {place: cell.loss for place, cell in self.cells.items() if cell.loss is not None}

    @property
    def best(self) -> Place | None:
        """Where the loss is lowest."""
        losses = self.losses
        return min(losses, key=lambda place: losses[place], default=None)


def heat_maps(rows: pd.DataFrame, points: pd.DataFrame) -> list[HeatMap]:
    """Build the maps of one task, core by core.

    Args:
        rows: the runs of the task.
        points: the points of their learning curves.
    """
    best = _lowest_losses(rows, points)
    rows = rows.assign(
        _size=rows["hidden_size"].astype(int),
        _rate=numbers(rows, "learning_rate"),
        _loss=best["loss"].to_numpy(),
        _update=best["update"].to_numpy(),
    )
    rates = tuple(sorted(set(rows["_rate"])))
    groups = dict(list(rows.groupby("core", sort=False)))
    maps = []
    for core in in_core_order(groups):
        places = groups[core].groupby(["_size", "_rate"], sort=False)
        cells = {(int(size), float(rate)): _cell(runs) for (size, rate), runs in places}
        maps.append(HeatMap(core, rates, tuple(sorted({size for size, _ in cells})), cells))
    return maps


def _lowest_losses(rows: pd.DataFrame, points: pd.DataFrame) -> pd.DataFrame:
    """Find the lowest finite loss of each run and its update, nan where a run diverged."""
    key = ["title", "variant", "core", "seed"]
    ends = rows[key].assign(loss=numbers(rows, "loss"), update=numbers(rows, "made"))
    curves = points.reindex(columns=key).assign(
        loss=numbers(points, "loss"), update=numbers(points, "update")
    )
    both = pd.concat([ends, curves])
    finite = both[np.isfinite(both["loss"])].sort_values(["loss", "update"], kind="stable")
    lowest = finite.drop_duplicates(key)
    merged = rows[key].merge(lowest, on=key, how="left")
    merged.loc[(rows["diverged_at"] != "").to_numpy(), ["loss", "update"]] = math.nan
    return merged


def _cell(runs: pd.DataFrame) -> Cell:
    kept = runs[runs["_loss"].notna()]
    tests = test_figures(runs, "test")
    test = None if np.isnan(tests).all() else float(np.nanmedian(tests))
    if kept.empty:
        return Cell(None, None, len(runs), len(runs), test)
    loss, updates = float(kept["_loss"].median()), float(kept["_update"].median())
    return Cell(loss, updates, len(runs) - len(kept), len(runs), test)


def heat_maps_by_task(results: Path, name: str, rows: pd.DataFrame) -> dict[str, list[HeatMap]]:
    """Build the maps of a study by task, with the learning curves of `<name>_curves.csv`."""
    points = read_frame(results / f"{name}_curves.csv")
    return {title: heat_maps(runs, points) for title, runs in rows.groupby("title", sort=False)}


def heat_tables(results: Path, name: str, rows: pd.DataFrame) -> str:
    """Format a table per task with the best rate and size of each core.

    Args:
        results: folder of the CSV files.
        name: of the study.
        rows: its runs, of networks.
    """
    parts = []
    for title, maps in heat_maps_by_task(results, name, rows).items():
        metric = rows.loc[rows["title"] == title, "metric"].iloc[0]
        heads = (
            *(title_words(title), "lowest loss", "after updates", "rate", "size"),
            *(f"{metric} on test", "diverged", "missing"),
        )
        lines = []
        for one in sorted(maps, key=lambda one: min(one.losses.values(), default=math.inf)):
            diverged = sum(cell.diverged for cell in one.cells.values())
            runs = sum(cell.runs for cell in one.cells.values())
            missing = len(one.sizes) * len(one.rates) - len(one.cells)
            cells = (f"`{one.core}`", *_best_cells(one), f"{diverged} of {runs} runs")
            lines.append((*cells, f"{missing}"))
        parts.append(markdown(heads, lines))
    over = "median over " * (rows["seed"].nunique() > 1) + seeds_text(rows)
    note = (
        f"The lowest loss on held-out sequences during a run, {over}, at the best rate and size of "
        f"each core, and the test metric there; all runs are in `{name}.csv`. "
        f"{total_time(rows)}. {provenance(rows)}."
    )
    return "\n".join([*parts, f"{note}\n"])


def _best_cells(one: HeatMap) -> tuple[str, ...]:
    """Return the loss, its updates, the rate, the size and the test metric of the best cell."""
    if one.best is None:
        return ("",) * 5
    size, rate = one.best
    cell = one.cells[one.best]
    test = "" if cell.test is None else f"{cell.test:.4g}"
    return f"{cell.loss:.4f}", f"{cell.updates:,.0f}", f"{rate:g}", str(size), test


def draw_heat(results: Path, name: str, rows: pd.DataFrame) -> list[Path]:
    """Draw a heat map of each core, a figure for each task.

    Args:
        results: folder of the CSV files.
        name: of the study.
        rows: its runs, of networks.

    Returns:
        the figures, `<name>_<task>_heat.png`.
    """
    tasks = heat_maps_by_task(results, name, rows)
    written = []
    for title, maps in tasks.items():
        written.append(results / f"{name}_{file_slug(title, list(tasks))}_heat.png")
        plot_heat_maps(title, maps, written[-1])
    return written


def plot_heat_maps(title: str, maps: Sequence[HeatMap], path: Path) -> None:
    """Draw a panel for each core, on one scale of colours.

    Args:
        title: the task.
        maps: of the cores.
        path: the PNG to write.
    """
    columns = min(COLUMNS, len(maps))
    lines = -(-len(maps) // columns)
    width = 0.56 * len(maps[0].rates) + 0.7
    height = 0.4 * max(len(one.sizes) for one in maps) + 1.1
    losses = [loss for one in maps for loss in one.losses.values()] or [0.0]
    norm = Normalize(min(losses), float(np.quantile(losses, QUANTILE)))
    size = columns * width + 1, lines * height + 0.7
    with new_figure(path, size, font_size=9, title_size=11) as figure:
        panels = figure.subplots(lines, columns, squeeze=False).ravel()
        for axes, one in zip(panels, maps, strict=False):
            _plot(axes, one, norm)
        for axes in panels[len(maps) :]:
            axes.remove()
        beyond: Any = "max" if max(losses) > (norm.vmax or 0) else "neither"
        figure.colorbar(
            ScalarMappable(norm, COLORS), ax=list(panels[: len(maps)]), extend=beyond, aspect=40
        )
        figure.suptitle(
            f"{title_words(title)}: lowest loss on held-out sequences, below it the updates to it\n"
            "framed: the core's best; hatched: diverged; –: not made",
            x=0.01,
            ha="left",
            fontsize=10,
        )


def _plot(axes: Axes, one: HeatMap, norm: Normalize) -> None:
    for (row, size), (column, rate) in product(enumerate(one.sizes), enumerate(one.rates)):
        cell = one.cells.get((size, rate))
        corner = column - 0.5, row - 0.5
        if cell is None:
            axes.text(column, row, "–", ha="center", va="center", color="#444444")
            continue
        color: Any = DIVERGED if cell.loss is None else COLORS(norm(cell.loss))
        hatch = "////" if cell.diverged else None
        face = {"facecolor": color, "edgecolor": "white", "hatch": hatch}
        axes.add_patch(Rectangle(corner, 1, 1, **face))
        if cell.loss is not None:
            is_dark = np.dot(color[:3], (0.299, 0.587, 0.114)) < 0.5
            loss = f"{cell.loss:#.3g}" if cell.loss < 100 else f"{cell.loss:.0f}"
            text = f"{loss}\n{steps_text(cell.updates or 0)}"
            ink = "white" if is_dark else "black"
            axes.text(column, row, text, ha="center", va="center", fontsize=7, color=ink)
        if (size, rate) == one.best:
            frame = Rectangle(corner, 1, 1, fill=False, edgecolor=FRAME, linewidth=2.5, zorder=3)
            frame.set_clip_on(False)
            axes.add_patch(frame)
    axes.set_title(one.core, loc="left")
    axes.set_xlim(-0.5, len(one.rates) - 0.5)
    axes.set_ylim(-0.5, len(one.sizes) - 0.5)
    axes.set_xticks(range(len(one.rates)), [f"{rate:g}" for rate in one.rates])
    axes.set_yticks(range(len(one.sizes)), [f"{size:,}" for size in one.sizes])
    axes.set_xlabel("learning rate")
    axes.set_ylabel("units")
    axes.tick_params(length=0)
