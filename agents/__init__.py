"""Recurrent policies and algorithms on Stable-Baselines3 and sb3-contrib."""

from rlgates.agents.a2c import RecurrentA2C
from rlgates.agents.callbacks import GateCallback, trace_gates
from rlgates.agents.encoders import GridEncoder, LinearEncoder, MixedEncoder
from rlgates.agents.evaluation import Estimate, PolicyEvaluation, evaluate_policy
from rlgates.agents.hub import load_from_hub, push_to_hub
from rlgates.agents.io import convert, load_vec_normalize
from rlgates.agents.maskable import (
    MaskableCnnLstmPolicy,
    MaskableEvalCallback,
    MaskableMlpLstmPolicy,
    MaskableMultiInputLstmPolicy,
    MaskableRecurrentPPO,
)
from rlgates.agents.onnx import export_onnx
from rlgates.agents.policies import CnnLstmPolicy, MlpLstmPolicy, MultiInputLstmPolicy
from rlgates.agents.ppo import RecurrentPPO
from rlgates.agents.rma.policy import RMAPolicy
from rlgates.agents.rma.presets import A2C_PRESETS
from rlgates.agents.sequences.policy import SequencePolicy
from rlgates.agents.tvt import TVT
from rlgates.deprecation import renamed

__all__ = [
    "A2C_PRESETS",
    "TVT",
    "CnnLstmPolicy",
    "Estimate",
    "GateCallback",
    "GridEncoder",
    "LinearEncoder",
    "MaskableCnnLstmPolicy",
    "MaskableEvalCallback",
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
    "SequencePolicy",
    "convert",
    "evaluate_policy",
    "export_onnx",
    "load_from_hub",
    "load_vec_normalize",
    "push_to_hub",
    "trace_gates",
]

__getattr__ = renamed(__name__, {"observe_gates": "trace_gates"})
