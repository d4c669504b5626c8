"""Small supervised tasks: a text with a carried state, and a classification in epochs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from rlgates.experiments.tasks import Batch, PublishedResult, Task
from rlgates.experiments.tasks.task import accuracy


class Text(Task):
    """Predict the next of 5 tokens, in windows of 3 or 4 steps, sampled by the generator.

    Every 7th step of each sequence is an episode start.
    """

    metric = "perplexity"
    published = (PublishedResult("gru", 4.5, "test", "nobody, table 1"),)
    tokens = True
    carries_state = True

    def __init__(self) -> None:
        self.input_size = self.output_size = 5
        self.baseline = math.log(5)

    def text(self, split: str, batch_size: int) -> Tensor:
        seed = ("train", "valid", "test").index(split)
        return torch.randint(5, (21, batch_size), generator=torch.Generator().manual_seed(seed))

    def batches(self, split: str, batch_size: int, generator: torch.Generator) -> Iterator[Batch]:
        text, at = self.text(split, batch_size), 0
        while at < len(text) - 1:
            length = int(torch.randint(3, 5, (), generator=generator))
            steps = min(length, len(text) - 1 - at) if split == "train" else 4
            starts = torch.arange(at, at + steps).remainder(7).eq(0)[:, None]
            window = text[at : at + steps + 1]
            yield Batch(window[:-1], window[1:], None, starts.expand(-1, batch_size))
            at += steps

    def metrics(self, predictions: Tensor, batch: Batch) -> dict[str, Tensor]:
        return {"accuracy": accuracy(predictions, batch)}

    def figures(self, means: Mapping[str, float]) -> dict[str, float]:
        return {
            **means,
            "perplexity": math.exp(means["loss"]),
            "bits_per_character": means["loss"] / math.log(2),
        }


class Parity(Task):
    """Whether the sum of 3 or 4 numbers is above 0: 10 sequences an epoch, shuffled, padded.

    The last two steps have the class as target, unless they are padding.
    """

    metric = "accuracy"
    higher_is_better = True

    def __init__(self) -> None:
        self.input_size, self.output_size, self.scored = 2, 2, 2
        self.baseline = math.log(2)

    def batches(self, split: str, batch_size: int, generator: torch.Generator) -> Iterator[Batch]:
        numbers = torch.randn(4, 10, 2, generator=torch.Generator().manual_seed(len(split)))
        classes = (numbers.sum(dim=(0, 2)) > 0).long().expand(2, -1)
        mask = torch.ones(2, 10, dtype=torch.bool)
        mask[1, ::2] = False
        order = torch.randperm(10, generator=generator) if split == "train" else torch.arange(10)
        for indices in order.split(batch_size):
            yield Batch(numbers[:, indices], classes[:, indices], mask[:, indices])

    def metrics(self, predictions: Tensor, batch: Batch) -> dict[str, Tensor]:
        return {"accuracy": accuracy(predictions, batch)}
