"""Which backend runs: native code where it can, else the plain loop, and who is told so."""

from __future__ import annotations

import logging
import pickle
import subprocess
import sys

import pytest
import torch
from test_kernels import inputs, seeded
from torch import Tensor

from rlgates import kernels, make_core
from rlgates.kernels import calls

pytestmark = pytest.mark.skipif(
    not calls.built(), reason="rlgates.kernels._native was not built (it needs a C++ compiler)"
)

# torch itself hangs in a child if it used threads before the fork, unless the child asks for one.
FORK = """
import multiprocessing, torch
from rlgates import make_core
from rlgates.kernels import native
core = make_core("ur_lstm", 8, 64, backend="native")
cell, x, zeros = core.cells[0], torch.ones(40, 32, 8), torch.zeros(32, 64)

def kernel():
    with torch.no_grad():
        outputs, _ = native.run(x, (zeros, zeros), None, cell.recurrence())
        return outputs.numpy().sum()

def whole():
    core(x)[0].sum().backward()
    return core(x)[0].sum().item()

def child():
    queue.put(kernel())
    torch.set_num_threads(1)
    queue.put(whole())

torch.set_num_threads(2)
want = kernel(), whole()
context = multiprocessing.get_context("fork")
queue = context.Queue()
process = context.Process(target=child, daemon=True)
process.start()
for number in want:
    assert abs(queue.get(timeout=20) / number - 1) < 1e-5
process.join(10)
assert process.exitcode == 0
"""


@pytest.mark.skipif(sys.platform == "win32", reason="nothing forks")
def test_forked_processes_do_not_wait_for_lost_threads() -> None:
    command = [sys.executable, "-W", "ignore", "-c", FORK]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("name", ["dnc", "none"])
def test_other_cores_run_the_loop(name: str) -> None:
    core = seeded(name, 4)
    core(torch.ones(2, 3, 5))
    assert core.backend_used == "plain"
    core.backend = "native"
    with pytest.raises(ValueError, match="the native backend cannot run this: "):
        core(torch.ones(2, 3, 5))


def test_other_numbers_run_the_loop() -> None:
    double = seeded("lstm", 4, dtype=torch.float64)
    double(torch.ones(2, 3, 5, dtype=torch.float64))
    assert double.backend_used == "plain"
    meta = seeded("lstm", 4, device="meta")
    meta(torch.ones(2, 3, 5, device="meta"))
    assert meta.backend_used == "plain"
    double.backend = "native"
    with pytest.raises(ValueError, match="it takes float32 on the CPU"):
        double(torch.ones(2, 3, 5, dtype=torch.float64))


def test_autocast_runs_the_loop() -> None:
    core = seeded("lstm", 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        core(torch.ones(2, 3, 5))
        assert core.backend_used == "plain"
        core.backend = "native"
        with pytest.raises(ValueError, match="autocast"):
            core(torch.ones(2, 3, 5))


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
def test_transforms_run_the_loop() -> None:
    core = seeded("lstm", 4)
    x = torch.ones(2, 3, 5)

    def total(x: Tensor) -> Tensor:
        return torch.as_tensor(core(x)[0].sum())

    x.requires_grad_()
    (want,) = torch.autograd.grad(total(x), x)
    torch.testing.assert_close(torch.func.grad(total)(x.detach()), want)
    tangent = torch.ones_like(x)
    _, slope = torch.func.jvp(total, (x.detach(),), (tangent,))
    torch.testing.assert_close(slope, want.sum())
    assert core.backend_used == "plain"
    with torch.autograd.forward_ad.dual_level(), torch.no_grad():
        dual = torch.autograd.forward_ad.make_dual(x.detach(), tangent)
        slope = torch.autograd.forward_ad.unpack_dual(total(dual)).tangent
    torch.testing.assert_close(slope, want.sum())


@pytest.mark.filterwarnings("ignore:Guards may run slower on Python 3.13.0:RuntimeWarning")
def test_compilation_traces_the_loop() -> None:
    core = seeded("ur_lstm", 4)
    x, _, starts = inputs(4, 3, 2)
    want = core(x, None, starts)
    assert core.backend_used == "native"
    compiled = torch.compile(core, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, None, starts), want)
    assert core.backend_used == "plain"


def test_observation_runs_the_loop() -> None:
    core = seeded("ur_lstm", 4, backend="native")
    x, state, starts = inputs(4, 3, 2)
    seen = core.observe(x, state, starts)
    assert core.backend_used == "plain"
    torch.testing.assert_close(seen.outputs, core(x, state, starts)[0])


def test_odd_weights_are_refused() -> None:
    """Native code is given addresses alone: a size that does not fit must not reach it."""
    core = seeded("lstm", 4, backend="native")
    core.cells[0].weight_ih = torch.nn.Parameter(torch.ones(12, 5))
    core.cells[0].bias_ih = torch.nn.Parameter(torch.ones(12))
    core.cells[0].bias_hh = torch.nn.Parameter(torch.ones(12))
    with pytest.raises(ValueError, match=r"weight_ih must be float32 of shape \(16, 5\), got"):
        core(torch.ones(2, 3, 5))


def test_backends_are_checked_and_travel_with_the_core() -> None:
    with pytest.raises(ValueError, match="Did you mean 'native'"):
        make_core("lstm", 5, 4, backend="nativ")
    core = make_core("lstm", 5, 4, backend="plain")
    assert pickle.loads(pickle.dumps(core)).backend == "plain"
    core(torch.ones(1, 1, 5))
    assert core.backend_used == "plain"
    with pytest.raises(ValueError, match="unknown backend"):
        core.backend = "fast"


def test_a_missing_extension_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(calls, "_native", None)
    kernels._log_once.cache_clear()
    core = seeded("ur_lstm", 4)
    with caplog.at_level(logging.WARNING, logger="rlgates.kernels"):
        for _ in range(3):
            core(torch.ones(2, 3, 5))
    assert core.backend_used == "plain"
    assert [record.name for record in caplog.records] == ["rlgates.kernels"]
    assert "not built" in caplog.text
    core.backend = "native"
    with pytest.raises(ValueError, match="not built"):
        core(torch.ones(2, 3, 5))
