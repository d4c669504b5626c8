"""Gradients: exact, independent of cuts, zero across episode starts, finite."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.cases import (
    FAMILY_OF,
    FORGETFUL,
    STOPPED,
    build,
    every_core,
    every_family,
    gated_cores,
    names,
    small,
)
from support.equivalence import (
    assert_close,
    inputs_and_state,
    run_in_pieces,
    seeded,
    typical_episode_starts,
)
from torch import Tensor
from torch.func import functional_call

from rlgates import Core, list_cores, make_core


def gradients(
    core: Core, x: Tensor, state: Tensor, episode_starts: Tensor, cuts: list[int]
) -> list[Tensor]:
    """Gradients in x, the state and all parameters of a weighted sum of the results."""
    x, state = x.clone().requires_grad_(), state.clone().requires_grad_()
    results = run_in_pieces(core, x, state, episode_starts, cuts)
    weights = [torch.randn(part.shape, generator=seeded(1)).to(part) for part in results]
    loss = sum((part * weight).sum() for part, weight in zip(results, weights, strict=True))
    asked = [x, state, *core.parameters()]
    return list(torch.autograd.grad(loss, asked, allow_unused=True, materialize_grads=True))


@pytest.mark.parametrize("name", names(n for n in list_cores() if FAMILY_OF[n] not in STOPPED))
def test_gradcheck(name: str) -> None:
    """Against central differences, with episode starts, for input, state and parameters."""
    core = build(name, num_layers=2, dtype=torch.float64, hidden_size=4)
    x, state = inputs_and_state(core, steps=4, batch_size=2)
    episode_starts = typical_episode_starts(4, 2)
    parameter_names = [name for name, _ in core.named_parameters()]

    def run(x: Tensor, state: Tensor, *parameters: Tensor) -> Tensor:
        named: dict[str, Any] = dict(zip(parameter_names, parameters, strict=True))
        outputs, final = functional_call(core, named, (x, state, episode_starts))
        results = torch.cat([outputs.flatten(), final.flatten()])
        weights = torch.randn(2, len(results), generator=seeded(2), dtype=torch.float64)
        return weights @ results

    arguments = [t.detach().clone().requires_grad_() for t in (x, state, *core.parameters())]
    assert torch.autograd.gradcheck(run, arguments, fast_mode=True)


@every_core
def test_gradients_do_not_depend_on_the_cut(name: str) -> None:
    core = build(name, num_layers=2, dtype=torch.float64)
    arguments = (*inputs_and_state(core), typical_episode_starts())
    whole = gradients(core, *arguments, [])
    for one, other in zip(gradients(core, *arguments, [1, 4, 5]), whole, strict=True):
        assert_close(one, other)


@every_core
def test_every_parameter_learns(name: str) -> None:
    core = build(name, num_layers=2)
    learned = gradients(core, *inputs_and_state(core), typical_episode_starts(), [])[2:]
    for (parameter, _), gradient in zip(core.named_parameters(), learned, strict=True):
        assert gradient.abs().max() > 1e-6, f"{parameter} has no gradient"


@every_core
def test_no_gradient_crosses_a_start(name: str) -> None:
    core = build(name, num_layers=2)
    x, state = (tensor.requires_grad_() for tensor in inputs_and_state(core))
    episode_starts = torch.zeros(7, 3, dtype=torch.bool)
    episode_starts[3, 0] = True
    outputs, _ = core(x, state, episode_starts)
    in_x, in_state = torch.autograd.grad(
        outputs[3:].sum(), (x, state), allow_unused=True, materialize_grads=True
    )
    assert not in_x[:3, 0].any()
    assert not in_state[0].any()
    if name not in FORGETFUL:
        assert in_x[:3, 1].any()
        assert in_state[1].any()


@gated_cores
@pytest.mark.parametrize("scale", [40.0, 1e4])
def test_no_overflow_on_large_inputs(name: str, scale: float) -> None:
    core = make_core(name, 3, 6, num_layers=2, generator=seeded(0), **small(name))
    x = torch.randn(7, 3, 3, generator=seeded(1)).sign() * scale
    outputs, final = core(x)
    assert outputs.isfinite().all()
    assert final.isfinite().all()
    for gradient in gradients(core, x, core.initial_state(3), typical_episode_starts(), []):
        assert gradient.isfinite().all()


@every_family
def test_a_second_derivative_is_right_or_an_error(name: str) -> None:
    """Also where nothing but the input is asked for, which torch.autograd.grad does."""
    core = build(name)
    x = inputs_and_state(core)[0]
    v = torch.randn(x.shape, generator=seeded(3))

    def second() -> Tensor:
        product = torch.autograd.functional.hvp(lambda x: core(x)[0].square().sum(), x, v)[1]
        assert isinstance(product, Tensor)
        return product

    try:
        found = second()
    except RuntimeError as error:
        if "not twice differentiable" not in str(error):
            raise
    else:
        core.backend = "plain"
        assert_close(found, second())
