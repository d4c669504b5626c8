"""The LSTM keeps a value for 2,000 steps under autocast to bfloat16.

The spacing of bfloat16 just below 1 is 0.0039: a gate in bfloat16 knows no timescale between
256 steps and for ever, and a cell state in bfloat16 is wrong from the step it is written.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rlgates import make_core
from rlgates.gates import GATES
from twins.gates import MAIN, Array, cumax, pair

STEPS = 2000
CANDIDATE = np.array([0.75, -0.5, 1.25, -1.0])
UNITS = len(CANDIDATE)

# Where a gate keeps all but 1e-7, and where it keeps all but about 1e-4: numbers of bfloat16.
FOR_GOOD = {"sigmoid": 30, "cumax": 30, "fast": 6, "iterated_fast": 3, "softsign": 2.0**24}
SLOWLY = {
    "sigmoid": 9.25,
    "cumax": 9.25,
    "fast": 2.921875,
    "iterated_fast": 1.7890625,
    "softsign": 9984.0,
}


def bfloat16(a: Array) -> Array:
    return torch.tensor(a).bfloat16().double().numpy()


def pre_activations(
    gate: str, names: list[str], sizes: dict[str, float]
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Pre-activations of the maps with which a cell writes, and with which it keeps its state."""
    write, hold = {}, {}
    for name in names:
        main = name in ("mf", "mi") if "mf" in names else name in ("f", "i")
        if main and MAIN[gate] is cumax:  # up at the last unit to write, at the first to hold
            write[name], hold[name] = sizes["cumax"] * np.eye(UNITS)[[-1, 0]]
        else:
            size = sizes[GATES[gate].activation if main else "sigmoid"]
            if name == "r" and sizes is SLOWLY:
                size = 0.0  # which leaves f as it is
            sign = -1 if name in ("i", "mi") else 1
            write[name], hold[name] = np.full((2, UNITS), sign * size) * [[-1], [1]]
    return write, hold


@pytest.mark.parametrize("gate", [gate for gate in GATES if GATES[gate].activation in FOR_GOOD])
def test_a_value_is_kept(gate: str) -> None:
    core = make_core(f"{gate}_lstm" if gate else "lstm", 4, UNITS)
    weights = core.gate_weights()
    for weight in weights.values():
        weight.zero_()
    names = [name[4:] for name in weights if name.startswith("W_x_") and name[4:] not in ("u", "o")]
    # Two rows, which hold for good and slowly; each input number asks for one thing.
    x = torch.zeros(1 + STEPS, 2, 4)
    for row, sizes in enumerate((FOR_GOOD, SLOWLY)):
        x[0, row, 2 * row] = x[1:, row, 2 * row + 1] = 1
        weights["W_x_u"][:, 2 * row] = torch.tensor(CANDIDATE)
        for column, asked in enumerate(pre_activations(gate, names, sizes)):
            for name, z in asked.items():
                weights[f"W_x_{name}"][:, 2 * row + column] = torch.tensor(z)

    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        states = [core(x[:1])[1], core(x)[1]]
    written, kept = (core.unpack(state)["c"][0].double().numpy() for state in states)

    for row, sizes in enumerate((FOR_GOOD, SLOWLY)):
        write, hold = pre_activations(gate, names, sizes)
        value = pair(gate, write)[1] * np.tanh(CANDIDATE)
        forget = pair(gate, hold)[0]
        expected = value * forget**STEPS
        assert np.abs(value[:-1]).min() > 0.4, "nothing was written"
        np.testing.assert_allclose(written[row], value, atol=1e-4)
        np.testing.assert_allclose(kept[row], expected, atol=1e-3)
        if sizes is FOR_GOOD:  # a cell in bfloat16 loses it
            np.testing.assert_allclose(kept[row], value, atol=1e-3)
            assert np.abs(bfloat16(value) - value).max() > 1e-3
        else:  # gates in bfloat16 lose it
            assert np.abs(value * bfloat16(forget) ** STEPS - expected).max() > 0.05
