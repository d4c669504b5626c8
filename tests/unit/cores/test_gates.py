"""The arithmetic of the gates: values, bounds, slopes, no overflow."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from twins.gates import MAIN, pair

from rlgates import timescale
from rlgates.gates import ACTIVATIONS, AUXILIARIES, GATES, INITS, Gate, master, refine

ELEMENTWISE = [name for name in ACTIVATIONS if name != "cumax"]
LARGE = torch.tensor([0, 1e-30, 0.1, 3, 8, 8.1, 20, 40, 89, 1e4, torch.finfo(torch.float32).max])
SIGNED = torch.cat([-LARGE.flip(0), LARGE])


def variants() -> list[tuple[str, dict[str, Any]]]:
    """Every gate, and every gate with the other auxiliary or a chunk size."""
    cases: list[tuple[str, dict[str, Any]]] = []
    for name, row in GATES.items():
        cases.append((name, {}))
        if "tied" in row.options:
            cases.append((name, {"tied": row.auxiliary == "untied"}))
        if "chunk_size" in row.options:
            cases.append((name, {"chunk_size": 2}))
    return cases


every_variant = pytest.mark.parametrize(("name", "options"), variants())


def noise(gate: Gate, *shape: int, scale: float = 1.0, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [
        scale * torch.randn(*shape, width, generator=generator, dtype=torch.float64)
        for width in gate.maps.values()
    ]


@every_variant
def test_gates_equal_their_twins(name: str, options: dict[str, Any]) -> None:
    gate = Gate(name, 8, **options)
    pre = noise(gate, 50, scale=2)
    named = dict(zip(gate.maps, (z.numpy() for z in pre), strict=True))
    expected = pair(name, named, options.get("chunk_size", 1))
    for result, reference in zip(gate(*pre), expected, strict=True):
        assert result.shape == (50, 8)
        np.testing.assert_allclose(result.numpy(), reference, rtol=1e-12, atol=1e-15)


@every_variant
@pytest.mark.parametrize("scale", [40.0, 1e4, 1e38])
def test_large_pre_activations_are_safe(name: str, options: dict[str, Any], scale: float) -> None:
    """In [0, 1], with finite gradients, in float32; also where some are large and some not."""
    gate = Gate(name, 8, **options)
    grid = torch.cat([SIGNED.clamp(-scale, scale), torch.linspace(-scale, scale, 42)])
    generator = torch.Generator().manual_seed(0)
    pre = [
        grid[torch.randint(len(grid), (500, width), generator=generator)].requires_grad_()
        for width in gate.maps.values()
    ]
    effective = gate(*pre)
    for values in effective:
        assert values.dtype == torch.float32
        assert values.min() >= 0
        assert values.max() <= 1
    for values in effective:
        for gradient in torch.autograd.grad(
            values.sum(), pre, retain_graph=True, allow_unused=True
        ):
            assert gradient is None or gradient.isfinite().all()
    assert timescale(effective[0]).isfinite().all()
    assert timescale(effective[0]).min() >= 1


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_activations_rise_from_0_to_1(name: str) -> None:
    for act in (ACTIVATIONS[name].forget, ACTIVATIONS[name].input):
        z = torch.linspace(-50, 50, 20_001)
        values = act(z)
        assert (values.diff() >= 0).all()
        near = z.abs() < 1.5
        assert (values[near].diff() > 0).all()
        torch.testing.assert_close(act(-z), 1 - values)  # symmetric about 1/2
        assert act(torch.zeros(1)).item() == 0.5
        zero = torch.zeros(1, requires_grad=True)
        act(zero).backward()
        assert zero.grad is not None
        assert zero.grad.item() == pytest.approx(0.25), "the slope of the sigmoid"


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_activations_keep_their_slope(name: str) -> None:
    """Where the value can still change in float64, its gradient is right and not zero."""
    z = torch.linspace(-3.5, 3.5, 71, dtype=torch.float64, requires_grad=True)
    values = ACTIVATIONS[name].forget(z)
    (slope,) = torch.autograd.grad(values.sum(), z)
    h = 1e-30
    gate = next(gate for gate, row in GATES.items() if row.activation == name)
    expected = MAIN[gate](z.detach().numpy() + 1j * h)
    np.testing.assert_allclose(slope.numpy(), expected.imag / h, rtol=1e-9, atol=1e-13)
    assert (slope[z.abs() < 2] > 0).all()


def test_saturation_is_ordered_as_in_table_1_of_ohno() -> None:
    z = torch.tensor(3.0, dtype=torch.float64)
    leaks = [
        1 - ACTIVATIONS[name].forget(z).item()
        for name in ("softsign", "sigmoid", "fast", "iterated_fast")
    ]
    assert leaks == sorted(leaks, reverse=True)
    assert leaks[2] == pytest.approx(math.exp(-math.sinh(3)), rel=1e-3)


def test_the_clamp_of_the_fast_gates_changes_no_value() -> None:
    z = np.linspace(-12, 12, 4801)
    exact = 1 / (1 + np.exp(-np.sinh(z.astype(np.longdouble)).clip(-11000, 11000)))
    result = ACTIVATIONS["fast"].forget(torch.tensor(z)).numpy()
    np.testing.assert_allclose(result, exact.astype(np.float64), rtol=1e-9, atol=1e-300)
    inner = np.sinh(z.astype(np.longdouble))
    exact = 1 / (1 + np.exp(-np.sinh(inner.clip(-10, 10))))
    result = ACTIVATIONS["iterated_fast"].forget(torch.tensor(z)).numpy()
    np.testing.assert_allclose(result, exact.astype(np.float64), rtol=1e-9, atol=1e-300)


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_from_logit_inverts_the_activation(name: str) -> None:
    act = ACTIVATIONS[name]
    logit = torch.linspace(-15, 15, 61, dtype=torch.float64)
    assert act.from_logit is not None
    torch.testing.assert_close(
        torch.logit(act.forget(act.from_logit(logit))), logit, rtol=1e-9, atol=1e-9
    )


def test_cumax_rises_over_the_units() -> None:
    act = ACTIVATIONS["cumax"]
    assert act.from_logit is None
    z = 3 * torch.randn(200, 33, generator=torch.Generator().manual_seed(0))
    forget, write = act.forget(z), act.input(z)
    assert (forget.diff(dim=-1) >= 0).all()
    assert (write.diff(dim=-1) <= 0).all()
    torch.testing.assert_close(forget[:, -1], torch.ones(200))
    expected = torch.arange(1, 34) / 33
    torch.testing.assert_close(act.forget(torch.zeros(33)), expected)


def test_refine_moves_a_timescale_between_half_and_its_square() -> None:
    """Gu et al. 2020, proposition 2 and the bounds above it."""
    f = torch.linspace(0, 1, 1001, dtype=torch.float64)[:-1]
    period = 1 / (1 - f)
    low, high = (timescale(refine(f, torch.full_like(f, r))) for r in (0.0, 1.0))
    torch.testing.assert_close(low, period / (1 + f))
    torch.testing.assert_close(high, period**2)
    assert (low > period / 2).all()
    previous = low
    for r in torch.linspace(0, 1, 21, dtype=torch.float64):
        now = timescale(refine(f, r.expand_as(f)))
        assert (now >= previous * (1 - 1e-12)).all()
        assert (refine(f, r.expand_as(f)).diff() > 0).all()
        previous = now
    point_nine = torch.tensor(0.9, dtype=torch.float64)
    assert refine(point_nine, torch.ones_like(point_nine)).item() == pytest.approx(0.99)
    assert refine(point_nine, 0.5 * torch.ones_like(point_nine)).item() == pytest.approx(0.9)


def test_refine_and_master_stay_in_bounds_to_the_last_bit() -> None:
    ulp = 2.0**-24
    top = 1 - ulp * torch.arange(200)
    f, r = torch.meshgrid(top, torch.cat([top, torch.linspace(0, 1, 100)]), indexing="ij")
    assert refine(f, r).max() <= 1
    one, other = torch.rand(2, 200_000, generator=torch.Generator().manual_seed(0))
    for master_f in (torch.ones(200_000), 1 - ulp * torch.arange(200_000)):
        for gate in master(one.clamp(min=1), one, master_f, other):
            assert gate.max() <= 1
            assert gate.min() >= 0


def test_tied_and_rescaled_master_gates_are_the_refine_gate() -> None:
    """Gu et al. 2020, proposition 4: with 2 omega in place of omega."""
    f, master_f = torch.rand(2, 100, generator=torch.Generator().manual_seed(0)).double()
    overlap = master_f * (1 - master_f)
    forget, write = master(f, 1 - f, master_f, 1 - master_f)
    rescaled = forget + f * overlap
    torch.testing.assert_close(rescaled, refine(master_f, f))
    torch.testing.assert_close(write + (1 - f) * overlap, refine(1 - master_f, 1 - f))
    torch.testing.assert_close(write + (1 - f) * overlap, 1 - rescaled)


def test_timescale() -> None:
    gate = torch.tensor([0.0, 0.5, 0.9])
    torch.testing.assert_close(timescale(gate), torch.tensor([1.0, 2.0, 10.0]))
    for dtype, spacing in ((torch.float32, 2.0**-24), (torch.float64, 2.0**-53)):
        ever = timescale(torch.tensor([1.0, 1 - spacing], dtype=dtype))
        assert ever.tolist() == [1 / spacing] * 2


def test_the_named_gates_are_those_of_the_papers() -> None:
    """Gu et al. 2020, table 1 and appendix B.5; Ohno et al. 2022, sections 4.3 to 6, F.2."""
    named = {
        "": "sigmoid constant untied",
        "c": "sigmoid chrono untied",
        "u": "sigmoid uniform untied",
        "r": "sigmoid constant refine",
        "ur": "sigmoid uniform refine",
        "o": "cumax zero untied",
        "om": "cumax zero master",
        "or": "cumax zero refine",
        "um": "sigmoid uniform master",
        "f": "fast constant tied",
        "uf": "fast uniform tied",
        "ff": "iterated_fast constant tied",
        "s": "softsign constant tied",
    }
    for name, choices in named.items():
        row = GATES[name]
        assert f"{row.activation} {row.init} {row.auxiliary}" == choices


def test_the_tables_fit_together() -> None:
    for name, row in GATES.items():
        assert row.activation in ACTIVATIONS
        assert row.init in INITS
        assert row.auxiliary in AUXILIARIES
        assert row.title
        assert row.source
        assert repr(Gate(name, 4)) == f"Gate({name!r}, 4)"
    assert repr(Gate("om", 4, chunk_size=2)) == "Gate('om', 4, chunk_size=2)"


def test_timescale_of_exponential_decay() -> None:
    gate = torch.tensor([0.0, 0.5, 0.9, 1.0], dtype=torch.float64)
    steps = timescale(gate, "exponential")
    torch.testing.assert_close(gate[1:3] ** steps[1:3], torch.full((2,), math.exp(-1)).double())
    assert steps[0] == 0
    assert steps.isfinite().all()
    with pytest.raises(ValueError, match="Did you mean 'exponential'"):
        timescale(gate, "exponent")
