"""Native code equals the plain loop in float64: values, final states and all gradients."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rlgates import Core, make_core
from rlgates.cores import CORES, core_names
from rlgates.gates import ACTIVATIONS, AUXILIARIES, GATES
from rlgates.kernels import calls

pytestmark = pytest.mark.skipif(
    not calls.built(), reason="rlgates.kernels._native was not built (it needs a C++ compiler)"
)

Layer = tuple[str, dict[str, Any]]


def named(gate: str, core: str) -> str:
    plain = CORES[core].plain
    return core if gate == plain else f"{gate}_{core}"


def layers(core: str, *choices: dict[str, Any]) -> list[Layer]:
    """Every gate of a core with each choice of options, and tied and untied where it can be."""
    row = CORES[core]
    found: list[Layer] = []
    for gate in row.gates:
        free = "tied" in GATES[gate].options and "tied" not in row.fixed
        for tied in ({"tied": False}, {"tied": True}) if free else ({},):
            found += [(named(gate, core), {**tied, **options}) for options in choices]
    return found


LAYERS = [
    *layers("lstm", {}),
    *layers("gru", {"reset": "after"}, {"reset": "before"}),
    *layers("janet", {"beta": 1.0}, {"beta": 0.0}),
]
CHUNKED: list[Layer] = [("om_lstm", {"chunk_size": 5}), ("um_gru", {"chunk_size": 3})]
every_layer = pytest.mark.parametrize(("name", "options"), LAYERS, ids=lambda v: str(v))
# A few of each cell, and gates of each kind.
SOME: list[Layer] = [
    ("ur_lstm", {}),
    ("om_lstm", {}),
    ("ff_lstm", {}),
    ("gru", {}),
    ("or_gru", {"reset": "before"}),
    ("ur_janet", {}),
]
some_layers = pytest.mark.parametrize(("name", "options"), SOME, ids=lambda v: str(v))
# (H, B, T)
SHAPES = [
    *((2, 2, 5), (3, 33, 1), (16, 7, 19), (17, 0, 2), (33, 33, 2), (64, 1, 19), (128, 7, 1)),
    *((3, 7, 19), (17, 33, 5), (64, 2, 2), (128, 33, 2), (16, 1, 1), (33, 0, 1)),
]


@pytest.fixture(params=["avx512", "avx2", "plain"])
def instructions(request: pytest.FixtureRequest) -> Iterator[str]:
    try:
        yield calls._native.use(request.param)
    except ValueError as error:
        pytest.skip(str(error))
    finally:
        calls._native.use("")


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def loss(outputs: Tensor, state: Tensor) -> Tensor:
    weights = torch.arange(outputs.numel(), dtype=outputs.dtype).sin().view_as(outputs)
    return (outputs * weights).sum() + 0.3 * state.square().sum()


def everything(core: Core, x: Tensor, state: Tensor, starts: Tensor | None) -> dict[str, Tensor]:
    """Outputs, final state, and the gradients of all that has one."""
    x, state = x.detach().requires_grad_(), state.detach().requires_grad_()
    outputs, final = core(x, state, starts)
    wanted = {"x": x, "state": state, **dict(core.named_parameters())}
    wanted = {name: tensor for name, tensor in wanted.items() if tensor.requires_grad}
    gradients = torch.autograd.grad(loss(outputs, final), list(wanted.values()))
    return {"outputs": outputs, "final": final, **dict(zip(wanted, gradients, strict=True))}


def check_against_loop(
    core: Core, x: Tensor, state: Tensor, starts: Tensor | None, tolerance: float = 2e-5
) -> None:
    core.backend = "native"
    state = state[:, : core.state_size]
    ours = everything(core, x, state, starts)
    assert core.backend_used == "native"
    reference = copy.deepcopy(core).double()
    reference.backend = "plain"
    for name, want in everything(reference, x.double(), state.double(), starts).items():
        got = ours[name]
        assert got.dtype == torch.float32
        if want.numel():
            error = (got - want).abs().max() / want.abs().max().clamp(min=1)
            assert error < tolerance, f"{name}: {error:.1e}"


def rounding(core: Core, x: Tensor, state: Tensor, starts: Tensor | None) -> float:
    """The error of the plain loop in float32: steep gates, or few normalized numbers, add to it."""
    core.backend = "plain"
    exact = everything(copy.deepcopy(core).double(), x.double(), state.double(), starts)
    pairs = ((got, exact[name]) for name, got in everything(core, x, state, starts).items())
    found = [(a - b).abs().max() / b.abs().max().clamp(min=1) for a, b in pairs if a.numel()]
    return max((error.item() for error in found), default=0.0)


def inputs(h: int, b: int, t: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(t, b, 5, generator=generator)
    state = torch.randn(b, 2 * h, generator=generator)
    return x, state, torch.rand(t, b, generator=generator) < 0.3


def seeded(name: str, h: int, layers: int = 1, width: int = 5, **options: Any) -> Core:
    generator = torch.Generator().manual_seed(1)
    return make_core(name, width, h, layers, generator=generator, **options)


@every_layer
def test_equals_the_loop(name: str, options: dict[str, Any]) -> None:
    turn = LAYERS.index((name, options))
    for i, (h, b, t) in enumerate(SHAPES):
        if (i + turn) % 4 == 0:
            x, state, starts = inputs(h, b, t)
            mask = starts if (turn + i // 4) % 3 else None
            check_against_loop(seeded(name, h, **options), x, state, mask)


@pytest.mark.slow
@every_layer
def test_equals_the_loop_at_every_shape(name: str, options: dict[str, Any]) -> None:
    for h, b, t in SHAPES:
        x, state, starts = inputs(h, b, t)
        for mask in (None, starts):
            check_against_loop(seeded(name, h, **options), x, state, mask)


@pytest.mark.parametrize(("name", "options"), CHUNKED, ids=lambda v: str(v))
def test_units_share_master_values(name: str, options: dict[str, Any]) -> None:
    for h, b, t in [(15, 7, 5), (45, 2, 3), (60, 33, 1)]:
        check_against_loop(seeded(name, h, **options), *inputs(h, b, t))


@pytest.mark.parametrize(("h", "b", "t"), [(33, 7, 5), (64, 33, 2), (5, 3, 1)])
def test_equals_the_loop_with_every_instruction_set(
    instructions: str, h: int, b: int, t: int
) -> None:
    for name, options in LAYERS[:: 1 if h == 5 else 5]:
        check_against_loop(seeded(name, h, **options), *inputs(h, b, t))


@settings(deadline=None, max_examples=60)
@given(
    layer=st.sampled_from(LAYERS),
    h=st.integers(2, 70),
    b=st.integers(0, 15),
    t=st.integers(1, 6),
    width=st.integers(1, 40),
    layers=st.integers(1, 2),
    seed=st.integers(0, 9),
)
def test_equals_the_loop_at_any_size(
    layer: Layer, h: int, b: int, t: int, width: int, layers: int, seed: int
) -> None:
    _, _, starts = inputs(h, b, t, seed)
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(t, b, width, generator=generator)
    state = torch.randn(b, 2 * h * layers, generator=generator)
    core = seeded(layer[0], h, layers, width, **layer[1])
    tolerance = 10 * rounding(core, x, state[:, : core.state_size], starts)
    check_against_loop(core, x, state, starts, max(2e-5, tolerance))


@pytest.mark.parametrize(("h", "b", "t"), [(20, 5, 150), (6, 300, 3), (8, 17, 40)])
@some_layers
def test_long_sequences_and_large_batches(
    name: str, options: dict[str, Any], h: int, b: int, t: int
) -> None:
    """Steps are done in slabs, and rows of a slab in blocks."""
    check_against_loop(seeded(name, h, **options), *inputs(h, b, t))


@pytest.mark.parametrize("where", ["first", "last", "all", "none"])
def test_starts_anywhere(where: str) -> None:
    x, state, starts = inputs(17, 7, 5)
    starts[:] = where == "all"
    if where in ("first", "last"):
        starts[0 if where == "first" else -1] = True
    check_against_loop(seeded("ur_lstm", 17), x, state, starts)


@pytest.mark.parametrize("size", [8.0, 40.0, 1e4])
@every_layer
def test_large_pre_activations(name: str, options: dict[str, Any], size: float) -> None:
    core = seeded(name, 33, **options)
    with torch.no_grad():
        bias = core.cells[0].bias_ih
        bias.copy_(torch.linspace(-size, size, len(bias))[torch.randperm(len(bias))])
    x, state, starts = inputs(33, 4, 3)
    core.backend = "native"
    state = state[:, : core.state_size]
    for name_, value in everything(core, x, state, starts).items():
        assert value.isfinite().all(), name_
    # A slope may be as steep as cosh 3 (fast) or cosh 3 cosh 10 (iterated): so are its errors.
    check_against_loop(core, x, state, starts, 1e-4)


def test_gates_are_exact_near_and_far() -> None:
    """Without weights a core is its gates: each value within a few rounding errors."""
    core = seeded("lstm", 1, backend="native")
    for parameter in core.parameters():
        torch.nn.init.zeros_(parameter)
    with torch.no_grad():
        core.cells[0].weight_ih[3, 0] = 1.0  # the output gate
        z = torch.linspace(-50, 50, 20001)
        x = torch.zeros(1, len(z), 5)
        x[0, :, 0] = z
        state = torch.tensor([[0.0, 40.0]]).expand(len(z), 2).contiguous()
        core.cells[0].bias_ih[1] = 40.0  # keeps the cell at 40, and tanh of it is 1
        outputs, _ = core(x, state)
    want = torch.sigmoid(z.double())
    assert ((outputs[0, :, 0] - want).abs() / want).max() < 4e-7


@some_layers
def test_nan_stays_in_its_row_and_ends_at_a_start(name: str, options: dict[str, Any]) -> None:
    x, state, starts = inputs(17, 4, 6)
    starts[:] = False
    starts[3] = True
    x[1, 0, 0] = torch.nan
    state[1], state[2] = torch.nan, torch.inf
    core = seeded(name, 17, backend="native", **options)
    state = state[:, : core.state_size]
    plain = copy.deepcopy(core)
    plain.backend = "plain"
    got, want = core(x, state, starts)[0], plain(x, state, starts)[0]
    assert torch.equal(got.isnan(), want.isnan())
    assert got[1:3, 0].isnan().all()
    assert got[3:].isfinite().all()
    assert got[:, 3].isfinite().all()
    x.requires_grad_()
    gradients = [torch.autograd.grad(c(x, state, starts)[0][3:].sum(), x)[0] for c in (core, plain)]
    torch.testing.assert_close(gradients[0][3:], gradients[1][3:])
    assert torch.equal(gradients[0].isnan(), gradients[1].isnan())


def test_nan_pre_activations_give_nan() -> None:
    for name, options in LAYERS:
        core = seeded(name, 3, backend="native", **options)
        cell = core.cells[0]
        for row in range(0, cell.weight_ih.shape[0], 3):
            broken = copy.deepcopy(core)
            with torch.no_grad():
                broken.cells[0].bias_ih[row] = torch.nan
                assert broken(torch.ones(1, 1, 5), torch.ones(1, core.state_size))[0].isnan().any()


@some_layers
def test_steps_equal_the_sequence(name: str, options: dict[str, Any]) -> None:
    x, state, starts = inputs(33, 7, 9)
    core = seeded(name, 33, 2, backend="native", **options)
    state = torch.cat([state, state], dim=1)[:, : core.state_size]
    with torch.no_grad():
        outputs, final = core(x, state, starts)
        for t in range(len(x)):
            output, state = core(x[t : t + 1], state, starts[t : t + 1])
            torch.testing.assert_close(output[0], outputs[t], rtol=0, atol=2e-6)
    torch.testing.assert_close(state, final, rtol=0, atol=2e-6)


@some_layers
def test_without_gradients_the_values_are_the_same(name: str, options: dict[str, Any]) -> None:
    x, state, starts = inputs(17, 7, 5)
    core = seeded(name, 17, backend="native", **options)
    state = state[:, : core.state_size]
    outputs, final = core(x, state, starts)
    assert outputs.requires_grad
    with torch.no_grad():
        for got, want in zip(core(x, state, starts), (outputs, final), strict=True):
            assert torch.equal(got, want)
    with torch.inference_mode():
        assert torch.equal(core(x, state, starts)[0], outputs)


@pytest.mark.parametrize("frozen", ["weight_hh", "weight_ih", "bias_ih", "bias_hh", "all"])
@some_layers
def test_frozen_weights(name: str, options: dict[str, Any], frozen: str) -> None:
    core = seeded(name, 17, **options)
    for key, parameter in core.named_parameters():
        parameter.requires_grad_(frozen != "all" and not key.endswith(frozen))
    check_against_loop(core, *inputs(17, 7, 5))


@some_layers
def test_only_the_final_state_is_used(name: str, options: dict[str, Any]) -> None:
    x, state, starts = inputs(17, 7, 5)
    gradients = []
    for backend in ("native", "plain"):
        core = seeded(name, 17, backend=backend, **options)
        core(x, state[:, : core.state_size], starts)[1].sum().backward()
        gradients.append([parameter.grad for parameter in core.parameters()])
    torch.testing.assert_close(*gradients)


def test_layout_does_not_matter() -> None:
    core = seeded("ur_lstm", 17, backend="native")
    x, state, starts = inputs(17, 6, 5)
    want = core(x, state, starts)
    strange = x.transpose(0, 1).contiguous().transpose(0, 1)
    tilted = state.t().contiguous().t()
    masks = starts.t().contiguous().t()
    wide = torch.cat([state, state], dim=1)[:, : state.shape[1]]
    for got in (core(strange, tilted, masks), core(x, wide, starts)):
        torch.testing.assert_close(got, want)
    expanded = core(x[:, :1].expand(5, 6, 5), state[:1].expand(6, 34))[0]
    torch.testing.assert_close(expanded[:, 0], expanded[:, 5])


def test_gradients_add_up_and_the_graph_can_be_kept() -> None:
    x, state, starts = inputs(17, 7, 5)
    core = seeded("ur_lstm", 17, backend="native")
    value = loss(*core(x, state, starts))
    value.backward(retain_graph=True)
    weight = core.cells[0].weight_hh
    assert weight.grad is not None
    once = weight.grad.clone()
    value.backward()
    torch.testing.assert_close(weight.grad, 2 * once)


@some_layers
def test_outputs_may_be_changed_in_place(name: str, options: dict[str, Any]) -> None:
    x, state, starts = inputs(17, 7, 5)
    gradients = []
    for backend in ("native", "plain"):
        core = seeded(name, 17, backend=backend, **options)
        outputs, final = core(x, state[:, : core.state_size], starts)
        loss(outputs.relu_(), final.mul_(2)).backward()
        gradients.append([parameter.grad for parameter in core.parameters()])
    torch.testing.assert_close(*gradients)


def test_starts_changed_before_the_backward_pass_are_noticed() -> None:
    x, state, starts = inputs(3, 2, 2)
    outputs, _ = seeded("lstm", 3, backend="native")(x, state, starts)
    starts.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        outputs.sum().backward()


@pytest.mark.parametrize("power", [1, 2])
def test_a_second_derivative_is_refused(power: int) -> None:
    x, state, _ = inputs(3, 2, 2)
    core = seeded("lstm", 3, backend="native")
    value = core(x.requires_grad_(), state)[0].pow(power).sum()
    (gradient,) = torch.autograd.grad(value, x, create_graph=True)
    with pytest.raises(RuntimeError, match="backend='plain'"):
        gradient.square().sum().backward()


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("batch_size", [5, 33])
@some_layers
def test_threads_change_nothing(name: str, options: dict[str, Any], batch_size: int) -> None:
    core = seeded(name, 64, backend="native", **options)
    x, state, starts = inputs(64, batch_size, 70)
    state = state[:, : core.state_size]
    values = []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        values.append(everything(core, x, state, starts))
    for other in values[1:]:
        assert torch.equal(values[0]["outputs"], other["outputs"])
        for key, want in values[0].items():  # each thread adds up its rows
            assert (other[key] - want).abs().max() < 1e-5 * want.abs().max().clamp(min=1), key


def test_the_kernel_runs_the_whole_table() -> None:
    assert set(ACTIVATIONS) == set(calls.ACTIVATIONS)
    assert set(AUXILIARIES) == set(calls.AUXILIARIES)
    names = {name for name, _ in LAYERS}
    assert names == {n for n, (core, _) in core_names().items() if core in ("lstm", "gru", "janet")}
