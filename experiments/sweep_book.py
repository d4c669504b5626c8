"""What a study has come to so far: its tables, and the settings that they were made with."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rlgates.experiments.files import alone, read_json, write_json
from rlgates.experiments.jobs import Job, Outcome, extra_rows, kind_of
from rlgates.experiments.tables import Row, key, merge, read


class Book:
    """The results of a study in a folder: `<name>.csv` and its kin.

    Args:
        results: the folder.
        name: of the study and its files.
        command: that makes them, for the tables.
    """

    def __init__(self, results: Path, name: str, command: str) -> None:
        self.results, self.name, self.command = results, name, command
        self.table = results / f"{name}.csv"
        self._settings = results / f"{name}.json"
        self.rows = {key(row): row for row in read(self.table)}

    def check(self, jobs: Iterable[Job]) -> None:
        """Refuse to mix runs with other settings into the tables.

        Raises:
            ValueError: with what differs.
        """
        known: dict[str, Any] = read_json(self._settings) or {}
        digests = {(*key(row)[:3],): row["config"] for row in self.rows.values()}
        for job in {id(job.config): job for job in jobs}.values():
            kind, variant = kind_of(job.config), job.variant
            title = kind.title(job.config)
            there = digests.get((title, variant, job.config.core))
            if there is None:
                continue
            then, now = known.get(there, {}), _plain(kind.settings(job.config))
            if there != kind.digest(job.config):
                raise ValueError(
                    f"{self.table} holds runs of {' '.join(filter(None, (title, variant)))} of "
                    f"another version of the study: {_difference(then, now)}. "
                    "Choose other --results, or remove them."
                )

    def has(self, job: Job) -> bool:
        """Whether the tables have the run."""
        return key(_run(job)) in self.rows

    def add(self, outcome: Outcome) -> None:
        """Write down what a run came to."""
        job, kind = outcome.job, kind_of(outcome.job.config)
        run = _run(job)
        row = {**kind.row(job, outcome.result), **run, "command": self.command}
        plain = {name: str(value) for name, value in row.items()}
        self.rows[key(run)] = plain
        curve = kind.curve(job, outcome.result)
        parts = {"curves": curve, **{extra: extra_rows(job, extra) for extra in job.extras}}
        with alone(self.results):
            merge(self.table, [plain])
            for end, rows in parts.items():
                if rows:
                    path = self.results / f"{self.name}_{end}.csv"
                    merge(path, [{**run, **one} for one in rows])
            known = read_json(self._settings) or {}
            known[kind.digest(job.config)] = _plain(kind.settings(job.config))
            write_json(self._settings, known)


def _run(job: Job) -> Row:
    """The columns that say which run it is."""
    title = kind_of(job.config).title(job.config)
    variant, core, seed = job.variant, job.config.core, str(job.seed)
    return {"title": title, "variant": variant, "core": core, "seed": seed}


def _plain(settings: dict[str, Any]) -> dict[str, Any]:
    """As JSON has it."""
    found: dict[str, Any] = json.loads(json.dumps(settings))
    return found


def _difference(then: dict[str, Any], now: dict[str, Any]) -> str:
    names = [name for name in sorted({*then, *now}) if then.get(name) != now.get(name)]
    if not then or not names:
        return "it was made with other settings"
    return "; ".join(
        f"{name} was {then.get(name, 'as usual')!r} and is now {now.get(name, 'as usual')!r}"
        for name in names
    )
