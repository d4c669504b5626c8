"""The relational memory core against its twin."""

from __future__ import annotations

from typing import Any

import pytest
from support.twin_harness import build, check, check_derivative, label, told

from rlgates.gates import GATES
from twins.rmc import identity, rmc

SMALL: dict[str, Any] = {"hidden_size": 4, "mem_slots": 2, "num_heads": 2}
# A layer norm enlarges the rounding of a row whose numbers are nearly equal: some gradients
# are off by up to 2e-14 in float64, which is 1e-5 in float32.
SINGLE = 3e-5


def cases() -> list[tuple[str, dict[str, Any]]]:
    """Every gate on one layer and on two, and each option that changes the equations."""
    every = [f"{gate}_rmc" if gate else "rmc" for gate in GATES]
    two = {"hidden_size": 3, "mem_slots": 2, "num_layers": 2}
    return [(name, sizes) for name in every for sizes in (SMALL, two)] + [
        ("rmc", {"hidden_size": 5, "mem_slots": 3}),
        ("ur_rmc", {"hidden_size": 3, "mem_slots": 5}),  # more slots than columns
        ("rmc", {"hidden_size": 3, "mem_slots": 1}),
        ("um_rmc", {"hidden_size": 6, "mem_slots": 2, "num_heads": 3, "chunk_size": 3}),
        ("om_rmc", {"hidden_size": 6, "mem_slots": 2, "num_heads": 2, "chunk_size": 2}),
        ("rmc", SMALL | {"tied": True}),
        ("f_rmc", SMALL | {"tied": False}),
        ("rmc", SMALL | {"num_blocks": 2}),
        ("ur_rmc", SMALL | {"num_blocks": 2, "mlp_layers": 1, "key_size": 1}),
        ("rmc", SMALL | {"mlp_layers": 3, "key_size": 3}),
        ("rmc", SMALL | {"mlp_layers": 1}),
        ("rmc", SMALL | {"gate_style": "memory"}),
        ("c_rmc", SMALL | {"gate_style": "memory", "num_layers": 2}),
        ("r_rmc", SMALL | {"gate_style": "memory", "num_blocks": 2}),
        ("f_rmc", SMALL | {"gate_style": "memory"}),
        ("rmc", SMALL | {"gate_style": None}),
        ("rmc", SMALL | {"gate_style": None, "num_blocks": 2, "mlp_layers": 3, "num_layers": 2}),
        ("rmc", SMALL | {"input_bias": 1.5}),  # says where a bias starts, and no more
    ]


@pytest.mark.parametrize(("name", "options"), cases(), ids=label)
def test_rmc_equals_its_twin(name: str, options: dict[str, Any]) -> None:
    twin_options = told(rmc, name, options)
    if options.get("gate_style", "unit") is None:
        twin_options["gate"] = None
    check(rmc, build(name, **options), identity, single=SINGLE, **twin_options)


def test_the_twin_differentiates_rightly() -> None:
    check_derivative(rmc, build("s_rmc", **SMALL), identity, gate="s", num_heads=2)
