"""Cells with weights of their own in native code: equal to the plain loop in float64."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_kernels import (
    check_against_loop,
    everything,
    instructions,
    loss,
    rounding,
    seeded,
    threads,
)
from torch import Tensor, nn

from rlgates import Core
from rlgates.cores import CORES
from rlgates.gates import GATES
from rlgates.kernels import calls, shapes

__all__ = ["instructions", "threads"]  # fixtures

pytestmark = pytest.mark.skipif(
    not calls.built(), reason="rlgates.kernels._native was not built (it needs a C++ compiler)"
)

Layer = tuple[str, dict[str, Any]]

PLAIN: dict[str, list[dict[str, Any]]] = {
    "gato": [
        {},
        {"depth": 2, "inner_size": 1},
        {"depth": 2, "inner_size": 5, "decay": 1.0},
        {"s_update": "increment"},
        {"depth": 2, "inner_size": 3, "s_update": "increment"},
        {"depth": 2, "inner_size": 3, "s_update": "zero"},
    ],
    "rru": [
        {"dropout": 0.0},
        {"dropout": 0.0, "relu_layers": 2, "scalar_z": True},
        {"dropout": 0.0, "relu_layers": 4, "normalize": False, "output_size": 5},
        {"dropout": 0.0, "fixed_decay": True, "relu_candidate": True, "relu_output": True},
        {"dropout": 0.0, "expansion": 0.1, "start_decay": 0.9},
    ],
    "mogrifier": [{"rounds": 0}, {"rounds": 1}, {"rounds": 4, "rank": 2}, {"cap_input": False}],
    "nru": [{}, {"num_heads": 3, "layer_norm": True}, {"num_heads": 1, "relu": True}],
}
GATED: list[Layer] = [
    (f"{gate}_mogrifier" if gate else "mogrifier", {"tied": tied} if free else {})
    for gate in CORES["mogrifier"].gates
    for free in ["tied" in GATES[gate].options]
    for tied in ((False, True) if free else (False,))
]
LAYERS = [(name, options) for name, choices in PLAIN.items() for options in choices]
LAYERS += [*GATED, ("um_mogrifier", {"chunk_size": 2})]
# One of each cell.
SOME = [*(LAYERS[i] for i in (0, 2, 7, 16)), ("om_mogrifier", {})]
assert {name for name, _ in SOME} == {*PLAIN, "om_mogrifier"} - {"mogrifier"}
every_layer = pytest.mark.parametrize(("name", "options"), LAYERS, ids=lambda v: str(v))
some_layers = pytest.mark.parametrize(("name", "options"), SOME, ids=lambda v: str(v))
# (H, B, T)
SHAPES = [(2, 2, 5), (6, 33, 1), (16, 7, 19), (18, 0, 2), (34, 33, 2), (64, 1, 19), (130, 3, 2)]


def build(name: str, h: int, layers: int = 1, width: int = 5, **options: Any) -> Core:
    """A core whose weights are none of them zero."""
    core = seeded(name, h, layers, width, **options)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in core.parameters():
            noise = torch.rand(parameter.shape, generator=generator) - 0.5
            parameter.add_(0.2 * noise)
    return core


def inputs(core: Core, b: int, t: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(t, b, core.input_size, generator=generator)
    state = torch.randn(b, core.state_size, generator=generator)
    return x, state, torch.rand(t, b, generator=generator) < 0.3


@every_layer
def test_equals_the_loop(name: str, options: dict[str, Any]) -> None:
    turn = LAYERS.index((name, options))
    for i, (h, b, t) in enumerate(SHAPES):
        if (i + turn) % 3 == 0:
            core = build(name, h, **options)
            x, state, starts = inputs(core, b, t)
            check_against_loop(core, x, state, starts if (turn + i // 3) % 3 else None)


@pytest.mark.slow
@every_layer
def test_equals_the_loop_at_every_shape(name: str, options: dict[str, Any]) -> None:
    for h, b, t in SHAPES:
        core = build(name, h, **options)
        x, state, starts = inputs(core, b, t)
        for mask in (None, starts):
            tolerance = max(2e-5, 10 * rounding(core, x, state, mask))
            check_against_loop(core, x, state, mask, tolerance)


@pytest.mark.parametrize(("h", "b", "t"), [(34, 7, 5), (64, 33, 2), (6, 3, 1)])
def test_equals_the_loop_with_every_instruction_set(
    instructions: str, h: int, b: int, t: int
) -> None:
    for name, options in LAYERS[:: 1 if h == 6 else 4]:
        core = build(name, h, **options)
        check_against_loop(core, *inputs(core, b, t))


@settings(deadline=None, max_examples=60)
@given(
    layer=st.sampled_from(LAYERS),
    h=st.integers(1, 30),
    b=st.integers(0, 15),
    t=st.integers(1, 6),
    width=st.integers(1, 40),
    layers=st.integers(1, 2),
    seed=st.integers(0, 9),
)
def test_equals_the_loop_at_any_size(
    layer: Layer, h: int, b: int, t: int, width: int, layers: int, seed: int
) -> None:
    core = build(layer[0], 2 * h, layers, width, **layer[1])
    sequence = inputs(core, b, t, seed)
    check_against_loop(core, *sequence, tolerance=max(2e-5, 10 * rounding(core, *sequence)))


@pytest.mark.parametrize(("h", "b", "t"), [(20, 5, 150), (6, 300, 3), (8, 17, 40)])
@some_layers
def test_long_sequences_and_large_batches(
    name: str, options: dict[str, Any], h: int, b: int, t: int
) -> None:
    """Steps are done in slabs, and rows of a slab in blocks."""
    core = seeded(name, h, **options)
    check_against_loop(core, *inputs(core, b, t))


def test_wide_inputs_are_projected_in_smaller_slabs() -> None:
    core = seeded("gato", 3000, depth=1)
    check_against_loop(core, *inputs(core, 20, 6))


@some_layers
def test_learned_states_have_gradients(name: str, options: dict[str, Any]) -> None:
    core = build(name, 18, learned_state=True, **options)
    x, state, starts = inputs(core, 7, 5)
    assert starts.any()
    check_against_loop(core, x, state, starts)
    core.backend = "native"
    found = everything(core, x, state, starts)
    assert all(found[key].any() for key in found if "learned" in key)


@some_layers
def test_nan_stays_in_its_row_and_ends_at_a_start(name: str, options: dict[str, Any]) -> None:
    core = build(name, 18, backend="native", **options)
    x, state, starts = inputs(core, 4, 6)
    starts[:] = False
    starts[3] = True
    x[1, 0, 0] = torch.nan
    state[1], state[2] = torch.nan, torch.inf
    plain = copy.deepcopy(core)
    plain.backend = "plain"
    got, want = core(x, state, starts)[0], plain(x, state, starts)[0]
    row = torch.arange(4) != 2  # where inf ends as inf or NaN
    assert torch.equal(got[:, row].isnan(), want[:, row].isnan())
    assert got[1:3, 0].isnan().any()
    assert got[3:].isfinite().all()
    assert got[:, 3].isfinite().all()
    x.requires_grad_()
    gradients = [torch.autograd.grad(c(x, state, starts)[0][3:].sum(), x)[0] for c in (core, plain)]
    torch.testing.assert_close(gradients[0][3:], gradients[1][3:], rtol=1e-3, atol=1e-4)
    assert gradients[0][3:].isfinite().all()


@some_layers
def test_steps_equal_the_sequence(name: str, options: dict[str, Any]) -> None:
    core = build(name, 34, 2, backend="native", **options)
    x, state, starts = inputs(core, 7, 9)
    with torch.no_grad():
        outputs, final = core(x, state, starts)
        for t in range(len(x)):
            output, state = core(x[t : t + 1], state, starts[t : t + 1])
            torch.testing.assert_close(output[0], outputs[t], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(state, final, rtol=1e-5, atol=1e-5)


@some_layers
def test_without_gradients_the_values_are_the_same(name: str, options: dict[str, Any]) -> None:
    core = build(name, 18, backend="native", **options)
    x, state, starts = inputs(core, 7, 5)
    outputs, final = core(x, state, starts)
    assert outputs.requires_grad
    with torch.no_grad():
        for got, want in zip(core(x, state, starts), (outputs, final), strict=True):
            assert torch.equal(got, want)


@pytest.mark.parametrize("frozen", ["weight", "bias", "all"])
@some_layers
def test_frozen_weights(name: str, options: dict[str, Any], frozen: str) -> None:
    core = build(name, 18, **options)
    for key, parameter in core.named_parameters():
        parameter.requires_grad_(frozen != "all" and frozen not in key)
    check_against_loop(core, *inputs(core, 7, 5))


@some_layers
def test_only_the_final_state_is_used(name: str, options: dict[str, Any]) -> None:
    gradients = []
    for backend in ("native", "plain"):
        core = build(name, 18, backend=backend, **options)
        x, state, starts = inputs(core, 7, 5)
        core(x, state, starts)[1].sum().backward()
        gradients.append([parameter.grad for parameter in core.parameters()])
    for got, want in zip(*gradients, strict=True):
        want = torch.zeros_like(got) if want is None else want
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


@some_layers
def test_layout_does_not_matter(name: str, options: dict[str, Any]) -> None:
    core = build(name, 18, backend="native", **options)
    x, state, starts = inputs(core, 6, 5)
    want = core(x, state, starts)
    strange = x.transpose(0, 1).contiguous().transpose(0, 1)
    tilted = state.t().contiguous().t()
    torch.testing.assert_close(core(strange, tilted, starts.t().contiguous().t()), want)


@some_layers
def test_outputs_may_be_changed_in_place(name: str, options: dict[str, Any]) -> None:
    gradients = []
    for backend in ("native", "plain"):
        core = build(name, 18, backend=backend, **options)
        outputs, final = core(*inputs(core, 7, 5))
        value = loss(outputs.mul(1) if backend == "plain" else outputs.mul_(1), final.mul_(2))
        value.backward(retain_graph=True)
        value.backward()
        gradients.append([parameter.grad for parameter in core.parameters()])
    for got, want in zip(*gradients, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def test_a_second_derivative_is_refused() -> None:
    core = build("gato", 4, backend="native")
    x, state, _ = inputs(core, 2, 2)
    value = core(x.requires_grad_(), state)[0].square().sum()
    (gradient,) = torch.autograd.grad(value, x, create_graph=True)
    with pytest.raises(RuntimeError, match="backend='plain'"):
        gradient.square().sum().backward()


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("batch_size", [5, 33])
@some_layers
def test_threads_change_nothing(name: str, options: dict[str, Any], batch_size: int) -> None:
    core = seeded(name, 64, backend="native", **options)
    x, state, starts = inputs(core, batch_size, 70)
    values = []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        values.append(everything(core, x, state, starts))
    for other in values[1:]:
        assert torch.equal(values[0]["outputs"], other["outputs"])
        for key, want in values[0].items():  # each thread adds up its rows
            assert (other[key] - want).abs().max() < 2e-5 * want.abs().max().clamp(min=1), key


# ---- single cells ------------------------------------------------------------------------------


@pytest.mark.parametrize("relu_layers", [1, 2])
def test_rru_drops_the_units_it_says(relu_layers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    core = build("rru", 18, dropout=0.3, relu_layers=relu_layers)
    x, state, starts = inputs(core, 7, 5)
    torch.manual_seed(5)
    noise = torch.rand(5, 7, core.cells[0].inner_size).double()
    left = iter(noise)

    def drop(j: Tensor, probability: float, training: bool) -> Tensor:
        assert training
        return torch.where(next(left) < probability, 0, j / (1 - probability))

    monkeypatch.setattr(nn.functional, "dropout", drop)
    torch.manual_seed(5)
    check_against_loop(core, x, state, starts)
    core.eval()
    monkeypatch.undo()
    check_against_loop(core, x, state, starts)


@pytest.mark.parametrize("far", [10.0, 7999.0, 1e6])
def test_gato_goes_round_the_circle(far: float) -> None:
    core = seeded("gato", 40)
    x, state, _ = inputs(core, 9, 3)
    state[:, 20:] = torch.linspace(-far, far, 9 * 20).view(9, 20)
    check_against_loop(core, x, state, None, 2e-6 + 1e-7 * far)


@pytest.mark.parametrize("size", [40.0, 200.0])
def test_gato_grows_straight_on(size: float) -> None:
    """softplus is a line far above 0, and nothing far below."""
    core = seeded("gato", 40)
    with torch.no_grad():
        core.cells[0].bias[2] = torch.linspace(-size, size, 20)
    check_against_loop(core, *inputs(core, 3, 4), 2e-5 * size)


def test_zoneout_runs_the_loop() -> None:
    core = seeded("mogrifier", 4, zoneout_cell=0.1)
    core(torch.ones(2, 3, 5))
    assert core.backend_used == "plain"


def test_odd_weights_are_refused() -> None:
    core = seeded("gato", 4, backend="native")
    core.cells[0].recurrent = nn.Parameter(torch.ones(3, 1))
    with pytest.raises(ValueError, match=r"must be float32 of shape \(3, 2\), got"):
        core(torch.ones(2, 3, 5))


def test_every_cell_is_tested() -> None:
    assert set(shapes.CELLS) == set(PLAIN)
