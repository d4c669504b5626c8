"""The DNC against its twin."""

from __future__ import annotations

from typing import Any

import pytest
from support.twin_harness import build, check, check_derivative, label, memory_cases, told

from twins.dnc import dnc

# With more than four slots those that come last after a start are equally free, to the last
# bit or nearly: which is written first is then a matter of rounding.
SMALL: dict[str, Any] = {"hidden_size": 3, "num_slots": 3, "word_size": 2, "num_reads": 1}
HEADS = SMALL | {"num_reads": 2, "num_writes": 2}
CASES = [
    *memory_cases("dnc", SMALL, SMALL | {"hidden_size": 2, "num_layers": 2}),
    ("dnc", SMALL | {"tied": True}),
    ("um_dnc", SMALL | {"hidden_size": 4, "chunk_size": 2}),
    ("dnc", HEADS),
    ("ur_dnc", HEADS | {"hidden_size": 2, "num_slots": 4}),
    ("dnc", SMALL | {"num_writes": 2}),
    ("dnc", SMALL | {"num_reads": 3}),
    ("dnc", SMALL | {"word_size": 1}),
    ("dnc", SMALL | {"num_slots": 2}),
    ("dnc", SMALL | {"clip": 0.3}),
    ("ur_dnc", HEADS | {"clip": 0.2}),
    ("dnc", SMALL | {"clip": None}),
    ("dnc", SMALL | {"hidden_size": 2, "output_size": 3, "num_layers": 2}),
]


@pytest.mark.parametrize(("name", "options"), CASES, ids=label)
def test_dnc_equals_its_twin(name: str, options: dict[str, Any]) -> None:
    check(
        dnc,
        build(name, **options),
        random_state=False,
        without_gradient=("write_weights",),  # they come back in the usage alone
        **told(dnc, name, options),
    )


def test_the_twin_differentiates_rightly() -> None:
    check_derivative(dnc, build("dnc", **HEADS), gate="", stop=False)
