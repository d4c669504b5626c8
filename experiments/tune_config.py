"""What `rlgates tune` can be told."""

from __future__ import annotations

from dataclasses import dataclass

from rlgates.experiments.supervised_tiers import Tier


@dataclass(frozen=True, kw_only=True)
class TuneConfig:
    """Which task and cores of a study are tuned, and how long."""

    tier: Tier = "laptop"
    """laptop, full: as `rlgates sweep` has them; smoke: runs of seconds, with tables beside the
    runs and not in `results`."""
    task: str = ""
    """One of its tasks or environments, by the beginning of its title; the only one if none is
    given."""
    cores: tuple[str, ...] = ()
    """Memory cores that are tuned, each by itself; those of the study if none is given."""
    parameters: tuple[str, ...] = ()
    """What is searched, as the study's space names it, such as learning_rate or rru.dropout; all
    of it if nothing is given."""
    trials: int = 20
    """Choices that are tried for each core, those of earlier calls among them."""
    seeds: tuple[int, ...] = ()
    """Runs of a trial, whose mean counts: none that the study reports; the one after the last of
    them if none is given."""
    sampler_seed: int = 0
    """Of what is tried: with one job, the same seed tries the same."""
    jobs: int = 1
    """Runs at a time, each in a process of its own."""
    device: str | None = None
    """"cpu", "cuda" or "auto"; None: as the study has it."""
    results: str = "experiments/results"
    """Where the tables are written."""
    folder: str = "runs"
    """Where the folders of the runs and the journals of the searches are made."""
