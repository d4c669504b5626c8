"""Losses of many cores on one task: a small panel for each, on the same axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure

from rlgates.experiments.figures import LOOK, MUTED, STYLES, save

Line = tuple[Sequence[float], Sequence[float]]
COLUMNS = 6


def draw_losses(
    title: str, curves: Mapping[str, Sequence[Line]], baseline: float | None, path: Path
) -> None:
    """A panel for each core, a line for each seed, and what can be had without memory.

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
        lowest = min(min(loss) for runs in curves.values() for _, loss in runs)
        for axes, (core, runs) in zip(panels, curves.items(), strict=False):
            if baseline is not None:
                axes.axhline(baseline, color=MUTED, lw=0.9, ls=(0, (4, 3)))
            for updates, losses in runs:
                axes.plot(updates, losses, color=STYLES[0][0], lw=1.4, alpha=0.8)
            axes.set_yscale("log")
            axes.set_ylim(max(lowest / 2, 1e-6), 4 * baseline if baseline else None)
            axes.set_title(core, loc="left")
        for axes in panels[len(curves) :]:
            axes.set_visible(False)
        dashed = "" if baseline is None else " (dashed: the best without memory)"
        figure.suptitle(f"{title}: loss{dashed}", x=0.01, ha="left")
        figure.supxlabel("updates", fontsize=9)
        save(figure, path)
