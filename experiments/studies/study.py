"""A study: rows of settings, each with the cores to compare."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import product
from typing import Any, Literal, get_args

from rlgates.errors import check_choice, check_seeds
from rlgates.experiments.configs.agent import AgentConfig
from rlgates.experiments.configs.base import RunConfig, override, supported_options
from rlgates.experiments.configs.gym import GymConfig
from rlgates.experiments.configs.modules import without_module
from rlgates.experiments.configs.protocols import as_published, with_published_size
from rlgates.experiments.configs.published import PROTOCOLS
from rlgates.experiments.configs.sizes import equal_size
from rlgates.experiments.configs.task import TaskConfig
from rlgates.experiments.configs.tiers import task_config
from rlgates.experiments.studies.space import SPACE, Space
from rlgates.registry import check_options

Options = Mapping[str, Mapping[str, Any]]
TEN = tuple(range(10))  # seeds
FRESH = tuple(range(10, 20))  # of studies that test again what others have been looked at for
Chart = Literal["curves", "heat", "lengths", "benchmark"]


@dataclass(frozen=True)
class Arm:
    """Cores with the same settings.

    Attributes:
        config: of all cores; its own core is replaced.
        cores: the cores to compare, each a name, or "my_module:name" to import its module.
        core_options: overrides of the options of `config`, by core.
        variant: distinguishes arms of the same title.
        gates: cores whose forget gates are recorded before and after training.
        horizon: setting of the task or environment to stretch by
            `rlgates.experiments.runs.horizon.FACTORS` in tests at longer lengths; empty: none.
        seeds: those of the study that it has; empty: all.
    """

    config: AgentConfig | GymConfig | TaskConfig
    cores: tuple[str, ...]
    core_options: Options = field(default_factory=dict)
    variant: str = ""
    gates: tuple[str, ...] = ()
    horizon: str = ""
    seeds: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.config, RunConfig):
            raise TypeError(f"config must be a config of a task or env, got {self.config!r}.")
        _check_row("cores", self.cores, str)
        if not self.cores:
            raise ValueError("cores must be one or more names, got none.")
        _check_row("gates", self.gates, str)
        _check_row("seeds", self.seeds, int)
        _import_cores(self)
        for core in self.gates:
            check_choice("core whose gates are kept", core, self.cores)
        if isinstance(self.config, GymConfig) and (self.gates or self.horizon):
            raise ValueError(
                "gates and horizon are for tasks and environments of rlgates, "
                f"not for {self.config.env}."
            )
        for core, options in self.core_options.items():
            check_options(core, options)  # options of cores in other rows are allowed

    def with_cores(self, cores: Sequence[str]) -> Arm:
        """The same row with other cores."""
        gates = tuple(core for core in self.gates if core in cores)
        return replace(self, cores=tuple(cores), gates=gates)

    def of(self, core: str) -> AgentConfig | GymConfig | TaskConfig:
        """The config of one core.

        Raises:
            ValueError: an unknown core (the nearest is named).
        """
        base = supported_options(self.config.core_options, core)
        options = override(base, self.core_options.get(core, {}))
        return replace(self.config, core=core, core_options=options)


@dataclass(frozen=True)
class Published:
    """The arms of a paper's protocol: one for each core, learning rate and dropout rate.

    Attributes:
        protocol: one of `rlgates.experiments.configs.published.PROTOCOLS`.
        cores: the cores to compare; empty: those of the paper.
        variant: prefix of the variants of the arms.
        changes: of the config, if the paper has several settings.
    """

    protocol: str
    cores: tuple[str, ...] = ()
    variant: str = ""
    changes: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_choice("protocol", self.protocol, PROTOCOLS)
        _check_row("cores", self.cores, str)
        _import_cores(self)
        for name in self.changes:
            check_choice("setting", name, [item.name for item in fields(TaskConfig)])

    def with_cores(self, cores: Sequence[str]) -> Published:
        """The same protocol with other cores."""
        return replace(self, cores=tuple(cores))

    @property
    def compared(self) -> tuple[str, ...]:
        """The cores to compare."""
        return self.cores or PROTOCOLS[self.protocol].cores

    def arms(self) -> Iterator[Arm]:
        """One arm for each core, rate and dropout."""
        row = PROTOCOLS[self.protocol]
        for core in self.compared:
            base = as_published(replace(task_config(row.task), core=core), row)
            size = with_published_size(base, row).hidden_size
            rates, dropouts = (
                row.learning_rates_for(core) or (base.learning_rate,),
                row.dropouts_for(core),
            )
            for rate, dropout in product(rates, dropouts):
                config = as_published(base, replace(row, dropout=(dropout,), core_dropout={}))
                changes = {"hidden_size": size, "learning_rate": rate, **self.changes}
                labels = [self.variant] if self.variant else []
                labels += [f"rate {rate:g}"] * (len(rates) > 1)
                labels += [f"dropout {dropout:g}"] * (len(dropouts) > 1)
                yield Arm(replace(config, **changes), (core,), variant=", ".join(labels))


@dataclass(frozen=True)
class EqualParameters:
    """Cores of about as many parameters, each with a learning rate of its own.

    Attributes:
        config: of all cores; its core, size and, where another is known, learning rate are
            replaced.
        cores: the cores to compare.
        parameters: the most of a core; its size is the largest even one (`equal_size`).
        input_size: width of the core's input.
        core_options: overrides of the options of `config`, by core.
        learning_rates: by core.
        variant: distinguishes arms of the same title.
        seeds: those of the study that they have; empty: all.
    """

    config: AgentConfig | GymConfig | TaskConfig
    cores: tuple[str, ...]
    parameters: int
    input_size: int
    core_options: Options = field(default_factory=dict)
    learning_rates: Mapping[str, float] = field(default_factory=dict)
    variant: str = ""
    seeds: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        _check_row("cores", self.cores, str)
        _check_row("seeds", self.seeds, int)
        _import_cores(self)

    def with_cores(self, cores: Sequence[str]) -> EqualParameters:
        """The same with other cores."""
        return replace(self, cores=tuple(cores))

    def arms(self) -> Iterator[Arm]:
        """One arm for each core."""
        for core, options in self.core_options.items():  # here once, not in every arm
            check_options(core, options)
        for core in self.cores:
            arm = Arm(
                replace(
                    self.config,
                    learning_rate=self.learning_rates.get(core, self.config.learning_rate),
                ),
                (core,),
                {name: options for name, options in self.core_options.items() if name == core},
                variant=self.variant,
                seeds=self.seeds,
            )
            options = dict(arm.of(core).core_options)
            if isinstance(self.config, TaskConfig):
                options["num_layers"] = self.config.num_layers
            size = equal_size(core, self.input_size, self.parameters, options)
            yield replace(arm, config=replace(arm.config, hidden_size=size))


Rows = Arm | EqualParameters | Published


@dataclass(frozen=True, kw_only=True)
class Study:
    """A comparison of cores that yields tables and figures.

    Attributes:
        title: what is compared.
        source: figures and tables of papers that it reproduces.
        laptop: rows that take minutes to a day or more on two CPU cores.
        full: rows as published.
        seeds: of each row and core, fixed before the first run; a row may have fewer of them.
        added: those of them that were added after a look at the results of the others; claims
            are tested on these alone.
        chart: "curves": learning curves; "heat": loss of networks over learning rates and sizes;
            "lengths": success of agents over the one setting in which their environments differ;
            "benchmark": what each memory reaches over all games, and what it costs.
        costs: whether scores are also plotted against the costs of the cores.
        space: the search space of `rlgates tune`.
    """

    title: str
    source: str = ""
    laptop: tuple[Rows, ...]
    full: tuple[Rows, ...] = ()
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    added: tuple[int, ...] = ()
    chart: Chart = "curves"
    costs: bool = False
    space: Space = field(default_factory=lambda: SPACE)

    def __post_init__(self) -> None:
        for name in ("laptop", "full"):
            _check_row(name, getattr(self, name), Rows)
        _check_row("seeds", self.seeds, int)
        _check_row("added", self.added, int)
        check_seeds(self.seeds)
        if not set(self.added) <= set(self.seeds):
            raise ValueError(f"added seeds must be among {self.seeds}, got {self.added}.")
        for row in (*self.laptop, *self.full):
            if isinstance(row, Published):
                continue
            if not set(row.seeds) <= set(self.seeds):
                raise ValueError(f"a row's seeds must be among {self.seeds}, got {row.seeds}.")
            lacks_best = isinstance(row.config, GymConfig) and row.config.best_return is None
            if self.chart == "benchmark" and lacks_best:
                raise ValueError(
                    "chart 'benchmark' draws shares of the best return: set best_return of "
                    f"{row.config.title}."
                )
        check_choice("chart", self.chart, get_args(Chart))

    def arms(self, tier: Literal["laptop", "full"], cores: Sequence[str] = ()) -> list[Arm]:
        """All arms of a tier.

        Args:
            tier: "laptop" or "full".
            cores: only these, each in the rows that have it; a core that no row has is added to
                all rows that are not about the options of another core. Empty: all.

        Raises:
            ValueError: the study has no such tier, or no row for a core.
        """
        rows = self._rows(tier)
        if cores:
            rows = tuple(_with_cores(rows, cores))
        return [arm for row in rows for arm in ((row,) if isinstance(row, Arm) else row.arms())]

    def _rows(self, tier: Literal["laptop", "full"]) -> tuple[Rows, ...]:
        rows = self.laptop if tier == "laptop" else self.full
        if not rows:
            raise ValueError(f"{self.title}: there is no tier {tier!r}.")
        return rows

    def _unsized_arms(self, tier: Literal["laptop", "full"]) -> Iterator[Arm | EqualParameters]:
        """All arms, without the sizes of equal parameters, for which cores have to be made."""
        for row in self._rows(tier):
            yield from row.arms() if isinstance(row, Published) else (row,)

    def titles(self, tier: Literal["laptop", "full"]) -> list[str]:
        """The titles of the arms' tasks, each once.

        Raises:
            ValueError: the study has no such tier.
        """
        return list(dict.fromkeys(arm.config.title for arm in self._unsized_arms(tier)))

    def seeds_of(self, arm: Arm | EqualParameters) -> tuple[int, ...]:
        """The seeds of the runs of an arm."""
        return arm.seeds or self.seeds

    def tested_seeds(self, title: str, core: str, variant: str = "") -> tuple[int, ...]:
        """The seeds on which claims about a core are tested: if some were added, those alone.

        Args:
            title: of the task or environment, at the laptop tier.
            core: its name; all seeds of the study count for one that no row has.
            variant: of its arm.
        """
        rows = (
            arm
            for arm in self._unsized_arms("laptop")
            if core in arm.cores and (arm.config.title, arm.variant) == (title, variant)
        )
        seeds = tuple(next(map(self.seeds_of, rows), self.seeds))
        return tuple(seed for seed in seeds if seed in self.added) or seeds

    def num_runs(self, tier: Literal["laptop", "full"]) -> int:
        """The number of runs of a tier."""
        arms = self._unsized_arms(tier)
        return sum(len(arm.cores) * len(self.seeds_of(arm)) for arm in arms)


def _check_row(name: str, values: Any, kind: Any) -> None:
    """Raise TypeError unless it is a tuple or list of `kind`; ("lstm") is a str."""
    if not isinstance(values, tuple | list) or not all(isinstance(value, kind) for value in values):
        kinds = {str: "names", int: "numbers"}.get(kind, "rows, such as Arm(...)")
        raise TypeError(f"{name} must be a tuple of {kinds}, got {values!r:.100}.")


def _import_cores(row: Rows) -> None:
    """Import the modules of the cores of a row, and leave their names."""
    object.__setattr__(row, "cores", tuple(map(without_module, row.cores)))


def _with_cores(rows: Sequence[Rows], cores: Sequence[str]) -> list[Rows]:
    """The rows of a study with these cores; see `Study.arms`."""
    compared = [row.compared if isinstance(row, Published) else row.cores for row in rows]
    known = {core for row_cores in compared for core in row_cores}
    selected: list[Rows] = []
    for row, row_cores in zip(rows, compared, strict=True):
        open_to_all = len(row_cores) > 1 or (isinstance(row, Arm) and not row.core_options)
        kept = tuple(c for c in cores if c in row_cores or (c not in known and open_to_all))
        if kept:
            selected.append(row.with_cores(kept))
    for core in cores:
        if not any(core in row.cores for row in selected):
            raise ValueError(f"the study compares {', '.join(sorted(known))}, not {core!r}.")
    return selected
