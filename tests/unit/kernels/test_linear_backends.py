"""Cores that are linear in their state, on every backend: equal to the loop, and which one runs."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cases import build
from support.equivalence import (
    check_against_loop,
    exact_results,
    random_sequence,
    relative_errors,
    run_in_pieces,
    run_with_gradients,
)
from support.native import needs_native
from torch import Tensor, nn

from rlgates import Core, make_core
from rlgates.cell import LinearCell
from rlgates.kernels import LinearScan, LinearStep, dispatch
from rlgates.registry import CORES, core_names

pytestmark = needs_native


def is_linear(cell: Any) -> bool:
    return isinstance(cell, type) and issubclass(cell, LinearCell)


LINEAR = [
    name
    for name, (core, _) in core_names().items()
    if is_linear(CORES[core].cell)
    and isinstance(make_core(name, 2, 4).cells[0].recurrence(), LinearScan)
]
# One of those that take a gate, and none that normalizes over so few units.
FEW = ["mingru", "om_gilr", "minlstm", "lru"]
every_linear = pytest.mark.parametrize("name", LINEAR)
few = pytest.mark.parametrize("name", FEW)
backends = pytest.mark.parametrize("backend", ["native", "scan"])


def check(
    core: Core, backend: str, x: Tensor, state: Tensor, episode_starts: Tensor | None
) -> None:
    # A layer norm of three inputs magnifies rounding, and so do three layers.
    single = 1e-4 if core.name == "shm" else 3e-5
    tolerance = 1e-13 if x.dtype == torch.float64 else single
    check_against_loop(core, x, state, episode_starts, tolerance, backend)


@every_linear
@backends
@pytest.mark.parametrize("learned_state", [False, True])
def test_equals_the_loop(name: str, backend: str, learned_state: bool) -> None:
    for units, rows, steps in [(6, 3, 7), (17, 2, 5), (2, 1, 1), (33, 5, 2)]:
        core = build(name, 1, units, learned_state=learned_state)
        for share in (0.0, 0.3):
            check(core, backend, *random_sequence(core, rows, steps, share))
        x, state, _ = random_sequence(core, rows, steps, 0.0)
        check(build(name, 1, units), backend, x, state, None)


@backends
def test_outputs_that_are_views_can_be_modified_in_place(backend: str) -> None:
    core = build("minlstm", 1, 6)
    cell = core.cells[0]
    cell.output_size = 4
    cell.read = lambda h, extra: h[..., :4]
    cell.recurrence = lambda: LinearScan(cell.linear, cell.read)
    gradients = []
    for core.backend in (backend, "plain"):
        outputs, _ = core(torch.ones(9, 2, core.input_size))
        outputs.mul_(2).square().sum().backward()
        gradients.append(cell.weight.grad)
        cell.weight.grad = None
    torch.testing.assert_close(*gradients)


@every_linear
def test_float64_equals_the_loop(name: str) -> None:
    core = build(name, 2, dtype=torch.float64, learned_state=True)
    x, state, episode_starts = random_sequence(core, 3, 7, 0.3)
    check(core, "scan", x.double(), state.double(), episode_starts)


@few
def test_equals_the_loop_however_it_is_stacked_and_cut(name: str) -> None:
    @settings(max_examples=25, deadline=None)
    @given(data=st.data())
    def run(data: st.DataObject) -> None:
        draw = data.draw
        core = build(
            name,
            draw(st.integers(1, 3)),
            draw(st.integers(2, 20)),
            skip_connections=draw(st.booleans()),
            learned_state=draw(st.booleans()),
        )
        steps, share = draw(st.integers(1, 12)), draw(st.sampled_from([0.0, 0.2, 0.8]))
        arguments = random_sequence(core, draw(st.integers(0, 4)), steps, share)
        backend = draw(st.sampled_from(["native", "scan"]))
        check(core, backend, *arguments)
        cuts = sorted(draw(st.sets(st.integers(1, steps - 1)))) if steps > 1 else []
        for one, other in zip(core(*arguments), run_in_pieces(core, *arguments, cuts), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=3e-5)

    run()


@few
@backends
def test_nan_before_an_episode_start_has_no_effect(name: str, backend: str) -> None:
    core = build(name, 2, backend=backend, learned_state=True)
    x, state, episode_starts = random_sequence(core, 3, 6, 0.0)
    episode_starts[3] = True
    clean = run_with_gradients(core, x, state, episode_starts)
    state[1] = torch.nan
    result = run_with_gradients(core, x, state, episode_starts)
    assert result["outputs"][:3, 1].isnan().all()
    assert torch.equal(result["outputs"][3:], clean["outputs"][3:])
    assert torch.equal(result["final"], clean["final"])
    learned = [name for name in result if name.startswith("learned.")]
    assert learned
    assert all(torch.equal(result[name], clean[name]) for name in learned)


@few
def test_second_derivatives(name: str) -> None:
    """The doubling scan and the loop have them; native code raises."""
    core = build(name, dtype=torch.float64)
    x, state, episode_starts = random_sequence(core, 3, 5, 0.3)
    x, state = x.double().requires_grad_(), state.double().requires_grad_()
    results = []
    for core.backend in ("scan", "plain"):
        outputs, final = core(x, state, episode_starts)
        loss = outputs.pow(3).sum() + final.pow(3).sum()
        gradients = torch.autograd.grad(loss, (x, state), create_graph=True)
        squares = sum(gradient.square().sum() for gradient in gradients)
        results.append(torch.autograd.grad(squares, (x, state, *core.parameters())))
    torch.testing.assert_close(*results)
    core.float().backend = "native"
    outputs, _ = core(x.float(), state.float(), episode_starts)
    (gradient,) = torch.autograd.grad(outputs.square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="backend='plain'"):
        gradient.square().sum().backward()


class Leaky(LinearCell):
    """A cell from outside the library: h' = (1 - k) h + k tanh(W x), y = h + x."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.input_size = self.output_size = size
        self.state_shapes = {"h": (size,)}
        self.rate = nn.Parameter(torch.linspace(0.1, 0.9, size))
        self.weight = nn.Parameter(torch.eye(size) - 0.1)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        pass

    def initial_state(self, batch_size: int) -> tuple[Tensor, ...]:
        return (torch.ones(batch_size, self.output_size).to(self.rate),)

    def linear(self, x: Tensor) -> LinearStep:
        return LinearStep(1 - self.rate, self.rate * torch.tanh(x @ self.weight), x)

    def read(self, h: Tensor, extra: Tensor | None) -> Tensor:
        assert extra is not None
        return h + extra


@backends
def test_a_custom_core_takes_a_few_lines(backend: str) -> None:
    core = Core([Leaky(4), Leaky(4)])
    check(core, backend, *random_sequence(core, 3, 7, 0.3))
    x, _, episode_starts = random_sequence(core, 3, 7, 0.3)
    episode_starts[0] = True
    torch.testing.assert_close(
        core(x, None, episode_starts), core(x, torch.zeros(3, 8), episode_starts)
    )
    slow = Core([Leaky(4), Leaky(4)], backend="plain")
    torch.testing.assert_close(core(x, None, episode_starts), slow(x, None, episode_starts))


@backends
def test_a_cell_that_does_not_fit_its_state_is_refused(backend: str) -> None:
    core = Core([Leaky(4)], backend=backend)
    core.cells[0].rate = nn.Parameter(torch.ones(1))
    with pytest.raises(ValueError, match=r"must be torch.float32 of shape \(4,\) on cpu"):
        core(torch.ones(2, 3, 4))


def test_which_backend_runs() -> None:
    core = build("mingru")
    x, state, episode_starts = random_sequence(core, 3, 4, 0.3)
    assert core.backend_used is None
    core(x, state, episode_starts)
    assert core.backend_used == "native"
    core.trace_gates(x, state, episode_starts)
    assert core.backend_used == "plain"
    double = build("lru", dtype=torch.float64)
    for steps, rows, used in [(8, 3, "scan"), (7, 3, "plain"), (8, 400, "plain")]:
        double(torch.ones(steps, rows, 3, dtype=torch.float64))
        assert double.backend_used == used
    meta = build("gilr").to("meta")
    meta(torch.ones(8, 3, 3, device="meta"))
    assert meta.backend_used == "scan"


@pytest.mark.parametrize(
    ("name", "backend", "options", "message"),
    [
        ("mingru", "native", {"dtype": torch.float64}, "float32 on the CPU, got torch.float64"),
        ("mingru", "triton", {}, "it takes float32 on a GPU, got torch.float32 on cpu"),
        ("lstm", "scan", {}, "this core has no such fast path"),
        ("gru", "scan", {}, "this core has no such fast path"),
    ],
)
def test_unsupported_cases_log_the_reason(
    name: str, backend: str, options: dict[str, Any], message: str
) -> None:
    core = build(name, backend=backend, **options)
    x = torch.ones(2, 3, 3).to(next(core.parameters()))
    with pytest.raises(ValueError, match=f"the {backend} backend cannot run this: .*{message}"):
        core(x)


@few
@backends
@pytest.mark.parametrize("low_precision", ["x", "state", "neither"])
def test_autocast_is_supported(name: str, backend: str, low_precision: str) -> None:
    """Products are in half precision, the state in float32 whatever the given one was."""
    core = build(name, learned_state=True)
    x, state, episode_starts = random_sequence(core, 3, 9, 0.3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        x = x.bfloat16() if low_precision == "x" else x
        state = state.bfloat16() if low_precision == "state" else state
        expected = build(name, learned_state=True, backend="plain")(x, state, episode_starts)
        core.backend = "auto" if low_precision == "x" else backend
        result = core(x, state, episode_starts)
    assert core.backend_used == ("scan" if low_precision == "x" else backend)
    for one, other in zip(result, expected, strict=True):
        assert one.dtype == other.dtype
        torch.testing.assert_close(one, other, rtol=2e-2, atol=2e-2)


def test_failing_triton_falls_back_to_the_scan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Triton fails, the scan in PyTorch runs (with the CPU in place of a GPU)."""
    backends = dispatch._BACKENDS[LinearScan]
    broken = backends["triton"]._replace(
        unsupported_reason=lambda call: dispatch._triton_scan_error()
    )
    monkeypatch.setitem(
        dispatch._BACKENDS, LinearScan, {"triton": broken, "scan": backends["scan"]}
    )
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delitem(sys.modules, "rlgates.kernels.triton.scan", raising=False)
    monkeypatch.delattr("rlgates.kernels.triton.scan", raising=False)
    dispatch._triton_scan_error.cache_clear()
    try:
        core = build("mingru")
        core(torch.ones(9, 3, 3))
        assert core.backend_used == "scan"
        core.backend = "triton"
        with pytest.raises(ValueError, match="Triton does not work: ModuleNotFoundError"):
            core(torch.ones(9, 3, 3))
    finally:
        dispatch._triton_scan_error.cache_clear()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@few
@pytest.mark.parametrize("backend", ["triton", "scan"])
def test_a_gpu_equals_the_loop(name: str, backend: str) -> None:
    core = build(name, 2, 65, learned_state=True)
    x, state, episode_starts = random_sequence(core, 7, 33, 0.1)
    arguments = x.cuda(), state.cuda(), episode_starts.cuda()
    expected = exact_results(core, x, state, episode_starts)
    core.cuda().backend = backend
    results = run_with_gradients(core, *arguments)
    results = {key: result.cpu() for key, result in results.items()}
    for key, error in relative_errors(results, expected).items():
        assert error < 1e-5, f"{key}: {error:.1e}"
    core.backend = "auto"
    core(*arguments)
    assert core.backend_used in ("triton", "scan")
    with torch.autocast("cuda", torch.bfloat16):
        core(*arguments)[0].sum().backward()
    assert core.backend_used in ("triton", "scan")
