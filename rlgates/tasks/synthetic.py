"""Tasks that measure memory alone: copying symbols and adding marked numbers."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from rlgates.errors import check_choice, check_size
from rlgates.tasks.task import Batch, Generated, Published, accuracy, cross_entropy


class Copy(Generated):
    """Say ten symbols again after a delay (Hochreiter and Schmidhuber 1997; Gu et al. 2020).

    A sequence has N + 20 steps of one-hot inputs: 10 symbols out of 1 to 8, N blanks (0), and
    10 cues (9). During the cues the symbols are to be said in their order; these 10 predictions
    alone count. Without memory the loss is at best log 8, and 1 symbol in 8 is right.

    In the other form of the task (Ohno et al. 2022) a single cue is followed by 9 blanks, so that
    the steps that have passed since must be remembered, too.

    Args:
        delay: N, the number of blanks before the cues.
        cues: "ten" (Gu et al.) or "one" (Ohno et al.).
    """

    settings = ("delay", "cues")
    symbols, length = 8, 10

    def __init__(self, delay: int = 500, cues: str = "ten") -> None:
        self.delay = check_size("delay", delay, minimum=0)
        self.cues = check_choice("cues", cues, ("ten", "one"))
        self.input_size = self.symbols + 2
        self.output_size = self.symbols
        self.scored = self.length
        self.baseline = math.log(self.symbols)

    def sample(self, batch_size: int, generator: torch.Generator) -> Batch:
        said = torch.randint(self.symbols, (self.length, batch_size), generator=generator)
        blanks = said.new_zeros(self.delay, batch_size)
        cues = said.new_full((self.length, batch_size), self.symbols + 1)
        if self.cues == "one":
            cues[1:] = 0
        tokens = torch.cat([said + 1, blanks, cues])
        return Batch(nn.functional.one_hot(tokens, self.input_size).float(), said)

    def loss(self, predictions: Tensor, batch: Batch) -> Tensor:
        return cross_entropy(predictions, batch)

    def metrics(self, predictions: Tensor, batch: Batch) -> dict[str, Tensor]:
        """The share of symbols that are right."""
        return {"accuracy": accuracy(predictions, batch)}


class CopyABA(Generated):
    """Say symbols again after blanks, with no cue (GATO, anonymous 2020, section 5.2).

    A sequence is A B A: 20 symbols out of 1 to 10, 100 blanks (0), and the 20 symbols again. Each
    token is to be foretold from those before it, but the symbols of the second A alone count: the
    first is due when the last blank is read, which only counting can tell. Inputs are tokens.
    Without memory the loss is at best log 10 and the probability of the right symbol 0.1.

    Args:
        delay: number of blanks, at least 1.
        length: number of symbols, at least 1.
    """

    settings = ("delay", "length")
    metric, higher_is_better = "probability", True
    published = (
        Published("gato", 0.5, "test", "GATO, section 5.2: at least"),
        Published("gru", 0.1, "test", "GATO, section 5.2: near"),
        Published("lstm", 0.1, "test", "GATO, section 5.2: near"),
    )
    tokens = True
    symbols = 10

    def __init__(self, delay: int = 100, length: int = 20) -> None:
        self.delay = check_size("delay", delay)
        self.length = check_size("length", length)
        self.input_size = self.symbols + 1
        self.output_size = self.symbols
        self.scored = self.length
        self.baseline = math.log(self.symbols)

    def sample(self, batch_size: int, generator: torch.Generator) -> Batch:
        said = torch.randint(self.symbols, (self.length, batch_size), generator=generator)
        blanks = said.new_zeros(self.delay, batch_size)
        return Batch(torch.cat([said + 1, blanks, said[:-1] + 1]), said)

    def loss(self, predictions: Tensor, batch: Batch) -> Tensor:
        return cross_entropy(predictions, batch)

    def metrics(self, predictions: Tensor, batch: Batch) -> dict[str, Tensor]:
        """The mean probability of the right symbols, and the share that is the likeliest."""
        right = predictions.softmax(dim=-1).gather(-1, batch.targets.unsqueeze(-1))
        return {"probability": right.mean(), "accuracy": accuracy(predictions, batch)}


class Adding(Generated):
    """Add two marked numbers (Hochreiter and Schmidhuber 1997; Gu et al. 2020).

    A sequence has T steps of a number from U[0, 1] and a marker, which is 1 at one step of the
    first half and at one of the second, else 0. After the last step the sum of the two marked
    numbers is to be said; the loss is the squared error. To say 1 always costs 1/6.

    Args:
        steps: T, at least 2.
    """

    settings = ("steps",)

    def __init__(self, steps: int = 2000) -> None:
        self.steps = check_size("steps", steps, minimum=2)
        self.input_size, self.output_size, self.scored = 2, 1, 1
        self.baseline = 1 / 6

    def sample(self, batch_size: int, generator: torch.Generator) -> Batch:
        numbers = torch.rand(self.steps, batch_size, generator=generator)
        half, rows = self.steps // 2, torch.arange(batch_size)
        markers = torch.zeros_like(numbers)
        for low, high in ((0, half), (half, self.steps)):
            markers[torch.randint(low, high, (batch_size,), generator=generator), rows] = 1
        inputs = torch.stack([numbers, markers], dim=-1)
        return Batch(inputs, (numbers * markers).sum(dim=0)[None, :, None])

    def loss(self, predictions: Tensor, batch: Batch) -> Tensor:
        return nn.functional.mse_loss(predictions, batch.targets)


class Forgetting(Adding):
    """Adding, with gates that keep everything at first (Gu et al. 2020, appendix E.1).

    The sequences are those of Adding, with T = 500; what is new is the start of the core, whose
    forget biases are 6, so that nothing is forgotten: can it be unlearned? That start is an option
    of the core, and is told by the protocol "forgetting" of `rlgates.tasks.protocols`.

    Args:
        steps: T, at least 2.
    """

    def __init__(self, steps: int = 500) -> None:
        super().__init__(steps)
