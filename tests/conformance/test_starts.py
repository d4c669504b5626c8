"""How the gates start: distributions, values, and which bias is the opposite of which."""

from __future__ import annotations

import math
from typing import Any

import pytest
import scipy.stats
import torch
from torch import Tensor

from conformance.cases import DRAWN, FAMILY_OF, GATE_OF, NUMBERED, gated_cores, seeded, small
from rlgates import make_core, timescale
from rlgates.cores import CORES
from rlgates.gates import ACTIVATIONS, GATES, Gate

MANY = 20_000


def rows(**wanted: str) -> pytest.MarkDecorator:
    """Over the gates whose row of the table has these choices."""
    names = [
        name
        for name, row in GATES.items()
        if all(getattr(row, axis) == choice for axis, choice in wanted.items())
    ]
    assert names, f"no gate with {wanted}"
    return pytest.mark.parametrize("name", names)


def start(name: str, size: int = MANY, seed: int = 0, **options: Any) -> dict[str, Tensor]:
    return Gate(name, size, **options).start_biases(seeded(seed))


def forget_map(name: str) -> str:
    return "mf" if GATES[name].auxiliary == "master" else "f"


def fits(sample: Tensor, distribution: Any) -> bool:
    """Whether a Kolmogorov-Smirnov test lets the sample pass."""
    return bool(scipy.stats.kstest(sample.double().numpy(), distribution.cdf).pvalue > 0.01)


def raw_forget(name: str, biases: dict[str, Tensor]) -> Tensor:
    return ACTIVATIONS[GATES[name].activation].forget(biases[forget_map(name)].double())


@rows(start="uniform")
@pytest.mark.parametrize("seed", [0, 1])
def test_uniform_gates_have_pareto_timescales(name: str, seed: int) -> None:
    """P(D > x) = 1 / x, the Pareto distribution of Gu et al. 2020, proposition 1."""
    forget = raw_forget(name, start(name, seed=seed))
    assert fits(forget, scipy.stats.uniform())
    assert fits(timescale(forget), scipy.stats.pareto(b=1))
    # The test can tell: neither a density of x ** -3 nor a gate of normal biases passes.
    assert not fits(timescale(forget), scipy.stats.pareto(b=2))
    assert not fits(torch.sigmoid(torch.randn(MANY, generator=seeded(0))), scipy.stats.uniform())


@rows(start="uniform")
@pytest.mark.parametrize("size", [1, 2, 3, 10, 1000])
def test_uniform_gates_stay_within_their_bounds(name: str, size: int) -> None:
    drawn = [raw_forget(name, start(name, size, seed)) for seed in range(100_000 // size // 50)]
    forget = torch.cat(drawn)
    low = 1 / max(size, 2)
    assert forget.min() >= low - 1e-6
    assert forget.max() <= 1 - low + 1e-6
    assert forget.min() < low + 0.01 * (1 - 2 * low) + 1e-6
    assert forget.max() > 1 - low - 0.01 * (1 - 2 * low) - 1e-6


@rows(start="uniform", auxiliary="untied")
def test_effective_forget_gates_of_a_core_start_uniform(name: str) -> None:
    """Through the whole core: without input and state the biases decide alone."""
    size, layers = 400, 3
    core = make_core(f"{name}_lstm", 2, size, layers, generator=seeded(0))
    forget = core.observe(torch.zeros(1, 1, 2)).forget[0]
    assert fits(forget.flatten(), scipy.stats.uniform(1 / size, 1 - 2 / size))
    biases = [core.gate_weights(layer)["b_f"] for layer in range(layers)]
    assert not torch.equal(biases[0], biases[1])
    for bias in biases:
        assert fits(bias.sigmoid(), scipy.stats.uniform(1 / size, 1 - 2 / size))


@rows(start="chrono")
@pytest.mark.parametrize("t_max", [None, 2, 3, 50.5])
def test_chrono_biases_are_logs_of_uniform_times(name: str, t_max: float | None) -> None:
    options = {} if t_max is None else {"t_max": t_max}
    times = start(name, **options)["f"].double().exp()
    longest = MANY if t_max is None else t_max
    if longest == 2:
        assert (times == 1).all()
    else:
        assert fits(times, scipy.stats.uniform(1, longest - 2))
        assert not fits(times, scipy.stats.uniform(1, 1.1 * (longest - 2)))


@rows(start="constant")
@pytest.mark.parametrize("forget_bias", [None, -3.0, 0.0, 2.0, 20.0, -20.0, 1e30])
def test_constant_gates_start_at_sigmoid_of_the_forget_bias(
    name: str, forget_bias: float | None
) -> None:
    options = {} if forget_bias is None else {"forget_bias": forget_bias}
    biases = start(name, 5, **options)
    expected = 1 / (1 + math.exp(-(1.0 if forget_bias is None else forget_bias)))
    forget = raw_forget(name, biases)
    torch.testing.assert_close(forget, torch.full_like(forget, expected), rtol=1e-5, atol=0)
    assert all(not bias.any() for key, bias in biases.items() if key != "f")


@pytest.mark.parametrize(("name", "bias"), [("", 1), ("r", 1), ("f", math.asinh(1))])
def test_biases_of_constant_gates(name: str, bias: float) -> None:
    torch.testing.assert_close(start(name, 3)["f"], torch.full((3,), float(bias)))


def test_more_biases_of_constant_gates() -> None:
    iterated = math.asinh(math.asinh(1))
    torch.testing.assert_close(start("ff", 3)["f"], torch.full((3,), iterated))
    torch.testing.assert_close(start("s", 3)["f"], torch.full((3,), math.e - 1))
    # Gu et al. 2020, section 2.2: a bias of 1 is a timescale of some 3.7 steps.
    assert timescale(start("", 1)["f"].sigmoid()).item() == pytest.approx(3.7, abs=0.05)


@pytest.mark.parametrize("tied", [None, False])
@pytest.mark.parametrize("name", GATES)
def test_input_gates_start_opposite_where_the_start_is_random(name: str, tied: bool | None) -> None:
    row = GATES[name]
    options = {"tied": tied} if "tied" in row.options and tied is not None else {}
    biases = start(name, 64, **options)
    opposite = "mi" if row.auxiliary == "master" else "i"
    if opposite in biases:
        random = row.start in ("chrono", "uniform")
        assert biases[forget_map(name)].any() == (row.start != "zero")
        expected = -biases[forget_map(name)] if random else torch.zeros(64)
        torch.testing.assert_close(biases[opposite], expected, rtol=0, atol=0)
    if row.auxiliary == "master":
        assert not biases["f"].any()
        assert not biases["i"].any()


@rows(start="uniform", auxiliary="refine")
def test_refine_bias_is_an_option_of_uniform_refine_gates(name: str) -> None:
    for options in ({}, {"refine_bias": "minus_forget"}):
        biases = start(name, 64, **options)
        assert torch.equal(biases["r"], -biases["f"])
    zero = start(name, 64, refine_bias="zero")
    assert not zero["r"].any()
    assert torch.equal(zero["f"], biases["f"])


@pytest.mark.parametrize("name", [n for n, r in GATES.items() if r.auxiliary == "refine"])
def test_other_refine_gates_start_in_the_middle(name: str) -> None:
    biases = start(name, 64)
    assert biases["r"].any() == (GATES[name].start == "uniform")
    if GATES[name].start == "zero":
        assert not biases["f"].any()


@pytest.mark.parametrize("chunk", [1, 4])
def test_ordered_master_gates_start_at_five_sixths(chunk: int) -> None:
    """E[f^ + i^] averages 5/6 over the units (Gu et al. 2020, proposition 3), not 1."""
    size, samples = 64, 20_000
    gate = Gate("om", size, chunk_size=chunk)
    biases, generator = gate.start_biases(), seeded(0)
    noise = [
        biases[key] + torch.randn(samples, width, generator=generator)
        for key, width in gate.maps.items()
    ]
    forget, write = gate(*noise)
    both = (forget + write).mean(dim=-1)
    n = size // chunk
    error = both.std() / samples**0.5
    assert both.mean().item() == pytest.approx(5 / 6 + 1 / (6 * n * n), abs=4 * error.item())
    assert 20 * error < 1 / 6, "the samples cannot tell 5/6 from 1"


@gated_cores
def test_cores_start_as_their_gates_do(name: str) -> None:
    chunked = "chunk_size" in GATES[GATE_OF[name]].options
    options: dict[str, Any] = {"chunk_size": 3} if chunked else {}
    core = make_core(name, 4, 12, 2, generator=seeded(0), **(small(name) | options))
    if CORES[FAMILY_OF[name]].tied and GATES[GATE_OF[name]].auxiliary == "untied":
        options["tied"] = True
    gate = Gate(GATE_OF[name], 12, **options)
    ends = NUMBERED.get(FAMILY_OF[name], ("",))
    random = GATES[GATE_OF[name]].start in ("chrono", "uniform")
    for layer in range(2):
        weights = core.gate_weights(layer)
        for end in ends:
            for key, width in gate.maps.items():
                assert weights[f"b_{key}{end}"].shape == (width,)
            if not random:
                for key, bias in gate.start_biases().items():
                    assert torch.equal(weights[f"b_{key}{end}"], bias)
        drawn = DRAWN.get(FAMILY_OF[name], ())
        others = [w for key, w in weights.items() if key.startswith("b_") and key not in drawn]
        assert sum(bias.count_nonzero() for bias in others) <= 2 * 12 * len(ends)
