"""The network of supervised tasks: encoders, decoders, dropout, the state in and out."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from toy_tasks import Parity, Text

from rlgates import make_core
from rlgates.tasks import Copy, Reader, make_reader


def tokens(steps: int = 6, rows: int = 3) -> torch.Tensor:
    return torch.randint(5, (steps, rows), generator=torch.Generator().manual_seed(0))


def test_a_reader_is_the_core_and_an_affine_map() -> None:
    task = Copy(2)
    torch.manual_seed(0)
    core = make_core("ur_lstm", task.input_size, 4)
    decoder = torch.nn.Linear(4, task.output_size)
    torch.manual_seed(0)
    reader = make_reader(task, "ur_lstm", 4)
    x = task.sample(3, torch.Generator().manual_seed(0)).inputs
    expected = decoder(core(x)[0][-task.length :])
    assert torch.equal(reader(x), expected), "the weights are drawn in this order"
    torch.manual_seed(0)
    same = Reader(make_core("ur_lstm", task.input_size, 4), task)
    assert torch.equal(same(x), expected)


@pytest.mark.parametrize("options", [{}, {"embedding_size": 3, "decoder_size": 7}])
def test_parts_of_a_text_equal_the_whole(options: dict[str, Any]) -> None:
    reader = make_reader(Text(), "gru", 4, 2, **options)
    x, starts = tokens(), torch.zeros(6, 3, dtype=torch.bool)
    starts[4, 1] = True
    whole, last = reader.read(x, None, starts)
    one, state = reader.read(x[:2], None, starts[:2])
    two, state = reader.read(x[2:], state, starts[2:])
    torch.testing.assert_close(torch.cat([one, two]), whole)
    torch.testing.assert_close(state, last)
    assert whole.shape == (6, 3, 5)
    assert not torch.allclose(reader.read(x)[0], whole), "starts do nothing"


@pytest.mark.parametrize(("width", "between"), [(4, 0), (3, 1)])
def test_shared_weights(width: int, between: int) -> None:
    reader = make_reader(Text(), "lstm", 4, embedding_size=width, tied=True)
    assert len(reader.below) == between
    assert reader.embedding is not None
    assert reader.decoder.weight is reader.embedding.weight
    shapes = {name: p.shape for name, p in reader.named_parameters()}
    assert shapes["decoder.weight"] == (5, width)
    assert "embedding.weight" not in shapes, "the optimizer would see it twice"
    reader.read(tokens())[0].sum().backward()
    assert reader.decoder.weight.grad is not None


def test_dropout_acts_while_training_alone() -> None:
    torch.manual_seed(0)
    for options in ({"input_dropout": 0.5}, {"output_dropout": 0.5, "decoder_size": 8}):
        reader = make_reader(Text(), "gru", 4, embedding_size=3, **options)
        assert not torch.equal(reader(tokens()), reader(tokens()))
        reader.eval()
        assert torch.equal(reader(tokens()), reader(tokens()))


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
        make_reader(Text(), "gru", 4, **options)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="for tasks of tokens"):
        make_reader(Parity(), "gru", 4, embedding_size=3)
    with pytest.raises(ValueError, match="must read 5 numbers a step, got 4"):
        Reader(make_core("gru", 4, 4), Text())
    with pytest.raises(ValueError, match="2 steps or more, got 1"):
        make_reader(Parity(), "gru", 4)(torch.zeros(1, 3, 2))
