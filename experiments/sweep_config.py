"""What `rlgates sweep` can be told."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from rlgates.experiments.configs import Pairs
from rlgates.experiments.supervised_tiers import Tier

BackendName = Literal["local", "submitit", "ray"]


@dataclass(frozen=True, kw_only=True)
class SweepConfig:
    """How much of a study is made, and where."""

    tier: Tier = "laptop"
    """laptop: an hour or two of two CPU cores; full: as the papers have it; smoke: the laptop's
    grid in seconds, with tables beside the runs and not in `results`."""
    tasks: tuple[str, ...] = ()
    """Some of its tasks or environments, by their titles or the beginning of them; all if none is
    given."""
    cores: tuple[str, ...] = ()
    """Memory cores that are compared; those of the study if none is given."""
    seeds: tuple[int, ...] = ()
    """One run for each task, core and seed; those of the study if none is given."""
    jobs: int | None = None
    """Runs at a time; None: as many as there are CPU cores for."""
    backend: BackendName = "local"
    """local: processes of this machine; submitit: SLURM, or processes that it starts here; ray: a
    Ray cluster, or one that is started here."""
    backend_options: Pairs = field(default_factory=dict)
    """Of submitit's executor (slurm_partition=gpu timeout_min=600 cpus_per_task=1), or of
    ray.init (address=auto)."""
    device: str | None = None
    """"cpu", "cuda" or "auto"; None: as the study has it."""
    results: str = "experiments/results"
    """Where the tables are written."""
    folder: str = "runs"
    """Where the folders of the runs are made."""
