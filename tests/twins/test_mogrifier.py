"""The Mogrifier LSTM against its twin."""

from __future__ import annotations

from typing import Any

import pytest

from twins.harness import build, check, check_derivative, gate_of, gated_cases, label, single_for
from twins.mogrifier import mogrifier

CASES = gated_cases(
    "mogrifier",
    {"rounds": 0},
    {"rounds": 1},
    {"rounds": 2},
    {"rounds": 4, "input_size": 3, "rank": 2},
    {"input_size": 4, "hidden_size": 3, "rank": 2, "num_layers": 2},
    {"cap_input": False},
    {"rounds": 0, "cap_input": False, "num_layers": 2},
)


@pytest.mark.parametrize(("name", "options"), CASES, ids=label)
def test_mogrifier_equals_its_twin(name: str, options: dict[str, Any]) -> None:
    own = {key: options[key] for key in ("rounds", "cap_input") if key in options}
    core, gate = build(name, **options), gate_of(name, options)
    check(mogrifier, core, single=single_for(name), **own, **gate)


@pytest.mark.parametrize("options", [{}, {"rank": 2, "input_size": 3}], ids=label)
def test_the_twin_differentiates_rightly(options: dict[str, Any]) -> None:
    check_derivative(mogrifier, build("mogrifier", **options), gate="")
