"""Tests of what runs learned: who solves a task, who is sooner, who is better."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from rlgates.experiments import against
from rlgates.experiments.claims.claim import OPEN, OverRuns, Ruling, Runs, decided, seen
from rlgates.experiments.comparisons import (
    p_gained,
    p_greater,
    paired_difference,
    probability_of_improvement,
)
from rlgates.experiments.logs import column
from rlgates.experiments.tables import Row
from rlgates.tasks import TASKS

AT_BASELINE = 0.95  # of the loss that can be had without memory


def steps(row: Row) -> float:
    """Updates or environment steps until the task was solved; infinity where it was not."""
    made, reached = against.steps(row)
    return made if reached else math.inf


@dataclass(frozen=True)
class Solves(OverRuns):
    """A core solves a task on every seed, or (`never`) on none.

    Attributes:
        eventually: the paper says that it is solved, not in how many updates; then the end of our
            budget contradicts nothing.
    """

    where: Runs
    never: bool = False
    eventually: bool = False

    @property
    def parts(self) -> tuple[str, str]:
        return f"{'never' if self.never else 'always'} solved:", str(self.where)

    def runs(self) -> Sequence[Runs]:
        return (self.where,)

    def compare(self, groups: Sequence[list[Row]]) -> tuple[Ruling, str]:
        (rows,) = groups
        times = [time for time in map(steps, rows) if time < math.inf]
        found = f"{self.where.core} solves it on {len(times)} of {len(rows)}"
        if times:
            found += f", after {np.median(times):,.0f}"
        every, none = len(times) == len(rows), not times
        if self.never:
            every, none = none, every
        elif none and self.eventually:
            share = np.nanmedian(column(rows, "loss") / column(rows, "baseline"))
            found += f", and ends at a median of {share:.2f} of the loss without memory"
            return OPEN, found
        return seen(every, none), found


@dataclass(frozen=True)
class StaysAtBaseline(OverRuns):
    """A core stays at what can be had without memory, on every seed."""

    where: Runs

    @property
    def parts(self) -> tuple[str, str]:
        return f"above {AT_BASELINE:g} of the loss without memory:", str(self.where)

    def runs(self) -> Sequence[Runs]:
        return (self.where,)

    def compare(self, groups: Sequence[list[Row]]) -> tuple[Ruling, str]:
        (rows,) = groups
        diverged = sum(bool(row["diverged_at"]) for row in rows)
        if diverged:
            return OPEN, f"{self.where.core} diverges on {diverged} of {len(rows)}"
        shares = column(rows, "loss") / column(rows, "baseline")
        there = shares > AT_BASELINE
        found = f"{self.where.core} ends at {shares.min():.2f} to {shares.max():.2f} of it"
        return seen(bool(there.all()), not there.any()), found


@dataclass(frozen=True)
class Sooner(OverRuns):
    """A core solves a task in fewer steps than another; runs that do not solve it are last."""

    where: Runs
    than: Runs

    @property
    def parts(self) -> tuple[str, str]:
        return f"{self.where} is solved sooner than with", _other(self.where, self.than)

    def runs(self) -> Sequence[Runs]:
        return self.where, self.than

    def compare(self, groups: Sequence[list[Row]]) -> tuple[Ruling, str]:
        ours, theirs = ([-steps(row) for row in rows] for rows in groups)
        chance = probability_of_improvement([(ours, theirs)])
        found = (
            f"P({self.where.core} sooner than {_name(self.where, self.than)}) = "
            f"{chance.value:.2f} [{chance.low:.2f}, {chance.high:.2f}]"
        )
        return decided(p_greater(ours, theirs), p_greater(theirs, ours)), found


@dataclass(frozen=True)
class Better(OverRuns):
    """A core is better than another, by more than `margin`, seed for seed.

    Attributes:
        column: of the tables: success, or the figure of the task on its test set.
        margin: in the unit of the column.
    """

    where: Runs
    than: Runs
    column: Literal["success", "test"] = "success"
    margin: float = 0.0

    @property
    def parts(self) -> tuple[str, str]:
        by = f" by more than {self.margin:g}" if self.margin > 0 else ""
        by = f", or at most {-self.margin:g} worse," if self.margin < 0 else by
        what = "better test figure" if self.column == "test" else "higher success"
        head = f"{self.where}: a {what}{by} than with"
        return head, _other(self.where, self.than)

    def runs(self) -> Sequence[Runs]:
        return self.where, self.than

    def compare(self, groups: Sequence[list[Row]]) -> tuple[Ruling, str]:
        both = {row["seed"] for row in groups[0]} & {row["seed"] for row in groups[1]}
        if not both:
            return OPEN, "no seed of both"
        kept = [[row for row in rows if row["seed"] in both] for rows in groups]
        ours, theirs = (column(rows, self.column) for rows in kept)
        names = self.where.core, _name(self.where, self.than)
        for name, figures in zip(names, (ours, theirs), strict=True):
            missing = np.sum(~np.isfinite(figures))
            if missing:
                return OPEN, f"{name} has no figure on {missing} of {len(figures)}"
        gained = paired_difference(ours, theirs)
        found = (
            f"{names[0]} {np.median(ours):.4g}, {names[1]} {np.median(theirs):.4g}: "
            f"difference {gained.value:.3g}"
        )
        if len(both) > 1:
            found += f" [{gained.low:.3g}, {gained.high:.3g}]"
        more = self.column == "success" or TASKS[groups[0][0]["task"]].higher_is_better
        above = (ours - theirs if more else theirs - ours) - self.margin
        return decided(p_gained(above), p_gained(-above)), found


def _name(one: Runs, other: Runs) -> str:
    """The core, or what else tells the other runs from these."""
    if other.variant != one.variant:
        return f"{other.core} ({other.variant or 'whole'})"
    return other.core if other.title == one.title else f"{other.core} on {other.title}"


def _other(one: Runs, other: Runs) -> str:
    name = _name(one, other)
    return name.replace(other.core, f"`{other.core}`", 1)
