"""The LSTM against its twin, and the twin's derivative against differences."""

from __future__ import annotations

from typing import Any

import pytest

from rlgates.gates import GATES
from twins.gates import MAIN
from twins.harness import build, check, check_derivative, gate_of, gated_cases, label
from twins.lstm import lstm


def test_every_gate_has_a_twin() -> None:
    assert set(MAIN) == set(GATES)


@pytest.mark.parametrize(("name", "options"), gated_cases("lstm"), ids=label)
def test_lstm_equals_its_twin(name: str, options: dict[str, Any]) -> None:
    check(lstm, build(name, **options), **gate_of(name, options))


def test_the_twin_differentiates_rightly() -> None:
    check_derivative(lstm, build("s_lstm"), gate="s")
