"""Losses of many cores on one task: a small panel for each, on the same axes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure

from rlgates.experiments.figures import LOOK, MUTED, STYLES, save

Line = tuple[Sequence[float], Sequence[float]]
COLUMNS = 6
EARLY = 0.05  # of the longest run: where there is no baseline, higher losses before are cut off
LOG_FROM = 10.0  # highest loss over lowest


def draw_losses(
    title: str, curves: Mapping[str, Sequence[Line]], baseline: float | None, path: Path
) -> None:
    """A panel for each core, a line for each seed, and what can be had without memory.

    Few cores have those of all others behind them, in grey.

    Args:
        title: the task.
        curves: for each core its runs: updates and losses.
        baseline: the loss of the best prediction without memory, where it is known.
        path: the PNG to be written.
    """
    columns = min(COLUMNS, len(curves))
    rows = -(-len(curves) // columns)
    with rc_context({**LOOK, "font.size": 9, "axes.titlesize": 10}):
        figure = Figure(figsize=(2 * columns + 0.6, 1.6 * rows + 0.6), layout="constrained")
        panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).ravel()
        everything = [line for runs in curves.values() for line in runs]
        low, high, scale = shown(everything, baseline)
        for axes, (core, runs) in zip(panels, curves.items(), strict=False):
            if baseline is not None:
                axes.axhline(baseline, color=MUTED, lw=0.9, ls=(0, (4, 3)))
            for updates, losses in everything if rows == 1 else ():
                axes.plot(updates, losses, color=MUTED, lw=0.7, alpha=0.3)
            for updates, losses in runs:
                axes.plot(updates, losses, color=STYLES[0][0], lw=1.4, alpha=0.8)
            axes.set_yscale(scale)
            axes.set_ylim(low, high)
            axes.set_title(core, loc="left")
        for axes in panels[len(curves) :]:
            axes.set_visible(False)
        dashed = "" if baseline is None else " (dashed: the best without memory)"
        figure.suptitle(f"{title}: loss{dashed}", x=0.01, ha="left", wrap=True)
        figure.supxlabel("updates", fontsize=9)
        save(figure, path)


def shown(lines: Sequence[Line], baseline: float | None) -> tuple[float, float, str]:
    """The lowest and the highest loss of a picture of these runs, and the scale between them."""
    lowest = min(min(losses) for _, losses in lines)
    highest = baseline if baseline is not None else _late(lines, lowest)
    if highest > LOG_FROM * lowest:
        return max(lowest / 2, 1e-6), 4 * highest, "log"
    margin = 0.2 * (highest - lowest) or 0.1
    return max(lowest - margin, 0.0), highest + margin, "linear"


def _late(lines: Sequence[Line], lowest: float) -> float:
    """The highest loss but for the first updates."""
    begin = EARLY * max(updates[-1] for updates, _ in lines)
    later = [
        loss
        for updates, losses in lines
        for update, loss in zip(updates, losses, strict=True)
        if update >= begin and math.isfinite(loss)
    ]
    return max(later, default=lowest)
