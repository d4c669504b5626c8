"""minGRU, GILR and minLSTM in native code, as cells in place of a scan."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.equivalence import (
    check_against_loop,
    check_threads,
    random_sequence,
    run_with_gradients,
    seeded_core,
)
from support.layers import Layer, general_core, layers_of
from support.native import needs_native
from torch import Tensor

from rlgates import Core
from rlgates.cores.minimal import MinGRU
from rlgates.gates import ACTIVATIONS
from rlgates.kernels import LinearStep, dispatch
from rlgates.kernels.cpu import layer as cpu_layer

pytestmark = needs_native

MINIMAL: list[Layer] = [
    *layers_of("mingru", {}, {"candidate": "linear"}),
    *layers_of("gilr", {}),
    ("um_gilr", {"chunk_size": 3}),
    ("minlstm", {}),
    ("minlstm", {"candidate": "linear", "forget_bias": -3.0}),
]
every_minimal = pytest.mark.parametrize(("name", "options"), MINIMAL, ids=lambda v: str(v))


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The cells that native code runs."""
    called: list[str] = []
    run = cpu_layer.run

    def recorded(spec: Any, *arguments: Any) -> Any:
        called.append(spec.cell)
        return run(spec, *arguments)

    monkeypatch.setattr(cpu_layer, "run", recorded)
    return called


@every_minimal
@pytest.mark.usefixtures("instructions")
def test_equals_the_loop(name: str, options: dict[str, Any], calls: list[str]) -> None:
    for units, layers, rows, steps in [(6, 1, 3, 7), (33, 2, 5, 2), (3, 1, 70, 40)]:
        core = general_core(name, units, layers, learned_state=True, **options)
        x, state, starts = random_sequence(core, rows, steps)
        check_against_loop(core, x, state, starts)
        check_against_loop(core, x, state, None)
    assert set(calls) == {"minimal"}


@pytest.mark.usefixtures("threads")
def test_results_do_not_depend_on_threads() -> None:
    core = seeded_core("ur_mingru", 64)
    check_threads(core, *random_sequence(core, 33, 70))


@pytest.mark.parametrize("pre", [-200.0, -1e-9, 0.0, 1e-9, 200.0])
def test_the_slope_of_the_candidate_is_that_of_its_side(pre: float) -> None:
    """A rounded sigmoid is 1/2 near 0, like the line on the other side."""
    core = seeded_core("mingru", 4)
    with torch.no_grad():
        core.cells[0].weight.fill_(0)
        core.cells[0].gate_weights()["b_u"].fill_(pre)
    bias, slope = core.cells[0].bias, 1.0 if pre >= 0 else 0.25 if pre > -1 else 0.0
    for core.backend in ("native", "plain"):
        outputs, _ = core(torch.zeros(1, 1, 5))
        (gradient,) = torch.autograd.grad(outputs.sum(), bias)
        share = torch.sigmoid(-bias[:4])  # of the candidate: 1 - f
        torch.testing.assert_close(gradient[4:], slope * share)


@pytest.mark.parametrize(("f", "i"), [(-100.0, -100.0), (-500.0, -505.0), (90.0, -90.0)])
def test_the_shares_of_gates_that_underflow_sum_to_one(f: float, i: float) -> None:
    core = seeded_core("minlstm", 4, candidate="linear", backend="native")
    weights = core.cells[0].gate_weights()
    with torch.no_grad():
        core.cells[0].weight.fill_(0)
        for key, value in (("b_f", f), ("b_i", i), ("b_u", 1.0)):
            weights[key].fill_(value)
    outputs, _ = core(torch.zeros(1, 1, 5), torch.ones(1, 4))
    torch.testing.assert_close(outputs, torch.ones(1, 1, 4))
    outputs, _ = core(torch.zeros(1, 1, 5), torch.zeros(1, 4))
    shares = torch.tensor([f, i], dtype=torch.float64).sigmoid()
    torch.testing.assert_close(outputs, (shares[1] / shares.sum()).float().expand(1, 1, 4))


def test_the_linear_map_of_a_subclass_is_run(calls: list[str]) -> None:
    class Halved(MinGRU):
        def linear(self, x: Tensor) -> LinearStep:
            a, b, _ = super().linear(x)
            return LinearStep(a, b / 2)

    core = Core([Halved(5, 6)])
    core.cells[0].reset_parameters(torch.Generator().manual_seed(0))
    check_against_loop(core, *random_sequence(core, 3, 7))
    assert core.backend_used == "native"
    assert not calls


def test_the_output_of_a_subclass_is_read(calls: list[str]) -> None:
    class Squashed(MinGRU):
        def read(self, h: Tensor, extra: Tensor | None) -> Tensor:
            return torch.tanh(h)

    core = Core([Squashed(5, 6)])
    core.cells[0].reset_parameters(torch.Generator().manual_seed(0))
    check_against_loop(core, *random_sequence(core, 3, 7))
    assert core.backend_used == "native"
    assert not calls


def test_a_gate_of_a_user_is_scanned(monkeypatch: pytest.MonkeyPatch, calls: list[str]) -> None:
    core = seeded_core("mingru", 6)
    monkeypatch.setitem(ACTIVATIONS, "half", lambda z: torch.sigmoid(z) / 2)
    gate: Any = core.cells[0].gate
    monkeypatch.setattr(gate, "key", ("half", *gate.key[1:]))
    check_against_loop(core, *random_sequence(core, 3, 7))
    assert core.backend_used == "native"
    assert not calls


def test_autocast_does_not_touch_it() -> None:
    core = seeded_core("minlstm", 6, 2)
    x, state, starts = random_sequence(core, 3, 7)
    expected = core(x, state, starts)
    with torch.autocast("cpu", torch.bfloat16):
        results = core(x, state, starts)
    assert all(map(torch.equal, results, expected))


def test_a_compiled_core_keeps_the_kernel() -> None:
    torch.compiler.reset()
    core = seeded_core("gilr", 6, 2)
    sequence = random_sequence(core, 3, 40)
    expected = run_with_gradients(core, *sequence)
    core.backend_used = None
    core.compile(backend="aot_eager", fullgraph=True)
    results = run_with_gradients(core, *sequence)
    assert core.backend_used == "native"
    for key, result in results.items():
        assert torch.equal(result, expected[key]), key


def test_it_runs_beside_another_core() -> None:
    cores = [seeded_core("mingru", 6), seeded_core("lstm", 6)]
    x, _, starts = random_sequence(cores[0], 3, 7)
    states = [core.initial_state(3) for core in cores]
    requests = [
        dispatch.LayerRequest(core.cells[0], x, state, starts, lambda: None, "auto", core.name)
        for core, state in zip(cores, states, strict=True)
    ]
    together = dispatch.run_together(requests)
    assert together is not None
    for core, state, result in zip(cores, states, together, strict=True):
        assert torch.equal(result.outputs, core(x, state, starts)[0])
