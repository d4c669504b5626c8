"""The cores under test and what they are run on."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from rlgates import Core, list_cores, make_core
from rlgates.cores import CORES, core_names

INPUTS, HIDDEN = 3, 6
TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-12}

# Options that make the cores with a memory small enough to be tested all day.
SMALL: dict[str, dict[str, Any]] = {
    "rmc": {"mem_slots": 2, "num_heads": 2},
    "dnc": {"num_slots": 4, "word_size": 3, "num_reads": 2},
    "rma": {"latent_size": 4, "num_slots": 5, "num_heads": 2, "top_k": 4},
    "nru": {"memory_size": 3, "num_heads": 3},
    "rru": {"output_size": 4},
    "gato": {"depth": 2, "inner_size": 2},
}
# A memory does not ask which gate its controller has: most of them are tested as slow.
HEAVY = ("rmc", "dnc", "rma")
LIGHT_GATES = ("", "ur", "om")
# Their definition stops a gradient, which finite differences see through; their twins stop it too.
STOPPED = ("dnc", "rma")
# A cell of several gated layers numbers their weights.
NUMBERED = {"rma": ("_1", "_2")}
# Biases beside those of the gate that do not start at zero.
DRAWN = {"dnc": ("b_u", "b_o"), "rma": ("b_u_1", "b_o_1", "b_u_2", "b_o_2")}

FAMILY_OF = {name: core for name, (core, _) in core_names().items()}
GATE_OF = {name: gate for name, (core, gate) in core_names().items() if CORES[core].gates}
# A few names of each family: the plain gate, uniform refine, ordered master, and those without.
LIGHT = [n for n in FAMILY_OF if GATE_OF.get(n, "") in LIGHT_GATES or n in CORES]


def names(of: Iterable[str]) -> list[Any]:
    """Names of cores as parameters of a test, the heavier of them marked as slow."""
    of = list(of)  # which is gone through twice
    heavy = {n for n in of if FAMILY_OF[n] in HEAVY and GATE_OF[n] not in LIGHT_GATES}
    return [pytest.param(n, marks=[pytest.mark.slow] if n in heavy else []) for n in of]


def small(name: str) -> dict[str, Any]:
    """The options with which a core is tested."""
    return SMALL.get(FAMILY_OF[name], {})


every_core = pytest.mark.parametrize("name", names(list_cores()))
every_family = pytest.mark.parametrize("name", CORES)
gated_cores = pytest.mark.parametrize("name", names(GATE_OF))
every_way = pytest.mark.parametrize(
    "way",
    [
        {"dtype": torch.float64, "backend": "plain"},
        {"dtype": torch.float32, "backend": "plain"},
        {"dtype": torch.float32, "backend": "auto"},
    ],
    ids=lambda way: "-".join([str(way["dtype"])[6:], way["backend"]]),
)
both_dtypes = pytest.mark.parametrize("dtype", TOLERANCE, ids=["float32", "float64"])


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def build(
    name: str, num_layers: int = 1, hidden_size: int = HIDDEN, seed: int = 0, **options: Any
) -> Core:
    """A core in general position: what starts at zero is moved away from it."""
    generator = seeded(seed)
    options = small(name) | options
    core = make_core(name, INPUTS, hidden_size, num_layers, generator=generator, **options)
    with torch.no_grad():
        for parameter in core.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
    return core.eval()


def inputs(core: Core, steps: int = 7, batch: int = 3, seed: int = 0) -> tuple[Tensor, Tensor]:
    """An input, and a state that the core has come to by itself."""
    like = next(core.parameters())
    x, before = (
        torch.randn(n, batch, core.input_size, generator=seeded(seed + n)).to(like)
        for n in (steps, 4)
    )
    with torch.no_grad():
        return x, core(before)[1]


def some_starts(steps: int = 7, batch: int = 3) -> Tensor:
    """Starts in the first step, in the last, twice in a row, and a row without any."""
    starts = torch.zeros(steps, batch, dtype=torch.bool)
    starts[0, 0] = starts[steps - 1, 0] = True
    starts[steps // 2 : steps // 2 + 2, 1] = True
    return starts


def in_pieces(
    core: Core, x: Tensor, state: Tensor | None, starts: Tensor | None, cuts: list[int]
) -> tuple[Tensor, Tensor]:
    """Run over x cut at `cuts`, handing the state on."""
    outputs, edges = [], [0, *cuts, len(x)]
    for begin, end in pairwise(edges):
        piece = None if starts is None else starts[begin:end]
        output, state = core(x[begin:end], state, piece)
        outputs.append(output)
    assert state is not None
    return torch.cat(outputs), state


def close(given: Tensor, expected: Tensor) -> None:
    """Equal to what the contract promises for the dtype, beside the largest of the numbers."""
    tolerance = TOLERANCE[expected.dtype]
    # A sum is rounded as its largest part is, and may be made in another order.
    scale = max(1.0, expected.detach().abs().max().item()) if expected.numel() else 1.0
    torch.testing.assert_close(given, expected, rtol=tolerance, atol=scale * tolerance)
