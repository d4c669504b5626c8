"""Learning to Execute: read a program by character, and write what it prints."""

from __future__ import annotations

from random import Random
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from rlgates.errors import check_choice, check_size
from rlgates.tasks.programs import (
    ANSWER,
    CHARACTERS,
    LANGUAGES,
    MOST_DIGITS,
    MOST_NESTING,
    longest_answer,
    write_program,
)
from rlgates.tasks.task import Batch, Generated, accuracy, cross_entropy

CURRICULA = ("mix", "none")
_PAD = len(CHARACTERS)
_TOKENS = bytes(max(CHARACTERS.find(chr(code)), 0) if code else _PAD for code in range(256))


class Execute(Generated):
    """Programs of a language (Zaremba and Sutskever 2014; Gu et al. 2020, appendix E.3).

    A row is a program by character, then the characters of its answer but the last, each fed back
    after it was due (teacher forcing). The last character of the program, a line feed, asks for
    the first one of the answer; a full stop ends the answer, and counts as one of its characters.
    Programs are padded in front, so that all answers of a batch begin at the same step; `starts`
    says where each program begins. Inputs are tokens, places in `CHARACTERS` (the padding comes
    after them all); classes are places in `ANSWER`, of which those in `mask` count. Batches are as
    long as their longest program. The accuracy is that of single characters.

    A program has `nesting` operations, each of which takes the result of the one before. What Gu
    et al. do not state is as in Zaremba and Sutskever: numbers come from 1 to 10^length, small
    numbers (rounds of a loop, factors) from 1 to 4 length, and all operations are as likely.

    The curriculum says what is trained on; the splits "valid" and "test" always have the full
    length and nesting:

    - mix: each program has a length and a nesting of its own, uniform up to the full ones.
    - none: the full length and nesting from the start (the baseline of the paper).

    Args:
        nesting: number of operations of a program, 1 to 10.
        length: of its numbers, 1 to 15 digits.
        curriculum: one of `CURRICULA`.
    """

    settings = ("nesting", "length", "curriculum")
    metric, higher_is_better = "accuracy", True
    tokens = True
    language: ClassVar[str]
    exact: ClassVar[bool] = False

    def __init__(self, nesting: int = 4, length: int = 9, curriculum: str = "mix") -> None:
        self.nesting = check_size("nesting", nesting)
        self.length = check_size("length", length)
        for name, given, most in (
            ("nesting", nesting, MOST_NESTING),
            ("length", length, MOST_DIGITS),
        ):
            if given > most:
                raise ValueError(f"{name} must be at most {most}, got {given}.")
        self.curriculum = check_choice("curriculum", curriculum, CURRICULA)
        self.input_size, self.output_size = len(CHARACTERS) + 1, len(ANSWER)
        self.scored = longest_answer(nesting, length)

    def programs(
        self, count: int, generator: torch.Generator, curriculum: str
    ) -> list[tuple[str, str]]:
        """Programs and their answers, the same ones for the same generator."""
        seed = torch.randint(2**62, (), generator=generator)
        random = Random(int(seed))
        operations = LANGUAGES[self.language]
        drawn = []
        for _ in range(count):
            length, nesting = self._difficulty(random, curriculum)
            drawn.append(write_program(random, operations, nesting, length, self.exact))
        return drawn

    def _difficulty(self, random: Random, curriculum: str) -> tuple[int, int]:
        if curriculum == "none":
            return self.length, self.nesting
        return 1 + int(random.random() * self.length), 1 + int(random.random() * self.nesting)

    def sample(self, batch_size: int, generator: torch.Generator) -> Batch:
        return self._batch(self.programs(batch_size, generator, self.curriculum))

    def sample_held_out(self, batch_size: int, generator: torch.Generator) -> Batch:
        return self._batch(self.programs(batch_size, generator, "none"))

    def _batch(self, programs: list[tuple[str, str]]) -> Batch:
        longest = max(len(program) for program, _ in programs)
        assert self.scored is not None
        text = "".join(
            program.rjust(longest, "\0") + answer.ljust(self.scored, "\0")
            for program, answer in programs
        )
        characters = np.frombuffer(text.encode().translate(_TOKENS), dtype=np.uint8)
        rows = torch.from_numpy(characters.astype(np.int64)).view(len(programs), -1)
        tokens = rows.t().contiguous()
        targets = tokens[longest:]
        mask = targets != _PAD
        begins = torch.tensor([longest - len(program) for program, _ in programs])
        starts = torch.arange(len(tokens) - 1)[:, None] == begins
        starts[0] = False  # a batch starts anew by itself
        return Batch(tokens[:-1], targets.masked_fill(~mask, 0), mask, starts)

    def loss(self, predictions: Tensor, batch: Batch) -> Tensor:
        return cross_entropy(predictions, batch)

    def metrics(self, predictions: Tensor, batch: Batch) -> dict[str, Tensor]:
        """The share of the answers' characters that are right."""
        return {"accuracy": accuracy(predictions, batch)}


class ExecuteAddition(Execute):
    """`Execute`, programs that add: `print(398345+425098)`, numbers of exactly `length` digits.

    One operation by default, so that there are two numbers; with a larger nesting there is one
    number more for each, in brackets.
    """

    language, exact = "addition", True

    def __init__(self, nesting: int = 1, length: int = 9, curriculum: str = "mix") -> None:
        super().__init__(nesting, length, curriculum)


class ExecuteControl(Execute):
    """`Execute`, programs of loops and choices alone, as Santoro et al. 2018 have them."""

    language = "control"


class ExecuteProgram(Execute):
    """`Execute`, the full language: sums, products, variables, loops, choices."""

    language = "program"
