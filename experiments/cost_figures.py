"""What cores reach against what they cost: a panel for each task and cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator, PercentFormatter

from rlgates.experiments.figures import ENTRIES, LOOK, MUTED, STYLES, save
from rlgates.experiments.tables import ordered

NONE = "none"
MARKERS = "osD^vP<"
COSTS = {"seconds": "time of a run", "parameters": "parameters of the core"}
WORTH = 0.05  # of the way from the floor to the ceiling, below which a cost was for nothing
LEAST = 1e-3  # of the floor: what is lower is drawn there
TICKS = 5  # of an axis of times, at most
Look = Mapping[str, tuple[str, str]]
"""Colour and marker of each core."""


class Spent(NamedTuple):
    """What one core came to on one task.

    Attributes:
        core: its name.
        score: median loss over seeds of a network, IQM of the success of an agent.
        costs: medians over seeds by the name of their column, those that are known.
    """

    core: str
    score: float
    costs: dict[str, float]


class Account(NamedTuple):
    """What all cores came to on one task.

    Attributes:
        title: the task.
        agent: whether scores are successes, of which more is better; else losses.
        floor: the score without memory, where it is known.
        cores: those with a finite score.
    """

    title: str
    agent: bool
    floor: float | None
    cores: list[Spent]

    def front(self, cost: str) -> list[Spent]:
        """Those of which no other is as good for less, the cheapest first.

        The core without memory, and those that are hardly better, are not among them.
        """
        sign = -1 if self.agent else 1
        known = [one for one in self.cores if one.core != NONE and cost in one.costs]
        best: list[Spent] = []
        for one in sorted(known, key=lambda one: (one.costs[cost], sign * one.score)):
            better = not best or sign * one.score < sign * best[-1].score
            if better and self._is_worth_it(one.score):
                best.append(one)
        return best

    def _is_worth_it(self, score: float) -> bool:
        if self.floor is None:
            return True
        if self.agent:
            return score > self.floor + WORTH * (1 - self.floor)
        return score < (1 - WORTH) * self.floor


def draw_accounts(accounts: Sequence[Account], path: Path) -> None:
    """A row of panels for each task; a core's colour and marker are the same in all.

    Args:
        accounts: of the tasks.
        path: the PNG to be written.
    """
    cores = ordered(one.core for account in accounts for one in account.cores)
    looks = _looks(cores)
    costs = {cost for account in accounts for one in account.cores for cost in one.costs}
    shown = [cost for cost in COSTS if cost in costs]
    lines = -(-len(cores) // ENTRIES)
    with rc_context(LOOK):
        size = 1 + 4.6 * len(shown), 0.4 + 0.3 * lines + 3.3 * len(accounts)
        figure = Figure(figsize=size, layout="constrained")
        grid = figure.subplots(len(accounts), len(shown), squeeze=False)
        for row, account in zip(grid, accounts, strict=True):
            row[0].set_title(account.title, loc="left")
            for axes, cost in zip(row, shown, strict=True):
                _plot(axes, account, cost, looks)
        figure.suptitle(
            "line: no other core is as good for less; dashed: the best without memory (losses "
            f"below {LEAST:g} of it are drawn there)",
            x=0.01,
            ha="left",
            fontsize=10,
        )
        handles = [Line2D([], [], ls="", color=c, marker=m) for c, m in looks.values()]
        figure.legend(handles, cores, loc="outside lower center", ncols=ENTRIES, fontsize=9)
        save(figure, path)


def _looks(cores: Sequence[str]) -> Look:
    """No pair twice; no memory is grey."""
    looks = {}
    for k, core in enumerate(core for core in cores if core != NONE):
        marker = MARKERS[(k + k // len(STYLES)) % len(MARKERS)]
        looks[core] = STYLES[k % len(STYLES)][0], marker
    return {core: looks.get(core, (MUTED, "X")) for core in cores}


def _plot(axes: Axes, account: Account, cost: str, looks: Look) -> None:
    """One task and cost; the cores of which no other is as good for less are joined and named."""
    known = [one for one in account.cores if cost in one.costs]
    if not known:
        axes.set_axis_off()
        return
    least = 0.0 if account.agent else LEAST * (account.floor or 1.0)
    height = {one.core: max(one.score, least) for one in known}
    best = account.front(cost)
    x, y = [one.costs[cost] for one in best], [height[one.core] for one in best]
    axes.plot(x, y, color=MUTED, lw=1, drawstyle="steps-post", zorder=1)
    for one in known:
        color, marker = looks[one.core]
        (point,) = axes.plot(one.costs[cost], height[one.core], color=color, marker=marker, ms=7)
        point.set(zorder=2, clip_on=False)  # whole at 0 % and 100 %, too
    for number, one in enumerate(best):
        # There is room on the side of what nobody reaches; neighbours at different depths.
        depth = 5 + 11 * (number % 2)
        axes.annotate(
            one.core,
            (one.costs[cost], height[one.core]),
            xytext=(-5, depth if account.agent else -depth),
            textcoords="offset points",
            ha="right",
            va="bottom" if account.agent else "top",
            fontsize=9,
        )
    if account.floor is not None:
        axes.axhline(account.floor, color="#222222", lw=0.9, ls=(0, (4, 3)), zorder=1)
    _scale(axes, account, cost, [one.costs[cost] for one in known])
    if not account.agent:
        axes.set_ylim(least / 4, 2 * max(*height.values(), account.floor or 0.0))


def _scale(axes: Axes, account: Account, cost: str, values: Sequence[float]) -> None:
    axes.set_xscale("log")
    axes.set_xlabel(COSTS[cost])
    axes.set_xlim(min(values) / 2, max(values) * 1.5)
    if cost == "seconds":
        axes.xaxis.set_minor_locator(NullLocator())
        ticks = _ticks(*axes.get_xlim())
        axes.set_xticks(list(ticks.values()), list(ticks))
    if account.agent:
        axes.set_ylim(0, 1.15)
        axes.yaxis.set_major_formatter(PercentFormatter(xmax=1))
        axes.set_ylabel("success rate")
    else:
        axes.set_yscale("log")
        axes.set_ylabel("loss")


def _ticks(low: float, high: float) -> dict[str, int]:
    """Round times between two in seconds, by their names."""
    units = {"s": 1, "min": 60, "h": 3_600}
    times = {f"{n} {unit}": n * size for unit, size in units.items() for n in (1, 2, 5, 10, 20)}
    times |= {f"{n} h": n * 3_600 for n in (50, 100, 200, 500)}
    shown = {words: time for words, time in times.items() if low <= time <= high}
    return dict(list(shown.items())[:: 1 + (len(shown) > TICKS)])
