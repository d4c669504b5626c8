"""Kernels in Triton equal the plain loop in float64: values, final states and all gradients.

Without a GPU they run in Triton's interpreter, which does not know what the compiler and the
device make of them: `rlgates bench gpu` checks that where there is one.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from interpreted import DEVICE, REASON
from test_kernels import CHUNKED, LAYERS, SOME, everything, loss
from test_kernels import inputs as cpu_inputs
from test_kernels import seeded as cpu_core
from torch import Tensor

from rlgates import Core
from rlgates.gates import ACTIVATIONS, AUXILIARIES
from rlgates.kernels import calls, triton

pytest.importorskip("triton", reason=REASON)
from rlgates.kernels import triton_graph, triton_launch

# exp(100) is infinite, and its reciprocal the 0 that it should be
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

Layer = tuple[str, dict[str, Any]]
WAYS = ("walk", "steps")
# (H, B, T)
SHAPES = [(3, 5, 7), (16, 2, 1), (40, 1, 4), (16, 0, 2), (33, 18, 2)]
every_layer = pytest.mark.parametrize(("name", "options"), LAYERS, ids=lambda v: str(v))
some_layers = pytest.mark.parametrize(("name", "options"), SOME, ids=lambda v: str(v))
# Each in one of the ways.
in_turn = pytest.mark.parametrize(
    ("name", "options", "way"),
    [(*layer, WAYS[i % 2]) for i, layer in enumerate(SOME)],
    ids=lambda v: str(v),
    indirect=["way"],
)


def go(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One launch for all steps, or some a step."""
    monkeypatch.setattr(triton_launch, "NEAR", 2**30 if way == "walk" else 0)


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    go(request.param, monkeypatch)
    return str(request.param)


@pytest.fixture(autouse=True)
def no_recordings() -> Iterator[None]:
    triton_graph.forget()
    yield
    triton_graph.forget()


def inputs(core: Core, b: int, t: int) -> tuple[Tensor, Tensor, Tensor]:
    x, state, starts = cpu_inputs(core.state_size, b, t)
    return x.to(DEVICE), state[:, : core.state_size].to(DEVICE), starts.to(DEVICE)


def seeded(name: str, h: int, layers: int = 1, **options: Any) -> Core:
    return cpu_core(name, h, layers, **{"backend": "triton", **options}).to(DEVICE)


def check_against_loop(
    core: Core, x: Tensor, state: Tensor, starts: Tensor | None, tolerance: float = 1e-5
) -> None:
    ours = everything(core, x, state, starts)
    assert core.backend_used == "triton"
    reference = copy.deepcopy(core).double()
    reference.backend = "plain"
    for name, want in everything(reference, x.double(), state.double(), starts).items():
        got = ours[name]
        assert got.dtype == torch.float32
        if want.numel():
            error = (got - want).abs().max() / want.abs().max().clamp(min=1)
            assert error < tolerance, f"{name}: {error:.1e}"


def test_the_kernels_run_the_whole_table() -> None:
    assert set(ACTIVATIONS) == set(triton.ACTIVATIONS)
    assert set(AUXILIARIES) == set(triton_launch.GATE_MAPS)
    assert {key: len(maps) for key, maps in AUXILIARIES.items()} == triton_launch.GATE_MAPS
    assert {key: len(maps) for key, maps in calls.CELLS.items()} == triton_launch.CELL_MAPS


@pytest.mark.parametrize("i", range(0, len(LAYERS), 3))
def test_equals_the_loop(i: int, monkeypatch: pytest.MonkeyPatch) -> None:
    name, options = LAYERS[i]
    go(WAYS[i % 2], monkeypatch)
    core = seeded(name, 5, **options)
    check_against_loop(core, *inputs(core, 3, 2))


@pytest.mark.slow
@pytest.mark.usefixtures("way")
@every_layer
def test_equals_the_loop_at_every_shape(name: str, options: dict[str, Any]) -> None:
    for h, b, t in SHAPES:
        core = seeded(name, h, **options)
        x, state, starts = inputs(core, b, t)
        check_against_loop(core, x, state, starts)
    check_against_loop(core, x, state, None)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize(("h", "b", "t"), [(16, 0, 2), (17, 18, 1)])
def test_odd_sizes(h: int, b: int, t: int) -> None:
    for name in ("ur_lstm", "or_gru"):
        core = seeded(name, h)
        x, state, starts = inputs(core, b, t)
        check_against_loop(core, x, state, starts)
        check_against_loop(core, x, state, None)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize(("name", "options"), CHUNKED, ids=lambda v: str(v))
def test_units_share_master_values(name: str, options: dict[str, Any]) -> None:
    core = seeded(name, 15, **options)
    check_against_loop(core, *inputs(core, 3, 2))


@pytest.mark.slow
@pytest.mark.parametrize("h", [300, 600])
@some_layers
def test_wide_layers(name: str, options: dict[str, Any], h: int) -> None:
    """Several tiles of units, or a single wide one."""
    core = seeded(name, h, **options)
    check_against_loop(core, *inputs(core, 3, 2))


@pytest.mark.slow
@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("size", [8.0, 40.0, 1e4])
@every_layer
def test_large_pre_activations(name: str, options: dict[str, Any], size: float) -> None:
    core = seeded(name, 33, **options)
    with torch.no_grad():
        bias = core.cells[0].bias_ih
        order = torch.randperm(len(bias), generator=torch.Generator().manual_seed(0))
        bias.copy_(torch.linspace(-size, size, len(bias))[order])
    # A slope may be as steep as cosh 3 (fast) or cosh 3 cosh 10 (iterated): so are its errors.
    check_against_loop(core, *inputs(core, 4, 3), 1e-4)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("where", ["first", "last", "all", "none"])
def test_starts_anywhere(where: str) -> None:
    core = seeded("ur_lstm", 5)
    x, state, starts = inputs(core, 3, 3)
    starts[:] = where == "all"
    if where in ("first", "last"):
        starts[0 if where == "first" else -1] = True
    check_against_loop(core, x, state, starts)


def test_layers() -> None:
    core = seeded("ur_lstm", 5, 2)
    check_against_loop(core, *inputs(core, 3, 2))


def test_small_numbers_keep_their_digits() -> None:
    """Near zero a candidate and an output are as exact as elsewhere, relative to their size."""
    core = seeded("lstm", 16)
    for parameter in core.parameters():
        torch.nn.init.zeros_(parameter)
    with torch.no_grad():
        core.cells[0].weight_ih[32:48, 0] = 1.0  # the candidate
        x = torch.zeros(1, 5, 5, device=DEVICE)
        x[0, :, 0] = torch.tensor([1e-12, 1e-6, 1e-3, 0.1, 3.0])
        _, state = core(x)
    want = 0.5 * torch.tanh(x[0, :, :1].double())
    assert ((core.unpack(state)["c"][0] - want).abs() / want).max() < 1e-6


@in_turn
def test_nan_stays_in_its_row_and_ends_at_a_start(
    name: str, options: dict[str, Any], way: str
) -> None:
    core = seeded(name, 5, **options)
    x, state, starts = inputs(core, 4, 4)
    starts[:] = False
    starts[2] = True
    x[1, 0, 0] = torch.nan
    state[1], state[2] = torch.nan, torch.inf
    plain = copy.deepcopy(core)
    plain.backend = "plain"
    x.requires_grad_()
    state.requires_grad_()
    got, want = core(x, state, starts)[0], plain(x, state, starts)[0]
    assert torch.equal(got.isnan(), want.isnan())
    assert got[1, 0].isnan().all()
    assert got[2:].isfinite().all()
    assert got[:, 3].isfinite().all()
    gradients = [torch.autograd.grad(outputs[2:].sum(), (x, state)) for outputs in (got, want)]
    torch.testing.assert_close(gradients[0][0][2:], gradients[1][0][2:])
    for mine, theirs in zip(*gradients, strict=True):
        assert torch.equal(mine.isnan(), theirs.isnan())


@pytest.mark.slow
def test_nan_pre_activations_give_nan() -> None:
    for name, options in LAYERS:
        core = seeded(name, 3, **options)
        for row in range(0, core.cells[0].weight_ih.shape[0], 3):
            broken = copy.deepcopy(core)
            with torch.no_grad():
                broken.cells[0].bias_ih[row] = torch.nan
                ones = torch.ones(1, 1, 5 + core.state_size, device=DEVICE)
                assert broken(ones[..., :5], ones[0, :, 5:])[0].isnan().any()


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_an_unread_state_has_no_gradient(name: str) -> None:
    core = seeded(name, 5)
    x, state, starts = inputs(core, 3, 2)
    starts[0] = True
    state[:] = torch.nan
    state.requires_grad_()
    (gradient,) = torch.autograd.grad(loss(*core(x, state, starts)), state)
    assert torch.equal(gradient, torch.zeros_like(state))


@some_layers
def test_steps_equal_the_sequence(name: str, options: dict[str, Any]) -> None:
    core = seeded(name, 5, **options)
    x, state, starts = inputs(core, 3, 3)
    with torch.no_grad():
        outputs, final = core(x, state, starts)
        for t in range(len(x)):
            output, state = core(x[t : t + 1], state, starts[t : t + 1])
            torch.testing.assert_close(output[0], outputs[t], rtol=0, atol=2e-6)
    torch.testing.assert_close(state, final, rtol=0, atol=2e-6)


@in_turn
def test_without_gradients_the_values_are_the_same(
    name: str, options: dict[str, Any], way: str
) -> None:
    core = seeded(name, 5, **options)
    x, state, starts = inputs(core, 3, 3)
    outputs, final = core(x, state, starts)
    assert outputs.requires_grad
    with torch.no_grad():
        torch.testing.assert_close(core(x, state, starts), (outputs, final), rtol=0, atol=1e-6)
    with torch.inference_mode():
        torch.testing.assert_close(core(x, state, starts)[0], outputs, rtol=0, atol=1e-6)


@pytest.mark.parametrize("frozen", ["weight_hh", "weight_ih", "bias_ih", "bias_hh", "all"])
@pytest.mark.parametrize("name", ["r_lstm", "gru"])
def test_frozen_weights(name: str, frozen: str) -> None:
    core = seeded(name, 5)
    for key, parameter in core.named_parameters():
        parameter.requires_grad_(frozen != "all" and not key.endswith(frozen))
    check_against_loop(core, *inputs(core, 3, 2))


@in_turn
def test_only_the_final_state_is_used(name: str, options: dict[str, Any], way: str) -> None:
    gradients = []
    for backend in ("triton", "plain"):
        core = seeded(name, 5, backend=backend, **options)
        core(*inputs(core, 3, 2))[1].sum().backward()
        gradients.append([parameter.grad for parameter in core.parameters()])
    torch.testing.assert_close(*gradients)


def test_layout_does_not_matter() -> None:
    core = seeded("ur_lstm", 5)
    x, state, starts = inputs(core, 6, 3)
    want = core(x, state, starts)
    strange = x.transpose(0, 1).contiguous().transpose(0, 1)
    tilted = state.t().contiguous().t()
    masks = starts.t().contiguous().t()
    wide = torch.cat([state, state], dim=1)[:, : state.shape[1]]
    for got in (core(strange, tilted, masks), core(x, wide, starts)):
        torch.testing.assert_close(got, want)
    core.cells[0].weight_hh.data = core.cells[0].weight_hh.data.t().contiguous().t()
    check_against_loop(core, strange, tilted, masks)
    expanded = core(x[:, :1].expand(3, 6, 5), state[:1].expand(6, 10))[0]
    torch.testing.assert_close(expanded[:, 0], expanded[:, 5])
    outputs, _ = core(x, state, starts)
    (got,) = torch.autograd.grad(outputs.sum(), core.cells[0].weight_hh)  # expanded gradients
    assert got.isfinite().all()


def test_gradients_add_up_and_the_graph_can_be_kept() -> None:
    core = seeded("ur_lstm", 5)
    x, state, starts = inputs(core, 3, 2)
    value = loss(*(tensor.cpu() for tensor in core(x, state, starts)))
    value.backward(retain_graph=True)
    weight = core.cells[0].weight_hh
    assert weight.grad is not None
    once = weight.grad.clone()
    value.backward()
    torch.testing.assert_close(weight.grad, 2 * once)


@some_layers
def test_outputs_may_be_changed_in_place(name: str, options: dict[str, Any]) -> None:
    gradients = []
    for backend in ("triton", "plain"):
        core = seeded(name, 5, backend=backend, **options)
        outputs, final = core(*inputs(core, 3, 2))
        (outputs.relu_().sum() + final.mul_(2).square().sum()).backward()
        gradients.append([parameter.grad for parameter in core.parameters()])
    torch.testing.assert_close(*gradients)


def test_starts_changed_before_the_backward_pass_are_noticed() -> None:
    core = seeded("lstm", 3)
    x, state, starts = inputs(core, 2, 2)
    outputs, _ = core(x, state, starts)
    starts.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        outputs.sum().backward()


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("power", [1, 2])
def test_a_second_derivative_is_refused(power: int, frozen: bool) -> None:
    core = seeded("lstm", 3).requires_grad_(not frozen)
    x, state, _ = inputs(core, 2, 2)
    value = core(x.requires_grad_(), state)[0].pow(power).sum()
    (gradient,) = torch.autograd.grad(value, x, create_graph=True)
    with pytest.raises(RuntimeError, match="backend='plain'"):
        gradient.square().sum().backward()


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize(("name", "options"), [SOME[0], SOME[3], ("gru", {"reset": "before"})])
def test_autocast_is_as_near_to_the_truth_as_the_loop(name: str, options: dict[str, Any]) -> None:
    core = seeded(name, 33, **options)
    x, state, starts = inputs(core, 4, 3)
    truth = copy.deepcopy(core).double()
    truth.backend = "plain"
    want = everything(truth, x.double(), state.double(), starts)
    errors = []
    for backend in ("triton", "plain"):
        core.backend = backend
        with torch.autocast(DEVICE, torch.bfloat16):
            got = everything(core, x, state, starts)
            assert core.backend_used == backend
        assert got["outputs"].dtype == got["final"].dtype == torch.float32
        errors.append({key: (got[key] - want[key]).norm() / want[key].norm() for key in want})
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


def test_odd_weights_are_refused() -> None:
    """Kernels are given addresses alone: a size that does not fit must not reach them."""
    core = seeded("lstm", 4)
    for name, shape in (("weight_ih", (12, 5)), ("bias_ih", (12,)), ("bias_hh", (12,))):
        setattr(core.cells[0], name, torch.nn.Parameter(torch.ones(shape, device=DEVICE)))
    with pytest.raises(ValueError, match=r"must be of shape \(2, 3, 16\), got \(2, 3, 12\)"):
        core(torch.ones(2, 3, 5, device=DEVICE))


def test_other_numbers_and_cores_are_refused() -> None:
    double = seeded("lstm", 4, dtype=torch.float64)
    with pytest.raises(ValueError, match="the triton backend cannot run this: it takes float32"):
        double(torch.ones(2, 3, 5, dtype=torch.float64, device=DEVICE))
    with pytest.raises(ValueError, match="this core has no such fast path"):
        seeded("rru", 4)(torch.ones(2, 3, 5, device=DEVICE))
