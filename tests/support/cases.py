"""The cores under test."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from support.equivalence import TOLERANCE, seeded

from rlgates import Core, list_cores, make_core
from rlgates.registry import CORES, core_names

INPUTS, HIDDEN = 3, 6

# Options that make cores with a memory small and fast.
SMALL: dict[str, dict[str, Any]] = {
    "rmc": {"mem_slots": 2, "num_heads": 2},
    "dnc": {"num_slots": 4, "word_size": 3, "num_reads": 2},
    "rma": {"latent_size": 4, "num_slots": 5, "num_heads": 2, "top_k": 4},
    "nru": {"memory_size": 3, "num_heads": 3},
    "dilated_gru": {"levels": 2},
    "rru": {"output_size": 4},
    "gato": {"depth": 2, "inner_size": 2},
    "lmu": {"memory_size": 4, "theta": 8.0},
    "cornn": {"dt": 0.3},
    "slstm": {"num_heads": 2},
    "mlstm": {"num_heads": 2},
    "transformer": {"window": 4, "num_heads": 2},
    "fwp": {"key_size": 4, "projections": 7},
    "deltanet": {"num_heads": 2},
    "rwkv7": {"num_heads": 2, "rank": 2},
    "gtrxl": {"window": 4, "num_heads": 2},
    "ffm": {"memory_size": 3, "context_size": 2},
    "s4d": {"ssm_size": 4},
    "linear_transformer": {"key_size": 2},
    "shm": {"memory_size": 4, "num_rows": 2},
    "mamba": {"ssm_size": 2, "conv_size": 3},
    "mamba2": {"ssm_size": 2, "conv_size": 3, "head_size": 2},
}
# A memory does not depend on the gate of its controller, and dilated levels are GRUs: most of the
# gates are slow tests.
HEAVY = ("rmc", "dnc", "rma", "dilated_gru")
LIGHT_GATES = ("", "ur", "om")
# Cores and twins that stop a gradient, which finite differences do not.
STOPPED = ("dnc", "rma")
# Cores that keep nothing of their inputs.
FORGETFUL = ("none", "positional")
# A cell of several gated layers numbers their weights.
NUMBERED = {"rma": ("_1", "_2"), "dilated_gru": ("_1", "_2")}
# Biases besides those of the gate that are not initialized to zero.
RANDOM_BIASES = {"dnc": ("b_u", "b_o"), "rma": ("b_u_1", "b_o_1", "b_u_2", "b_o_2")}

FAMILY_OF = {name: core for name, (core, _) in core_names().items()}
GATE_OF = {name: gate for name, (core, gate) in core_names().items() if CORES[core].gates}
# A few names of each family: the plain gate, uniform refine, ordered master, and those without.
LIGHT = [n for n in FAMILY_OF if GATE_OF.get(n, "") in LIGHT_GATES or n in CORES]


def names(of: Iterable[str]) -> list[Any]:
    """Names of cores as parameters of a test; the heavy ones are marked as slow."""
    of = list(of)
    heavy = {n for n in of if FAMILY_OF[n] in HEAVY and GATE_OF[n] not in LIGHT_GATES}
    return [pytest.param(n, marks=[pytest.mark.slow] if n in heavy else []) for n in of]


def small(name: str) -> dict[str, Any]:
    """The options with which a core is tested."""
    return SMALL.get(FAMILY_OF[name], {})


every_core = pytest.mark.parametrize("name", names(list_cores()))
every_family = pytest.mark.parametrize("name", CORES)
# Each family, and each gate with the LSTM; the other pairs are slow tests.
PARTS = {n for n in FAMILY_OF if n in CORES or FAMILY_OF[n] == "lstm"}
every_family_and_gate = pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[] if n in PARTS else [pytest.mark.slow]) for n in list_cores()],
)
gated_cores = pytest.mark.parametrize("name", names(GATE_OF))
SETTINGS = [
    {"dtype": torch.float64, "backend": "plain"},
    {"dtype": torch.float32, "backend": "plain"},
    {"dtype": torch.float32, "backend": "auto"},
]


def of_settings(settings: list[dict[str, Any]]) -> Any:
    """A test of each of some dtypes and backends."""
    return pytest.mark.parametrize(
        "setting",
        settings,
        ids=lambda setting: "-".join([str(setting["dtype"])[6:], setting["backend"]]),
    )


every_setting = of_settings(SETTINGS)
both_dtypes = pytest.mark.parametrize("dtype", TOLERANCE, ids=["float32", "float64"])


def build(
    name: str, num_layers: int = 1, hidden_size: int = HIDDEN, seed: int = 0, **options: Any
) -> Core:
    """A core in general position: parameters that are initialized to zero are not zero.

    With a `dtype` the same one, converted.
    """
    generator = seeded(seed)
    options = small(name) | options
    dtype = options.pop("dtype", torch.float32)
    core = make_core(name, INPUTS, hidden_size, num_layers, generator=generator, **options)
    with torch.no_grad():
        for parameter in core.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
    return core.to(dtype).eval()


def build_double(name: str, **options: Any) -> Core:
    """`build` in double precision."""
    return build(name, **{"dtype": torch.float64, **options})


def zeroed(core: Core, **values: torch.Tensor | float) -> dict[str, torch.Tensor]:
    """The weights of a core by name, set to `values` and otherwise to zero."""
    weights = core.gate_weights()
    for name, weight in weights.items():
        weight.copy_(torch.as_tensor(values.pop(name, 0), dtype=torch.float64))
    assert not values
    return weights
