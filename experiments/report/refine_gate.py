"""What a refine gate can reach, and with which gradient (Gu et al. 2020, figure 2)."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import torch
from matplotlib.axes import Axes
from torch import Tensor

from rlgates.experiments.analysis import refine_gate
from rlgates.experiments.plots.curves import new_figure
from rlgates.experiments.plots.styles import MUTED, SERIES


def refine_gate_table() -> pd.DataFrame:
    """Compute the reach of a refine gate and its gradient."""
    f = torch.linspace(0.005, 0.995, 199, dtype=torch.float64)
    low, high = refine_gate.bounds(f)
    least, most = refine_gate.gradient_ratio(f)
    columns = {
        "f_or_g": f,
        "band": refine_gate.band(f),
        "lowest_g": low,
        "highest_g": high,
        "plain_gradient": refine_gate.plain_gradient(f),
        "least_gradient_ratio": least,
        "greatest_gradient_ratio": most,
    }
    return pd.DataFrame(
        {name: [f"{x:.6g}" for x in column.tolist()] for name, column in columns.items()}
    )


def draw_refine_gate(_: Path, path: Path) -> None:
    """Draw four panels: the band, the effective gate over x, its contours and its gradient.

    They are closed form, and need nothing of `gate_analysis.csv`.
    """
    with new_figure(path, (9.5, 7.5)) as figure:
        (band, reach), (contours, gradient) = figure.subplots(2, 2)
        _plot_band(band)
        _plot_reach(reach)
        _plot_contours(contours)
        _plot_gradient(gradient)


def _plot_band(axes: Axes) -> None:
    f = torch.linspace(0, 1, 201, dtype=torch.float64)
    _line(axes, f, refine_gate.band(f), 0, "α(f) = f (1 − f)")
    tent = torch.minimum(f, 1 - f)
    axes.plot(f.numpy(), tent.numpy(), color=MUTED, lw=1, ls=(0, (4, 3)), label="min(f, 1 − f)")
    axes.set_title("How far g can be from f", loc="left")
    axes.set_xlabel("forget gate f")
    axes.set_ylabel("distance |g − f|")
    axes.set_ylim(0, 0.62)
    axes.legend(loc="upper left")


def _plot_reach(axes: Axes) -> None:
    x = torch.linspace(-5, 5, 201, dtype=torch.float64)
    f = torch.sigmoid(x)
    low, high = refine_gate.bounds(f)
    axes.fill_between(x.numpy(), low.numpy(), high.numpy(), color=SERIES[0].color, alpha=0.15, lw=0)
    _line(axes, x, high, 0, "r = 1:  1 − (1 − f)²")
    axes.plot(x.numpy(), f.numpy(), color="#222222", lw=2, label="r = ½:  f")
    _line(axes, x, low, 1, "r = 0:  f²")
    axes.set_title("The effective gate g", loc="left")
    axes.set_xlabel("pre-activation x,  f = σ(x)")
    axes.set_ylabel("effective gate g")
    axes.legend(loc="upper left", fontsize=9)


def _plot_contours(axes: Axes) -> None:
    axis, g = (part.numpy() for part in refine_gate.contours())
    levels = [0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99]
    lines = axes.contour(axis, axis, g, levels, colors=SERIES[0].color, linewidths=1.8)
    inner = levels[1:-1]
    axes.clabel(lines, inner, fmt="%g", fontsize=9, manual=[(level, 0.5) for level in inner])
    f = torch.tensor(0.9, dtype=torch.float64)
    most = float(refine_gate.bounds(f)[1])
    axes.plot(float(f), 1.0, "o", color="#222222", ms=6, clip_on=False)
    axes.set_title(f"Contours of g  (dot: {f:g} → {most:.2f})", loc="left")
    axes.set_xlabel("forget gate f")
    axes.set_ylabel("refine gate r")


def _plot_gradient(axes: Axes) -> None:
    g = torch.linspace(0.002, 0.998, 499, dtype=torch.float64)
    least, most = refine_gate.gradient_ratio(g)
    axes.fill_between(
        g.numpy(), least.numpy(), most.numpy(), color=SERIES[0].color, alpha=0.15, lw=0
    )
    _line(axes, g, most, 0, "greatest, with a refine gate")
    _line(axes, g, least, 1, "least, with a refine gate")
    axes.axhline(1.0, color="#222222", lw=2, label="without one")
    axes.set_title("Gradient over that of a plain gate", loc="left")
    axes.set_xlabel("effective gate g")
    axes.set_ylabel("ratio of the gradients")
    axes.set_ylim(0.9, 2.35)
    axes.legend(loc="upper center", fontsize=9)


def _line(axes: Axes, x: Tensor, y: Tensor, style: int, label: str) -> None:
    color, dash, _ = SERIES[style]
    axes.plot(x.numpy(), y.numpy(), color=color, ls=dash, lw=2, label=label)
