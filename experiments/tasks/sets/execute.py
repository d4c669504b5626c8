"""Learning to Execute: read a program character by character, and predict its output."""

from __future__ import annotations

from random import Random
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from rlgates.errors import check_choice, check_size
from rlgates.experiments.tasks.sets.programs import (
    ANSWER,
    CHARACTERS,
    LANGUAGES,
    MAX_DIGITS,
    MAX_NESTING,
    longest_answer,
    write_program,
)
from rlgates.experiments.tasks.task import Batch, GeneratedTask, accuracy

CURRICULA = ("mix", "none")
_PAD = len(CHARACTERS)
_TOKENS = bytes(max(CHARACTERS.find(chr(code)), 0) if code else _PAD for code in range(256))


class Execute(GeneratedTask):
    """Programs of a language (Zaremba and Sutskever 2014; Gu et al. 2020, appendix E.3).

    A sequence is the characters of a program, then those of its output but the last, each fed
    in one step after it was the target (teacher forcing). The first character of the output is
    predicted at the program's last character, a line feed; a full stop ends the output and counts
    as one of its characters. Programs are padded in front, so that all outputs of a batch begin
    at the same step; `episode_starts` says where each program begins. Inputs are tokens, indices
    into `CHARACTERS` (followed by the padding token); classes are indices into `ANSWER`. Batches
    are as long as their longest program. The accuracy is that of single characters.

    A program has `nesting` operations, each of which takes the result of the one before. What Gu
    et al. do not state is as in Zaremba and Sutskever: numbers are from 1 to 10^length, small
    numbers (rounds of a loop, factors) from 1 to 4 length, and all operations equally likely.

    The curriculum determines the training programs; those of "valid" and "test" always have the
    full length and nesting:

    - mix: each program has its own length and nesting, uniform up to the full ones.
    - none: the full length and nesting from the start (the baseline of the paper).

    Args:
        nesting: number of operations of a program, 1 to 10.
        length: digits of its numbers, 1 to 15.
        curriculum: one of `CURRICULA`.
    """

    settings = ("nesting", "length", "curriculum")
    metric, higher_is_better = "accuracy", True
    tokens = starts_inside = True
    language: ClassVar[str]
    exact: ClassVar[bool] = False

    def __init__(self, nesting: int = 4, length: int = 9, curriculum: str = "mix") -> None:
        self.nesting = check_size("nesting", nesting)
        self.length = check_size("length", length)
        for name, value, maximum in (
            ("nesting", nesting, MAX_NESTING),
            ("length", length, MAX_DIGITS),
        ):
            if value > maximum:
                raise ValueError(f"{name} must be at most {maximum}, got {value}.")
        self.curriculum = check_choice("curriculum", curriculum, CURRICULA)
        self.input_size, self.output_size = len(CHARACTERS) + 1, len(ANSWER)
        self.scored = longest_answer(nesting, length)

    def programs(
        self, count: int, generator: torch.Generator, curriculum: str
    ) -> list[tuple[str, str]]:
        """Programs and their outputs, the same ones for equal generators."""
        seed = torch.randint(2**62, (), generator=generator)
        random = Random(int(seed))
        operations = LANGUAGES[self.language]
        programs = []
        for _ in range(count):
            length, nesting = self.length, self.nesting
            if curriculum != "none":
                length = 1 + int(random.random() * length)
                nesting = 1 + int(random.random() * nesting)
            programs.append(write_program(random, operations, nesting, length, self.exact))
        return programs

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
        sequences = torch.from_numpy(characters.astype(np.int64)).view(len(programs), -1)
        tokens = sequences.t().contiguous()
        targets = tokens[longest:]
        mask = targets != _PAD
        begins = torch.tensor([longest - len(program) for program, _ in programs])
        starts = torch.arange(len(tokens) - 1)[:, None] == begins
        starts[0] = False  # each batch starts from the initial state anyway
        return Batch(tokens[:-1], targets.masked_fill(~mask, 0), mask, starts)

    def metrics(self, predictions: Tensor, batch: Batch) -> dict[str, Tensor]:
        """The share of the output characters that are predicted correctly."""
        return {"accuracy": accuracy(predictions, batch)}


class ExecuteAddition(Execute):
    """`Execute` with sums: `print(398345+425098)`, numbers of exactly `length` digits.

    A program has `nesting` + 1 numbers, two by default; further sums are in brackets.
    """

    language, exact = "addition", True

    def __init__(self, nesting: int = 1, length: int = 9, curriculum: str = "mix") -> None:
        super().__init__(nesting, length, curriculum)


class ExecuteControl(Execute):
    """`Execute` with loops and conditionals only (Santoro et al. 2018)."""

    language = "control"


class ExecuteProgram(Execute):
    """`Execute` with the full language: sums, products, variables, loops, conditionals."""

    language = "program"
