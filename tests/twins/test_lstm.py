"""The LSTM against its twin, and the twin's derivative against differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from rlgates.gates import GATES
from twins.gates import MAIN, Array, gradients
from twins.harness import BATCH, INPUTS, STARTS, STEPS, build, check, named_state, named_weights
from twins.lstm import lstm
from twins.sequence import Named, run


def cases() -> list[Any]:
    """Every gate on one layer and on two, and with each option that changes the equations."""
    rows: list[tuple[str, dict[str, Any]]] = [
        (gate, {"num_layers": layers}) for gate in GATES for layers in (1, 2)
    ]
    for gate, row in GATES.items():
        if "tied" in row.options:
            rows.append((gate, {"tied": row.auxiliary == "untied"}))
        if "chunk_size" in row.options:
            rows.append((gate, {"chunk_size": 3, "hidden_size": 6}))
    names = ["-".join([gate or "plain", *(f"{k}={v}" for k, v in kw.items())]) for gate, kw in rows]
    return [pytest.param(*row, id=name) for row, name in zip(rows, names, strict=True)]


def test_every_gate_has_a_twin() -> None:
    assert set(MAIN) == set(GATES)


@pytest.mark.parametrize(("gate", "options"), cases())
def test_lstm_equals_its_twin(gate: str, options: dict[str, Any]) -> None:
    core = build(f"{gate}_lstm" if gate else "lstm", **options)
    check(lstm, core, gate=gate, chunk_size=options.get("chunk_size", 1))


def test_the_twin_differentiates_rightly() -> None:
    """Its complex step against central differences, so that the twin itself is tested."""
    core = build("s_lstm")
    rng = np.random.default_rng(0)
    given = {"x": rng.normal(size=(STEPS, BATCH, INPUTS)), **named_weights(core)}
    given |= named_state(core, torch.tensor(rng.normal(size=(BATCH, core.state_size))))
    shapes = core.cells[0].state_shapes

    def loss(given: Named) -> Array:
        return run(lstm, shapes, given, STARTS, gate="s")["outputs"].sum(axis=(-3, -2, -1))

    for name, gradient in gradients(loss, given).items():
        for index in list(np.ndindex(gradient.shape))[::3]:
            step = np.zeros_like(gradient)
            step[index] = 1e-5
            up, down = ({**given, name: given[name] + sign * step} for sign in (1, -1))
            assert gradient[index] == pytest.approx((loss(up) - loss(down)) / 2e-5, abs=1e-8)
