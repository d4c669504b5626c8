"""Where cores did well and badly: their places in the committed results."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pandas as pd
from rendering import table

from rlgates.experiments.plots.titles import title_words
from rlgates.experiments.report.rows import TITLE, read_frame
from rlgates.experiments.studies import STUDIES
from rlgates.experiments.tasks import TASKS

NUM_COMPARED = 3  # a comparison of fewer cores gives no place


class Contest(NamedTuple):
    """Cores compared with the same settings.

    Attributes:
        study, title: which.
        metric: name of what was compared.
        medians: over the seeds by core, the best first; runs that reached the goal are equal.
        goal: the loss at which a run ends; NaN for none.
    """

    study: str
    title: str
    metric: str
    medians: pd.Series
    goal: float

    def text(self, core: str) -> str:
        """What a core reached, in words and a number."""
        median = self.medians[core]
        if math.isinf(median):
            return "diverged"
        return "solved" if median == self.goal else f"{self.metric} {median:.4g}"


@cache
def contests(results: Path) -> tuple[Contest, ...]:
    """The comparisons of all studies; of cores with options of their own there is none."""
    return tuple(_contests(results))


def _contests(results: Path) -> Iterator[Contest]:
    for study in STUDIES:
        frame = read_frame(results / f"{study}.csv")
        if frame.empty:
            continue
        for title, rows in frame[frame["variant"] == ""].groupby(TITLE, sort=False):
            metric, column, higher = _metric(rows.iloc[0])
            goal = float(rows["stop_loss"].iloc[0] or "nan") if column == "loss" else math.nan
            numbers = pd.to_numeric(rows[column], errors="coerce").where(rows["diverged_at"] == "")
            numbers = numbers.clip(lower=None if math.isnan(goal) else goal)
            worst = float("-inf") if higher else float("inf")
            medians = numbers.fillna(worst).groupby(rows["core"]).median()
            if len(medians) >= NUM_COMPARED:
                medians = medians.sort_values(ascending=not higher, kind="stable")
                yield Contest(study, str(title), metric, medians, goal)


def _metric(row: pd.Series) -> tuple[str, str, bool]:
    """What a row of results is judged by: its name, its column, and whether more is better."""
    if row["mean_return"]:
        return "return", "mean_return", True
    if row["success"]:
        return "success", "success", True
    task = TASKS.get(row["task"])
    # Results of earlier versions have a loss alone, and that of a run with a goal ends it.
    if task is None or not row["test"] or row["stop_loss"]:
        return "loss", "loss", False
    return task.metric, "test", task.higher_is_better


def standing(cores: set[str], results: Path) -> str:
    """The places of the best of some cores, as a table that begins where it did best."""
    rows = []
    for contest in contests(results):
        medians = contest.medians
        mine = [core for core in medians.index if core in cores]
        if not mine:
            continue
        core, first = mine[0], medians.index[0]
        place = 1 + int((medians != medians[core]).cumprod().sum())
        row = (
            f"[{contest.study}](../studies/{contest.study}.md): {title_words(contest.title)}",
            f"`{core}`",
            contest.text(core),
            f"{place} of {len(medians)}",
            "" if place == 1 else f"`{first}` {contest.text(first)}",
        )
        rows.append((place / len(medians), row))
    if not rows:
        return "None yet."
    words = (
        "Where it did well and badly: the place of the best of these cores in each comparison, by "
        "the median over seeds; cores that solve it share first place. Neighbouring places often "
        "have overlapping intervals, which the tables below show."
    )
    heads = ("comparison", "core", "result", "place", "first")
    return f"{words}\n\n{table(heads, [row for _, row in sorted(rows, key=lambda item: item[0])])}"
