"""Options of `rlgates sweep`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from rlgates.experiments.configs.base import Pairs
from rlgates.experiments.configs.tiers import Tier

BackendName = Literal["local", "submitit", "ray"]


@dataclass(frozen=True, kw_only=True)
class SweepConfig:
    """Which runs of a study to make, and where."""

    tier: Tier = "laptop"
    """laptop: minutes to a day or more on two CPU cores; full: as published; smoke: the grid of
    laptop at about a second a run, with the tables beside the runs instead of in `results`."""
    tasks: tuple[str, ...] = ()
    """Tasks or environments, by title or the beginning of a title; all by default."""
    cores: tuple[str, ...] = ()
    """Memory cores to compare; those of the study by default. For your own core, put the module
    that registers it in front: my_module:my_core."""
    seeds: tuple[int, ...] = ()
    """One run for each task, core and seed; those of the study by default."""
    jobs: int | None = None
    """Number of runs at the same time; None: as many as the CPU cores allow."""
    backend: BackendName = "local"
    """local: processes on this machine; submitit: a SLURM job array, or local processes where
    there is no SLURM; ray: a Ray cluster, by default one started on this machine."""
    backend_options: Pairs = field(default_factory=dict)
    """Options of submitit's executor (slurm_partition=gpu timeout_min=600 cpus_per_task=1), or of
    ray.init (address=auto)."""
    device: str | None = None
    """"cpu", "cuda" or "auto"; None: that of the study."""
    results: str = "experiments/results"
    """Folder of the tables."""
    folder: str = "runs"
    """Parent of the run folders."""
