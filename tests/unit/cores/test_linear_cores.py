"""The recurrences that are linear in their state: minGRU, GILR, minLSTM and the LRU."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from support.equivalence import seeded
from torch import Tensor

from rlgates import Core, make_core
from rlgates.cores.minimal import Normalized, positive

MINIMAL = ["mingru", "gilr", "minlstm", "ur_mingru", "f_gilr", "om_mingru", "r_gilr"]


def filled(name: str, weights: dict[str, Any], **options: Any) -> Core:
    """A core of one input and one unit, in float64, with these weights and zeros else."""
    core = make_core(name, 1, 1, dtype=torch.float64, **options)
    views = core.gate_weights()
    assert set(weights) <= set(views)
    for key, view in views.items():
        view.fill_(weights.get(key, 0.0))
    return core


def one(core: Core, x: float, *state: float) -> tuple[float, list[float]]:
    """Output and state after a step of a core of one unit."""
    initial = torch.tensor([state], dtype=torch.float64)
    output, final = core(torch.tensor([[[x]]], dtype=torch.float64), initial)
    return output.item(), final[0].tolist()


def sigmoid(y: float) -> float:
    return 1 / (1 + math.exp(-y))


FORGET, WRITE = sigmoid(0.7), sigmoid(-0.4)


@pytest.mark.parametrize(
    ("name", "options", "forget", "write", "candidate"),
    [
        ("mingru", {}, FORGET, 1 - FORGET, 1.5),
        ("mingru", {"tied": False}, FORGET, WRITE, 1.5),
        ("mingru", {"candidate": "linear"}, FORGET, 1 - FORGET, 1.0),
        ("gilr", {}, FORGET, 1 - FORGET, math.tanh(1)),
        ("gilr", {"tied": False}, FORGET, WRITE, math.tanh(1)),
        ("minlstm", {}, FORGET / (FORGET + WRITE), WRITE / (FORGET + WRITE), 1.5),
        (
            "minlstm",
            {"candidate": "linear"},
            FORGET / (FORGET + WRITE),
            WRITE / (FORGET + WRITE),
            1.0,
        ),
    ],
)
def test_a_step_by_hand(
    name: str, options: dict[str, Any], forget: float, write: float, candidate: float
) -> None:
    """With x = 2: L_f = 0.7, L_i = -0.4, L_u = 1."""
    weights = {"W_f": 0.3, "b_f": 0.1, "W_i": -0.3, "b_i": 0.2, "W_u": 0.75, "b_u": -0.5}
    if name != "minlstm" and "tied" not in options:
        del weights["W_i"], weights["b_i"]
    core = filled(name, weights, **options)
    output, state = one(core, 2.0, -3.0)
    assert output == pytest.approx(forget * -3 + write * candidate, rel=1e-14)
    assert state == [output]
    x, before = torch.full((1, 1, 1), 2.0).double(), torch.full((1, 1), -3.0).double()
    assert core.trace_gates(x, before).forget[0].item() == pytest.approx(forget, rel=1e-14)


@pytest.mark.parametrize("name", MINIMAL)
def test_a_sequence_is_a_scan(name: str) -> None:
    """h_T = prod(f) h_0 + sum of every write times all forget gates after it."""
    core = make_core(name, 3, 6, dtype=torch.float64, generator=seeded(0))
    x, h = torch.randn(12, 4, 3, generator=seeded(1)), torch.randn(4, 6, generator=seeded(2))
    x, h = x.double(), h.double()
    outputs, final = core(x, h)
    # What a step needs of the input is in `project`: gates do not depend on the state.
    f, written = core.cells[0].project(x).chunk(2, dim=-1)
    torch.testing.assert_close(core.trace_gates(x, 100 * h).forget[0], f, rtol=0, atol=0)
    expected = torch.stack(
        [
            f[: t + 1].prod(dim=0) * h
            + sum(f[s + 1 : t + 1].prod(dim=0) * written[s] for s in range(t + 1))
            for t in range(12)
        ]
    )
    torch.testing.assert_close(outputs, expected, rtol=1e-12, atol=1e-14)
    assert torch.equal(final, outputs[-1])


@pytest.mark.parametrize("name", MINIMAL)
def test_starting_weights(name: str) -> None:
    core = make_core(name, 4, 600, generator=seeded(0))
    weights = core.gate_weights()
    for key, weight in weights.items():
        if key.startswith("W_"):
            assert weight.shape == (600, 4)
            assert 0.49 < weight.abs().max() <= 0.5
    assert not weights["b_u"].any()
    assert weights["b_f"].any() == (not name.startswith("om"))
    if name == "minlstm":
        assert (weights["b_f"] == 1).all()
        assert not weights["b_i"].any()


def test_gates_are_tied_by_default() -> None:
    for name in ("mingru", "gilr"):
        assert list(make_core(name, 2, 3).gate_weights()) == ["W_f", "W_u", "b_f", "b_u"]
        untied = list(make_core(name, 2, 3, tied=False).gate_weights())
        assert untied == ["W_i", "W_f", "W_u", "b_i", "b_f", "b_u"]
        refined = list(make_core(f"ur_{name}", 2, 3).gate_weights())
        assert refined == ["W_r", "W_f", "W_u", "b_r", "b_f", "b_u"]
    assert list(make_core("minlstm", 2, 3).gate_weights())[:3] == ["W_f", "W_i", "W_u"]


@pytest.mark.parametrize("name", MINIMAL)
def test_gates_are_not_rounded_by_autocast(name: str) -> None:
    """The bias of the plain gate is a number of bfloat16, the gate next to 1 is not."""
    core = make_core(name, 1, 2)
    for view in core.gate_weights().values():
        view.zero_()
    core.gate_weights()["b_f"].fill_(9.25)
    x = torch.zeros(3, 1, 1)
    with torch.autocast("cpu", torch.bfloat16):
        forget = core.trace_gates(x).forget[0]
    assert forget.dtype == torch.float32
    assert torch.equal(forget, core.trace_gates(x).forget[0])


SIZES = [0.0, 0.5, 1, 3, 10, 40, 89, 1e4, 1e30]
GRID = torch.tensor([-size for size in SIZES] + SIZES)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_gates_of_minlstm_share_one(dtype: torch.dtype) -> None:
    f, i = (
        z.flatten().to(dtype).requires_grad_() for z in torch.meshgrid(GRID, GRID, indexing="ij")
    )
    forget, write = Normalized(1, 1.0)(f, i)
    torch.testing.assert_close(forget + write, torch.ones_like(f), rtol=0, atol=2e-7)
    assert forget.min() >= 0
    assert write.min() >= 0
    for gradient in torch.autograd.grad((forget - 2 * write).sum(), (f, i)):
        assert gradient.isfinite().all()
    # Where both gates are 0 or 1 to the last bit, what counts is which one is smaller.
    torch.testing.assert_close(forget[f == i], torch.full_like(forget[f == i], 0.5))
    assert (forget[f < i] <= 0.5).all()
    assert (forget[(f == -1e4) & (i == -89)] == 0).all()


@pytest.mark.parametrize(
    ("high", "low", "small"),
    [(0, -40, 2 * math.exp(-40)), (40, -40, math.exp(-40)), (-39, -79, math.exp(-40))],
)
def test_a_small_share_keeps_its_digits(high: float, low: float, small: float) -> None:
    f, i = torch.tensor(float(high)), torch.tensor(float(low))
    expected = pytest.approx(small, rel=1e-5, abs=0)
    gate = Normalized(1, 1.0)
    assert gate(f, i)[1].item() == expected
    assert gate(i, f)[0].item() == expected


def test_the_candidate_is_positive_and_rises() -> None:
    y = torch.linspace(-50, 50, 10_001, requires_grad=True)
    values = positive(y)
    assert (values > 0).all()
    assert (values.diff() > 0)[5000 - 1500 :].all()
    assert positive(torch.tensor([-2.0, 0.0, 2.0])).tolist() == pytest.approx(
        [sigmoid(-2), 0.5, 2.5]
    )
    (slope,) = torch.autograd.grad(positive(y).sum(), y)
    assert slope[y >= 0].eq(1).all()
    assert slope[y < 0].max() < 0.251


def lru(d: int = 1000, inputs: int = 2, **options: Any) -> dict[str, Tensor]:
    core = make_core("lru", inputs, d, dtype=torch.float64, generator=seeded(0), **options)
    return core.gate_weights()


def modulus(weights: dict[str, Tensor]) -> Tensor:
    return torch.exp(-torch.exp(weights["nu_log"]))


@pytest.mark.parametrize("ring", [(0.0, 1.0), (0.4, 0.8), (0.9, 0.999), (0.5, 0.5), (0.0, 1e-30)])
@pytest.mark.parametrize("max_phase", [math.tau, math.pi / 10])
def test_lru_eigenvalues_are_initialised_on_a_ring(
    ring: tuple[float, float], max_phase: float
) -> None:
    weights = lru(r_min=ring[0], r_max=ring[1], max_phase=max_phase)
    assert all(weight.isfinite().all() for weight in weights.values())
    size, phase = modulus(weights), torch.exp(weights["theta_log"])
    assert size.min() >= ring[0] - 1e-6
    assert size.max() <= max(ring[1], 1e-18) + 1e-6
    assert size.max() < 1
    if ring[1] > ring[0] + 0.01:  # uniform in area
        low, width = ring[0] ** 2, ring[1] ** 2 - ring[0] ** 2
        assert scipy.stats.kstest(size**2, scipy.stats.uniform(low, width).cdf).pvalue > 0.01
        assert not scipy.stats.kstest(size, scipy.stats.uniform(*ring).cdf).pvalue > 0.01
    assert scipy.stats.kstest(phase, scipy.stats.uniform(0, max_phase).cdf).pvalue > 0.01


def test_lru_inputs_are_normalised_initially() -> None:
    weights = lru(inputs=4)
    gamma = torch.exp(weights["gamma_log"])
    torch.testing.assert_close(gamma**2 + modulus(weights) ** 2, torch.ones(1000).double())
    for key, deviation in {
        "B_re": 8**-0.5,
        "B_im": 8**-0.5,
        "D": 0.5,
        "C_re": 1000**-0.5,
        "C_im": 1000**-0.5,
    }.items():
        assert (
            scipy.stats.kstest(
                weights[key].flatten()[:5000] / deviation, scipy.stats.norm.cdf
            ).pvalue
            > 0.01
        )
    # A unit has the variance of |B x|^2 in the long run, however long it remembers.
    core = make_core("lru", 4, 10, generator=seeded(0), r_min=0.5, r_max=0.99)
    final = core(torch.randn(400, 400, 4, generator=seeded(1)))[1]
    power = (final**2).view(400, 2, 10).sum(dim=1).mean(dim=0)
    expected = sum((core.gate_weights()[key] ** 2).sum(dim=1) for key in ("B_re", "B_im"))
    torch.testing.assert_close(power, expected, rtol=0.3, atol=0)


@pytest.mark.parametrize("trainable", [True, False])
def test_lru_is_a_sum_over_powers(trainable: bool) -> None:
    core = make_core("lru", 3, 5, dtype=torch.float64, trainable_gamma=trainable)
    weights = core.gate_weights()
    assert ("gamma_log" in weights) == trainable
    weights["nu_log"].add_(0.5)
    if trainable:
        weights["gamma_log"].normal_(generator=seeded(3))
    w = {name: view.numpy() for name, view in weights.items()}
    factor = np.exp(-np.exp(w["nu_log"]) + 1j * np.exp(w["theta_log"]))
    gamma = np.exp(w["gamma_log"]) if trainable else np.sqrt(1 - np.abs(factor) ** 2)
    into, out_of = w["B_re"] + 1j * w["B_im"], w["C_re"] + 1j * w["C_im"]
    rng = np.random.default_rng(0)
    x, h = rng.normal(size=(9, 3)), rng.normal(size=(2, 5))
    outputs, final = core(torch.tensor(x)[:, None], torch.tensor(h).view(1, 10))
    for t in range(9):
        later = sum(factor ** (t - s) * gamma * (into @ x[s]) for s in range(t + 1))
        state = factor ** (t + 1) * (h[0] + 1j * h[1]) + later
        expected = (out_of @ state).real + w["D"] @ x[t]
        np.testing.assert_allclose(outputs[t, 0].detach(), expected, rtol=1e-12, atol=1e-13)
    parts = core.unpack(final.detach())
    np.testing.assert_allclose(parts["h_re"][0, 0], state.real, rtol=1e-12)
    np.testing.assert_allclose(parts["h_im"][0, 0], state.imag, rtol=1e-12)
    forget = core.trace_gates(torch.tensor(x)[:, None]).forget[0]
    np.testing.assert_allclose(forget, np.broadcast_to(np.abs(factor), (9, 1, 5)), rtol=1e-12)


def test_lru_by_hand() -> None:
    """lambda = i / 2, gamma = 2, B = 1 + 3i, C = 1 + i, D = 10."""
    weights = {
        "nu_log": math.log(math.log(2)),
        "theta_log": math.log(math.pi / 2),
        "gamma_log": math.log(2),
        "B_re": 1.0,
        "B_im": 3.0,
        "C_re": 1.0,
        "C_im": 1.0,
        "D": 10.0,
    }
    core = filled("lru", weights)
    # h' = (i/2)(4 + 2i) + 2 (1 + 3i) 0.5 = (-1 + 2i) + (1 + 3i) = 5i;  Re((1 + i) 5i) = -5
    output, state = one(core, 0.5, 4.0, 2.0)
    assert state == pytest.approx([0.0, 5.0], abs=1e-14)
    assert output == pytest.approx(-5 + 10 * 0.5)
