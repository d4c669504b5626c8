"""Tests of what runs learned: which solve a task, sooner or better, and how their gates move."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np
import pandas as pd
from scipy.stats import binom, wasserstein_distance

from rlgates.experiments.analysis.stats import (
    Floats,
    p_gained,
    p_greater,
    paired_difference,
    probability_of_improvement,
)
from rlgates.experiments.report.claims.claim import (
    LEVEL,
    OPEN,
    All,
    Ruling,
    RunGroup,
    RunTest,
    Test,
    ruling_from_p,
)
from rlgates.experiments.report.rows import numbers, test_figures
from rlgates.experiments.report.studies.paired import steps_and_success
from rlgates.experiments.tasks import TASKS

AT_BASELINE = 0.95  # of the loss without memory
IMAGES = 10_000  # of the test sets of MNIST and of CIFAR-10
SELDOM = 0.1  # how often what never happens may happen by accident
Column = Literal["success", "test", "test_perplexity_rare", "test_perplexity_above_100"]
Measure = Literal["moved", "shortest", "longest", "change"]
MEASURE_WORDS: dict[Measure, str] = {
    "moved": "how far the gates of the units move in training (distance of their histograms)",
    "shortest": "the shortest timescale of a unit after training",
    "longest": "the longest timescale of a unit after training",
    "change": "the change in training of the mean timescale of the forget biases",
}


def steps_to_solve(rows: pd.DataFrame) -> list[float]:
    """Return each run's updates or environment steps until it solved the task, or infinity."""
    runs = map(steps_and_success, rows.to_dict("records"))
    return [steps if solved else math.inf for steps, solved in runs]


def ruling_from_count(count: int, runs: int, never: bool = False) -> Ruling:
    """Rule whether something happens, or (`never`) does not, in most runs.

    It happens if so many runs are too many for an accident (three of five: p = 0.009 at `SELDOM`),
    and does not if they are too few for one run in two (none of five: p = 0.03). Of many runs a
    number may be both (eight of thirty), which rules nothing.
    """
    happens = float(binom.sf(count - 1, runs, SELDOM))
    fails = float(binom.cdf(count, runs, 0.5))
    if max(happens, fails) <= LEVEL:
        return OPEN
    return ruling_from_p(fails, happens) if never else ruling_from_p(happens, fails)


@dataclass(frozen=True)
class CountTest(RunTest):
    """Something happens to the runs of a core, or (`never`) does not; see `ruling_from_count`."""

    where: RunGroup
    never: bool = field(default=False, kw_only=True)

    @abstractmethod
    def happens(self, runs: pd.DataFrame) -> Sequence[bool]:
        """Tell to which runs it happens."""

    def rule(self, runs: pd.DataFrame) -> Ruling:
        """Rule by how many these are."""
        return ruling_from_count(sum(self.happens(runs)), len(runs), self.never)

    def foregone(self, rows: Sequence[pd.DataFrame], missing: int) -> Ruling:
        (runs,) = rows
        count, total = sum(self.happens(runs)), len(runs) + missing
        ends = [ruling_from_count(count + more, total, self.never) for more in range(missing + 1)]
        if len({end.outcome for end in ends}) > 1:
            return OPEN
        return max(ends, key=lambda end: end.p_false)


@dataclass(frozen=True)
class Solves(CountTest):
    """A core solves a task, or (`never`) does not.

    Attributes:
        eventually: the paper says that it is solved, not in how many updates; then the end of our
            budget contradicts nothing.
    """

    eventually: bool = False

    @property
    def parts(self) -> tuple[str, str]:
        return f"{'not ' if self.never else ''}solved:", str(self.where)

    def happens(self, runs: pd.DataFrame) -> Sequence[bool]:
        return [time < math.inf for time in steps_to_solve(runs)]

    def foregone(self, rows: Sequence[pd.DataFrame], missing: int) -> Ruling:
        ruling = super().foregone(rows, missing)
        return OPEN if ruling.outcome == "false" and self.eventually else ruling

    def compare(self, rows: Sequence[pd.DataFrame]) -> tuple[Ruling, str]:
        (runs,) = rows
        times = [time for time in steps_to_solve(runs) if time < math.inf]
        text = f"{self.where.core} solves it on {len(times)} of {len(runs)}"
        if times:
            text += f", after {np.median(times):,.0f}"
        if diverged := (runs["diverged_at"] != "").sum():
            text += f", diverges on {diverged}"
        ruling = self.rule(runs)
        if ruling.outcome == "false" and self.eventually:
            share = np.nanmedian(numbers(runs, "loss") / numbers(runs, "baseline"))
            text += f", and ends at a median of {share:.2f} of the loss without memory"
            return OPEN, text
        return ruling, text


@dataclass(frozen=True)
class LearningTest(CountTest):
    """One that runs that diverge leave open, as other settings may keep them from it."""

    def foregone(self, rows: Sequence[pd.DataFrame], missing: int) -> Ruling:
        return OPEN  # those missing may diverge

    def compare(self, rows: Sequence[pd.DataFrame]) -> tuple[Ruling, str]:
        (runs,) = rows
        diverged = ((runs["diverged_at"] != "") | (runs["ended"] == "diverged")).sum()
        if diverged:
            return OPEN, f"{self.where.core} diverges on {diverged} of {len(runs)}"
        if missing := np.sum(~np.isfinite(self.figures(runs))):
            return OPEN, f"{self.where.core} has no figure on {missing} of {len(runs)}"
        return self.rule(runs), self.describe(runs)

    @abstractmethod
    def figures(self, runs: pd.DataFrame) -> Floats:
        """Compute what tells whether each run learned."""

    @abstractmethod
    def describe(self, runs: pd.DataFrame) -> str:
        """Give the numbers, of runs that all have a figure."""


@dataclass(frozen=True)
class Learns(LearningTest):
    """A core ends below the loss of the best prediction without memory, or (`never`) does not.

    Attributes:
        share: of that loss.
    """

    share: float = AT_BASELINE

    @property
    def parts(self) -> tuple[str, str]:
        side = "above" if self.never else "below"
        return f"{side} {self.share:g} of the loss without memory:", str(self.where)

    def happens(self, runs: pd.DataFrame) -> Sequence[bool]:
        return [bool(share <= self.share) for share in self.figures(runs)]

    def figures(self, runs: pd.DataFrame) -> Floats:
        return numbers(runs, "loss") / numbers(runs, "baseline")

    def describe(self, runs: pd.DataFrame) -> str:
        text = f"{self.where.core} ends at {_range(self.figures(runs))} of that loss"
        best = _best(runs)
        if best is not None:
            best = best / numbers(runs, "baseline")
            text += f" (best {_range(best)})"
        return text


@dataclass(frozen=True)
class Diverges(CountTest):
    """The training of a core diverges."""

    @property
    def parts(self) -> tuple[str, str]:
        return "diverges:", str(self.where)

    def happens(self, runs: pd.DataFrame) -> Sequence[bool]:
        return [update != "" for update in runs["diverged_at"]]

    def compare(self, rows: Sequence[pd.DataFrame]) -> tuple[Ruling, str]:
        (runs,) = rows
        text = f"{self.where.core} diverges on {sum(self.happens(runs))} of {len(runs)}"
        return self.rule(runs), text


@dataclass(frozen=True)
class Above(LearningTest):
    """A core ends above a level of success, or of the figure of its task, or (`never`) does not.

    Attributes:
        level: in the unit of the column.
        column: see `Better`; of a figure that is better if higher.
    """

    level: float
    column: Column = "success"

    @property
    def parts(self) -> tuple[str, str]:
        what = "test figure" if self.column == "test" else "success"
        return f"{what} {'not ' if self.never else ''}above {self.level:g}:", str(self.where)

    def happens(self, runs: pd.DataFrame) -> Sequence[bool]:
        return [bool(value > self.level) for value in self.figures(runs)]

    def figures(self, runs: pd.DataFrame) -> Floats:
        return _figures(runs, self.column)

    def describe(self, runs: pd.DataFrame) -> str:
        middle = f"{np.median(self.figures(runs)):.3g}{_best_success(runs, self.column)}"
        above = f"above {self.level:g} on {sum(self.happens(runs))} of {len(runs)}"
        return f"{self.where.core} {middle}, {above}"


@dataclass(frozen=True)
class Sooner(RunTest):
    """A core solves a task in fewer steps than another; runs that do not solve it are last."""

    where: RunGroup
    than: RunGroup

    @property
    def parts(self) -> tuple[str, str]:
        variant = f" ({self.where.variant})" if self.where.variant else ""
        head = f"`{self.where.core}`{variant} solves {self.where.title} sooner than"
        return head, _quoted_name(self.where, self.than)

    def compare(self, rows: Sequence[pd.DataFrame]) -> tuple[Ruling, str]:
        speeds, reference = ([-steps for steps in steps_to_solve(runs)] for runs in rows)
        if max(*speeds, *reference) == -math.inf:
            return OPEN, f"neither {self.where.core} nor {_name(self.where, self.than)} solves it"
        chance = probability_of_improvement([(speeds, reference)])
        text = (
            f"P({self.where.core} sooner than {_name(self.where, self.than)}) = "
            f"{chance.value:.2f} [{chance.low:.2f}, {chance.high:.2f}]"
        )
        return _ruled(p_greater(speeds, reference), p_greater(reference, speeds), text)


@dataclass(frozen=True)
class Better(RunTest):
    """A core is better than another, by more than `margin`, seed for seed.

    A test figure decides only where most runs of the core that is behind stopped improving: those
    that a budget ended might have caught up.

    Attributes:
        column: of the tables: success, or the figure of the task on its test set, which a run
            that diverged does not have.
        margin: in the unit of the column.
        examples: of a small test set of accuracies, which is the same for all seeds: a difference
            of less than two of its standard errors decides nothing.
    """

    where: RunGroup
    than: RunGroup
    column: Column = "success"
    margin: float = 0.0
    examples: int | None = None

    @property
    def label(self) -> str:
        figures = [self._figure] if self.column.startswith("test_") else []
        return ", ".join([super().label, *figures])

    @property
    def _figure(self) -> str:
        return self.column.removeprefix("test_").replace("_", " ")

    @property
    def parts(self) -> tuple[str, str]:
        by = f" by more than {self.margin:g}" if self.margin > 0 else ""
        by = f", or at most {-self.margin:g} worse," if self.margin < 0 else by
        words = {"test": "better test figure", "success": "higher success"}
        what = words.get(self.column, f"better {self._figure} on test")
        head = f"{self.where}: a {what}{by} than with"
        return head, _quoted_name(self.where, self.than)

    def seeds(self, rows: Sequence[pd.DataFrame]) -> list[int]:
        return [len(set(rows[0]["seed"]) & set(rows[1]["seed"]))] * 2

    def compare(self, rows: Sequence[pd.DataFrame]) -> tuple[Ruling, str]:
        seeds = set(rows[0]["seed"]) & set(rows[1]["seed"])
        if not seeds:
            return OPEN, "no seed in common"
        rows = [runs[runs["seed"].isin(seeds)] for runs in rows]
        scores, reference = (_figures(runs, self.column) for runs in rows)
        names = self.where.core, _name(self.where, self.than)
        for name, values in zip(names, (scores, reference), strict=True):
            missing = np.sum(~np.isfinite(values))
            if missing:
                return OPEN, f"{name} has no figure on {missing} of {len(values)}"
        gain = paired_difference(scores, reference)
        task = rows[0]["task"].iloc[0]
        more = self.column == "success" or TASKS[task].higher_is_better
        text = (
            f"{names[0]} {scores.mean():.4g}{_best_success(rows[0], self.column)}, "
            f"{names[1]} {reference.mean():.4g}{_best_success(rows[1], self.column)}"
            f"{'' if more else ' (lower is better)'}: difference {gain.value:.3g}"
        )
        if len(seeds) > 1:
            text += f" [{gain.low:.3g}, {gain.high:.3g}]"
        above = (scores - reference if more else reference - scores) - self.margin
        if self.examples:
            shares = np.array([scores.mean(), reference.mean()])
            error = float(np.sqrt((shares * (1 - shares)).sum() / self.examples))
            if abs(above.mean()) < 2 * error:
                return OPEN, f"{text}, of {self.examples} examples: standard error {error:.2g}"
        ruling, text = _ruled(p_gained(above), p_gained(-above), text)
        if self.column != "success" and ruling.outcome != "open":
            behind = 0 if ruling.outcome == "false" else 1
            cut = (~rows[behind]["ended"].isin(["patience", "goal"])).sum()
            if cut >= len(seeds) / 2:
                text += f"; the budget ended {cut} of {len(seeds)} runs of {names[behind]}"
                return OPEN, text
        return ruling, text


@dataclass(frozen=True)
class Moves(RunTest):
    """A measure of the gates is larger with one core than with another, by some factor.

    Attributes:
        where, than: cores.
        measure: what, see `MEASURE_WORDS`.
        factor: by which it is larger.
    """

    where: RunGroup
    than: RunGroup
    measure: Measure
    factor: float = 1.0
    suffix: ClassVar[str] = "_gates"

    @property
    def parts(self) -> tuple[str, str]:
        times = f"more than {self.factor:g} times " if self.factor != 1 else ""
        head = f"{MEASURE_WORDS[self.measure]} is {times}greater with {self.where} than with"
        variant = f" ({self.than.variant})" if self.than.variant else ""
        return head, f"`{self.than.core}`{variant}"

    def compare(self, rows: Sequence[pd.DataFrame]) -> tuple[Ruling, str]:
        values, reference = (
            np.array([self._value(units) for _, units in frame.groupby("seed", sort=False)])
            for frame in rows
        )
        scaled = self.factor * reference
        chance = probability_of_improvement([(values, scaled)])
        text = (
            f"{self.where.core} {np.median(values):.3g}, "
            f"{self.than.core} {np.median(reference):.3g} "
            f"(P = {chance.value:.2f} [{chance.low:.2f}, {chance.high:.2f}])"
        )
        return _ruled(p_greater(values, scaled), p_greater(scaled, values), text)

    def _value(self, units: pd.DataFrame) -> float:
        """Compute the measure of one seed."""
        after = numbers(units, "timescale_after")
        match self.measure:
            case "moved":
                gates = (numbers(units, f"gate_{when}") for when in ("before", "after"))
                return float(wasserstein_distance(*gates))
            case "shortest":
                return float(after.min())
            case "longest":
                return float(after.max())
            case "change":
                before, after = (numbers(units, f"bias_timescale_{w}") for w in ("before", "after"))
                return float(after.mean() - before.mean())


def _best(runs: pd.DataFrame) -> Floats | None:
    """The best of each run's learning curve; None if one has none, or none was looked up."""
    best = numbers(runs, "best")
    return best if np.isfinite(best).all() else None


def _range(values: Floats) -> str:
    """From the lowest to the highest: "0.12 to 0.40"; one number where they are alike."""
    low, high = f"{values.min():.2f}", f"{values.max():.2f}"
    return low if low == high else f"{low} to {high}"


def _figures(runs: pd.DataFrame, column: Column) -> Floats:
    return numbers(runs, column) if column == "success" else test_figures(runs, column)


def _best_success(runs: pd.DataFrame, column: str) -> str:
    """Say what success or return runs had at their best: " (best in training 0.97)".

    Not of test figures, which are of the weights that were best on held-out sequences.
    """
    best = _best(runs) if column == "success" else None
    if best is None:
        return ""
    what = "best" if (runs["mean_return"] == "").all() else "best return"
    return f" ({what} in training {np.median(best):.3g})"


def _ruled(true: float, false: float, text: str) -> tuple[Ruling, str]:
    """Rule by the p-values of both directions, and add the smaller one to the text."""
    p, side = min((true, ""), (false, " against"))
    return ruling_from_p(true, false), f"{text}, p{side} = {p:.2g}"


def better_than(
    runs: RunGroup, *cores: str, margin: float = 0.0, examples: int | None = None
) -> Test:
    """Test whether a core is better on test than each of the others, all else being equal."""
    others = (runs._replace(core=core) for core in cores)
    return _all(*(Better(runs, other, "test", margin, examples) for other in others))


def sooner_than(runs: RunGroup, *cores: str) -> Test:
    """Test whether a core is sooner than each of the others, all else being equal."""
    return _all(*(Sooner(runs, runs._replace(core=core)) for core in cores))


def _all(*tests: Test) -> Test:
    return tests[0] if len(tests) == 1 else All(tests)


def _name(one: RunGroup, other: RunGroup) -> str:
    """Name the core of other runs, or how they differ from these."""
    if other.variant != one.variant:
        return f"{other.core} ({other.variant or 'whole'})"
    return other.core if other.title == one.title else f"{other.core} on {other.title}"


def _quoted_name(one: RunGroup, other: RunGroup) -> str:
    name = _name(one, other)
    return name.replace(other.core, f"`{other.core}`", 1)
