"""What a supervised run came to, what it is continued from, and the best weights it had."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from stable_baselines3.common.logger import Logger

from rlgates.experiments import logs
from rlgates.experiments.checkpoint import FORMAT, read_checkpoint
from rlgates.experiments.manifest import same_settings
from rlgates.experiments.supervised_check import task_title

if TYPE_CHECKING:
    from rlgates.experiments.supervise import Run

_PROGRESS = ("update", "seconds", "since", "losses", "metrics", "best", "waited", "left_out")


@dataclass(frozen=True)
class Learned:
    """What a run came to.

    Attributes:
        losses: (update, loss on the split "valid"), from before the first update on.
        metrics: the task's further figures there at the end.
        diverged_at: the update whose loss was no finite number, if there was one; the run
            ended there.
        test: all figures on the split "test", with the best weights; empty if there are none.
        best_update: when the task's metric was best on "valid".
        ended: "budget", "patience", "solved" or "diverged".
    """

    losses: list[tuple[int, float]]
    metrics: dict[str, float]
    baseline: float | None
    parameters: int
    state_size: int
    seconds: float
    diverged_at: int | None = None
    test: dict[str, float] = field(default_factory=dict)
    best_update: int | None = None
    ended: str = "budget"


def as_learned(found: dict[str, Any]) -> Learned:
    """`Learned` out of JSON."""
    losses = [(int(update), float(loss)) for update, loss in found["losses"]]
    return Learned(**{**found, "losses": losses})


def snapshot(run: Run, *, whole: bool = True) -> dict[str, Any]:
    """All that decides the future of a run between two updates, as plain data and tensors.

    Args:
        run: between two updates.
        whole: else the weights alone, and when and with which figures they were had.
    """
    weights = {
        "format": FORMAT,
        "config": run.settings,
        "reader": run.reader.state_dict(),
        "progress": {name: getattr(run, name) for name in _PROGRESS},
    }
    if not whole:
        return weights
    return {
        **weights,
        "optimizer": run.optimizer.state_dict(),
        "rate": run.rate.get_state(),
        "scaler": run.precision.scaler.state_dict(),
        "state": run.state,
        "feed": run.feed.get_state(),
        "random": {
            "torch": torch.get_rng_state(),
            "cuda": torch.cuda.get_rng_state_all() if run.device.type == "cuda" else [],
        },
    }


def restore(run: Run) -> Logger:
    """Go on from the last checkpoint, if there is one; the logs are as they were then.

    Raises:
        ValueError: the checkpoint is of another run or version, or damaged.
    """
    path = run.folder / "checkpoint"
    saved = read_checkpoint(path) if path.exists() else None
    if saved is not None:
        same_settings(run.folder, saved["config"], run.settings)
        if "feed" not in saved:
            raise ValueError(f"{path} was written by another version of rlgates: remove it.")
    run.folder.mkdir(parents=True, exist_ok=True)
    logs.rewind(run.folder, saved["logs"] if saved else None)
    logger = logs.make_logger(run.folder, task_title(run.config))
    if saved is None:
        return logger
    logs.restore_waiting(logger, saved["logs"])
    run.reader.load_state_dict(saved["reader"])
    run.optimizer.load_state_dict(saved["optimizer"])
    run.rate.set_state(saved["rate"])
    run.precision.scaler.load_state_dict(saved["scaler"])
    run.state = None if saved["state"] is None else saved["state"].to(run.device)
    run.feed.set_state(saved["feed"])
    for name in _PROGRESS:
        setattr(run, name, saved["progress"].get(name, getattr(run, name)))
    torch.set_rng_state(saved["random"]["torch"])
    if saved["random"]["cuda"]:
        torch.cuda.set_rng_state_all(saved["random"]["cuda"])
    return logger


def load_best(run: Run) -> dict[str, Any]:
    """The weights with which the task's metric was best on "valid".

    Raises:
        ValueError: they are gone, damaged, or of another run.
    """
    path = run.folder / "best"
    if not path.exists():
        raise ValueError(f"{path} is missing: put it back, or remove the folder to start again.")
    saved = read_checkpoint(path)
    same_settings(run.folder, saved["config"], run.settings)
    weights: dict[str, Any] = saved["reader"]
    return weights
