"""The result tables of a study, and the settings of the runs in them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rlgates.experiments.configs.base import options_text, parse_pairs
from rlgates.experiments.configs.identity import (
    comparison,
    differences,
    digest,
    identity,
    upgraded,
    without_core,
)
from rlgates.experiments.report.rows import merge_rows, run_key
from rlgates.experiments.report.settings import CHART, study_settings, write_study_settings
from rlgates.experiments.runs.files import Damaged, Row, read_table
from rlgates.experiments.runs.jobs import Job, JobResult, extra_rows, runner_for
from rlgates.experiments.runs.locks import locked
from rlgates.experiments.studies.study import Chart


class StudyResults:
    """The tables of a study: `<name>.csv`, `<name>_curves.csv`, ..., and `<name>.json`.

    Args:
        results: folder of the tables.
        name: file name of the study.
        command: the command that makes the runs, written into each row.
        chart: how the results are plotted.
    """

    def __init__(self, results: Path, name: str, command: str, chart: Chart = "curves") -> None:
        self.results, self.name, self.command, self.chart = results, name, command, chart
        self.table = results / f"{name}.csv"
        self.rows = {run_key(row): row for row in read_table(self.table)}

    def check(self, jobs: Iterable[Job]) -> None:
        """Check that all rows have the settings of the present study.

        Args:
            jobs: at least one for each core and task of the whole study, and all pending jobs.

        Raises:
            ValueError: a row has other settings; the message names the differences.
        """
        settings = study_settings(self.results, self.name)
        study_runs: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for job in {id(job.config): job for job in jobs}.values():
            place = job.config.title, job.variant
            study_runs.setdefault(place, []).append(identity(job.config))
        for (title, variant, core, _), row in self.rows.items():
            label = " ".join(filter(None, (title, variant)))
            candidates = study_runs.get((title, variant), [])
            if not candidates:
                raise ValueError(
                    f"{self.table} holds runs of {label}, which this version of the study does not "
                    "have. Choose other --results, or remove them."
                )
            # A core that is in the table but not in the study, such as a user's own, may have the
            # settings of any core, and what each core has for itself, such as its size.
            same_core = [run for run in candidates if run["core"] == core]
            free = () if same_core else _differing_settings(candidates)
            difference = _difference(row, same_core or candidates, settings, free)
            if difference:
                raise ValueError(
                    f"{self.table} holds runs of {label} of another version of the study: "
                    f"{difference}. Choose other --results, or remove them."
                )

    def has(self, job: Job) -> bool:
        """Whether the tables hold the run with all of its extra measurements.

        They do not hold one that its time limit ended and that can go on: its folder knows whether
        the limit is higher now.
        """
        row = self.rows.get(run_key(_key_columns(job)))
        if row is None or (row.get("ended") == "time" and job.folder.checkpoint.exists()):
            return False
        # An empty cell means that everything the study asked for was measured.
        measured = (row.get("measured") or " ".join(job.extras)).split()
        return set(job.extras) <= set(measured)

    def add(self, job_result: JobResult) -> JobResult:
        """Write a finished run into all tables.

        Returns:
            the result; without it and with an error if a file of the run is damaged or missing.

        Raises:
            Damaged: a table is.
        """
        job, runner = job_result.job, runner_for(job_result.job.config)
        columns = _key_columns(job)
        try:
            values = {**runner.row(job, job_result.result), **columns, "command": self.command}
            curve = runner.curve(job, job_result.result)
            tables = {"curves": curve, **{extra: extra_rows(job, extra) for extra in job.extras}}
        except (Damaged, OSError) as error:
            return JobResult(job, error=f"{type(error).__name__}: {error}")
        values["measured"] = " ".join(("result", *job.extras))
        row = {name: str(value) for name, value in values.items()}
        self.rows[run_key(columns)] = row
        with locked(self.results):
            for suffix, rows in tables.items():
                if rows:
                    path = self.results / f"{self.name}_{suffix}.csv"
                    merge_rows(path, [{**columns, **values} for values in rows])
            settings, current = study_settings(self.results, self.name), comparison(job.config)
            settings |= {digest(current): current, CHART: self.chart}
            write_study_settings(self.results, self.name, settings)
            merge_rows(self.table, [row])  # last, so that a run in this table is in all tables
        return job_result


def _key_columns(job: Job) -> Row:
    """The columns that identify a run."""
    title = job.config.title
    variant, core, seed = job.variant, job.config.core, str(job.seed)
    return {"title": title, "variant": variant, "core": core, "seed": seed}


def _differing_settings(identities: list[dict[str, Any]]) -> list[str]:
    """The settings in which these runs differ, apart from the core."""
    first, *others = map(without_core, identities)
    return [name for name in first if any(run.get(name) != first[name] for run in others)]


def _difference(
    row: Row, identities: list[dict[str, Any]], settings: dict[str, Any], free: Sequence[str]
) -> str:
    """How the row differs from each of the identities; empty if it agrees with one of them.

    Args:
        row: of the table.
        identities: of runs of the study, those of the row's core if it is in the study.
        settings: of the runs in the table, by digest.
        free: settings that may differ.
    """
    text = ""
    for run in reversed(identities):
        current, options = without_core(run), run["core_options"]
        before = upgraded(settings.get(row["config"], {}))
        before |= {name: current[name] for name in free if name in before and name in current}
        if digest(current) != row["config"] and before != current:
            text = differences(before, current) if before else "its settings differ"
        elif run["core"] == row["core"] and row["core_options"] != options_text(options):
            # A value, such as a list, may have blanks.
            words = re.split(r" (?=\w+=)", row["core_options"])
            recorded = parse_pairs([word for word in words if word])
            text = differences({"core_options": recorded}, {"core_options": options})
        else:
            return ""
    return text
