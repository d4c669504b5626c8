"""The CORES table, and what reads it: `make_core`, `list_cores` and the options of a core."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from numbers import Integral
from typing import Any, NamedTuple, TypeVar

import torch

from rlgates.cell import Cell, check_device, factory_kwargs, option_names
from rlgates.core import BackendName, Core
from rlgates.cores.delta import FastWeights, GatedDeltaNet
from rlgates.cores.dilated import DilatedGRU
from rlgates.cores.dnc import DNC
from rlgates.cores.elman import Elman, IndRNN
from rlgates.cores.feedforward import FeedForward
from rlgates.cores.ffm import FFM
from rlgates.cores.gato import GATO
from rlgates.cores.gru import GRU
from rlgates.cores.janet import JANET
from rlgates.cores.linear_transformer import LinearTransformer
from rlgates.cores.lmu import LMU
from rlgates.cores.lru import LRU
from rlgates.cores.lstm import LSTM
from rlgates.cores.mamba import Mamba, Mamba2
from rlgates.cores.minimal import GILR, MinGRU, MinLSTM
from rlgates.cores.mogrifier import MogrifierLSTM
from rlgates.cores.nru import NRU
from rlgates.cores.ode import LEM, CoRNN
from rlgates.cores.rma import RMA
from rlgates.cores.rmc import RMC
from rlgates.cores.rru import RRU
from rlgates.cores.rtu import RTU
from rlgates.cores.rwkv import RWKV7
from rlgates.cores.shm import SHM
from rlgates.cores.ssm import S4D, S5
from rlgates.cores.transformer import GTrXL, Transformer
from rlgates.cores.window import FrameConv, FrameStack, Positional
from rlgates.cores.xlstm import MLSTM, SLSTM
from rlgates.errors import (
    MAX_DEPTH,
    MAX_WIDTH,
    UnknownCore,
    check_flag,
    check_size,
    check_text,
    suggestion,
    unknown_choice,
)
from rlgates.gates import (
    GATES,
    PREFIX_CHECKS,
    Gate,
    GateLike,
    Row,
    as_gate,
    check_gate,
    gate_key,
    gate_of_title,
)

__all__ = [
    "ALIASES",
    "COMMON_OPTIONS",
    "CORES",
    "CoreRow",
    "check_options",
    "core_and_gate",
    "core_name",
    "core_names",
    "core_options",
    "list_cores",
    "make_core",
    "register_core",
]


def _no_gate(name: str, gate: Row) -> bool:
    return False


def _every_gate(name: str, gate: Row) -> bool:
    return True


def _forget_gate(name: str, gate: Row) -> bool:
    """A core that makes its input gate itself takes what makes a unit's forget gate alone."""
    return gate.activation != "cumax" and gate.auxiliary in ("untied", "tied", "refine")


def _janet_gate(name: str, gate: Row) -> bool:
    """JANET's input gate is 1 - its forget gate, shifted by beta."""
    return name != "" and _forget_gate(name, gate)


class CoreRow(NamedTuple):
    """One core: its cell, the gates it takes, and how tables describe it.

    Attributes:
        cell: the class of its layers, or a factory that returns one layer or the whole core.
        title, equation, source: its full name, its update in a line, and its paper.
        takes: whether it takes a gate, given its key and row in GATES; none if its gates are part
            of its definition.
        tied: whether gates without an auxiliary gate are tied (i = 1 - f) by default.
        plain: the key of GATES that the name without a prefix stands for.
        fixed: gate options that the core sets itself.
        module: where the row was defined.
    """

    cell: Callable[..., Cell | Core]
    title: str
    equation: str
    source: str
    takes: Callable[[str, Row], bool] = _no_gate
    tied: bool = False
    plain: str = ""
    fixed: tuple[str, ...] = ()
    module: str = __name__

    @property
    def options(self) -> tuple[str, ...]:
        """The options of its cell, without those of a gate."""
        return option_names(self.cell)

    @property
    def gates(self) -> tuple[str, ...]:
        """The keys of GATES that it takes."""
        return tuple(name for name, gate in GATES.items() if self.takes(name, gate))


CORES: dict[str, CoreRow] = {
    "lstm": CoreRow(
        LSTM,
        "LSTM",
        "c' = f c + i tanh(L_u), h' = o tanh(c')",
        "Hochreiter and Schmidhuber 1997",
        _every_gate,
    ),
    "gru": CoreRow(
        GRU,
        "GRU",
        "h' = f h + i tanh(W_x x + reset * W_h h)",
        "Cho et al. 2014",
        _every_gate,
        tied=True,
    ),
    "dilated_gru": CoreRow(
        DilatedGRU,
        "dilated GRU",
        "a stack of GRUs in which level n reads its own state 2^(n - 1) steps earlier",
        "Chang et al. 2017",
        _every_gate,
        tied=True,
    ),
    "janet": CoreRow(
        JANET,
        "JANET",
        "h' = f(z) h + (1 - f(z - beta)) tanh(L_u)",
        "van der Westhuizen and Lasenby 2018",
        _janet_gate,
        tied=True,
        plain="c",
        fixed=("tied",),
    ),
    "mogrifier": CoreRow(
        MogrifierLSTM,
        "Mogrifier LSTM",
        "x and h gate each other in rounds, then the LSTM",
        "Melis et al. 2020",
        _every_gate,
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
        _every_gate,
        tied=True,
    ),
    "gilr": CoreRow(
        GILR,
        "GILR",
        "h' = f h + i tanh(W_u x + b_u), gates of x alone",
        "Martin and Cundy 2017",
        _every_gate,
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
    "ffm": CoreRow(
        FFM,
        "FFM (fast and forgetful memory)",
        "H' = exp(-|alpha|) exp(-i omega)^T H + L_y sigmoid(L_i), read through a gate",
        "Morad et al. 2023",
    ),
    "s4d": CoreRow(
        S4D,
        "S4D",
        "H' = exp(Delta A) H + (exp(Delta A) - 1) / A u, y = 2 Re(C H') + D u, GLU(GELU(y))",
        "Gu et al. 2022",
    ),
    "s5": CoreRow(
        S5,
        "S5",
        "h' = exp(Lambda Delta) h + (exp(Lambda Delta) - 1) / Lambda B x, y = 2 Re(C h') + D x",
        "Smith et al. 2023",
    ),
    "linear_transformer": CoreRow(
        LinearTransformer,
        "linear transformer",
        "S' = S + phi(k) v^T, z' = z + phi(k), a = S'^T phi(q) / (z'^T phi(q)), then two layers",
        "Katharopoulos et al. 2020",
    ),
    "shm": CoreRow(
        SHM,
        "SHM (stable Hadamard memory)",
        "M' = (1 + tanh(theta v_c^T)) M + eta v k^T, h = W_o M' q + b_o",
        "Le et al. 2025",
    ),
    "mamba": CoreRow(
        Mamba,
        "Mamba (S6)",
        "u = silu(conv(W_u x)), H' = exp(t A) H + t u (W_B u)^T, y = (H' W_C u + D u) silu(W_z x)",
        "Gu and Dao 2023",
    ),
    "mamba2": CoreRow(
        Mamba2,
        "Mamba-2",
        "u, B, C = silu(conv(W x)), H' = exp(t A) H + t u B^T, y = norm((H' C + D u) silu(W_z x))",
        "Dao and Gu 2024",
    ),
    "rtu": CoreRow(
        RTU,
        "RTU (recurrent trace unit)",
        "c' = r exp(i theta) c + gamma W x, h = (relu(Re c'), relu(Im c'))",
        "Elelimy et al. 2024",
    ),
    "rmc": CoreRow(
        RMC,
        "RMC",
        "M' = f M + i tanh(attention(M, x))",
        "Santoro et al. 2018",
        _every_gate,
    ),
    "dnc": CoreRow(
        DNC,
        "DNC (differentiable neural computer)",
        "an LSTM that writes and reads a memory by content, free slot and order",
        "Graves et al. 2016",
        _every_gate,
    ),
    "rma": CoreRow(
        RMA,
        "RMA (reconstructive memory agent)",
        "a table of past latents, read by the two LSTM layers that they drive",
        "Hung et al. 2019",
        _every_gate,
    ),
    "elman": CoreRow(
        Elman,
        "Elman network",
        "h' = tanh(W x + b + U h)",
        "Elman 1990",
    ),
    "indrnn": CoreRow(
        IndRNN,
        "IndRNN",
        "h' = relu(W x + b + u h), a number u for each unit",
        "Li et al. 2018",
    ),
    "cornn": CoreRow(
        CoRNN,
        "coRNN (coupled oscillators)",
        "z' = z + dt (tanh(W_x x + W_z z + W_y y + b) - gamma y - epsilon z), y' = y + dt z'",
        "Rusch and Mishra 2021",
    ),
    "lem": CoreRow(
        LEM,
        "LEM (long expressive memory)",
        "z' = (1 - dt_z) z + dt_z tanh(L_z), y' = (1 - dt_y) y + dt_y tanh(V_y x + W_y z' + b_y)",
        "Rusch et al. 2022",
    ),
    "lmu": CoreRow(
        LMU,
        "LMU (Legendre memory unit)",
        "m' = A m + B u, h' = tanh(W_x x + W_h h + W_m m')",
        "Voelker et al. 2019",
    ),
    "slstm": CoreRow(
        SLSTM,
        "sLSTM",
        "c' = f c + exp(L_i) tanh(L_u), n' = f n + exp(L_i), h' = o c' / n'",
        "Beck et al. 2024",
        _forget_gate,
        fixed=("tied",),
    ),
    "mlstm": CoreRow(
        MLSTM,
        "mLSTM",
        "C' = f C + exp(i) v k, h' = o C' q / max(|n' q|, 1), gates of x alone",
        "Beck et al. 2024",
    ),
    "fwp": CoreRow(
        FastWeights,
        "fast weight programmer",
        "S' = S + beta (v - S k) k, y = S' q, with q, k, v, beta from the input",
        "Schlag et al. 2021",
    ),
    "deltanet": CoreRow(
        GatedDeltaNet,
        "Gated DeltaNet",
        "S' = a S + beta (v - a S k) k, y = W_o (norm(S' q) * gate), gates of x alone",
        "Yang et al. 2025",
    ),
    "rwkv7": CoreRow(
        RWKV7,
        "RWKV-7",
        "S' = S diag(w) - S kappa (a kappa)^T + v k^T, h = W_o (g norm(S' r)), gates of two inputs",
        "Peng et al. 2025",
    ),
    "transformer": CoreRow(
        Transformer,
        "sliding-window transformer",
        "attention over the last steps, then a network, each added to its input",
        "Vaswani et al. 2017, Dai et al. 2019",
    ),
    "gtrxl": CoreRow(
        GTrXL,
        "GTrXL (gated Transformer-XL)",
        "attention over the last steps, then a network, each gated as in a GRU",
        "Parisotto et al. 2020",
    ),
    "frame_stack": CoreRow(
        FrameStack,
        "frame stack",
        "y = mlp(C x of the last inputs)",
        "Mnih et al. 2015, Morad et al. 2023",
    ),
    "frame_conv": CoreRow(
        FrameConv,
        "frame convolution",
        "y = sum of W_k x_(t-k) over the last inputs",
        "Bai et al. 2018, Morad et al. 2023",
    ),
    "positional": CoreRow(
        Positional,
        "positional MLP",
        "y = tanh(W x + U p(step) + b)",
        "Vaswani et al. 2017, Morad et al. 2023",
    ),
    "none": CoreRow(FeedForward, "no memory (the floor)", "h' = tanh(W x + b)", ""),
}

# Options of every core: see `Core`.
COMMON_OPTIONS = ("skip_connections", "learned_state", "backend", "debug")

# Other names of the same cores, which `make_core` takes too.
ALIASES: dict[str, str] = {"on_lstm": "om_lstm", "c_janet": "janet"}


def _check_prefix(prefix: str, gate: Row) -> None:
    """Raise ValueError if a core with this gate would have the name of another core."""
    for core, row in CORES.items():
        name = f"{prefix}_{core}"
        if name in (*CORES, *ALIASES) and row.takes(prefix, gate):
            raise ValueError(
                f"the prefix {prefix!r} is taken: {name!r} is another core. Choose another."
            )


PREFIX_CHECKS.append(_check_prefix)
for _prefix, _gate in GATES.items():
    if not _gate.module.startswith("rlgates."):  # registered before this module was imported
        _check_prefix(_prefix, _gate)


CoreFactory = Callable[..., Cell | Core]
_Factory = TypeVar("_Factory", bound=CoreFactory)


def register_core(
    name: str,
    cell: _Factory,
    *,
    gates: bool | None = None,
    tied: bool = False,
    title: str = "",
    equation: str = "",
    source: str = "",
) -> _Factory:
    """Add a core to `CORES`: its name then works wherever a core is named, as in `policy_kwargs`.

    Saved files name their core: register it before loading one, preferably in the module that
    defines the class.

    Args:
        name: lower-case letters, digits and underscores.
        cell: its layers: a concrete `Cell`, whose constructor takes `input_size`, `hidden_size`, a
            `gate` if it has one, and options; or a factory with these parameters, which returns a
            new `Cell`, or a new `Core` of all layers.
        gates: whether it takes every gate, as `<gate>_<name>`; by default whether its constructor
            has a `gate`, even one with a default.
        tied: whether gates without an auxiliary gate are tied (i = 1 - f) by default.
        title, equation, source: for tables.

    Returns:
        `cell`.

    Raises:
        ValueError: a name that is taken by another class or not of this form, a constructor without
            these parameters, or one whose options have no names (`**options`).
        TypeError: `cell` is neither a concrete subclass of `Cell` nor a factory.
    """
    if not re.fullmatch("[a-z][a-z0-9_]*", check_text("name", name)):
        raise ValueError(
            f"the name of a core must be lower-case letters, digits and underscores, got {name!r}."
        )
    _check_factory(cell, ["gate"] if gates else [])
    parameters = inspect.signature(cell).parameters
    takes = _every_gate if "gate" in parameters and gates is not False else _no_gate
    module = sys._getframe(1).f_globals.get("__name__", "__main__")
    row = CoreRow(cell, title or name, equation, source, takes, tied, module=module)
    known = CORES.get(name)
    if known is None or _path(known.cell) != _path(cell):  # a notebook's cell may run twice
        names = {f"{gate}_{name}" if gate else name for gate in (*row.gates, "")}
        if taken := sorted(names & {*core_names(), *ALIASES}):
            raise ValueError(f"the name {taken[0]!r} is taken. Choose another.")
    CORES[name] = row
    return cell


def _check_factory(cell: CoreFactory, needed: list[str]) -> None:
    """Raise unless `make_core` can call it with these parameters too."""
    usable = issubclass(cell, Cell | Core) if inspect.isclass(cell) else callable(cell)
    absent = sorted(getattr(cell, "__abstractmethods__", ()))
    if not usable or absent:
        lacks = f", which lacks the methods {', '.join(absent)}" if absent else ""
        raise TypeError(
            f"cell must be a concrete subclass of rlgates.Cell or a factory, got {cell!r}{lacks}."
        )
    parameters = inspect.signature(cell).parameters
    required = ["input_size", "hidden_size", *needed]
    if missing := [parameter for parameter in required if parameter not in parameters]:
        raise ValueError(f"the constructor of {_path(cell)[1]} lacks {', '.join(missing)}.")
    for name, parameter in parameters.items():
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            raise ValueError(
                f"the constructor of {_path(cell)[1]} must name its options, got {parameter}."
            )
        if name in ("num_layers", *COMMON_OPTIONS):
            raise ValueError(
                f"the constructor of {_path(cell)[1]} has an option {name}, which make_core has "
                "for every core: give it another name."
            )


def core_name(core: str | CoreFactory) -> str:
    """The name of a core that is given by its name, or by its registered class or factory.

    Raises:
        ValueError: a class or factory that is not registered, or an unknown name.
    """
    if isinstance(core, str):
        _rows(core)
        return core
    for name, row in CORES.items():
        if row.cell is core:
            return name
    raise ValueError(
        f"core must be a name, or a registered class or factory, got {core!r}: call "
        "rlgates.register_core(name, cell) first. Files store the name."
    )


def core_modules(name: str) -> list[str]:
    """The modules outside rlgates that registered a core and its gate."""
    row, gate = _rows(name)
    modules = dict.fromkeys((row.module, GATES[gate].module))
    return [module for module in modules if not module.startswith("rlgates.")]


def _path(cell: CoreFactory) -> tuple[str, str]:
    return cell.__module__, getattr(cell, "__qualname__", repr(cell))


def _name(core: str, gate: str) -> str:
    return core if gate == CORES[core].plain else f"{gate}_{core}"


def core_names() -> dict[str, tuple[str, str]]:
    """Every name of `list_cores`, with its key in CORES and its key in GATES."""
    return {
        _name(core, gate): (core, gate)
        for core, row in CORES.items()
        for gate in row.gates or (row.plain,)
    }


def list_cores() -> list[str]:
    """The names that `make_core` takes: `<gate>_<core>`, or `<core>` for its default gate.

    The default gate is chrono in JANET, and the plain one in the other cores with gates.
    `make_core` also takes the names in `ALIASES`.
    """
    return list(core_names())


def core_options(name: str) -> tuple[str, ...]:
    """The options of a core: of its gate, of its cell, and of every core, in this order.

    Raises:
        ValueError: an unknown name (the message names the nearest).
    """
    row, gate = _rows(name)
    of_gate = [option for option in GATES[gate].options if option not in row.fixed]
    return (*(of_gate if row.gates else ()), *row.options, *COMMON_OPTIONS)


def core_and_gate(name: str) -> tuple[str, str]:
    """The keys of CORES and GATES that a name or alias stands for.

    Raises:
        ValueError: an unknown name (the message names the nearest).
    """
    check_text("core", name)
    found = _split(ALIASES.get(name, name))
    if found is None:
        prefixes = ", ".join(f"{gate}_" for gate in GATES if gate)
        brief = f"unknown core {name!r}.{_meant(name)}"
        raise UnknownCore(
            f"{brief} Cores: {', '.join(CORES)}. Gates to put before most of them: {prefixes}. "
            "rlgates.list_cores() gives all names. A core or gate of your own has to be registered "
            "first (rlgates.register_core, rlgates.register_gate): import the module that does so.",
            brief,
        )
    return found


def _meant(name: str) -> str:
    """What an unknown name may stand for, as a sentence; empty if nothing is near."""
    folded = name.lower()
    for core in sorted(CORES, key=len, reverse=True):
        prefix, _, rest = folded.rpartition(f"_{core}")
        gates = CORES[core].gates
        gate = prefix if prefix in GATES else gate_of_title(prefix, GATES)
        if not prefix or rest or prefix in gates or gate is None:
            continue
        if not gates:
            return f" Core {core!r} takes no gate."
        if gate not in gates:
            return f" Core {core!r} does not take gate {gate!r}, but {', '.join(gates)}."
        return f" Did you mean {_name(core, gate)!r} ({GATES[gate].title})?"
    return suggestion(name, (*core_names(), *ALIASES), most=3)


def _split(name: str) -> tuple[str, str] | None:
    """What `core_names` has for a name, without the others; None if it is none of them."""
    if name in CORES:
        core, gate = name, CORES[name].plain
    else:
        gate, _, core = name.partition("_")  # prefixes have no underscore
        if core not in CORES or gate == CORES[core].plain:
            return None
    return (core, gate) if gate in (CORES[core].gates or (CORES[core].plain,)) else None


def _rows(name: str) -> tuple[CoreRow, str]:
    """The row of CORES and the key of GATES that a name or alias stands for."""
    core, gate = core_and_gate(name)
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
            cores = [core for core, row in CORES.items() if option in row.options]
            owners = [*(f"{gate}_" if gate else "the plain gate" for gate in gates), *cores]
            error = unknown_choice(f"option of core {name!r}:", option, allowed, owners)
            if option == "num_layers":
                names = "n_lstm_layers in policy_kwargs, num_layers in make_core"
                raise ValueError(f"{error} The number of layers is {names}.")
            raise error


def _with_gate(name: str, gate: str) -> str:
    """The name of a core with a gate; its own may have none."""
    core, prefix = core_and_gate(name)
    row = CORES[core]
    if prefix != row.plain:
        raise ValueError(f"core {name!r} has gate {prefix!r} already: give gate or the prefix.")
    if not row.gates:
        raise ValueError(f"core {name!r} takes no gate, got gate={gate!r}.")
    return _name(core, check_gate(f"gate of {core}", gate, row.gates))


def _check_gate(name: str, gate: Gate, options: Mapping[str, Any]) -> None:
    """Raise if a core does not take this gate, or if there are options of another."""
    row, prefix = _rows(name)
    if not row.gates or prefix != row.plain:
        raise ValueError(f"core {name!r} has its own gates: it takes no other gate.")
    if extra := [option for option in options if option in GATES[prefix].options]:
        raise ValueError(f"{gate} has its options already, got {', '.join(extra)} as well.")


PROBE_INPUTS = 2
"""A width of the input that every core takes, for a core that is made only to be looked at."""


def make_core(
    name: str,
    input_size: int,
    hidden_size: int,
    num_layers: int = 1,
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    generator: torch.Generator | None = None,
    backend: BackendName = "auto",
    skip_connections: bool = False,
    learned_state: bool = False,
    debug: bool = False,
    gate: GateLike | None = None,
    **options: Any,
) -> Core:
    """Build a memory core by name.

    Args:
        name: one of `list_cores()`, such as "ur_lstm": gate "ur" in core "lstm".
        input_size: width of the input.
        hidden_size: number of units in a layer; the class of the core says what it counts.
        num_layers: number of stacked layers.
        device, dtype: of the parameters, torch's defaults if None; the dtype is float32 or float64
            (use `torch.autocast` for lower precision). Initial values are sampled in it on the CPU,
            so a seed gives the same core on every device.
        generator: CPU generator for the initial parameters; torch's global one by default. The
            global generator does not change if one is given.
        backend: what runs the core, one of `rlgates.kernels.BACKENDS`: see `Core`.
        skip_connections: every layer also reads the input, and the output is that of all layers,
            concatenated: see `Core`.
        learned_state: the initial state is learned: see `Core`.
        debug: check that all numbers are finite: see `Core`.
        gate: replaces the prefix of the name: a key of `rlgates.GATES`, a row, or a `Gate` of
            `hidden_size` units, which has its options already.
        options: options of the gate (see `rlgates.gates.Gate`) and of the core (see its class
            in `rlgates.cores`); `core_options(name)` lists them.

    Raises:
        ValueError: an unknown name or option (the message names the nearest), a size that is below
            1 or does not fit into memory, another dtype, a device that does not exist.
        TypeError: a size that is not an integer, a name that is not a string.
    """
    if isinstance(gate, Row) and (key := gate_key(gate)) is not None:
        gate = key
    if isinstance(gate, str):
        name, gate = _with_gate(name, gate), None
    row, prefix = _rows(name)
    if gate is not None:
        gate = as_gate(gate, hidden_size, tied=row.tied)
        _check_gate(name, gate, options)
    check_options(name, options)
    input_size = check_size("input_size", input_size, maximum=MAX_WIDTH)
    hidden_size = check_size("hidden_size", hidden_size, maximum=MAX_WIDTH)
    num_layers = check_size("num_layers", num_layers, maximum=MAX_DEPTH)
    skip_connections = check_flag("skip_connections", skip_connections)
    kwargs = {key: _plain(value) for key, value in options.items() if key in row.options}
    if device is None and (default := torch.get_default_device()).type != "cpu":
        device = default
    # On the CPU, so that a seed gives the same core on every device; a meta tensor has no values.
    is_meta = device is not None and check_device(device).type == "meta"
    takes = inspect.signature(row.cell).parameters
    for key, value in factory_kwargs("meta" if is_meta else None, dtype).items():
        if key in takes:
            kwargs[key] = value
    if row.gates:
        gate_options = {key: options[key] for key in options if key not in row.options}
        if row.tied and GATES[prefix].auxiliary == "untied":
            gate_options.setdefault("tied", True)
    cells: list[Cell] = []
    with torch.device("cpu"):
        for layer in range(num_layers):
            if layer:
                lowest = getattr(row.cell, "first_layer_options", ())
                kwargs = {k: v for k, v in kwargs.items() if k not in lowest}
            if row.gates:
                kwargs["gate"] = gate or Gate(prefix, hidden_size, **gate_options)
            width = cells[-1].output_size + input_size * skip_connections if cells else input_size
            # Constructors of cells and of torch.nn layers use the global generator.
            with (
                torch.random.fork_rng(devices=[], enabled=generator is not None),
                _enough_memory(name),
            ):
                made = row.cell(width, hidden_size, **kwargs)
            if not isinstance(made, Cell | Core):
                raise TypeError(
                    f"the factory of {name!r} must return a Cell or a Core, got {made!r}."
                )
            if generator is not None:
                made.reset_parameters(generator)
            if isinstance(made, Core):
                _check_whole(name, num_layers, skip_connections, learned_state)
                made.name, made.backend, made.debug = name, backend, check_flag("debug", debug)
                return made.to(device=device, dtype=dtype)
            cells.append(made)
        core = Core(
            cells,
            ALIASES.get(name, name),
            backend,
            skip_connections=skip_connections,
            learned_state=learned_state,
            debug=debug,
        )
    return core.to(device=device, dtype=dtype)


def _plain(value: Any) -> Any:
    """An integer of NumPy as one of Python: shapes are products, which overflow in uint8."""
    return int(value) if isinstance(value, Integral) and not isinstance(value, bool) else value


@contextmanager
def _enough_memory(name: str) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        if not re.search("allocate memory|overflow", str(error)):
            raise
        raise ValueError(f"core {name!r} of these sizes does not fit into memory.") from error


def _check_whole(name: str, num_layers: int, skip_connections: bool, learned_state: bool) -> None:
    """Raise if a core that its factory makes as a whole is asked for what a stack has."""
    if num_layers > 1 or skip_connections or learned_state:
        raise ValueError(
            f"the factory of core {name!r} makes the core as a whole: num_layers must be 1, "
            "skip_connections and learned_state False. Give the factory options for them."
        )
