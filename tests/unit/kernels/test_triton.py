"""Kernels in Triton: the ways to launch them, precision, and what they refuse.

Without a GPU they run in Triton's interpreter, which does not know what the compiler and the
device make of them: `rlgates bench gpu` checks that where there is one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from support.equivalence import exact_results, relative_errors, run_with_gradients, weighted_loss
from support.interpreted import (
    DEVICE,
    REASON,
    check_against_loop,
    random_sequence,
    run_in_one_launch,
    seeded_core,
)
from support.layers import CHUNKED, LAYERS, SOME
from torch import Tensor

from rlgates.gates import ACTIVATIONS, AUXILIARIES, GATES
from rlgates.kernels import layout
from rlgates.kernels.triton import compiled
from rlgates.kernels.triton import op as triton
from rlgates.registry import core_names

pytest.importorskip("triton", reason=REASON)

# exp(100) is infinite, and its reciprocal the 0 that it should be
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

# (H, B, T)
SHAPES = [(3, 5, 7), (16, 2, 1), (40, 1, 4), (16, 0, 2), (33, 18, 2)]
every_layer = pytest.mark.parametrize(("name", "options"), LAYERS, ids=lambda v: str(v))


@pytest.fixture(params=[True, False], ids=["persistent", "steps"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    run_in_one_launch(monkeypatch, request.param)


def test_the_kernels_run_the_whole_table() -> None:
    assert set(layout.ACTIVATIONS) == set(ACTIVATIONS)
    assert set(layout.AUXILIARIES) == set(AUXILIARIES)


@pytest.mark.parametrize("i", range(0, len(LAYERS), 3))
def test_equals_the_loop(i: int, monkeypatch: pytest.MonkeyPatch) -> None:
    name, options = LAYERS[i]
    run_in_one_launch(monkeypatch, i % 2 == 0)
    core = seeded_core(name, 5, **options)
    check_against_loop(core, *random_sequence(core, 3, 2))


@pytest.mark.slow
@pytest.mark.usefixtures("way")
@every_layer
def test_equals_the_loop_at_every_shape(name: str, options: dict[str, Any]) -> None:
    for h, b, t in SHAPES:
        core = seeded_core(name, h, **options)
        x, state, episode_starts = random_sequence(core, b, t)
        check_against_loop(core, x, state, episode_starts)
    check_against_loop(core, x, state, None)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize(("h", "b", "t"), [(16, 0, 2), (17, 18, 1)])
def test_odd_sizes(h: int, b: int, t: int) -> None:
    for name in ("ur_lstm", "or_gru"):
        core = seeded_core(name, h)
        x, state, episode_starts = random_sequence(core, b, t)
        check_against_loop(core, x, state, episode_starts)
        check_against_loop(core, x, state, None)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize(("name", "options"), CHUNKED, ids=lambda v: str(v))
def test_units_share_master_values(name: str, options: dict[str, Any]) -> None:
    core = seeded_core(name, 15, **options)
    check_against_loop(core, *random_sequence(core, 3, 2))


@pytest.mark.slow
@pytest.mark.parametrize("h", [300, 600])
@pytest.mark.parametrize(("name", "options"), SOME, ids=lambda v: str(v))
def test_wide_layers(name: str, options: dict[str, Any], h: int) -> None:
    """Several tiles of units, or a single wide one."""
    core = seeded_core(name, h, **options)
    check_against_loop(core, *random_sequence(core, 3, 2))


# A few layers that a fused kernel runs, of each cell and auxiliary, then all others.
FUSED_FIRST = ["ur_lstm", "um_lstm", "ff_lstm", "gru", "um_gru", "ur_janet"]
FUSED_LAYERS = [
    (name, options)
    for name, options in LAYERS
    if options.get("reset") != "before" and GATES[core_names()[name][1]].activation != "cumax"
]
# Of the two ways, each layer has episode starts in one, and the next layer in the other.
WAYS = [("fused", "fused_steps"), ("fused_steps", "fused")]
FUSED = [
    pytest.param(name, options, *WAYS[i % 2], marks=[] if name in FUSED_FIRST else pytest.mark.slow)
    for i, (name, options) in enumerate(FUSED_LAYERS)
]


@pytest.mark.parametrize(("name", "options", "started", "whole"), FUSED, ids=lambda v: str(v))
def test_fused_tiles(
    name: str,
    options: dict[str, Any],
    started: str,
    whole: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Several tiles of units, of the sum and of the batch, the last of them not full."""
    from rlgates.kernels.triton import launch

    wide = launch.fused_tile

    def tile(problem: Any, backward: bool, device: torch.device) -> dict[str, int]:
        inner = {} if backward else {"BLOCK_INNER": 16}
        return {**(wide(problem, backward, device) or {}), "BLOCK_UNITS": 16, **inner}

    monkeypatch.setattr(launch, "fused_tile", tile)
    core = seeded_core(name, 20, learned_state=True, **options)
    x, state, episode_starts = random_sequence(core, 18, 2)
    problem = triton.gated_problem(core.cells[0].recurrence(), 2, 18)
    run_in_one_launch(monkeypatch, True)
    assert launch.launch_mode(problem, fits=True, backward=False) == "fused"
    run_in_one_launch(monkeypatch, False)
    problem = problem._replace(precision="tf32")
    assert launch.launch_mode(problem, fits=True, backward=False) == "fused_steps"
    for mode, starts in ((started, episode_starts), (whole, None)):
        monkeypatch.setattr(launch, "launch_mode", lambda *_, mode=mode: mode)
        results = run_with_gradients(core, x, state, starts)
        with torch.no_grad():
            outputs, final = core(x, state, starts)
        errors = relative_errors(results, exact_results(core, x, state, starts))
        assert max(errors.values()) < 1e-5, errors
        torch.testing.assert_close(outputs, results["outputs"])
        torch.testing.assert_close(final, results["final"])


def test_layers() -> None:
    core = seeded_core("ur_lstm", 5, 2)
    check_against_loop(core, *random_sequence(core, 3, 2))


def test_small_numbers_keep_their_digits() -> None:
    """Candidates and outputs near zero keep their relative precision."""
    core = seeded_core("lstm", 16)
    for parameter in core.parameters():
        torch.nn.init.zeros_(parameter)
    with torch.no_grad():
        core.cells[0].weight_ih[32:48, 0] = 1.0  # the candidate
        x = torch.zeros(1, 5, 5, device=DEVICE)
        x[0, :, 0] = torch.tensor([1e-12, 1e-6, 1e-3, 0.1, 3.0])
        _, state = core(x)
    expected = 0.5 * torch.tanh(x[0, :, :1].double())
    assert ((core.unpack(state)["c"][0] - expected).abs() / expected).max() < 1e-6


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_an_unread_state_has_no_gradient(name: str) -> None:
    core = seeded_core(name, 5)
    x, state, episode_starts = random_sequence(core, 3, 2)
    episode_starts[0] = True
    state[:] = torch.nan
    state.requires_grad_()
    (gradient,) = torch.autograd.grad(weighted_loss(*core(x, state, episode_starts)), state)
    assert torch.equal(gradient, torch.zeros_like(state))


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize(("name", "options"), [SOME[0], SOME[3], ("gru", {"reset": "before"})])
def test_autocast_is_as_near_to_the_truth_as_the_loop(name: str, options: dict[str, Any]) -> None:
    core = seeded_core(name, 33, **options)
    x, state, episode_starts = random_sequence(core, 4, 3)
    expected = exact_results(core, x, state, episode_starts)
    errors = []
    for backend in ("triton", "plain"):
        core.backend = backend
        with torch.autocast(DEVICE, torch.bfloat16):
            result = run_with_gradients(core, x, state, episode_starts)
            assert core.backend_used == backend
        assert result["outputs"].dtype == result["final"].dtype == torch.float32
        errors.append(
            {key: (result[key] - expected[key]).norm() / expected[key].norm() for key in expected}
        )
    for key, error in errors[0].items():
        assert error < 0.03, key
        # The interpreter cuts off what a device rounds, which doubles the error of a bfloat16.
        assert error < (3 if DEVICE == "cpu" else 1.5) * errors[1][key], key


@pytest.fixture
def matmul() -> Iterator[Any]:
    before = torch.backends.cuda.matmul.allow_tf32
    yield torch.backends.cuda.matmul
    torch.backends.cuda.matmul.allow_tf32 = before


def test_products_follow_torch(matmul: Any) -> None:
    device = torch.device(DEVICE)
    for allowed, precision in ((True, "tf32"), (False, "ieee")):
        matmul.allow_tf32 = allowed
        assert triton._precision(device) == precision
    with torch.autocast(DEVICE, torch.bfloat16):
        assert triton._precision(device) == "bf16"


def test_weights_of_the_wrong_size_are_refused() -> None:
    """Kernels receive only addresses, so sizes are checked before."""
    core = seeded_core("lstm", 4)
    for name, shape in (("weight_ih", (12, 5)), ("bias_ih", (12,)), ("bias_hh", (12,))):
        setattr(core.cells[0], name, torch.nn.Parameter(torch.ones(shape, device=DEVICE)))
    with pytest.raises(ValueError, match=r"must be torch.float32 of shape \(2, 3, 16\) on"):
        core(torch.ones(2, 3, 5, device=DEVICE))


def test_other_numbers_and_cores_are_refused() -> None:
    double = seeded_core("lstm", 4, dtype=torch.float64)
    with pytest.raises(ValueError, match="the triton backend cannot run this: it takes float32"):
        double(torch.ones(2, 3, 5, dtype=torch.float64, device=DEVICE))
    with pytest.raises(ValueError, match="the triton backend cannot run this: it has no rru"):
        seeded_core("rru", 4)(torch.ones(2, 3, 5, device=DEVICE))


@pytest.mark.filterwarnings("ignore:Guards may run slower on Python 3.13.0:RuntimeWarning")
@pytest.mark.parametrize(
    ("name", "learned_state"),
    [("ur_lstm", True), ("gru", False), ("or_gru", True), ("ur_janet", False)],
)
def test_a_compiled_core_keeps_the_kernel(name: str, learned_state: bool) -> None:
    torch.compiler.reset()
    core = seeded_core(name, 6, 2, learned_state=learned_state)
    sequence = random_sequence(core, 3, 2)
    expected = run_with_gradients(core, *sequence)
    core.backend_used = None
    core.compile(backend="aot_eager", fullgraph=True)
    results = run_with_gradients(core, *sequence)
    assert core.backend_used == "triton"
    torch.testing.assert_close(results, expected)
    with torch.no_grad():
        torch.testing.assert_close(core(*sequence)[0], results["outputs"])


@pytest.mark.parametrize("name", ["ur_lstm", "gru"])
def test_the_operator(name: str) -> None:
    core = seeded_core(name, 6)
    x, state, episode_starts = random_sequence(core, 3, 5)
    weight = core.cells[0].weight_hh
    projected = core.cells[0].project(x)
    bias = [core.cells[0].bias_hh] if name == "gru" else []
    inputs = [projected, *state.split(6, dim=1), weight, *bias]
    inputs = [tensor.detach().clone().requires_grad_() for tensor in inputs]
    spec = core.cells[0].recurrence()
    options = spec.cell, *spec.gate, 0.0, False, True
    torch.library.opcheck(compiled._cell, (inputs, episode_starts, *options), rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize(("name", "options"), SOME, ids=lambda v: str(v))
def test_hooks_may_change_strides_and_signs_in_memory(name: str, options: dict[str, Any]) -> None:
    core = seeded_core(name, 5, learned_state=True, **options)
    sequence = random_sequence(core, 3, 2)
    expected = run_with_gradients(core, *sequence)

    def unpack(x: Tensor) -> Tensor:
        if not x.is_floating_point():
            return x.transpose(0, -1).contiguous().transpose(0, -1)
        view = torch.complex(torch.zeros_like(x), -x).conj().imag
        assert view.is_neg()
        return view

    with torch.autograd.graph.saved_tensors_hooks(lambda x: x, unpack):
        results = run_with_gradients(core, *sequence)
    torch.testing.assert_close(results, expected)

    def smaller(x: Tensor) -> Tensor:
        return x[..., :-1] if x.ndim > 1 else x

    with torch.autograd.graph.saved_tensors_hooks(lambda x: x, smaller):
        outputs, _ = core(*sequence)
    with pytest.raises(ValueError, match=r"must be torch.* of shape"):
        outputs.sum().backward()


@pytest.mark.usefixtures("way")
def test_gradients_without_memory() -> None:
    core = seeded_core("ur_lstm", 5)
    outputs, _ = core(*random_sequence(core, 3, 2))
    outputs.sgn().sum().backward()
    assert all(not parameter.grad.any() for parameter in core.parameters())


@pytest.mark.parametrize("precision", ["ieee", "tf32", "bf16"])
@pytest.mark.parametrize("units", [1, 16, 33, 64, 128, 200, 256])
@pytest.mark.parametrize(
    ("cell", "auxiliary"), [("lstm", "refine"), ("lstm", "master"), ("gru_after", "tied")]
)
def test_tiles_fit_into_shared_memory(
    cell: str, auxiliary: str, units: int, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of an H100, an A100 and a device for which there is no tile."""
    from rlgates.kernels.triton import launch

    problem = launch.GatedProblem(
        cell, "sigmoid", auxiliary, 1, 0.0, precision, 9, 4096, units
    )  # fmt: skip
    maps, itemsize = problem.width // units, problem.operand_dtype.itemsize
    for kilobytes in (227, 163):
        monkeypatch.setattr(launch, "processor", lambda _, size=kilobytes: (100, size * 2**10))
        for backward in (False, True):
            tile = launch.fused_tile(problem, backward, torch.device("cuda"))
            if tile is None:
                assert kilobytes == 163
                continue
            assert tile["BLOCK_UNITS"] >= 16
            assert tile["BLOCK_INNER"] >= (units if backward else 16)
            weights = tile["BLOCK_UNITS"] * tile["BLOCK_INNER"] * maps * itemsize
            assert tile["num_stages"] * weights < kilobytes * 2**10
    monkeypatch.setattr(launch, "processor", lambda _: (100, 2**10))
    assert launch.fused_tile(problem, True, torch.device("cuda")) is None
    assert launch.launch_mode(problem, fits=False, backward=True) != "fused"


def test_a_graph_has_steps_of_wide_layers() -> None:
    from rlgates.kernels.recording import recording
    from rlgates.kernels.triton import launch

    problem = launch.GatedProblem("lstm", "sigmoid", "refine", 1, 0.0, "bf16", 9, 4, 256)

    def mode(backward: bool = False, **changes: Any) -> str:
        return launch.launch_mode(problem._replace(**changes), fits=True, backward=backward)

    with recording():
        with recording():
            assert mode() == "fused_steps"
        assert mode() == mode(backward=True) == mode(batch_size=4096) == "fused_steps"
        assert mode(backward=True, batch_size=4096) == "steps"
        assert mode(precision="ieee") == mode(cell="gru_before") == "steps"
        assert mode(units=128) == "fused"
    assert mode() == "fused"


@pytest.mark.parametrize("batch_size", [1, 100, 1000, 10_000])
@pytest.mark.parametrize("precision", ["tf32", "bf16"])
@pytest.mark.parametrize("auxiliary", ["refine", "master"])
def test_tiles_of_a_step(auxiliary: str, precision: str, batch_size: int) -> None:
    """They fit into the shared memory, and most processors have one, if there are enough."""
    from rlgates.kernels.triton import launch

    device = torch.device("cpu")
    processors, memory = launch.processor(device)
    problem = launch.GatedProblem(
        "lstm", "sigmoid", auxiliary, 1, 0.0, precision, 9, batch_size, 300
    )
    for backward in (False, True):
        tile = launch.step_tile(problem, backward, device)
        rows, columns, inner = (tile[f"BLOCK_{of}"] for of in ("BATCH", "UNITS", "INNER"))
        maps = 1 if backward else problem.width // 300
        bytes_ = (rows + maps * columns) * inner * problem.operand_dtype.itemsize
        assert bytes_ * tile["num_stages"] <= memory
        programs = -(-batch_size // rows) * -(-300 // columns)
        assert programs >= 0.75 * processors or (rows, columns) == (16, 16)
