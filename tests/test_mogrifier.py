"""The Mogrifier LSTM: the LSTM it is without rounds, the rounds, and the cap."""

from __future__ import annotations

import pytest
import torch
from test_gated_cores import HIDDEN, INPUTS, build, count, drawn, names_of, seeded

from rlgates import make_core
from rlgates.gates import GATES


@pytest.mark.parametrize("gate", GATES)
def test_without_rounds_and_cap_the_mogrifier_is_the_lstm(gate: str) -> None:
    prefix = f"{gate}_" if gate else ""
    lstm = build(f"{prefix}lstm", 2)
    core = make_core(f"{prefix}mogrifier", INPUTS, HIDDEN, 2, rounds=0, cap_input=False).double()
    core.load_state_dict(lstm.state_dict())
    x, state = drawn(6, 4, INPUTS), drawn(4, 4 * HIDDEN)
    starts = drawn(6, 4) > 1
    assert starts.any()
    expected, given = (run.observe(x, state, starts) for run in (lstm, core))
    torch.testing.assert_close(given.outputs, expected.outputs)
    torch.testing.assert_close(given.state, expected.state)
    for one, other in zip(given.forget, expected.forget, strict=True):
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
    x, state = drawn(1, 4, INPUTS), drawn(4, 2 * HIDDEN)
    pair = [state[:, :HIDDEN], x[0]]
    for n in range(1, rounds + 1):
        matrix = w[f"Q_{n}"] if rank is None else w[f"Q_{n}_left"] @ w[f"Q_{n}_right"]
        read, change = (n - 1) % 2, n % 2  # h, which gates x, and x, which gates h
        factor = 2 / (1 + torch.exp(-(pair[read] @ matrix.T + w[f"q_{n}"])))
        pair[change] = pair[change] * factor
    made = torch.cat([pair[0], state[:, HIDDEN:]], dim=-1)
    expected, given = lstm.observe(pair[1][None], made), core.observe(x, state)
    torch.testing.assert_close(given.outputs, expected.outputs)
    torch.testing.assert_close(given.state, expected.state)
    torch.testing.assert_close(given.forget[0], expected.forget[0])


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
        state = core(drawn(60, 4, INPUTS))[1]
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


def test_rounds_start_near_one() -> None:
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
