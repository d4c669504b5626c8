"""A core against its twin: outputs, every part of the state, forget gates, all gradients."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rlgates import Core, make_core
from rlgates.cores import CORES, core_names
from rlgates.gates import GATES
from twins.gates import Array, gradients
from twins.sequence import Initial, Named, Step, run, zeros

# The largest error that `check` has seen: name of the core and dtype, relative to 1 + |value|.
PARITY: dict[tuple[str, str], float] = {}

STEPS, BATCH, INPUTS, HIDDEN = 6, 3, 2, 5
STARTS = np.array([[1, 0, 0], [0, 0, 0], [0, 1, 0], [0, 1, 0], [1, 0, 0], [0, 0, 0]], bool)


def gated_cases(
    core: str, *more: dict[str, Any], switch_tied: bool = True
) -> list[tuple[str, dict[str, Any]]]:
    """Names and options: every gate on one layer and on two, and as its options change it.

    Args:
        core: a row of CORES.
        more: options with which two of the gates are run too.
        switch_tied: whether the core lets gates be tied and untied.
    """
    row = CORES[core]
    names = {gate: name for name, (of, gate) in core_names().items() if of == core}
    cases = [(name, {"num_layers": layers}) for name in names.values() for layers in (1, 2)]
    for gate, name in names.items():
        if switch_tied and "tied" in GATES[gate].options:
            cases.append((name, {"tied": GATES[gate].auxiliary == "untied" and not row.tied}))
        if "chunk_size" in GATES[gate].options:
            cases.append((name, {"chunk_size": 3, "hidden_size": 6}))
    return cases + [(names[gate], options) for options in more for gate in (row.plain, "ur")]


def gate_of(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """What a twin must know of the gate of a case."""
    return {"gate": core_names()[name][1], "chunk_size": options.get("chunk_size", 1)}


def single_for(name: str) -> float:
    """The tolerance in float32: the slope of a fast gate, exp(|z|) / 2, magnifies rounding."""
    return 1e-5 if GATES[core_names()[name][1]].activation in ("fast", "iterated_fast") else 1e-6


def label(part: str | dict[str, Any]) -> str:
    """The name of a case, from its name and options."""
    if isinstance(part, str):
        return part
    return "-".join(f"{key}={value}" for key, value in part.items()) or "plain"


def build(name: str, **options: Any) -> Core:
    """A float64 core in general position: no weight is zero."""
    generator = torch.Generator().manual_seed(len(name))
    sizes = {"input_size": INPUTS, "hidden_size": HIDDEN} | options
    core = make_core(name, generator=generator, **sizes).double().eval()
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


def run_core(
    core: Core, x: Array, state: Array, factors: tuple[Array, Array]
) -> tuple[Named, Named]:
    """Results and gradients of their sum, weighted by `factors`, in the dtype of the core."""
    like = next(core.parameters())
    core.zero_grad()
    leaves = [torch.tensor(array).to(like).requires_grad_() for array in (x, state)]
    outputs, final = core(*leaves, torch.tensor(STARTS))
    weigh_outputs, weigh_final = (torch.tensor(factor).to(like) for factor in factors)
    ((outputs * weigh_outputs).sum() + (final * weigh_final).sum()).backward()
    in_x, in_state = (leaf.grad if leaf.numel() else torch.zeros_like(leaf) for leaf in leaves)
    assert in_x is not None
    assert in_state is not None
    return (
        {"outputs": outputs.detach().numpy(), **named_state(core, final)},
        {
            "x": in_x.numpy(),
            **named_state(core, in_state),
            **named_gradients(core),
        },
    )


def assert_same(given: Named, expected: Named, tolerance: float = 1e-12) -> None:
    assert set(given) == set(expected)
    for name in expected:
        np.testing.assert_allclose(
            given[name], expected[name], rtol=100 * tolerance, atol=tolerance, err_msg=name
        )


def weighted_sum(results: Named, factors: Named) -> Array:
    """One number for each direction of a derivative."""
    return sum(
        (results[name] * factor).sum(axis=tuple(range(-factor.ndim, 0)))
        for name, factor in factors.items()
    )


def check(
    step: Step,
    core: Core,
    initial: Initial = zeros,
    *,
    any_state: bool = True,
    single: float | None = 1e-6,
    without_gradient: tuple[str, ...] = (),
    **twin_options: Any,
) -> None:
    """Hold a core, built by `build`, against the step of its twin.

    Args:
        step, initial: the twin.
        core: the core.
        any_state: begin from random numbers; else from a state that the core has come to,
            where only some numbers make sense.
        single: tolerance in float32; None if that cannot be compared.
        without_gradient: names of arrays (without the layer) whose gradient is zero by
            definition.
        twin_options: further arguments of `step`.
    """
    rng = np.random.default_rng(1)
    x = rng.normal(size=(STEPS, BATCH, core.input_size))
    state = rng.normal(size=(BATCH, core.state_size))
    if not any_state:
        with torch.no_grad():
            state = core(torch.tensor(rng.normal(size=(4, BATCH, core.input_size))))[1].numpy()
    factors = (
        rng.normal(size=(STEPS, BATCH, core.output_size)),
        rng.normal(size=(BATCH, core.state_size)),
    )
    given = {"x": x, **named_state(core, torch.tensor(state)), **named_weights(core)}
    named_factors = {"outputs": factors[0], **named_state(core, torch.tensor(factors[1]))}
    shapes = dict(core.cells[0].state_shapes)  # type: ignore[arg-type]

    def twin(given: Named) -> Named:
        return run(step, shapes, given, STARTS, initial, **twin_options)

    def loss(given: Named) -> Array:
        return weighted_sum(twin(given), named_factors)

    expected, expected_gradients = twin(given), gradients(loss, given)
    for name, gradient in expected_gradients.items():
        there = np.abs(gradient).max() > 1e-6
        assert there != (name.rpartition(".")[0] in without_gradient), name

    seen = core.observe(torch.tensor(x), torch.tensor(state), torch.tensor(STARTS))
    observed = {"outputs": seen.outputs.numpy(), **named_state(core, seen.state)}
    forget = {f"forget.{layer}": gates.numpy() for layer, gates in enumerate(seen.forget)}
    assert_same({**observed, **forget}, expected)

    results = {name: array for name, array in expected.items() if name not in forget}
    for precise, tolerance in ((core, 1e-12), (copy.deepcopy(core).float(), single)):
        if tolerance is not None:
            got, got_gradients = run_core(precise, x, state, factors)
            record(precise, {**got, **got_gradients}, {**results, **expected_gradients})
            assert_same(got, results, tolerance)
            assert_same(got_gradients, expected_gradients, tolerance)


def record(core: Core, given: Named, expected: Named) -> None:
    """Keep the largest error, for the table that `pytest --parity` writes."""
    key = core.name, str(next(core.parameters()).dtype).removeprefix("torch.")
    error = max(np.max(np.abs(given[k] - expected[k]) / (1 + np.abs(expected[k]))) for k in given)
    PARITY[key] = max(float(error), PARITY.get(key, 0.0))


def check_derivative(step: Step, core: Core, initial: Initial = zeros, **twin_options: Any) -> None:
    """Hold a twin's complex step against central differences, so that it is tested itself.

    The weights are those of the core, and the state is one that it has come to.
    """
    rng = np.random.default_rng(0)
    x, before = rng.normal(size=(2, 3, BATCH, core.input_size))
    with torch.no_grad():
        state = core(torch.tensor(before))[1]
    given = {"x": x, **named_state(core, state), **named_weights(core)}
    shapes = dict(core.cells[0].state_shapes)  # type: ignore[arg-type]

    def twin(given: Named) -> Named:
        return run(step, shapes, given, STARTS[:3], initial, **twin_options)

    factors = {name: rng.normal(size=result.shape) for name, result in twin(given).items()}

    def loss(given: Named) -> Array:
        return weighted_sum(twin(given), factors)

    for name, gradient in gradients(loss, given).items():
        for index in list(np.ndindex(gradient.shape))[::3]:
            move = np.zeros_like(gradient)
            move[index] = 1e-5
            up, down = ({**given, name: given[name] + sign * move} for sign in (1, -1))
            difference = (loss(up) - loss(down)) / 2e-5
            assert gradient[index] == pytest.approx(difference, rel=1e-6, abs=1e-8), name
