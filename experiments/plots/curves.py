"""Plot learning curves."""

from __future__ import annotations

import io
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, PercentFormatter
from numpy.typing import NDArray
from PIL import Image

from rlgates.experiments.analysis.stats import Floats, iqm, iqm_interval
from rlgates.experiments.plots.styles import SERIES, Style, in_core_order, style
from rlgates.experiments.plots.titles import title_words

POINTS = 120  # of a curve over seeds
LEGEND_COLUMNS = 7
LEGEND_COLUMNS_PER_PANEL = 4
LETTERS = 12  # of a legend, in an inch
HANDLE = 9  # letters that are as wide as the line before a name
MANY = 6  # with more cores in one panel, single seeds are not plotted
WIDTH = 7.5  # of a figure of one panel, in inches
CHARACTERS = 15  # of a legend's note, an inch
BAND = "band: its 95 % interval"
EARLY_STOP = (
    "a run that stopped early, at its goal, keeps its last value; dot: all of a core have stopped"
)
ALARM = "#B00020"
DPI = 160
COLORS = 256  # of a PNG
CEILING = "ceiling: perfect memory"
TRAINING = "success rate in training"  # labels of axes
STEPS = "environment steps"
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
    "legend.handlelength": 3,  # the longest dash and its gap
    "savefig.facecolor": "white",
}


class Curve(NamedTuple):
    """The success rate of one run over its steps, and whether it diverged."""

    core: str
    seed: int
    steps: Floats
    success: Floats
    diverged: bool = False


def plot_curves(
    axes: Axes,
    curves: Sequence[Curve],
    chance: float | None,
    ceiling: str | None = CEILING,
    label: str = STEPS,
) -> None:
    """Plot the IQM over seeds with its interval, and single seeds with at most `MANY` cores.

    A dot ends the line of a core of which all runs ended before the others. Runs that diverged
    are named in the panel.

    Args:
        axes: to plot into.
        curves: of one or more cores.
        chance: success without memory; None if unknown.
        ceiling: what the level 1 is called; None: these are no shares.
        label: of the horizontal axis.
    """
    cores = in_core_order(curve.core for curve in curves)
    last = max(curve.steps[-1] for curve in curves)
    for core in cores:
        color, dash, _ = style(core)
        runs = [curve for curve in curves if curve.core == core]
        line: Any = {"color": color, "ls": dash, "lw": 2.2, "label": core}
        if len(runs) == 1:
            axes.plot(runs[0].steps, runs[0].success, **line)
            _mark_end(axes, runs[0].steps[-1], runs[0].success[-1], last, style(core))
            continue
        for run in runs if len(cores) <= MANY else ():
            axes.plot(run.steps, run.success, color=color, lw=0.7, alpha=0.3)
        begin = max(run.steps[0] for run in runs)  # before it, nothing was measured
        grid = np.linspace(begin, max(run.steps[-1] for run in runs), POINTS)
        # A run that stopped early keeps its last value.
        success = np.stack([np.interp(grid, run.steps, run.success) for run in runs])
        low, high = iqm_interval(success)
        alpha = 0.15 if len(cores) <= MANY else 0.08
        axes.fill_between(grid, low, high, color=color, alpha=alpha, lw=0)
        middle = iqm(success)
        axes.plot(grid, middle, **line)
        _mark_end(axes, grid[-1], middle[-1], last, style(core))
    if ceiling is not None:
        mark_levels(axes, chance, ceiling=ceiling)
    say_diverged(axes, {core: _diverged(curves, core) for core in cores})
    axes.set_xlim(0, 1.02 * last)
    axes.xaxis.set_major_formatter(FuncFormatter(steps_label))
    axes.set_xlabel(label)


def is_early(step: float, last: float) -> bool:
    """Whether a run ended visibly before the last one of its panel."""
    return step < last * (1 - 1 / POINTS)


def _mark_end(axes: Axes, step: float, value: float, last: float, style: Style) -> None:
    """Put a dot where a line ends before the last one does."""
    if is_early(step, last):
        axes.plot(step, value, "o", color=style.color, ms=6, mec="white", zorder=4)


def _diverged(curves: Sequence[Curve], core: str) -> tuple[int, int]:
    """How many runs of a core diverged, and how many there are."""
    runs = [curve.diverged for curve in curves if curve.core == core]
    return sum(runs), len(runs)


def say_diverged(axes: Axes, counts: Mapping[str, tuple[int, int]]) -> None:
    """Name the cores of which runs diverged in a panel: how many, of how many."""
    lines = [f"{name} {some} of {every}".strip() for name, (some, every) in counts.items() if some]
    if lines:
        words = "diverged: " + ", ".join(lines)
        font: Any = {"fontsize": 9, "color": ALARM, "zorder": 5}
        axes.text(0.03, 0.05, textwrap.fill(words, 40), transform=axes.transAxes, **font)


def legend_note(figure: Any, *parts: str) -> str:
    """Join what a legend explains, in lines that fit the width of a figure or subfigure."""
    width = int(CHARACTERS * figure.bbox.width / figure.dpi)
    return textwrap.fill("; ".join(filter(None, parts)), width)


def label_all(panels: Iterable[Axes]) -> None:
    """Give tick labels to panels that share their axes, too."""
    for axes in panels:
        axes.tick_params(labelbottom=True, labelleft=True)


def mark_levels(
    axes: Axes, chance: float | None, named: bool = True, ceiling: str = CEILING
) -> None:
    """Mark the ceiling and the floor, with their names if `named`, on an axis of shares.

    The axis begins at 0, or below what is plotted where that is lower, as returns may be.
    """
    levels = {ceiling: 1.0, "floor: chance, no memory": chance}
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
    lowest = float(axes.dataLim.y0)
    bottom = lowest - 0.05 if lowest < 0 else 0.0
    axes.set_ylim(bottom, 1 + 0.08 * (1 - bottom))  # with room for the ceiling's name
    axes.yaxis.set_major_formatter(PercentFormatter(xmax=1))


def steps_label(steps: float, _: Any = None) -> str:
    """1_500_000 -> "1.5 M", for an axis."""
    if steps >= 1e6:
        return f"{steps / 1e6:g} M"
    return f"{steps / 1e3:g} k" if steps >= 1e3 else f"{steps:g}"


def save(figure: Figure, path: Path, exact: bool = False) -> None:
    """Write a PNG; the same figure is the same file.

    Args:
        figure: what is written.
        path: the PNG.
        exact: keep every colour; else those nearest to them of `COLORS`, a third of the size.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    FigureCanvasAgg(figure)
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=DPI, format="png", pil_kwargs={"compress_level": 1})
    with Image.open(buffer) as image:
        rgb = image.convert("RGB")
        small = rgb if exact else _reduce(rgb)
        small.save(path, format="PNG", optimize=True, dpi=(DPI, DPI))


def _reduce(image: Image.Image) -> Image.Image:
    """An image in `COLORS` colours: the most frequent ones as they are, the others near them.

    Areas keep their colours, so that no two pale bands become one; edges may be a shade off.
    """
    numbers = np.asarray(image, np.uint32) @ np.array((1 << 16, 1 << 8, 1), np.uint32)
    unique, places, counts = np.unique(numbers.ravel(), return_inverse=True, return_counts=True)
    found = np.stack([unique >> shift & 255 for shift in (16, 8, 0)], axis=1).astype(np.uint8)
    frequent, rare = np.split(found[np.argsort(-counts, kind="stable")], [COLORS // 2])
    palette = np.concatenate((frequent, _nearest(rare))).astype(np.float32)
    squares = (palette**2).sum(1) - 2 * found.astype(np.float32) @ palette.T
    indices = squares.argmin(1).astype(np.uint8)[places.reshape(-1)]
    small = Image.fromarray(indices.reshape(image.height, image.width))
    small.putpalette(palette.astype(np.uint8).tobytes())
    return small


def _nearest(colors: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """At most half as many as `COLORS`, near all of these (n, 3)."""
    if len(colors) <= COLORS // 2:
        return colors
    method, none = Image.Quantize.MAXCOVERAGE, Image.Dither.NONE
    # An image of one pixel a colour: that of the figure would take ten times as long.
    few = Image.fromarray(colors[None]).quantize(COLORS // 2, method, kmeans=3, dither=none)
    return np.array(few.getpalette(), np.uint8).reshape(-1, 3)


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


def draw_curves(
    curves: Sequence[Curve], path: Path, title: str, chance: float | None, label: str = STEPS
) -> None:
    """Plot one or more runs in one panel, over what `label` says, and save the figure."""
    with new_figure(path, (7, 4.2)) as figure:
        axes = figure.add_subplot()
        plot_curves(axes, curves, chance, label=label)
        axes.set_title(title_words(title), loc="left")
        axes.set_ylabel(TRAINING)
        note = legend_note(figure, *_explanations({title: curves}))
        figure.legend(
            loc="outside lower center", ncols=LEGEND_COLUMNS, title=note, title_fontsize=9
        )


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
        for (name, (steps, values)), (color, dash, _) in zip(lines.items(), SERIES, strict=False):
            known = ~np.isnan(values)
            if not known.any():
                continue
            marker = "o" if known.sum() < POINTS // 4 else ""
            axes.plot(
                steps[known], values[known], color=color, ls=dash, lw=2.2, marker=marker, label=name
            )
        axes.xaxis.set_major_formatter(FuncFormatter(steps_label))
        axes.set_xlabel(STEPS)
        axes.set_ylabel(label)
        axes.set_title(title, loc="left")
        if axes.lines:  # there are none of a run that diverged in its first rollout
            axes.legend(loc="best")


def draw_panels(
    panels: Mapping[str, Sequence[Curve]],
    path: Path,
    chances: Levels,
    label: str = TRAINING,
    ceiling: str | None = CEILING,
) -> None:
    """Plot panels with one legend, up to three in one line or else two per line, and save them.

    Args:
        panels: the runs of each panel, by title; the titles are drawn in words.
        path: the PNG to write.
        chances: success without memory by title, where known.
        label: of the vertical axes.
        ceiling: what the level 1 is called; None: these are no shares.
    """
    lines, columns = _grid(len(panels))
    width = 1 + 4.6 * columns if columns > 1 else WIDTH
    with new_figure(path, (width, 1.1 + 3.4 * lines)) as figure:
        plot_panels(figure, panels, chances, label, ceiling)


def _grid(panels: int) -> tuple[int, int]:
    """Lines and columns."""
    return (1, panels) if panels < 4 else (-(-panels // 2), 2)


def plot_panels(
    figure: Any,
    panels: Mapping[str, Sequence[Curve]],
    chances: Levels,
    label: str = TRAINING,
    ceiling: str | None = CEILING,
) -> None:
    """As `draw_panels`, into a figure or subfigure."""
    grid = figure.subplots(*_grid(len(panels)), squeeze=False)
    all_axes = grid.ravel()
    for axes in all_axes[len(panels) :]:
        axes.remove()
    named: dict[str, Any] = {}
    for axes, (title, curves) in zip(all_axes, panels.items(), strict=False):
        plot_curves(axes, curves, chances.get(title), ceiling)
        axes.set_title(title_words(title), loc="left")
        axes.set_ylabel(label)
        handles, labels = axes.get_legend_handles_labels()
        named |= dict(zip(labels, handles, strict=True))
    label_all(all_axes[: len(panels)])
    cores = in_core_order(named)
    fitting = int(LETTERS * figure.bbox.width / figure.dpi // (max(map(len, cores)) + HANDLE))
    most = min(LEGEND_COLUMNS, LEGEND_COLUMNS_PER_PANEL * grid.shape[1], max(1, fitting))
    lines = -(-len(cores) // most)
    legend = figure.legend(
        [named[core] for core in cores],
        cores,
        loc="outside lower center",
        ncols=-(-len(cores) // lines),  # lines of equal length
        title=legend_note(figure, *_explanations(panels)),
        title_fontsize=9,
    )
    legend.get_title().set_color("#444444")


def _explanations(panels: Mapping[str, Sequence[Curve]]) -> Iterator[str]:
    """What the band, the thin lines and the dots of some panels mean, where there are any."""
    has_band = has_seeds = has_stops = False
    for curves in panels.values():
        runs = Counter(curve.core for curve in curves)
        has_band |= max(runs.values()) > 1
        has_seeds |= max(runs.values()) > 1 and len(runs) <= MANY
        ends = [float(curve.steps[-1]) for curve in curves]
        has_stops |= is_early(min(ends), max(ends))
    if has_band:
        yield "line: interquartile mean over seeds"
        yield BAND
    if has_seeds:
        yield "thin: single seeds"
    if has_stops:
        yield EARLY_STOP
