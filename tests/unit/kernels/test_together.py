"""Two cores run together equal the same cores in turn, in values and gradients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from support.native import needs_native
from torch import Tensor, nn

from rlgates import Core, make_core
from rlgates.core import run_together
from rlgates.kernels.cpu import layer as cpu_layer

pytestmark = needs_native


@pytest.fixture(autouse=True)
def _two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def joint(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of layers of each call of native code."""
    layer_counts: list[int] = []
    forward = cpu_layer.forward

    def count(layers: Any, saved: Any) -> Any:
        layer_counts.append(len(layers))
        return forward(layers, saved)

    monkeypatch.setattr(cpu_layer, "forward", count)
    return layer_counts


def pair(first: str = "ur_lstm", second: str = "gru", rows: int = 1, steps: int = 19) -> Any:
    generator = torch.Generator().manual_seed(0)
    cores = [
        make_core(name, 5, units, generator=generator) for name, units in ((first, 17), (second, 8))
    ]
    x = torch.randn(2, steps, rows, 5, generator=generator).requires_grad_()
    states = [torch.randn(rows, core.state_size, generator=generator) for core in cores]
    episode_starts = torch.rand(steps, rows, generator=generator) < 0.2
    return cores, x, [state.requires_grad_() for state in states], episode_starts


def everything(
    cores: list[Core], x: Tensor, states: list[Tensor], episode_starts: Tensor, way: Any
) -> Any:
    results = way(list(zip(cores, x, states, strict=True)), episode_starts)
    values = [tensor for result in results for tensor in result]
    loss = sum((value.sin() * k).sum() for k, value in enumerate(values, 1))
    weights = [weight for core in cores for weight in core.parameters()]
    return values + list(torch.autograd.grad(loss, [x, *states, *weights], allow_unused=True))


def in_turn(cores: Any, episode_starts: Tensor) -> Any:
    return [core(x, state, episode_starts) for core, x, state in cores]


@pytest.mark.parametrize("second", ["lstm", "gru", "om_lstm", "janet", "rru", "nru"])
def test_two_cores_together_equal_them_in_turn(second: str, joint: list[int]) -> None:
    problem = pair(second=second)
    result = everything(*problem, run_together)
    assert joint == [2]
    expected = everything(*problem, in_turn)
    for one, other in zip(result, expected, strict=True):
        torch.testing.assert_close(one, other)
    assert [core.backend_used for core in problem[0]] == ["native", "native"]


def test_together_from_learned_states(joint: list[int]) -> None:
    cores, x, states, episode_starts = pair()
    cores[1] = make_core("lstm", 5, 8, learned_state=True)
    torch.nn.init.uniform_(cores[1].learned["h_0"])
    states[1] = cores[1].initial_state(1).detach().requires_grad_()
    result, expected = (
        everything(cores, x, states, episode_starts, way) for way in (run_together, in_turn)
    )
    assert joint[0] == 2
    for one, other in zip(result, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_only_one_of_them_is_trained(joint: list[int]) -> None:
    cores, x, states, episode_starts = pair()
    for way in (run_together, in_turn):
        (outputs, _), _ = way(list(zip(cores, x, states, strict=True)), episode_starts)
        weight = cores[0].cells[0].weight_hh
        (gradient,) = torch.autograd.grad(outputs.sum(), weight)
        if way is run_together:
            first = gradient
    assert joint[0] == 2
    torch.testing.assert_close(first, gradient)


@pytest.mark.parametrize("rows", [0, 1, 7])
def test_one_step(rows: int, joint: list[int]) -> None:
    cores, x, states, episode_starts = pair(rows=rows, steps=1)
    with torch.no_grad():
        result = run_together(list(zip(cores, x, states, strict=True)), episode_starts)
        assert joint == [2]
        expected = in_turn(list(zip(cores, x, states, strict=True)), episode_starts)
    for one, other in zip(result, expected, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("change", ["many rows", "one thread"])
def test_one_call_with_all_threads_for_each(change: str, joint: list[int]) -> None:
    cores, x, states, episode_starts = pair(rows=2 if change == "many rows" else 1)
    if change == "one thread":
        torch.set_num_threads(1)
    result, expected = (
        everything(cores, x, states, episode_starts, way) for way in (run_together, in_turn)
    )
    assert joint[0] == 2
    assert all(map(torch.equal, result, expected))


def test_hooks_are_called(joint: list[int]) -> None:
    cores, x, states, episode_starts = pair()
    shapes: list[Any] = []
    cores[1].register_forward_hook(lambda core, inputs, result: shapes.append(result[0].shape))
    run_together(list(zip(cores, x, states, strict=True)), episode_starts)
    assert shapes == [(*episode_starts.shape, cores[1].output_size)]
    assert joint == [1, 1]


def test_hooks_on_all_modules_are_called() -> None:
    cores, x, states, episode_starts = pair()
    seen: list[Any] = []
    handle = nn.modules.module.register_module_forward_hook(
        lambda module, _, __: seen.append(module)
    )
    try:
        run_together(list(zip(cores, x, states, strict=True)), episode_starts)
    finally:
        handle.remove()
    assert seen == cores


@pytest.mark.parametrize("change", ["a core without", "plain", "layers", "debug", "float64"])
def test_falls_back_to_one_core_after_the_other(change: str, joint: list[int]) -> None:
    cores, x, states, episode_starts = pair()
    if change == "plain":
        cores[0].backend = "plain"
    if change == "debug":
        cores[0].debug = True
    others: dict[str, tuple[str, dict[str, Any]]] = {
        "a core without": ("lru", {}),
        "layers": ("lstm", {"num_layers": 2}),
    }
    if change in others:
        name, options = others[change]
        cores[1] = make_core(name, 5, 8, **options)
        states[1] = cores[1].initial_state(1).detach().requires_grad_()
    if change == "float64":
        cores = [core.double() for core in cores]
        x, states = x.detach().double().requires_grad_(), [s.detach().double() for s in states]
        states = [state.requires_grad_() for state in states]
    result, expected = (
        everything(cores, x, states, episode_starts, way) for way in (run_together, in_turn)
    )
    assert 2 not in joint
    for one, other in zip(result, expected, strict=True):
        assert one is other is None or torch.equal(one, other)


def test_sizes_are_checked() -> None:
    cores, x, states, episode_starts = pair()
    with pytest.raises(ValueError, match="starts must be"):
        run_together(list(zip(cores, x, states, strict=True)), episode_starts[:-1])
