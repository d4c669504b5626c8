"""The DNC against its twin."""

from __future__ import annotations

from typing import Any

import pytest

from rlgates.gates import GATES
from twins.dnc import dnc
from twins.harness import build, check, check_derivative, gate_of, label

# With more than four slots those that come last after a start are equally free, to the last
# bit or nearly: which is written first is then a matter of rounding.
SMALL: dict[str, Any] = {"hidden_size": 3, "num_slots": 3, "word_size": 2, "num_reads": 1}
HEADS = SMALL | {"num_reads": 2, "num_writes": 2}
FAST = ("", "c", "ur", "f", "om")  # the memory does not ask which gate its controller has


def cases() -> list[Any]:
    """Every gate on one layer and on two, most of them slow, and each option."""
    two = SMALL | {"hidden_size": 2, "num_layers": 2}
    rows = [
        pytest.param(
            f"{gate}_dnc" if gate else "dnc",
            sizes,
            marks=[] if gate in FAST and sizes is SMALL else pytest.mark.slow,
        )
        for gate in GATES
        for sizes in (SMALL, two)
    ]
    return [
        *rows,
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


@pytest.mark.parametrize(("name", "options"), cases(), ids=label)
def test_dnc_equals_its_twin(name: str, options: dict[str, Any]) -> None:
    check(
        dnc,
        build(name, **options),
        any_state=False,
        without_gradient=("write_weights",),  # they come back in the usage alone
        clip=options.get("clip", 20.0),
        **gate_of(name, options),
    )


def test_the_twin_differentiates_rightly() -> None:
    check_derivative(dnc, build("dnc", **HEADS), gate="", stop=False)
