"""The RRU against its twin."""

from __future__ import annotations

from typing import Any

import pytest

from twins.harness import build, check, check_derivative, label
from twins.rru import initial, rru

# What the twin must be told; the weights tell it the rest.
TOLD = ("relu_layers", "normalize", "relu_candidate", "relu_output", "fixed_decay")
SIZES = {"output_size": 3, "expansion": 0.7, "hidden_size": 4}
CASES = [
    {},
    {"num_layers": 2},
    {"expansion": 1.3, "output_size": 1, "hidden_size": 3},
    {"relu_layers": 2},
    {"relu_layers": 3, "num_layers": 2},
    {"normalize": False},
    {"scalar_z": True},
    {"relu_candidate": True},
    {"relu_output": True},
    {"relu_candidate": True, "relu_output": True, "num_layers": 2},
    {"fixed_decay": True},
    {"start_decay": 0.95},
    {"normalize": False, "scalar_z": True, "fixed_decay": True, "num_layers": 2},
]


@pytest.mark.parametrize("options", CASES, ids=label)
def test_rru_equals_its_twin(options: dict[str, Any]) -> None:
    told = {key: options[key] for key in TOLD if key in options}
    check(rru, build("rru", **{**SIZES, **options}), initial, **told)


def test_width_of_the_hidden_layer() -> None:
    core = build("rru", expansion=1.6, input_size=3, hidden_size=5, num_layers=2, output_size=4)
    widths = [len(core.gate_weights(layer)["b_j"]) for layer in (0, 1)]
    assert widths == [13, 14]  # round(1.6 (3 + 5)) and round(1.6 (4 + 5))


def test_the_twin_differentiates_rightly() -> None:
    check_derivative(rru, build("rru", relu_layers=2, **SIZES), initial, relu_layers=2)
