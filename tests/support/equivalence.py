"""Compare two ways to run a core in outputs, final state and gradients.

`check_against_loop` compares a fast path with the plain loop in float64, `run_in_pieces` splits
a sequence. The inputs have episode starts inside.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from rlgates import Core, make_core

# The precision that the contract promises for each dtype: a few rounding errors, since a product of
# other rows may be summed in another order.
TOLERANCE = {torch.float32: 3e-6, torch.float64: 1e-12}


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def count(module: nn.Module) -> int:
    """How many parameters a module has."""
    return sum(parameter.numel() for parameter in module.parameters())


def seeded_core(
    name: str, hidden_size: int, num_layers: int = 1, input_size: int = 5, **options: Any
) -> Core:
    """A core with the initial parameters of seed 1."""
    return make_core(name, input_size, hidden_size, num_layers, generator=seeded(1), **options)


def random_sequence(
    core: Core, batch_size: int, steps: int, share: float = 0.3, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs (T, B, I), a state (B, S) and episode starts (T, B), of which `share` are true."""
    generator = seeded(seed)
    x = torch.randn(steps, batch_size, core.input_size, generator=generator)
    state = torch.randn(batch_size, core.state_size, generator=generator)
    episode_starts = torch.rand(steps, batch_size, generator=generator) < share
    device = next(core.parameters()).device
    x, state, episode_starts = x.to(device), state.to(device), episode_starts.to(device)
    if core.name.endswith("slstm"):  # which divides by its n, a sum of positive numbers
        with torch.no_grad():
            state = core(x[:3])[1]
    return x, state, episode_starts


def random_inputs(core: Core, steps: int = 5, batch_size: int = 3, seed: int = 2) -> Tensor:
    """Random inputs (T, B, I) in the dtype of the core."""
    x = torch.randn(steps, batch_size, core.input_size, generator=seeded(seed))
    return x.to(next(core.parameters()))


def inputs_and_state(
    core: Core, steps: int = 7, batch_size: int = 3, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Inputs (T, B, I), and a state that the core reached from its initial state."""
    x, earlier = (random_inputs(core, n, batch_size, seed + n) for n in (steps, 4))
    with torch.no_grad():
        return x, core(earlier)[1]


def typical_episode_starts(steps: int = 7, batch_size: int = 3) -> Tensor:
    """Starts in the first step, the last and two in a row; one sequence has none."""
    episode_starts = torch.zeros(steps, batch_size, dtype=torch.bool)
    episode_starts[0, 0] = episode_starts[steps - 1, 0] = True
    episode_starts[steps // 2 : steps // 2 + 2, 1] = True
    return episode_starts


def weighted_loss(outputs: Tensor, state: Tensor) -> Tensor:
    """A scalar loss of every output and the final state."""
    weights = torch.arange(outputs.numel(), dtype=outputs.dtype).sin().view_as(outputs)
    weights = weights.to(outputs.device)
    return (outputs * weights).sum() + 0.3 * state.square().sum()


def run_with_gradients(
    core: Core,
    x: Tensor,
    state: Tensor,
    episode_starts: Tensor | None,
    loss: Callable[[Tensor, Tensor], Tensor] = weighted_loss,
    frozen: Collection[str] = (),
) -> dict[str, Tensor]:
    """`outputs`, `final` state, and the gradients of `x`, `state` and the parameters by name.

    Inputs in `frozen` and frozen parameters have no gradient; unused tensors have zero gradients.
    """
    x, state = (
        tensor.detach().requires_grad_(name not in frozen)
        for name, tensor in (("x", x), ("state", state))
    )
    outputs, final = core(x, state, episode_starts)
    results = {"outputs": outputs, "final": final}
    leaves = {"x": x, "state": state, **dict(core.named_parameters())}
    leaves = {name: tensor for name, tensor in leaves.items() if tensor.requires_grad}
    if not leaves:
        return results
    gradients = torch.autograd.grad(
        loss(outputs, final), list(leaves.values()), allow_unused=True, materialize_grads=True
    )
    return {**results, **dict(zip(leaves, gradients, strict=True))}


def relative_error(result: Tensor, expected: Tensor) -> float:
    """The largest error, relative to the largest expected number if that is above 1."""
    if not expected.numel():
        return 0.0
    error = (result - expected).detach().abs().max()
    return float(error / expected.detach().abs().max().clamp(min=1))


def relative_errors(
    results: Mapping[str, Tensor], expected: Mapping[str, Tensor]
) -> dict[str, float]:
    assert set(results) == set(expected)
    return {name: relative_error(results[name], expected[name]) for name in expected}


def plain_reference(core: Core, dtype: torch.dtype | None = torch.float64) -> Core:
    """A copy of the core that runs the plain loop, in `dtype` if there is one."""
    reference = copy.deepcopy(core)
    reference.backend = "plain"
    return reference.to(dtype=dtype)


def exact_results(
    core: Core, x: Tensor, state: Tensor, episode_starts: Tensor | None, **kwargs: Any
) -> dict[str, Tensor]:
    """`run_with_gradients` of the plain loop in float64."""
    double = x.double(), state.double(), episode_starts
    return run_with_gradients(plain_reference(core), *double, **kwargs)


def check_against_loop(
    core: Core,
    x: Tensor,
    state: Tensor,
    episode_starts: Tensor | None,
    tolerance: float = 2e-5,
    backend: str = "native",
) -> None:
    """Run the core on `backend` and compare everything with the plain loop in float64."""
    core.backend = backend
    results = run_with_gradients(core, x, state, episode_starts)
    assert core.backend_used == backend
    assert {result.dtype for result in results.values()} == {x.dtype}
    expected = exact_results(core, x, state, episode_starts)
    for name, error in relative_errors(results, expected).items():
        assert error < tolerance, f"{name}: {error:.1e}"


def check_threads(core: Core, x: Tensor, state: Tensor, episode_starts: Tensor | None) -> None:
    """Outputs do not depend on the number of threads, which the caller restores."""
    values = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        values.append(run_with_gradients(core, x, state, episode_starts))
    for other in values[1:]:
        assert torch.equal(other["outputs"], values[0]["outputs"])
        assert max(relative_errors(other, values[0]).values()) < 1e-5  # threads add up their rows


def rounding_error(core: Core, x: Tensor, state: Tensor, episode_starts: Tensor | None) -> float:
    """The error of the plain loop in float32, large for steep gates and small normalized layers."""
    results = run_with_gradients(plain_reference(core, None), x, state, episode_starts)
    return max(
        relative_errors(results, exact_results(core, x, state, episode_starts)).values(),
        default=0.0,
    )


def run_in_pieces(
    core: Core, x: Tensor, state: Tensor | None, episode_starts: Tensor | None, cuts: list[int]
) -> tuple[Tensor, Tensor]:
    """Run over x cut at `cuts`, passing the state on."""
    outputs, edges = [], [0, *cuts, len(x)]
    for begin, end in pairwise(edges):
        piece = None if episode_starts is None else episode_starts[begin:end]
        output, state = core(x[begin:end], state, piece)
        outputs.append(output)
    assert state is not None
    return torch.cat(outputs), state


def assert_close(result: Tensor, expected: Tensor) -> None:
    """Equal within `TOLERANCE` of the dtype, relative to the largest number."""
    tolerance = TOLERANCE[expected.dtype]
    # Sums may be computed in another order, with the rounding of their largest term.
    scale = max(1.0, expected.detach().abs().max().item()) if expected.numel() else 1.0
    torch.testing.assert_close(result, expected, rtol=tolerance, atol=scale * tolerance)
