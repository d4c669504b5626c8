"""Heat maps: the loss of networks over learning rates and sizes, out of CSV files."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from rlgates.experiments.figures import LOOK, save
from rlgates.experiments.tables import Key, Row, key, made_by, markdown, ordered, read, slug, spent
from rlgates.experiments.text import steps_text

COLUMNS = 2  # of panels
COLORS = colormaps["viridis"]
FAILED = "#dddddd"
FRAME = "#D55E00"
SHARE = 0.9  # of the cells whose colours are told apart: the worst may be far off
Place = tuple[int, float]
"""Size and rate."""


class Cell(NamedTuple):
    """The runs of one rate and size.

    Attributes:
        loss: the lowest on held-out sequences during a run, its median over the runs that did
            not diverge; None if all did.
        updates: after which it was had, the median of these runs; None if all diverged.
        diverged: how many did.
        rows: all of them.
    """

    loss: float | None
    updates: float | None
    diverged: int
    rows: tuple[Row, ...]


class Map(NamedTuple):
    """The cells of one core on one task; what was not made is missing among them.

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
        """Of the cells that have one."""
        return {place: cell.loss for place, cell in self.cells.items() if cell.loss is not None}

    @property
    def best(self) -> Place | None:
        """Where the loss is lowest."""
        losses = self.losses
        return min(losses, key=lambda place: losses[place], default=None)


def draw_heat(results: Path, name: str, rows: Sequence[Row]) -> list[Path]:
    """Draw a heat map of each core, a picture for each task.

    Args:
        results: folder of the CSV files.
        name: of the study.
        rows: its runs, of networks.

    Returns:
        the pictures, `<name>_<task>_heat.png`.
    """
    written = []
    found = _by_task(results, name, rows)
    for title, maps in found.items():
        written.append(results / f"{name}_{slug(title, list(found))}_heat.png")
        draw_maps(title, maps, written[-1])
    return written


def heat_table(results: Path, name: str, rows: Sequence[Row]) -> str:
    """Where each core is best on each task; see `draw_heat`."""
    text = []
    for title, maps in _by_task(results, name, rows).items():
        metric = next(row["metric"] for row in rows if row["title"] == title)
        heads = (
            *(title, "lowest loss", "updates to it", "rate", "size"),
            *(f"{metric} on test", "diverged", "missing"),
        )
        lines = []
        for one in sorted(maps, key=lambda one: min(one.losses.values(), default=math.inf)):
            failed = sum(cell.diverged for cell in one.cells.values())
            runs = sum(len(cell.rows) for cell in one.cells.values())
            missing = len(one.sizes) * len(one.rates) - len(one.cells)
            lines.append((f"`{one.core}`", *_best(one), f"{failed} of {runs} runs", f"{missing}"))
        text.append(markdown(heads, lines))
    seeds = sorted({int(row["seed"]) for row in rows})
    over = f"median over seeds {seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else f"seed {seeds[0]}"
    note = (
        f"The lowest loss on held-out sequences during a run, {over}, at the best rate and size of "
        f"each core, and what was reached on test there; all are in `{name}.csv`. {spent(rows)}. "
        f"{made_by(rows)}."
    )
    return "\n".join([*text, f"{note}\n"])


def _best(one: Map) -> tuple[str, ...]:
    """Loss, updates to it, rate, size, and figure on test."""
    if one.best is None:
        return ("",) * 5
    size, rate = one.best
    cell = one.cells[one.best]
    tests = [float(row["test"]) for row in cell.rows if row["test"] and not row["diverged_at"]]
    test = f"{np.median(tests):.4g}" if tests else ""
    return f"{cell.loss:.4f}", f"{cell.updates:,.0f}", f"{rate:g}", str(size), test


def _by_task(results: Path, name: str, rows: Sequence[Row]) -> dict[str, list[Map]]:
    points = read(results / f"{name}_curves.csv")
    titles = dict.fromkeys(row["title"] for row in rows)
    return {title: heat_maps([r for r in rows if r["title"] == title], points) for title in titles}


def heat_maps(rows: Sequence[Row], points: Sequence[Row]) -> list[Map]:
    """The maps of one task, core by core.

    Args:
        rows: its runs.
        points: of their learning curves.
    """
    curves: dict[Key, list[tuple[float, float]]] = {}
    for point in points:
        one = float(point["loss"] or "nan"), float(point["update"])
        curves.setdefault(key(point), []).append(one)
    rates = sorted({float(row["learning_rate"]) for row in rows})
    maps = []
    for core in ordered(row["core"] for row in rows):
        found: dict[Place, list[Row]] = {}
        for row in rows:
            if row["core"] == core:
                place = int(row["hidden_size"]), float(row["learning_rate"])
                found.setdefault(place, []).append(row)
        sizes = sorted({size for size, _ in found})
        cells = {place: _cell(some, curves) for place, some in found.items()}
        maps.append(Map(core, tuple(rates), tuple(sizes), cells))
    return maps


def _cell(rows: Sequence[Row], curves: Mapping[Key, Sequence[tuple[float, float]]]) -> Cell:
    lowest = []
    for row in rows:
        seen = [(float(row["loss"]), float(row["made"])), *curves.get(key(row), ())]
        finite = [one for one in seen if math.isfinite(one[0])]
        if finite and not row["diverged_at"]:
            lowest.append(min(finite))
    if not lowest:
        return Cell(None, None, len(rows), tuple(rows))
    loss, updates = np.median(lowest, axis=0).tolist()
    return Cell(loss, updates, len(rows) - len(lowest), tuple(rows))


def draw_maps(title: str, maps: Sequence[Map], path: Path) -> None:
    """A panel for each core, on one scale of colours.

    Args:
        title: the task.
        maps: of the cores.
        path: the PNG to be written.
    """
    columns = min(COLUMNS, len(maps))
    lines = -(-len(maps) // columns)
    width = 0.56 * len(maps[0].rates) + 0.7
    height = 0.4 * max(len(one.sizes) for one in maps) + 0.9
    losses = [loss for one in maps for loss in one.losses.values()] or [0.0]
    norm = Normalize(min(losses), float(np.quantile(losses, SHARE)))
    with rc_context({**LOOK, "font.size": 9, "axes.titlesize": 11}):
        size = columns * width + 1, lines * height + 0.7
        figure = Figure(figsize=size, layout="constrained")
        panels = figure.subplots(lines, columns, squeeze=False).ravel()
        for axes, one in zip(panels, maps, strict=False):
            _plot(axes, one, norm)
        for axes in panels[len(maps) :]:
            axes.set_visible(False)
        beyond: Any = "max" if max(losses) > (norm.vmax or 0) else "neither"
        figure.colorbar(ScalarMappable(norm, COLORS), ax=list(panels), extend=beyond, aspect=40)
        figure.suptitle(
            f"{title}: lowest loss on held-out sequences, below it the updates to it\n"
            "framed: the core's best; hatched: diverged; –: not made",
            x=0.01,
            ha="left",
            fontsize=10,
        )
        figure.supxlabel("learning rate", fontsize=10)
        figure.supylabel("size", fontsize=10)
        save(figure, path)


def _plot(axes: Axes, one: Map, norm: Normalize) -> None:
    for (row, size), (column, rate) in product(enumerate(one.sizes), enumerate(one.rates)):
        cell = one.cells.get((size, rate))
        corner = column - 0.5, row - 0.5
        if cell is None:
            axes.text(column, row, "–", ha="center", va="center", color="#444444")
            continue
        color: Any = FAILED if cell.loss is None else COLORS(norm(cell.loss))
        hatch = "////" if cell.diverged else None
        face = {"facecolor": color, "edgecolor": "white", "hatch": hatch}
        axes.add_patch(Rectangle(corner, 1, 1, **face))
        if cell.loss is not None:
            dark = np.dot(color[:3], (0.299, 0.587, 0.114)) < 0.5
            ink = "white" if dark else "black"
            words = f"{_number(cell.loss)}\n{steps_text(cell.updates or 0)}"
            axes.text(column, row, words, ha="center", va="center", fontsize=7, color=ink)
        if (size, rate) == one.best:
            frame = Rectangle(corner, 1, 1, fill=False, edgecolor=FRAME, linewidth=2.5, zorder=3)
            frame.set_clip_on(False)
            axes.add_patch(frame)
    axes.set_title(one.core, loc="left")
    axes.set_xlim(-0.5, len(one.rates) - 0.5)
    axes.set_ylim(-0.5, len(one.sizes) - 0.5)
    axes.set_xticks(range(len(one.rates)), [f"{rate:g}" for rate in one.rates])
    axes.set_yticks(range(len(one.sizes)), [f"{size:,}" for size in one.sizes])
    axes.tick_params(length=0)


def _number(loss: float) -> str:
    """Three digits."""
    return f"{loss:#.3g}" if loss < 100 else f"{loss:.0f}"
