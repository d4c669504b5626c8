"""The CORES table, and what reads it: `make_core`, `list_cores` and the options of a core."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from rlgates.cell import Cell
from rlgates.core import DTYPES, Core
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
from rlgates.errors import check_flag, check_size, suggestion, unknown_choice
from rlgates.gates import GATES, Gate

__all__ = [
    "ALIASES",
    "COMMON_OPTIONS",
    "CORES",
    "CoreRow",
    "check_options",
    "core_names",
    "core_options",
    "list_cores",
    "make_core",
]


class CoreRow(NamedTuple):
    """One core: its cell, the gates it takes, and how tables describe it.

    Attributes:
        cell: the class of its layers.
        title, equation, source: its full name, its update in a line, and its paper.
        gates: the keys of GATES that it takes; empty if its gates are part of its definition.
        tied: whether gates without an auxiliary gate are tied (i = 1 - f) by default.
        plain: the key of GATES that the name without a prefix stands for.
        fixed: gate options that the core sets itself.
    """

    cell: type[Cell]
    title: str
    equation: str
    source: str
    gates: tuple[str, ...] = ()
    tied: bool = False
    plain: str = ""
    fixed: tuple[str, ...] = ()


_ALL_GATES = tuple(GATES)
# JANET's input gate is 1 - its forget gate, shifted by beta: no map for it, and no cumax.
_JANET = ("c", "u", "r", "ur", "f", "uf", "ff", "s")

CORES: dict[str, CoreRow] = {
    "lstm": CoreRow(
        LSTM,
        "LSTM",
        "c' = f c + i tanh(L_u), h' = o tanh(c')",
        "Hochreiter and Schmidhuber 1997",
        _ALL_GATES,
    ),
    "gru": CoreRow(
        GRU,
        "GRU",
        "h' = f h + i tanh(W_x x + reset * W_h h)",
        "Cho et al. 2014",
        _ALL_GATES,
        tied=True,
    ),
    "janet": CoreRow(
        JANET,
        "JANET",
        "h' = f(z) h + (1 - f(z - beta)) tanh(L_u)",
        "van der Westhuizen and Lasenby 2018",
        _JANET,
        tied=True,
        plain="c",
        fixed=("tied",),
    ),
    "mogrifier": CoreRow(
        MogrifierLSTM,
        "Mogrifier LSTM",
        "x and h gate each other in rounds, then the LSTM",
        "Melis et al. 2020",
        _ALL_GATES,
    ),
    "nru": CoreRow(
        NRU,
        "NRU",
        "h' = relu(L_h), m' = m + mean(alpha v) - mean(beta w)",
        "Chandar et al. 2019",
    ),
    "rru": CoreRow(
        RRU,
        "RRU",
        "j = relu(normalize(L_j)), h' = sigmoid(10 S) h + Z (W_c j + b_c)",
        "Zakovskis et al. 2023",
    ),
    "gato": CoreRow(
        GATO,
        "GATO",
        "s' = s + softplus(L_A), r' = 0.7 sigmoid(L_B) r + tanh(L_C)",
        "anonymous 2020",
    ),
    "mingru": CoreRow(
        MinGRU,
        "minGRU",
        "h' = f h + i g(W_u x + b_u), gates of x alone",
        "Feng et al. 2024",
        _ALL_GATES,
        tied=True,
    ),
    "gilr": CoreRow(
        GILR,
        "GILR",
        "h' = f h + i tanh(W_u x + b_u), gates of x alone",
        "Martin and Cundy 2017",
        _ALL_GATES,
        tied=True,
    ),
    "minlstm": CoreRow(
        MinLSTM,
        "minLSTM",
        "h' = (f h + i g(W_u x + b_u)) / (f + i), gates of x alone",
        "Feng et al. 2024",
    ),
    "lru": CoreRow(
        LRU,
        "LRU",
        "h' = lambda h + gamma B x, y = Re(C h') + D x",
        "Orvieto et al. 2023",
    ),
    "rmc": CoreRow(
        RMC,
        "RMC",
        "M' = f M + i tanh(attention(M, x))",
        "Santoro et al. 2018",
        _ALL_GATES,
    ),
    "dnc": CoreRow(
        DNC,
        "DNC (differentiable neural computer)",
        "an LSTM that writes and reads a memory by content, free slot and order",
        "Graves et al. 2016",
        _ALL_GATES,
    ),
    "rma": CoreRow(
        RMA,
        "RMA (reconstructive memory agent)",
        "a table of past latents, read by the two LSTM layers that they drive",
        "Hung et al. 2019",
        _ALL_GATES,
    ),
    "none": CoreRow(FeedForward, "no memory (the floor)", "h' = tanh(W x + b)", ""),
}

# Options of every core: see `Core`.
COMMON_OPTIONS = ("skip_connections", "learned_state", "backend", "debug")

# Other names of the same cores, which `make_core` takes too.
ALIASES: dict[str, str] = {"on_lstm": "om_lstm", "c_janet": "janet"}


def core_names() -> dict[str, tuple[str, str]]:
    """Every name of `list_cores`, with its key in CORES and its key in GATES."""
    return {
        core if gate == row.plain else f"{gate}_{core}": (core, gate)
        for core, row in CORES.items()
        for gate in row.gates or (row.plain,)
    }


def list_cores() -> list[str]:
    """The names that `make_core` takes: `<gate>_<core>`, or `<core>` for the plain gate.

    `make_core` takes the names in `ALIASES` too.
    """
    return list(core_names())


def core_options(name: str) -> tuple[str, ...]:
    """The options of a core: of its gate, of its cell, and of every core, in this order.

    Raises:
        ValueError: an unknown name (the message names the nearest).
    """
    row, gate = _rows(name)
    of_gate = [option for option in GATES[gate].options if option not in row.fixed]
    return (*(of_gate if row.gates else ()), *row.cell.options, *COMMON_OPTIONS)


def _rows(name: str) -> tuple[CoreRow, str]:
    """The row of CORES and the key of GATES that a name or alias stands for."""
    names = core_names()
    if ALIASES.get(name, name) not in names:
        prefixes = ", ".join(f"{gate}_" for gate in GATES if gate)
        raise ValueError(
            f"unknown core {name!r}.{suggestion(name, (*names, *ALIASES), most=3)} "
            f"Cores: {', '.join(CORES)}. Gates to put before most of them: {prefixes}. "
            "rlgates.list_cores() gives all names."
        )
    core, gate = names[ALIASES.get(name, name)]
    return CORES[core], gate


def check_options(name: str, options: Mapping[str, Any]) -> None:
    """Raise ValueError if the core does not take one of these options.

    The message names the gates (by prefix) and cores that take it, or else the nearest option.
    """
    allowed = core_options(name)
    for option in options:
        # The cell itself raises for a fixed option, and says why.
        if option not in (*allowed, *_rows(name)[0].fixed):
            gates = [gate for gate, row in GATES.items() if option in row.options]
            cores = [core for core, row in CORES.items() if option in row.cell.options]
            owners = [*(f"{gate}_" if gate else "the plain gate" for gate in gates), *cores]
            raise unknown_choice(f"option for core {name!r}", option, allowed, owners)


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
        hidden_size: number of units in a layer; the class of the core says what it counts.
        num_layers: number of stacked layers.
        device, dtype: of the parameters. The dtype is float32 or float64; use `torch.autocast`
            for lower precision.
        generator: CPU generator for the initial parameters; torch's global one by default. The
            global generator does not change if one is given.
        backend: what runs the core, one of `rlgates.kernels.BACKENDS`: see `Core`.
        skip_connections: every layer also reads the input, and the output is that of all
            layers: see `Core`.
        learned_state: the initial state is learned: see `Core`.
        debug: check that all numbers are finite: see `Core`.
        options: options of the gate (see `rlgates.gates.Gate`) and of the core (see its class
            in `rlgates.cores`); `core_options(name)` lists them.

    Raises:
        ValueError: an unknown name or option (the message names the nearest), a size below 1,
            or another dtype.
        TypeError: a size that is not an integer.
    """
    check_options(name, options)
    row, gate = _rows(name)
    input_size = check_size("input_size", input_size)
    hidden_size = check_size("hidden_size", hidden_size)
    if dtype not in (None, *DTYPES):
        raise ValueError(f"dtype must be torch.float32 or torch.float64, got {dtype}.")
    skip_connections = check_flag("skip_connections", skip_connections)
    kwargs: dict[str, Any] = {key: options[key] for key in options if key in row.cell.options}
    if row.gates:
        gate_options = {key: options[key] for key in options if key not in row.cell.options}
        if row.tied and GATES[gate].auxiliary == "untied":
            gate_options.setdefault("tied", True)
    cells: list[Cell] = []
    for layer in range(check_size("num_layers", num_layers)):
        if layer:
            kwargs = {k: v for k, v in kwargs.items() if k not in row.cell.first_layer_options}
        if row.gates:
            kwargs["gate"] = Gate(gate, hidden_size, **gate_options)
        width = cells[-1].output_size + input_size * skip_connections if cells else input_size
        # Constructors of cells and of torch.nn layers use the global generator.
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
