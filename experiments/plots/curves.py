"""Plot learning curves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, PercentFormatter

from rlgates.experiments.analysis.stats import Floats, iqm, iqm_interval

# Okabe and Ito's colours, distinct with any colour vision, each with its own dash.
STYLES: tuple[tuple[str, str | tuple[int, tuple[int, ...]]], ...] = (
    ("#0072B2", "-"),
    ("#D55E00", "--"),
    ("#009E73", "-."),
    ("#CC79A7", (0, (5, 1, 1, 1, 1, 1))),
    ("#E69F00", (0, (2, 1))),
    ("#56B4E9", (0, (6, 2))),
    ("#5B3A29", (0, (4, 1, 1, 1))),
)
MUTED = "#777777"
POINTS = 120  # of a curve over seeds
LEGEND_COLUMNS = 7
LEGEND_COLUMNS_PER_PANEL = 4
MANY = 6  # with more cores in one panel, single seeds are not plotted
TRAINING = "success rate in training"  # label of an axis
Levels = Mapping[str, float | None]
RC_PARAMS: Any = {
    "font.size": 11,
    "font.family": "DejaVu Sans",
    "axes.titlesize": 12,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#444444",
    "axes.linewidth": 0.9,
    "xtick.color": "#444444",
    "ytick.color": "#444444",
    "legend.frameon": False,
    "savefig.facecolor": "white",
}


class Curve(NamedTuple):
    """The success rate of one run over its steps."""

    core: str
    seed: int
    steps: Floats
    success: Floats


def styles(cores: Sequence[str]) -> dict[str, tuple[str, Any]]:
    """A distinct colour and dash for each core; "none" is grey."""
    named = [core for core in cores if core != "none"]
    table: dict[str, tuple[str, Any]] = {}
    for k, core in enumerate(named):
        dash = k + k // len(STYLES)  # each further cycle of colours has other dashes
        table[core] = STYLES[k % len(STYLES)][0], STYLES[dash % len(STYLES)][1]
    return {**table, "none": (MUTED, (0, (1, 1)))}


def plot_curves(
    axes: Axes, curves: Sequence[Curve], chance: float | None, order: Sequence[str] = ()
) -> None:
    """Plot the IQM over seeds with its interval, and single seeds with at most `MANY` cores.

    Args:
        axes: to plot into.
        curves: of one or more cores.
        chance: success without memory; None if unknown.
        order: cores of all panels of a figure, so that a core has the same colour in each.
    """
    cores = list(dict.fromkeys(curve.core for curve in curves))
    style = styles(order or cores)
    last = max(curve.steps[-1] for curve in curves)
    for core in cores:
        color, dash = style[core]
        runs = [curve for curve in curves if curve.core == core]
        if len(runs) == 1:
            axes.plot(runs[0].steps, runs[0].success, color=color, ls=dash, lw=2.2, label=core)
            continue
        for run in runs if len(cores) <= MANY else ():
            axes.plot(run.steps, run.success, color=color, lw=0.7, alpha=0.3)
        grid = np.linspace(0, max(run.steps[-1] for run in runs), POINTS)
        # A run that stopped early keeps its last value.
        success = np.stack([np.interp(grid, run.steps, run.success) for run in runs])
        low, high = iqm_interval(success)
        axes.fill_between(grid, low, high, color=color, alpha=0.15, lw=0)
        axes.plot(grid, iqm(success), color=color, ls=dash, lw=2.2, label=core)
    mark_levels(axes, chance)
    axes.set_xlim(0, 1.02 * last)
    axes.xaxis.set_major_formatter(FuncFormatter(steps_label))
    axes.set_xlabel("environment steps")


def mark_levels(axes: Axes, chance: float | None, named: bool = True) -> None:
    """Mark the ceiling and the floor, with their names if `named`, on an axis of shares."""
    levels = {"ceiling: perfect memory": 1.0, "floor: chance, no memory": chance}
    for name, level in levels.items():
        if level is None:
            continue
        axes.axhline(level, color="#222222", lw=0.9, ls=(0, (4, 3)), zorder=1)
        if not named:
            continue
        axes.annotate(
            f"{name} ({level:.2f})",
            (0.99, level),
            xycoords=("axes fraction", "data"),
            xytext=(0, 3 if level == 1.0 else -9),
            textcoords="offset points",
            ha="right",
            va="bottom" if level == 1.0 else "top",
            fontsize=9,
            color="#222222",
        )
    axes.set_ylim(0, 1.08)
    axes.yaxis.set_major_formatter(PercentFormatter(xmax=1))


def steps_label(steps: float, _: Any = None) -> str:
    """1_500_000 -> "1.5 M", for an axis."""
    if steps >= 1e6 or steps == 0:
        return f"{steps / 1e6:g} M" if steps else "0"
    return f"{steps / 1e3:g} k"


def save(figure: Figure, path: Path) -> None:
    """Write a PNG without metadata that changes: the same figure is the same file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    FigureCanvasAgg(figure)
    figure.savefig(path, dpi=160, metadata={"Software": None})


@contextmanager
def new_figure(
    path: Path, size: tuple[float, float], font_size: float = 11, title_size: float = 12
) -> Iterator[Figure]:
    """Yield an empty figure in the common style, and save it when the block ends.

    Args:
        path: the PNG to write.
        size: width and height in inches.
        font_size, title_size: of the text and of the titles of panels, in points.
    """
    with rc_context({**RC_PARAMS, "font.size": font_size, "axes.titlesize": title_size}):
        figure = Figure(figsize=size, layout="constrained")
        yield figure
        save(figure, path)


def draw_curves(curves: Sequence[Curve], path: Path, title: str, chance: float | None) -> None:
    """Plot one or more runs in one panel, and save the figure."""
    with new_figure(path, (7, 4.2)) as figure:
        axes = figure.add_subplot()
        plot_curves(axes, curves, chance)
        axes.set_title(title, loc="left")
        axes.set_ylabel(TRAINING)
        axes.legend(loc="upper left", bbox_to_anchor=(0.01, 0.9))


def draw_returns(
    lines: Mapping[str, tuple[Floats, Floats]], path: Path, title: str, label: str
) -> None:
    """Plot what one run reached over its steps, and save the figure.

    Args:
        lines: steps and values by name; NaN where there is no value.
        path: the PNG to write.
        title: of the figure.
        label: of the vertical axis.
    """
    with new_figure(path, (7, 4.2)) as figure:
        axes = figure.add_subplot()
        for (name, (steps, values)), (color, dash) in zip(lines.items(), STYLES, strict=False):
            known = ~np.isnan(values)
            marker = "o" if known.sum() < POINTS // 4 else ""
            axes.plot(
                steps[known], values[known], color=color, ls=dash, lw=2.2, marker=marker, label=name
            )
        axes.xaxis.set_major_formatter(FuncFormatter(steps_label))
        axes.set_xlabel("environment steps")
        axes.set_ylabel(label)
        axes.set_title(title, loc="left")
        axes.legend(loc="best")


def draw_panels(
    panels: Mapping[str, Sequence[Curve]], path: Path, chances: Levels, label: str = TRAINING
) -> None:
    """Plot panels with one legend, up to three in one line or else two per line, and save them.

    Args:
        panels: the runs of each panel, by title.
        path: the PNG to write.
        chances: success without memory by title, where known.
        label: of the vertical axes.
    """
    lines, columns = _grid(len(panels))
    with new_figure(path, (1 + 4.6 * columns, 0.8 + 3.4 * lines)) as figure:
        plot_panels(figure, panels, chances, label)


def _grid(panels: int) -> tuple[int, int]:
    """Lines and columns."""
    return (1, panels) if panels < 4 else (-(-panels // 2), 2)


def plot_panels(
    figure: Any, panels: Mapping[str, Sequence[Curve]], chances: Levels, label: str = TRAINING
) -> None:
    """As `draw_panels`, into a figure or subfigure."""
    grid = figure.subplots(*_grid(len(panels)), sharey=True, squeeze=False)
    all_axes = grid.ravel()
    for axes in all_axes[len(panels) :]:
        axes.set_axis_off()
    order = list(dict.fromkeys(curve.core for curves in panels.values() for curve in curves))
    named: dict[str, Any] = {}
    for axes, (title, curves) in zip(all_axes, panels.items(), strict=False):
        plot_curves(axes, curves, chances.get(title), order)
        axes.set_title(title, loc="left")
        handles, labels = axes.get_legend_handles_labels()
        named |= dict(zip(labels, handles, strict=True))
    for axes in grid[:, 0]:
        axes.set_ylabel(label)
    lines = -(-len(named) // min(LEGEND_COLUMNS, LEGEND_COLUMNS_PER_PANEL * grid.shape[1]))
    figure.legend(
        list(named.values()),
        list(named),
        loc="outside lower center",
        ncols=-(-len(named) // lines),  # lines of equal length
    )
