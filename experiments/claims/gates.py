"""Tests of how training moves forget gates, out of the tables of gates before and after."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from scipy.stats import wasserstein_distance

from rlgates.experiments.claims.claim import OverRuns, Ruling, Runs, decided
from rlgates.experiments.comparisons import p_greater, probability_of_improvement
from rlgates.experiments.logs import column
from rlgates.experiments.stats import Floats
from rlgates.experiments.tables import Row

Measure = Literal["moved", "shortest", "longest", "change"]
WORDS: dict[Measure, str] = {
    "moved": "how far the gates of the units move in training (distance of their histograms)",
    "shortest": "the shortest timescale of a unit after training",
    "longest": "the longest timescale of a unit after training",
    "change": "the change of the mean timescale in training",
}


@dataclass(frozen=True)
class Moves(OverRuns):
    """Something about the gates is larger with one core than with another, by some factor.

    Attributes:
        where, than: cores.
        measure: what, see `WORDS`.
        factor: by which it is larger.
    """

    where: Runs
    than: Runs
    measure: Measure
    factor: float = 1.0
    end: ClassVar[str] = "_gates"

    @property
    def parts(self) -> tuple[str, str]:
        times = f"more than {self.factor:g} times " if self.factor != 1 else ""
        head = f"{WORDS[self.measure]} is {times}greater with {self.where} than with"
        variant = f" ({self.than.variant})" if self.than.variant else ""
        return head, f"`{self.than.core}`{variant}"

    def runs(self) -> Sequence[Runs]:
        return self.where, self.than

    def compare(self, groups: Sequence[list[Row]]) -> tuple[Ruling, str]:
        ours, theirs = (self._values(rows) for rows in groups)
        chance = probability_of_improvement([(ours, self.factor * theirs)])
        found = (
            f"{self.where.core} {np.median(ours):.3g}, {self.than.core} {np.median(theirs):.3g} "
            f"(P = {chance.value:.2f} [{chance.low:.2f}, {chance.high:.2f}])"
        )
        theirs = self.factor * theirs
        return decided(p_greater(ours, theirs), p_greater(theirs, ours)), found

    def _values(self, rows: Sequence[Row]) -> Floats:
        """The measure of each seed."""
        found = []
        for seed in dict.fromkeys(row["seed"] for row in rows):
            units = [row for row in rows if row["seed"] == seed]
            before, after = (column(units, f"gate_{when}") for when in ("before", "after"))
            started, ended = (column(units, f"timescale_{when}") for when in ("before", "after"))
            values: dict[Measure, float] = {
                "moved": float(wasserstein_distance(before, after)),
                "shortest": float(ended.min()),
                "longest": float(ended.max()),
                "change": float(ended.mean() - started.mean()),
            }
            found.append(values[self.measure])
        return np.array(found)
