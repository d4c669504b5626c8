"""The GRU against its twin."""

from __future__ import annotations

from typing import Any

import pytest

from twins.gru import gru
from twins.harness import build, check, check_derivative, gate_of, gated_cases, label

BEFORE = {"reset": "before"}


@pytest.mark.parametrize(
    ("name", "options"), gated_cases("gru", BEFORE, BEFORE | {"num_layers": 2}), ids=label
)
def test_gru_equals_its_twin(name: str, options: dict[str, Any]) -> None:
    reset = options.get("reset", "after")
    check(gru, build(name, **options), reset=reset, **gate_of(name, options))


@pytest.mark.parametrize("reset", ["after", "before"])
def test_the_twin_differentiates_rightly(reset: str) -> None:
    check_derivative(gru, build("ur_gru", reset=reset), gate="ur", reset=reset)
