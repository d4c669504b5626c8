"""GRU, JANET, Mogrifier LSTM and sLSTM: what they equal; the options and maps of gated cores."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from support.equivalence import count, seeded
from torch import Tensor

from rlgates import Core, make_core
from rlgates.cores import JANET, SLSTM
from rlgates.gates import ACTIVATIONS, GATES, Gate, Row, refine
from rlgates.registry import CORES, core_names

INPUTS, HIDDEN = 3, 8


def build(name: str, num_layers: int = 1, **options: Any) -> Core:
    """A float64 core none of whose weights is zero."""
    core = make_core(name, INPUTS, HIDDEN, num_layers, generator=seeded(0), **options).double()
    with torch.no_grad():
        for parameter in core.parameters():
            parameter += 0.4 * torch.randn(parameter.shape, generator=seeded(1)).double()
    return core


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=seeded(2), dtype=torch.float64)


def affine(core: Core, key: str, x: Tensor, h: Tensor) -> Tensor:
    w = core.gate_weights()
    return x @ w[f"W_x_{key}"].T + w[f"b_{key}"] + h @ w[f"W_h_{key}"].T + w[f"b_h_{key}"]


def names_of(family: str) -> list[str]:
    return [name for name, (core, _) in core_names().items() if core == family]


# GRU


@pytest.mark.parametrize("reset", ["after", "before"])
@pytest.mark.parametrize("name", ["gru", "ur_gru", "um_gru"])
def test_where_the_reset_acts(name: str, reset: str) -> None:
    core = build(name, reset=reset)
    x, h = random(1, 4, INPUTS), random(4, HIDDEN)
    w, gate = core.gate_weights(), core.cells[0].gate
    rho = torch.sigmoid(affine(core, "reset", x[0], h))
    f, i = gate(*(affine(core, key, x[0], h) for key in gate.maps))
    from_x = x[0] @ w["W_x_u"].T + w["b_u"]
    if reset == "after":
        u = torch.tanh(from_x + rho * (h @ w["W_h_u"].T + w["b_h_u"]))
    else:
        u = torch.tanh(from_x + (rho * h) @ w["W_h_u"].T + w["b_h_u"])
    torch.testing.assert_close(core(x, h)[0][0], f * h + i * u)
    torch.testing.assert_close(core.trace_gates(x, h).forget[0][0], f)


@pytest.mark.parametrize("reset", ["after", "before"])
def test_gates_on_the_update_side_are_the_same_family(reset: str) -> None:
    """h' = (1 - g) h + g u is the refine GRU with the signs of both its gates turned."""
    core = build("r_gru", reset=reset)
    turned = make_core("r_gru", INPUTS, HIDDEN, reset=reset).double()
    turned.load_state_dict(core.state_dict())
    for name, weight in turned.gate_weights().items():
        if name.endswith(("_f", "_r")):
            weight.neg_()
    x, h = random(1, 4, INPUTS), random(4, HIDDEN)
    f, r = (torch.sigmoid(affine(turned, key, x[0], h)) for key in "fr")
    kept = core.trace_gates(x, h).forget[0][0]
    torch.testing.assert_close(1 - refine(f, r), kept)
    # With a candidate of 1 everywhere: (1 - g) h + g.
    for name, weight in core.gate_weights().items():
        if name.endswith("_u"):
            weight.fill_(40.0 if name == "b_u" else 0.0)
    g = refine(f, r)
    torch.testing.assert_close(core(x, h)[0][0], (1 - g) * h + g)


# JANET


def test_janet_has_half_the_parameters_of_an_lstm() -> None:
    for num_layers in (1, 2):
        sizes = INPUTS, HIDDEN, num_layers
        assert count(make_core("janet", *sizes)) * 2 == count(make_core("lstm", *sizes))


@pytest.mark.parametrize("t_max", [None, 300.0])
def test_janet_uses_chrono_initialization(t_max: float | None) -> None:
    size = 500
    options = {} if t_max is None else {"t_max": t_max}
    weights = make_core("janet", INPUTS, size, generator=seeded(0), **options).gate_weights()
    times = weights["b_f"].exp()
    longest = (size if t_max is None else t_max) - 1
    assert times.min() >= 1
    assert 0.95 * longest < times.max() <= longest * 1.0001
    assert times.mean().item() == pytest.approx((1 + longest) / 2, rel=0.1)
    assert not weights["b_u"].any()
    assert not weights["b_h_u"].any()
    assert not weights["b_h_f"].any()


@pytest.mark.parametrize("beta", [None, 0.0, 1.0, 2.5, -0.5])
@pytest.mark.parametrize("name", names_of("janet"))
def test_janet_by_hand(name: str, beta: float | None) -> None:
    core = build(name, **({} if beta is None else {"beta": beta}))
    phi = ACTIVATIONS[core.cells[0].gate.row.activation].forget
    x, h = random(1, 4, INPUTS), random(4, HIDDEN)
    s = affine(core, "f", x[0], h)
    shifted = s - (1.0 if beta is None else beta)
    keep, write = phi(s), 1 - phi(shifted)
    if core.cells[0].gate.auxiliary == "refine":
        r = torch.sigmoid(affine(core, "r", x[0], h))
        keep, write = refine(phi(s), r), 1 - refine(phi(shifted), r)
    new = keep * h + write * torch.tanh(affine(core, "u", x[0], h))
    torch.testing.assert_close(core(x, h)[0][0], new)
    torch.testing.assert_close(core(x, h)[1], new)
    torch.testing.assert_close(core.trace_gates(x, h).forget[0][0], keep)
    if beta == 0:
        torch.testing.assert_close(write, 1 - keep)


def test_janet_without_shift_is_a_mean_of_the_past() -> None:
    """Fully tied, a candidate of 1 leads from 0 to 1 and never beyond; beta = 1 goes beyond."""
    for beta, largest in ((0.0, 1.0), (1.0, 1.3)):
        core = make_core("janet", 1, 2, beta=beta)
        weights = core.gate_weights()
        for weight in weights.values():
            weight.zero_()
        weights["b_u"].fill_(40.0)
        weights["b_f"].copy_(torch.logit(torch.tensor([0.9, 0.5])))
        outputs, _ = core(torch.zeros(200, 1, 1))
        assert (outputs.amax() > largest) == (beta > 0)
        write = 1 - torch.sigmoid(weights["b_f"] - beta)
        expected = write / (1 - torch.sigmoid(weights["b_f"]))
        torch.testing.assert_close(outputs[-1, 0], expected)


# All of them


@pytest.mark.parametrize("family", ["lstm", "gru", "janet", "mogrifier"])
def test_maps_are_stacked_as_documented(family: str) -> None:
    doc = CORES[family].cell.__doc__ or ""
    lines = dict(re.findall(r"\n +(\w+) gates +(\w+(?:, \w+)*)", doc))
    cores = [make_core(name, INPUTS, HIDDEN) for name in names_of(family)]
    if family == "gru":
        cores.append(make_core("gru", INPUTS, HIDDEN, tied=False))
    auxiliaries = set()
    for core in cores:
        weights = core.gate_weights()
        auxiliaries.add(core.cells[0].gate.auxiliary)
        order = lines[core.cells[0].gate.auxiliary].split(", ")
        stacked = torch.cat([weights[f"W_x_{key}"] for key in order])
        assert torch.equal(stacked, core.cells[0].weight_ih)
    assert auxiliaries == set(lines)


def test_janet_refuses_gates_that_a_shift_does_not_change() -> None:
    with pytest.raises(ValueError, match=r"not cumax, got Gate\('or', 4\)"):
        JANET(3, 4, Gate("or", 4))
    with pytest.raises(ValueError, match=r"must be tied or refine.*got Gate\('um', 4\)"):
        JANET(3, 4, Gate("um", 4))


# sLSTM


@pytest.mark.parametrize("gate", ["o", "om", "or", "um"])
def test_the_slstm_refuses_gates_that_make_its_input_gate(gate: str) -> None:
    assert f"{gate}_slstm" not in core_names()
    with pytest.raises(ValueError, match=rf"sLSTM is exponential.* got Gate\('{gate}', 4\)"):
        SLSTM(3, 4, gate)


@pytest.mark.parametrize("gate", ["u_", "f_", "ur_"])
def test_a_bias_of_its_input_gate_changes_nothing(gate: str) -> None:
    core = build(f"{gate}slstm")
    x, starts = random(6, 4, INPUTS), random(6, 4) > 1
    expected = core.trace_gates(x, episode_starts=starts)
    core.gate_weights()["b_i"].add_(random(HIDDEN))
    result = core.trace_gates(x, episode_starts=starts)
    torch.testing.assert_close(result.outputs, expected.outputs)
    torch.testing.assert_close(result.forget[0], expected.forget[0])


def test_tied_gates_give_the_slstm_their_forget_gate() -> None:
    rows = [Row("fast", "constant", auxiliary, "", "") for auxiliary in ("untied", "tied")]
    cores = [SLSTM(3, 4, row) for row in rows]
    cores[1].load_state_dict(cores[0].state_dict())
    x = random(5, 2, 3).float()
    outputs = [Core([core])(x)[0] for core in cores]
    assert torch.equal(*outputs)


# Mogrifier LSTM


@pytest.mark.parametrize("gate", GATES)
def test_without_rounds_and_cap_the_mogrifier_is_the_lstm(gate: str) -> None:
    prefix = f"{gate}_" if gate else ""
    lstm = build(f"{prefix}lstm", 2)
    core = make_core(f"{prefix}mogrifier", INPUTS, HIDDEN, 2, rounds=0, cap_input=False).double()
    core.load_state_dict(lstm.state_dict())
    x, state = random(6, 4, INPUTS), random(4, 4 * HIDDEN)
    episode_starts = random(6, 4) > 1
    assert episode_starts.any()
    expected, result = (run.trace_gates(x, state, episode_starts) for run in (lstm, core))
    torch.testing.assert_close(result.outputs, expected.outputs)
    torch.testing.assert_close(result.state, expected.state)
    for one, other in zip(result.forget, expected.forget, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("rank", [None, 2])
@pytest.mark.parametrize("rounds", [1, 2, 5])
@pytest.mark.parametrize("name", ["mogrifier", "ur_mogrifier"])
def test_a_mogrifier_is_an_lstm_of_what_the_rounds_make(
    name: str, rounds: int, rank: int | None
) -> None:
    core = build(name, rounds=rounds, rank=rank, cap_input=False)
    w = core.gate_weights()
    lstm = make_core(name.replace("mogrifier", "lstm"), INPUTS, HIDDEN).double()
    for key, weight in lstm.gate_weights().items():
        weight.copy_(w[key])
    x, state = random(1, 4, INPUTS), random(4, 2 * HIDDEN)
    pair = [state[:, :HIDDEN], x[0]]
    for n in range(1, rounds + 1):
        matrix = w[f"Q_{n}"] if rank is None else w[f"Q_{n}_left"] @ w[f"Q_{n}_right"]
        read, change = (n - 1) % 2, n % 2  # h, which gates x, and x, which gates h
        factor = 2 / (1 + torch.exp(-(pair[read] @ matrix.T + w[f"q_{n}"])))
        pair[change] = pair[change] * factor
    lstm_state = torch.cat([pair[0], state[:, HIDDEN:]], dim=-1)
    expected, result = lstm.trace_gates(pair[1][None], lstm_state), core.trace_gates(x, state)
    torch.testing.assert_close(result.outputs, expected.outputs)
    torch.testing.assert_close(result.state, expected.state)
    torch.testing.assert_close(result.forget[0], expected.forget[0])


@pytest.mark.parametrize("name", names_of("mogrifier"))
def test_the_cap_bounds_the_cell(name: str) -> None:
    """With i = min(1 - f, i) a candidate of 1 never drives c above 1; without it may."""
    largest = {}
    for cap_input in (False, True):
        core = build(name, cap_input=cap_input)
        gate, weights = core.cells[0].gate, core.gate_weights()
        weights["b_u"].fill_(40.0)
        for key in gate.maps:  # open gates
            weights[f"b_{key}"].add_(3)
        state = core(random(60, 4, INPUTS))[1]
        largest[cap_input] = core.unpack(state)["c"].amax().item()
    assert largest[True] <= 1 + 1e-12
    if gate.auxiliary in ("tied", "refine"):
        assert largest[False] == pytest.approx(largest[True])
    else:
        assert largest[False] > 1


def test_the_cap_is_the_smaller_of_two() -> None:
    """One unit whose input gate is below 1 - f, and one where it is above."""
    core = make_core("mogrifier", 1, 2, rounds=1)
    weights = core.gate_weights()
    for weight in weights.values():
        weight.zero_()
    weights["b_f"].copy_(torch.logit(torch.tensor([0.3, 0.8])))
    weights["b_i"].copy_(torch.logit(torch.tensor([0.6, 0.6])))
    weights["b_u"].fill_(40.0)
    state = core(torch.zeros(1, 1, 1))[1]
    torch.testing.assert_close(core.unpack(state)["c"][0, 0], torch.tensor([0.6, 0.2]))


def test_initial_rounds_are_near_one() -> None:
    for rank in (None, 3):
        core = make_core("mogrifier", 20, 50, rounds=4, rank=rank, generator=seeded(0))
        for name, weight in core.gate_weights().items():
            if name.startswith("Q"):
                bound = weight.shape[1] ** -0.5
                assert 0.9 * bound < weight.abs().max() <= bound
            elif name.startswith("q"):
                assert not weight.any()


@pytest.mark.parametrize("rounds", [0, 1, 2, 5])
def test_parameters_of_the_rounds(rounds: int) -> None:
    """I d + I an odd round, I d + d an even one; k (I + d) in place of I d at rank k."""
    lstm = count(make_core("lstm", INPUTS, HIDDEN))
    biases = (rounds + 1) // 2 * INPUTS + rounds // 2 * HIDDEN
    for rank, matrix in ((None, INPUTS * HIDDEN), (2, 2 * (INPUTS + HIDDEN))):
        core = make_core("mogrifier", INPUTS, HIDDEN, rounds=rounds, rank=rank)
        assert count(core) == lstm + biases + rounds * matrix
        kinds = ["Q_{}"] if rank is None else ["Q_{}_left", "Q_{}_right"]
        names = [kind.format(n) for n in range(1, rounds + 1) for kind in (*kinds, "q_{}")]
        assert [name for name in core.gate_weights() if name[0] in "Qq"] == names
