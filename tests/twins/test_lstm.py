"""The LSTM against its twin: outputs, every part of the state, forget gates, all gradients."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rlgates import Core, make_core
from rlgates.gates import GATES
from twins.gates import MAIN, Array, gradients
from twins.lstm import Named, lstm

STEPS, BATCH, INPUTS, HIDDEN = 6, 3, 2, 5
STARTS = np.array([[1, 0, 0], [0, 0, 0], [0, 1, 0], [0, 1, 0], [1, 0, 0], [0, 0, 0]], bool)


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


def build(gate: str, **options: Any) -> Core:
    """A float64 core in general position: no weight is zero."""
    name = f"{gate}_lstm" if gate else "lstm"
    generator = torch.Generator().manual_seed(len(name))
    sizes = {"input_size": INPUTS, "hidden_size": HIDDEN} | options
    core = make_core(name, generator=generator, **sizes).double()
    with torch.no_grad():
        for parameter in core.parameters():
            parameter += 0.5 * torch.randn(parameter.shape, generator=generator)
    return core


def named_weights(core: Core) -> Named:
    """The parameters of all layers by gate name."""
    return {
        f"{name}.{layer}": weight.numpy().copy()
        for layer in range(core.num_layers)
        for name, weight in core.gate_weights(layer).items()
    }


def named_state(core: Core, state: Tensor) -> Named:
    """The parts of the state of all layers."""
    return {
        f"{name}.{layer}": part.numpy()
        for name, parts in core.unpack(state.detach()).items()
        for layer, part in enumerate(parts)
    }


def named_gradients(core: Core) -> Named:
    """The gradients by gate name, read from a copy of the core that has them as its weights."""
    holder = copy.deepcopy(core)
    with torch.no_grad():
        for into, parameter in zip(holder.parameters(), core.parameters(), strict=True):
            assert parameter.grad is not None
            into.copy_(parameter.grad)
    return named_weights(holder)


def run(core: Core, x: Array, state: Array, factors: tuple[Array, Array]) -> tuple[Named, Named]:
    """Results and gradients of their sum, weighted by `factors`, in the dtype of the core."""
    like = next(core.parameters())
    core.zero_grad()
    leaves = [torch.tensor(array).to(like).requires_grad_() for array in (x, state)]
    outputs, final = core(*leaves, torch.tensor(STARTS))
    weigh_outputs, weigh_final = (torch.tensor(factor).to(like) for factor in factors)
    ((outputs * weigh_outputs).sum() + (final * weigh_final).sum()).backward()
    assert leaves[0].grad is not None
    assert leaves[1].grad is not None
    return (
        {"outputs": outputs.detach().numpy(), **named_state(core, final)},
        {
            "x": leaves[0].grad.numpy(),
            **named_state(core, leaves[1].grad),
            **named_gradients(core),
        },
    )


def assert_same(given: Named, expected: Named, tolerance: float = 1e-12) -> None:
    assert set(given) == set(expected)
    for name in expected:
        np.testing.assert_allclose(
            given[name], expected[name], rtol=100 * tolerance, atol=tolerance, err_msg=name
        )


def test_every_gate_has_a_twin() -> None:
    assert set(MAIN) == set(GATES)


@pytest.mark.parametrize(("gate", "options"), cases())
def test_lstm_equals_its_twin(gate: str, options: dict[str, Any]) -> None:
    core = build(gate, **options)
    rng = np.random.default_rng(1)
    x = rng.normal(size=(STEPS, BATCH, INPUTS))
    state = rng.normal(size=(BATCH, core.state_size))
    factors = (
        rng.normal(size=(STEPS, BATCH, core.output_size)),
        rng.normal(size=(BATCH, core.state_size)),
    )
    given = {"x": x, **named_state(core, torch.tensor(state)), **named_weights(core)}
    named_factors = {"outputs": factors[0], **named_state(core, torch.tensor(factors[1]))}

    def twin(given: Named) -> Named:
        return lstm(gate, given, STARTS, options.get("chunk_size", 1))

    def twin_loss(given: Named) -> Array:
        result = twin(given)
        return sum(
            (result[name] * factor).sum(axis=tuple(range(-factor.ndim, 0)))
            for name, factor in named_factors.items()
        )

    expected, expected_gradients = twin(given), gradients(twin_loss, given)
    assert all(np.abs(gradient).max() > 1e-6 for gradient in expected_gradients.values())

    seen = core.observe(torch.tensor(x), torch.tensor(state), torch.tensor(STARTS))
    observed = {"outputs": seen.outputs.numpy(), **named_state(core, seen.state)}
    forget = {f"forget.{layer}": gates.numpy() for layer, gates in enumerate(seen.forget)}
    assert_same({**observed, **forget}, expected)

    results = {name: array for name, array in expected.items() if name not in forget}
    for precise, tolerance in ((core, 1e-12), (copy.deepcopy(core).float(), 1e-6)):
        got, got_gradients = run(precise, x, state, factors)
        assert_same(got, results, tolerance)
        assert_same(got_gradients, expected_gradients, tolerance)


def test_the_twin_differentiates_rightly() -> None:
    """Its complex step against central differences, so that the twin itself is tested."""
    core = build("s")
    rng = np.random.default_rng(0)
    given = {"x": rng.normal(size=(STEPS, BATCH, INPUTS)), **named_weights(core)}
    given |= named_state(core, torch.tensor(rng.normal(size=(BATCH, core.state_size))))

    def loss(given: Named) -> Array:
        return lstm("s", given, STARTS)["outputs"].sum(axis=(-3, -2, -1))

    for name, gradient in gradients(loss, given).items():
        for index in list(np.ndindex(gradient.shape))[::3]:
            step = np.zeros_like(gradient)
            step[index] = 1e-5
            up, down = ({**given, name: given[name] + sign * step} for sign in (1, -1))
            assert gradient[index] == pytest.approx((loss(up) - loss(down)) / 2e-5, abs=1e-8)
