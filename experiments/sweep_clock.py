"""How long a sweep still takes, from the times of the runs that have ended."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

from rlgates.experiments.jobs import Job, Outcome, kind_of
from rlgates.experiments.sweep_book import Book
from rlgates.experiments.text import time_text


class Clock:
    """Estimates the time that is left.

    Args:
        jobs: the runs to be made.
        at_once: runs at a time.
        book: the times of earlier runs.
    """

    def __init__(self, jobs: Sequence[Job], at_once: int, book: Book) -> None:
        self.left, self.total, self.at_once = list(jobs), len(jobs), at_once
        self.seconds: dict[tuple[str, str], list[float]] = {}
        for row in book.rows.values():
            self.seconds.setdefault((row["title"], row["core"]), []).append(float(row["seconds"]))

    def before(self) -> str:
        """ "40 runs, 2 at a time, about 20 min", as far as anything is known yet."""
        count = (
            f"{self.total} run{'s' * (self.total > 1)}, {min(self.at_once, self.total)} at a time"
        )
        return ", about ".join(filter(None, (count, self._time_left())))

    def after(self, outcome: Outcome) -> str:
        """ "7 of 40, about 12 min left", once that run has ended."""
        self.left.remove(outcome.job)
        if outcome.result is not None:
            self.seconds.setdefault(_label(outcome.job), []).append(outcome.result.seconds)
        count, left = f"{self.total - len(self.left)} of {self.total}", self._time_left()
        return f"{count}, about {left} left" if left else count

    def _time_left(self) -> str:
        """Empty where nothing is known."""
        expected = [self._expected(job) for job in self.left]
        known = [seconds for seconds in expected if seconds is not None]
        return time_text(mean(known) * len(expected) / self.at_once) if known else ""

    def _expected(self, job: Job) -> float | None:
        """As runs of the same core and task took, or of other cores, or of other tasks."""
        title, core = _label(job)
        for fits in (
            lambda key: key == (title, core),
            lambda key: key[0] == title,
            lambda key: True,
        ):
            times = [t for key, some in self.seconds.items() if fits(key) for t in some]
            if times:
                return mean(times)
        return None


def _label(job: Job) -> tuple[str, str]:
    return kind_of(job.config).title(job.config), job.config.core
