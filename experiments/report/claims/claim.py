"""What a claim is, how it is tested, and what a test can find."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import pandas as pd
from scipy.stats import false_discovery_control

from rlgates.experiments.report.rows import provenance, read_frame, with_best
from rlgates.experiments.studies import STUDIES

Outcome = Literal["true", "false", "open"]
Scale = Literal["as published", "smaller"]
Verdict = Literal[
    "reproduced",
    "reproduced at smaller scale",
    "not reproduced at smaller scale",
    "contradicted",
    "open",
]
SEEDS = 5  # that an outcome about learning needs
LEVEL = 0.05  # of an error, one-sided, for each outcome


class Ruling(NamedTuple):
    """What a test says of a claim, and the p-value of its being false by chance."""

    outcome: Outcome
    p_false: float


OPEN = Ruling("open", 1.0)


def ruling_from_p(true: float, false: float) -> Ruling:
    """Rule by the p-values of both directions."""
    if true <= LEVEL:
        return Ruling("true", false)
    return Ruling("false" if false <= LEVEL else "open", false)


def ruling_from_fact(true: bool) -> Ruling:
    """Rule about a fact, without a p-value."""
    return Ruling("true", 1.0) if true else Ruling("false", 0.0)


def p_of_any(p: Sequence[float]) -> float:
    """Combine p-values: of any of several tests being true, against none (Simes 1986).

    It keeps its level for independent tests and for positively dependent ones, such as those of
    one core against several others.
    """
    return float(false_discovery_control(p).min())


class Finding(NamedTuple):
    """What a test found.

    Attributes:
        ruling: open where the budget, or the number of seeds, does not decide.
        numbers: behind it, with their interval.
        provenance: the commands and commits behind them.
    """

    ruling: Ruling
    numbers: str
    provenance: str = ""

    @property
    def outcome(self) -> Outcome:
        """The outcome of the ruling."""
        return self.ruling.outcome


class Results:
    """The tables in a folder, each read once.

    Args:
        folder: of the results.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._tables: dict[str, pd.DataFrame] = {}
        self._runs: dict[str, dict[Any, pd.DataFrame]] = {}

    def table(self, name: str) -> pd.DataFrame:
        """Return `<name>.csv`; an empty frame if it does not exist."""
        if name not in self._tables:
            self._tables[name] = read_frame(self.folder / f"{name}.csv")
        return self._tables[name]

    def runs(self, name: str, title: str, core: str, variant: str) -> pd.DataFrame:
        """Return the rows of `table` of one core."""
        table = self.table(name)
        if name not in self._runs:
            keys = ["title", "core", "variant"]
            groups = () if table.empty else table.groupby(keys, sort=False)
            self._runs[name] = dict(iter(groups))
        return self._runs[name].get((title, core, variant), table.iloc[:0])


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
        """Select their rows in `<study><suffix>.csv`, in the order of the seeds.

        Of a study of ours only the seeds that it names count and, where seeds were added after
        a look at the results, those alone. Of other tables than that of the runs (`suffix`) those
        of runs that diverged are left out.
        """
        selected = self._select(results, suffix)
        if selected.empty:
            return selected
        if suffix:
            runs = self.rows(results)
            selected = selected[selected["seed"].isin(runs.loc[runs["diverged_at"] == "", "seed"])]
        else:
            selected = with_best(selected, self._select(results, "_curves"))
            # Some studies had other names when they were run.
            command = {r"^rlgates sweep \S+$": f"rlgates sweep {self.study}"}
            selected = selected.replace({"command": command}, regex=True)
        if tested := self._tested_seeds():
            selected = selected[selected["seed"].isin([str(seed) for seed in tested])]
        return selected.sort_values("seed", key=lambda seeds: seeds.astype(int), kind="stable")

    def _tested_seeds(self) -> Sequence[int]:
        """Return the seeds that count in a study of ours; none of another study."""
        study = STUDIES.get(self.study)
        return () if study is None else study.tested_seeds(self.title, self.core, self.variant)

    @property
    def needed(self) -> int:
        """How many seeds a verdict needs: all that count, and `SEEDS` at least."""
        return max(SEEDS, len(self._tested_seeds()))

    def _select(self, results: Results, suffix: str) -> pd.DataFrame:
        return results.runs(self.study + suffix, self.title, self.core, self.variant)

    def __str__(self) -> str:
        variant = f" ({self.variant})" if self.variant else ""
        return f"`{self.core}`{variant} on {self.title}"


class Test(ABC):
    """Something that the results show to be true or false."""

    @property
    def learns(self) -> bool:
        """Whether it is about training, which may fail for other reasons than the core."""
        return False

    @property
    @abstractmethod
    def parts(self) -> tuple[str, str]:
        """What is tested: the words it shares with similar tests, and its own subject."""

    @property
    def words(self) -> str:
        """What is tested, in a line."""
        return " ".join(filter(None, self.parts))

    @property
    def label(self) -> str:
        """What tells its numbers from those of similar tests, if they do not say it."""
        return ""

    @abstractmethod
    def judge(self, results: Results) -> Finding:
        """Look it up, or compute it."""


class RunTest(Test):
    """A test of runs, which is open until each group has all the seeds it needs.

    With fewer it is ruled by `foregone`.

    Attributes:
        suffix: of the name of the table that it reads.
    """

    suffix: ClassVar[str] = ""

    @property
    def learns(self) -> bool:
        return True

    @property
    def label(self) -> str:
        first = self.groups()[0]
        return ", ".join(filter(None, (first.title, first.variant)))

    def groups(self) -> Sequence[RunGroup]:
        """Return the runs that it needs: its attributes that are groups, in their order."""
        return [value for value in vars(self).values() if isinstance(value, RunGroup)]

    def seeds(self, rows: Sequence[pd.DataFrame]) -> list[int]:
        """Count the seeds that it uses of each group."""
        return [frame["seed"].nunique() for frame in rows]

    @abstractmethod
    def compare(self, rows: Sequence[pd.DataFrame]) -> tuple[Ruling, str]:
        """Rule from the rows of `groups`, each with one row or more, and give the numbers."""

    def foregone(self, rows: Sequence[pd.DataFrame], missing: int) -> Ruling:
        """Rule from fewer seeds than are needed, if those `missing` cannot change it."""
        return OPEN

    def judge(self, results: Results) -> Finding:
        groups = self.groups()
        rows = [group.rows(results, self.suffix) for group in groups]
        if any(frame.empty for frame in rows):
            return Finding(OPEN, "not run yet", f"`rlgates sweep {groups[0].study}`")
        ruling, numbers = self.compare(rows)
        seeds = self.seeds(rows)
        numbers += f"; {min(seeds)} seed{'s' * (min(seeds) != 1)}"
        missing = max(group.needed - count for group, count in zip(groups, seeds, strict=True))
        if missing > 0:
            ruling = self.foregone(rows, missing)
        source = provenance(pd.concat([group.rows(results) for group in groups]))
        return Finding(ruling, numbers, source)


@dataclass(frozen=True)
class All(Test):
    """Several tests: true if all are; false if one is, for which see `p_of_any`."""

    tests: tuple[Test, ...]

    @property
    def learns(self) -> bool:
        return any(test.learns for test in self.tests)

    @property
    def parts(self) -> tuple[str, str]:
        return self.words, ""

    @property
    def words(self) -> str:
        subjects: dict[str, list[str]] = {}
        for head, subject in (pair for test in self.tests for pair in _parts_of(test)):
            subjects.setdefault(head, []).append(subject)
        return "; ".join(f"{head} {', '.join(names)}" for head, names in subjects.items())

    @property
    def label(self) -> str:
        labels = {test.label for test in self.tests}
        return labels.pop() if len(labels) == 1 else ""

    def judge(self, results: Results) -> Finding:
        findings = [test.judge(results) for test in self.tests]
        p = p_of_any([finding.ruling.p_false for finding in findings])
        whole = all(finding.outcome == "true" for finding in findings)
        outcome: Outcome = "true" if whole else "false" if p <= LEVEL else "open"
        texts, labels = [finding.numbers for finding in findings], [t.label for t in self.tests]
        if len(set(labels)) > 1:
            pairs = zip(labels, texts, strict=True)
            texts = [f"{label}: {text}" if label else text for label, text in pairs]
        numbers = "; ".join(dict.fromkeys(texts))
        sources = dict.fromkeys(finding.provenance for finding in findings)
        return Finding(Ruling(outcome, p), numbers, "; ".join(filter(None, sources)))


def _parts_of(test: Test) -> list[tuple[str, str]]:
    if isinstance(test, All):
        return [pair for one in test.tests for pair in _parts_of(one)]
    return [test.parts]


class Setting(NamedTuple):
    """What a claim was tested with.

    Attributes:
        paper: the paper's sizes, lengths, budget and data.
        ours: our own.
        scale: "as published" only where sizes, budget and data are the paper's or beyond.
    """

    paper: str
    ours: str
    scale: Scale = "smaller"


COMPUTED = Setting("follows from the equations", "computed from them", "as published")


def verdict_of(outcome: Outcome, scale: Scale, reached: bool | None) -> Verdict:
    """Turn what a test says into a verdict about the paper.

    Args:
        outcome: of the test.
        scale: how near the test is to the paper.
        reached: whether the positive controls were; None: there are none. Without them a core that
            fails may have had no chance, and nothing is contradicted.
    """
    if outcome == "open" or reached is False:
        return "open"
    if scale == "smaller":
        true = outcome == "true"
        return "reproduced at smaller scale" if true else "not reproduced at smaller scale"
    if outcome == "true":
        return "reproduced"
    return "contradicted" if reached else "open"


@dataclass(frozen=True)
class Claim:
    """A sentence of a paper.

    Attributes:
        place: in the paper.
        words: what it says, in our words.
        test: how it is tested here.
        setting: of the paper, and of the test.
        controls: what must be true for a failure to mean anything: that other cores learn there.
    """

    place: str
    words: str
    test: Test
    setting: Setting = COMPUTED
    controls: tuple[Test, ...] = ()

    def judge(self, results: Results) -> tuple[Verdict, Finding]:
        """Test it, and the controls; see `verdict_of`."""
        finding = self.test.judge(results)
        controls = [control.judge(results) for control in self.controls]
        reached = None if self.test.learns else True
        if controls:
            outcomes = {control.outcome for control in controls}
            reached = outcomes == {"true"}
            known = "reached" if reached else "not reached" if "false" in outcomes else "undecided"
            text = "; ".join(control.numbers for control in controls)
            finding = finding._replace(numbers=f"{finding.numbers}; control {known}: {text}")
        return verdict_of(finding.outcome, self.setting.scale, reached), finding
