"""How gates saturate under gradient flow and optimizers (Ohno et al. 2022, figures 2 and 8)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pandas as pd
import torch
from matplotlib.axes import Axes

from rlgates.atomic import write_atomically
from rlgates.experiments.analysis.saturation import (
    DESCENT,
    FLOW,
    LAWS,
    TIMES,
    Curve,
    all_curves,
    fitted,
    slope,
    thinned,
)
from rlgates.experiments.plots.curves import new_figure
from rlgates.experiments.plots.styles import GATE_COLORS
from rlgates.experiments.report.rows import markdown, numbers, read_frame

TITLES = {"iterated_fast": "iterated fast"}
PREFIXES = {"sigmoid": "", "softsign": "s", "refine": "r", "fast": "f", "iterated_fast": "ff"}
"""The prefix of each gate in the names of cores, which have its colour."""
LOST = "1 − f, what is lost in a step"
FLOOR = 1e-16  # 1 - f below this is not drawn: f is 1 in float64
LABEL_SHIFTS = {"sigmoid": 6, "refine": -7}  # points, between two labels that would overlap


def saturation_table() -> pd.DataFrame:
    """Compute 1 - f of each gate under each method (Ohno et al. 2022, figures 2 and 8)."""
    return pd.DataFrame(
        [
            {"method": method, "gate": gate, "time": f"{time:.6g}", "one_minus_f": f"{left:.6g}"}
            for method, curves in all_curves().items()
            for gate, curve in curves.items()
            for time, left in zip(*(part.tolist() for part in curve), strict=True)
        ]
    )


def read_saturation(rows: pd.DataFrame) -> dict[str, dict[str, Curve]]:
    """Read the curve of each method and gate."""
    panels: dict[str, dict[str, Curve]] = {}
    for (method, gate), points in rows.groupby(["method", "gate"], sort=False):
        columns = (torch.from_numpy(numbers(points, name)) for name in ("time", "one_minus_f"))
        panels.setdefault(method, {})[gate] = Curve(*columns)
    return panels


def slope_table(flow: Mapping[str, Curve]) -> str:
    """Compare how fast 1 - f falls under gradient flow with the published law."""
    lines = []
    for gate, curve in flow.items():
        law = LAWS.get(gate)
        cells = ("", "")
        if law is not None:
            cells = law.text, f"{slope(Curve(curve.times, fitted(gate, curve))):.3f}"
        lines.append((TITLES.get(gate, gate), cells[0], f"{slope(curve):.3f}", cells[1]))
    return markdown(("gate", "published law", "slope", "slope of the law"), lines) + (
        "\nSlope of log(1 - f) over log time, by least squares over the last two of eight "
        "decades of gradient flow, for a state that must last n = 10 steps; no randomness is "
        "involved. `rlgates analyse saturation`.\n"
    )


def draw_saturation(source: Path, table: Path, path: Path) -> None:
    """Write the table of slopes of `saturation.csv`, and draw its curves.

    Flow, descent and the published laws have one panel, each of the other optimizers has its own.
    """
    panels = read_saturation(read_frame(source))
    write_atomically(table, slope_table(panels[FLOW]).encode())
    with new_figure(path, (13.4, 4.6)) as figure:
        flow, *others = figure.subplots(1, 3, width_ratios=(1.5, 1, 1))
        _plot_flow(flow, panels[FLOW], panels[DESCENT])
        names = [name for name in panels if name not in (FLOW, DESCENT)]
        for axes, name in zip(others, names, strict=True):
            for gate, curve in panels[name].items():
                axes.plot(*_visible(curve), color=_color(gate), lw=2)
            axes.set_title(f"{name}, rate 0.01, n = 30", loc="left")
            axes.set_xlabel("updates")
            axes.set_yscale("log")
            axes.set_ylim(1e-8, 1)
            axes.set_ylabel(LOST)
        flow.set_ylabel(LOST)
        handles, labels = flow.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))


def _plot_flow(axes: Axes, flow: Mapping[str, Curve], descent: Mapping[str, Curve]) -> None:
    for gate, curve in flow.items():
        color = _color(gate)
        axes.plot(*_visible(curve), color=color, lw=2, label=TITLES.get(gate, gate))
        marks = thinned(descent[gate])
        axes.plot(*_visible(Curve(marks.times[1::6], marks.left[1::6])), "o", color=color, ms=4)
        if gate in LAWS:
            late = curve.times >= 1e3
            law = Curve(curve.times[late], fitted(gate, curve)[late])
            axes.plot(*_visible(law), color="#222222", lw=1, ls=(0, (4, 3)), zorder=3)
            axes.annotate(
                LAWS[gate].text,
                (float(law.times[-1]), float(law.left[-1])),
                xytext=(6, LABEL_SHIFTS.get(gate, 0)),
                textcoords="offset points",
                va="center",
                fontsize=10,
                color=color,
                annotation_clip=False,
            )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(1, float(TIMES[-1]))
    axes.set_ylim(1e-14, 1.5)
    axes.set_title("Gradient flow (lines), descent with rate 1 (dots), n = 10", loc="left")
    axes.set_xlabel("time τ, or updates;  dashed: the published laws")


def _color(gate: str) -> str:
    return GATE_COLORS[PREFIXES[gate]]


def _visible(curve: Curve) -> tuple[list[float], list[float]]:
    visible = curve.left >= FLOOR
    return curve.times[visible].tolist(), curve.left[visible].tolist()
