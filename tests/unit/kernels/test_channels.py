"""Native code for channels with a linear system each, and for the short convolution before them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.equivalence import (
    check_against_loop,
    random_sequence,
    run_in_pieces,
    run_with_gradients,
    seeded,
    seeded_core,
)
from support.native import needs_native
from torch import Tensor

from rlgates import Core
from rlgates.kernels import AllSteps, Channels, channels, ops
from rlgates.kernels.cpu import channels as cpu_channels
from rlgates.kernels.cpu import conv
from rlgates.kernels.layout import CHUNK

pytestmark = needs_native

# Sizes below, at and above whole vectors of 4, 8 and 16 numbers, alone and in pairs.
SIZES: list[tuple[str, dict[str, Any]]] = [
    ("s4d", {"ssm_size": 2}),
    ("s4d", {"ssm_size": 34}),
    ("s4d", {"ssm_size": 64}),
    ("s4d", {"ssm_size": 70}),
    ("mamba", {"ssm_size": 1, "conv_size": 2}),
    ("mamba", {"ssm_size": 16}),
    ("mamba2", {"ssm_size": 21, "conv_size": 2, "head_size": 6}),
    ("mamba2", {"ssm_size": 1, "conv_size": 3}),
    ("mamba", {"ssm_size": 21, "conv_size": 6, "expand": 1}),
]
KINDS = [SIZES[1], SIZES[-3], SIZES[-1]]
every_size = pytest.mark.parametrize(("name", "options"), SIZES, ids=str)
each_kind = pytest.mark.parametrize(("name", "options"), KINDS, ids=str)
LONG = 2 * CHUNK + 5
# In float32 the plain loop of S4D is as far from that in float64: many turns a step are rounded.
TOLERANCES = {"s4d": 2e-4, "mamba": 2e-5, "mamba2": 2e-5}


@every_size
@pytest.mark.parametrize("learned_state", [False, True])
def test_equals_the_loop(name: str, options: dict[str, Any], learned_state: bool) -> None:
    """Also across chunks of steps, and with more rows than groups of them."""
    core = seeded_core(name, 9, learned_state=learned_state, **options)
    for rows, steps, share in [(3, LONG, 0.05), (18, 2, 0.5), (1, CHUNK + 1, 0.3), (2, CHUNK, 0.0)]:
        check_against_loop(core, *random_sequence(core, rows, steps, share), TOLERANCES[name])


@each_kind
@pytest.mark.usefixtures("instructions")
def test_equals_the_loop_with_every_instruction_set(name: str, options: dict[str, Any]) -> None:
    core = seeded_core(name, 9, **options)
    check_against_loop(core, *random_sequence(core, 3, LONG, 0.1), TOLERANCES[name])


@each_kind
def test_pieces_give_the_same(name: str, options: dict[str, Any]) -> None:
    core = seeded_core(name, 9, **options)
    sequence = random_sequence(core, 3, LONG, 0.1)
    pieces = run_in_pieces(core, *sequence, [1, 3, CHUNK + 2])
    for one, other in zip(core(*sequence), pieces, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@each_kind
def test_nan_before_an_episode_start_has_no_effect(name: str, options: dict[str, Any]) -> None:
    core = seeded_core(name, 9, learned_state=True, **options)
    x, state, starts = random_sequence(core, 3, LONG, 0.0)
    starts[CHUNK + 2] = True
    clean = run_with_gradients(core, x, state, starts)
    state[1] = x[CHUNK, 1] = torch.nan
    result = run_with_gradients(core, x, state, starts)
    assert result["outputs"][: CHUNK + 2, 1].isnan().all()
    assert torch.equal(result["outputs"][CHUNK + 2 :], clean["outputs"][CHUNK + 2 :])
    assert torch.equal(result["final"], clean["final"])
    assert torch.equal(result["x"][CHUNK + 2 :], clean["x"][CHUNK + 2 :])
    others = [0, 2]
    assert torch.equal(result["x"][:, others], clean["x"][:, others])


def arguments(core: Core, rows: int = 3, steps: int = 5) -> list[Tensor | None]:
    """Of `channels.run` in a core, with gradients."""
    cell: Any = core.cells[0]
    generator = seeded(3)
    x = torch.randn(steps, rows, core.input_size, generator=generator)
    spec = cell.recurrence()
    scan = spec.native if isinstance(spec, AllSteps) else spec
    with torch.no_grad():
        systems, _ = scan.channels(x, torch.zeros(rows, scan.window), None)
    width = core.state_size - scan.window
    state = torch.randn(rows, width, generator=generator)
    given = [*systems, state, state.flip(0)]
    starts = torch.rand(steps, rows, generator=generator) < 0.3
    leaves = [None if t is None else t.detach().clone().requires_grad_() for t in given]
    return [*leaves, starts]


@each_kind
@pytest.mark.usefixtures("threads")
def test_results_do_not_depend_on_threads(name: str, options: dict[str, Any]) -> None:
    given = arguments(seeded_core(name, 36, **options), rows=5, steps=LONG)
    *systems, h_0, initial, starts = given
    leaves = [tensor for tensor in given[:-1] if tensor is not None]
    values = []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        outputs, last = channels.run(Channels(*systems), h_0, initial, starts, cpu_channels)  # type: ignore[arg-type]
        loss = outputs.square().sum() + last.square().sum()
        values.append([outputs, last, *torch.autograd.grad(loss, leaves)])
    for other in values[1:]:
        assert all(map(torch.equal, other, values[0]))


@each_kind
def test_operator(name: str, options: dict[str, Any]) -> None:
    torch.library.opcheck(
        ops._channels, (*arguments(seeded_core(name, 9, **options)), True), raise_exception=True
    )


def test_a_convolution_that_does_not_fit_is_refused() -> None:
    given = [torch.zeros(4, 2, 3), torch.zeros(2, 2, 3), torch.zeros(3, 3), torch.zeros(3)]
    conv.run(*given, None)
    for place in range(1, 4):
        wrong = [*given[:place], given[place][..., :-1], *given[place + 1 :]]
        with pytest.raises(ValueError, match=r"must be torch\.\w+ of shape \("):
            conv.run(*wrong, None)
