"""Two cores side by side: as one after the other, in values and gradients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from rlgates import Core, make_core
from rlgates.kernels import calls, native
from rlgates.together import run_together

pytestmark = pytest.mark.skipif(
    not calls.built(), reason="rlgates.kernels._native was not built (it needs a C++ compiler)"
)


@pytest.fixture(autouse=True)
def _two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def joint(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many layers each call of native code had."""
    seen: list[int] = []
    forward = calls.forward

    def count(layers: Any) -> None:
        seen.append(len(layers))
        forward(layers)

    monkeypatch.setattr(native.calls, "forward", count)
    return seen


def pair(first: str = "ur_lstm", second: str = "gru", rows: int = 1, steps: int = 19) -> Any:
    generator = torch.Generator().manual_seed(0)
    cores = [
        make_core(name, 5, units, generator=generator) for name, units in ((first, 17), (second, 8))
    ]
    x = torch.randn(2, steps, rows, 5, generator=generator).requires_grad_()
    states = [torch.randn(rows, core.state_size, generator=generator) for core in cores]
    starts = torch.rand(steps, rows, generator=generator) < 0.2
    return cores, x, [state.requires_grad_() for state in states], starts


def everything(cores: list[Core], x: Tensor, states: list[Tensor], starts: Tensor, way: Any) -> Any:
    made = way(list(zip(cores, x, states, strict=True)), starts)
    values = [tensor for result in made for tensor in result]
    loss = sum((value.sin() * k).sum() for k, value in enumerate(values, 1))
    weights = [weight for core in cores for weight in core.parameters()]
    return values + list(torch.autograd.grad(loss, [x, *states, *weights], allow_unused=True))


def in_turn(cores: Any, starts: Tensor) -> Any:
    return [core(x, state, starts) for core, x, state in cores]


@pytest.mark.parametrize("second", ["lstm", "gru", "om_lstm", "janet"])
def test_it_is_the_same(second: str, joint: list[int]) -> None:
    given = pair(second=second)
    got = everything(*given, run_together)
    assert joint == [2]
    want = everything(*given, in_turn)
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other)
    assert [core.backend_used for core in given[0]] == ["native", "native"]


def test_only_one_of_them_is_trained(joint: list[int]) -> None:
    cores, x, states, starts = pair()
    for way in (run_together, in_turn):
        (outputs, _), _ = way(list(zip(cores, x, states, strict=True)), starts)
        weight = cores[0].cells[0].weight_hh
        (gradient,) = torch.autograd.grad(outputs.sum(), weight)
        if way is run_together:
            first = gradient
    assert joint[0] == 2
    torch.testing.assert_close(first, gradient)


@pytest.mark.parametrize("rows", [0, 1, 7])
def test_one_step(rows: int, joint: list[int]) -> None:
    cores, x, states, starts = pair(rows=rows, steps=1)
    with torch.no_grad():
        got = run_together(list(zip(cores, x, states, strict=True)), starts)
        assert joint == [2]
        want = in_turn(list(zip(cores, x, states, strict=True)), starts)
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize(
    "change",
    ["many rows", "one thread", "a core without", "plain", "layers", "learned", "debug", "float64"],
)
def test_one_after_the_other_where_this_is_better_or_needed(change: str, joint: list[int]) -> None:
    cores, x, states, starts = pair(rows=2 if change == "many rows" else 1)
    if change == "one thread":
        torch.set_num_threads(1)
    if change == "plain":
        cores[0].backend = "plain"
    if change == "debug":
        cores[0].debug = True
    others: dict[str, tuple[str, dict[str, Any]]] = {
        "a core without": ("dnc", {"num_slots": 3}),
        "layers": ("lstm", {"num_layers": 2}),
        "learned": ("lstm", {"learned_state": True}),
    }
    if change in others:
        name, options = others[change]
        cores[1] = make_core(name, 5, 8, **options)
        states[1] = cores[1].initial_state(1).detach().requires_grad_()
    if change == "float64":
        cores = [core.double() for core in cores]
        x, states = x.detach().double().requires_grad_(), [s.detach().double() for s in states]
        states = [state.requires_grad_() for state in states]
    got, want = (everything(cores, x, states, starts, way) for way in (run_together, in_turn))
    assert 2 not in joint
    for one, other in zip(got, want, strict=True):
        assert one is other is None or torch.equal(one, other)


def test_sizes_are_checked() -> None:
    cores, x, states, starts = pair()
    with pytest.raises(ValueError, match="starts must be"):
        run_together(list(zip(cores, x, states, strict=True)), starts[:-1])
