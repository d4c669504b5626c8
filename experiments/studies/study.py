"""What a study is: rows of settings, each with the cores that are compared in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import product
from typing import Any, Literal, get_args

from rlgates.cores import check_options
from rlgates.errors import check_choice, check_seeds
from rlgates.experiments.configs import TrainConfig, fitting, laid_over
from rlgates.experiments.studies.space import SPACE, Space
from rlgates.experiments.supervised_configs import SupervisedConfig
from rlgates.experiments.supervised_protocols import as_published, of_published_size
from rlgates.experiments.supervised_tiers import task_config
from rlgates.tasks.protocols import PROTOCOLS

Options = Mapping[str, Mapping[str, Any]]
TEN = tuple(range(10))  # seeds, of claims with several parts, which five can seldom contradict
Chart = Literal["curves", "heat", "lengths"]


@dataclass(frozen=True)
class Arm:
    """Cores with the same settings.

    Attributes:
        config: of all of them, but for the core.
        cores: that are compared.
        core_options: for some of them, what differs from the options of `config`.
        variant: tells it from other arms of the same title.
        gates: cores whose forget gates are kept, before and after training.
        horizon: setting of the task or environment that is stretched to test each seed at longer
            lengths, `rlgates.experiments.horizon.FACTORS` times as long; none if it is empty.
    """

    config: TrainConfig | SupervisedConfig
    cores: tuple[str, ...]
    core_options: Options = field(default_factory=dict)
    variant: str = ""
    gates: tuple[str, ...] = ()
    horizon: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.config, TrainConfig | SupervisedConfig):
            raise TypeError(f"config must be a config of a task or env, got {self.config!r}.")
        _check_row("cores", self.cores, str)
        if not self.cores:
            raise ValueError("cores must be one or more names, got none.")
        _check_row("gates", self.gates, str)
        for core in self.gates:
            check_choice("core whose gates are kept", core, self.cores)
        for core, options in self.core_options.items():
            check_options(core, options)  # a table of options may have other rows' cores, too

    def with_cores(self, cores: Sequence[str]) -> Arm:
        """The same row of other cores, or of some of them."""
        gates = tuple(core for core in self.gates if core in cores)
        return replace(self, cores=tuple(cores), gates=gates)

    def of(self, core: str) -> TrainConfig | SupervisedConfig:
        """The config of one core.

        Raises:
            ValueError: an unknown core (the nearest is named).
        """
        base = fitting(self.config.core_options, core)
        options = laid_over(base, self.core_options.get(core, {}))
        return replace(self.config, core=core, core_options=options)


@dataclass(frozen=True)
class Published:
    """The arms of a paper's protocol: each of its cores, learning rates and dropout rates.

    Attributes:
        protocol: one of `rlgates.tasks.protocols.PROTOCOLS`.
        cores: those of the paper if none is given.
        variant: goes before what tells the arms apart.
        changes: of the config, where the paper has several settings.
    """

    protocol: str
    cores: tuple[str, ...] = ()
    variant: str = ""
    changes: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_choice("protocol", self.protocol, PROTOCOLS)
        _check_row("cores", self.cores, str)
        for name in self.changes:
            check_choice("setting", name, [one.name for one in fields(SupervisedConfig)])

    def with_cores(self, cores: Sequence[str]) -> Published:
        """The same protocol with other cores, or with some of them."""
        return replace(self, cores=tuple(cores))

    @property
    def compared(self) -> tuple[str, ...]:
        """The cores."""
        return self.cores or PROTOCOLS[self.protocol].cores

    def arms(self) -> Iterator[Arm]:
        """One arm for each core, rate and dropout."""
        row = PROTOCOLS[self.protocol]
        for core in self.compared:
            whole = as_published(replace(task_config(row.task), core=core), row)
            size = of_published_size(whole, row).hidden_size
            rates, dropouts = row.rates(core) or (whole.learning_rate,), row.dropouts(core)
            for rate, dropout in product(rates, dropouts):
                one = replace(row, dropout=(dropout,), core_dropout={})
                config = as_published(whole, one)
                changes = {"hidden_size": size, "learning_rate": rate, **self.changes}
                words = [self.variant] if self.variant else []
                words += [f"rate {rate:g}"] * (len(rates) > 1)
                words += [f"dropout {dropout:g}"] * (len(dropouts) > 1)
                yield Arm(replace(config, **changes), (core,), variant=", ".join(words))


@dataclass(frozen=True, kw_only=True)
class Study:
    """A comparison of cores behind a table and a picture.

    Attributes:
        title: what is compared.
        source: the figures and tables of the papers that it repeats.
        laptop: what two CPU cores make in an hour or two.
        full: what the papers did.
        seeds: of each run.
        chart: how the results are drawn: learning curves, or in their place the loss of networks
            over learning rates and sizes, or the success of agents over the one number in which
            their environments differ.
        space: what a search may choose from.
    """

    title: str
    source: str = ""
    laptop: tuple[Arm | Published, ...]
    full: tuple[Arm | Published, ...] = ()
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    chart: Chart = "curves"
    space: Space = field(default_factory=lambda: SPACE)

    def __post_init__(self) -> None:
        for name in ("laptop", "full"):
            _check_row(name, getattr(self, name), Arm | Published)
        _check_row("seeds", self.seeds, int)
        check_seeds(self.seeds)
        check_choice("chart", self.chart, get_args(Chart))

    def arms(self, tier: Literal["laptop", "full"], cores: Sequence[str] = ()) -> list[Arm]:
        """All arms of a tier.

        Args:
            tier: "laptop" or "full".
            cores: if any are given, those alone, each in the rows that have it; one that no row
                has, in all rows but those of another core's own options.

        Raises:
            ValueError: the study has no such tier, or no row for a core.
        """
        rows = self.laptop if tier == "laptop" else self.full
        if not rows:
            raise ValueError(f"{self.title}: there is no tier {tier!r}.")
        if cores:
            rows = tuple(_with_cores(rows, cores))
        return [
            arm for row in rows for arm in (row.arms() if isinstance(row, Published) else (row,))
        ]


def _check_row(name: str, values: Any, kind: Any) -> None:
    """Raise TypeError unless it is a tuple or list of such things: ("lstm") is a text."""
    if not isinstance(values, tuple | list) or not all(isinstance(one, kind) for one in values):
        word = {str: "names", int: "numbers"}.get(kind, "rows, Arm(...) or Published(...)")
        raise TypeError(f"{name} must be a tuple of {word}, got {values!r:.100}.")


def _with_cores(rows: Sequence[Arm | Published], cores: Sequence[str]) -> list[Arm | Published]:
    """The rows of a study with some cores: what is changed in one core is not changed in others."""
    compared = [row.cores if isinstance(row, Arm) else row.compared for row in rows]
    known = {core for some in compared for core in some}
    found: list[Arm | Published] = []
    for row, some in zip(rows, compared, strict=True):
        open_to_all = len(some) > 1 or (isinstance(row, Arm) and not row.core_options)
        kept = tuple(c for c in cores if c in some or (c not in known and open_to_all))
        if kept:
            found.append(row.with_cores(kept))
    for core in cores:
        if not any(core in row.cores for row in found):
            raise ValueError(f"the study compares {', '.join(sorted(known))}, not {core!r}.")
    return found
