"""Make the missing runs of a study and write its tables and figures."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any, Literal, NamedTuple

from rlgates.errors import check_choice, check_seeds, unknown_choice
from rlgates.experiments.configs.modules import run_file, without_module
from rlgates.experiments.configs.tiers import TIERS, Tier
from rlgates.experiments.report.outputs import is_reserved
from rlgates.experiments.report.study import redraw_study
from rlgates.experiments.runs.files import check_folder
from rlgates.experiments.runs.jobs import (
    NOT_STARTED,
    Config,
    Job,
    JobResult,
    check_all,
    describe,
    print_not_started,
    runner_for,
)
from rlgates.experiments.runs.locks import locked
from rlgates.experiments.runs.stopping import StopRequest
from rlgates.experiments.runs.text import time_text
from rlgates.experiments.studies import FORMER_NAMES, STUDIES, Study
from rlgates.experiments.sweep.backends import Backend
from rlgates.experiments.sweep.config import SweepConfig
from rlgates.experiments.sweep.results import StudyResults
from rlgates.experiments.sweep.workers import available_cpus
from rlgates.registry import core_modules


class Condition(NamedTuple):
    """A row of a study with one core: everything about a run but its seed.

    Attributes:
        config: of the run.
        variant: label that distinguishes rows with the same title and core.
        gates: whether the gates are recorded before and after training.
        horizon: the setting to stretch in tests beyond the training length; empty: none.
        seeds: one for each run.
    """

    config: Config
    variant: str
    gates: bool
    horizon: str
    seeds: tuple[int, ...]

    @property
    def title(self) -> str:
        """The title of the task or environment."""
        return self.config.title


def find_study(name: str) -> tuple[str, Study]:
    """Look up a study by name, or load STUDY from a Python file.

    Returns:
        the name of its files, and the study.

    Raises:
        ValueError: no such study or file, or a former name of a study; the file fails or defines
            no `Study`, or its name is reserved.
    """
    path = Path(name)
    if name in FORMER_NAMES:
        raise ValueError(f"the study {name!r} is called {FORMER_NAMES[name]!r} now.")
    if path.suffix != ".py":
        return check_choice("study", name, STUDIES), STUDIES[name]
    if not path.exists():
        raise ValueError(f"there is no file {name}.")
    if path.stem in STUDIES or is_reserved(path.stem):
        raise ValueError(f"{name} has the name of a table of rlgates: choose another one.")
    try:
        study = run_file(path).get("STUDY")
    except Exception as error:
        raise ValueError(f"{name} fails: {type(error).__name__}: {error}") from error
    if not isinstance(study, Study):
        raise ValueError(f"{name} must define STUDY, a Study of rlgates.experiments.studies.")
    return path.stem, study


def study_conditions(name: str, study: Study, sweep: SweepConfig) -> list[Condition]:
    """The conditions of a study that a sweep selects.

    Raises:
        ValueError: an unknown tier, task or core, a task without any of the cores, or two
            conditions that cannot be told apart.
    """
    check_choice("tier", sweep.tier, TIERS)
    if "" in sweep.tasks:
        raise ValueError("tasks must be titles or beginnings of titles, got ''.")
    smoke = sweep.tier == "smoke"
    cores = tuple(dict.fromkeys(sweep.cores))
    tier: Literal["laptop", "full"] = "full" if sweep.tier == "full" else "laptop"
    rows = [
        Condition(arm.of(core), arm.variant, core in arm.gates, arm.horizon, seeds)
        for arm in study.arms(tier, cores)
        for seeds in [sweep.seeds or study.seeds_of(arm)]
        for core in arm.cores
    ]
    titles = study.titles(tier)
    selected: set[str] = set()
    for task in sweep.tasks or ("",):
        matches = matching_titles(name, task, titles)
        if not any(row.title in matches for row in rows):
            raise ValueError(f"{name} has {task!r}, but not with {', '.join(cores)}.")
        selected.update(matches)
    conditions = []
    for row in rows:
        if row.title not in selected:
            continue
        if smoke:
            small = row._replace(config=runner_for(row.config).smoke(row.config))
            if small.title != row.title:  # different titles may become equal
                small = small._replace(variant=f"{row.variant} of {row.title}".strip())
            row = small
        folder = Path(sweep.folder, file_name(name, sweep.tier), slug(row.variant))
        changes: dict[str, Any] = {
            "folder": str(folder),
            "device": sweep.device or row.config.device,
        }
        conditions.append(row._replace(config=replace(row.config, **changes)))
    labels = Counter((row.title, row.variant, row.config.core) for row in conditions)
    for label, count in labels.items():
        if count > 1:
            raise ValueError(f"{name} has {' '.join(filter(None, label))} twice: give variants.")
    return conditions


def matching_titles(name: str, task: str, titles: Sequence[str]) -> list[str]:
    """The title itself if there is one, else all titles that begin with it.

    Args:
        name: of the study, for the message.
        task: title, or its beginning.
        titles: of the study.

    Raises:
        ValueError: no title matches.
    """
    matches = [task] if task in titles else [title for title in titles if title.startswith(task)]
    if not matches:
        raise unknown_choice(f"task of the study {name!r}", task, dict.fromkeys(titles))
    return matches


def file_name(name: str, tier: Tier) -> str:
    """The name of a study's tables and run folder in a tier."""
    return name if tier == "laptop" else f"{name}_{tier}"


def slug(variant: str) -> str:
    """The variant as part of a path."""
    return re.sub(r"[^\w.=+-]+", "_", variant)


class TimeEstimate:
    """Estimates the remaining time of a sweep from the times of finished runs.

    Args:
        jobs: the runs to make.
        parallel: runs at a time.
        results: the study's tables, with the times of earlier runs.
    """

    def __init__(self, jobs: Sequence[Job], parallel: int, results: StudyResults) -> None:
        self.remaining, self.total, self.parallel = list(jobs), len(jobs), parallel
        self.seconds: dict[tuple[str, str], list[float]] = {}
        for row in results.rows.values():
            self.seconds.setdefault((row["title"], row["core"]), []).append(float(row["seconds"]))

    def summary(self) -> str:
        """Text such as "40 runs, 2 at a time, about 20 min"; without the time if unknown."""
        plural, parallel = "s" * (self.total > 1), min(self.parallel, self.total)
        count = f"{self.total} run{plural}, {parallel} at a time"
        return ", about ".join(filter(None, (count, self._remaining_text())))

    def update(self, job_result: JobResult) -> str:
        """Count a run that has ended: text such as "7 of 40, about 12 min left"."""
        job = job_result.job
        self.remaining.remove(job)
        if job_result.result is not None:
            label = job.config.title, job.config.core
            self.seconds.setdefault(label, []).append(job_result.result.seconds)
        count = f"{self.total - len(self.remaining)} of {self.total}"
        time_left = self._remaining_text()
        return f"{count}, about {time_left} left" if time_left else count

    def _remaining_text(self) -> str:
        estimates = [self._estimate(job) for job in self.remaining]
        known = [seconds for seconds in estimates if seconds is not None]
        return time_text(mean(known) * len(estimates) / self.parallel) if known else ""

    def _estimate(self, job: Job) -> float | None:
        """Mean time of runs with the same task and core, else the same task, else of all runs."""
        title, core = job.config.title, job.config.core
        same_run = self.seconds.get((title, core), [])
        same_task = [t for key, times in self.seconds.items() if key[0] == title for t in times]
        all_runs = [t for times in self.seconds.values() for t in times]
        times = same_run or same_task or all_runs
        return mean(times) if times else None


def run_sweep(name: str, sweep: SweepConfig) -> list[JobResult]:
    """Make the missing runs of a study, and write its tables and figures.

    Runs that are in the tables or finished in their folders are not repeated; interrupted and
    killed runs resume from their last checkpoint. A run that fails or diverges is recorded and
    does not stop the others.

    Args:
        name: a study, or a Python file that defines STUDY.
        sweep: which runs to make, and where.

    Returns:
        the results of the runs that were not in the tables.

    Raises:
        ValueError: before any work starts, if an argument is invalid, data are missing, the tables
            are of another version of the study, or a folder cannot be written to.
    """
    argument, (name, study) = name, find_study(name)
    sweep = replace(sweep, cores=tuple(map(without_module, sweep.cores)))
    check_seeds(sweep.seeds or study.seeds)
    conditions = study_conditions(name, study, sweep)
    file, folder = file_name(name, sweep.tier), Path(sweep.folder, file_name(name, sweep.tier))
    threads = max(row.config.threads for row in conditions)
    parallel = sum(len(row.seeds) for row in conditions) if sweep.jobs is None else sweep.jobs
    backend = Backend(sweep.backend, parallel, sweep.backend_options, folder)
    if backend.uses_this_machine:  # the runs share its processors
        cpus = available_cpus()
        parallel = max(1, cpus // threads) if sweep.jobs is None else parallel
        threads = max(1, cpus // parallel)
        backend = replace(backend, jobs=parallel)
    jobs = _jobs(conditions, threads)
    results_folder = folder if sweep.tier == "smoke" else Path(sweep.results)
    check_folder("results", results_folder)
    check_folder("folder", folder)
    tier = "" if sweep.tier == "laptop" else f" --tier {sweep.tier}"
    command = f"rlgates sweep {shlex.quote(argument)}{tier}"
    results = StudyResults(results_folder, file, command, study.chart)
    if results.rows:
        all_conditions = study_conditions(name, study, replace(sweep, tasks=(), cores=()))
        one_run_each = [row._replace(seeds=row.seeds[:1]) for row in all_conditions]
        results.check([*_jobs(one_run_each, max_threads=1), *jobs])
    missing = [job for job in jobs if not results.has(job)]
    if len(missing) < len(jobs):
        print(f"{len(jobs) - len(missing)} of {len(jobs)} runs are in {results.table}", flush=True)
    job_results = [
        results.add(job_result) for job_result in check_all(missing, here=backend.uses_this_machine)
    ]
    for job_result in job_results:
        if job_result.result is None:
            print(describe(job_result)[0], flush=True)
    looked_up = {id(job_result.job) for job_result in job_results}
    pending = [job for job in missing if id(job) not in looked_up]
    estimate = TimeEstimate(pending, parallel, results)
    if pending:
        print(estimate.summary(), flush=True)
    with StopRequest().listening() as stop, closing(backend.run(pending, stop)) as ended:
        for job_result in ended:
            if job_result.result is not None:
                job_result = results.add(job_result)
            job_results.append(job_result)
            if job_result.error != NOT_STARTED:
                print(f"[{estimate.update(job_result)}] {describe(job_result)[0]}", flush=True)
    print_not_started(job_results, len(pending))
    with locked(results_folder):
        written = redraw_study(results_folder, file, study)
    tables = [path for path in written if path.suffix == ".md"]
    if tables:
        print(f"tables: {', '.join(map(str, (*tables, results.table)))}", flush=True)
    return job_results


def _jobs(conditions: Sequence[Condition], max_threads: int) -> list[Job]:
    """One run for each condition and seed; seed by seed, so that early results cover all cores."""
    seeds = dict.fromkeys(seed for row in conditions for seed in row.seeds)
    configs = [
        replace(row.config, threads=min(row.config.threads, max_threads)) for row in conditions
    ]
    modules = [tuple(core_modules(config.core)) for config in configs]
    return [
        Job(config, seed, row.variant, _extras(row), row.horizon, registering)
        for seed in seeds
        for row, config, registering in zip(conditions, configs, modules, strict=True)
        if seed in row.seeds
    ]


def _extras(row: Condition) -> tuple[str, ...]:
    return ("gates",) * row.gates + ("horizon",) * bool(row.horizon)
