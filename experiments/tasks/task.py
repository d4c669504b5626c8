"""The contract of a supervised task: sequences, a loss, and the metrics that are reported."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from rlgates.deprecation import warn_renamed
from rlgates.errors import MAX_LENGTH, check_choice, check_size
from rlgates.experiments.tasks.cross_entropy import linear_cross_entropy

SPLITS = ("train", "valid", "test")
MANY_CLASSES = 1_000
"""From here on the predictions of a batch cost more than the network below them."""


class Batch(NamedTuple):
    """Sequences and their targets, time first.

    Attributes:
        inputs: numbers (T, B, input_size), or tokens (T, B), int64 below input_size.
        targets: for the last S steps, classes (S, B), int64, or numbers (S, B, O).
        mask: (S, B) bool, the targets that count; None for all of them.
        episode_starts: (T, B) bool, true where a sequence starts from the initial state; None if
            none starts inside. The first step of a batch is marked only if the task carries its
            state from batch to batch; otherwise each batch starts from the initial state anyway.
    """

    inputs: Tensor
    targets: Tensor
    mask: Tensor | None = None
    episode_starts: Tensor | None = None

    @property
    def starts(self) -> Tensor | None:
        """The former name of `episode_starts`."""
        warn_renamed("Batch.starts", "Batch.episode_starts")
        return self.episode_starts

    def count(self) -> int:  # type: ignore[override]
        """The number of targets that count."""
        steps, batch_size = self.targets.shape[:2]
        return steps * batch_size if self.mask is None else int(self.mask.sum())


class PublishedResult(NamedTuple):
    """A figure from a paper.

    Attributes:
        core: the name for `make_core`, or the nearest to it.
        value: of the task's metric.
        split: that it was measured on.
        source: paper and table.
    """

    core: str
    value: float
    split: str
    source: str


class Task(ABC):
    """A task: its batches, its loss, and its baseline without memory.

    Attributes:
        settings: names of the constructor's arguments.
        metric: the name of the figure by which runs are compared, one of `figures`.
        higher_is_better: whether a larger metric is better.
        published: results of papers with these settings.
        input_size: width of an input, or number of tokens.
        tokens: whether inputs are tokens.
        output_size: width of a prediction.
        scored: number of steps at the end of a sequence that have targets; None for all steps.
        carries_state: whether each sequence of a batch continues that of the batch before.
        starts_inside: whether sequences may start within a batch, see `Batch.episode_starts`.
        baseline: the loss of the best prediction without memory, or of one that knows only the
            frequencies of the targets; None if unknown.
    """

    settings: ClassVar[tuple[str, ...]] = ()
    metric: ClassVar[str] = "loss"
    higher_is_better: ClassVar[bool] = False
    published: tuple[PublishedResult, ...] = ()
    input_size: int
    tokens: bool = False
    output_size: int
    scored: int | None = None
    carries_state: bool = False
    starts_inside: bool = False
    baseline: float | None = None

    def prepare(self) -> None:  # noqa: B027 - generated tasks have nothing to load
        """Load the data, and download it if necessary, so that later runs need not.

        Raises:
            OSError, ImportError, ValueError: it is missing, damaged or unreadable.
        """

    @abstractmethod
    def batches(self, split: str, batch_size: int, generator: torch.Generator) -> Iterator[Batch]:
        """Batches of a split: an endless stream if "train" is generated, otherwise one epoch.

        Args:
            split: one of `SPLITS`.
            batch_size: sequences of a batch; the last one of an epoch may have fewer.
            generator: the only source of randomness: equal generators give equal batches.

        Raises:
            ValueError: an unknown split, or a batch size below 1.
        """

    def loss(self, predictions: Tensor, batch: Batch) -> Tensor:
        """The mean loss of predictions (S, B, output_size) over the targets that count.

        By default the targets are classes, and the loss is their cross-entropy in nats.
        """
        if batch.mask is None:
            return nn.functional.cross_entropy(predictions.flatten(0, 1), batch.targets.flatten())
        return nn.functional.cross_entropy(predictions[batch.mask], batch.targets[batch.mask])

    def decoder_loss(self, hidden: Tensor, decoder: nn.Linear, batch: Batch) -> Tensor | None:
        """`loss(decoder(hidden), batch)`, where it need not hold all predictions; else None.

        This is so for float32 and a cross-entropy over `MANY_CLASSES` or more.
        """
        few = decoder.out_features < MANY_CLASSES or hidden.dtype is not torch.float32
        if few or type(self).loss is not Task.loss:
            return None
        if batch.mask is None:
            rows, targets = hidden.flatten(0, 1), batch.targets.flatten()
        else:
            rows, targets = hidden[batch.mask], batch.targets[batch.mask]
        return linear_cross_entropy(rows, decoder.weight, decoder.bias, targets)

    def metrics(self, predictions: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Further means over the targets that count, by name."""
        return {}

    def figures(self, means: Mapping[str, float]) -> dict[str, float]:
        """The figures to report, from the means of loss and metrics over a split."""
        return dict(means)


class GeneratedTask(Task):
    """A task whose sequences are sampled on demand.

    The splits "valid" and "test" are `held_out` sequences each, sampled from the generator that
    `batches` gets.
    """

    held_out: ClassVar[int] = 1_000

    @abstractmethod
    def sample(self, batch_size: int, generator: torch.Generator) -> Batch:
        """New sequences, the same ones for equal generators."""

    def sample_held_out(self, batch_size: int, generator: torch.Generator) -> Batch:
        """Sequences of "valid" and "test", for tasks that train on a different distribution."""
        return self.sample(batch_size, generator)

    def batches(self, split: str, batch_size: int, generator: torch.Generator) -> Iterator[Batch]:
        check_choice("split", split, SPLITS)
        check_size("batch_size", batch_size, maximum=MAX_LENGTH)
        if split == "train":
            while True:
                yield self.sample(batch_size, generator)
        for first in range(0, self.held_out, batch_size):
            yield self.sample_held_out(min(batch_size, self.held_out - first), generator)


def accuracy(predictions: Tensor, batch: Batch) -> Tensor:
    """The share of the targets that count whose logit is the largest.

    A prediction with a non-finite logit is wrong.
    """
    correct = (predictions.argmax(dim=-1) == batch.targets) & predictions.isfinite().all(dim=-1)
    return (correct if batch.mask is None else correct[batch.mask]).float().mean()
