"""torch.compile keeps the kernels: as operators they compile in one graph and equal eager calls."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.equivalence import random_sequence, run_with_gradients, seeded_core
from support.layers import SOME, SOME_FUSED, Layer
from support.native import needs_native
from torch import Tensor

from rlgates import Core
from rlgates.kernels import ops
from rlgates.kernels.cpu import layer

pytestmark = [
    needs_native,
    pytest.mark.filterwarnings("ignore:Guards may run slower on Python 3.13.0:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning"),  # torch's own use of it
]

LINEAR: list[Layer] = [(name, {}) for name in ("ur_mingru", "minlstm", "lru", "s4d", "mamba")]
EACH_KERNEL = [*SOME, *SOME_FUSED, *LINEAR]
of_each_kernel = pytest.mark.parametrize(
    "layer", EACH_KERNEL, ids=lambda layer: f"{layer[0]}-{layer[1]}"
)


def problem(layer: Layer, **options: Any) -> tuple[Core, tuple[Tensor, Tensor, Tensor]]:
    name, more = layer
    core = seeded_core(name, 6, 2, **more, **options)
    return core, random_sequence(core, 3, 40)


@pytest.fixture(autouse=True)
def _no_graphs() -> None:
    torch.compiler.reset()


@of_each_kernel
def test_a_compiled_core_keeps_the_kernel(layer: Layer) -> None:
    # Compiling takes long: every other layer has a learned state.
    core, sequence = problem(layer, learned_state=EACH_KERNEL.index(layer) % 2 == 0)
    expected = run_with_gradients(core, *sequence)
    core.backend_used = None
    core.compile(backend="aot_eager", fullgraph=True)
    results = run_with_gradients(core, *sequence)
    assert core.backend_used == "native"
    torch.testing.assert_close(results, expected)


@of_each_kernel
def test_without_gradients(layer: Layer) -> None:
    core, (x, state, _) = problem(layer)
    with torch.no_grad():
        expected = core(x, state)
        core.compile(backend="aot_eager", fullgraph=True)
        torch.testing.assert_close(core(x, state), expected)
        (mean,) = core(x[:, :, :], state)[0].mean().unsqueeze(0)
    assert not mean.requires_grad


def test_any_length_and_batch_with_one_graph() -> None:
    core, _ = problem(("ur_lstm", {}))
    frames: list[Any] = []

    def count(graph: Any, inputs: Any) -> Any:
        frames.append(graph)
        return graph

    compiled = torch.compile(core, backend=count, fullgraph=True, dynamic=True)
    for steps, rows in ((4, 3), (9, 5), (17, 2)):
        x, state, episode_starts = random_sequence(core, rows, steps)
        torch.testing.assert_close(
            compiled(x, state, episode_starts), core(x, state, episode_starts)
        )
    assert len(frames) == 1


def test_an_update_has_one_graph() -> None:
    core, (x, state, episode_starts) = problem(("gru", {}))
    head = torch.nn.Linear(core.output_size, 1)

    def loss(x: Tensor) -> Tensor:
        outputs, _ = core(torch.tanh(x), state, episode_starts)
        return head(outputs).square().mean()

    x.requires_grad_()
    (expected,) = torch.autograd.grad(loss(x), x)
    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(torch.autograd.grad(compiled(x), x)[0], expected)


def test_exported_programs_contain_the_loop() -> None:
    core, _ = problem(("ur_lstm", {}))
    x, state, _ = random_sequence(core, 2, 1)
    program = torch.export.export(core, (x, state))
    assert "rlgates" not in str(program.graph)
    torch.testing.assert_close(program.module()(x, state), core(x, state))


def test_a_second_derivative_is_a_clear_error() -> None:
    core, (x, state, _) = problem(("lstm", {}))
    x.requires_grad_()
    own = state[:, : state.shape[1] // 2]  # that of the first of two layers
    outputs, _ = ops.run(core.cells[0].recurrence(), x, own, None)
    (gradient,) = torch.autograd.grad(outputs.sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="backend='plain'"):
        gradient.sum().backward()


def checked(operator: Any, *arguments: Any) -> None:
    """torch's own checks of schema, autograd registration, fake tensors and dynamic shapes."""
    torch.library.opcheck(operator, arguments, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize(
    "of",
    [
        ("ur_lstm", {"zoneout_cell": 0.2, "zoneout_hidden": 0.1}),
        ("gru", {}),
        ("rru", {"dropout": 0.5}),
        ("nru", {}),
    ],
)
def test_cell_operator(of: Layer, learned: bool) -> None:
    core, (x, state, episode_starts) = problem(of)
    spec = core.cells[0].recurrence()
    own = state[:, : state.shape[1] // 2]
    tensors = (x, own, *spec.weights, *([own] if learned else []))
    inputs = [tensor.detach().clone().requires_grad_() for tensor in tensors]
    noise = torch.rand(*x.shape[:2], layer.plan_of(spec, x.shape[2]).noise_width)
    gate = spec.gate or ("", "", 1)
    others = spec.dropout, list(spec.zoneout) or [0.0], spec.training, spec.constant
    options = spec.cell, list(spec.sizes), *gate, *others
    checked(ops._layer, inputs, episode_starts, noise, *options, True)


def test_scan_operator() -> None:
    _, (x, _, episode_starts) = problem(("lru", {}))
    a, b, h = torch.rand_like(x), x, torch.randn_like(x[0])
    tensors = [tensor.requires_grad_() for tensor in (b, a, h, h.clone().detach())]
    checked(ops._scan, *tensors, episode_starts, False)
