"""Compare a core with its twin: outputs, all state parts, forget gates, all gradients."""

from __future__ import annotations

import copy
import inspect
from typing import Any

import numpy as np
import pytest
import torch
from support.equivalence import run_with_gradients, seeded
from torch import Tensor
from twins.gates import Array, gradients
from twins.sequence import Initial, Named, Step, run, zeros

from rlgates import Core, make_core
from rlgates.gates import GATES
from rlgates.registry import CORES, core_names

# The largest error in `check` by core name and dtype, relative to 1 + |value|.
PARITY: dict[tuple[str, str], float] = {}

STEPS, BATCH, INPUTS, HIDDEN = 6, 3, 2, 5
EPISODE_STARTS = np.array([[1, 0, 0], [0, 0, 0], [0, 1, 0], [0, 1, 0], [1, 0, 0], [0, 0, 0]], bool)


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


def memory_cases(core: str, small: dict[str, Any], two: dict[str, Any]) -> list[Any]:
    """Names and options: every gate on one small layer and on two, most of them slow.

    The memory does not ask which gate its controller has.
    """
    fast = [f"{gate}{core}" for gate in ("", "c_", "ur_", "f_", "om_")]
    return [
        pytest.param(name, sizes, marks=[] if name in fast and sizes is small else pytest.mark.slow)
        for gate in GATES
        for name in [f"{gate}_{core}" if gate else core]
        for sizes in (small, two)
    ]


def told(step: Step, name: str, options: dict[str, Any]) -> dict[str, Any]:
    """What a twin must be told of a case; the weights tell it the rest."""
    given = {"gate": core_names()[name][1], **options}
    return {key: given[key] for key in inspect.signature(step).parameters if key in given}


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
    generator = seeded(len(name))
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


def run_core(
    core: Core, x: Array, state: Array, factors: tuple[Array, Array]
) -> tuple[Named, Named]:
    """Results, and gradients of their sum weighted by `factors`, in the dtype of the core."""
    like = next(core.parameters())

    def loss(outputs: Tensor, final: Tensor) -> Tensor:
        of_outputs, of_final = (torch.tensor(factor).to(like) for factor in factors)
        return (outputs * of_outputs).sum() + (final * of_final).sum()

    arguments = (torch.tensor(array).to(like) for array in (x, state))
    results = run_with_gradients(core, *arguments, torch.tensor(EPISODE_STARTS), loss)
    holder = copy.deepcopy(core)  # its weights are the gradients, so that they have names
    with torch.no_grad():
        for name, parameter in holder.named_parameters():
            parameter.copy_(results[name])
    return (
        {"outputs": results["outputs"].detach().numpy(), **named_state(core, results["final"])},
        {
            "x": results["x"].numpy(),
            **named_state(core, results["state"]),
            **named_weights(holder),
        },
    )


def assert_same(inputs: Named, expected: Named, tolerance: float = 1e-12) -> None:
    assert set(inputs) == set(expected)
    for name in expected:
        np.testing.assert_allclose(
            inputs[name], expected[name], rtol=100 * tolerance, atol=tolerance, err_msg=name
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
    random_state: bool = True,
    single: float | None = 1e-6,
    without_gradient: tuple[str, ...] = (),
    **twin_options: Any,
) -> None:
    """Compare a core, built by `build`, with the step of its twin.

    Args:
        step, initial: the twin.
        core: the core.
        random_state: begin from random numbers; else from a state that the core reached, where
            only some numbers make sense.
        single: tolerance in float32; None if that cannot be compared.
        without_gradient: names of arrays (without the layer) whose gradient is zero by
            definition.
        twin_options: further arguments of `step`.
    """
    rng = np.random.default_rng(1)
    x = rng.normal(size=(STEPS, BATCH, core.input_size))
    state = rng.normal(size=(BATCH, core.state_size))
    if not random_state:
        with torch.no_grad():
            state = core(torch.tensor(rng.normal(size=(4, BATCH, core.input_size))))[1].numpy()
    factors = (
        rng.normal(size=(STEPS, BATCH, core.output_size)),
        rng.normal(size=(BATCH, core.state_size)),
    )
    inputs = {"x": x, **named_state(core, torch.tensor(state)), **named_weights(core)}
    named_factors = {"outputs": factors[0], **named_state(core, torch.tensor(factors[1]))}
    shapes = dict(core.cells[0].state_shapes)  # type: ignore[arg-type]

    def twin(inputs: Named) -> Named:
        return run(step, shapes, inputs, EPISODE_STARTS, initial, **twin_options)

    def loss(inputs: Named) -> Array:
        return weighted_sum(twin(inputs), named_factors)

    expected, expected_gradients = twin(inputs), gradients(loss, inputs)
    for name, gradient in expected_gradients.items():
        nonzero = np.abs(gradient).max() > 1e-6
        assert nonzero != (name.rpartition(".")[0] in without_gradient), name

    trace = core.trace_gates(torch.tensor(x), torch.tensor(state), torch.tensor(EPISODE_STARTS))
    traced = {"outputs": trace.outputs.numpy(), **named_state(core, trace.state)}
    forget = {f"forget.{layer}": gates.numpy() for layer, gates in enumerate(trace.forget)}
    assert_same({**traced, **forget}, expected)

    results = {name: array for name, array in expected.items() if name not in forget}
    for precise, tolerance in ((core, 1e-12), (copy.deepcopy(core).float(), single)):
        if tolerance is not None:
            result, got_gradients = run_core(precise, x, state, factors)
            record(precise, {**result, **got_gradients}, {**results, **expected_gradients})
            assert_same(result, results, tolerance)
            assert_same(got_gradients, expected_gradients, tolerance)


def record(core: Core, inputs: Named, expected: Named) -> None:
    """Record the largest error, for the table that `pytest --parity` writes."""
    key = core.name, str(next(core.parameters()).dtype).removeprefix("torch.")
    error = max(np.max(np.abs(inputs[k] - expected[k]) / (1 + np.abs(expected[k]))) for k in inputs)
    PARITY[key] = max(float(error), PARITY.get(key, 0.0))


def check_derivative(step: Step, core: Core, initial: Initial = zeros, **twin_options: Any) -> None:
    """Compare a twin's complex-step derivative with central differences.

    Weights and state are those of the core after some steps.
    """
    rng = np.random.default_rng(0)
    x, before = rng.normal(size=(2, 3, BATCH, core.input_size))
    with torch.no_grad():
        state = core(torch.tensor(before))[1]
    inputs = {"x": x, **named_state(core, state), **named_weights(core)}
    shapes = dict(core.cells[0].state_shapes)  # type: ignore[arg-type]

    def twin(inputs: Named) -> Named:
        return run(step, shapes, inputs, EPISODE_STARTS[:3], initial, **twin_options)

    factors = {name: rng.normal(size=result.shape) for name, result in twin(inputs).items()}

    def loss(inputs: Named) -> Array:
        return weighted_sum(twin(inputs), factors)

    for name, gradient in gradients(loss, inputs).items():
        for index in list(np.ndindex(gradient.shape))[::3]:
            move = np.zeros_like(gradient)
            move[index] = 1e-5
            up, down = ({**inputs, name: inputs[name] + sign * move} for sign in (1, -1))
            difference = (loss(up) - loss(down)) / 2e-5
            assert gradient[index] == pytest.approx(difference, rel=1e-6, abs=1e-8), name
