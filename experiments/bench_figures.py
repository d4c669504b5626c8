"""Pictures of how fast the cores are, and of how their cost grows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

from rlgates.cores import CORES, core_names
from rlgates.experiments.bench_tables import columns, found, head, place_words, timed
from rlgates.experiments.figures import LOOK, MUTED, STYLES, save

TICKS = (0.01, 0.1, 1, 10)
SMALL_TICKS = tuple(k * tick for tick in TICKS for k in range(2, 10))
PHRASES = {"T": "steps T", "B": "rows B", "H": "units H"}


def draw_speeds(content: Mapping[str, Any], path: Path) -> bool:
    """Speed relative to an nn.LSTM of equal parameters: a panel a shape, a row a core.

    Each gate of a core is a dot; its plain one has a black rim, and its plain loop is a bar.

    Returns:
        whether there was anything to draw.
    """
    named = core_names()
    shapes, places = columns(content)
    cores = timed(content, shapes)
    families = [core for core in CORES if any(named[name][0] == core for name in cores)]
    if not shapes or not families:
        return False
    with rc_context({**LOOK, "font.size": 9, "axes.titlesize": 9.5}):
        size = (1.2 + 2.5 * len(shapes), 1.6 + 0.34 * len(families))
        figure = Figure(figsize=size, layout="constrained")
        panels = figure.subplots(1, len(shapes), sharey=True, sharex=True, squeeze=False)[0]
        for axes, shape in zip(panels, shapes, strict=True):
            axes.axvline(1, color="#222222", lw=0.9, ls=(0, (4, 3)), zorder=1)
            for name, cases in cores.items():
                row = families.index(named[name][0])
                plain = name == named[name][0]
                for k, place in enumerate(places):
                    shift = 0.44 * ((k + 0.5) / len(places) - 0.5)
                    case = cases.get(f"{shape}/{place}", {})
                    _dot(axes, case, row + shift, STYLES[k % len(STYLES)][0], plain)
            axes.set_title(head(shape), loc="left")
            _relative(axes)
        panels[0].set_yticks(range(len(families)), families)
        panels[0].set_ylim(len(families) - 0.5, -0.5)
        figure.supxlabel("speed relative to torch.nn.LSTM of as many parameters", fontsize=10)
        handles = [
            panels[0].plot([], [], "o", color=STYLES[k % len(STYLES)][0], label=place_words(place))[
                0
            ]
            for k, place in enumerate(places)
        ]
        handles += [
            *panels[0].plot([], [], "o", mfc="none", mec="black", label="with its plain gate"),
            *panels[0].plot([], [], "|", ms=9, mew=1.6, color=MUTED, label="its plain loop"),
        ]
        figure.legend(handles=handles, loc="outside upper center", ncols=len(handles))
        save(figure, path)
    return True


def _dot(axes: Axes, case: Mapping[str, Any], row: float, color: str, plain: bool) -> None:
    """One core at one shape, with its interval."""
    speed, loop = found(case, "equal"), found(case, "plain")
    if speed is None:
        return
    axes.plot([speed.low, speed.high], [row, row], color=color, lw=1, alpha=0.5)
    rim: Any = {"mec": "black", "mew": 1.0, "zorder": 4} if plain else {"mec": "none", "alpha": 0.6}
    axes.plot(speed.ratio, row, "o", ms=5, color=color, **rim)
    if loop is not None and plain:
        axes.plot(speed.ratio / loop.ratio, row, "|", ms=9, mew=1.6, color=MUTED)


def _relative(axes: Axes) -> None:
    """A logarithmic axis of ratios."""
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(TICKS))
    axes.xaxis.set_minor_locator(FixedLocator(SMALL_TICKS))
    axes.xaxis.set_major_formatter(FuncFormatter(_plain_number))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.grid(axis="both", color="#e5e5e5", lw=0.7)
    axes.set_axisbelow(True)


def _plain_number(number: float, _: Any = None) -> str:
    return f"{number:,g}"


def draw_growth(content: Mapping[str, Any], path: Path) -> None:
    """Milliseconds over steps, rows and units: three panels, both axes logarithmic."""
    base, run = content["base"], content["run"]
    panels = content["milliseconds"]
    with rc_context(LOOK):
        figure = Figure(figsize=(11.5, 4.4), layout="constrained")
        all_axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for axes, (axis, lines) in zip(all_axes, panels.items(), strict=True):
            ticks: set[int] = set()
            for k, (title, points) in enumerate(lines.items()):
                color, dash = STYLES[k % len(STYLES)]
                sizes, middles = [p[0] for p in points], [p[1] for p in points]
                ticks |= set(sizes)
                axes.plot(sizes, middles, color=color, ls=dash, lw=2, marker="o", ms=4, label=title)
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            axes.xaxis.set_major_locator(FixedLocator(sorted(ticks)))
            axes.xaxis.set_minor_locator(NullLocator())
            axes.xaxis.set_major_formatter(FuncFormatter(_plain_number))
            axes.yaxis.set_major_formatter(FuncFormatter(_plain_number))
            axes.grid(color="#e5e5e5", lw=0.7)
            axes.set_xlabel(PHRASES[axis])
            rest = ", ".join(f"{name} = {size}" for name, size in base.items() if name != axis)
            axes.set_title(rest, loc="left", fontsize=10)
        all_axes[0].set_ylabel("ms, forward and backward")
        handles, labels = all_axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
        threads = place_words(str(run["threads"]))
        figure.suptitle(
            f"I = number of inputs; {run['cpu']}, {threads}", x=0.01, ha="left", fontsize=9
        )
        save(figure, path)
