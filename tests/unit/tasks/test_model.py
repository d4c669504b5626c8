"""The network of supervised tasks: encoder, decoder, dropout, and the state in and out."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.toy_tasks import Parity, Text

from rlgates import make_core
from rlgates.experiments.tasks import Copy, SequenceModel, make_sequence_model, make_task


def tokens(steps: int = 6, rows: int = 3) -> torch.Tensor:
    return torch.randint(5, (steps, rows), generator=torch.Generator().manual_seed(0))


def test_a_model_is_the_core_and_an_affine_map() -> None:
    task = Copy(2)
    torch.manual_seed(0)
    core = make_core("ur_lstm", task.input_size, 4)
    decoder = torch.nn.Linear(4, task.output_size)
    torch.manual_seed(0)
    model = make_sequence_model(task, "ur_lstm", 4)
    x = task.sample(3, torch.Generator().manual_seed(0)).inputs
    expected = decoder(core(x)[0][-task.length :])
    assert torch.equal(model(x), expected), "the weights are drawn in this order"
    torch.manual_seed(0)
    same = SequenceModel(make_core("ur_lstm", task.input_size, 4), task)
    assert torch.equal(same(x), expected)


@pytest.mark.parametrize("options", [{}, {"embedding_size": 3, "decoder_size": 7}])
def test_parts_of_a_text_equal_the_whole(options: dict[str, Any]) -> None:
    model = make_sequence_model(Text(), "gru", 4, 2, **options)
    x, episode_starts = tokens(), torch.zeros(6, 3, dtype=torch.bool)
    episode_starts[4, 1] = True
    whole, last = model.unroll(x, None, episode_starts)
    one, state = model.unroll(x[:2], None, episode_starts[:2])
    two, state = model.unroll(x[2:], state, episode_starts[2:])
    torch.testing.assert_close(torch.cat([one, two]), whole)
    torch.testing.assert_close(state, last)
    assert whole.shape == (6, 3, 5)
    assert not torch.allclose(model.unroll(x)[0], whole), "episode_starts have no effect"


@pytest.mark.parametrize(("width", "between"), [(4, 0), (3, 1)])
def test_shared_weights(width: int, between: int) -> None:
    model = make_sequence_model(Text(), "lstm", 4, embedding_size=width, tied=True)
    assert len(model.below) == between
    assert model.embedding is not None
    assert model.decoder.weight is model.embedding.weight
    shapes = {name: p.shape for name, p in model.named_parameters()}
    assert shapes["decoder.weight"] == (5, width)
    assert "embedding.weight" not in shapes, "the optimizer would see it twice"
    model.unroll(tokens())[0].sum().backward()
    assert model.decoder.weight.grad is not None


def test_dropout_acts_only_while_training() -> None:
    torch.manual_seed(0)
    for options in ({"input_dropout": 0.5}, {"output_dropout": 0.5, "decoder_size": 8}):
        model = make_sequence_model(Text(), "gru", 4, embedding_size=3, **options)
        assert not torch.equal(model(tokens()), model(tokens()))
        model.eval()
        assert torch.equal(model(tokens()), model(tokens()))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tied": True}, "tied=True needs an embedding_size"),
        ({"tied": True, "embedding_size": 3, "decoder_size": 4}, "decoder_size of 3 or None"),
        ({"embedding_size": 0}, "embedding_size must be at least 1"),
        ({"decoder_size": 0}, "decoder_size must be at least 1"),
        ({"input_dropout": 1.0}, "input_dropout must be at least 0 and below 1"),
        ({"output_dropout": -0.1}, "output_dropout must be"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_sequence_model(Text(), "gru", 4, **options)


def test_a_core_or_input_that_does_not_fit_is_an_error() -> None:
    with pytest.raises(ValueError, match="for tasks of tokens"):
        make_sequence_model(Parity(), "gru", 4, embedding_size=3)
    with pytest.raises(ValueError, match="must have input_size 5, got 4"):
        SequenceModel(make_core("gru", 4, 4), Text())
    with pytest.raises(ValueError, match="2 steps or more, got 1"):
        make_sequence_model(Parity(), "gru", 4)(torch.zeros(1, 3, 2))


@pytest.mark.parametrize("embedding_size", [None, 4])
@pytest.mark.parametrize(
    ("tokens", "error", "message"),
    [
        (torch.tensor([[0, 41]]), ValueError, "tokens must be from 0 to 40, got 41"),
        (torch.tensor([[0, -1]]), ValueError, "tokens must be from 0 to 40, got -1"),
        (torch.zeros(3, 2), TypeError, "tokens must be int64, got torch.float32"),
        (torch.zeros(3, 2, dtype=torch.int32), TypeError, "tokens must be int64, got torch.int32"),
        (torch.zeros(3, dtype=torch.int64), ValueError, r"must be \(T, B\), not empty, got \(3,\)"),
        (torch.zeros(0, 2, dtype=torch.int64), ValueError, r"not empty, got \(0, 2\)"),
    ],
)
def test_tokens_are_checked(
    tokens: torch.Tensor, error: type[Exception], message: str, embedding_size: int | None
) -> None:
    model = make_sequence_model(make_task("lte_addition"), "lstm", 4, embedding_size=embedding_size)
    with pytest.raises(error, match=message):
        model(tokens)


@pytest.mark.parametrize("name", ["copy", "lte_addition", "digits"])
def test_batches_hold_a_sequence_or_more(name: str) -> None:
    task = make_task(name)
    for size in (0, -1):
        with pytest.raises(ValueError, match=f"batch_size must be at least 1, got {size}"):
            next(task.batches("train", size, torch.Generator()))
    with pytest.raises(TypeError, match=r"batch_size must be an integer, got 2\.5"):
        next(task.batches("train", 2.5, torch.Generator()))  # type: ignore[arg-type]
