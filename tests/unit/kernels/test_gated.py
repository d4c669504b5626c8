"""Native code of gated layers: chunks, the precision of its gates, and the table it runs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.equivalence import check_against_loop, random_sequence, seeded_core
from support.layers import CHUNKED, LAYERS, in_kernels

from rlgates.gates import ACTIVATIONS, AUXILIARIES
from rlgates.kernels.cpu import abi
from rlgates.registry import core_names

pytestmark = pytest.mark.skipif(
    not abi.built(), reason="rlgates.kernels.cpu._native was not built (it needs a C++ compiler)"
)


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
    assert set(abi.ACTIVATIONS) <= set(ACTIVATIONS)
    assert set(abi.AUXILIARIES) <= set(AUXILIARIES)
    cells = "lstm", "gru", "janet"
    names = {n for n, (core, gate) in core_names().items() if core in cells and in_kernels(gate)}
    assert names == {name for name, _ in LAYERS}
