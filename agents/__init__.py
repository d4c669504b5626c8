"""Recurrent policies and algorithms on Stable-Baselines3 and sb3-contrib."""

from rlgates.agents.callbacks import GateCallback, observe_gates
from rlgates.agents.encoders import GridEncoder, MixedEncoder
from rlgates.agents.policies import CnnLstmPolicy, MlpLstmPolicy, MultiInputLstmPolicy
from rlgates.agents.ppo import RecurrentPPO

__all__ = [
    "CnnLstmPolicy",
    "GateCallback",
    "GridEncoder",
    "MixedEncoder",
    "MlpLstmPolicy",
    "MultiInputLstmPolicy",
    "RecurrentPPO",
    "observe_gates",
]
