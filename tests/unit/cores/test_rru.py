"""The RRU: published initial values, and the effect of each option."""

from __future__ import annotations

import math

import pytest
import scipy.stats
import torch
from support.cases import build_double, zeroed
from support.equivalence import random_inputs, seeded
from torch import Tensor

from rlgates import Core, make_core


def test_rru_is_initialised_as_published() -> None:
    core = make_core("rru", 30, 400, relu_layers=2, expansion=0.5, generator=seeded(0))
    weights = core.gate_weights()
    decay = torch.sigmoid(10 * weights["S"].double())
    uniform = scipy.stats.uniform(0.01, 0.98)
    assert scipy.stats.kstest(decay.numpy(), uniform.cdf).pvalue > 0.01
    assert (decay.min() > 0.0099) & (decay.max() < 0.9901)
    bounds = {
        "W_x_j": 430 + 215,
        "W_h_j": 430 + 215,
        "W_2": 430,
        "W_c": 464 + 215,
        "W_o": 464 + 215,
    }
    for name, fans in bounds.items():
        bound = math.sqrt(6 / fans)
        assert 0.99 * bound < weights[name].abs().max() <= bound
        assert weights[name].std().item() == pytest.approx(bound / 3**0.5, rel=0.05)
    for name in weights.keys() - bounds.keys() - {"S"}:
        assert not weights[name].any()
    # Z is zero: at first the state only fades.
    state, x = torch.randn(2, 400, generator=seeded(1)), torch.randn(1, 2, 30)
    torch.testing.assert_close(core(x, state)[1], decay.float() * state)


@pytest.mark.parametrize("learned_state", [False, True])
def test_rru_initial_state_has_one_nonzero_unit(learned_state: bool) -> None:
    core = make_core("rru", 3, 16, num_layers=2, learned_state=learned_state)
    h = core.unpack(core.initial_state(2))["h"]
    assert torch.equal(h[..., 0], torch.ones(2, 2))
    assert not h[..., 1:].any()
    assert core(torch.zeros(3, 2, 3))[0].isfinite().all()


def test_rru_normalizes_only_the_first_layer() -> None:
    for normalize, layers in ((True, 1), (True, 2), (False, 2)):
        core = build_double("rru", normalize=normalize, relu_layers=layers)
        x, weights = random_inputs(core), core.gate_weights()
        before = core(x)[0]
        for name in ("W_x_j", "W_h_j", "b_j"):
            weights[name].mul_(10)
        assert torch.allclose(core(x)[0], before, rtol=1e-4, atol=1e-4) == normalize
        if layers == 2:
            before = core(x)[0]
            weights["W_2"].mul_(10)
            assert not torch.allclose(core(x)[0], before, rtol=1e-2)


def test_rru_normalization_does_not_subtract_the_mean() -> None:
    core = make_core("rru", 1, 1, output_size=4, dtype=torch.float64)
    bias = torch.tensor([3.0, 3.0, 3.0, 5.0])
    zeroed(core, b_j=bias, W_o=torch.eye(4))
    outputs, _ = core.eval()(torch.zeros(1, 1, 1, dtype=torch.float64))
    expected = bias.double() * (13 + 1e-6) ** -0.5  # the mean of 9, 9, 9 and 25
    torch.testing.assert_close(outputs[0, 0], expected, rtol=1e-14, atol=0)


def test_rru_options_change_the_documented_terms() -> None:
    plain = build_double("rru")
    x, state = random_inputs(plain, steps=1), torch.randn(3, 6, generator=seeded(3)).double()
    outputs, final = plain(x, state)
    weights = plain.gate_weights()
    decay = torch.sigmoid(10 * weights["S"])
    added = (final - decay * state) / weights["Z"]
    assert (added < 0).any() & (outputs < 0).any()

    def changed(**options: bool) -> tuple[Tensor, Tensor, Core]:
        core = build_double("rru", **options)
        for name, view in core.gate_weights().items():
            view.copy_(weights[name] if name != "Z" else weights["Z"][: len(view)])
        return *core(x, state), core

    same_outputs, new, _ = changed(relu_candidate=True)
    assert torch.equal(same_outputs, outputs)
    torch.testing.assert_close(new, decay * state + weights["Z"] * added.relu())
    new_outputs, same, _ = changed(relu_output=True)
    assert torch.equal(new_outputs, outputs.relu())
    assert torch.equal(same, final)
    same_outputs, new, core = changed(fixed_decay=True)
    assert torch.equal(same_outputs, outputs)
    torch.testing.assert_close(new, state + weights["Z"] * added)
    assert "S" not in core.gate_weights()
    assert (core.trace_gates(x).forget[0] == 1).all()
    same_outputs, new, core = changed(scalar_z=True)
    assert torch.equal(same_outputs, outputs)
    assert core.gate_weights()["Z"].shape == (1,)
    torch.testing.assert_close(new, decay * state + weights["Z"][0] * added)


def test_rru_traces_its_decay_which_can_be_initialised_to_a_constant() -> None:
    core = make_core("rru", 3, 6, start_decay=0.95, num_layers=2)
    trace = core.trace_gates(torch.zeros(4, 2, 3))
    for forget in trace.forget:
        torch.testing.assert_close(forget, torch.full((4, 2, 6), 0.95))


@pytest.mark.parametrize("dropout", [0.0, 0.25])
def test_rru_drops_units_while_training(dropout: float) -> None:
    core = make_core("rru", 10, 40, output_size=100, dropout=dropout)
    zeroed(core, b_j=1.0, W_o=torch.eye(100))
    outputs, _ = core(torch.zeros(5, 40, 10))
    share = 1 - dropout
    assert outputs.bool().float().mean().item() == pytest.approx(share, abs=0.02)
    torch.testing.assert_close(outputs, outputs.bool() / share, rtol=1e-5, atol=0)
    assert (core.eval()(torch.zeros(5, 40, 10))[0] - 1).abs().max() < 1e-5
