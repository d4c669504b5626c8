"""The common interface to runs of agents and of networks on supervised tasks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from rlgates.experiments.configs.agent import AgentConfig
from rlgates.experiments.configs.gym import GymConfig
from rlgates.experiments.configs.task import TaskConfig
from rlgates.experiments.runs.files import Row
from rlgates.experiments.runs.folder import ResultT, RunFolder

Config = AgentConfig | GymConfig | TaskConfig
ConfigT = TypeVar("ConfigT", bound=Config)
Stop = Callable[[], bool]
CURVE_POINTS = 60  # approximate number per run in the committed tables


@dataclass(frozen=True)
class Job:
    """A run to make, in any process on any machine.

    Attributes:
        config: of the run.
        seed: of all random numbers.
        variant: distinguishes it from other runs of the same title, core and seed.
        extras: further measurements, a subset of `folder.EXTRAS`.
        horizon: the setting to stretch for the extra "horizon".
        modules: those that register its core, which the process that makes it imports.
    """

    config: Config
    seed: int
    variant: str = ""
    extras: tuple[str, ...] = ()
    horizon: str = ""
    modules: tuple[str, ...] = ()

    @property
    def folder(self) -> RunFolder:
        """The folder of the run."""
        return RunFolder(self.config, self.seed)


class Runner(ABC, Generic[ConfigT, ResultT]):
    """Makes and reports runs of one kind.

    Attributes:
        config_type, result_type: of the configs and the results of these runs.
    """

    config_type: type[ConfigT]
    result_type: type[ResultT]

    def config(self, job: Job) -> ConfigT:
        """The config of a run of this kind."""
        assert isinstance(job.config, self.config_type)
        return job.config

    def check(self, config: ConfigT) -> None:
        """Raise what `config.check` does, if the run cannot be made."""
        config.check()

    def prepare(self, config: ConfigT) -> None:
        """Fetch the data of a config, if it needs any.

        Raises:
            ValueError, OSError, ImportError: they are not available.
        """

    @abstractmethod
    def smoke(self, config: ConfigT) -> ConfigT:
        """The config reduced until it only shows that everything runs."""

    def label(self, job: Job) -> str:
        """A short name of the run."""
        return f"{job.config.title}: {job.config.core} seed {job.seed}"

    def finished(self, job: Job) -> ResultT | None:
        """The result of a run that is already finished; None if it is not.

        Raises:
            ValueError: the folder holds a run with another config; the differences are named.
        """
        return job.folder.result(self.result_type)

    @abstractmethod
    def train(self, job: Job, stop: Stop, bar: bool | None) -> ResultT:
        """Make the run, or continue it.

        Raises:
            InterruptedRun: `stop` returned true, and the run is saved.
        """

    @abstractmethod
    def describe(self, job: Job, result: ResultT) -> list[str]:
        """The result in a line, and further lines of detail."""

    @abstractmethod
    def objective(self, config: ConfigT) -> tuple[str, bool]:
        """The objective of a search: its name, and whether higher is better."""

    @abstractmethod
    def score(self, job: Job, result: ResultT) -> float:
        """The objective of a finished run, never on the split "test"; nan if it diverged."""

    @abstractmethod
    def row(self, job: Job, result: ResultT) -> dict[str, Any]:
        """The run as a row of a table; its title, core and seed identify the run."""

    @abstractmethod
    def curve(self, job: Job, result: ResultT) -> list[Row]:
        """The learning curve at about `CURVE_POINTS` points, including the first and the last."""

    def gates(self, job: Job, result: ResultT) -> list[Row]:
        """The forget gates of a finished run before and after training, unit by unit."""
        return []

    def horizon(self, job: Job, result: ResultT) -> list[Row]:
        """A finished run tested at longer lengths, see `rlgates.experiments.runs.horizon`."""
        return []


AnyRunner = Runner[Any, Any]
