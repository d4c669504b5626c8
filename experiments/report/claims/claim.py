"""What a claim is, how it is tested, and what a test can find."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple

import pandas as pd

from rlgates.experiments.report.rows import provenance, read_frame

Verdict = Literal["reproduced", "contradicted", "open"]
SEEDS = 5  # that a verdict about learning needs
LEVEL = 0.05  # of an error, one-sided, for each verdict


class Ruling(NamedTuple):
    """A verdict, and the p-value of the claim being contradicted by chance."""

    verdict: Verdict
    contradicted: float


OPEN = Ruling("open", 1.0)


def ruling_from_p(reproduced: float, contradicted: float) -> Ruling:
    """Rule by the p-values of both directions."""
    if reproduced <= LEVEL:
        return Ruling("reproduced", contradicted)
    return Ruling("contradicted" if contradicted <= LEVEL else "open", contradicted)


def ruling_from_fact(true: bool, false: bool) -> Ruling:
    """Rule about a fact, without a p-value; what is neither true nor false is open."""
    return Ruling("reproduced", 1.0) if true else Ruling("contradicted", 0.0) if false else OPEN


def p_of_any(p: Sequence[float]) -> float:
    """Combine p-values: of any of several tests being true, against none (Simes 1986).

    It keeps its level for independent tests and for positively dependent ones, such as those of
    one core against several others.
    """
    return min(len(p) * value / rank for rank, value in enumerate(sorted(p), 1))


class Finding(NamedTuple):
    """What a test found.

    Attributes:
        ruling: "open" where the budget, or the number of seeds, does not decide.
        numbers: behind it, with their interval.
        provenance: the commands and commits behind them.
    """

    ruling: Ruling
    numbers: str
    provenance: str = ""

    @property
    def verdict(self) -> Verdict:
        """The verdict of the ruling."""
        return self.ruling.verdict


class Results:
    """The tables in a folder, each read once.

    Args:
        folder: of the results.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._tables: dict[str, pd.DataFrame] = {}

    def table(self, name: str) -> pd.DataFrame:
        """Return `<name>.csv`; an empty frame if it does not exist."""
        if name not in self._tables:
            self._tables[name] = read_frame(self.folder / f"{name}.csv")
        return self._tables[name]


class RunGroup(NamedTuple):
    """The runs of one core in a study, one per seed.

    Attributes:
        study: its name.
        title: the task or environment.
        core: the memory core.
        variant: see `Arm`.
    """

    study: str
    title: str
    core: str
    variant: str = ""

    def rows(self, results: Results, suffix: str = "") -> pd.DataFrame:
        """Select their rows in `<study><suffix>.csv`, in the order of the seeds."""
        table = results.table(self.study + suffix)
        if table.empty:
            return table
        selected = table[
            (table["title"] == self.title)
            & (table["core"] == self.core)
            & (table["variant"] == self.variant)
        ]
        return selected.sort_values("seed", key=lambda seeds: seeds.astype(int), kind="stable")

    def __str__(self) -> str:
        variant = f" ({self.variant})" if self.variant else ""
        return f"`{self.core}`{variant} on {self.title}"


class Test(ABC):
    """Something that the results show to be true or false."""

    @property
    @abstractmethod
    def parts(self) -> tuple[str, str]:
        """What is tested: the words it shares with similar tests, and its own subject."""

    @property
    def words(self) -> str:
        """What is tested, in a line."""
        return " ".join(filter(None, self.parts))

    @abstractmethod
    def judge(self, results: Results) -> Finding:
        """Look it up, or compute it."""


class RunTest(Test):
    """A test of runs, which is open until there are `SEEDS` seeds of each group.

    Attributes:
        suffix: of the name of the table that it reads.
    """

    suffix: ClassVar[str] = ""

    def groups(self) -> Sequence[RunGroup]:
        """Return the runs that it needs: its attributes that are groups, in their order."""
        return [value for value in vars(self).values() if isinstance(value, RunGroup)]

    @abstractmethod
    def compare(self, rows: Sequence[pd.DataFrame]) -> tuple[Ruling, str]:
        """Rule from the rows of `groups`, each with one row or more, and give the numbers."""

    def judge(self, results: Results) -> Finding:
        groups = self.groups()
        rows = [group.rows(results, self.suffix) for group in groups]
        if any(frame.empty for frame in rows):
            return Finding(OPEN, "not run yet", f"`rlgates sweep {groups[0].study}`")
        ruling, numbers = self.compare(rows)
        seeds = min(frame["seed"].nunique() for frame in rows)
        numbers += f"; {seeds} seed{'s' * (seeds > 1)}"
        source = provenance(pd.concat([group.rows(results) for group in groups]))
        return Finding(ruling if seeds >= SEEDS else OPEN, numbers, source)


@dataclass(frozen=True)
class All(Test):
    """Several tests: reproduced if all are; contradicted if one is, for which see `p_of_any`."""

    tests: tuple[Test, ...]

    @property
    def parts(self) -> tuple[str, str]:
        return self.words, ""

    @property
    def words(self) -> str:
        subjects: dict[str, list[str]] = {}
        for head, subject in (pair for test in self.tests for pair in _parts_of(test)):
            subjects.setdefault(head, []).append(subject)
        return "; ".join(f"{head} {', '.join(names)}" for head, names in subjects.items())

    def judge(self, results: Results) -> Finding:
        findings = [test.judge(results) for test in self.tests]
        p = p_of_any([finding.ruling.contradicted for finding in findings])
        whole = all(finding.verdict == "reproduced" for finding in findings)
        verdict: Verdict = "reproduced" if whole else "contradicted" if p <= LEVEL else "open"
        numbers = "; ".join(dict.fromkeys(finding.numbers for finding in findings))
        sources = dict.fromkeys(finding.provenance for finding in findings)
        return Finding(Ruling(verdict, p), numbers, "; ".join(filter(None, sources)))


def _parts_of(test: Test) -> list[tuple[str, str]]:
    if isinstance(test, All):
        return [pair for one in test.tests for pair in _parts_of(one)]
    return [test.parts]


@dataclass(frozen=True)
class Claim:
    """A sentence of a paper.

    Attributes:
        place: in the paper.
        words: what it says, in our words.
        test: how it is tested here.
        note: how that differs from the paper's own test, where it does in more than its size.
    """

    place: str
    words: str
    test: Test
    note: str = field(default="", kw_only=True)
