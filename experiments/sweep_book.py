"""What a study has come to so far: its tables, and the settings that they were made with."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rlgates.experiments.files import alone, read_json, write_json
from rlgates.experiments.jobs import Job, Outcome, extra_rows, kind_of
from rlgates.experiments.studies.study import Chart
from rlgates.experiments.tables import Row, key, merge, read

CHART = "chart"


class Book:
    """The results of a study in a folder: `<name>.csv` and its kin.

    Args:
        results: the folder.
        name: of the study and its files.
        command: that makes them, for the tables.
        chart: how they are drawn.
    """

    def __init__(self, results: Path, name: str, command: str, chart: Chart = "curves") -> None:
        self.results, self.name, self.command, self.chart = results, name, command, chart
        self.table = results / f"{name}.csv"
        self.rows = {key(row): row for row in read(self.table)}

    def check(self, jobs: Iterable[Job]) -> None:
        """Refuse to mix runs with other settings into the tables.

        Args:
            jobs: one or more for each core of the whole study, and for those to be made.

        Raises:
            ValueError: with what differs.
        """
        known = settings_of(self.results, self.name)
        present: dict[tuple[str, str], list[Job]] = {}
        for job in {id(job.config): job for job in jobs}.values():
            run = _run(job)
            present.setdefault((run["title"], run["variant"]), []).append(job)
        for (title, variant, core, _), row in self.rows.items():
            there = present.get((title, variant), [])
            if not there:
                raise ValueError(
                    f"{self.table} holds runs of {' '.join(filter(None, (title, variant)))}, which "
                    "this version of the study does not have. Choose other --results, or remove "
                    "them."
                )
            # A core of the table that is not in the study may have the settings of any.
            mine = [job for job in there if job.config.core == core]
            differs = _differs(row, mine or there, bool(mine), known)
            if differs:
                raise ValueError(
                    f"{self.table} holds runs of {' '.join(filter(None, (title, variant)))} of "
                    f"another version of the study: {differs}. "
                    "Choose other --results, or remove them."
                )

    def has(self, job: Job) -> bool:
        """Whether the tables have the run, and what is measured beside its result."""
        row = self.rows.get(key(_run(job)))
        if row is None:
            return False
        # Tables of earlier versions do not say: they have what their studies asked for.
        return {*job.extras} <= {*(row.get("measured") or " ".join(job.extras)).split()}

    def add(self, outcome: Outcome) -> None:
        """Write down what a run came to."""
        job, kind = outcome.job, kind_of(outcome.job.config)
        run = _run(job)
        row = {**kind.row(job, outcome.result), **run, "command": self.command}
        row["measured"] = " ".join(("result", *job.extras))
        plain = {name: str(value) for name, value in row.items()}
        self.rows[key(run)] = plain
        curve = kind.curve(job, outcome.result)
        parts = {"curves": curve, **{extra: extra_rows(job, extra) for extra in job.extras}}
        with alone(self.results):
            for end, rows in parts.items():
                if rows:
                    path = self.results / f"{self.name}_{end}.csv"
                    merge(path, [{**run, **one} for one in rows])
            known = settings_of(self.results, self.name)
            known[kind.digest(job.config)] = _plain(kind.settings(job.config))
            write_json(_settings_file(self.results, self.name), {**known, CHART: self.chart})
            merge(self.table, [plain])  # the last: whoever finds the run there finds all of it


def settings_of(results: Path, name: str) -> dict[str, Any]:
    """The settings of a study's runs by their digest, and its `CHART`; empty if there are none."""
    return read_json(_settings_file(results, name)) or {}


def _settings_file(results: Path, name: str) -> Path:
    return results / f"{name}.json"


def _run(job: Job) -> Row:
    """The columns that say which run it is."""
    title = kind_of(job.config).title(job.config)
    variant, core, seed = job.variant, job.config.core, str(job.seed)
    return {"title": title, "variant": variant, "core": core, "seed": seed}


def _plain(settings: dict[str, Any]) -> dict[str, Any]:
    """As JSON has it."""
    found: dict[str, Any] = json.loads(json.dumps(settings))
    return found


def _differs(row: Row, jobs: list[Job], of_its_core: bool, known: dict[str, Any]) -> str:
    """In what a run differs from each of the jobs; empty if there is one like it, or none."""
    words = ""
    for job in reversed(jobs):
        kind = kind_of(job.config)
        then, now = row.get("core_options", ""), kind.options(job.config)
        if kind.digest(job.config) != row["config"]:
            settings = _plain(kind.settings(job.config))
            words = _difference(known.get(row["config"], {}), settings)
        elif of_its_core and then != now:
            words = f"core_options was {then!r} and is now {now!r}"
        else:
            return ""
    return words


def _difference(then: dict[str, Any], now: dict[str, Any]) -> str:
    names = [name for name in sorted({*then, *now}) if then.get(name) != now.get(name)]
    if not then or not names:
        return "it was made with other settings"
    return "; ".join(
        f"{name} was {then.get(name, 'as usual')!r} and is now {now.get(name, 'as usual')!r}"
        for name in names
    )
