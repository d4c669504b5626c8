"""The training batches of a supervised run: a place among them can be saved and found again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from rlgates.tasks import Batch, Generated, Task


class Feed:
    """Batch after batch, epoch after epoch.

    Made-up sequences have no epochs, and the generator alone says where one is. Else it is the
    generator's state at the start of the epoch and the number of batches since.

    Args:
        task: whose split "train" it is.
        batch_size: sequences of a batch.
        generator: draws all there is to draw.

    Attributes:
        epoch: how many are finished.
        position: batches that were taken out of the present epoch.
    """

    def __init__(self, task: Task, batch_size: int, generator: torch.Generator) -> None:
        self.task, self.batch_size, self.generator = task, batch_size, generator
        self.endless = isinstance(task, Generated)
        self.epoch = self.position = 0
        self._start = generator.get_state()
        self._batches: Iterator[Batch] | None = None
        self._ahead: Batch | None = None

    def draw(self) -> Batch:
        """The next batch; the epoch is over as soon as its last one is out.

        Raises:
            ValueError: there is none.
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
        """Begin the epoch, and skip what was taken out of it already."""
        self._batches = self.task.batches("train", self.batch_size, self.generator)
        if not self.endless:
            for _ in range(self.position):
                next(self._batches)
            self._ahead = next(self._batches, None)

    def get_state(self) -> dict[str, Any]:
        """Where it is, as plain data and a tensor."""
        start = self.generator.get_state() if self.endless else self._start
        return {"start": start, "epoch": self.epoch, "position": self.position}

    def set_state(self, state: dict[str, Any]) -> None:
        """Go to where `get_state` was called."""
        self._start, self._batches = state["start"], None
        self.generator.set_state(self._start)
        self.epoch, self.position = state["epoch"], state["position"]
