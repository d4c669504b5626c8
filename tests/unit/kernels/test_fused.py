"""Fused cells on the CPU: what belongs to a single cell, and learned states."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.equivalence import (
    check_against_loop,
    random_sequence,
    run_with_gradients,
    seeded_core,
)
from support.layers import FUSED_OPTIONS, SOME_FUSED, general_core
from torch import Tensor, nn

from rlgates.kernels.cpu import abi, fused

pytestmark = pytest.mark.skipif(
    not abi.built(), reason="rlgates.kernels.cpu._native was not built (it needs a C++ compiler)"
)


def test_wide_inputs_are_projected_in_smaller_slabs() -> None:
    core = seeded_core("gato", 3000, depth=1)
    check_against_loop(core, *random_sequence(core, 20, 6))


@pytest.mark.parametrize(("name", "options"), SOME_FUSED, ids=lambda v: str(v))
def test_learned_states_have_gradients(name: str, options: dict[str, Any]) -> None:
    core = general_core(name, 18, learned_state=True, **options)
    x, state, episode_starts = random_sequence(core, 7, 5)
    assert episode_starts.any()
    check_against_loop(core, x, state, episode_starts)
    core.backend = "native"
    results = run_with_gradients(core, x, state, episode_starts)
    assert all(results[key].any() for key in results if "learned" in key)


@pytest.mark.parametrize("relu_layers", [1, 2])
def test_rru_dropout_matches_its_mask(relu_layers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    core = general_core("rru", 18, dropout=0.3, relu_layers=relu_layers)
    x, state, episode_starts = random_sequence(core, 7, 5)
    torch.manual_seed(5)
    noise = torch.rand(5, 7, core.cells[0].inner_size).double()
    left = iter(noise)

    def drop(j: Tensor, probability: float, training: bool) -> Tensor:
        assert training
        return torch.where(next(left) < probability, 0, j / (1 - probability))

    monkeypatch.setattr(nn.functional, "dropout", drop)
    torch.manual_seed(5)
    check_against_loop(core, x, state, episode_starts)
    core.eval()
    monkeypatch.undo()
    check_against_loop(core, x, state, episode_starts)


@pytest.mark.parametrize("far", [10.0, 7999.0, 1e6])
def test_gato_is_accurate_for_large_phases(far: float) -> None:
    core = seeded_core("gato", 40)
    x, state, _ = random_sequence(core, 9, 3)
    state[:, 20:] = torch.linspace(-far, far, 9 * 20).view(9, 20)
    check_against_loop(core, x, state, None, 2e-6 + 1e-7 * far)


@pytest.mark.parametrize("size", [40.0, 200.0])
def test_gato_softplus_is_linear_far_above_zero(size: float) -> None:
    """softplus is linear far above 0, and 0 far below."""
    core = seeded_core("gato", 40)
    with torch.no_grad():
        core.cells[0].bias[2] = torch.linspace(-size, size, 20)
    check_against_loop(core, *random_sequence(core, 3, 4), 2e-5 * size)


def test_zoneout_runs_the_loop() -> None:
    core = seeded_core("mogrifier", 4, zoneout_cell=0.1)
    core(torch.ones(2, 3, 5))
    assert core.backend_used == "plain"


def test_weights_of_the_wrong_size_are_refused() -> None:
    core = seeded_core("gato", 4, backend="native")
    core.cells[0].recurrent = nn.Parameter(torch.ones(3, 1))
    with pytest.raises(ValueError, match=r"must be float32 of shape \(3, 2\), got"):
        core(torch.ones(2, 3, 5))


def test_every_cell_is_tested() -> None:
    assert set(fused.CELLS) == set(FUSED_OPTIONS)
