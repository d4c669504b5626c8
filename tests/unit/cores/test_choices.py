"""What signatures offer as choices is what the checks allow."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
from support.cases import HIDDEN, INPUTS, small

from rlgates import Gate, kernels
from rlgates.core import BackendName
from rlgates.gates import INITS, Init
from rlgates.registry import CORES


def literals(make: Callable[..., object]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The parameters that are choices, and their values."""
    for name, hint in get_type_hints(make).items():
        for part in (hint, *get_args(hint)):
            if get_origin(part) is Literal:
                yield name, get_args(part)


CHOICES = [
    (core, name, values)
    for core, row in CORES.items()
    for name, values in literals(getattr(row.cell, "__init__"))  # noqa: B009
]


def test_tables() -> None:
    assert get_args(BackendName) == kernels.BACKENDS
    assert get_args(Init) == tuple(INITS)
    assert {name for _, name, _ in CHOICES} == {
        "reset", "candidate", "input_start", "s_update", "gate_style", "nonlinearity",
        "init", "activation",
    }  # fmt: skip


@pytest.mark.parametrize(("core", "name", "values"), CHOICES)
def test_options_of_cells(core: str, name: str, values: tuple[str, ...]) -> None:
    row = CORES[core]
    given: dict[str, Any] = {**small(core)}
    if row.gates:
        given["gate"] = Gate(row.plain, HIDDEN)
    for value in values:
        assert getattr(row.cell(INPUTS, HIDDEN, **given, **{name: value}), name) == value
    with pytest.raises(ValueError, match=f"unknown {name} 'other'") as error:
        row.cell(INPUTS, HIDDEN, **given, **{name: "other"})
    assert all(value in str(error.value) for value in values)
