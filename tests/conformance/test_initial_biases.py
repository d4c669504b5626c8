"""The initial biases of the gates: distributions, values and signs."""

from __future__ import annotations

import math
from typing import Any

import pytest
import scipy.stats
import torch
from support.cases import FAMILY_OF, GATE_OF, NUMBERED, RANDOM_BIASES, gated_cores, small
from support.equivalence import seeded
from torch import Tensor

from rlgates import make_core, timescale
from rlgates.gates import ACTIVATIONS, GATES, Gate
from rlgates.registry import CORES

MANY = 20_000


def gates_with(**choices: str) -> pytest.MarkDecorator:
    """Over the gates whose row of the table has these choices."""
    names = [
        name
        for name, row in GATES.items()
        if all(getattr(row, axis) == choice for axis, choice in choices.items())
    ]
    assert names, f"no gate with {choices}"
    return pytest.mark.parametrize("name", names)


def initial_biases(name: str, size: int = MANY, seed: int = 0, **options: Any) -> dict[str, Tensor]:
    return Gate(name, size, **options).initial_biases(seeded(seed))


def forget_map(name: str) -> str:
    return "mf" if GATES[name].auxiliary == "master" else "f"


def fits(sample: Tensor, distribution: Any) -> bool:
    """Whether a Kolmogorov-Smirnov test lets the sample pass."""
    return bool(scipy.stats.kstest(sample.double().numpy(), distribution.cdf).pvalue > 0.01)


def raw_forget(name: str, biases: dict[str, Tensor]) -> Tensor:
    return ACTIVATIONS[GATES[name].activation].forget(biases[forget_map(name)].double())


@gates_with(init="uniform")
@pytest.mark.parametrize("seed", [0, 1])
def test_uniform_gates_have_pareto_timescales(name: str, seed: int) -> None:
    """P(D > x) = 1 / x, the Pareto distribution of Gu et al. 2020, proposition 1."""
    forget = raw_forget(name, initial_biases(name, seed=seed))
    assert fits(forget, scipy.stats.uniform())
    assert fits(timescale(forget), scipy.stats.pareto(b=1))
    # The test can tell: neither a density of x ** -3 nor a gate of normal biases passes.
    assert not fits(timescale(forget), scipy.stats.pareto(b=2))
    assert not fits(torch.sigmoid(torch.randn(MANY, generator=seeded(0))), scipy.stats.uniform())


@gates_with(init="uniform")
@pytest.mark.parametrize("size", [1, 2, 3, 10, 1000])
def test_uniform_gates_stay_within_their_bounds(name: str, size: int) -> None:
    seeds = range(100_000 // size // 50)
    forget = torch.cat([raw_forget(name, initial_biases(name, size, seed)) for seed in seeds])
    low = 1 / max(size, 2)
    assert forget.min() >= low - 1e-6
    assert forget.max() <= 1 - low + 1e-6
    assert forget.min() < low + 0.01 * (1 - 2 * low) + 1e-6
    assert forget.max() > 1 - low - 0.01 * (1 - 2 * low) - 1e-6


@gates_with(init="uniform", auxiliary="untied")
def test_initial_forget_gates_of_a_core_are_uniform(name: str) -> None:
    """Through the whole core: without input and state, only the biases matter."""
    size, layers = 400, 3
    core = make_core(f"{name}_lstm", 2, size, layers, generator=seeded(0))
    forget = core.trace_gates(torch.zeros(1, 1, 2)).forget[0]
    assert fits(forget.flatten(), scipy.stats.uniform(1 / size, 1 - 2 / size))
    biases = [core.gate_weights(layer)["b_f"] for layer in range(layers)]
    assert not torch.equal(biases[0], biases[1])
    for bias in biases:
        assert fits(bias.sigmoid(), scipy.stats.uniform(1 / size, 1 - 2 / size))


@gates_with(init="chrono")
@pytest.mark.parametrize("t_max", [None, 2, 3, 50.5])
def test_chrono_biases_are_logs_of_uniform_times(name: str, t_max: float | None) -> None:
    options = {} if t_max is None else {"t_max": t_max}
    times = initial_biases(name, **options)["f"].double().exp()
    longest = MANY if t_max is None else t_max
    if longest == 2:
        assert (times == 1).all()
    else:
        assert fits(times, scipy.stats.uniform(1, longest - 2))
        assert not fits(times, scipy.stats.uniform(1, 1.1 * (longest - 2)))


@gates_with(init="constant")
@pytest.mark.parametrize("forget_bias", [None, -3.0, 0.0, 2.0, 20.0, -20.0, 1e30])
def test_constant_gates_are_initially_sigmoid_of_the_forget_bias(
    name: str, forget_bias: float | None
) -> None:
    options = {} if forget_bias is None else {"forget_bias": forget_bias}
    biases = initial_biases(name, 5, **options)
    expected = 1 / (1 + math.exp(-(1.0 if forget_bias is None else forget_bias)))
    forget = raw_forget(name, biases)
    torch.testing.assert_close(forget, torch.full_like(forget, expected), rtol=1e-5, atol=0)
    assert all(not bias.any() for key, bias in biases.items() if key != "f")


@pytest.mark.parametrize(("name", "bias"), [("", 1), ("r", 1), ("f", math.asinh(1))])
def test_biases_of_constant_gates(name: str, bias: float) -> None:
    torch.testing.assert_close(initial_biases(name, 3)["f"], torch.full((3,), float(bias)))


def test_more_biases_of_constant_gates() -> None:
    iterated = math.asinh(math.asinh(1))
    torch.testing.assert_close(initial_biases("ff", 3)["f"], torch.full((3,), iterated))
    torch.testing.assert_close(initial_biases("s", 3)["f"], torch.full((3,), math.e - 1))
    # Gu et al. 2020, section 2.2: a bias of 1 is a timescale of some 3.7 steps.
    assert timescale(initial_biases("", 1)["f"].sigmoid()).item() == pytest.approx(3.7, abs=0.05)


@pytest.mark.parametrize("tied", [None, False])
@pytest.mark.parametrize("name", GATES)
def test_random_input_gate_biases_are_opposite_to_the_forget_gate(
    name: str, tied: bool | None
) -> None:
    row = GATES[name]
    options = {"tied": tied} if "tied" in row.options and tied is not None else {}
    biases = initial_biases(name, 64, **options)
    opposite = "mi" if row.auxiliary == "master" else "i"
    if opposite in biases:
        random = row.init in ("chrono", "uniform")
        assert biases[forget_map(name)].any() == (row.init != "zero")
        expected = -biases[forget_map(name)] if random else torch.zeros(64)
        torch.testing.assert_close(biases[opposite], expected, rtol=0, atol=0)
    if row.auxiliary == "master":
        assert not biases["f"].any()
        assert not biases["i"].any()


@gates_with(init="uniform", auxiliary="refine")
def test_refine_bias_is_an_option_of_uniform_refine_gates(name: str) -> None:
    for options in ({}, {"refine_bias": "minus_forget"}):
        biases = initial_biases(name, 64, **options)
        assert torch.equal(biases["r"], -biases["f"])
    zero = initial_biases(name, 64, refine_bias="zero")
    assert not zero["r"].any()
    assert torch.equal(zero["f"], biases["f"])


@pytest.mark.parametrize("name", [n for n, r in GATES.items() if r.auxiliary == "refine"])
def test_other_refine_gates_are_initially_one_half(name: str) -> None:
    biases = initial_biases(name, 64)
    assert biases["r"].any() == (GATES[name].init == "uniform")
    if GATES[name].init == "zero":
        assert not biases["f"].any()


@pytest.mark.parametrize("chunk", [1, 4])
def test_ordered_master_gates_average_five_sixths_initially(chunk: int) -> None:
    """E[f^ + i^] averages 5/6 over the units (Gu et al. 2020, proposition 3), not 1."""
    size, samples = 64, 20_000
    gate = Gate("om", size, chunk_size=chunk)
    biases, generator = gate.initial_biases(), seeded(0)
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
def test_cores_use_the_initial_biases_of_their_gates(name: str) -> None:
    chunked = "chunk_size" in GATES[GATE_OF[name]].options
    options: dict[str, Any] = {"chunk_size": 3} if chunked else {}
    core = make_core(name, 4, 12, 2, generator=seeded(0), **(small(name) | options))
    if CORES[FAMILY_OF[name]].tied and GATES[GATE_OF[name]].auxiliary == "untied":
        options["tied"] = True
    gate = Gate(GATE_OF[name], 12, **options)
    ends = NUMBERED.get(FAMILY_OF[name], ("",))
    random = GATES[GATE_OF[name]].init in ("chrono", "uniform")
    for layer in range(2):
        weights = core.gate_weights(layer)
        for end in ends:
            for key, width in gate.maps.items():
                assert weights[f"b_{key}{end}"].shape == (width,)
            if not random:
                for key, bias in gate.initial_biases().items():
                    assert torch.equal(weights[f"b_{key}{end}"], bias)
        random_biases = RANDOM_BIASES.get(FAMILY_OF[name], ())
        others = [
            w for key, w in weights.items() if key.startswith("b_") and key not in random_biases
        ]
        assert sum(bias.count_nonzero() for bias in others) <= 2 * 12 * len(ends)
