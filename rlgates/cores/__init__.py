"""The cores: the CORES table, and `make_core` and `list_cores`, which read it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from rlgates.core import Cell, Core
from rlgates.cores.feedforward import FeedForward
from rlgates.cores.lstm import LSTM
from rlgates.errors import check_size, unknown
from rlgates.gates import GATES, Gate

__all__ = [
    "CORES",
    "LSTM",
    "FeedForward",
    "check_options",
    "core_names",
    "core_options",
    "list_cores",
    "make_core",
]


class CoreRow(NamedTuple):
    """One core: its cell, whether it takes the gates of the table, and a line for people."""

    cell: type[Cell]
    gated: bool
    title: str
    source: str


CORES: dict[str, CoreRow] = {
    "lstm": CoreRow(LSTM, True, "LSTM", "Hochreiter and Schmidhuber 1997"),
    "none": CoreRow(FeedForward, False, "no memory (the floor)", ""),
}


def core_names() -> dict[str, tuple[str, str]]:
    """Every name `make_core` takes, with its row of CORES and its row of GATES."""
    return {
        f"{gate}_{core}" if gate else core: (core, gate)
        for core, row in CORES.items()
        for gate in (GATES if row.gated else ("",))
    }


def list_cores() -> list[str]:
    """The names that `make_core` takes: `<gate>_<core>`, or `<core>` for the plain gate."""
    return list(core_names())


def core_options(name: str) -> tuple[str, ...]:
    """The options of a core: those of its gate, then its own.

    Raises:
        ValueError: an unknown name (the nearest is named).
    """
    names = core_names()
    if name not in names:
        raise unknown("core", name, names)
    core, gate = names[name]
    row = CORES[core]
    return (*(GATES[gate].options if row.gated else ()), *row.cell.options)


def check_options(name: str, options: Mapping[str, Any]) -> None:
    """A ValueError that names the nearest option, if the core has none of that name."""
    allowed = core_options(name)
    for option in options:
        if option not in allowed:
            raise unknown(f"option for core {name!r}", option, allowed)


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
    **options: Any,
) -> Core:
    """Build a memory core by name.

    Args:
        name: one of `list_cores()`, such as "ur_lstm": gate "ur" in core "lstm".
        input_size: width of the input.
        hidden_size: number of units of a layer.
        num_layers: layers stacked on each other.
        device, dtype: where and as what the parameters are made, float32 or float64; lower
            precision comes from `torch.autocast`.
        generator: source of the starting parameters, a generator on the CPU; torch's global
            one by default, which is left alone if one is given.
        backend: what runs it, one of `rlgates.kernels.BACKENDS`: see `Core`.
        options: options of the gate (`rlgates.gates.Gate` explains forget_bias, t_max, tied,
            refine_bias and chunk_size) and of the core (`rlgates.cores.LSTM`: input_scale,
            which acts on the first layer alone); `core_options(name)` lists them.

    Raises:
        ValueError: an unknown name or option (the nearest is named), a size below 1, a dtype
            that is not allowed.
        TypeError: a size that is not an integer.
    """
    check_options(name, options)
    core, gate = core_names()[name]
    row = CORES[core]
    gate_options = GATES[gate].options if row.gated else ()
    input_size = check_size("input_size", input_size)
    hidden_size = check_size("hidden_size", hidden_size)
    if dtype not in (None, torch.float32, torch.float64):
        raise ValueError(f"dtype must be torch.float32 or torch.float64, got {dtype}.")
    cells: list[Cell] = []
    for layer in range(check_size("num_layers", num_layers)):
        kwargs = {key: value for key, value in options.items() if key not in gate_options}
        if layer:
            kwargs.pop("input_scale", None)
        if row.gated:
            gated = {key: value for key, value in options.items() if key in gate_options}
            kwargs["gate"] = Gate(gate, hidden_size, **gated)
        width = cells[-1].output_size if cells else input_size
        # A cell draws from the global generator while it is built.
        with torch.random.fork_rng(devices=[], enabled=generator is not None):
            cell = row.cell(width, hidden_size, **kwargs)
        if generator is not None:
            cell.reset_parameters(generator)
        cells.append(cell)
    return Core(cells, name, backend).to(device=device, dtype=dtype)
