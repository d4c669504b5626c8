"""What a claim is, and what a test of it can find."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple

from rlgates.experiments.tables import Row, made_by, read

Verdict = Literal["reproduced", "contradicted", "open"]
SEEDS = 5  # that a verdict about learning needs
LEVEL = 0.05  # of an error, one-sided, for each verdict


class Ruling(NamedTuple):
    """A verdict, and the p of its being contradicted by chance."""

    verdict: Verdict
    contradicted: float


OPEN = Ruling("open", 1.0)


def decided(reproduced: float, contradicted: float) -> Ruling:
    """A verdict from the p of both directions."""
    if reproduced <= LEVEL:
        return Ruling("reproduced", contradicted)
    return Ruling("contradicted" if contradicted <= LEVEL else "open", contradicted)


def seen(true: bool, false: bool) -> Ruling:
    """A verdict about what is seen, without a p; what is neither true nor false is open."""
    return Ruling("reproduced", 1.0) if true else Ruling("contradicted", 0.0) if false else OPEN


def p_of_any(p: Sequence[float]) -> float:
    """The p of some of several tests, against none of them being true (Simes 1986).

    It keeps its level for tests that do not depend on each other, and for those that are
    positively dependent, as of one core against several others.
    """
    return min(len(p) * value / rank for rank, value in enumerate(sorted(p), 1))


class Finding(NamedTuple):
    """What a test found.

    Attributes:
        ruling: "open" where the budget, or the number of seeds, does not decide.
        found: the numbers, with their interval.
        made_by: the commands and commits behind them.
    """

    ruling: Ruling
    found: str
    made_by: str = ""

    @property
    def verdict(self) -> Verdict:
        """Of the ruling."""
        return self.ruling.verdict


class Results:
    """The tables in a folder.

    Args:
        folder: of the results.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._read: dict[str, list[Row]] = {}

    def table(self, name: str) -> list[Row]:
        """All rows of `<name>.csv`; none if it is not there."""
        if name not in self._read:
            self._read[name] = read(self.folder / f"{name}.csv")
        return self._read[name]


class Runs(NamedTuple):
    """Some runs of a study.

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

    def rows(self, results: Results, end: str = "") -> list[Row]:
        """Their rows in `<study><end>.csv`, in the order of the seeds."""
        mine = (self.title, self.core, self.variant)
        found = [
            row
            for row in results.table(self.study + end)
            if (row["title"], row["core"], row.get("variant", "")) == mine
        ]
        return sorted(found, key=lambda row: int(row["seed"]))

    def __str__(self) -> str:
        variant = f" ({self.variant})" if self.variant else ""
        return f"`{self.core}`{variant} on {self.title}"


class Test(ABC):
    """Something that can be found true or false in the results."""

    @property
    @abstractmethod
    def parts(self) -> tuple[str, str]:
        """What is tested: words that go for similar tests, too, and what is its own."""

    @property
    def words(self) -> str:
        """What is tested, in a line."""
        return " ".join(filter(None, self.parts))

    @abstractmethod
    def judge(self, results: Results) -> Finding:
        """Look it up, or compute it."""


class OverRuns(Test):
    """A test of runs, which is open until there are `SEEDS` seeds of each.

    Attributes:
        end: of the name of the table that it reads.
    """

    end: ClassVar[str] = ""

    @abstractmethod
    def runs(self) -> Sequence[Runs]:
        """The runs that it needs."""

    @abstractmethod
    def compare(self, groups: Sequence[list[Row]]) -> tuple[Ruling, str]:
        """A verdict and the numbers, from the rows of `runs`; there is one of each at least."""

    def judge(self, results: Results) -> Finding:
        groups = [runs.rows(results, self.end) for runs in self.runs()]
        if not all(groups):
            return Finding(OPEN, "not run yet", f"`rlgates sweep {self.runs()[0].study}`")
        ruling, found = self.compare(groups)
        seeds = min(len({row["seed"] for row in group}) for group in groups)
        found += f"; {seeds} seed{'s' * (seeds > 1)}"
        makers = made_by([row for runs in self.runs() for row in runs.rows(results)])
        return Finding(ruling if seeds >= SEEDS else OPEN, found, makers)


@dataclass(frozen=True)
class All(Test):
    """Several tests: reproduced if all are; contradicted if one is, for which see `p_of_any`."""

    tests: tuple[Test, ...]

    @property
    def parts(self) -> tuple[str, str]:
        return self.words, ""

    @property
    def words(self) -> str:
        lines: dict[str, list[str]] = {}
        for head, own in (pair for test in self.tests for pair in _single(test)):
            lines.setdefault(head, []).append(own)
        return "; ".join(f"{head} {', '.join(own)}" for head, own in lines.items())

    def judge(self, results: Results) -> Finding:
        findings = [test.judge(results) for test in self.tests]
        p = p_of_any([finding.ruling.contradicted for finding in findings])
        whole = all(finding.verdict == "reproduced" for finding in findings)
        verdict: Verdict = "reproduced" if whole else "contradicted" if p <= LEVEL else "open"
        found = "; ".join(dict.fromkeys(finding.found for finding in findings))
        makers = dict.fromkeys(finding.made_by for finding in findings)
        return Finding(Ruling(verdict, p), found, "; ".join(filter(None, makers)))


def _single(test: Test) -> list[tuple[str, str]]:
    if isinstance(test, All):
        return [pair for one in test.tests for pair in _single(one)]
    return [test.parts]


@dataclass(frozen=True)
class Claim:
    """A sentence of a paper.

    Attributes:
        source: paper and place.
        words: what it says, in our words.
        test: how it is tested here.
        note: how that differs from the paper's own test, where it does in more than its size.
    """

    source: str
    words: str
    test: Test
    note: str = field(default="", kw_only=True)
