"""What a search is for: one arm of a study with one core, and the runs of its trials."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rlgates.errors import check_choice
from rlgates.experiments.configs import TrainConfig
from rlgates.experiments.jobs import Config, Job, kind_of
from rlgates.experiments.studies import Arm, Study
from rlgates.experiments.studies.space import Space
from rlgates.experiments.supervised_tiers import TIERS
from rlgates.experiments.sweep import file_name, fitting
from rlgates.experiments.tables import heading
from rlgates.experiments.tune_config import TuneConfig
from rlgates.experiments.tune_space import search_space, trial_folder
from rlgates.experiments.workers import processors


@dataclass(frozen=True)
class Goal:
    """What is tuned.

    Attributes:
        config: of the arm, for one core.
        variant: of the arm.
        space: of what is searched.
        seeds: runs of each trial.
        sampler_seed: of what is tried.
        path: the journal of the search; its runs are in a folder of its stem.
    """

    config: Config
    variant: str
    space: Space
    seeds: tuple[int, ...]
    sampler_seed: int
    path: Path

    @property
    def title(self) -> str:
        """The task and the variant."""
        return _heading(self.config, self.variant)

    @property
    def settings(self) -> dict[str, Any]:
        """What all trials have in common, as plain data."""
        return {
            **kind_of(self.config).settings(self.config),
            "core_options": dict(self.config.core_options),
            "seeds": self.seeds,
            "sampler_seed": self.sampler_seed,
            "space": {name: repr(values) for name, values in self.space.items()},
        }

    def jobs(self, config: Config, text: str) -> list[Job]:
        """The runs of a trial, one for each seed.

        Args:
            config: with what was chosen.
            text: what was chosen.
        """
        variant = ", ".join(filter(None, (self.variant, text)))
        changes: dict[str, Any] = {"folder": str(trial_folder(self.path.with_suffix(""), variant))}
        return [Job(replace(config, **changes), seed, variant) for seed in self.seeds]


def goals(name: str, study: Study, tune: TuneConfig) -> list[Goal]:
    """A search for each core, on the arm that has it or else on the only one.

    Its runs use their whole budget: nothing ends them for being good enough.

    Args:
        name: of the study.
        study: the study.
        tune: with the seeds.

    Raises:
        ValueError: an unknown tier, task, core or parameter (the nearest is named), more than
            one task is meant, or the cores have settings of their own and one is not among them.
    """
    check_choice("tier", tune.tier, TIERS)
    arms = _arms(name, study.arms("full" if tune.tier == "full" else "laptop"), tune.task)
    folder = Path(tune.folder, file_name(name, tune.tier))
    threads = max(1, processors() // tune.jobs)
    found = []
    for core in dict.fromkeys(tune.cores or (core for arm in arms for core in arm.cores)):
        arm = _only([arm for arm in arms if core in arm.cores] or arms, core)
        config, variant = arm.of(core), arm.variant
        if tune.tier == "smoke":  # in which what had different titles may have the same
            kind = kind_of(config)
            config, variant = kind.smoke(config), f"{variant} of {kind.title(config)}".strip()
        # A run that ends once it is good enough is worth what the last update happened to reach.
        stop = "stop_success" if isinstance(config, TrainConfig) else "stop_loss"
        changes: dict[str, Any] = {
            "device": tune.device or config.device,
            "threads": min(config.threads, threads),
            stop: None,
        }
        config = replace(config, **changes)
        space = search_space(study.space, config, tune.parameters)
        path = folder / f"tune-{core}.journal"
        found.append(Goal(config, variant, space, tune.seeds, tune.sampler_seed, path))
    return found


def _arms(name: str, arms: list[Arm], task: str) -> list[Arm]:
    """Those of that very title, or else those whose titles begin with it."""
    titles = [_heading(arm.config, arm.variant) for arm in arms]
    wanted = fitting(name, task, titles)
    return [arm for arm, title in zip(arms, titles, strict=True) if title in wanted]


def _only(arms: list[Arm], core: str) -> Arm:
    titles = dict.fromkeys(_heading(arm.config, arm.variant) for arm in arms)
    if len(titles) > 1:
        raise ValueError(
            f"one task is tuned at a time; --task must choose one of: {'; '.join(titles)}."
        )
    if len(arms) > 1:
        cores = ", ".join(dict.fromkeys(name for arm in arms for name in arm.cores))
        raise ValueError(f"there are no settings for core {core!r} here, only for {cores}.")
    return arms[0]


def _heading(config: Config, variant: str) -> str:
    return heading({"title": kind_of(config).title(config), "variant": variant})
