"""MinGRU, GILR, minLSTM and LRU against their twins."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from twins.harness import (
    INPUTS,
    build,
    check,
    check_derivative,
    gate_of,
    gated_cases,
    label,
    single_for,
)
from twins.linear import gilr, lru, memoryless, mingru, minlstm
from twins.sequence import Step

LINEAR = {"candidate": "linear"}


@pytest.mark.parametrize(
    ("name", "options"), gated_cases("mingru", LINEAR, LINEAR | {"num_layers": 2}), ids=label
)
def test_mingru_equals_its_twin(name: str, options: dict[str, Any]) -> None:
    own = {"candidate": options.get("candidate", "g"), "single": single_for(name)}
    check(mingru, build(name, **options), **own, **gate_of(name, options))


@pytest.mark.parametrize(("name", "options"), gated_cases("gilr"), ids=label)
def test_gilr_equals_its_twin(name: str, options: dict[str, Any]) -> None:
    check(gilr, build(name, **options), single=single_for(name), **gate_of(name, options))


@pytest.mark.parametrize("num_layers", [1, 2])
@pytest.mark.parametrize("candidate", ["g", "linear"])
def test_minlstm_equals_its_twin(candidate: str, num_layers: int) -> None:
    core = build("minlstm", candidate=candidate, num_layers=num_layers)
    check(minlstm, core, candidate=candidate)


@pytest.mark.parametrize("num_layers", [1, 2])
@pytest.mark.parametrize("trainable_gamma", [True, False])
def test_lru_equals_its_twin(trainable_gamma: bool, num_layers: int) -> None:
    core = build("lru", trainable_gamma=trainable_gamma, num_layers=num_layers)
    check(lru, core, trainable_gamma=trainable_gamma)


@pytest.mark.parametrize("num_layers", [1, 2])
def test_the_core_without_memory_equals_its_twin(num_layers: int) -> None:
    check(memoryless, build("none", num_layers=num_layers))


@pytest.mark.parametrize(
    ("name", "twin", "options"),
    [
        ("ur_mingru", mingru, {"gate": "ur"}),
        ("s_gilr", gilr, {"gate": "s"}),
        ("minlstm", minlstm, {}),
        ("lru", lru, {}),
    ],
)
def test_the_twins_differentiate_rightly(name: str, twin: Step, options: dict[str, Any]) -> None:
    check_derivative(twin, build(name), **options)


def test_minlstm_gates_far_below_zero() -> None:
    """Both gates are far below the smallest float32, and their quotient is not."""
    core = build("minlstm").float()
    weights = core.gate_weights()
    for name, value in {"W_f": 0.0, "W_i": 0.0, "b_f": -200.0, "b_i": -199.0}.items():
        weights[name].fill_(value)
    x = torch.ones(1, 1, INPUTS)
    assert core.observe(x).forget[0].numpy() == pytest.approx(1 / (1 + np.e))
    core(x)[0].sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in core.parameters())
