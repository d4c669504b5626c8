"""The CORES table: which cores there are, which gates each takes, and what it is."""

from __future__ import annotations

from typing import NamedTuple

from rlgates.cell import Cell
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
from rlgates.gates import GATES


class CoreRow(NamedTuple):
    """One core: its cell, the gates it takes, and lines for people.

    Attributes:
        cell: the class of its layers.
        title, equation, source: what it is, its update in a line, and who published it.
        gates: the rows of GATES that it takes; none if its gates are its own.
        tied: whether gates without an auxiliary one are tied (i = 1 - f) by default.
        plain: the row of GATES that the name without a prefix stands for.
        fixed: options of its gates that it leaves no choice of.
    """

    cell: type[Cell]
    title: str
    equation: str
    source: str
    gates: tuple[str, ...] = ()
    tied: bool = False
    plain: str = ""
    fixed: tuple[str, ...] = ()


_EVERY = tuple(GATES)
# The input gate of JANET is made from its forget gate, shifted: no map of its own, no cumax.
_JANET = ("c", "u", "r", "ur", "f", "uf", "ff", "s")

CORES: dict[str, CoreRow] = {
    "lstm": CoreRow(
        LSTM,
        "LSTM",
        "c' = f c + i tanh(L_u), h' = o tanh(c')",
        "Hochreiter and Schmidhuber 1997",
        _EVERY,
    ),
    "gru": CoreRow(
        GRU,
        "GRU",
        "h' = f h + i tanh(W_x x + reset * W_h h)",
        "Cho et al. 2014",
        _EVERY,
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
        _EVERY,
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
        _EVERY,
        tied=True,
    ),
    "gilr": CoreRow(
        GILR,
        "GILR",
        "h' = f h + i tanh(W_u x + b_u), gates of x alone",
        "Martin and Cundy 2017",
        _EVERY,
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
        _EVERY,
    ),
    "dnc": CoreRow(
        DNC,
        "DNC (differentiable neural computer)",
        "an LSTM that writes and reads a memory by content, free slot and order",
        "Graves et al. 2016",
        _EVERY,
    ),
    "rma": CoreRow(
        RMA,
        "RMA (reconstructive memory agent)",
        "a table of past latents, read by the two LSTM layers that they drive",
        "Hung et al. 2019",
        _EVERY,
    ),
    "none": CoreRow(FeedForward, "no memory (the floor)", "h' = tanh(W x + b)", ""),
}

# What every core takes: see `Core`.
COMMON_OPTIONS = ("skip_connections", "learned_state", "backend", "debug")

# Other names of the same cores.
ALIASES: dict[str, str] = {"on_lstm": "om_lstm", "c_janet": "janet"}
