"""Agents that are judged by their return: table and learning curves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from rlgates.experiments.analysis.stats import Floats, iqm, median_reached
from rlgates.experiments.plots.curves import Curve, draw_panels
from rlgates.experiments.report.rows import (
    LABEL,
    iqm_text,
    markdown,
    numbers,
    provenance,
    read_frame,
    returns_of,
    seeds_text,
)
from rlgates.experiments.runs.text import steps_text, time_text

SHARES = -15.0, 1.5  # of the best return; of figures with others the axis has the returns


def read_return_curves(
    rows: pd.DataFrame, path: Path, shares: bool = True
) -> dict[str, list[Curve]]:
    """Read the evaluations of agents, by title.

    Args:
        rows: of the runs.
        path: the table of their evaluations.
        shares: 0 for the worst and 1 for the best return; else the returns, and the lowest of them
            for nan.
    """
    points = read_frame(path)
    panels: dict[str, list[Curve]] = {}
    points = points[points["mean_return"] != ""]  # the others belong to agents with successes
    if points.empty:
        return panels
    for title, row in rows.drop_duplicates("title").set_index("title").iterrows():
        here = points[points["title"] == title]
        lowest = np.fmin.reduce(numbers(here, "mean_return"))
        for (core, seed), run in here.groupby([LABEL, "seed"], sort=False):
            returns = numbers(run, "mean_return")
            returns = return_share(row, returns) if shares else np.nan_to_num(returns, nan=lowest)
            curve = Curve(core, int(seed), numbers(run, "steps"), returns)
            panels.setdefault(str(title), []).append(curve)
    return panels


def return_share(row: pd.Series, returns: Floats) -> Floats:
    """Returns in the environment of a row, 0 for its worst and 1 for its best; 0 for nan."""
    best, worst = float(row["best_return"]), float(row.get("worst_return") or 0.0)
    return np.nan_to_num((returns - worst) / (best - worst))


def return_table(rows: pd.DataFrame) -> str:
    """Format a line per environment and agent: return, how many learned, when, and the time.

    Where published returns are known they stand beside the plain mean over the seeds. Where no
    return is the goal, but episodes may succeed (as with a reward that distracts from another),
    the success stands beside the return.
    """
    published = (rows["published"] != "").any()
    known = bool((rows["best"] != "").any())  # not of runs without curves
    heads = ["environment", "agent", "return at the end", *["best"] * known]
    has_success = bool(((rows["success"] != "") & (rows["success_return"] == "")).any())
    heads += ["success"] * has_success
    heads += ["plain mean", "published"] * bool(published)
    goals = numbers(rows.drop_duplicates("title"), "success_return")
    has_goals = not np.isnan(goals).all()
    heads += [*["learned", "first there"] * has_goals, "CPU time per run"]
    lines = []
    for (title, agent), group in rows.groupby(["title", LABEL], sort=False):
        ends = returns_of(group)
        seconds = float(np.median(numbers(group, "seconds")))
        end = iqm_text(ends, _short)
        best = numbers(group[group["best"] != ""], "best")
        top = [_short(float(iqm(best))) if len(best) else ""] * known
        beside = [_success(group)] * has_success
        beside += [f"{ends.mean():.4g}", group.iloc[0]["published"]] * bool(published)
        reached = _reached(group, ends) if has_goals else []
        lines.append([title, f"`{agent}`", end, *top, *beside, *reached, time_text(seconds)])
    over = seeds_text(rows)
    if rows["seed"].nunique() > 1:
        over = (
            f"interquartile mean over {over} (or those available), with its 95 % bootstrap interval"
        )
    learned = ""
    if has_goals:
        texts = [f"{goal:g}" for goal in goals if not np.isnan(goal)]
        goal = texts[0] if len({*texts}) == 1 else f"{', '.join(texts)} (one for each environment)"
        learned = (
            f"; learned: how many runs were at {goal} or above at the end. First there: median "
            "number of steps at which an evaluation first reached it, and how many runs did"
        )
    episodes = " or ".join(sorted(rows["episodes"].unique(), key=int))
    note = (
        f"\nMean return of {episodes} fresh episodes in the last evaluation: "
        f"{over}{'; best: that of the best evaluation' * known}"
        f"{'; success: the same mean, of the share of these episodes that succeeded' * has_success}"
        f"{learned}. "
        "CPU time: median, one thread per run, evaluations included. "
        f"{provenance(rows)}.\n"
    )
    return markdown(heads, lines) + note


def _reached(rows: pd.DataFrame, ends: Floats) -> list[str]:
    """How many runs ended at the goal, and when they first got there; empty without a goal."""
    goals = numbers(rows, "success_return")
    if np.isnan(goals).all():
        return ["", ""]
    return [f"{(ends >= goals).sum()} of {len(ends)}", _first_there(rows)]


def _first_there(rows: pd.DataFrame) -> str:
    """When runs first got to the goal, and how many did.

    Where half of them or more did not, the median is beyond the shortest of these.
    """
    goals = numbers(rows, "steps_to_goal")
    median, count = median_reached([None if np.isnan(x) else float(x) for x in goals])
    if not count:
        return "never"
    if median is not None:
        return f"{steps_text(median)} ({count})"
    # A run that diverged does not get there, however long it is.
    lengths = np.where(rows["ended"] == "diverged", numbers(rows, "budget"), numbers(rows, "steps"))
    return f"> {steps_text(lengths[np.isnan(goals)].min())} ({count})"


def _success(rows: pd.DataFrame) -> str:
    """Success at the end; empty where a return is the goal, or nothing counts as a success."""
    success = np.where(rows["ended"] == "diverged", 0.0, numbers(rows, "success"))
    if np.isnan(success).any() or (rows["success_return"] != "").any():
        return ""
    return iqm_text(success)


def _short(value: float) -> str:
    """Three digits, without an exponent for thousands."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def draw_returns(results: Path, name: str, rows: pd.DataFrame) -> list[Path]:
    """Draw the return over training, a panel per environment; nothing without evaluations in it.

    As a share of the best return, where the study says which that is for each environment, and none
    is far beyond.

    Returns:
        `<name>.png`; `<name>_returns.png` where that is of other agents, with success rates.
    """
    curves = results / f"{name}_curves.csv"
    panels = read_return_curves(rows, curves, shares=False)
    if not panels or max(len(curve.steps) for curves in panels.values() for curve in curves) < 2:
        return []
    has_successes = bool((read_frame(curves)["success"] != "").any())
    path = results / f"{name}{'_returns' * has_successes}.png"
    label, ceiling = "return", None
    if not np.isnan(numbers(rows, "best_return")).any():
        of_best = read_return_curves(rows, curves)
        shares = np.concatenate([curve.success for panel in of_best.values() for curve in panel])
        if SHARES[0] <= shares.min() and shares.max() <= SHARES[1]:
            panels, label, ceiling = of_best, "return as a share of the best", "the best return"
    draw_panels(panels, path, {}, label, ceiling=ceiling)
    return [path]
