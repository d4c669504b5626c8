"""How the cores of a study stand against one of them, seed for seed: tables and profiles."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from rlgates.experiments.comparisons import (
    Estimate,
    paired_difference,
    performance_profile,
    probability_of_improvement,
    steps_to_goal,
)
from rlgates.experiments.figures import LOOK, save, styles
from rlgates.experiments.files import write_atomically
from rlgates.experiments.logs import column
from rlgates.experiments.tables import Row, heading, made_by, markdown
from rlgates.experiments.text import steps_text
from rlgates.experiments.train import GOAL
from rlgates.tasks import TASKS

BASE = "lstm"
FEWEST = 3  # seeds, below which nothing is compared
THRESHOLDS = np.linspace(0, 1, 101)


def write_against(results: Path, name: str, rows: Sequence[Row]) -> list[Path]:
    """`<name>_against.md`, and `<name>_profile.png` of agents; what was written.

    Cores with fewer than `FEWEST` seeds on a task are left out of it, and tasks without `BASE`.
    """
    titles = list(dict.fromkeys(map(heading, rows)))
    parts = [part for t in titles if (part := _table([r for r in rows if heading(r) == t]))]
    if not parts:
        return []
    path, picture = results / f"{name}_against.md", results / f"{name}_profile.png"
    note = (
        f"Better: how often a run of the core is better than one of `{BASE}`, ties counted as a "
        "half. Gain: mean difference of runs with the same seed, above 0 where the core is the "
        "better one; runs that diverged have none, and are the worst. Steps: mean up to the budget "
        "until the goal was reached; of runs that never got there no more is known than that they "
        f"took longer. All with 95 % bootstrap intervals over seeds. {made_by(rows)}.\n"
    )
    write_atomically(path, ("\n".join(parts) + "\n" + note).encode())
    return [path, picture] if _draw_profile(rows, picture) else [path]


def score(row: Row) -> float:
    """Success of an agent, or the metric of a task on its test set; more is better."""
    if row.get("success"):
        return float(row["success"])
    if not row.get("task"):  # of an earlier version, which had no test set
        return -float(row["loss"])
    sign = 1 if TASKS[row["task"]].higher_is_better else -1
    return sign * float(row["test"] or "nan")


def steps(row: Row) -> tuple[float, bool]:
    """Steps or updates of a run, and whether it had reached its goal then.

    One that diverged never gets there, however long.
    """
    if row.get("success"):
        if reached := row[f"steps_to_{GOAL}"]:
            return float(reached), True
        return float(row["budget" if row.get("ended") == "diverged" else "steps"]), False
    if row.get("diverged_at"):
        return float(row["updates"] or math.inf), False
    return float(row.get("made") or row["updates"]), row.get("ended") == "solved"


def _table(rows: Sequence[Row]) -> str:
    """Of one task or environment; empty if nothing can be compared."""
    cores = [core for core in dict.fromkeys(row["core"] for row in rows) if core != BASE]
    by_core = {
        core: {row["seed"]: row for row in rows if row["core"] == core} for core in (BASE, *cores)
    }
    cores = [core for core in cores if len(by_core[core]) >= FEWEST]
    if len(by_core[BASE]) < FEWEST or not cores:
        return ""
    goal = any(row.get("stop_loss") or row.get(f"steps_to_{GOAL}") for row in rows)
    first = rows[0]
    what = "success" if first.get("success") else first.get("metric") or "loss"
    heads = [heading(first), f"better than `{BASE}`", f"gain in {what}", *["steps"] * goal]
    lines = []
    compared = [row for row in rows if row["core"] in (BASE, *cores)]
    horizon = max((n for n, _ in map(steps, compared) if n < math.inf), default=1.0) if goal else 0
    for core in (BASE, *cores):
        cells = [f"`{core}`"]
        if core == BASE:
            cells += ["", ""]
        else:
            cells += _compared(by_core[core], by_core[BASE])
        lines.append([*cells, *([_waited(by_core[core], horizon)] if goal else [])])
    return markdown(heads, lines)


def _compared(ours: dict[str, Row], theirs: dict[str, Row]) -> list[str]:
    figures = [{seed: score(row) for seed, row in runs.items()} for runs in (ours, theirs)]
    # A run that came to no number is worse than all that did.
    ranked = [[value if np.isfinite(value) else -np.inf for value in f.values()] for f in figures]
    chance = probability_of_improvement([(ranked[0], ranked[1])])
    one, other = ({seed for seed, value in f.items() if np.isfinite(value)} for f in figures)
    both = sorted(one & other)
    if not both:
        return [_interval(chance), ""]
    gained = _interval(paired_difference(*([f[seed] for seed in both] for f in figures)), "+")
    fewer = f", {len(both)} seeds" if len(both) < len(ours.keys() & theirs.keys()) else ""
    return [_interval(chance), gained + fewer]


def _waited(runs: dict[str, Row], horizon: float) -> str:
    times, reached = zip(*map(steps, runs.values()), strict=True)
    waiting = steps_to_goal(np.minimum(times, horizon), reached, horizon)
    value, low, high = map(steps_text, waiting.mean)
    return f"{value} [{low}, {high}], {waiting.reached} of {len(runs)}"


def _interval(estimate: Estimate, sign: str = "") -> str:
    return f"{estimate.value:{sign}.3g} [{estimate.low:{sign}.3g}, {estimate.high:{sign}.3g}]"


def _draw_profile(rows: Sequence[Row], path: Path) -> bool:
    """The share of runs above each success, over the environments that all cores have."""
    rows = [row for row in rows if row.get("success")]
    titles = list(dict.fromkeys(map(heading, rows)))
    groups = {
        core: [
            column([r for r in rows if (heading(r), r["core"]) == (title, core)], "success")
            for title in titles
        ]
        for core in dict.fromkeys(row["core"] for row in rows)
    }
    whole = {core: found for core, found in groups.items() if all(map(len, found))}
    if len(whole) < 2:
        return False
    with rc_context(LOOK):
        figure = Figure(figsize=(7, 4.2), layout="constrained")
        axes = figure.add_subplot()
        for core, (color, dash) in styles(list(groups)).items():
            if core not in whole:
                continue
            profile = performance_profile(whole[core], THRESHOLDS)
            axes.fill_between(THRESHOLDS, profile.low, profile.high, color=color, alpha=0.15, lw=0)
            axes.plot(THRESHOLDS, profile.value, color=color, ls=dash, lw=2.2, label=core)
        axes.set_title(f"{len(titles)} environment{'s' * (len(titles) > 1)}", loc="left")
        axes.set_xlabel("success τ on fresh episodes")
        axes.set_ylabel("share of runs above τ")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(PercentFormatter(xmax=1))
        figure.legend(loc="outside right upper")
        save(figure, path)
    return True
