"""`rlgates.nn`: every core behind torch's call; `LSTM` and `GRU` equal torch's."""

from __future__ import annotations

import copy
import pickle
import re
from typing import Any

import pytest
import torch
from support.cases import every_core, small
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence, unpack_sequence

import rlgates
from rlgates import Core, register_core
from rlgates.cores import GRU as GRUCell
from rlgates.cores import LSTM as LSTMCell
from rlgates.nn import GRU, LSTM, Recurrent
from rlgates.registry import CORES

INPUTS, HIDDEN = 3, 6
LENGTHS = (4, 7, 2, 7)

pairs = pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU], ids=["lstm", "gru"])
options = pytest.mark.parametrize(
    "kwargs",
    [
        {},
        {"num_layers": 2, "batch_first": True},
        {"num_layers": 2, "bidirectional": True},
        {"bias": False, "bidirectional": True},
    ],
    ids=str,
)


def everything(module: nn.Module, x: Any, *hx: Any) -> list[Tensor]:
    """Outputs, final state, and the gradient of the input."""
    leaf = (x.data if isinstance(x, PackedSequence) else x).requires_grad_()
    output, final = module(x, *hx)
    data = output.data if isinstance(output, PackedSequence) else output
    finals = final if isinstance(final, tuple) else (final,)
    loss = data.sin().sum() + sum((part.cos() * part).sum() for part in finals)
    (gradient,) = torch.autograd.grad(loss, leaf)
    return [data, *finals, gradient]


def check(module: Any, *arguments: Any) -> None:
    ours = Recurrent.from_torch(module)
    for result, expected in zip(
        everything(ours, *arguments), everything(module, *arguments), strict=True
    ):
        torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-5)
    back = ours.to_torch()
    for name, parameter in module.named_parameters():
        assert torch.equal(getattr(back, name), parameter)


@pairs
@options
def test_equals_torch(kind: Any, kwargs: dict[str, Any]) -> None:
    module = kind(INPUTS, HIDDEN, **kwargs)
    check(module, torch.randn(5, 4, INPUTS))
    check(module, torch.randn(5, INPUTS))  # one sequence
    with torch.no_grad():
        _, hx = module(torch.randn(5, 4, INPUTS))
    x = torch.randn(hx[0].shape[1] if isinstance(hx, tuple) else hx.shape[1], 4, INPUTS)
    check(module, x if module.batch_first else x.transpose(0, 1), hx)


@pairs
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("learned_state", [False, True])
def test_state_dicts_of_torch_load(kind: Any, bidirectional: bool, learned_state: bool) -> None:
    module = kind(INPUTS, HIDDEN, 2, bidirectional=bidirectional)
    ours: Any = {nn.LSTM: LSTM, nn.GRU: GRU}[kind]
    made = ours(INPUTS, HIDDEN, 2, bidirectional=bidirectional, learned_state=learned_state)
    parent = nn.ModuleDict({"memory": made})
    parent.load_state_dict(nn.ModuleDict({"memory": module}).state_dict())
    x = torch.randn(5, 4, INPUTS)
    torch.testing.assert_close(made(x)[0], module(x)[0], rtol=1e-5, atol=1e-5)
    again = ours(INPUTS, HIDDEN, 2, bidirectional=bidirectional, learned_state=learned_state)
    again.load_state_dict(made.state_dict())
    with pytest.raises(RuntimeError, match="Unexpected key"):
        Recurrent("mingru", INPUTS, HIDDEN).load_state_dict(module.state_dict())


@pytest.mark.parametrize(
    ("batch_first", "shape", "axes"),
    [
        (True, (4, 7, 5), "B, T"),
        (False, (7, 4, 5), "T, B"),
        (True, (7, 5), "T"),
        (True, (4, 0, 3), "B, T"),
    ],
)
def test_errors_show_the_shape_that_was_given(
    batch_first: bool, shape: tuple[int, ...], axes: str
) -> None:
    module = LSTM(INPUTS, HIDDEN, batch_first=batch_first)
    message = f"x must be ({axes}, {INPUTS}) with T >= 1, got {shape}."
    with pytest.raises(ValueError, match=re.escape(message)):
        module(torch.randn(shape))


def test_options_of_torch_that_are_not_supported() -> None:
    LSTM(INPUTS, HIDDEN, bias=True, proj_size=0)
    with pytest.raises(ValueError, match="bias=False is not supported"):
        LSTM(INPUTS, HIDDEN, bias=False)
    with pytest.raises(ValueError, match="proj_size is not supported"):
        GRU(INPUTS, HIDDEN, proj_size=2)
    for make in (lambda: LSTM(3, 4, dropout=0.5), lambda: Recurrent("lstm", 3, 4, dropout=0.5)):
        with pytest.warns(UserWarning, match=r"dropout=0\.5 does nothing with") as caught:
            make()
        assert caught[0].filename == __file__


@pairs
@options
@pytest.mark.parametrize("enforce_sorted", [False, True])
def test_packed_sequences_equal_torch(
    kind: Any, kwargs: dict[str, Any], enforce_sorted: bool
) -> None:
    module = kind(INPUTS, HIDDEN, **kwargs)
    lengths = sorted(LENGTHS, reverse=True) if enforce_sorted else LENGTHS
    packed = pack_sequence([torch.randn(n, INPUTS) for n in lengths], enforce_sorted)
    check(module, packed)
    with torch.no_grad():
        _, hx = module(packed)
    check(module, packed, hx)


@every_core
@pytest.mark.parametrize("bidirectional", [False, True])
def test_every_core(name: str, bidirectional: bool) -> None:
    module = Recurrent(name, INPUTS, HIDDEN, 2, bidirectional=bidirectional, **small(name)).eval()
    sequences = [torch.randn(n, INPUTS) for n in LENGTHS]
    output, final = module(pack_sequence(sequences, enforce_sorted=False))
    finals = final if isinstance(final, tuple) else (final,)
    assert len(finals) == len(module.parts)
    for row, (sequence, together) in enumerate(
        zip(sequences, unpack_sequence(output), strict=True)
    ):
        alone, last = module(sequence)
        assert alone.shape == (len(sequence), module.output_size)
        torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)
        for part, single in zip(finals, last if isinstance(last, tuple) else (last,), strict=True):
            torch.testing.assert_close(part[:, row], single, rtol=1e-4, atol=1e-5)
    if not bidirectional:
        x = torch.randn(6, 2, INPUTS)
        first, state = module(x[:2])
        second, _ = module(x[2:], state)
        torch.testing.assert_close(torch.cat([first, second]), module(x)[0], rtol=1e-4, atol=1e-5)


def test_packed_sequences_on_another_device_than_the_default() -> None:
    module = LSTM(INPUTS, HIDDEN, bidirectional=True)
    packed = pack_sequence([torch.randn(n, INPUTS) for n in (3, 2)])
    expected, _ = module(packed)
    with torch.device("meta"):
        output, _ = module(packed)
    assert torch.equal(output.data, expected.data)


def test_episode_starts() -> None:
    module = LSTM(INPUTS, HIDDEN, gate="ur", batch_first=True)
    x, starts = torch.randn(2, 5, INPUTS), torch.zeros(2, 5, dtype=torch.bool)
    starts[1, 3] = True
    output, _ = module(x, episode_starts=starts)
    torch.testing.assert_close(output[1, 3:], module(x[1, 3:])[0])
    single, _ = module(x[1], episode_starts=starts[1])
    torch.testing.assert_close(single, output[1])


def test_dropout_acts_between_layers_in_training() -> None:
    module = GRU(INPUTS, HIDDEN, 2, dropout=0.5)
    x = torch.randn(5, 4, INPUTS)
    assert not torch.equal(module(x)[0], module(x)[0])
    module.eval()
    assert torch.equal(module(x)[0], module(x)[0])
    with pytest.warns(UserWarning, match="does nothing"):
        single = GRU(INPUTS, HIDDEN, dropout=0.5)
    assert torch.equal(single(x)[0], single(x)[0])


def test_it_is_a_module() -> None:
    module = LSTM(INPUTS, HIDDEN, 2, gate="ur", dtype=torch.float64, learned_state=True)
    x = torch.randn(5, 4, INPUTS, dtype=torch.float64)
    expected = module(x)[0]
    other = LSTM(INPUTS, HIDDEN, 2, gate="ur", dtype=torch.float64, learned_state=True)
    other.load_state_dict(module.state_dict())
    for same in (other, copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(same(x)[0], expected)
    module.flatten_parameters()  # as code for torch's layers does
    assert torch.equal(module(x)[0], expected)
    module.reset_parameters()
    assert not torch.equal(module(x)[0], expected)
    assert "ur_lstm" in repr(module)
    assert rlgates.nn.LSTM is LSTM
    scaled = LSTM(INPUTS, HIDDEN, 2, input_scale=4.0)  # an option of the lowest layer
    assert [core.cells[0].input_scale for core in scaled.cores] == [4.0, 1.0]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: LSTM(3, 4, gate="uu"), ValueError, "unknown gate of lstm 'uu'"),
        (lambda: LSTM(3, 4, 0), ValueError, "num_layers must be at least 1"),
        (lambda: LSTM(3, 4, dropout=1.5), ValueError, "dropout"),
        (lambda: LSTM(3, 4, skip_connections=True), ValueError, "make_core"),
        (lambda: LSTM(3, 4)(torch.ones(2, 3, 4, 5)), ValueError, "2 or 3 dimensions"),
        (lambda: LSTM(3, 4)(torch.ones(2, 1, 5)), ValueError, "x must be"),
        (lambda: LSTM(3, 4)(torch.ones(2, 1, 3), torch.ones(1, 1, 4)), ValueError, "parts h, c"),
        (
            lambda: GRU(3, 4)(torch.ones(2, 1, 3), torch.ones(1, 2, 4)),
            ValueError,
            r"h must be \(1, 1, 4\), got \(1, 2, 4\)",
        ),
        (lambda: Recurrent.from_torch(nn.LSTM(3, 4, proj_size=2)), ValueError, "proj_size"),
        (lambda: Recurrent.from_torch(nn.RNN(3, 4)), TypeError, "LSTM or GRU, got RNN"),
        (lambda: LSTM(3, 4, gate="ur").to_torch(), ValueError, "no layer like 'ur_lstm'"),
        (lambda: LSTM(3, 4, zoneout_cell=0.1).to_torch(), ValueError, "have no zoneout_cell"),
        (lambda: GRU(3, 4, learned_state=True).to_torch(), ValueError, "have no learned_state"),
        (
            lambda: LSTM(3, 4, bidirectional=True)(
                torch.ones(2, 1, 3), episode_starts=torch.zeros(2, 1, dtype=torch.bool)
            ),
            ValueError,
            "one direction",
        ),
    ],
)
def test_bad_input(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_a_core_of_several_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A factory of one's own may return a whole core."""
    monkeypatch.setattr("rlgates.registry.CORES", CORES.copy())
    register_core(
        "two",
        lambda input_size, hidden_size: Core(
            [LSTMCell(input_size, hidden_size), LSTMCell(hidden_size, hidden_size)]
        ),
    )
    module, x = Recurrent("two", INPUTS, HIDDEN, 2), torch.randn(6, 3, INPUTS)
    output, hx = module(x)
    assert [part.shape for part in hx] == [(4, 3, HIDDEN)] * 2
    _, middle = module(x[:2])
    torch.testing.assert_close(module(x[2:], middle)[0], output[2:])
    register_core(
        "mixed",
        lambda input_size, hidden_size: Core(
            [LSTMCell(input_size, hidden_size), GRUCell(hidden_size, hidden_size)]
        ),
    )
    with pytest.raises(ValueError, match="layers of core 'mixed' have different states"):
        Recurrent("mixed", INPUTS, HIDDEN)


def test_layers_whose_states_depend_on_their_inputs_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rlgates.registry.CORES", CORES.copy())
    register_core("wide", lambda input_size, hidden_size: LSTMCell(input_size, input_size))
    assert Recurrent("wide", INPUTS, HIDDEN, 2).num_layers == 2
    register_core("wider", lambda input_size, hidden_size: LSTMCell(input_size, 2 * input_size))
    with pytest.raises(ValueError, match="layers of core 'wider' have different states"):
        Recurrent("wider", INPUTS, HIDDEN, 2)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_frozen_weights_stay_frozen(kind: Any) -> None:
    module = kind(INPUTS, HIDDEN)
    module.weight_hh_l0.requires_grad_(False)
    made = Recurrent.from_torch(module)
    assert not made.cores[0].cells[0].weight_hh.requires_grad
    assert made.cores[0].cells[0].weight_ih.requires_grad
    assert not made.to_torch().weight_hh_l0.requires_grad
