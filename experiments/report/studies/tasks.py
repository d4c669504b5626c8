"""Studies on supervised tasks: tables, and the losses of each core in a small panel."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator

from rlgates.experiments.plots.curves import (
    ALARM,
    CHARACTERS,
    HANDLE,
    label_all,
    new_figure,
    say_diverged,
    steps_label,
)
from rlgates.experiments.plots.styles import INK, MUTED, in_core_order, style
from rlgates.experiments.plots.titles import loss_words, title_words
from rlgates.experiments.report.rows import (
    LABEL,
    file_slug,
    markdown,
    numbers,
    provenance,
    read_frame,
    seeds_text,
    test_figures,
    total_time,
)
from rlgates.experiments.report.studies.unit_gates import draw_unit_gates
from rlgates.experiments.runs.text import time_text

OPTIMIZERS = {"": "Adam", "adam": "Adam", "radam": "RAdam", "rmsprop": "RMSprop"}
MAX_PANELS = 24
COLUMNS = 4
EARLY = 0.05  # of the longest run: without a baseline, higher losses before are cut off
LOG_FROM = 10.0  # highest loss over lowest
NOISE = 0.05  # of the highest loss: the least margin where nothing is learned
ENDS = {
    "goal": "ended early: solved",
    "patience": "stopped early: no further improvement",
    "diverged": "diverged",
}
"""How a run ends before its budget, in words."""
END_MARKERS = {"goal": "o", "patience": "s"}


class Line(NamedTuple):
    """The losses of a run over its updates, and how it ended, one of `ENDS` or another word."""

    updates: Sequence[float]
    losses: Sequence[float]
    end: str = ""


def has_one_core_per_task(rows: pd.DataFrame) -> bool:
    """Tell whether there are several tasks with a single core each, so nothing to compare."""
    tasks = rows["title"].nunique()
    return bool(len(rows[["title", LABEL]].drop_duplicates()) == tasks > 1)


def task_tables(rows: pd.DataFrame) -> str:
    """Format a table per task of a study, or one of all tasks if each has a single core."""
    if has_one_core_per_task(rows):
        return overview(rows)
    return "\n".join(task_table(group) for _, group in rows.groupby("title", sort=False))


def task_table(rows: pd.DataFrame) -> str:
    """Format the results of each core on one task, the best first."""
    groups = [(label, group) for label, group in rows.groupby(LABEL, sort=False)]
    columns = _columns(rows)
    lines = []
    for label, group in sorted(groups, key=lambda item: _rank(item[1])):
        core, comma, variant = label.partition(",")
        lines.append([f"`{core}`{comma}{variant}", *(_cell(column, group) for column in columns)])
    return markdown([title_words(rows["title"].iloc[0]), *columns], lines) + f"\n{_note(rows)}\n"


def overview(rows: pd.DataFrame) -> str:
    """Format one table of many tasks, each with one core."""
    groups = [group for _, group in rows.groupby("title", sort=False)]
    usual = statistics.mode(rows[LABEL])
    heads = ("task", "budget", "loss before", "loss", "on test", "published", "time per run")
    lines = []
    for group in groups:
        first = group.iloc[0]
        core = "" if first[LABEL] == usual else f" (`{first[LABEL]}`)"
        cells = (
            *(title_words(first["title"]) + core, _budget(first)),
            *(_cell(column, group) for column in ("loss before", "loss")),
            f"{first['metric']} {_cell(' on test', group)}",
            *(_cell(column, group) for column in ("published", "time per run")),
        )
        lines.append(cells)
    note = (
        f"\n`{usual}` unless another core is named, seed {', '.join(rows['seed'].unique())}: loss "
        "on held-out sequences, before and after training, and the task's metric on the test set. "
        "Published: with the papers' own sizes and budgets. "
        f"{total_time(rows)}. {provenance(rows)}.\n"
    )
    return markdown(heads, lines) + note


def _budget(row: pd.Series) -> str:
    parts = [f"{int(row['updates']):,} updates"] if row["updates"] else []
    if epochs := row["epochs"]:
        parts.append(f"{epochs} epoch{'s' * (epochs != '1')}")
    return " or ".join(parts)


def _columns(rows: pd.DataFrame) -> list[str]:
    """Choose the columns that say something about these runs."""
    first = rows.iloc[0]
    columns = ["solved"] if _stop_loss(rows) else []
    if first["epochs"]:
        columns.append("loss before")
    columns += ["loss", "worst seed"] if rows["seed"].nunique() > 1 else ["loss"]
    metric = first["metric"] or "loss"
    if metric != "loss" and first["epochs"]:
        columns.append(f"{metric} on test")
        columns += ["published"] * _has_any(rows, "published")
        parts = [name for name in rows if str(name).startswith(f"test_{metric}_")]
        columns += [f"{part.removeprefix('test_')} on test" for part in parts]
    return [*columns, "diverged", "parameters", "time per run"]


def _cell(column: str, rows: pd.DataFrame) -> str:
    """Format a column for all seeds of a core."""
    if column.endswith(" on test"):
        of_part = f"test_{column.removesuffix(' on test')}"
        figures = test_figures(rows, of_part if of_part in rows else "test")
        finite = figures[np.isfinite(figures)]
        if not len(finite):
            return "nan"
        spread = f" [{finite.min():.4g}, {finite.max():.4g}]" if len(figures) > 1 else ""
        return f"{float(np.median(finite)):.4g}{spread}"
    match column:
        case "solved":
            if not _stop_loss(rows):  # a solved task does not end these runs
                return ""
            updates = _solved_updates(rows)
            when = f", after {np.median(updates):,.0f}" if len(updates) else ""
            return f"{len(updates)} of {len(rows)}{when}"
        case "loss before":
            return _loss_text(_median(rows, "first_loss"))
        case "loss":
            return _loss_text(_median(rows, "loss"))
        case "worst seed":
            return _loss_text(float(numbers(rows, "loss").max()))
        case "published":
            return str(rows["published"].iloc[0]).replace(" ", ", ")
        case "diverged":
            return f"{(rows['diverged_at'] != '').sum()} of {len(rows)}"
        case "parameters":
            return f"{int(rows['parameters'].iloc[0]):,}"
    return time_text(_median(rows, "seconds"))


def _has_any(rows: pd.DataFrame, column: str) -> bool:
    return bool((rows[column] != "").any())


def _median(rows: pd.DataFrame, column: str) -> float:
    """Take the median over runs; nan if any has no number."""
    return float(np.median(numbers(rows, column)))


def _stop_loss(rows: pd.DataFrame) -> str:
    """Return the loss that solves the task, of the first run that has one."""
    return next(filter(None, rows["stop_loss"]), "")


def _rank(rows: pd.DataFrame) -> tuple[float, float, float]:
    """Rank by the number of seeds that solved the task, then by when, then by loss."""
    updates = _solved_updates(rows)
    when = float(np.median(updates)) if len(updates) else math.inf
    return -len(updates), when, float(np.nan_to_num(_median(rows, "loss"), nan=math.inf))


def _solved_updates(rows: pd.DataFrame) -> np.ndarray:
    return numbers(rows[rows["ended"] == "goal"], "made")


def _note(rows: pd.DataFrame) -> str:
    """Say how the runs were made."""
    first, seeds, many = rows.iloc[0], seeds_text(rows), rows["seed"].nunique() > 1
    over = f"median over {seeds} or those available" if many else seeds
    sooner = (rows["ended"] == "patience").sum()
    budgets = _distinct(_budget(row) for _, row in rows.iterrows())
    parts = [
        f"Loss on held-out sequences after {'at most ' * bool(sooner)}"
        f"{budgets}, {_distinct(rows['batch_size'])} sequences per batch "
        f"({over})"
    ]
    if first["baseline"]:
        parts[0] += f"; without memory {float(first['baseline']):.4f} at best"
    if sooner:
        parts.append(f"{sooner} of {len(rows)} runs stopped early, without further improvement")
    if stop := _stop_loss(rows):
        parts.append(
            f"Solved: a loss below {float(stop):.4g}, which ends a run; after: the median "
            "number of updates of runs that got there"
        )
    if many and any(column.endswith(" on test") for column in _columns(rows)):
        parts.append("In brackets: lowest and highest seed")
        if (rows["diverged_at"] != "").any():
            parts.append("Runs that diverged have no figure on test")
    if first["epochs"] and _has_any(rows, "published"):
        parts.append("Published: with the papers' own sizes and budgets")
    optimizers = _distinct(OPTIMIZERS.get(name, name) for name in rows["optimizer"])
    sizes, rates = (_distinct(rows[name]) for name in ("hidden_size", "learning_rate"))
    parts.append(f"d = {sizes}, {optimizers}, rate {rates}")
    return ". ".join([*parts, total_time(rows), provenance(rows)]) + "."


def _distinct(texts: Iterable[str]) -> str:
    """List each text once: "16 or 32"."""
    return " or ".join(dict.fromkeys(texts))


def _loss_text(value: float) -> str:
    return f"{value:.4f}" if value < 100 else f"{value:.1e}"


def draw_tasks(results: Path, name: str, rows: pd.DataFrame) -> list[Path]:
    """Draw the losses and gates of a study of tasks.

    Args:
        results: folder of the CSV files.
        name: of the study.
        rows: its runs, of networks.

    Returns:
        the figures written, `<name>_<task>.png` and `<name>_<task>_gates.png`.
    """
    if has_one_core_per_task(rows):
        return []
    written = []
    titles = list(rows["title"].unique())
    points, gates = (read_frame(results / f"{name}_{kind}.csv") for kind in ("curves", "gates"))
    for title in titles:
        path = results / f"{name}_{file_slug(title, titles)}.png"
        task_points = points[points["title"] == title] if len(points) else points
        if _draw_curves(rows[rows["title"] == title], task_points, path):
            written.append(path)
        path = path.with_stem(f"{path.stem}_gates")
        if draw_unit_gates(title, gates, path, task_points):
            written.append(path)
    return written


def _draw_curves(rows: pd.DataFrame, points: pd.DataFrame, path: Path) -> bool:
    """Draw the losses of a task, unless there are too few points or too many cores."""
    if points.empty:
        return False
    runs = points.groupby([LABEL, "seed"], sort=False)
    if runs.size().max() < 3:
        return False  # before and after, which the table has
    if points[LABEL].nunique() > MAX_PANELS:
        return False
    ends = {
        (row[LABEL], row["seed"]): "diverged" if row["diverged_at"] else row["ended"]
        for row in rows.to_dict("records")
    }
    curves: dict[str, list[Line]] = {}
    for (label, seed), run in runs:
        losses = numbers(run, "update").tolist(), numbers(run, "loss").tolist()
        curves.setdefault(label, []).append(Line(*losses, ends.get((label, seed), "")))
    baseline = rows["baseline"].iloc[0]
    plot_losses(rows["title"].iloc[0], curves, float(baseline) if baseline else None, path)
    return True


def plot_losses(
    title: str, curves: Mapping[str, Sequence[Line]], baseline: float | None, path: Path
) -> None:
    """Draw a panel for each core, a line for each seed, and the loss without memory.

    Where there are few cores, the lines of the others are drawn behind them in grey. A dot ends
    the line of a run that ended before its budget, a cross that of one that diverged; those are
    counted in the panel, too, for they may have no line.

    Args:
        title: the task.
        curves: the runs of each core.
        baseline: the loss of the best prediction without memory, where it is known.
        path: the PNG to write.
    """
    columns = min(COLUMNS, len(curves))
    rows = -(-len(curves) // columns)
    size = 2.5 * columns + 0.2, 1.9 * rows + 1.2
    with new_figure(path, size, font_size=9, title_size=10) as figure:
        panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).ravel()
        lines = [line for runs in curves.values() for line in runs]
        low, high, scale = loss_limits(lines, baseline)
        has_others = rows == 1 and len(curves) > 1
        for axes, core in zip(panels, in_core_order(curves), strict=False):
            if baseline is not None:
                axes.axhline(baseline, color=MUTED, lw=0.9, ls=(0, (4, 3)))
            for other in lines if has_others else ():
                axes.plot(other.updates, other.losses, color=MUTED, lw=0.7, alpha=0.3)
            axes.set_yscale(scale)
            axes.set_ylim(low, high)
            _plot_runs(axes, core, curves[core])
            axes.set_title(core, loc="left")
            axes.xaxis.set_major_formatter(FuncFormatter(steps_label))
            axes.xaxis.set_major_locator(MaxNLocator(4))
            axes.set_xlabel("updates")
            axes.set_ylabel(loss_words(title))
        for axes in panels[len(curves) :]:
            axes.remove()
        label_all(panels[: len(curves)])
        figure.suptitle(title_words(title), x=0.01, ha="left", fontsize=11)
        handles = [Line2D([], [], color=INK, lw=1.4, label="a seed, on held-out sequences")]
        if has_others:
            handles.append(Line2D([], [], color=MUTED, lw=0.9, alpha=0.5, label="the other cores"))
        if baseline is not None:
            words = "the best without memory"
            handles.append(Line2D([], [], color=MUTED, lw=0.9, ls=(0, (4, 3)), label=words))
        for end, words in ENDS.items():
            if any(line.end == end for line in lines):
                color, marker = (ALARM, "x") if end == "diverged" else (INK, END_MARKERS[end])
                handles.append(Line2D([], [], ls="", color=color, marker=marker, label=words))
        columns = _legend_columns([str(handle.get_label()) for handle in handles], columns, size[0])
        legend = figure.legend(handles=handles, loc="outside lower center", ncols=columns)
        widest = legend.get_window_extent().width / figure.dpi + 0.1
        figure.set_figwidth(max(size[0], widest))  # that of a single panel may be too small


def _legend_columns(labels: Sequence[str], most: int, width: float) -> int:
    """The most columns, in which a legend is read downwards, that fit a width in inches."""
    for columns in range(min(len(labels), most), 1, -1):
        lines = -(-len(labels) // columns)
        widest = [max(map(len, labels[k : k + lines])) for k in range(0, len(labels), lines)]
        if sum(widest) + len(widest) * HANDLE <= width * CHARACTERS:
            return columns
    return 1


def _plot_runs(axes: Axes, core: str, runs: Sequence[Line]) -> None:
    """Plot the runs of a core with their ends, and say what cannot be seen."""
    color = style(core).color
    low, high = axes.get_ylim()
    above = 0
    for updates, losses, end in runs:
        finite = [math.isfinite(loss) for loss in losses]
        shown = [loss for loss in losses if low <= loss <= high]
        is_line = len(losses) > 1 and bool(shown)
        if is_line:
            axes.plot(updates, losses, color=color, lw=1.4, alpha=0.8)
        if end in ENDS and any(finite):
            last = max(k for k, is_finite in enumerate(finite) if is_finite)
            if low <= losses[last] <= high:
                kind = {"color": ALARM, "marker": "x"} if end == "diverged" else {
                    "color": color, "marker": END_MARKERS[end], "mec": "white", "mew": 0.7
                }  # fmt: skip
                axes.plot(updates[last], losses[last], ls="", ms=5, zorder=4, **kind)
        above += end != "diverged" and not is_line
    counts = sum(run.end == "diverged" for run in runs), len(runs)
    say_diverged(axes, {"": counts})
    if above:
        words = f"{above} of {len(runs)} beyond the axis"
        axes.text(0.03, 0.9, words, transform=axes.transAxes, fontsize=9, color=ALARM)


def loss_limits(lines: Sequence[Line], baseline: float | None) -> tuple[float, float, str]:
    """Choose the lowest and the highest loss of a figure, and the scale between them.

    Losses of runs that diverged may not be finite, and do not count. Where no loss falls below the
    baseline, the differences are noise, which is not magnified.
    """
    finite = (loss for line in lines for loss in line.losses if math.isfinite(loss))
    lowest = min(finite, default=baseline or 0.0)
    margin = 0.0
    if baseline is None:
        highest = _highest_late_loss(lines, lowest)
    elif baseline > lowest:
        highest = baseline
    else:
        highest = _highest_late_loss(lines, lowest)
        lowest, margin = baseline, NOISE * highest
    if highest > LOG_FROM * lowest:
        return max(lowest / 2, 1e-6), 4 * highest, "log"
    margin = max(margin, 0.2 * (highest - lowest)) or 0.1
    return max(lowest - margin, 0.0), highest + margin, "linear"


def _highest_late_loss(lines: Sequence[Line], default: float) -> float:
    """Return the highest finite loss after the first updates."""
    begin = EARLY * max(line.updates[-1] for line in lines)
    late = [
        loss
        for line in lines
        for update, loss in zip(line.updates, line.losses, strict=True)
        if update >= begin and math.isfinite(loss)
    ]
    return max(late, default=default)
