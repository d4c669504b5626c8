"""Options of `rlgates tune`."""

from __future__ import annotations

from dataclasses import dataclass

from rlgates.experiments.configs.tiers import Tier


@dataclass(frozen=True, kw_only=True)
class TuneConfig:
    """Which task and cores of a study to tune, and for how long."""

    tier: Tier = "laptop"
    """laptop, full: as in `rlgates sweep`; smoke: runs of seconds, with the tables beside the runs
    instead of in `results`."""
    task: str = ""
    """A task or environment of the study, by title or the beginning of a title; may be left out if
    the study has only one."""
    cores: tuple[str, ...] = ()
    """Memory cores to tune, one search each; those of the study by default. For your own core, put
    the module that registers it in front: my_module:my_core."""
    parameters: tuple[str, ...] = ()
    """Parameters to search, by their names in the study's space, such as learning_rate or
    rru.dropout; all by default."""
    trials: int = 20
    """Trials for each core, including those of earlier calls."""
    seeds: tuple[int, ...] = ()
    """One run of each trial for each seed; their mean is the objective. Seeds that the study
    reports are refused; the default is the one after the last of them."""
    sampler_seed: int = 0
    """Seed of the sampler; with one job, the same seed gives the same trials."""
    jobs: int = 1
    """Number of runs at the same time, each in its own process."""
    device: str | None = None
    """"cpu", "cuda" or "auto"; None: that of the study."""
    results: str = "experiments/results"
    """Folder of the tables."""
    folder: str = "runs"
    """Parent of the run folders and of the search journals."""
