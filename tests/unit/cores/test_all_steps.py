"""Cores that compute many steps at once, in blocks or with a window, against their loop."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.equivalence import (
    exact_results,
    random_sequence,
    relative_errors,
    run_with_gradients,
    seeded_core,
)
from support.native import needs_native
from torch import Tensor

from rlgates import Core
from rlgates.kernels import AllSteps, dispatch
from rlgates.registry import CORES

CASES: list[tuple[str, dict[str, Any]]] = [
    ("linear_transformer", {"num_heads": 2}),
    ("mamba2", {"ssm_size": 3, "head_size": 4}),
    ("mlstm", {"num_heads": 2, "key_size": 3}),
    ("fwp", {"key_size": 4, "projections": 7}),
    ("deltanet", {"num_heads": 2}),
    ("rwkv7", {"num_heads": 2}),
    ("transformer", {"window": 5, "num_heads": 2}),
    ("gtrxl", {"window": 70}),
    ("dilated_gru", {"levels": 3}),
    ("dilated_gru", {"levels": 2, "dilation": 70}),
    ("frame_stack", {"window": 3}),
    ("frame_conv", {"window": 5}),
    ("positional", {}),
]
every_case = pytest.mark.parametrize(("name", "options"), CASES, ids=lambda v: str(v))


def make(name: str, options: dict[str, Any], **more: Any) -> Core:
    core = seeded_core(name, 8, 1, 3, **options, **more).double()
    with torch.no_grad():
        for number, parameter in enumerate(core.parameters()):
            generator = torch.Generator().manual_seed(number)
            parameter += 0.2 * torch.randn(parameter.shape, generator=generator)
    return core


def sequence(core: Core, steps: int, share: float) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs, a state that the core reached, and episode starts."""
    generator = torch.Generator().manual_seed(steps)
    x = torch.randn(steps + 4, 3, 3, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        state = core(x[:4])[1]
    return x[4:], state, torch.rand(steps, 3, generator=generator) < share


def both(core: Core, *arguments: Tensor) -> list[dict[str, Tensor]]:
    results = []
    for backend in ("auto", "plain"):
        core.backend = backend
        results.append(run_with_gradients(core, *arguments))
        assert core.backend_used == ("scan" if backend == "auto" else "plain")
    return results


def test_every_such_core_is_here() -> None:
    made = {name: seeded_core(name, 8, 1, 3).cells[0].recurrence() for name in CORES}
    assert {name for name, spec in made.items() if isinstance(spec, AllSteps)} == dict(CASES).keys()


@every_case
@pytest.mark.parametrize("learned_state", [False, True])
@pytest.mark.parametrize(("steps", "share"), [(150, 0.03), (64, 0.0), (65, 0.3), (2, 0.5)])
def test_equals_the_loop(
    name: str, options: dict[str, Any], learned_state: bool, steps: int, share: float
) -> None:
    core = make(name, options, learned_state=learned_state)
    one, other = both(core, *sequence(core, steps, share))
    for key, expected in other.items():
        size = 1 + expected.abs().max()
        assert (one[key] - expected).abs().max() < 1e-11 * size, key


@needs_native
def test_one_step_in_the_loop_is_no_news(caplog: pytest.LogCaptureFixture) -> None:
    """No native code is missed, so that nobody is told to look for it."""
    dispatch._log_once.cache_clear()
    for name, options in CASES:
        core = seeded_core(name, 8, 1, 3, **options)
        core(torch.zeros(1, 2, 3))
        has_native = core.cells[0].recurrence().native is not None
        assert core.backend_used == ("native" if has_native else "plain")
    assert not caplog.messages


@every_case
def test_nothing_of_another_episode_counts(name: str, options: dict[str, Any]) -> None:
    """Numbers that are not finite before an episode starts do not reach it, nor the other rows."""
    core = make(name, options)
    x, state, _ = sequence(core, 100, 0.0)
    episode_starts = torch.zeros(100, 3, dtype=torch.bool)
    episode_starts[0, 1] = episode_starts[80, 0] = True
    expected, expected_final = core(x, state, episode_starts)
    x, state = x.clone(), state.clone()
    x[70:80, 0] = torch.nan
    state[1] = torch.nan
    outputs, final = core(x, state, episode_starts)
    assert outputs[79, 0].isnan().all()
    assert torch.equal(outputs[:, 1:], expected[:, 1:])
    torch.testing.assert_close(outputs[80:, 0], expected[80:, 0], rtol=0, atol=1e-14)
    torch.testing.assert_close(final, expected_final, rtol=0, atol=1e-14)


@every_case
@pytest.mark.parametrize("steps", [1, 40])
def test_gradients_are_finite_where_the_state_is_not_read(
    name: str, options: dict[str, Any], steps: int
) -> None:
    core = make(name, options, backend="scan")
    x, state, episode_starts = sequence(core, steps, 0.0)
    episode_starts[0, 1] = True
    expected = run_with_gradients(core, x, state, episode_starts)
    state[1] = torch.nan
    for key, result in run_with_gradients(core, x, state, episode_starts).items():
        assert torch.equal(result, expected[key]), key


@pytest.mark.parametrize(
    ("name", "weight"), [("mamba2", "W_t"), ("deltanet", "W_a"), ("mlstm", "W_f")]
)
@pytest.mark.parametrize("scale", [30, 300])
def test_steps_that_forget_strongly_cost_no_digits(name: str, weight: str, scale: float) -> None:
    core = seeded_core(name, 16)
    core.gate_weights()[weight].mul_(scale)
    sequence = random_sequence(core, 3, 130, share=0.03)
    expected = exact_results(core, *sequence)
    errors = {}
    for backend in ("plain", "scan"):
        core.backend = backend
        results = run_with_gradients(core, *sequence)
        errors[backend] = relative_errors(results, expected)
    for key, error in errors["scan"].items():
        assert error < 1e-6 + 5 * errors["plain"][key], key


@pytest.mark.parametrize("backend", ["auto", "plain", "scan"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_of_an_mlstm_are_finite_where_its_gates_are_closed(
    backend: Any, dtype: torch.dtype
) -> None:
    core = seeded_core("mlstm", 8, 1, 3, backend=backend, dtype=dtype)
    for name in ("b_i", "b_f"):
        core.gate_weights()[name].fill_(-1000)
    x = torch.ones(3, 2, 3, dtype=dtype)
    results = run_with_gradients(core, x, core.initial_state(2), None)
    assert all(result.isfinite().all() for result in results.values())
    assert results["outputs"].abs().max() < 1e-30
