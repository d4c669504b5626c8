"""Gated memory cores for reinforcement-learning agents.

`make_core` and `list_cores` need only torch; the agents (`rlgates.RecurrentPPO` and the policies)
need stable-baselines3 and sb3-contrib. All are imported on first use. The environments are in
`rlgates.envs` and need neither.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from rlgates.deprecation import renamed

if TYPE_CHECKING:
    from rlgates.agents import TVT as TVT
    from rlgates.agents import CnnLstmPolicy as CnnLstmPolicy
    from rlgates.agents import GateCallback as GateCallback
    from rlgates.agents import MaskableCnnLstmPolicy as MaskableCnnLstmPolicy
    from rlgates.agents import MaskableMlpLstmPolicy as MaskableMlpLstmPolicy
    from rlgates.agents import MaskableMultiInputLstmPolicy as MaskableMultiInputLstmPolicy
    from rlgates.agents import MaskableRecurrentPPO as MaskableRecurrentPPO
    from rlgates.agents import MlpLstmPolicy as MlpLstmPolicy
    from rlgates.agents import MultiInputLstmPolicy as MultiInputLstmPolicy
    from rlgates.agents import RecurrentA2C as RecurrentA2C
    from rlgates.agents import RecurrentPPO as RecurrentPPO
    from rlgates.agents import RMAPolicy as RMAPolicy
    from rlgates.core import Cell, Core, GateTrace
    from rlgates.gates import GATES, Activation, Auxiliary, Gate, register_gate, timescale
    from rlgates.registry import core_options, list_cores, make_core, register_core

__version__ = "0.1.0"

# Without the agents, so that `from rlgates import *` needs torch alone.
__all__ = [
    "GATES",
    "Activation",
    "Auxiliary",
    "Cell",
    "Core",
    "Gate",
    "GateTrace",
    "core_options",
    "list_cores",
    "make_core",
    "register_core",
    "register_gate",
    "timescale",
]

_EXPORTS = {
    "GATES": "gates",
    "Activation": "gates",
    "Auxiliary": "gates",
    "Cell": "core",
    "Core": "core",
    "Gate": "gates",
    "GateTrace": "core",
    "core_options": "registry",
    "list_cores": "registry",
    "make_core": "registry",
    "register_core": "registry",
    "register_gate": "gates",
    "timescale": "gates",
}
_MODULES = ("cell", "core", "cores", "envs", "errors", "gates", "kernels", "nn", "registry")
_AGENTS = (
    "CnnLstmPolicy",
    "GateCallback",
    "MaskableCnnLstmPolicy",
    "MaskableMlpLstmPolicy",
    "MaskableMultiInputLstmPolicy",
    "MaskableRecurrentPPO",
    "MlpLstmPolicy",
    "MultiInputLstmPolicy",
    "RMAPolicy",
    "RecurrentA2C",
    "RecurrentPPO",
    "TVT",
)
_renamed = renamed(__name__, {"Observation": "rlgates.core.GateTrace"})


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"rlgates.{name}")
    if name in _EXPORTS:
        return getattr(importlib.import_module(f"rlgates.{_EXPORTS[name]}"), name)
    if name not in _AGENTS:
        return _renamed(name)
    try:
        return getattr(importlib.import_module("rlgates.agents"), name)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"rlgates.{name} needs {error.name}: install rlgates with its extra [agents]."
        ) from error


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES, *_AGENTS})
