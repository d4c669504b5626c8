"""The cores: the CORES table, and `make_core` and `list_cores`, which read it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from rlgates.cell import Cell
from rlgates.core import Core
from rlgates.cores.dnc import DNC
from rlgates.cores.feedforward import FeedForward
from rlgates.cores.gato import GATO
from rlgates.cores.gru import GRU
from rlgates.cores.janet import JANET
from rlgates.cores.lru import LRU
from rlgates.cores.lstm import LSTM
from rlgates.cores.minimal import GILR, MinGRU, MinLSTM
from rlgates.cores.mogrifier import MogrifierLSTM
from rlgates.cores.nru import NRU
from rlgates.cores.rma import RMA
from rlgates.cores.rmc import RMC
from rlgates.cores.rru import RRU
from rlgates.cores.table import ALIASES, COMMON_OPTIONS, CORES, CoreRow
from rlgates.errors import check_flag, check_size, did_you_mean, unknown
from rlgates.gates import GATES, Gate

__all__ = [
    "ALIASES",
    "COMMON_OPTIONS",
    "CORES",
    "DNC",
    "GATO",
    "GILR",
    "GRU",
    "JANET",
    "LRU",
    "LSTM",
    "NRU",
    "RMA",
    "RMC",
    "RRU",
    "FeedForward",
    "MinGRU",
    "MinLSTM",
    "MogrifierLSTM",
    "check_options",
    "core_names",
    "core_options",
    "list_cores",
    "make_core",
]


def core_names() -> dict[str, tuple[str, str]]:
    """Every name of `list_cores`, with its row of CORES and its row of GATES."""
    return {
        core if gate == row.plain else f"{gate}_{core}": (core, gate)
        for core, row in CORES.items()
        for gate in row.gates or (row.plain,)
    }


def list_cores() -> list[str]:
    """The names that `make_core` takes: `<gate>_<core>`, or `<core>` for the plain gate.

    It takes those of `rlgates.cores.ALIASES` too.
    """
    return list(core_names())


def core_options(name: str) -> tuple[str, ...]:
    """The options of a core: those of its gate, then its own, then those that all have.

    Raises:
        ValueError: an unknown name (the nearest are named).
    """
    row, gate = _rows(name)
    gated = [option for option in GATES[gate].options if option not in row.fixed]
    return (*(gated if row.gates else ()), *row.cell.options, *COMMON_OPTIONS)


def _rows(name: str) -> tuple[CoreRow, str]:
    """The row of CORES and the name of the gate that a name or alias stands for."""
    names = core_names()
    if ALIASES.get(name, name) not in names:
        prefixes = ", ".join(f"{gate}_" for gate in GATES if gate)
        raise ValueError(
            f"unknown core {name!r}.{did_you_mean(name, (*names, *ALIASES), most=3)} "
            f"Cores: {', '.join(CORES)}. Gates to put before most of them: {prefixes}. "
            "rlgates.list_cores() gives all names."
        )
    core, gate = names[ALIASES.get(name, name)]
    return CORES[core], gate


def check_options(name: str, options: Mapping[str, Any]) -> None:
    """A ValueError if the core has no option of that name.

    It names the gates (by their prefixes) and cores that have one, or else the nearest option.
    """
    allowed = core_options(name)
    for option in options:
        # What is fixed is left to the core, which says why.
        if option not in (*allowed, *_rows(name)[0].fixed):
            gates = [gate for gate, row in GATES.items() if option in row.options]
            cores = [core for core, row in CORES.items() if option in row.cell.options]
            owners = [*(f"{gate}_" if gate else "the plain gate" for gate in gates), *cores]
            raise unknown(f"option for core {name!r}", option, allowed, owners)


def make_core(
    name: str,
    input_size: int,
    hidden_size: int,
    num_layers: int = 1,
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    generator: torch.Generator | None = None,
    backend: str = "auto",
    skip_connections: bool = False,
    learned_state: bool = False,
    debug: bool = False,
    **options: Any,
) -> Core:
    """Build a memory core by name.

    Args:
        name: one of `list_cores()`, such as "ur_lstm": gate "ur" in core "lstm".
        input_size: width of the input.
        hidden_size: number of units of a layer; the class of the core says what it counts.
        num_layers: layers stacked on each other.
        device, dtype: where and as what the parameters are made, float32 or float64; lower
            precision comes from `torch.autocast`.
        generator: source of the starting parameters, a generator on the CPU; torch's global
            one by default, which is left alone if one is given.
        backend: what runs it, one of `rlgates.kernels.BACKENDS`: see `Core`.
        skip_connections: every layer also reads the input, and the output is that of all
            layers: see `Core`.
        learned_state: the initial state is learned: see `Core`.
        debug: check that all numbers are finite: see `Core`.
        options: options of the gate (`rlgates.gates.Gate` explains them) and of the core (its
            class in `rlgates.cores` does); `core_options(name)` lists them.

    Raises:
        ValueError: an unknown name or option (the nearest are named), a size below 1, a dtype
            that is not allowed.
        TypeError: a size that is not an integer.
    """
    check_options(name, options)
    row, gate = _rows(name)
    input_size = check_size("input_size", input_size)
    hidden_size = check_size("hidden_size", hidden_size)
    if dtype not in (None, torch.float32, torch.float64):
        raise ValueError(f"dtype must be torch.float32 or torch.float64, got {dtype}.")
    skip_connections = check_flag("skip_connections", skip_connections)
    kwargs: dict[str, Any] = {key: options[key] for key in options if key in row.cell.options}
    if row.gates:
        gated = {key: options[key] for key in options if key not in row.cell.options}
        if row.tied and GATES[gate].auxiliary == "untied":
            gated.setdefault("tied", True)
    cells: list[Cell] = []
    for layer in range(check_size("num_layers", num_layers)):
        if layer:
            kwargs = {k: v for k, v in kwargs.items() if k not in row.cell.first_layer_options}
        if row.gates:
            kwargs["gate"] = Gate(gate, hidden_size, **gated)
        width = cells[-1].output_size + input_size * skip_connections if cells else input_size
        # A cell draws from the global generator while it is built.
        with torch.random.fork_rng(devices=[], enabled=generator is not None):
            cell = row.cell(width, hidden_size, **kwargs)
        if generator is not None:
            cell.reset_parameters(generator)
        cells.append(cell)
    core = Core(
        cells,
        ALIASES.get(name, name),
        backend,
        skip_connections=skip_connections,
        learned_state=learned_state,
        debug=debug,
    )
    return core.to(device=device, dtype=dtype)
