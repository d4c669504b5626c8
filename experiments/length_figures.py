"""Scores against lengths: of tests longer than the training, and of the tasks of a study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from rlgates.experiments.figures import ENTRIES, LOOK, STYLES, mark_levels, save, styles
from rlgates.experiments.stats import iqm, iqm_interval
from rlgates.experiments.tables import markdown

BEHIND = "#cfcfcf"  # other cores
TOGETHER = 12  # lines that one panel can hold
COLUMNS = 5  # of small panels
NONE = "none"


class Panel(NamedTuple):
    """Scores of cores on one axis of lengths.

    Attributes:
        title: the task.
        axis: what the lengths are of.
        places: the lengths, in their order, with their labels.
        scores: of each core, at each length where there are any, over seeds.
        floor: the score without memory, where it is known.
    """

    title: str
    axis: str
    places: Mapping[float, str]
    scores: Mapping[str, Mapping[float, Sequence[float]]]
    floor: float | None


def draw_grid(panels: Sequence[Panel], path: Path, score: str) -> None:
    """A column for each task, and a row of panels for every few cores, the others behind them.

    Args:
        panels: the tasks.
        path: the PNG to be written.
        score: what is shown.
    """
    cores = list(dict.fromkeys(core for panel in panels for core in panel.scores if core != NONE))
    groups = [cores[k : k + len(STYLES)] for k in range(0, len(cores), len(STYLES))] or [[]]
    with rc_context(LOOK):
        size = 1 + 4.3 * len(panels), 0.5 + 3.1 * len(groups)
        figure = Figure(figsize=size, layout="constrained")
        grid = figure.subplots(len(groups), len(panels), sharex="col", sharey=True, squeeze=False)
        style = styles(cores)
        for row, group in zip(grid, groups, strict=True):
            for axes, panel in zip(row, panels, strict=True):
                _plot(axes, panel, [*group, NONE], style)
                mark_levels(axes, panel.floor)
            lines = {line.get_label(): line for axes in row for line in axes.lines}
            named = [core for core in (*group, NONE) if core in lines]
            row[-1].legend(
                [lines[core] for core in named], named, loc="center left", bbox_to_anchor=(1, 0.5)
            )
            row[0].set_ylabel(score)
        for axes, panel in zip(grid[0], panels, strict=True):
            axes.set_title(panel.title, loc="left")
        for axes, panel in zip(grid[-1], panels, strict=True):
            axes.set_xlabel(panel.axis)
        save(figure, path)


def draw_one(panel: Panel, path: Path, score: str) -> None:
    """All cores in one panel; if they are many, a small one each, the others behind it."""
    if len(panel.scores) <= TOGETHER:
        _draw_together(panel, path, score)
        return
    rows = -(-len(panel.scores) // COLUMNS)
    with rc_context({**LOOK, "font.size": 9, "axes.titlesize": 10}):
        figure = Figure(figsize=(2.4 * COLUMNS + 0.6, 1.9 * rows + 0.7), layout="constrained")
        grid = figure.subplots(rows, COLUMNS, sharex=True, sharey=True, squeeze=False)
        muted = styles([])[NONE][0]
        for axes, core in zip(grid.ravel(), panel.scores, strict=False):
            color = muted if core == NONE else STYLES[0][0]
            _plot(axes, panel, [core], {core: (color, "-")})
            mark_levels(axes, panel.floor, named=False)
            axes.set_title(core, loc="left")
        for axes in grid.ravel()[len(panel.scores) :]:
            axes.set_visible(False)
        last = "" if panel.floor is None else f", at {panel.floor:.2f} chance"
        figure.suptitle(
            f"{panel.title}: {score} (grey: the other cores; dashed: at 1 perfect memory{last})",
            x=0.01,
            ha="left",
        )
        figure.supxlabel(panel.axis, fontsize=10)
        save(figure, path)


def _draw_together(panel: Panel, path: Path, score: str) -> None:
    with rc_context(LOOK):
        figure = Figure(figsize=(7, 4.6), layout="constrained")
        axes = figure.add_subplot()
        _plot(axes, panel, list(panel.scores), styles(list(panel.scores)))
        mark_levels(axes, panel.floor)
        axes.set_title(panel.title, loc="left")
        axes.set_xlabel(panel.axis)
        axes.set_ylabel(score)
        figure.legend(loc="outside lower center", ncols=min(len(panel.scores), ENTRIES))
        save(figure, path)


def _plot(axes: Axes, panel: Panel, shown: Sequence[str], style: Mapping[str, Any]) -> None:
    """IQM over seeds of all cores, with interval and colour of those that are shown."""
    for core, scores in panel.scores.items():
        places = [place for place in panel.places if scores.get(place)]
        middles = [iqm(scores[place]) for place in places]
        if core not in shown:
            axes.plot(places, middles, color=BEHIND, lw=1, zorder=1)
            continue
        color, dash = style[core]
        lows, highs = zip(*(iqm_interval(scores[place]) for place in places), strict=True)
        axes.fill_between(places, lows, highs, color=color, alpha=0.15, lw=0, zorder=2)
        line = {"color": color, "ls": dash, "lw": 2, "label": core}
        axes.plot(places, middles, marker="o", ms=4, clip_on=False, zorder=3, **line)
    if min(panel.places) > 0:
        axes.set_xscale("log", base=2)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(list(panel.places), list(panel.places.values()))


def table(panels: Sequence[Panel]) -> str:
    """IQM and interval of each core at each length, a table for each task."""
    return "\n".join(map(_table, panels))


def _table(panel: Panel) -> str:
    labels = [label.replace("\n", ", ") for label in panel.places.values()]
    heads = [f"{panel.title}: {panel.axis}", *labels]
    lines = []
    for core, scores in panel.scores.items():
        cells = [_cell(scores.get(place, ())) for place in panel.places]
        lines.append([f"`{core}`", *cells])
    return markdown(heads, lines)


def _cell(scores: Sequence[float]) -> str:
    if not scores:
        return ""
    low, high = iqm_interval(scores)
    return f"{iqm(scores):.2f} [{low:.2f}, {high:.2f}]"
