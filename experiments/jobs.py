"""Runs of any kind: a config and a seed, which can be made in any process of any machine."""

from __future__ import annotations

import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rlgates.experiments import logs, manifest
from rlgates.experiments.configs import TrainConfig
from rlgates.experiments.files import Damaged, alone
from rlgates.experiments.horizon import check_horizon
from rlgates.experiments.stopping import InterruptedRun
from rlgates.experiments.supervised_configs import SupervisedConfig
from rlgates.experiments.tables import Row, read

Config = TrainConfig | SupervisedConfig
Stop = Callable[[], bool]
EXTRAS = ("gates", "horizon")
NOT_BEGUN = "not begun"
CURVE_POINTS = 60  # about, of each run in the committed table


@dataclass(frozen=True)
class Job:
    """A run to be made.

    Attributes:
        config: what is trained.
        seed: of all that is drawn.
        variant: what tells it from other runs of the same title, core and seed.
        extras: what is measured beside its result, some of `EXTRAS`.
        horizon: the setting that is stretched for the extra of this name.
    """

    config: Config
    seed: int
    variant: str = ""
    extras: tuple[str, ...] = ()
    horizon: str = ""


@dataclass(frozen=True)
class Outcome:
    """How a run ended: with a result, or with the reason why there is none.

    Attributes:
        job: the run.
        result: as its kind has it; None: there is none.
        error: why not.
        interrupted: it can be continued.
        before: the result is of an earlier call; nothing was done.
    """

    job: Job
    result: Any = None
    error: str = ""
    interrupted: bool = False
    before: bool = False


class Kind(ABC):
    """What differs between agents in environments and networks on supervised tasks."""

    @abstractmethod
    def check(self, config: Any) -> None:
        """Find what is wrong with a config before any work starts.

        Raises:
            ValueError, TypeError, OSError, ImportError: what it is.
        """

    @abstractmethod
    def prepare(self, config: Any) -> None:
        """Have the data that it needs.

        Raises:
            OSError, ImportError: they are not to be had.
        """

    @abstractmethod
    def smoke(self, config: Any) -> Any:
        """The config so small that it only shows that everything runs."""

    @abstractmethod
    def title(self, config: Any) -> str:
        """What is learned, without the core: "copy, delay 100"."""

    @abstractmethod
    def label(self, job: Job) -> str:
        """The run in a few words."""

    @abstractmethod
    def settings(self, config: Any) -> dict[str, Any]:
        """What decides what is learned, apart from the core and its options."""

    def digest(self, config: Any) -> str:
        """A few letters that differ when cores cannot be compared: other settings or budget."""
        return manifest.digest(self.settings(config))

    def options(self, config: Any) -> str:
        """What `settings` leave out of the options of the core."""
        return ""

    @abstractmethod
    def folder(self, job: Job) -> Path:
        """Where the run is."""

    @abstractmethod
    def finished(self, job: Job) -> Any:
        """The result of a run that was finished before; None if it was not.

        Raises:
            ValueError: the folder holds a run with another config; what differs is named.
        """

    @abstractmethod
    def train(self, job: Job, stop: Stop, bar: bool | None) -> Any:
        """Make the run, or go on with it.

        Raises:
            InterruptedRun: `stop` said so, and it is saved.
        """

    @abstractmethod
    def describe(self, job: Job, result: Any) -> list[str]:
        """What was reached, in a line, and what else is worth a line."""

    @abstractmethod
    def aim(self, config: Any) -> tuple[str, bool]:
        """What settings are chosen by: the name of a figure, and whether more of it is better."""

    @abstractmethod
    def score(self, job: Job, result: Any) -> float:
        """That figure of a finished run, never on the split "test"; nan if the run diverged."""

    @abstractmethod
    def row(self, job: Job, result: Any) -> dict[str, Any]:
        """The run as a row of a table; its title, core and seed say which run it is."""

    @abstractmethod
    def curve(self, job: Job, result: Any) -> list[Row]:
        """The learning curve, at about `CURVE_POINTS`, the first and the last among them."""

    @abstractmethod
    def gates(self, job: Job, result: Any) -> list[Row]:
        """The forget gates of a finished run before and after training, unit by unit."""

    @abstractmethod
    def horizon(self, job: Job, result: Any) -> list[Row]:
        """A finished run tested at longer lengths, see `rlgates.experiments.horizon`."""


def kind_of(config: Config) -> Kind:
    """Of a config."""
    if isinstance(config, TrainConfig):
        from rlgates.experiments import agent_jobs

        return agent_jobs.KIND
    from rlgates.experiments import task_jobs

    return task_jobs.KIND


def check_all(jobs: Sequence[Job], here: bool = True) -> list[Outcome]:
    """Find what is wrong with any run before work starts, and have the data of all.

    Args:
        jobs: the runs.
        here: whether they are made on this machine, which then must have their device.

    Returns:
        the outcomes of those that were finished and measured before.

    Raises:
        ValueError: what it is; also if a folder holds a run with another config.
    """
    configs = {id(job.config): job.config for job in jobs}.values()
    horizons = {id(job.config): job for job in jobs if job.horizon}.values()
    try:
        for config in configs:
            kind_of(config).check(config if here else _anywhere(config))
        for job in horizons:
            check_horizon(job.config, job.horizon)
        found = [(job, _finished(job)) for job in jobs]
        done = [(job, result) for job, result in found if result is not None and _measured(job)]
        missing = [job for job, result in found if result is None or not _measured(job)]
        titles = {kind_of(job.config).title(job.config): job.config for job in missing}
        for config in titles.values():
            kind_of(config).prepare(config)
    except (TypeError, OSError, ImportError) as error:
        raise ValueError(str(error)) from error
    return [Outcome(job, result, before=True) for job, result in done]


def _anywhere(config: Config) -> Config:
    """The config without what a machine must have."""
    if isinstance(config, SupervisedConfig):
        return replace(config, device="cpu", amp="none")
    return replace(config, device="cpu")


def _finished(job: Job) -> Any:
    """The result of a run; of a damaged one none, so that it fails alone."""
    try:
        return kind_of(job.config).finished(job)
    except Damaged:
        return None


def _measured(job: Job) -> bool:
    """Whether all extras of a finished run are there: it may have been killed before."""
    folder = kind_of(job.config).folder(job)
    return all((folder / f"{extra}.csv").exists() for extra in job.extras)


def make(job: Job, stop: Stop = lambda: False, bar: bool | None = None) -> Outcome:
    """Make a run in this process, if it is not too late, or look up what it reached.

    A run that fails is written down in its manifest.

    Args:
        job: the run.
        stop: asked after each update; if true, the run is saved and stopped.
        bar: draw a progress bar; by default, on a terminal.
    """
    if stop():
        return Outcome(job, error=NOT_BEGUN, interrupted=True)
    kind = kind_of(job.config)
    try:
        with alone(kind.folder(job), stop):
            done = kind.finished(job)
            result = _train(kind, job, stop, bar) if done is None else done
            for name in job.extras:
                _measure(kind, job, result, name)
            return Outcome(job, result, before=done is not None)
    except InterruptedRun as reason:
        return Outcome(job, error=str(reason), interrupted=True)
    except Exception as error:
        return Outcome(job, error=f"{type(error).__name__}: {error}")


def _train(kind: Kind, job: Job, stop: Stop, bar: bool | None) -> Any:
    try:
        return kind.train(job, stop, bar)
    except InterruptedRun:
        raise
    except Exception:
        with suppress(OSError):  # a full disk may be the reason
            manifest.end(kind.folder(job), "failed", error=traceback.format_exc())
        raise


def _measure(kind: Kind, job: Job, result: Any, extra: str) -> None:
    """Write `<extra>.csv` into the folder of a finished run, if it is not there."""
    path = kind.folder(job) / f"{extra}.csv"
    if path.exists():
        return
    rows = getattr(kind, extra)(job, result)
    logs.write_rows(path, rows, list(rows[0]) if rows else ["nothing"])


def extra_rows(job: Job, extra: str) -> list[Row]:
    """What was measured beside the result of a finished run."""
    return read(kind_of(job.config).folder(job) / f"{extra}.csv")


def told(outcome: Outcome) -> list[str]:
    """How a run ended, in a line, and what else is worth a line."""
    kind, job = kind_of(outcome.job.config), outcome.job
    variant = f"{job.variant}: " if job.variant else ""
    if outcome.result is None:
        how = "stopped" if outcome.interrupted else "failed"
        return [f"{variant}{kind.label(job)} {how}: {outcome.error}"]
    first, *more = kind.describe(job, outcome.result)
    return [variant + first + " (made before)" * outcome.before, *more]


def say_not_begun(outcomes: Sequence[Outcome], count: int) -> None:
    """Say how many of so many runs were left alone after a stop, if any were."""
    waiting = sum(outcome.error == NOT_BEGUN for outcome in outcomes)
    if waiting:
        print(f"{waiting} of {count} runs were not begun", flush=True)
