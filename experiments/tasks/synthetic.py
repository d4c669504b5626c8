"""Synthetic memory tasks: copying symbols and adding marked numbers."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from rlgates.errors import MAX_LENGTH, check_choice, check_size
from rlgates.experiments.tasks.task import Batch, GeneratedTask, PublishedResult, accuracy


class Copy(GeneratedTask):
    """Reproduce ten symbols after a delay (Hochreiter and Schmidhuber 1997; Gu et al. 2020).

    A sequence has N + 20 steps of one-hot inputs: 10 symbols out of 1 to 8, N blanks (0), and
    10 cues (9). The targets are the symbols in their order, one at each cue; nothing else is
    scored. Without memory the loss is at least log 8 and the accuracy at most 1/8.

    In the variant of Ohno et al. 2022 a single cue is followed by 9 blanks, so that the core must
    also remember how many steps have passed since.

    Args:
        delay: N, the number of blanks before the cues.
        cues: "ten" (Gu et al.) or "one" (Ohno et al.).
    """

    settings = ("delay", "cues")
    symbols, length = 8, 10

    def __init__(self, delay: int = 500, cues: str = "ten") -> None:
        self.delay = check_size("delay", delay, minimum=0, maximum=MAX_LENGTH)
        self.cues = check_choice("cues", cues, ("ten", "one"))
        self.input_size = self.symbols + 2
        self.output_size = self.symbols
        self.scored = self.length
        self.baseline = math.log(self.symbols)

    def sample(self, batch_size: int, generator: torch.Generator) -> Batch:
        symbols = torch.randint(self.symbols, (self.length, batch_size), generator=generator)
        blanks = symbols.new_zeros(self.delay, batch_size)
        cues = symbols.new_full((self.length, batch_size), self.symbols + 1)
        if self.cues == "one":
            cues[1:] = 0
        tokens = torch.cat([symbols + 1, blanks, cues])
        return Batch(nn.functional.one_hot(tokens, self.input_size).float(), symbols)

    def metrics(self, predictions: Tensor, batch: Batch) -> dict[str, Tensor]:
        """The share of symbols that are predicted correctly."""
        return {"accuracy": accuracy(predictions, batch)}


class CopyABA(GeneratedTask):
    """Reproduce symbols after blanks, without a cue (GATO, anonymous 2020, section 5.2).

    A sequence is A B A: 20 symbols out of 1 to 10, 100 blanks (0), and the 20 symbols again. Each
    token is predicted from those before it, but only the symbols of the second A are scored. The
    first one is due at the last blank, which the core must know by counting. Inputs are tokens.
    Without memory the loss is at least log 10, and the probability of the correct symbol 0.1.

    Args:
        delay: number of blanks, at least 1.
        length: number of symbols, at least 1.
    """

    settings = ("delay", "length")
    metric, higher_is_better = "probability", True
    published: tuple[PublishedResult, ...] = (
        PublishedResult("gato", 0.5, "test", "GATO, section 5.2: at least"),
        PublishedResult("gru", 0.1, "test", "GATO, section 5.2: near"),
        PublishedResult("lstm", 0.1, "test", "GATO, section 5.2: near"),
    )
    tokens = True
    symbols = 10

    def __init__(self, delay: int = 100, length: int = 20) -> None:
        self.delay = check_size("delay", delay, maximum=MAX_LENGTH)
        self.length = check_size("length", length, maximum=MAX_LENGTH)
        if (self.delay, self.length) != (100, 20):
            self.published = ()
        self.input_size = self.symbols + 1
        self.output_size = self.symbols
        self.scored = self.length
        self.baseline = math.log(self.symbols)

    def sample(self, batch_size: int, generator: torch.Generator) -> Batch:
        symbols = torch.randint(self.symbols, (self.length, batch_size), generator=generator)
        blanks = symbols.new_zeros(self.delay, batch_size)
        return Batch(torch.cat([symbols + 1, blanks, symbols[:-1] + 1]), symbols)

    def metrics(self, predictions: Tensor, batch: Batch) -> dict[str, Tensor]:
        """The mean probability of the correct symbols, and the accuracy."""
        correct = predictions.softmax(dim=-1).gather(-1, batch.targets.unsqueeze(-1))
        return {"probability": correct.mean(), "accuracy": accuracy(predictions, batch)}


class Adding(GeneratedTask):
    """Add two marked numbers (Hochreiter and Schmidhuber 1997; Gu et al. 2020).

    A sequence has T steps of a number from U[0, 1] and a marker, which is 1 at one step of the
    first half and at one of the second, otherwise 0. The target, after the last step, is the sum
    of the two marked numbers; the loss is the squared error. Always predicting 1 costs 1/6.

    Args:
        steps: T, at least 2.
    """

    settings = ("steps",)

    def __init__(self, steps: int = 2000) -> None:
        self.steps = check_size("steps", steps, minimum=2, maximum=MAX_LENGTH)
        self.input_size, self.output_size, self.scored = 2, 1, 1
        self.baseline = 1 / 6

    def sample(self, batch_size: int, generator: torch.Generator) -> Batch:
        numbers = torch.rand(self.steps, batch_size, generator=generator)
        half, columns = self.steps // 2, torch.arange(batch_size)
        markers = torch.zeros_like(numbers)
        for low, high in ((0, half), (half, self.steps)):
            markers[torch.randint(low, high, (batch_size,), generator=generator), columns] = 1
        inputs = torch.stack([numbers, markers], dim=-1)
        return Batch(inputs, (numbers * markers).sum(dim=0)[None, :, None])

    def loss(self, predictions: Tensor, batch: Batch) -> Tensor:
        return nn.functional.mse_loss(predictions, batch.targets)


class Forgetting(Adding):
    """Adding with initially saturated forget gates (Gu et al. 2020, appendix E.1).

    The sequences are those of Adding, with T = 500. The core's forget biases start at 6, so that
    it forgets nothing until training changes them. That initial bias is an option of the core,
    which the protocol "forgetting-gu" of `configs.published` sets.

    Args:
        steps: T, at least 2.
    """

    def __init__(self, steps: int = 500) -> None:
        super().__init__(steps)
