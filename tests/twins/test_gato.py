"""GATO against its twin."""

from __future__ import annotations

from typing import Any

import pytest

from twins.gato import gato
from twins.harness import build, check, check_derivative, label

DEEP = {"depth": 2, "inner_size": 3}
F = ("W1_x", "W1_r", "b1", "W2", "b2")
CASES = [
    {},
    {"num_layers": 2},
    {"decay": 0.45, "hidden_size": 4},
    DEEP,
    DEEP | {"num_layers": 2},
    DEEP | {"inner_size": 1, "decay": 1.0, "hidden_size": 2},
    *({"s_update": name} | deep for name in ("increment", "zero") for deep in ({}, DEEP)),
]


@pytest.mark.parametrize("options", CASES, ids=label)
def test_gato_equals_its_twin(options: dict[str, Any]) -> None:
    own = {key: options[key] for key in ("depth", "decay", "s_update") if key in options}
    check(
        gato,
        build("gato", **{"hidden_size": 6, **options}),
        without_gradient=_unused(options),
        **own,
    )


def _unused(options: dict[str, Any]) -> tuple[str, ...]:
    """What the ablations leave unread."""
    match options.get("s_update", "sum"):
        case "sum":
            return ()
        case "increment":
            return ("s",)
    return ("s", *(F if options.get("depth") == 2 else ("W_x_A", "a", "b_A")))


@pytest.mark.parametrize("options", [{}, DEEP], ids=label)
def test_the_twin_differentiates_rightly(options: dict[str, Any]) -> None:
    check_derivative(gato, build("gato", hidden_size=6, **options), depth=options.get("depth", 1))
