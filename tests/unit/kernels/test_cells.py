"""Native code: what belongs to single cells, learned states, noise, and the table it runs."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from support.equivalence import (
    check_against_loop,
    random_sequence,
    run_with_gradients,
    seeded_core,
)
from support.layers import CHUNKED, FUSED_OPTIONS, LAYERS, SOME_FUSED, general_core, in_kernels
from support.native import needs_native
from torch import Tensor, nn

from rlgates.gates import ACTIVATIONS, AUXILIARIES
from rlgates.kernels import layout
from rlgates.registry import core_names

pytestmark = needs_native


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


NOISY: list[tuple[str, dict[str, Any]]] = [
    ("lstm", {"zoneout_cell": 0.5, "zoneout_hidden": 0.1, "recurrent_dropout": 0.25}),
    ("ur_lstm", {"zoneout_cell": 0.3}),
    ("om_lstm", {"zoneout_hidden": 0.7}),
    ("gru", {"zoneout_hidden": 0.3, "recurrent_dropout": 0.3}),
    ("or_gru", {"zoneout_hidden": 0.3, "reset": "before"}),
    ("mogrifier", {"zoneout_cell": 0.5, "zoneout_hidden": 0.1, "recurrent_dropout": 0.25}),
]


@pytest.mark.parametrize("learned_state", [False, True])
@pytest.mark.parametrize(("name", "options"), NOISY, ids=lambda v: str(v))
def test_zoneout_in_evaluation(name: str, options: dict[str, Any], learned_state: bool) -> None:
    core = general_core(name, 18, learned_state=learned_state, **options).eval()
    check_against_loop(core, *random_sequence(core, 7, 5))


@pytest.mark.parametrize(("name", "options"), NOISY, ids=lambda v: str(v))
def test_zoneout_and_recurrent_dropout_match_their_masks(
    name: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    core = general_core(name, 18, **options)
    x, state, episode_starts = random_sequence(core, 7, 5)
    units, drops = 18, "recurrent_dropout" in options
    zones = any("zoneout" in option for option in options)
    torch.manual_seed(5)
    noise = torch.rand(5, 7, units * drops + core.state_size * zones).double()
    widths = [units * drops, *[units] * (noise.shape[2] // units - drops)]
    dropout, *zoneout = noise.split(widths, 2)
    # The loop draws in each step: for dropout, then for h, then for c.
    used = [p for p in (options.get("zoneout_hidden"), options.get("zoneout_cell")) if p]
    parts = zoneout if len(used) > 1 or len(zoneout) < 2 else zoneout["zoneout_cell" in options :]
    of_step = iter([part[t] for t in range(5) for part in parts[: len(used)]])
    of_dropout = iter(dropout if drops else ())

    def drop(u: Tensor, probability: float, training: bool) -> Tensor:
        assert training
        if not probability:
            return u
        return torch.where(next(of_dropout) < probability, 0, u / (1 - probability))

    monkeypatch.setattr(nn.functional, "dropout", drop)
    monkeypatch.setattr(torch, "rand_like", lambda like: next(of_step))
    torch.manual_seed(5)
    check_against_loop(core, x, state, episode_starts)
    assert next(of_step, None) is next(of_dropout, None) is None


def test_weights_of_the_wrong_size_are_refused() -> None:
    core = seeded_core("gato", 4, backend="native")
    core.cells[0].recurrent = nn.Parameter(torch.ones(3, 1))
    with pytest.raises(ValueError, match=r"must be torch.float32 of shape \(3, 2\) on cpu, got"):
        core(torch.ones(2, 3, 5))


def test_native_code_of_another_version_is_left_out() -> None:
    code = (
        "import zlib; right = zlib.crc32; zlib.crc32 = lambda data: right(data) ^ 1\n"
        "from rlgates.kernels.cpu import abi; print(abi.built())"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "False\n"
    assert "was built from another version of rlgates" in run.stderr


def test_every_cell_is_tested() -> None:
    others = ("dnc", "feedforward", "minimal")  # which have tests of their own
    assert set(layout.CELLS) == {*layout.STACKED_CELLS, *FUSED_OPTIONS, *others}


@pytest.mark.parametrize(("name", "options"), CHUNKED, ids=lambda v: str(v))
def test_units_share_master_values(name: str, options: dict[str, Any]) -> None:
    for h, b, t in [(15, 7, 5), (45, 2, 3), (60, 33, 1)]:
        core = seeded_core(name, h, **options)
        check_against_loop(core, *random_sequence(core, b, t))


def test_gates_are_exact_near_and_far() -> None:
    """Without weights a core computes its gates: each value within a few rounding errors."""
    core = seeded_core("lstm", 1, backend="native")
    for parameter in core.parameters():
        torch.nn.init.zeros_(parameter)
    with torch.no_grad():
        core.cells[0].weight_ih[3, 0] = 1.0  # the output gate
        z = torch.linspace(-50, 50, 20001)
        x = torch.zeros(1, len(z), 5)
        x[0, :, 0] = z
        state = torch.tensor([[0.0, 40.0]]).expand(len(z), 2).contiguous()
        core.cells[0].bias_ih[1] = 40.0  # keeps the cell at 40, and tanh of it is 1
        outputs, _ = core(x, state)
    expected = torch.sigmoid(z.double())
    assert ((outputs[0, :, 0] - expected).abs() / expected).max() < 4e-7


def test_the_kernel_runs_what_it_covers() -> None:
    assert set(layout.ACTIVATIONS) <= set(ACTIVATIONS)
    for name, maps in layout.AUXILIARIES.items():
        assert maps == tuple(AUXILIARIES[name].maps)
    cells = "lstm", "gru", "janet"
    names = {n for n, (core, gate) in core_names().items() if core in cells and in_kernels(gate)}
    assert names == {name for name, _ in LAYERS}
