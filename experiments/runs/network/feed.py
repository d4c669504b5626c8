"""The training batches of a supervised run, from a position that can be saved and restored."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from rlgates.experiments.tasks import Batch, GeneratedTask, Task


class Feed:
    """An endless iterator over training batches.

    The position is the generator's state at the start of the epoch and the number of batches
    since; for generated sequences, which have no epochs, it is the generator's state alone.

    Args:
        task: its split "train" is used.
        batch_size: sequences per batch.
        generator: the only source of random numbers.

    Attributes:
        epoch: number of finished epochs.
        position: number of batches taken from the current epoch.
    """

    def __init__(self, task: Task, batch_size: int, generator: torch.Generator) -> None:
        self.task, self.batch_size, self.generator = task, batch_size, generator
        self.endless = isinstance(task, GeneratedTask)
        self.epoch = self.position = 0
        self._start = generator.get_state()
        self._batches: Iterator[Batch] | None = None
        self._ahead: Batch | None = None

    def draw(self) -> Batch:
        """Return the next batch; the epoch ends with its last one.

        Raises:
            ValueError: the task has no batch.
        """
        if self._batches is None:
            self._open()
        assert self._batches is not None
        if self.endless:
            return next(self._batches)
        batch = self._ahead
        if batch is None:
            raise ValueError(
                f"{type(self.task).__name__} has no training batch of {self.batch_size} sequences."
            )
        self.position += 1
        self._ahead = next(self._batches, None)
        if self._ahead is None:
            self.epoch, self.position = self.epoch + 1, 0
            self._start, self._batches = self.generator.get_state(), None
        return batch

    def _open(self) -> None:
        """Start the epoch, and skip the batches that were taken from it already."""
        self._batches = self.task.batches("train", self.batch_size, self.generator)
        if not self.endless:
            for _ in range(self.position):
                next(self._batches)
            self._ahead = next(self._batches, None)

    def get_state(self) -> dict[str, Any]:
        """The position, as plain data and a tensor."""
        start = self.generator.get_state() if self.endless else self._start
        return {"start": start, "epoch": self.epoch, "position": self.position}

    def set_state(self, state: dict[str, Any]) -> None:
        """Return to a position from `get_state`."""
        self._start, self._batches = state["start"], None
        self.generator.set_state(self._start)
        self.epoch, self.position = state["epoch"], state["position"]
