"""GATO: published sizes and initial values, gradients, one step by hand."""

from __future__ import annotations

import math

import pytest
import scipy.stats
import torch
from support.cases import build_double, zeroed
from support.equivalence import random_inputs, seeded
from torch import Tensor

from rlgates import make_core


@pytest.mark.parametrize(
    ("depth", "hidden_size", "inputs", "expected"),
    [(2, 512, 2, 43_264), (2, 1024, 5, 138_752), (1, 512, 25, 20_736), (1, 1300, 651, 1_273_350)],
)
def test_gato_has_the_published_number_of_parameters(
    depth: int, hidden_size: int, inputs: int, expected: int
) -> None:
    core = make_core("gato", inputs, hidden_size, depth=depth, device="meta")
    assert sum(parameter.numel() for parameter in core.parameters()) == expected
    assert core.output_size == core.state_size == hidden_size


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("depth", [1, 2])
def test_gato_keeps_the_gradient_of_s_for_ever(depth: int, dtype: torch.dtype) -> None:
    """ds_T/ds_t = I and dr_T/ds_t = 0, exactly; dr_T/dr_t fades, and no unit reads another's r."""
    core = build_double("gato", hidden_size=8, depth=depth, dtype=dtype)
    x = random_inputs(core, steps=200, batch_size=1)

    def jacobian(steps: int) -> Tensor:
        def final(state: Tensor) -> Tensor:
            return core(x[:steps], state)[1][0]

        return torch.autograd.functional.jacobian(final, core.initial_state(1) + 0.1)[:, 0]

    for steps in (1, 200):
        (rr, rs), (sr, ss) = (half.tensor_split(2, dim=1) for half in jacobian(steps).split(4))
        assert torch.equal(ss, torch.eye(4, dtype=dtype))
        assert not rs.any()
        for between in (rr, sr):
            assert torch.equal(between, between.diag().diag())
        assert sr.diag().abs().min() > 1e-4
        assert (rr.abs().max() > 1e-4) == (steps == 1)


@pytest.mark.parametrize("depth", [1, 2])
def test_gato_by_hand(depth: int) -> None:
    core = make_core("gato", 1, 2, depth=depth, inner_size=3, decay=0.5, dtype=torch.float64)
    gate, candidate = ("b_A", "b_B") if depth == 2 else ("b_B", "b_C")
    # F = 2 (7 + 7 + 0) - 7.5 = 20.5, where torch's own softplus is a straight line.
    b1 = torch.tensor([[7.0, 7.0, -5.0]])
    inner = {"b1": b1, "W2": 2.0, "b2": -7.5} if depth == 2 else {"b_A": 20.5}
    zeroed(core, **{gate: math.log(3), candidate: math.atanh(0.5), **inner})
    state = torch.tensor([[2.0, 1.0]], dtype=torch.float64)
    trace = core.trace_gates(torch.zeros(1, 1, 1, dtype=torch.float64), state)
    r, s = trace.state[0].tolist()
    assert trace.forget[0].item() == pytest.approx(0.5 * 0.75)
    assert r == pytest.approx(0.5 * 0.75 * 2 + 0.5, abs=1e-14)
    assert s == pytest.approx(21.5 + math.exp(-20.5), abs=1e-14)
    assert trace.outputs[0, 0].tolist() == pytest.approx([r, math.cos(s)], abs=1e-14)


@pytest.mark.parametrize("input_start", ["uniform", "default"])
@pytest.mark.parametrize("depth", [1, 2])
def test_gato_initial_parameters_are_uniform(depth: int, input_start: str) -> None:
    options = {"depth": depth, "input_start": input_start, "generator": seeded(0)}
    for name, weight in make_core("gato", 4, 800, **options).gate_weights().items():
        reads_x = name.startswith("W_x") or name == "W1_x"
        bound = 0.5 if reads_x and input_start == "default" else 0.1
        fits = scipy.stats.kstest(
            weight.flatten().numpy(), scipy.stats.uniform(-bound, 2 * bound).cdf
        )
        assert fits.pvalue > 1e-3, name


def test_gato_bounds_r_and_shows_its_decay_gate() -> None:
    core = build_double("gato", hidden_size=10, decay=0.6)
    trace = core.trace_gates(100 * random_inputs(core, steps=50))
    assert trace.forget[0].shape == (50, 3, 5)
    assert 0.59 < trace.forget[0].max() <= 0.6
    assert trace.outputs.abs().max() <= 1 / (1 - 0.6)
    assert core.unpack(trace.state)["s"].min() > 50
