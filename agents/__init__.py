"""Recurrent policies and algorithms on Stable-Baselines3 and sb3-contrib."""

from rlgates.agents.a2c import RecurrentA2C
from rlgates.agents.callbacks import GateCallback, observe_gates
from rlgates.agents.encoders import GridEncoder, MixedEncoder
from rlgates.agents.maskable import (
    MaskableCnnLstmPolicy,
    MaskableMlpLstmPolicy,
    MaskableMultiInputLstmPolicy,
    MaskableRecurrentPPO,
)
from rlgates.agents.policies import CnnLstmPolicy, MlpLstmPolicy, MultiInputLstmPolicy
from rlgates.agents.ppo import RecurrentPPO
from rlgates.agents.presets import A2C_PRESETS
from rlgates.agents.rma import RMAPolicy
from rlgates.agents.tvt import TVT

__all__ = [
    "A2C_PRESETS",
    "TVT",
    "CnnLstmPolicy",
    "GateCallback",
    "GridEncoder",
    "MaskableCnnLstmPolicy",
    "MaskableMlpLstmPolicy",
    "MaskableMultiInputLstmPolicy",
    "MaskableRecurrentPPO",
    "MixedEncoder",
    "MlpLstmPolicy",
    "MultiInputLstmPolicy",
    "RMAPolicy",
    "RecurrentA2C",
    "RecurrentPPO",
    "observe_gates",
]
