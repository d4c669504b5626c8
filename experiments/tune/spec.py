"""What a search tunes: one core on one task of a study."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rlgates.errors import check_choice
from rlgates.experiments.configs.identity import identity
from rlgates.experiments.configs.modules import without_module
from rlgates.experiments.configs.tiers import TIERS
from rlgates.experiments.runs.jobs import Config, Job, runner_for
from rlgates.experiments.studies import Arm, Study
from rlgates.experiments.studies.space import Space
from rlgates.experiments.sweep.sweep import file_name, matching_titles, slug
from rlgates.experiments.sweep.workers import available_cpus
from rlgates.experiments.tune.config import TuneConfig
from rlgates.experiments.tune.space import search_space
from rlgates.registry import core_modules


@dataclass(frozen=True)
class SearchSpec:
    """A search: its runs before any parameter is sampled, and its space.

    Attributes:
        config: the config that sampled values are put into.
        variant: of the study's row.
        space: the parameters.
        seeds: runs of each trial.
        sampler_seed: seed of the sampler.
        path: journal of the search; the run folders are in a folder beside it, of the same stem.
    """

    config: Config
    variant: str
    space: Space
    seeds: tuple[int, ...]
    sampler_seed: int
    path: Path

    @property
    def title(self) -> str:
        """Title of the task, with the variant."""
        return _heading(self.config, self.variant)

    @property
    def settings(self) -> dict[str, Any]:
        """What all trials have in common, as plain data."""
        return {
            **identity(self.config),
            "seeds": self.seeds,
            "sampler_seed": self.sampler_seed,
            "space": {name: repr(values) for name, values in self.space.items()},
        }

    def jobs(self, config: Config, label: str) -> list[Job]:
        """The runs of a trial, one for each seed.

        Args:
            config: with the sampled values.
            label: the sampled values as text, which names the run folder.
        """
        variant = ", ".join(filter(None, (self.variant, label)))
        changes: dict[str, Any] = {"folder": str(self.path.with_suffix("") / slug(variant))}
        config, modules = replace(config, **changes), tuple(core_modules(config.core))
        return [Job(config, seed, variant, modules=modules) for seed in self.seeds]


def search_specs(name: str, study: Study, tune: TuneConfig) -> list[SearchSpec]:
    """One search for each core, on the row of the study that has the core, else on its only row.

    No run stops at a goal, since the value at such a stop depends on chance more than on the
    settings. `patience` may still end those of tasks that have it.

    Args:
        name: of the study.
        study: the study.
        tune: the options, with seeds.

    Raises:
        ValueError: an unknown tier, task, core or parameter; several tasks are selected; the
            study has settings for each core, and none for one of those requested.
    """
    check_choice("tier", tune.tier, TIERS)
    arms = _matching_arms(name, study.arms("full" if tune.tier == "full" else "laptop"), tune.task)
    folder = Path(tune.folder, file_name(name, tune.tier))
    threads = max(1, available_cpus() // tune.jobs)
    specs, named = [], tuple(map(without_module, tune.cores))
    for core in dict.fromkeys(named or (core for arm in arms for core in arm.cores)):
        arm = _single_arm([arm for arm in arms if core in arm.cores] or arms, core)
        config, variant = arm.of(core), arm.variant
        if tune.tier == "smoke":  # different titles may become equal
            kind = runner_for(config)
            config, variant = kind.smoke(config), f"{variant} of {config.title}".strip()
        changes: dict[str, Any] = {
            "device": tune.device or config.device,
            "threads": min(config.threads, threads),
        }
        if config.stop_field:
            changes[config.stop_field] = None
        config = replace(config, **changes)
        space = search_space(study.space, config, tune.parameters)
        path = folder / f"tune-{core}.journal"
        specs.append(SearchSpec(config, variant, space, tune.seeds, tune.sampler_seed, path))
    return specs


def _matching_arms(name: str, arms: list[Arm], task: str) -> list[Arm]:
    """The rows with exactly this title, else those of one task whose title begins with it."""
    titles = [_heading(arm.config, arm.variant) for arm in arms]
    matches = matching_titles(name, task, titles)
    found = [arm for arm, title in zip(arms, titles, strict=True) if title in matches]
    if task:
        _check_single(arm.config.title for arm in found)
    return found


def _single_arm(arms: list[Arm], core: str) -> Arm:
    _check_single(_heading(arm.config, arm.variant) for arm in arms)
    if len(arms) > 1:
        cores = ", ".join(dict.fromkeys(name for arm in arms for name in arm.cores))
        raise ValueError(f"there are no settings for core {core!r} here, only for {cores}.")
    return arms[0]


def _check_single(titles: Iterable[str]) -> None:
    """Raise ValueError for several titles."""
    choices = dict.fromkeys(titles)
    if len(choices) > 1:
        raise ValueError(
            f"one task is tuned at a time; --task must choose one of: {'; '.join(choices)}."
        )


def _heading(config: Config, variant: str) -> str:
    return ", ".join(filter(None, (config.title, variant)))
