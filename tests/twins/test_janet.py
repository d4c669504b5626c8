"""JANET against its twin."""

from __future__ import annotations

from typing import Any

import pytest

from twins.harness import build, check, check_derivative, gated_cases, label, single_for
from twins.janet import janet

CASES = gated_cases("janet", {"beta": 0.0}, {"beta": -0.7, "num_layers": 2}, switch_tied=False)


@pytest.mark.parametrize(("name", "options"), CASES, ids=label)
def test_janet_equals_its_twin(name: str, options: dict[str, Any]) -> None:
    beta, gate = options.get("beta", 1.0), "c" if name == "janet" else name.removesuffix("_janet")
    check(janet, build(name, **options), single=single_for(name), gate=gate, beta=beta)


def test_the_twin_differentiates_rightly() -> None:
    check_derivative(janet, build("ur_janet"), gate="ur")
