"""Plot forget gates before and after training, and their timescales."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, PercentFormatter

from rlgates.experiments.analysis.unit_gates import Gates, Growth, unit_means, unit_timescales
from rlgates.experiments.plots.curves import RC_PARAMS, is_early, new_figure, steps_label
from rlgates.experiments.plots.styles import MUTED, in_core_order, style

BINS = 40
WIDTH = 3.2  # of a panel, in inches
COLUMNS = 3  # of panels on a page
NOTHING = "there are no cores to draw."

Pair = tuple[Gates, Gates]
"""Gates before and after training."""


def histogram_figure(panels: Mapping[str, Pair]) -> Figure:
    """Histograms of the units' gates before (top) and after training, one panel per core.

    Each unit counts once, by its mean over time and batch (Gu et al. 2020, figure 4). Before and
    after have separate scales.

    Args:
        panels: the gates of each core before and after training.

    Raises:
        ValueError: no panel, no gates, numbers outside [0, 1].
    """
    return _figure(plot_histograms, panels)


def timescale_figure(panels: Mapping[str, Pair]) -> Figure:
    """The time constants of the units, sorted, before and after training, one panel per core.

    Arguments and errors as for `histogram_figure`; see `unit_timescales`.
    """
    return _figure(plot_timescales, panels)


def _figure(plot: Callable[[Any, Mapping[str, Pair]], None], panels: Mapping[str, Pair]) -> Figure:
    """Draw a figure while its style is active, so that it can be saved later."""
    with rc_context(RC_PARAMS):
        figure = Figure(figsize=(0.6 + WIDTH * len(panels), 3.4), layout="constrained")
        plot(figure, panels)
        FigureCanvasAgg(figure)
        figure.draw_without_rendering()
    return figure


def draw_gates(
    panels: Mapping[str, Pair],
    path: Path,
    title: str,
    growth: Mapping[str, Growth] | None = None,
    timescales: Mapping[str, Pair] | None = None,
    unit: str = "environment steps",
) -> None:
    """Draw all plots of gates into one PNG, at most `COLUMNS` cores side by side.

    Args:
        panels: the gates of each core before and after training.
        path: the PNG to write.
        title: of the figure.
        growth: timescales over training by core; None or empty: there is no panel of them.
        timescales: gates whose time constants are plotted; None: `panels`.
        unit: of the steps of `growth`.

    Raises:
        ValueError: as `histogram_figure`.
    """
    if not panels:
        raise ValueError(NOTHING)
    lines = -(-len(panels) // COLUMNS)
    columns = -(-len(panels) // lines)
    heights = [4.5] * lines + [3.2] * bool(growth)
    size = max(columns * 2.9, 6.2) + 0.3, sum(heights) + 0.4
    with new_figure(path, size, font_size=10, title_size=11) as figure:
        letters = int(size[0] / 0.085)  # of 12 points
        figure.suptitle(textwrap.fill(title, letters), fontsize=12, x=0.01, ha="left")
        blocks = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
        cores = in_core_order(panels)
        for k, block in enumerate(blocks[:lines]):
            chosen = cores[k * columns : (k + 1) * columns]
            top, bottom = block.subfigures(2, 1, height_ratios=(1.3, 1))
            plot_histograms(top, {core: panels[core] for core in chosen})
            plot_timescales(bottom, {core: (timescales or panels)[core] for core in chosen})
        if growth:
            plot_growth(blocks[-1], growth, unit)


def plot_histograms(figure: Any, panels: Mapping[str, Pair]) -> None:
    """As `histogram_figure`, into a figure or subfigure."""
    _check(panels)
    rows = figure.subplots(2, len(panels), sharex=True, squeeze=False)
    edges = np.linspace(0, 1, BINS + 1)
    for column, (core, pair) in enumerate(panels.items()):
        for axes, gates, when, color in zip(
            rows[:, column], pair, ("before", "after"), (MUTED, style(core).color), strict=True
        ):
            counts, _ = np.histogram(unit_means(gates), edges)
            axes.stairs(counts, edges, fill=True, color=color)
            axes.set_xlim(-0.01, 1.01)
            axes.yaxis.get_major_locator().set_params(integer=True, nbins=3)
            axes.set_title(when, loc="right", color=color, fontsize=10)
            axes.set_xlabel("mean forget gate of a unit")
            axes.set_ylabel("units")
            axes.set_xticks([0, 0.5, 1], ["0", "0.5", "1"])
            axes.tick_params(labelbottom=True)
        rows[0, column].set_title(core, loc="left")
        figure.align_ylabels(rows[:, column])


def plot_timescales(figure: Any, panels: Mapping[str, Pair]) -> None:
    """As `timescale_figure`, into a figure or subfigure."""
    _check(panels)
    all_axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (core, (before, after)) in zip(all_axes, panels.items(), strict=True):
        for gates, when, color, dash in (
            (before, "before", MUTED, "--"),
            (after, "after", style(core).color, "-"),
        ):
            constants = np.sort(unit_timescales(gates))
            share = (np.arange(len(constants)) + 0.5) / len(constants)
            axes.plot(share, constants, color=color, ls=dash, lw=2.2, label=when, clip_on=False)
        axes.set_title(core, loc="left")
        axes.set_xlim(0, 1)
        axes.set_xticks([0, 0.5, 1])
        axes.xaxis.set_major_formatter(PercentFormatter(xmax=1))
        axes.set_xlabel("units, sorted")
        axes.legend(loc="best")
        axes.tick_params(labelleft=True)
        _log_axis(axes, "−1/log f, steps")


def plot_growth(figure: Any, panels: Mapping[str, Growth], unit: str = "environment steps") -> None:
    """Plot timescales over training, median and quantile band (Ohno et al. 2022, figure 5).

    A dot ends a line where all runs of the core stopped before the others.

    Args:
        figure: a figure or subfigure.
        panels: the timescales of each core; all in one panel.
        unit: of the steps.

    Raises:
        ValueError: no core.
    """
    _check(panels)
    axes: Axes = figure.subplots()
    last = max(growth.steps[-1] for growth in panels.values())
    note = "line: median of the gates, band: 10 to 90 %"
    for core, (steps, low, middle, high) in panels.items():
        color, dash, _ = style(core)
        axes.fill_between(steps, low, high, color=color, alpha=0.12, lw=0)
        dot = "o" if len(steps) == 1 else None
        axes.plot(steps, middle, color=color, ls=dash, lw=2.2, marker=dot, label=core)
        if len(steps) > 1 and is_early(steps[-1], last):
            axes.plot(steps[-1], middle[-1], "o", color=color, ms=6, mec="white", zorder=4)
            if "dot" not in note:
                note += "\ndot: all runs of the core had stopped early"
    axes.xaxis.set_major_formatter(FuncFormatter(steps_label))
    axes.set_title("Timescales during training", loc="left")
    axes.set_xlabel(unit)
    _log_axis(axes, "1/(1 − f), steps")
    figure.legend(
        *axes.get_legend_handles_labels(),
        loc="outside right upper",
        title=note.replace(", ", "\n"),
        title_fontsize=9,
    )


def _check(panels: Mapping[str, Any]) -> None:
    if not panels:
        raise ValueError(NOTHING)


def _log_axis(axes: Axes, name: str) -> None:
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(numticks=12))
    axes.yaxis.set_major_formatter(FuncFormatter(steps_label))
    axes.set_ylabel(name)
