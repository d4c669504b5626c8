"""Inputs, and weights set by hand, for tests in which every number is known."""

from __future__ import annotations

from typing import Any

import torch
from conformance import cases
from conformance.cases import seeded
from torch import Tensor

from rlgates import Core


def build(name: str, **options: Any) -> Core:
    """A core of 3 inputs and 6 units in double precision, in which nothing is zero."""
    return cases.build(name, **{"dtype": torch.float64, **options})


def sequence(core: Core, steps: int = 5, batch: int = 3) -> Tensor:
    """Random inputs for a core."""
    like = next(core.parameters())
    return torch.randn(steps, batch, core.input_size, generator=seeded(2)).to(like)


def zeroed(core: Core, **values: Tensor | float) -> dict[str, Tensor]:
    """The weights of a core by name, all zero but those given."""
    weights = core.gate_weights()
    for name, weight in weights.items():
        weight.copy_(torch.as_tensor(values.pop(name, 0), dtype=torch.float64))
    assert not values
    return weights
