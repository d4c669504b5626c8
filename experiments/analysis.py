"""The closed-form studies: how gates saturate, and what a refine gate can reach.

They take seconds, learn nothing, and hang on no seed: `rlgates analyse` draws them again.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from rlgates.errors import check_choice
from rlgates.experiments.figures import LOOK, MUTED, STYLES, save
from rlgates.experiments.files import write_atomically
from rlgates.experiments.tables import markdown, read
from rlgates.tasks import gate_analysis, saturation
from rlgates.tasks.saturation import GATES, LAWS, Curve

FLOW, DESCENT = "gradient flow", "gradient descent"
TIMES = saturation.time_grid(1e0, 1e8, 20)
DESCENT_UPDATES, OPTIMIZER_UPDATES = 3_000, 1_000
FLOOR = 1e-16  # 1 - f below this is not drawn: f is 1 in float64
TITLES = {"iterated_fast": "iterated fast"}
NUDGE = {"sigmoid": 6, "refine": -7}  # points, between two labels that would meet


def analyse(study: str, results: Path) -> list[Path]:
    """Make a study of `STUDIES`; what was written.

    Raises:
        ValueError: an unknown study.
    """
    return STUDIES[check_choice("study", study, STUDIES)](results)


def analyse_saturation(results: Path) -> list[Path]:
    """`saturation.csv`, `.md` and `.png`: Ohno et al. 2022, figures 2 and 8."""
    panels: dict[str, dict[str, Curve]] = {
        FLOW: {gate: saturation.gradient_flow(gate, TIMES) for gate in GATES},
        DESCENT: {gate: saturation.descent(gate, "sgd", 1.0, DESCENT_UPDATES) for gate in GATES},
    }
    for title, optimizer in (("RMSprop", "rmsprop"), ("Adam", "adam")):
        panels[title] = {
            gate: saturation.descent(gate, optimizer, 0.01, OPTIMIZER_UPDATES, exponent=30)
            for gate in GATES
        }
    rows = [
        [title, gate, f"{time:.6g}", f"{left:.6g}"]
        for title, curves in panels.items()
        for gate, curve in curves.items()
        for time, left in zip(*(part.tolist() for part in _thinned(curve)), strict=True)
    ]
    table = results / "saturation.csv"
    _write(table, ["method", "gate", "time", "one_minus_f"], rows)
    slopes = results / "saturation.md"
    write_atomically(slopes, slope_table(panels[FLOW]).encode())
    return [table, slopes, *redraw_saturation(results)]


def redraw_saturation(results: Path) -> Iterator[Path]:
    """`saturation.png` again, from the table beside it."""
    panels: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for row in read(results / "saturation.csv"):
        points = panels.setdefault(row["method"], {}).setdefault(row["gate"], [])
        points.append((float(row["time"]), float(row["one_minus_f"])))
    if panels:
        curves = {
            title: {gate: Curve(*torch.tensor(points).double().T) for gate, points in some.items()}
            for title, some in panels.items()
        }
        draw_saturation(curves, results / "saturation.png")
        yield results / "saturation.png"


def slope_table(flow: Mapping[str, Curve]) -> str:
    """How fast 1 - f falls under gradient flow, and by the published law, over the same times."""
    heads = ("gate", "published law", "slope", "slope of the law")
    lines = []
    for gate, curve in flow.items():
        law = LAWS.get(gate)
        cells = ("", "")
        if law is not None:
            law_curve = Curve(curve.times, saturation.fitted(gate, curve))
            cells = law.text, f"{saturation.slope(law_curve):.3f}"
        own = f"{saturation.slope(curve):.3f}"
        lines.append((TITLES.get(gate, gate), cells[0], own, cells[1]))
    return markdown(heads, lines) + (
        "\nSlope of log(1 - f) over log time, by least squares over the last two of eight "
        "decades of gradient flow, for a state that is to last 10 steps (n); nothing in it is "
        "drawn at random. `rlgates analyse saturation`.\n"
    )


def _thinned(curve: Curve) -> Curve:
    """At most some 20 points a decade."""
    count = len(curve.times)
    kept = [0, *sorted({round(10 ** (k / 20)) for k in range(100)})]
    if count <= len(TIMES):
        return curve
    places = torch.tensor([place for place in kept if place < count])
    return Curve(curve.times[places], curve.left[places])


def draw_saturation(panels: Mapping[str, Mapping[str, Curve]], path: Path) -> None:
    """Flow with descent and the published laws, and a panel for each of the other optimizers."""
    with rc_context(LOOK):
        figure = Figure(figsize=(13.4, 4.6), layout="constrained")
        flow, *others = figure.subplots(1, 3, width_ratios=(1.5, 1, 1))
        _draw_flow(flow, panels[FLOW], panels[DESCENT])
        names = [name for name in panels if name not in (FLOW, DESCENT)]
        for axes, name in zip(others, names, strict=True):
            for k, curve in enumerate(panels[name].values()):
                axes.plot(*_drawn(curve), color=STYLES[k][0], lw=2)
            axes.set_title(f"{name}, rate 0.01, n = 30", loc="left")
            axes.set_xlabel("updates")
            axes.set_yscale("log")
            axes.set_ylim(1e-8, 1)
        flow.set_ylabel("1 − f, what is lost in a step")
        handles, labels = flow.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
        save(figure, path)


def _draw_flow(axes: Axes, flow: Mapping[str, Curve], descent: Mapping[str, Curve]) -> None:
    for k, (gate, curve) in enumerate(flow.items()):
        color = STYLES[k][0]
        axes.plot(*_drawn(curve), color=color, lw=2, label=TITLES.get(gate, gate))
        marks = _thinned(descent[gate])
        axes.plot(*_drawn(Curve(marks.times[1::6], marks.left[1::6])), "o", color=color, ms=4)
        if gate in LAWS:
            late = curve.times >= 1e3
            law = Curve(curve.times[late], saturation.fitted(gate, curve)[late])
            axes.plot(*_drawn(law), color="#222222", lw=1, ls=(0, (4, 3)), zorder=3)
            axes.annotate(
                LAWS[gate].text,
                (float(law.times[-1]), float(law.left[-1])),
                xytext=(6, NUDGE.get(gate, 0)),
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


def _drawn(curve: Curve) -> tuple[list[float], list[float]]:
    seen = curve.left >= FLOOR
    return curve.times[seen].tolist(), curve.left[seen].tolist()


def analyse_gates(results: Path) -> list[Path]:
    """`gate_analysis.csv` and `gate_analysis.png`: Gu et al. 2020, figure 2."""
    f = torch.linspace(0.005, 0.995, 199, dtype=torch.float64)
    low, high = gate_analysis.bounds(f)
    least, most = gate_analysis.gradient_ratio(f)
    columns = {
        "f_or_g": f,
        "band": gate_analysis.band(f),
        "lowest_g": low,
        "highest_g": high,
        "plain_gradient": gate_analysis.plain_gradient(f),
        "least_gradient_ratio": least,
        "greatest_gradient_ratio": most,
    }
    rows = zip(*([f"{x:.6g}" for x in column.tolist()] for column in columns.values()), strict=True)
    table, picture = results / "gate_analysis.csv", results / "gate_analysis.png"
    _write(table, list(columns), rows)
    draw_gates(picture)
    return [table, picture]


def redraw_gates(results: Path) -> Iterator[Path]:
    """`gate_analysis.png` again: it is all closed form."""
    if (results / "gate_analysis.csv").exists():
        draw_gates(results / "gate_analysis.png")
        yield results / "gate_analysis.png"


def draw_gates(path: Path) -> None:
    """Four panels: the band, the effective gate over x, its contours, and its gradient."""
    with rc_context(LOOK):
        figure = Figure(figsize=(15, 4), layout="constrained")
        band, reach, contours, gradient = figure.subplots(1, 4)
        _draw_band(band)
        _draw_reach(reach)
        _draw_contours(contours)
        _draw_gradient(gradient)
        save(figure, path)


def _draw_band(axes: Axes) -> None:
    f = torch.linspace(0, 1, 201, dtype=torch.float64)
    _plot(axes, f, gate_analysis.band(f), 0, "α(f) = f (1 − f)")
    tent = torch.minimum(f, 1 - f)
    axes.plot(f.numpy(), tent.numpy(), color=MUTED, lw=1, ls=(0, (4, 3)), label="min(f, 1 − f)")
    axes.set_title("How far g can be from f", loc="left")
    axes.set_xlabel("forget gate f")
    axes.set_ylim(0, 0.62)
    axes.legend(loc="upper left")


def _draw_reach(axes: Axes) -> None:
    x = torch.linspace(-5, 5, 201, dtype=torch.float64)
    f = torch.sigmoid(x)
    low, high = gate_analysis.bounds(f)
    axes.fill_between(x.numpy(), low.numpy(), high.numpy(), color=STYLES[0][0], alpha=0.15, lw=0)
    _plot(axes, x, high, 0, "r = 1:  1 − (1 − f)²")
    axes.plot(x.numpy(), f.numpy(), color="#222222", lw=2, label="r = ½:  f")
    _plot(axes, x, low, 1, "r = 0:  f²")
    axes.set_title("The effective gate g", loc="left")
    axes.set_xlabel("pre-activation x,  f = σ(x)")
    axes.legend(loc="upper left", fontsize=9)


def _draw_contours(axes: Axes) -> None:
    axis, g = (part.numpy() for part in gate_analysis.contours())
    levels = [0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99]
    lines = axes.contour(axis, axis, g, levels, colors=STYLES[0][0], linewidths=1.8)
    inner = levels[1:-1]
    axes.clabel(lines, inner, fmt="%g", fontsize=9, manual=[(level, 0.5) for level in inner])
    f = torch.tensor(0.9, dtype=torch.float64)
    most = float(gate_analysis.bounds(f)[1])
    axes.plot(float(f), 1.0, "o", color="#222222", ms=6, clip_on=False)
    axes.set_title(f"Contours of g  (dot: {f:g} → {most:.2f})", loc="left")
    axes.set_xlabel("forget gate f")
    axes.set_ylabel("refine gate r")


def _draw_gradient(axes: Axes) -> None:
    g = torch.linspace(0.002, 0.998, 499, dtype=torch.float64)
    least, most = gate_analysis.gradient_ratio(g)
    axes.fill_between(g.numpy(), least.numpy(), most.numpy(), color=STYLES[0][0], alpha=0.15, lw=0)
    _plot(axes, g, most, 0, "greatest, with a refine gate")
    _plot(axes, g, least, 1, "least, with a refine gate")
    axes.axhline(1.0, color="#222222", lw=2, label="without one")
    axes.set_title("Gradient over that of a plain gate", loc="left")
    axes.set_xlabel("effective gate g")
    axes.set_ylim(0.9, 2.35)
    axes.legend(loc="upper center", fontsize=9)


def _plot(axes: Axes, x: Tensor, y: Tensor, style: int, label: str) -> None:
    color, dash = STYLES[style]
    axes.plot(x.numpy(), y.numpy(), color=color, ls=dash, lw=2, label=label)


def _write(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *rows])
    write_atomically(path, text.getvalue().encode())


STUDIES = {"saturation": analyse_saturation, "gates": analyse_gates}
