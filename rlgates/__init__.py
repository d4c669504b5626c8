"""Gated memory cores for reinforcement-learning agents.

`make_core` and `list_cores` need torch alone. The agents (`rlgates.RecurrentPPO` and the
policies) are imported when they are first asked for, and need stable-baselines3 and
sb3-contrib; the environments stand in `rlgates.envs`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from rlgates.core import Cell, Core, Observation
from rlgates.cores import list_cores, make_core
from rlgates.gates import timescale

if TYPE_CHECKING:
    from rlgates.agents import TVT as TVT
    from rlgates.agents import CnnLstmPolicy as CnnLstmPolicy
    from rlgates.agents import GateCallback as GateCallback
    from rlgates.agents import MaskableRecurrentPPO as MaskableRecurrentPPO
    from rlgates.agents import MlpLstmPolicy as MlpLstmPolicy
    from rlgates.agents import MultiInputLstmPolicy as MultiInputLstmPolicy
    from rlgates.agents import RecurrentA2C as RecurrentA2C
    from rlgates.agents import RecurrentPPO as RecurrentPPO
    from rlgates.agents import RMAPolicy as RMAPolicy

__version__ = "0.1.0"

# The agents are left out, so that `from rlgates import *` needs torch alone.
__all__ = ["Cell", "Core", "Observation", "list_cores", "make_core", "timescale"]

_AGENTS = (
    "CnnLstmPolicy",
    "GateCallback",
    "MaskableRecurrentPPO",
    "MlpLstmPolicy",
    "MultiInputLstmPolicy",
    "RMAPolicy",
    "RecurrentA2C",
    "RecurrentPPO",
    "TVT",
)


def __getattr__(name: str) -> Any:
    if name not in _AGENTS:
        raise AttributeError(f"module 'rlgates' has no attribute {name!r}")
    try:
        return getattr(importlib.import_module("rlgates.agents"), name)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"rlgates.{name} needs {error.name}: install rlgates with its extra [agents]."
        ) from error


def __dir__() -> list[str]:
    return sorted({*globals(), *_AGENTS})
