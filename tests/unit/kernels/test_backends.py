"""Which backend runs: native code where supported, else the plain loop with a logged reason."""

from __future__ import annotations

import logging
import pickle
import subprocess
import sys

import pytest
import torch
from support.equivalence import random_sequence, seeded_core
from support.native import needs_native
from torch import Tensor

from rlgates import Cell, make_core
from rlgates.cores.feedforward import FeedForward
from rlgates.kernels import dispatch
from rlgates.kernels.cpu import abi

pytestmark = needs_native

# torch itself hangs in a child if it used threads before the fork, unless the child asks for one.
FORK = """
import multiprocessing, torch
from rlgates import make_core
from rlgates.kernels import scan
from rlgates.kernels.cpu import layer
from rlgates.kernels.cpu import scan as cpu_scan
core, x = make_core("{name}", 8, 64, backend="native"), torch.ones(80, 64, 8)
zeros, numbers = torch.zeros(64, 128), torch.rand(80, 128, 64)
problem = scan.ScanProblem(numbers, numbers[0], None, None, is_complex=False)

def kernel():
    with torch.no_grad():
        return {kernel}[0].numpy().sum()

def whole():
    core(x)[0].sum().backward()
    return core(x)[0].sum().item()

def child():
    queue.put(kernel())
    torch.set_num_threads(1)
    queue.put(whole())
    queue.put(kernel())

torch.set_num_threads(2)
want = kernel(), whole(), kernel()
context = multiprocessing.get_context("fork")
queue = context.Queue()
process = context.Process(target=child, daemon=True)
process.start()
for number in want:
    assert abs(queue.get(timeout=120) / number - 1) < 1e-5
process.join(120)
assert process.exitcode == 0
"""


@pytest.mark.skipif(sys.platform == "win32", reason="nothing forks")
@pytest.mark.parametrize(
    ("name", "kernel"),
    [
        ("ur_lstm", "layer.run(core.cells[0].recurrence(), x, zeros, None)"),
        ("lru", "scan.scan(problem, numbers, cpu_scan)"),
    ],
)
def test_forked_processes_do_not_deadlock(name: str, kernel: str) -> None:
    command = [sys.executable, "-W", "ignore", "-c", FORK.format(name=name, kernel=kernel)]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert run.returncode == 0, run.stderr


BACKWARD = """
import os, torch
from rlgates import make_core
torch.set_num_threads(2)
core = make_core("ur_lstm", 16, 64, backend="native")
outputs, _ = core(torch.ones(64, 16, 16))
gradient = torch.ones_like(outputs)
child = os.fork()
if not child:
    torch.set_num_threads(1)
    outputs.backward(gradient)
    os._exit(0)
for _ in range(1_200):
    ended, status = os.waitpid(child, os.WNOHANG)
    if ended:
        raise SystemExit(status)
    time.sleep(0.1)
os.kill(child, 9)
raise SystemExit("the child did not end")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="nothing forks")
def test_a_forked_process_runs_the_backward_pass_alone() -> None:
    command = [sys.executable, "-W", "ignore", "-c", f"import time{BACKWARD}"]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert run.returncode == 0, run.stderr


def test_other_cores_run_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FeedForward, "recurrence", Cell.recurrence)
    core = seeded_core("none", 4)
    core(torch.ones(2, 3, 5))
    assert core.backend_used == "plain"
    core.backend = "native"
    with pytest.raises(ValueError, match="the native backend cannot run this: "):
        core(torch.ones(2, 3, 5))


def test_other_numbers_run_the_loop() -> None:
    double = seeded_core("lstm", 4, dtype=torch.float64)
    double(torch.ones(2, 3, 5, dtype=torch.float64))
    assert double.backend_used == "plain"
    meta = seeded_core("lstm", 4, device="meta")
    meta(torch.ones(2, 3, 5, device="meta"))
    assert meta.backend_used == "plain"
    double.backend = "native"
    with pytest.raises(ValueError, match="it takes float32 on the CPU"):
        double(torch.ones(2, 3, 5, dtype=torch.float64))


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
@pytest.mark.parametrize("name", ["lstm", "minlstm"])
def test_transforms_run_the_loop(name: str) -> None:
    core = seeded_core(name, 4, 2)
    x = torch.ones(2, 3, 5)

    def total(x: Tensor) -> Tensor:
        return torch.as_tensor(core(x)[0].sum())

    x.requires_grad_()
    (expected,) = torch.autograd.grad(total(x), x)
    torch.testing.assert_close(torch.func.grad(total)(x.detach()), expected)
    tangent = torch.ones_like(x)
    _, slope = torch.func.jvp(total, (x.detach(),), (tangent,))
    torch.testing.assert_close(slope, expected.sum())
    assert core.backend_used == "plain"
    with torch.autograd.forward_ad.dual_level(), torch.no_grad():
        dual = torch.autograd.forward_ad.make_dual(x.detach(), tangent)
        slope = torch.autograd.forward_ad.unpack_dual(total(dual)).tangent
    torch.testing.assert_close(slope, expected.sum())


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("name", ["lstm", "minlstm"])
def test_compiled_transforms_run_the_loop(name: str) -> None:
    torch.compiler.reset()
    core = seeded_core(name, 4)
    x = torch.ones(3, 2, 3, 5)

    def total(x: Tensor) -> Tensor:
        return torch.as_tensor(core(x)[0].sum())

    for transform in (torch.func.vmap, torch.func.grad):
        inputs = x if transform is torch.func.vmap else x[0]
        expected = transform(total)(inputs)
        compiled = torch.compile(transform(total), backend="eager", fullgraph=True)
        torch.testing.assert_close(compiled(inputs), expected)
    torch.testing.assert_close(torch.compile(total, backend="eager")(x[0]), total(x[0]))
    assert core.backend_used == "native"


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("name", ["lstm", "transformer"])
def test_traced_and_batched_episode_starts_are_those_of_the_call(name: str) -> None:
    core = seeded_core(name, 4)
    x, state, episode_starts = random_sequence(core, 3, 4)
    before = core(x, state, episode_starts)[1].detach()
    nowhere = torch.zeros_like(episode_starts)
    traced = torch.jit.trace(core, (x, before, nowhere))
    batched = torch.func.vmap(core.forward, in_dims=(None, None, 0))
    both = batched(x, before, torch.stack([nowhere, episode_starts]))
    for number, starts in enumerate((nowhere, episode_starts)):
        expected = core(x, before, starts)
        torch.testing.assert_close(traced(x, before, starts), expected)
        torch.testing.assert_close(tuple(part[number] for part in both), expected)


def test_tracing_runs_the_loop() -> None:
    core = seeded_core("ur_lstm", 4, backend="native")
    x, state, episode_starts = random_sequence(core, 3, 2)
    reasons = core.trace_gates(x, state, episode_starts)
    assert core.backend_used == "plain"
    torch.testing.assert_close(reasons.outputs, core(x, state, episode_starts)[0])


def test_weights_of_the_wrong_size_are_refused() -> None:
    """Native code receives only addresses, so sizes are checked before."""
    core = seeded_core("lstm", 4, backend="native")
    core.cells[0].weight_ih = torch.nn.Parameter(torch.ones(12, 5))
    core.cells[0].bias_ih = torch.nn.Parameter(torch.ones(12))
    core.cells[0].bias_hh = torch.nn.Parameter(torch.ones(12))
    with pytest.raises(ValueError, match=r"a weight must be torch.float32 of shape \(16, 5\) on"):
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


@pytest.mark.parametrize(("name", "used"), [("ur_lstm", "plain"), ("lru", "scan")])
def test_a_missing_extension_is_logged_once(
    name: str, used: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(abi, "_native", None)
    dispatch._log_once.cache_clear()
    core = seeded_core(name, 4)
    with caplog.at_level(logging.WARNING, logger="rlgates.kernels"):
        for _ in range(3):
            core(torch.ones(9, 3, 5))
    assert core.backend_used == used
    (explanation,) = core.explain_backend(torch.ones(9, 3, 5))
    assert explanation.backend == used
    assert "not built" in explanation.passed_over["native"]
    assert [record.name for record in caplog.records] == ["rlgates.kernels.dispatch"]
    assert "not built" in caplog.text
    core.backend = "native"
    with pytest.raises(ValueError, match="not built"):
        core(torch.ones(2, 3, 5))
