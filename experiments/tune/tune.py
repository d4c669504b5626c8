"""Search the settings of cores on one task of a study, with Optuna."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlgates.errors import check_seeds, check_size
from rlgates.experiments.configs.identity import digest
from rlgates.experiments.report.studies.searches import SEARCHES, search_tables, write_trials
from rlgates.experiments.runs.files import Damaged, Row, check_folder
from rlgates.experiments.runs.jobs import Job, JobResult, Stop, check_all, describe, runner_for
from rlgates.experiments.runs.locks import locked
from rlgates.experiments.runs.stopping import InterruptedRun, StopRequest
from rlgates.experiments.sweep.sweep import file_name, find_study
from rlgates.experiments.sweep.workers import run_parallel
from rlgates.experiments.tune.config import TuneConfig
from rlgates.experiments.tune.space import boundary_configs, with_values
from rlgates.experiments.tune.spec import SearchSpec, search_specs

if TYPE_CHECKING:
    from rlgates.experiments.tune.journal import Journal, Trial, TrialResult


class Search:
    """A search in progress: it turns trials into runs and their results into objectives.

    Args:
        spec: what is tuned.
        journal: of the search.
        trials: how many to evaluate.
    """

    def __init__(self, spec: SearchSpec, journal: Journal, trials: int) -> None:
        self.spec, self.journal, self.trials = spec, journal, trials
        self.was_stopped = False  # with trials left to sample
        self._active: list[tuple[Job, Trial]] = []
        self._scored: dict[int, list[tuple[JobResult, float | None]]] = {}

    def jobs(self, stop: Stop) -> Iterator[Job]:
        """The runs of stale trials, then those of new ones."""
        for trial in self._next_trials(stop):
            config = with_values(self.spec.config, trial.values)
            label = ", ".join(f"{name} {value}" for name, value in trial.values.items())
            jobs = self.spec.jobs(config, label)
            self._active += [(job, trial) for job in jobs]
            yield from jobs

    def _next_trials(self, stop: Stop) -> Iterator[Trial]:
        yield from self.journal.claim_stale_trials()
        while not stop():
            trial = self.journal.ask(self.trials)
            if trial is None:
                return
            yield trial
        self.was_stopped = not self.journal.is_complete(self.trials)

    def take(self, job_result: JobResult, score: float | None) -> Trial | None:
        """Take the result of a run; the last one of a trial is recorded with its objective.

        An interrupted trial stays running: the next call resumes it.

        Returns:
            the trial of the run; None if it belongs to another search.
        """
        jobs = [job for job, _ in self._active]
        if job_result.job not in jobs:
            return None
        _, trial = self._active.pop(jobs.index(job_result.job))
        scored = self._scored.setdefault(trial.number, [])
        scored.append((job_result, score))
        job_results = [one for one, _ in scored]
        complete = len(scored) == len(self.spec.seeds)
        if complete and not any(one.interrupted for one in job_results):
            objective = _objective([score for _, score in scored])
            self.journal.tell(trial, objective, _trial_info(job_results))
        return trial

    def row(self, result: TrialResult, command: str) -> Row:
        """A trial as a row of the table."""
        config, value = self.spec.config, result.value
        aim, higher = runner_for(config).objective(config)
        finite = value is not None and math.isfinite(value)
        ended = "failed" if value is None else "finished" if finite else "diverged"
        row = {
            "title": config.title,
            "variant": self.spec.variant,
            "core": config.core,
            "search": digest(self.spec.settings),
            "trial": result.trial.number,
            "aim": aim,
            "better": "higher" if higher else "lower",
            "value": value if finite else "",
            "ended": ended,
            "settings": " ".join(f"{name}={v}" for name, v in result.trial.values.items()),
            "seeds": " ".join(map(str, self.spec.seeds)),
            "commit": "",
            **result.info,
            "command": command,
        }
        return {name: str(value) for name, value in row.items()}


def _scored(job_result: JobResult) -> tuple[JobResult, float | None]:
    """The result with its score, or with an error if what it is scored by is damaged or missing.

    Returns:
        the result; its score, nan if the run diverged, None if it has no result.
    """
    job = job_result.job
    try:
        has_result = job_result.result is not None
        score = runner_for(job.config).score(job, job_result.result) if has_result else None
    except (Damaged, OSError) as error:
        return JobResult(job, error=f"{type(error).__name__}: {error}"), None
    return job_result, score


def _objective(scores: Sequence[float | None]) -> float | None:
    """Mean over the seeds; nan if a run diverged, None if one failed."""
    known = [score for score in scores if score is not None]
    return sum(known) / len(known) if len(known) == len(scores) else None


def _trial_info(job_results: list[JobResult]) -> dict[str, Any]:
    """Further columns of a trial: time, first error, versions."""
    finished = [job_result for job_result in job_results if job_result.result is not None]
    seconds = sum(job_result.result.seconds for job_result in finished)
    info: dict[str, Any] = {
        "seconds": round(seconds, 1),
        "error": next((job_result.error for job_result in job_results if job_result.error), ""),
    }
    if finished:
        job = finished[0].job
        info |= job.folder.provenance()
    return info


def run_tune(name: str, tune: TuneConfig) -> list[JobResult]:
    """Evaluate the missing trials of each core's search, and write the tables.

    Hyperparameters are never chosen by the numbers that the study reports: the seeds differ.
    Interrupted and killed trials resume from their last checkpoint. A trial that diverges counts
    as the worst; one that fails is recorded, and the next call samples another one in its place.

    Args:
        name: a study, or a Python file that defines STUDY.
        tune: what to tune, and for how long.

    Returns:
        the results of the runs.

    Raises:
        InterruptedRun: it was stopped before all trials were sampled; the tables are written.
        ValueError: before any work starts, if an argument is invalid or ambiguous, the space has a
            value that a config refuses, the study reports one of the seeds, Optuna or the data are
            missing, a folder cannot be written to, or a journal is damaged or has other settings.
    """
    argument, (name, study) = name, find_study(name)
    for count in ("trials", "jobs"):
        check_size(count, getattr(tune, count))
    check_size("sampler_seed", tune.sampler_seed, minimum=0)
    tune = replace(tune, seeds=_search_seeds(tune.seeds, study.seeds))
    specs = search_specs(name, study, tune)
    try:
        from rlgates.experiments.tune.journal import Journal
    except ImportError as error:
        raise ValueError('rlgates tune needs Optuna: pip install ".[tune]"') from error
    folder = specs[0].path.parent
    results = folder if tune.tier == "smoke" else Path(tune.results)
    check_folder("results", results)
    check_folder("folder", folder)
    for spec in specs:
        configs = boundary_configs(spec.config, spec.space)
        check_all([job for config in configs for job in spec.jobs(config, "")])
    searches = []
    for spec in specs:
        _, higher = runner_for(spec.config).objective(spec.config)
        search = (spec.path, spec.title, spec.space, higher, spec.settings, spec.sampler_seed)
        searches.append(Search(spec, Journal(*search), tune.trials))
    for spec in specs:  # --task may be the beginning of a title
        print(f"tuning {spec.config.core} on {spec.title}", flush=True)
    job_results = _run_trials(searches, tune.jobs)
    if any(search.journal.results() for search in searches):
        with locked(results):  # until they are written, no other process writes later ones
            rows = [
                search.row(result, _command(argument, tune, search.spec))
                for search in searches
                for result in search.journal.results()
            ]
            table = write_trials(results, f"{file_name(name, tune.tier)}{SEARCHES}", rows)
        print(f"\n{search_tables(rows)}\n-> {table}", flush=True)
    if any(search.was_stopped for search in searches):
        raise InterruptedRun("not all trials were sampled")
    return job_results


def _search_seeds(seeds: tuple[int, ...], reported: tuple[int, ...]) -> tuple[int, ...]:
    """The seeds of a search: `seeds`, or the one after those that the study reports."""
    check_seeds(reported)
    default = max(reported) + 1
    seeds = seeds or (default,)
    check_seeds(seeds)
    if set(seeds) & set(reported):
        raise ValueError(
            f"a search must not use the seeds {reported}, which the study reports, got {seeds}. "
            f"The default is {default}."
        )
    return seeds


def _run_trials(searches: list[Search], workers: int) -> list[JobResult]:
    """Make the runs of all searches, one search after the other, until a stop is requested."""
    job_results = []
    with ExitStack() as stack, StopRequest().listening() as stop:
        for search in searches:
            stack.enter_context(search.journal.active_worker())
        jobs = (job for search in searches for job in search.jobs(stop))
        for job_result, score in map(_scored, run_parallel(jobs, stop, workers)):
            job_results.append(job_result)
            trial = next(trial for search in searches if (trial := search.take(job_result, score)))
            print(f"[trial {trial.number}] {describe(job_result)[0]}", flush=True)
    return job_results


def _command(study: str, tune: TuneConfig, spec: SearchSpec) -> str:
    """The command that makes the trials of one core."""
    line = ["rlgates", "tune", study]
    line += ["--tier", tune.tier] if tune.tier != "laptop" else []
    line += ["--task", tune.task] if tune.task else []
    line += ["--cores", spec.config.core]
    line += ["--parameters", *tune.parameters] if tune.parameters else []
    line += ["--trials", str(tune.trials), "--seeds", *map(str, tune.seeds)]
    line += ["--sampler-seed", str(tune.sampler_seed)] if tune.sampler_seed else []
    return shlex.join(line)
