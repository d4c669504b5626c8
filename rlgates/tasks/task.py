"""What a supervised task is: sequences, a loss, and the figures that people look at."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from rlgates.errors import check_choice

SPLITS = ("train", "valid", "test")


class Batch(NamedTuple):
    """Sequences and what is to be said about them, time first.

    Attributes:
        inputs: numbers (T, B, input_size), or tokens (T, B), int64 below input_size.
        targets: for the last S steps, classes (S, B), int64, or numbers (S, B, O).
        mask: (S, B) bool, which targets count; None for all of them.
        starts: (T, B) bool, true where a sequence starts, so that the state is the initial one;
            None if none starts within. The first step of a batch is only told here if the task
            carries its state along: else each batch starts anew.
    """

    inputs: Tensor
    targets: Tensor
    mask: Tensor | None = None
    starts: Tensor | None = None

    def count(self) -> int:  # type: ignore[override]
        """How many targets count."""
        steps, rows = self.targets.shape[:2]
        return steps * rows if self.mask is None else int(self.mask.sum())


class Published(NamedTuple):
    """A figure of a paper.

    Attributes:
        core: the name that `make_core` knows, or the nearest to it.
        value: of the task's metric.
        split: that it was taken on.
        source: paper and table.
    """

    core: str
    value: float
    split: str
    source: str


class Task(ABC):
    """A task: its batches, its loss, and what is had without memory.

    Attributes:
        settings: names of the arguments of the constructor.
        metric: the name of the figure that runs are judged by, one of `figures`.
        higher_is_better: whether more of it is better.
        published: figures of papers for these settings.
        input_size: width of an input, or number of tokens.
        tokens: whether inputs are tokens.
        output_size: width of a prediction.
        scored: number of steps, at the end of a sequence, whose predictions are asked for; None
            for all of them.
        carries_state: whether a batch goes on where the one before ended, row by row.
        baseline: the loss of the best prediction that remembers nothing, or of one that knows
            the frequencies of the targets alone; None where nobody knows it.
        ceiling: the least loss there can be.
    """

    settings: ClassVar[tuple[str, ...]] = ()
    metric: ClassVar[str] = "loss"
    higher_is_better: ClassVar[bool] = False
    published: tuple[Published, ...] = ()
    input_size: int
    tokens: bool = False
    output_size: int
    scored: int | None = None
    carries_state: bool = False
    baseline: float | None = None
    ceiling: float = 0.0

    def prepare(self) -> None:  # noqa: B027 - where sequences are made up there is nothing to do
        """Read the data there are, or fetch them, so that no later run has to.

        Raises:
            OSError, ImportError, ValueError: they are not to be had, damaged, or cannot be read.
        """

    @abstractmethod
    def batches(self, split: str, batch_size: int, generator: torch.Generator) -> Iterator[Batch]:
        """Batches of a split: without end if the sequences of "train" are made up, else an epoch.

        Args:
            split: one of `SPLITS`.
            batch_size: sequences of a batch; the last one of an epoch may have fewer.
            generator: draws all there is to draw: the same one gives the same batches.

        Raises:
            ValueError: an unknown split.
        """

    @abstractmethod
    def loss(self, predictions: Tensor, batch: Batch) -> Tensor:
        """The mean loss of predictions (S, B, output_size) over what counts."""

    def metrics(self, predictions: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Means over what counts, beside the loss, by name."""
        return {}

    def figures(self, means: Mapping[str, float]) -> dict[str, float]:
        """What people look at, of the means of loss and metrics over a split."""
        return dict(means)


class Generated(Task):
    """A task whose sequences are made up as they are needed.

    The splits "valid" and "test" are `held_out` sequences each, drawn once by the generator that
    is given.
    """

    held_out: ClassVar[int] = 1_000

    @abstractmethod
    def sample(self, batch_size: int, generator: torch.Generator) -> Batch:
        """Fresh sequences, the same ones for the same generator."""

    def sample_held_out(self, batch_size: int, generator: torch.Generator) -> Batch:
        """The same of the splits "valid" and "test", for tasks that train on others."""
        return self.sample(batch_size, generator)

    def batches(self, split: str, batch_size: int, generator: torch.Generator) -> Iterator[Batch]:
        check_choice("split", split, SPLITS)
        if split == "train":
            while True:
                yield self.sample(batch_size, generator)
        for first in range(0, self.held_out, batch_size):
            yield self.sample_held_out(min(batch_size, self.held_out - first), generator)


def cross_entropy(predictions: Tensor, batch: Batch) -> Tensor:
    """Mean cross-entropy in nats of logits (S, B, classes), over the targets that count."""
    if batch.mask is None:
        return nn.functional.cross_entropy(predictions.flatten(0, 1), batch.targets.flatten())
    return nn.functional.cross_entropy(predictions[batch.mask], batch.targets[batch.mask])


def accuracy(predictions: Tensor, batch: Batch) -> Tensor:
    """The share of targets that count and have the largest logit.

    Where a logit is not finite, none of them has.
    """
    right = (predictions.argmax(dim=-1) == batch.targets) & predictions.isfinite().all(dim=-1)
    return (right if batch.mask is None else right[batch.mask]).float().mean()
