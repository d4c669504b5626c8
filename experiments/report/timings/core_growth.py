"""The figure of how the cost of a forward and backward pass grows with its sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from rlgates.experiments.plots.curves import label_all, new_figure
from rlgates.experiments.plots.styles import style
from rlgates.experiments.report.timings.core_speed import place_text
from rlgates.experiments.runs.files import read_json

AXIS_LABELS = {"T": "steps T", "B": "batch size B", "H": "units H"}


def draw_core_growth(source: Path, path: Path) -> None:
    """Draw milliseconds over steps, batch size and units: three panels, axes logarithmic."""
    content = read_json(source)
    base, run = content["base"], content["run"]
    panels = content["milliseconds"]
    number = FuncFormatter(lambda value, _: f"{value:,g}")
    with new_figure(path, (11.5, 4.4)) as figure:
        all_axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for axes, (axis, lines) in zip(all_axes, panels.items(), strict=True):
            ticks: set[int] = set()
            for title, points in lines.items():
                color, dash, marker = style(title)
                sizes, medians = [p[0] for p in points], [p[1] for p in points]
                ticks |= set(sizes)
                line: Any = {"color": color, "ls": dash, "lw": 2, "marker": marker, "ms": 4}
                axes.plot(sizes, medians, **line, label=title)
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            axes.xaxis.set_major_locator(FixedLocator(sorted(ticks)))
            axes.xaxis.set_minor_locator(NullLocator())
            axes.xaxis.set_major_formatter(number)
            axes.yaxis.set_major_formatter(number)
            axes.grid(color="#e5e5e5", lw=0.7)
            axes.set_xlabel(AXIS_LABELS[axis])
            rest = ", ".join(f"{name} = {size}" for name, size in base.items() if name != axis)
            axes.set_title(rest, loc="left", fontsize=10)
            axes.set_ylabel("ms, forward and backward")
        label_all(all_axes)
        handles, labels = all_axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
        threads = place_text(str(run["threads"]))
        figure.suptitle(
            f"I = number of inputs; {run['cpu']}, {threads}", x=0.01, ha="left", fontsize=9
        )
