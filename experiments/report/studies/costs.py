"""What the cores of a study score beside what they cost, and which are worth it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator, PercentFormatter

from rlgates.atomic import write_atomically
from rlgates.experiments.analysis.stats import iqm
from rlgates.experiments.plots.curves import LEGEND_COLUMNS, new_figure
from rlgates.experiments.plots.styles import INK, MUTED, NONE, in_core_order, style
from rlgates.experiments.plots.titles import loss_words, title_words
from rlgates.experiments.report.rows import TITLE, markdown, numbers, provenance
from rlgates.experiments.report.studies.agents import chance_levels
from rlgates.experiments.runs.text import time_text

COSTS = {"seconds": "time of a run", "parameters": "parameters of the core"}
MIN_SECONDS = 0.1  # to which times are rounded
MIN_GAIN = 0.05  # share of the way from the floor to the ceiling, below which a cost buys nothing
MIN_LOSS = 1e-3  # of the floor; lower losses are drawn there
MAX_TICKS = 5  # of an axis of times


class CoreCost(NamedTuple):
    """The score and the costs of one core on one task.

    Attributes:
        core: its name.
        score: median loss over seeds of a network, IQM of the success rate of an agent.
        costs: medians over seeds by column name; unknown ones are missing.
    """

    core: str
    score: float
    costs: dict[str, float]


class TaskCosts(NamedTuple):
    """The scores and costs of all cores on one task.

    Attributes:
        title: the task.
        is_agent: whether scores are success rates, of which more is better; else losses.
        floor: the score without memory, where it is known.
        cores: those with a finite score.
    """

    title: str
    is_agent: bool
    floor: float | None
    cores: list[CoreCost]

    def front(self, cost: str) -> list[CoreCost]:
        """Return the Pareto front of score and cost, the cheapest first.

        The core without memory is not on it, nor are cores that are hardly better.
        """
        sign = -1 if self.is_agent else 1
        known = [one for one in self.cores if one.core != NONE and cost in one.costs]
        front: list[CoreCost] = []
        for one in sorted(known, key=lambda one: (one.costs[cost], sign * one.score)):
            better = not front or sign * one.score < sign * front[-1].score
            if better and self._is_useful(one.score):
                front.append(one)
        return front

    def _is_useful(self, score: float) -> bool:
        if self.floor is None:
            return True
        if self.is_agent:
            return score > self.floor + MIN_GAIN * (1 - self.floor)
        return score < (1 - MIN_GAIN) * self.floor


def task_costs(rows: pd.DataFrame) -> list[TaskCosts]:
    """Collect the scores and costs of a study, task by task; without those with no finite score."""
    levels = chance_levels(rows[rows["env"] != ""])
    tasks = []
    for title, runs in rows.groupby(TITLE, sort=False):
        baseline = runs.iloc[0]["baseline"]
        floor = float(baseline) if baseline else levels.get(title)
        groups = dict(list(runs.groupby("core", sort=False)))
        cores = [_core_cost(core, groups[core]) for core in in_core_order(groups)]
        finite = [one for one in cores if np.isfinite(one.score)]
        if finite:
            tasks.append(TaskCosts(title, title in levels, floor, finite))
    return tasks


def _core_cost(core: str, rows: pd.DataFrame) -> CoreCost:
    if rows.iloc[0]["env"]:
        score = float(iqm(numbers(rows, "success")))
    else:
        score = float(np.median(numbers(rows, "loss")))
    medians = {cost: max(float(np.median(numbers(rows, cost))), MIN_SECONDS) for cost in COSTS}
    known = {cost: median for cost, median in medians.items() if np.isfinite(median)}
    return CoreCost(core, score, known)


def write_cost_table(tasks: Sequence[TaskCosts], rows: pd.DataFrame, path: Path) -> None:
    """Write a table per task, the best score first, with the cores on the fronts marked."""
    note = (
        "Score: median loss on held-out sequences, or interquartile mean of the success, over "
        "seeds. Best for: costs for which no cheaper core is as good, among cores at least a "
        "twentieth of the way from no memory to a perfect one. Times are medians, and depend on "
        f"how busy the machine was. {provenance(rows)}.\n"
    )
    write_atomically(path, "\n".join([*map(_table, tasks), note]).encode())


def _table(task: TaskCosts) -> str:
    fronts = {
        words: [one.core for one in task.front(cost)]
        for cost, words in (("seconds", "time"), ("parameters", "parameters"))
    }
    known = [cost for cost in COSTS if any(cost in one.costs for one in task.cores)]
    score_name = "success" if task.is_agent else "loss"
    heads = [title_words(task.title), score_name, *(COSTS[cost] for cost in known), "best for"]
    lines = []
    for one in sorted(task.cores, key=lambda one: one.score, reverse=task.is_agent):
        score = f"{one.score:.2f}" if task.is_agent else f"{one.score:.4f}"
        costs = [_cost_text(cost, one.costs[cost]) if cost in one.costs else "" for cost in known]
        best_for = ", ".join(words for words, cores in fronts.items() if one.core in cores)
        lines.append([f"`{one.core}`", score, *costs, best_for])
    return markdown(heads, lines)


def _cost_text(cost: str, value: float) -> str:
    return time_text(value) if cost == "seconds" else f"{value:,.0f}"


def draw_costs(results: Path, name: str, rows: pd.DataFrame) -> list[Path]:
    """Draw each core's score against its costs, and write the table.

    Args:
        results: the folder, where `<name>_cost.png` and `<name>_cost.md` are written.
        name: of the study.
        rows: its runs.

    Returns:
        the files written; none where no score is finite.
    """
    tasks = task_costs(rows)
    if not tasks:
        return []
    figure, table = (results / f"{name}_cost.{suffix}" for suffix in ("png", "md"))
    plot_costs(tasks, figure)
    write_cost_table(tasks, rows, table)
    return [figure, table]


def plot_costs(tasks: Sequence[TaskCosts], path: Path) -> None:
    """Draw a row of panels for each task; a cost that is not known has none.

    Args:
        tasks: scores and costs of each task.
        path: the PNG to write.
    """
    cores = in_core_order(one.core for task in tasks for one in task.cores)
    known = {cost for task in tasks for one in task.cores for cost in one.costs}
    costs = [cost for cost in COSTS if cost in known]
    lines = -(-len(cores) // LEGEND_COLUMNS)
    size = 1 + 4.6 * len(costs), 0.4 + 0.3 * lines + 3.3 * len(tasks)
    with new_figure(path, size) as figure:
        grid = figure.subplots(len(tasks), len(costs), squeeze=False)
        for row, task in zip(grid, tasks, strict=True):
            for axes, cost in zip(row, costs, strict=True):
                axes.set_title(title_words(task.title), loc="left")
                _plot(axes, task, cost)
        figure.suptitle(
            "line: no other core is as good for less; dashed: the best without memory (losses "
            f"below {MIN_LOSS:g} of it are drawn there)",
            x=0.01,
            ha="left",
            fontsize=10,
        )
        handles = [_point(core, label=core) for core in cores]
        figure.legend(handles=handles, loc="outside lower center", ncols=LEGEND_COLUMNS, fontsize=9)


def _point(core: str, x: Sequence[float] = (), y: Sequence[float] = (), label: str = "") -> Line2D:
    color, _, marker = style(core)
    return Line2D(x, y, ls="", color=color, marker=marker, ms=7, mec="white", mew=0.5, label=label)


def _plot(axes: Axes, task: TaskCosts, cost: str) -> None:
    """Plot one task and cost; the cores on the Pareto front are joined and named."""
    known = [one for one in task.cores if cost in one.costs]
    if not known:
        axes.remove()
        return
    bottom = 0.0 if task.is_agent else MIN_LOSS * (task.floor or 1.0)
    height = {one.core: max(one.score, bottom) for one in known}
    front = task.front(cost)
    x, y = [one.costs[cost] for one in front], [height[one.core] for one in front]
    axes.plot(x, y, color=MUTED, lw=1, drawstyle="steps-post", zorder=1)
    for one in known:
        point = _point(one.core, [one.costs[cost]], [height[one.core]])
        axes.add_line(point)
        point.set(zorder=2, clip_on=False)  # not cut in half at 0 % and 100 %
    for number, one in enumerate(front):
        # Beyond the front the panel is empty; neighbouring names stand at different depths.
        depth = 5 + 11 * (number % 2)
        axes.annotate(
            one.core,
            (one.costs[cost], height[one.core]),
            xytext=(-5, depth if task.is_agent else -depth),
            textcoords="offset points",
            ha="right",
            va="bottom" if task.is_agent else "top",
            fontsize=9,
        )
    if task.floor is not None:
        axes.axhline(task.floor, color=INK, lw=0.9, ls=(0, (4, 3)), zorder=1)
    _set_scales(axes, task, cost, [one.costs[cost] for one in known])
    if not task.is_agent:
        axes.set_ylim(bottom / 4, 2 * max(*height.values(), task.floor or 0.0))


def _set_scales(axes: Axes, task: TaskCosts, cost: str, values: Sequence[float]) -> None:
    axes.set_xscale("log")
    axes.set_xlabel(COSTS[cost])
    axes.set_xlim(min(values) / 2, max(values) * 1.5)
    if cost == "seconds":
        axes.xaxis.set_minor_locator(NullLocator())
        ticks = time_ticks(*axes.get_xlim())
        axes.set_xticks(list(ticks.values()), list(ticks))
    if task.is_agent:
        axes.set_ylim(0, 1.15)
        axes.yaxis.set_major_formatter(PercentFormatter(xmax=1))
        axes.set_ylabel("success rate")
    else:
        axes.set_yscale("log")
        axes.set_ylabel(loss_words(task.title))


def time_ticks(low: float, high: float) -> dict[str, int]:
    """Choose round times between two, in seconds, by their labels."""
    units = {"s": 1, "min": 60, "h": 3_600}
    times = {f"{n} {unit}": n * size for unit, size in units.items() for n in (1, 2, 5, 10, 20)}
    times |= {f"{n} h": n * 3_600 for n in (50, 100, 200, 500)}
    inside = {label: time for label, time in times.items() if low <= time <= high}
    return dict(list(inside.items())[:: 1 + (len(inside) > MAX_TICKS)])
