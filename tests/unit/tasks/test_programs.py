"""Learning to Execute: its programs against Python, its batches and its curricula."""

from __future__ import annotations

import contextlib
import io
import random
from itertools import islice

import pytest
import torch
from support.equivalence import seeded

from rlgates.experiments.tasks import Execute, ExecuteAddition, make_task
from rlgates.experiments.tasks.sets.execute import CURRICULA
from rlgates.experiments.tasks.sets.programs import (
    ANSWER,
    CHARACTERS,
    LANGUAGES,
    longest_answer,
    write_program,
)

NAMES = ("lte_addition", "lte_control", "lte_program")


def execute(name: str, **settings: object) -> Execute:
    task = make_task(name, **settings)
    assert isinstance(task, Execute)
    return task


def printed(program: str) -> str:
    """What Python prints when it runs the program."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        exec(program, {})
    return text.getvalue()


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize(("nesting", "length"), [(1, 1), (4, 9), (10, 3), (2, 15)])
def test_python_prints_the_same(language: str, nesting: int, length: int) -> None:
    source = random.Random(nesting)
    programs = [write_program(source, LANGUAGES[language], nesting, length) for _ in range(50)]
    for program, answer in programs:
        assert printed(program) == answer.removesuffix(".") + "\n"
        assert set(program) <= set(CHARACTERS)
        assert set(answer) <= set(ANSWER)
        assert len(answer) <= longest_answer(nesting, length)
    assert len(set(programs)) > 25


def test_programs_use_the_whole_language() -> None:
    source = random.Random(0)
    texts = "".join(write_program(source, LANGUAGES["program"], 4, 2)[0] for _ in range(200))
    assert set(texts) == set(CHARACTERS) - {"."}
    for part in ("-=", "+=", ")*", "*(", "=(", " if ", " else ", "<", ">", "+(", "-("):
        assert part in texts, f"{part!r} is never written"


def test_addition_is_of_two_numbers_of_full_length() -> None:
    task = ExecuteAddition(length=3, curriculum="none")
    for program, answer in task.programs(100, seeded(0), "none"):
        one, other = program.removeprefix("print(").removesuffix(")\n").split("+")
        assert 100 <= int(one) <= 999
        assert 100 <= int(other) <= 999
        assert answer == f"{int(one) + int(other)}."


@pytest.mark.parametrize("name", NAMES)
def test_batches_hold_programs_and_answers(name: str) -> None:
    task = execute(name, nesting=2, length=3)
    batch = task.sample(40, seeded(3))
    assert batch.mask is not None
    assert batch.episode_starts is not None
    assert batch.episode_starts.shape == batch.inputs.shape
    assert not batch.episode_starts[0].any()
    assert batch.targets.shape == batch.mask.shape == (task.scored, 40)
    pad = len(CHARACTERS)
    asked = len(batch.inputs) - len(batch.targets)  # the last character of a program
    for row, (program, answer) in enumerate(task.programs(40, seeded(3), "mix")):
        count = int(batch.mask[:, row].sum())
        said = "".join(ANSWER[c] for c in batch.targets[:count, row].tolist())
        assert said == answer
        assert not batch.mask[count:, row].any()
        begin = asked + 1 - len(program)
        tokens = batch.inputs[:, row].tolist()
        assert all(token == pad for token in tokens[:begin])
        assert "".join(CHARACTERS[c] for c in tokens[begin : asked + 1]) == program
        fed = "".join(CHARACTERS[c] for c in tokens[asked + 1 : asked + count])
        assert fed == answer[:-1]
        assert batch.episode_starts[:, row].nonzero().flatten().tolist() == (
            [begin] if begin else []
        )
    assert batch.count() == sum(len(a) for _, a in task.programs(40, seeded(3), "mix"))


def test_loss_and_accuracy_are_those_of_the_answers() -> None:
    task = execute("lte_program", nesting=2, length=2)
    batch = task.sample(30, seeded(0))
    assert batch.mask is not None
    right = torch.nn.functional.one_hot(batch.targets, len(ANSWER)) * 100.0
    noise = torch.where(batch.mask[..., None], right, torch.randn(right.shape, generator=seeded(1)))
    assert task.loss(noise, batch) < 1e-6
    assert task.metrics(noise, batch) == {"accuracy": 1}
    wrong = torch.where(batch.mask[..., None], right.roll(1, dims=-1), right)
    assert task.metrics(wrong, batch) == {"accuracy": 0}


def difficulties(task: Execute, curriculum: str, count: int = 300) -> set[tuple[int, int]]:
    """Length and nesting of sums: the digits of the first number, and the plus signs."""
    drawn = [text for text, _ in task.programs(count, seeded(1), curriculum)]
    return {(len(text.split("+")[1].strip("()\n")), text.count("+")) for text in drawn}


def test_curricula() -> None:
    task = execute("lte_addition", nesting=2, length=3)
    every = {(length, nesting) for length in (1, 2, 3) for nesting in (1, 2)}
    assert difficulties(task, "mix") == every
    assert difficulties(task, "none") == {(3, 2)}


@pytest.mark.parametrize("curriculum", CURRICULA)
def test_held_out_programs_are_of_full_difficulty(curriculum: str) -> None:
    task = execute("lte_addition", nesting=1, length=4, curriculum=curriculum)
    batches = list(task.batches("test", 300, seeded(0)))
    assert [batch.inputs.shape[1] for batch in batches] == [300, 300, 300, 100]
    assert all(
        not batch.episode_starts.any() for batch in batches if batch.episode_starts is not None
    )
    assert len(next(islice(task.batches("train", 4, seeded(0)), 1)).targets) == task.scored
    with pytest.raises(ValueError, match="unknown split"):
        next(task.batches("tests", 4, seeded(0)))
