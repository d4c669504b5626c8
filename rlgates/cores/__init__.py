"""The cores, one file per family; `rlgates.registry` builds them by name."""

from __future__ import annotations

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
from rlgates.deprecation import renamed

__all__ = [
    "DNC",
    "FFM",
    "GATO",
    "GILR",
    "GRU",
    "JANET",
    "LEM",
    "LMU",
    "LRU",
    "LSTM",
    "MLSTM",
    "NRU",
    "RMA",
    "RMC",
    "RRU",
    "RTU",
    "RWKV7",
    "S4D",
    "S5",
    "SHM",
    "SLSTM",
    "CoRNN",
    "DilatedGRU",
    "Elman",
    "FastWeights",
    "FeedForward",
    "FrameConv",
    "FrameStack",
    "GTrXL",
    "GatedDeltaNet",
    "IndRNN",
    "LinearTransformer",
    "Mamba",
    "Mamba2",
    "MinGRU",
    "MinLSTM",
    "MogrifierLSTM",
    "Positional",
    "Transformer",
]

_MOVED = (
    "ALIASES",
    "COMMON_OPTIONS",
    "CORES",
    "check_options",
    "core_names",
    "core_options",
    "list_cores",
    "make_core",
)

__getattr__ = renamed(__name__, {name: f"rlgates.registry.{name}" for name in _MOVED})
