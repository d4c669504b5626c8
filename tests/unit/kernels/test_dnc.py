"""The DNC in native code equals the plain loop: values, states and all gradients.

It has tests of its own, since its state is not any numbers (usage and weights are in [0, 1]), and
since slots are sorted by usage: where two are as good as equal, float32 and float64 may order them
differently, and write to different slots. The loop in float64 is therefore told the order that
usage has in float32.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.equivalence import (
    check_against_loop,
    check_threads,
    plain_reference,
    random_sequence,
    run_in_pieces,
    run_with_gradients,
    seeded,
)
from support.layers import DNC, SOME_DNC, Layer, general_core
from support.native import needs_native
from torch import Tensor
from torch.nn.functional import pad

from rlgates import Core
from rlgates.cores import addressing

pytestmark = needs_native

every_layer = pytest.mark.parametrize("layer", DNC, ids=lambda layer: f"{layer[0]}-{layer[1]}")
some_layers = pytest.mark.parametrize("layer", SOME_DNC, ids=lambda layer: f"{layer[0]}-{layer[1]}")


def allocation_in_single_order(usage: Tensor) -> Tensor:
    """`addressing.allocation_weights` with the order of float32."""
    usage = addressing.EPSILON + (1 - addressing.EPSILON) * usage
    order = torch.sort(usage.float(), dim=-1, stable=True).indices
    rising = usage.gather(-1, order)
    before = torch.exp(torch.cumsum(pad(torch.log(rising)[..., :-1], (1, 0)), dim=-1))
    return torch.zeros_like(rising).scatter(-1, order, (1 - rising) * before)


@pytest.fixture(autouse=True)
def _single_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addressing, "allocation_weights", allocation_in_single_order)


def usual_state(core: Core, batch_size: int, seed: int = 0) -> Tensor:
    """A state (B, S) of one layer with weights that sum to 1, and usages that differ."""
    generator = seeded(seed)
    parts = {}
    for name, shape in core.cells[0].state_shapes.items():
        part = torch.rand(1, batch_size, *shape, generator=generator)
        if name in ("h", "c", "memory", "reads"):
            part = 2 * part - 1
        elif name == "usage":
            part = 0.05 + 0.9 * part
        elif name == "link":
            part = part * (1 - torch.eye(shape[-1])) / shape[-1]
        else:
            part = part / part.sum(-1, keepdim=True)
        parts[name] = part
    return core.pack(parts)


def problem(
    layer: Layer, units: int, batch_size: int, steps: int, **options: Any
) -> tuple[Core, tuple[Tensor, Tensor, Tensor]]:
    name, more = layer
    core = general_core(name, units, **more, **options)
    x, _, episode_starts = random_sequence(core, batch_size, steps, share=0.1)
    return core, (x, usual_state(core, batch_size), episode_starts)


@every_layer
def test_equals_the_loop(layer: Layer) -> None:
    for units, batch_size, steps in ((6, 3, 1), (17, 5, 9), (24, 2, 5)):
        core, (x, state, _) = problem(layer, units, batch_size, steps)
        check_against_loop(core, x, state, None)


@some_layers
def test_episodes_start_inside(layer: Layer) -> None:
    """Where the memory is empty, with the usages of a few slots: these are not as good as equal."""
    core, (x, state, episode_starts) = problem(layer, 12, 9, 6)
    episode_starts[0, 0] = episode_starts[5, 1] = True
    episode_starts[2:4, 2] = True
    check_against_loop(core, x, state, episode_starts, tolerance=1e-4)


@some_layers
def test_with_every_instruction_set(layer: Layer, instructions: str) -> None:
    core, (x, state, _) = problem(layer, 15, 5, 4)
    check_against_loop(core, x, state, None)


@some_layers
def test_learned_states_have_gradients(layer: Layer) -> None:
    core, (x, state, episode_starts) = problem(layer, 12, 7, 3, learned_state=True)
    episode_starts[1, :4] = True
    check_against_loop(core, x, state, episode_starts, tolerance=1e-4)
    core.backend = "native"
    results = run_with_gradients(core, x, state, episode_starts)
    assert all(results[key].any() for key in results if "learned" in key)


@some_layers
def test_frozen_weights_and_inputs(layer: Layer) -> None:
    core, (x, state, _) = problem(layer, 9, 4, 3)
    for frozen in ("x", "state", *(name for name, _ in core.named_parameters())):
        for name, parameter in core.named_parameters():
            parameter.requires_grad_(name != frozen)
        results = run_with_gradients(core, x, state, None, frozen=(frozen,))
        expected = run_with_gradients(plain_reference(core, None), x, state, None, frozen=(frozen,))
        torch.testing.assert_close(results, expected, rtol=1e-4, atol=1e-4)


@some_layers
def test_pieces_equal_the_sequence(layer: Layer) -> None:
    core, (x, state, episode_starts) = problem(layer, 12, 5, 8)
    core.backend = "native"
    with torch.no_grad():
        expected = core(x, state, episode_starts)
        result = run_in_pieces(core, x, state, episode_starts, [1, 3])
    torch.testing.assert_close(result, expected, rtol=0, atol=2e-6)
    with_gradients = core(x, state, episode_starts)
    torch.testing.assert_close(with_gradients, expected, rtol=0, atol=0)


@some_layers
@pytest.mark.usefixtures("threads")
def test_results_do_not_depend_on_threads(layer: Layer) -> None:
    core, sequence = problem(layer, 32, 12, 30)
    core.backend = "native"
    check_threads(core, *sequence)


@pytest.mark.parametrize("slots", [1, 15, 16, 17, 40, 100])
def test_equal_usages_are_taken_in_order(slots: int) -> None:
    """From an empty memory, and however many runs the sort merges, as the loop in float32."""
    layer = "dnc", {"num_slots": slots, "word_size": 3, "num_reads": 1}
    core, (x, state, _) = problem(layer, 8, 3, 2)
    check_against_loop(core, x, state, None)
    plain = plain_reference(core, None)
    core.backend = "native"
    parts = [one(x[:1])[1] for one in (core, plain)]
    writes = [core.unpack(part)["write_weights"] for part in parts]
    torch.testing.assert_close(*writes, rtol=1e-4, atol=1e-6)


def test_a_second_derivative_raises() -> None:
    core, (x, state, _) = problem(SOME_DNC[0], 8, 2, 2)
    core.backend = "native"
    value = core(x.requires_grad_(), state)[0].sum()
    (gradient,) = torch.autograd.grad(value, x, create_graph=True)
    with pytest.raises(RuntimeError, match="backend='plain'"):
        gradient.square().sum().backward()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_compiled_core_keeps_the_kernel() -> None:
    core, (x, state, episode_starts) = problem(SOME_DNC[0], 6, 3, 4)
    core.backend = "native"
    expected = run_with_gradients(core, x, state, episode_starts)
    torch.compiler.reset()
    core.compile(backend="aot_eager", fullgraph=True)
    results = run_with_gradients(core, x, state, episode_starts)
    assert core.backend_used == "native"
    torch.testing.assert_close(results, expected)
