"""Progress of a run: a bar on a terminal, else a line every few seconds."""

from __future__ import annotations

import math
import sys
import time
from typing import Any

from tqdm import tqdm

from rlgates.experiments.runs.text import steps_text, time_text

LINE_EVERY = 10.0  # seconds between lines without a bar


class Progress:
    """Shows how far a run is.

    Args:
        label: of the run.
        unit: what is counted, in the plural.
        total: the budget; None: no limit.
        bar: whether to draw a bar; None: only on a terminal.
        max_minutes: the run ends after so many, of all sessions together; None: no limit.
    """

    def __init__(
        self,
        label: str,
        unit: str,
        total: int | None,
        bar: bool | None = None,
        max_minutes: float | None = None,
    ) -> None:
        self.label, self.unit, self.total = label, unit, total
        self.bar = sys.stderr.isatty() if bar is None else bar
        self.seconds = math.inf if max_minutes is None else 60 * max_minutes
        self.tqdm: tqdm[Any] | None = None

    def begin(self, count: int, seconds: float = 0.0) -> None:
        """Start a session at that count, and after that much time of earlier ones."""
        self.first, self.before = count, seconds
        self.start = self.printed = time.monotonic()
        self.tqdm = tqdm(
            total=self.total,
            initial=count,
            desc=self.label,
            unit=f" {self.unit}",
            unit_scale=True,
            dynamic_ncols=True,
            disable=not self.bar,
        )

    def update(self, count: int, **details: str) -> None:
        """Show the count and further figures by name."""
        assert self.tqdm is not None, "begin first"
        if self.bar:
            self.tqdm.set_postfix(details, refresh=False)
            self.tqdm.update(min(count, self.total or count) - self.tqdm.n)
            return
        now = time.monotonic()
        if now - self.printed < LINE_EVERY:
            return
        self.printed = now
        passed = now - self.start
        speed = (count - self.first) / passed
        seconds, total = self.seconds - self.before - passed, ""
        if self.total is not None:
            total = f" of {steps_text(self.total)}"
            seconds = min(seconds, (self.total - count) / speed)
        left = f", at most {time_text(max(seconds, 0))} left" if math.isfinite(seconds) else ""
        figures = "".join(f"{name} {value}, " for name, value in details.items())
        print(
            f"{self.label}: {steps_text(count)}{total} {self.unit}, {figures}"
            f"{speed:,.1f} {self.unit}/s{left}",
            flush=True,
        )

    def close(self) -> None:
        """Remove the bar."""
        if self.tqdm is not None:
            self.tqdm.close()
