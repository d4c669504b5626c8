"""Recurrent policies and algorithms on Stable-Baselines3 and sb3-contrib."""

from rlgates.agents.a2c import RecurrentA2C
from rlgates.agents.callbacks import GateCallback, observe_gates
from rlgates.agents.encoders import GridEncoder, MixedEncoder
from rlgates.agents.evaluation import Estimate, PolicyEvaluation, evaluate_policy
from rlgates.agents.maskable import (
    MaskableCnnLstmPolicy,
    MaskableMlpLstmPolicy,
    MaskableMultiInputLstmPolicy,
    MaskableRecurrentPPO,
)
from rlgates.agents.onnx import export_onnx
from rlgates.agents.policies import CnnLstmPolicy, MlpLstmPolicy, MultiInputLstmPolicy
from rlgates.agents.ppo import RecurrentPPO
from rlgates.agents.presets import A2C_PRESETS
from rlgates.agents.rma import RMAPolicy
from rlgates.agents.tvt import TVT

__all__ = [
    "A2C_PRESETS",
    "TVT",
    "CnnLstmPolicy",
    "Estimate",
    "GateCallback",
    "GridEncoder",
    "MaskableCnnLstmPolicy",
    "MaskableMlpLstmPolicy",
    "MaskableMultiInputLstmPolicy",
    "MaskableRecurrentPPO",
    "MixedEncoder",
    "MlpLstmPolicy",
    "MultiInputLstmPolicy",
    "PolicyEvaluation",
    "RMAPolicy",
    "RecurrentA2C",
    "RecurrentPPO",
    "evaluate_policy",
    "export_onnx",
    "observe_gates",
]
