"""The core of the RMA against its twin."""

from __future__ import annotations

from typing import Any

import pytest
from support.twin_harness import build, check, check_derivative, label, memory_cases, told

from twins.rma import rma

# There are more steps than slots, so that rows are written over.
SMALL: dict[str, Any] = {
    "hidden_size": 2,
    "latent_size": 2,
    "latent_hidden": 3,
    "num_slots": 4,
    "num_heads": 1,
    "top_k": 4,
}
HEADS = SMALL | {"num_heads": 3, "top_k": 2}
CASES = [
    *memory_cases("rma", SMALL, SMALL | {"num_layers": 2}),
    ("rma", SMALL | {"tied": True}),
    ("um_rma", SMALL | {"hidden_size": 4, "chunk_size": 2}),
    ("rma", HEADS),
    ("ur_rma", HEADS | {"num_slots": 3, "num_layers": 2}),
    ("rma", SMALL | {"top_k": 3}),
    ("rma", SMALL | {"num_slots": 3, "top_k": 2}),
    ("rma", SMALL | {"num_slots": 2, "top_k": 2}),
    ("rma", SMALL | {"top_k": 1}),
    ("rma", SMALL | {"num_slots": 12, "top_k": 12}),  # some rows stay empty
    ("rma", SMALL | {"hidden_size": 3, "latent_size": 3, "latent_hidden": 2}),
    ("ur_rma", SMALL | {"latent_hidden": None}),
    ("rma", SMALL | {"memory": False}),
    ("ur_rma", SMALL | {"memory": False, "num_layers": 2}),
]


@pytest.mark.parametrize(("name", "options"), CASES, ids=label)
def test_rma_equals_its_twin(name: str, options: dict[str, Any]) -> None:
    check(
        rma,
        build(name, **options),
        random_state=False,
        # The one row that is read has weight 1, whatever the key.
        without_gradient=("W_read", "b_read") if options["top_k"] == 1 else (),
        **told(rma, name, options),
    )


def test_the_twin_differentiates_rightly() -> None:
    core = build("rma", **HEADS | {"num_slots": 3})  # all rows are full: |v| has a corner at zero
    check_derivative(rma, core, gate="", top_k=2, stop=False)
