"""Cores that are linear in their state, on every backend: equal to the loop, and which one runs."""

from __future__ import annotations

import copy
import logging
import subprocess
import sys
from typing import Any

import pytest
import torch
from conformance.cases import build, in_pieces, seeded
from hypothesis import given, settings
from hypothesis import strategies as st
from test_kernels import loss
from torch import Tensor, nn

from rlgates import Core, kernels
from rlgates.cell import LinearCell
from rlgates.cores import core_names
from rlgates.kernels import Linear, calls

pytestmark = pytest.mark.skipif(
    not calls.built(), reason="rlgates.kernels._native was not built (it needs a C++ compiler)"
)

LINEAR = [
    name for name, (core, _) in core_names().items() if core in ("mingru", "gilr", "minlstm", "lru")
]
FEW = ["mingru", "om_gilr", "minlstm", "lru"]
every_linear = pytest.mark.parametrize("name", LINEAR)
few = pytest.mark.parametrize("name", FEW)
backends = pytest.mark.parametrize("backend", ["native", "scan"])


def draw(core: Core, steps: int, rows: int, share: float, seed: int = 0) -> tuple[Tensor, ...]:
    generator = seeded(seed)
    x = torch.randn(steps, rows, core.input_size, generator=generator)
    state = torch.randn(rows, core.state_size, generator=generator)
    return x, state, torch.rand(steps, rows, generator=generator) < share


def everything(core: Core, x: Tensor, state: Tensor, starts: Tensor | None) -> dict[str, Tensor]:
    """Outputs, final state, and all gradients, which are 0 for what nothing depends on."""
    x, state = x.detach().requires_grad_(), state.detach().requires_grad_()
    outputs, final = core(x, state, starts)
    wanted = {"x": x, "state": state, **dict(core.named_parameters())}
    wanted = {name: tensor for name, tensor in wanted.items() if tensor.requires_grad}
    gradients = torch.autograd.grad(
        loss(outputs, final), list(wanted.values()), allow_unused=True, materialize_grads=True
    )
    return {"outputs": outputs, "final": final, **dict(zip(wanted, gradients, strict=True))}


def check(core: Core, backend: str, x: Tensor, state: Tensor, starts: Tensor | None) -> None:
    """Outputs, final state and all gradients against the loop in float64."""
    core.backend = backend
    ours = everything(core, x, state, starts)
    assert core.backend_used == backend
    reference = copy.deepcopy(core).double()
    reference.backend = "plain"
    for name, want in everything(reference, x.double(), state.double(), starts).items():
        if want.numel():
            error = (ours[name] - want).abs().max() / want.abs().max().clamp(min=1)
            assert error < (1e-13 if ours[name].dtype == torch.float64 else 1e-5), name


@every_linear
@backends
@pytest.mark.parametrize("learned_state", [False, True])
def test_equals_the_loop(name: str, backend: str, learned_state: bool) -> None:
    for units, rows, steps in [(6, 3, 7), (17, 2, 5), (2, 1, 1), (33, 5, 2)]:
        core = build(name, 1, units, learned_state=learned_state)
        for share in (0.0, 0.3):
            check(core, backend, *draw(core, steps, rows, share))
        x, state, _ = draw(core, steps, rows, 0.0)
        check(build(name, 1, units), backend, x, state, None)


@every_linear
def test_float64_equals_the_loop(name: str) -> None:
    core = build(name, 2, dtype=torch.float64, learned_state=True)
    x, state, starts = draw(core, 7, 3, 0.3)
    check(core, "scan", x.double(), state.double(), starts)


@few
def test_equals_the_loop_however_it_is_stacked_and_cut(name: str) -> None:
    @settings(max_examples=25, deadline=None, derandomize=True)
    @given(data=st.data())
    def run(data: st.DataObject) -> None:
        draw_ = data.draw
        core = build(
            name,
            draw_(st.integers(1, 3)),
            draw_(st.integers(2, 20)),
            skip_connections=draw_(st.booleans()),
            learned_state=draw_(st.booleans()),
        )
        steps, share = draw_(st.integers(1, 12)), draw_(st.sampled_from([0.0, 0.2, 0.8]))
        arguments = draw(core, steps, draw_(st.integers(0, 4)), share)
        backend = draw_(st.sampled_from(["native", "scan"]))
        check(core, backend, *arguments)
        cuts = sorted(draw_(st.sets(st.integers(1, steps - 1)))) if steps > 1 else []
        for one, other in zip(core(*arguments), in_pieces(core, *arguments, cuts), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)

    run()


@few
@backends
def test_nan_before_a_start_is_left_out(name: str, backend: str) -> None:
    core = build(name, 2, backend=backend, learned_state=True)
    x, state, starts = draw(core, 6, 3, 0.0)
    starts[3] = True
    clean = everything(core, x, state, starts)
    state[1] = torch.nan
    got = everything(core, x, state, starts)
    assert got["outputs"][:3, 1].isnan().all()
    assert torch.equal(got["outputs"][3:], clean["outputs"][3:])
    assert torch.equal(got["final"], clean["final"])
    learned = [name for name in got if name.startswith("learned.")]
    assert learned
    assert all(torch.equal(got[name], clean[name]) for name in learned)


@few
@backends
def test_outputs_may_be_changed_in_place(name: str, backend: str) -> None:
    gradients = []
    for how in (backend, "plain"):
        core = build(name, backend=how)
        outputs, final = core(*draw(core, 5, 3, 0.3))
        (outputs.relu_().square().sum() + final.mul_(2).square().sum()).backward()
        gradients.append([parameter.grad for parameter in core.parameters()])
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4)


@few
def test_frozen_weights(name: str) -> None:
    for frozen in dict(build(name).named_parameters()):
        core = build(name)
        for key, parameter in core.named_parameters():
            parameter.requires_grad_(key != frozen)
        check(core, "native", *draw(core, 5, 3, 0.3))


@few
def test_without_gradients_the_values_are_the_same(name: str) -> None:
    for backend in ("native", "scan"):
        core = build(name, 2, backend=backend)
        arguments = draw(core, 5, 3, 0.3)
        want = core(*arguments)
        with torch.no_grad():
            assert all(map(torch.equal, core(*arguments), want))
        with torch.inference_mode():
            assert all(map(torch.equal, core(*arguments), want))


@few
def test_second_derivatives(name: str) -> None:
    """Doubling has them, as the loop does; native code says that it does not."""
    core = build(name, dtype=torch.float64)
    x, state, starts = draw(core, 5, 3, 0.3)
    x, state = x.double().requires_grad_(), state.double().requires_grad_()
    results = []
    for core.backend in ("scan", "plain"):
        outputs, final = core(x, state, starts)
        loss = outputs.pow(3).sum() + final.pow(3).sum()
        gradients = torch.autograd.grad(loss, (x, state), create_graph=True)
        squares = sum(gradient.square().sum() for gradient in gradients)
        results.append(torch.autograd.grad(squares, (x, state, *core.parameters())))
    torch.testing.assert_close(*results)
    core.float().backend = "native"
    outputs, _ = core(x.float(), state.float(), starts)
    (gradient,) = torch.autograd.grad(outputs.square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="backend='scan'"):
        gradient.square().sum().backward()


class Leaky(LinearCell):
    """A core of somebody else's: h' = (1 - k) h + k tanh(W x), y = h + x."""

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

    def linear(self, x: Tensor) -> Linear:
        return Linear(1 - self.rate, self.rate * torch.tanh(x @ self.weight), x)

    def read(self, h: Tensor, beside: Tensor | None) -> Tensor:
        assert beside is not None
        return h + beside


@backends
def test_a_new_core_is_a_few_lines(backend: str) -> None:
    core = Core([Leaky(4), Leaky(4)])
    check(core, backend, *draw(core, 7, 3, 0.3))
    x, _, starts = draw(core, 7, 3, 0.3)
    starts[0] = True
    torch.testing.assert_close(core(x, None, starts), core(x, torch.zeros(3, 8), starts))
    slow = Core([Leaky(4), Leaky(4)], backend="plain")
    torch.testing.assert_close(core(x, None, starts), slow(x, None, starts))


@backends
def test_a_cell_that_does_not_fit_its_state_is_refused(backend: str) -> None:
    core = Core([Leaky(4)], backend=backend)
    core.cells[0].rate = nn.Parameter(torch.ones(1))
    with pytest.raises(ValueError, match=r"must be torch.float32 of shape \(4,\) on cpu"):
        core(torch.ones(2, 3, 4))


def test_which_backend_runs() -> None:
    core = build("mingru")
    x, state, starts = draw(core, 4, 3, 0.3)
    assert core.backend_used is None
    core(x, state, starts)
    assert core.backend_used == "native"
    core.observe(x, state, starts)
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
def test_what_cannot_run_says_why(
    name: str, backend: str, options: dict[str, Any], message: str
) -> None:
    core = build(name, backend=backend, **options)
    x = torch.ones(2, 3, 3).to(next(core.parameters()))
    with pytest.raises(ValueError, match=f"the {backend} backend cannot run this: .*{message}"):
        core(x)


@few
@backends
@pytest.mark.parametrize("given", ["x", "state", "neither"])
def test_autocast_is_followed(name: str, backend: str, given: str) -> None:
    """Products are in half precision, the state is not."""
    core = build(name, learned_state=True)
    x, state, starts = draw(core, 9, 3, 0.3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        x = x.bfloat16() if given == "x" else x
        state = state.bfloat16() if given == "state" else state
        want = build(name, learned_state=True, backend="plain")(x, state, starts)
        core.backend = backend if given == "neither" else "auto"
        got = core(x, state, starts)
    assert core.backend_used == (backend if given == "neither" else "scan")
    for one, other in zip(got, want, strict=True):
        assert one.dtype == other.dtype
        torch.testing.assert_close(one, other, rtol=2e-2, atol=2e-2)


def test_weights_in_half_precision() -> None:
    core = build("mingru", learned_state=True).bfloat16()
    x, _, starts = draw(core, 9, 3, 0.3)
    got = core(x.bfloat16(), None, starts)
    assert core.backend_used == "scan"
    core.backend = "plain"
    torch.testing.assert_close(got, core(x.bfloat16(), None, starts))


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
def test_what_is_unusual_runs_the_loop() -> None:
    core = build("minlstm", 2)
    x, state, starts = draw(core, 4, 3, 0.3)
    want = core(x, state, starts)

    def total(x: Tensor) -> Tensor:
        return torch.as_tensor(core(x, state, starts)[0].sum())

    _, slope = torch.func.jvp(total, (x,), (torch.ones_like(x),))
    assert core.backend_used == "plain"
    x.requires_grad_()
    (gradient,) = torch.autograd.grad(total(x), x)
    torch.testing.assert_close(slope, gradient.sum())
    compiled = torch.compile(core, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, state, starts), want)
    assert core.backend_used == "plain"


def test_a_missing_extension_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(calls, "_native", None)
    kernels._log_once.cache_clear()
    core = build("lru")
    with caplog.at_level(logging.WARNING, logger="rlgates.kernels"):
        for _ in range(3):
            core(torch.ones(9, 3, 3))
    assert core.backend_used == "scan"
    assert len(caplog.records) == 1
    assert "not built" in caplog.text


def test_triton_that_does_not_work_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU is played by the CPU: where Triton fails, doubling runs, and the reason is told."""
    paths = kernels._PATHS[kernels.Scan]
    broken = paths["triton"]._replace(why_not=lambda task: kernels._triton_fails())
    monkeypatch.setitem(kernels._PATHS, kernels.Scan, {"triton": broken, "scan": paths["scan"]})
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delitem(sys.modules, "rlgates.kernels.triton_scan", raising=False)
    kernels._triton_fails.cache_clear()
    try:
        core = build("mingru")
        core(torch.ones(9, 3, 3))
        assert core.backend_used == "scan"
        core.backend = "triton"
        with pytest.raises(ValueError, match="Triton does not work: ModuleNotFoundError"):
            core(torch.ones(9, 3, 3))
    finally:
        kernels._triton_fails.cache_clear()


FORK = """
import multiprocessing, torch
from rlgates import make_core
from rlgates.kernels import native_scan, scan
core, x = make_core("lru", 8, 64, backend="native"), torch.ones(80, 64, 8)
numbers = torch.rand(80, 128, 64)
problem = scan.Problem(numbers, numbers[0], None, None, paired=False)

def kernel():
    return scan.scan(problem, numbers, native_scan)[0].numpy().sum()

def child():
    queue.put(kernel())
    torch.set_num_threads(1)
    core(x)[0].sum().backward()
    queue.put(kernel())

torch.set_num_threads(2)
core(x)[0].sum().backward()
want = kernel()
context = multiprocessing.get_context("fork")
queue = context.Queue()
process = context.Process(target=child, daemon=True)
process.start()
for _ in range(2):
    assert abs(queue.get(timeout=20) / want - 1) < 1e-5
process.join(10)
assert process.exitcode == 0
"""


@pytest.mark.skipif(sys.platform == "win32", reason="nothing forks")
def test_forked_processes_do_not_wait_for_lost_threads() -> None:
    command = [sys.executable, "-W", "ignore", "-c", FORK]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert run.returncode == 0, run.stderr


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@few
@pytest.mark.parametrize("backend", ["triton", "scan"])
def test_a_gpu_equals_the_loop(name: str, backend: str) -> None:
    core = build(name, 2, 65, learned_state=True)
    x, state, starts = draw(core, 33, 7, 0.1)
    arguments = x.cuda(), state.cuda(), starts.cuda()
    reference = everything(copy.deepcopy(core).double(), x.double(), state.double(), starts)
    core.cuda().backend = backend
    ours = everything(core, *arguments)
    for key, want in reference.items():
        error = (ours[key].cpu() - want).abs().max() / want.abs().max().clamp(min=1)
        assert error < 1e-5, f"{key}: {error:.1e}"
    core.backend = "auto"
    core(*arguments)
    assert core.backend_used in ("triton", "scan")
    with torch.autocast("cuda", torch.bfloat16):
        core(*arguments)[0].sum().backward()
    assert core.backend_used in ("triton", "scan")
