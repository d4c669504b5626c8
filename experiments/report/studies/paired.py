"""Paired comparisons: each core of a study against one of them, and performance profiles."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from rlgates.atomic import write_atomically
from rlgates.experiments.analysis.stats import (
    Estimate,
    Floats,
    p_gained,
    p_greater,
    paired_difference,
    performance_profile,
    probability_of_improvement,
    steps_to_goal,
)
from rlgates.experiments.configs.agent import SUCCESS_THRESHOLD
from rlgates.experiments.plots.curves import (
    BAND,
    LEGEND_COLUMNS_PER_PANEL,
    legend_note,
    new_figure,
)
from rlgates.experiments.plots.styles import in_core_order, style
from rlgates.experiments.plots.titles import title_words
from rlgates.experiments.report.rows import TITLE, markdown, numbers, provenance
from rlgates.experiments.runs.files import Row
from rlgates.experiments.runs.text import steps_text
from rlgates.experiments.tasks import TASKS

BASE = "lstm"
MIN_SEEDS = 3  # below which nothing is compared
STEPS_COLUMN = f"steps_to_{SUCCESS_THRESHOLD}"
THRESHOLDS = np.linspace(0, 1, 101)


def paired_tables(rows: pd.DataFrame) -> str:
    """Tabulate the comparisons, task by task; empty if there is nothing to compare.

    Cores with fewer than `MIN_SEEDS` seeds on a task are left out of its table, and tasks
    without `BASE` have none.
    """
    tables = [table for _, group in rows.groupby(TITLE, sort=False) if (table := _table(group))]
    if not tables:
        return ""
    note = (
        f"Better: how often a run of the core is better than one of `{BASE}`, ties counted as a "
        "half. Gain: mean difference of runs with the same seed, above 0 where the core is better; "
        "runs that diverged have no gain, and rank last. Steps: mean number until the goal was "
        "reached, cut off at the budget: runs that never reached it would only take longer. "
        "In brackets: 95 % bootstrap intervals over seeds. They are too narrow with "
        "few seeds; rely on p: how often chance alone would set the cores this far apart "
        "(two-sided, over all permutations of runs or sign flips of gains). With five seeds of "
        "each core, p is at least 0.008 and 0.062; with ten, 1.1e-05 and 0.002. "
        f"{provenance(rows)}.\n"
    )
    return "\n".join(tables) + "\n" + note


def score(row: Row) -> float:
    """Score a run so that more is better: an agent's success, or the metric on the test set.

    A run that diverged has none (nan), whatever its weights reached before.
    """
    if row["diverged_at"] or row["ended"] == "diverged":
        return math.nan
    if row["success"]:
        return float(row["success"])
    if not row["task"]:  # the first studies were made before tasks had test sets
        return -float(row["loss"])
    sign = 1 if TASKS[row["task"]].higher_is_better else -1
    return sign * float(row["test"] or "nan")


def steps_and_success(row: Row) -> tuple[float, bool]:
    """Return the steps or updates of a run, and whether it had then reached its goal.

    A run that diverged never reaches it, whatever it had reached before.
    """
    if row["success"]:
        if row["ended"] == "diverged":
            return float(row["budget"]), False
        reached = row.get(STEPS_COLUMN)
        return float(reached or row["steps"]), bool(reached)
    if row["diverged_at"]:
        return float(row["updates"] or math.inf), False
    return float(row["made"] or row["updates"]), row["ended"] == "goal"


def _table(rows: pd.DataFrame) -> str:
    """Compare the cores of one task or environment; empty if there is nothing to compare."""
    groups = {core: group.to_dict("records") for core, group in rows.groupby("core", sort=False)}
    by_seed = {core: {row["seed"]: row for row in group} for core, group in groups.items()}
    by_seed = {core: runs for core, runs in by_seed.items() if len(runs) >= MIN_SEEDS}
    base = by_seed.pop(BASE, None)
    if base is None or not by_seed:
        return ""
    goals = rows.reindex(columns=["stop_loss", STEPS_COLUMN], fill_value="")
    has_goal = bool((goals != "").to_numpy().any())
    first = rows.iloc[0]
    measure = "success" if first["success"] else first["metric"] or "loss"
    heads = [
        title_words(first[TITLE]),
        f"better than `{BASE}`",
        f"gain in {measure}",
        *["steps"] * has_goal,
    ]
    compared = [row for runs in (base, *by_seed.values()) for row in runs.values()]
    max_steps = 0.0
    if has_goal:
        steps = [steps for steps, _ in map(steps_and_success, compared) if steps < math.inf]
        max_steps = max(steps, default=1.0)
    lines = []
    for core, runs in {BASE: base, **by_seed}.items():
        cells = ["", ""] if core == BASE else _comparison_cells(runs, base)
        waiting = [_steps_cell(runs, max_steps)] if has_goal else []
        lines.append([f"`{core}`", *cells, *waiting])
    return markdown(heads, lines)


def _comparison_cells(runs: Mapping[str, Row], base: Mapping[str, Row]) -> list[str]:
    """Return the probability of improvement and the gain of a core over the base."""
    scores = [{seed: score(row) for seed, row in group.items()} for group in (runs, base)]
    # A run without a finite score is worse than all others.
    ranked = [[x if np.isfinite(x) else -np.inf for x in group.values()] for group in scores]
    chance = probability_of_improvement([(ranked[0], ranked[1])])
    better = f"{_interval(chance)}, p = {p_greater(*ranked, two_sided=True):.2g}"
    finite = [{seed for seed, x in group.items() if np.isfinite(x)} for group in scores]
    seeds = sorted(finite[0] & finite[1])
    if not seeds:
        return [better, ""]
    ours, theirs = (np.array([group[seed] for seed in seeds]) for group in scores)
    gain = paired_difference(ours, theirs)
    p = p_gained(ours - theirs, two_sided=True)
    few = f", {len(seeds)} seed{'s' * (len(seeds) > 1)}"
    fewer = few if len(seeds) < len(runs.keys() & base.keys()) else ""
    return [better, f"{_interval(gain, '+')}, p = {p:.2g}{fewer}"]


def _steps_cell(runs: Mapping[str, Row], max_steps: float) -> str:
    times, reached = zip(*map(steps_and_success, runs.values()), strict=True)
    estimate = steps_to_goal(np.minimum(times, max_steps), reached, max_steps)
    value, low, high = map(steps_text, estimate)
    return f"{value} [{low}, {high}], {sum(reached)} of {len(runs)}"


def _interval(estimate: Estimate, sign: str = "") -> str:
    return f"{estimate.value:{sign}.3g} [{estimate.low:{sign}.3g}, {estimate.high:{sign}.3g}]"


def write_paired(results: Path, name: str, rows: pd.DataFrame) -> list[Path]:
    """Write `<name>_against.md`, and `<name>_profile.png` of agents.

    Returns:
        the files written; none if there is nothing to compare.
    """
    text = paired_tables(rows)
    if not text:
        return []
    table, profile = results / f"{name}_against.md", results / f"{name}_profile.png"
    write_atomically(table, text.encode())
    return [table, profile] if draw_profile(rows, profile) else [table]


def draw_profile(rows: pd.DataFrame, path: Path) -> bool:
    """Draw the profile of each core that has runs in all environments.

    Args:
        rows: the runs of a study; those without a success rate are ignored.
        path: the PNG to write.

    Returns:
        whether there were two such cores or more, and so a figure.
    """
    rows = rows[rows["success"] != ""]
    titles, cores = list(rows[TITLE].unique()), list(rows["core"].unique())
    groups = {
        key: numbers(group, "success") for key, group in rows.groupby([TITLE, "core"], sort=False)
    }
    complete = [core for core in cores if all((title, core) in groups for title in titles)]
    if len(complete) < 2:
        return False
    with new_figure(path, (7, 4.8)) as figure:
        axes = figure.add_subplot()
        for core in in_core_order(complete):
            plot_profile(axes, core, [groups[title, core] for title in titles], alpha=0.15)
        words = title_words(titles[0]) if len(titles) == 1 else f"{len(titles)} environments"
        axes.set_title(f"Performance profile: {words}", loc="left")
        label_profile(axes, "success τ on fresh episodes")
        note = legend_note(figure, "line: share over all seeds and environments", BAND)
        figure.legend(
            loc="outside lower center",
            ncols=min(len(complete), LEGEND_COLUMNS_PER_PANEL),
            title=note,
            title_fontsize=9,
        )
    return True


def plot_profile(
    axes: Axes, core: str, groups: Sequence[Floats], width: float = 2.2, alpha: float = 0.0
) -> None:
    """Plot the share of a core's runs above each score, from those of each task.

    Args:
        axes: to plot into.
        core: its name.
        groups: scores (seeds,) of the runs of each task, in [0, 1].
        width: of the line.
        alpha: of the band; 0: none.
    """
    color, dash, _ = style(core)
    profile = performance_profile(groups, THRESHOLDS)
    if alpha:
        axes.fill_between(THRESHOLDS, profile.low, profile.high, color=color, alpha=alpha, lw=0)
    axes.plot(THRESHOLDS, profile.value, color=color, ls=dash, lw=width, label=core)


def label_profile(axes: Axes, words: str) -> None:
    """Label the axes of a profile; `words` say what is above τ."""
    axes.set_xlabel(words)
    axes.set_ylabel("share of runs above τ")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(PercentFormatter(xmax=1))
