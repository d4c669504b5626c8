"""The NRU against its twin."""

from __future__ import annotations

from typing import Any

import pytest

from twins.harness import build, check, check_derivative, label
from twins.nru import nru

SIZES = {"memory_size": 8, "num_heads": 2, "hidden_size": 3}
CASES = [
    SIZES,
    {"memory_size": 4, "num_heads": 1},
    {"memory_size": 9, "num_heads": 4},  # a head is one and a half rows of the outer product
    SIZES | {"num_layers": 2},
    SIZES | {"relu": True},
    SIZES | {"layer_norm": True},
    SIZES | {"relu": True, "layer_norm": True, "num_layers": 2},
]


def own(options: dict[str, Any]) -> dict[str, Any]:
    return {k: options[k] for k in ("num_heads", "relu", "layer_norm") if k in options}


@pytest.mark.parametrize("options", CASES, ids=label)
def test_nru_equals_its_twin(options: dict[str, Any]) -> None:
    # A direction is divided by its norm, which may be small: rounding is magnified, in the core
    # no more than by the equations themselves.
    check(nru, build("nru", **options), single=1e-4, **own(options))


@pytest.mark.parametrize("flag", [False, True])
def test_the_twin_differentiates_rightly(flag: bool) -> None:
    options = {"relu": flag, "layer_norm": flag, **SIZES}
    check_derivative(nru, build("nru", **options), **own(options))
