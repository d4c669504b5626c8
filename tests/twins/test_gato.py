"""GATO against its twin."""

from __future__ import annotations

from typing import Any

import pytest

from twins.gato import gato
from twins.harness import build, check, check_derivative, label

DEEP = {"depth": 2, "inner_size": 3}
CASES = [
    {},
    {"num_layers": 2},
    {"decay": 0.45, "hidden_size": 4},
    DEEP,
    DEEP | {"num_layers": 2},
    DEEP | {"inner_size": 1, "decay": 1.0, "hidden_size": 2},
]


@pytest.mark.parametrize("options", CASES, ids=label)
def test_gato_equals_its_twin(options: dict[str, Any]) -> None:
    own = {key: options[key] for key in ("depth", "decay") if key in options}
    check(gato, build("gato", **{"hidden_size": 6, **options}), **own)


@pytest.mark.parametrize("options", [{}, DEEP], ids=label)
def test_the_twin_differentiates_rightly(options: dict[str, Any]) -> None:
    check_derivative(gato, build("gato", hidden_size=6, **options), depth=options.get("depth", 1))
