"""What a supervised task gives, and the network that is trained on it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from rlgates.core import Core


class Batch(NamedTuple):
    """Sequences and what is to be said about them.

    Attributes:
        inputs: (T, B, input_size).
        targets: for the last steps of each sequence, (scored, B) classes or (scored, B, O)
            numbers.
    """

    inputs: Tensor
    targets: Tensor


class Task(ABC):
    """A task that is given by its sequences, its loss and what can be had without memory.

    Attributes:
        settings: names of the arguments of the constructor.
        input_size, output_size: widths of an input and of a prediction.
        scored: number of steps, at the end of a sequence, whose predictions count.
        baseline: the loss of the best prediction that remembers nothing.
    """

    settings: ClassVar[tuple[str, ...]]
    input_size: int
    output_size: int
    scored: int
    baseline: float

    @abstractmethod
    def sample(self, batch_size: int, generator: torch.Generator) -> Batch:
        """Fresh sequences, the same ones for the same generator."""

    @abstractmethod
    def loss(self, predictions: Tensor, targets: Tensor) -> Tensor:
        """The mean loss of predictions (scored, B, output_size)."""

    def metrics(self, predictions: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """What people look at beside the loss, by name."""
        return {}


class Reader(nn.Module):
    """A core, and an affine map of its outputs to predictions.

    Args:
        core: the core.
        task: for the number of predictions and their width.
    """

    def __init__(self, core: Core, task: Task) -> None:
        super().__init__()
        self.core = core
        self.decoder = nn.Linear(core.output_size, task.output_size)
        self.scored = task.scored

    def forward(self, inputs: Tensor) -> Tensor:
        """Predictions (scored, B, output_size) from the inputs (T, B, input_size)."""
        outputs, _ = self.core(inputs)
        predictions: Tensor = self.decoder(outputs[-self.scored :])
        return predictions
