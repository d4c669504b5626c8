"""`rlgates tune`: search the settings of cores on one task of a study, with Optuna."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlgates.errors import check_seeds, check_size
from rlgates.experiments import manifest
from rlgates.experiments.files import check_folder
from rlgates.experiments.jobs import (
    Job,
    Outcome,
    Stop,
    check_all,
    kind_of,
    told,
)
from rlgates.experiments.stopping import StopRequest
from rlgates.experiments.sweep import file_name, find_study, parts, show
from rlgates.experiments.sweep_config import SweepConfig
from rlgates.experiments.tables import Row
from rlgates.experiments.tune_config import TuneConfig
from rlgates.experiments.tune_goals import Goal, goals
from rlgates.experiments.tune_space import ends, with_values, words
from rlgates.experiments.tune_tables import TUNED, trials_text, write_trials
from rlgates.experiments.workers import side_by_side

if TYPE_CHECKING:
    from rlgates.experiments.tune_journal import Journal, Told, Trial


class Search:
    """A search that is under way: runs for its trials, and what they came to.

    Args:
        goal: what is tuned.
        journal: of the search.
        trials: how many there are to be.
    """

    def __init__(self, goal: Goal, journal: Journal, trials: int) -> None:
        self.goal, self.journal, self.trials = goal, journal, trials
        self._under_way: list[tuple[Job, Trial]] = []
        self._ended: dict[int, list[Outcome]] = {}

    def jobs(self, stop: Stop) -> Iterator[Job]:
        """The runs of the trials that were left behind, then those of new ones."""
        for trial in self._trials(stop):
            config = with_values(self.goal.config, trial.values)
            jobs = self.goal.jobs(config, words(trial.values))
            self._under_way += [(job, trial) for job in jobs]
            yield from jobs

    def _trials(self, stop: Stop) -> Iterator[Trial]:
        yield from self.journal.left_behind()
        while not stop():
            trial = self.journal.ask(self.trials)
            if trial is None:
                return
            yield trial

    def take(self, outcome: Outcome) -> Trial | None:
        """The trial that a run is of; with the last of its runs, it is told.

        A trial that was interrupted stays as it is: the next call goes on with it.

        Returns:
            None if the run is of another search.
        """
        jobs = [job for job, _ in self._under_way]
        if outcome.job not in jobs:
            return None
        _, trial = self._under_way.pop(jobs.index(outcome.job))
        ended = self._ended.setdefault(trial.number, [])
        ended.append(outcome)
        if len(ended) == len(self.goal.seeds) and not any(one.interrupted for one in ended):
            self.journal.tell(trial, _value(ended), _facts(ended))
        return trial

    def row(self, one: Told, command: str) -> Row:
        """A trial as a row of the table."""
        config, value = self.goal.config, one.value
        aim, higher = kind_of(config).aim(config)
        sound = value is not None and math.isfinite(value)
        ended = "failed" if value is None else "finished" if sound else "diverged"
        row = {
            "title": kind_of(config).title(config),
            "variant": self.goal.variant,
            "core": config.core,
            "search": manifest.digest(self.goal.settings),
            "trial": one.trial.number,
            "aim": aim,
            "better": "higher" if higher else "lower",
            "value": value if sound else "",
            "ended": ended,
            "settings": " ".join(f"{name}={v}" for name, v in one.trial.values.items()),
            "seeds": " ".join(map(str, self.goal.seeds)),
            "commit": "",
            **one.facts,
            "command": command,
        }
        return {name: str(value) for name, value in row.items()}


def _value(ended: list[Outcome]) -> float | None:
    """The mean over the seeds; nan if one diverged, None if one failed."""
    if any(one.result is None for one in ended):
        return None
    scores = [kind_of(one.job.config).score(one.job, one.result) for one in ended]
    return sum(scores) / len(scores)


def _facts(ended: list[Outcome]) -> dict[str, Any]:
    """What is told of a trial beside its value."""
    made = [one for one in ended if one.result is not None]
    seconds = sum(one.result.seconds for one in made)
    facts: dict[str, Any] = {
        "seconds": round(seconds, 1),
        "error": next((one.error for one in ended if one.error), ""),
    }
    if made:
        job = made[0].job
        facts |= manifest.last_session(kind_of(job.config).folder(job))
    return facts


def run_tune(name: str, tune: TuneConfig) -> list[Outcome]:
    """Make the trials that are missing of each core's search, and write the tables.

    Nothing is chosen by what the study reports: the seeds are others. Every run uses its whole
    budget, though the study may stop at a goal: the first loss below it says little of how good
    the settings are.

    Trials that were stopped, or whose process was killed, go on from their last checkpoint. One
    that diverges is the worst there is; one that fails is written down, and the next call makes
    another one in its place.

    Args:
        name: of the study, or a file of Python that defines STUDY.
        tune: what is tuned, and how long.

    Returns:
        how the runs ended.

    Raises:
        ValueError: before any work starts, if a name is unknown or does not say enough, a value
            of the space makes no sense, the study reports one of the seeds, Optuna or the data are
            not there, a folder cannot be written to, a journal is damaged or has a search with
            other settings.
    """
    given, (name, study) = name, find_study(name)
    for count in ("trials", "jobs"):
        check_size(count, getattr(tune, count))
    check_size("sampler_seed", tune.sampler_seed, minimum=0)
    tune = replace(tune, seeds=_seeds(tune.seeds, study.seeds))
    found = goals(name, study, tune)
    try:
        from rlgates.experiments.tune_journal import Journal
    except ImportError as error:
        raise ValueError('rlgates tune needs Optuna: pip install ".[tune]"') from error
    folder = found[0].path.parent
    results = folder if tune.tier == "smoke" else Path(tune.results)
    check_folder("results", results)
    check_folder("folder", folder)
    for goal in found:
        check_all([job for one in ends(goal.config, goal.space) for job in goal.jobs(one, "")])
    searches = []
    for goal in found:
        _, higher = kind_of(goal.config).aim(goal.config)
        search = (goal.path, goal.title, goal.space, higher, goal.settings, goal.sampler_seed)
        searches.append(Search(goal, Journal(*search), tune.trials))
    show(folder, study, parts(name, study, SweepConfig(tier=tune.tier, folder=tune.folder)))
    outcomes = _made(searches, tune.jobs)
    rows = [
        search.row(one, _command(given, tune, search.goal))
        for search in searches
        for one in search.journal.told()
    ]
    if rows:
        table = write_trials(results, f"{file_name(name, tune.tier)}{TUNED}", rows)
        print(f"\n{trials_text(rows)}\n-> {table}", flush=True)
    return outcomes


def _seeds(given: tuple[int, ...], reported: tuple[int, ...]) -> tuple[int, ...]:
    """Of a search: those given, or the one after the study's own, none of which it may use."""
    check_seeds(reported)
    other = max(reported) + 1
    seeds = given or (other,)
    check_seeds(seeds)
    if set(seeds) & set(reported):
        raise ValueError(
            f"a search must not choose by what is reported: seeds must be none of {reported}, "
            f"which the study reports, got {seeds}. The default is {other}."
        )
    return seeds


def _made(searches: list[Search], workers: int) -> list[Outcome]:
    """Make the runs of the searches, one after the other, unless it is time to stop."""
    outcomes = []
    with ExitStack() as present, StopRequest().listening() as stop:
        for search in searches:
            present.enter_context(search.journal.taking_part())
        jobs = (job for search in searches for job in search.jobs(stop))
        for outcome in side_by_side(jobs, stop, workers):
            outcomes.append(outcome)
            trial = next(found for one in searches if (found := one.take(outcome)))
            print(f"[trial {trial.number}] {told(outcome)[0]}", flush=True)
    return outcomes


def _command(given: str, tune: TuneConfig, goal: Goal) -> str:
    """What makes the trials of one core."""
    line = ["rlgates", "tune", given]
    line += ["--tier", tune.tier] if tune.tier != "laptop" else []
    line += ["--task", tune.task] if tune.task else []
    line += ["--cores", goal.config.core]
    line += ["--parameters", *tune.parameters] if tune.parameters else []
    line += ["--trials", str(tune.trials), "--seeds", *map(str, tune.seeds)]
    line += ["--sampler-seed", str(tune.sampler_seed)] if tune.sampler_seed else []
    return shlex.join(line)
