"""Closed-form studies: saturation against the published laws, gates against brute force."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch

from rlgates.experiments.analysis import refine_gate, saturation
from rlgates.experiments.analysis.saturation import (
    GATES,
    LAWS,
    Curve,
    descent,
    gradient_flow,
    thinned,
    time_grid,
)
from rlgates.experiments.cli import main as cli
from rlgates.experiments.report.outputs import redraw_output
from rlgates.gates import refine


@pytest.fixture(scope="module")
def flows() -> dict[str, Curve]:
    return {gate: gradient_flow(gate, time_grid(1, 1e7, 5)) for gate in GATES}


@pytest.mark.parametrize("gate", [gate for gate, law in LAWS.items() if law.power])
def test_slopes_are_the_published_ones(gate: str, flows: dict[str, Curve]) -> None:
    power = LAWS[gate].power
    assert power is not None
    assert saturation.slope(flows[gate]) == pytest.approx(power, rel=0.02)


@pytest.mark.parametrize("gate", LAWS)
def test_laws_hold_over_decades(gate: str, flows: dict[str, Curve]) -> None:
    curve = flows[gate]
    late = curve.times > 1e4
    ratio = (saturation.fitted(gate, curve) / curve.left)[late]
    assert ((ratio - 1).abs() < 0.05).all()


def test_fast_gates_fall_faster_than_any_of_the_others(flows: dict[str, Curve]) -> None:
    last = [float(flows[gate].left[-1]) for gate in GATES]
    assert last == sorted(last, reverse=True)
    assert saturation.slope(flows["fast"]) < -1.05
    with pytest.raises(ValueError, match="iterated_fast"):
        saturation.fitted("iterated_fast", flows["iterated_fast"])


@pytest.mark.parametrize("gate", ["softsign", "sigmoid", "fast", "iterated_fast"])
def test_flow_takes_the_time_of_the_integral(gate: str, flows: dict[str, Curve]) -> None:
    """tau = the integral of dz over the pull, for the z at which so much is left."""
    for k in (15, -1):
        low, high = torch.zeros(1).double(), torch.full((1,), 1e6).double()
        for _ in range(100):
            middle = (low + high) / 2
            open_enough = saturation.left_of(gate, middle) < flows[gate].left[k]
            low, high = (low, middle) if open_enough else (middle, high)
        z = torch.linspace(0, float(low.log1p()), 100_001).double().expm1()
        pull = saturation.pull(gate, z[None], 10)[0]
        time = float(torch.trapezoid(1 / pull, z))
        assert time == pytest.approx(float(flows[gate].times[k]), rel=1e-3)


def test_descent_with_a_small_rate_is_the_flow() -> None:
    for gate in GATES:
        slow = saturation.descent(gate, "sgd", 0.05, 400)
        flow = gradient_flow(gate, torch.tensor([5.0, 20.0]).double())
        torch.testing.assert_close(slow.left[[100, 400]], flow.left, rtol=2e-2, atol=0)


@pytest.mark.parametrize("optimizer", ["rmsprop", "adam"])
def test_fast_gates_are_first_with_other_optimizers(optimizer: str) -> None:
    left = [
        float(saturation.descent(gate, optimizer, 0.01, 250, exponent=30).left[-1])
        for gate in GATES
    ]
    assert left == sorted(left, reverse=True)


def test_what_makes_no_sense_is_said() -> None:
    with pytest.raises(ValueError, match=r"'sigmod'. Did you mean 'sigmoid'"):
        gradient_flow("sigmod", time_grid())
    with pytest.raises(ValueError, match="times must be above 0 and rise"):
        gradient_flow("fast", torch.tensor([1.0, 1.0]))
    with pytest.raises(ValueError, match=r"'adams'. Did you mean 'adam'"):
        saturation.descent("fast", "adams", 0.1, 3)
    with pytest.raises(ValueError, match="last must be finite and above 10"):
        time_grid(10, 1)


def test_squared_lambert() -> None:
    ratio = torch.tensor([0.7, 3.0, 30.0, 300.0]).double()
    y = saturation.squared_lambert(ratio)
    torch.testing.assert_close(-y.log() - 2 * (-y.log()).log(), ratio)
    assert saturation.squared_lambert(torch.tensor([0.5]).double()).isnan().all()


def test_gate_bounds_by_brute_force() -> None:
    f, r = torch.rand(2, 20_000, generator=torch.Generator().manual_seed(0)).double()
    f.clamp_(1e-3, 1 - 1e-3)
    x, y = (torch.logit(gate).requires_grad_() for gate in (f, r.clamp(1e-3, 1 - 1e-3)))
    g = refine(torch.sigmoid(x), torch.sigmoid(y))
    along_x, along_y = torch.autograd.grad(g.sum(), (x, y))
    norm = torch.hypot(along_x, along_y)
    f, r, g = torch.sigmoid(x.detach()), torch.sigmoid(y.detach()), g.detach()
    low, high = refine_gate.bounds(f)
    assert (low <= g).all()
    assert (g <= high).all()
    torch.testing.assert_close((high - low) / 2, refine_gate.band(f))
    torch.testing.assert_close(refine_gate.refine_for(f, g), r)
    torch.testing.assert_close(refine_gate.gradient(f, r), norm)
    ratio = norm / refine_gate.plain_gradient(g)
    least, most = refine_gate.gradient_ratio(g, points=301)
    assert (ratio >= least - 1e-4).all()
    assert (ratio <= most + 1e-9).all()
    middle = (g - 0.8).abs() < 0.01
    assert float(ratio[middle].min()) == pytest.approx(float(least[middle].min()), abs=0.01)
    assert float(ratio[middle].max()) == pytest.approx(float(most[middle].max()), abs=0.02)
    assert refine_gate.bounds(torch.tensor(0.9))[1].item() == pytest.approx(0.99)


def test_contours() -> None:
    axis, g = refine_gate.contours(5)
    assert axis.tolist() == [0, 0.25, 0.5, 0.75, 1]
    torch.testing.assert_close(g[0], axis**2)
    torch.testing.assert_close(g[2], axis)
    torch.testing.assert_close(g[4], 1 - (1 - axis) ** 2)


def test_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saturation, "TIMES", time_grid(1, 1e5, 3))
    monkeypatch.setattr(saturation, "DESCENT_UPDATES", 60)
    monkeypatch.setattr(saturation, "OPTIMIZER_UPDATES", 20)
    for study, name in (("saturation", "saturation"), ("gates", "gate_analysis")):
        assert cli.main(["analyse", study, "--results", str(tmp_path)]) == 0
        assert (tmp_path / f"{name}.png").stat().st_size > 10_000
        with (tmp_path / f"{name}.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        assert len(rows) > 50
        assert all(float(value) >= 0 for row in rows for value in list(row.values())[2:])
    lines = (tmp_path / "saturation.md").read_text().splitlines()[2:7]
    cells = {line.split(" | ")[0].strip("| "): line.strip("| ").split(" | ") for line in lines}
    assert list(cells) == ["softsign", "sigmoid", "refine", "fast", "iterated fast"]
    for gate in ("sigmoid", "refine"):
        assert float(cells[gate][2]) == pytest.approx(float(cells[gate][3]), abs=0.05)
    pictures = [tmp_path / f"{name}.png" for name in ("saturation", "gate_analysis")]
    before = [picture.read_bytes() for picture in pictures]
    for name, figure in zip(("saturation", "gate_analysis"), pictures, strict=True):
        assert redraw_output(name, tmp_path)[-1] == figure
    assert [(tmp_path / f"{n}.png").read_bytes() for n in ("saturation", "gate_analysis")] == before
    assert cli.main(["analyse", "saturations", "--results", str(tmp_path)]) == 2


def test_thinned_curves_keep_where_they_first_pass_a_power_of_ten() -> None:
    whole = descent("fast", "rmsprop", 0.01, 400, exponent=30)
    few = thinned(whole)
    assert len(few.times) < len(whole.times) / 4
    for bound in (1e-1, 1e-2, 1e-3, 1e-4):
        assert few.times[few.left < bound][0] == whole.times[whole.left < bound][0]
