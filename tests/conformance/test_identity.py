"""Before the first update, evaluating a rollout reproduces its log-probabilities and values.

Over the product of algorithms, actions, observations, critics and cores.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from support.toys import BOX, CRITICS, IMAGE, Masked, Toy, check_identity, model, toy

from rlgates import MaskableRecurrentPPO, RecurrentA2C, RecurrentPPO

ALGORITHMS = {
    "ppo": RecurrentPPO,
    "a2c": RecurrentA2C,
    "maskable": MaskableRecurrentPPO,
}
SQUASHED = {"use_sde": True, "policy_kwargs": {"squash_output": True}}
ACTIONS: dict[str, tuple[spaces.Space[Any], dict[str, Any]]] = {
    "discrete": (spaces.Discrete(3), {}),
    "multi_discrete": (spaces.MultiDiscrete([2, 4]), {}),
    "multi_binary": (spaces.MultiBinary(3), {}),
    "box": (spaces.Box(-1.0, 1.0, (2,)), {}),
    "box_0d": (spaces.Box(-1.0, 1.0, ()), {}),
    "box_1x1": (spaces.Box(-1.0, 1.0, (1, 1)), {}),
    "box_2x3": (spaces.Box(-1.0, np.float32([[1, 2, 3], [4, 5, 6]]), (2, 3)), {}),
    "gsde": (spaces.Box(-1.0, 1.0, (2, 2)), {"use_sde": True, "sde_sample_freq": 4}),
    "squashed": (spaces.Box(-3.0, 2.0, (1, 2)), SQUASHED),
    "squashed_1x1": (spaces.Box(-3.0, 2.0, (1, 1)), SQUASHED),
}
MASKABLE = ("discrete", "multi_discrete", "multi_binary")
OBSERVATIONS: dict[str, tuple[str, spaces.Space[Any]]] = {
    "vector": ("MlpLstmPolicy", BOX),
    "matrix": ("MlpLstmPolicy", spaces.Box(-1.0, 1.0, (2, 3), np.float64)),
    "discrete": ("MlpLstmPolicy", spaces.Discrete(4)),
    "image": ("CnnLstmPolicy", IMAGE),
    "dict": ("MultiInputLstmPolicy", spaces.Dict(a=BOX, b=spaces.Discrete(3), c=IMAGE)),
}
POLICIES: dict[str, dict[str, Any]] = {
    **CRITICS,
    "separate features": {"share_features_extractor": False, "net_arch": []},
    "two layers": {"n_lstm_layers": 2},
}
CORES = ("lstm", "ur_gru", "lru", "none")


def cases() -> list[Any]:
    """The product; all but every 17th case are slow."""
    product = itertools.product(ALGORITHMS, ACTIONS, OBSERVATIONS, POLICIES, CORES)
    possible = [case for case in product if case[0] != "maskable" or case[1] in MASKABLE]
    # 17 divides none of the sizes, so the quick cases have every pair of values.
    return [
        pytest.param(*case, marks=() if index % 17 == 0 else pytest.mark.slow)
        for index, case in enumerate(possible)
    ]


@pytest.mark.parametrize(("algorithm", "actions", "observations", "critic", "core"), cases())
def test_identity(algorithm: str, actions: str, observations: str, critic: str, core: str) -> None:
    action, options = ACTIONS[actions]
    policy, observation = OBSERVATIONS[observations]
    policy_kwargs = {"core": core, **POLICIES[critic], **options.get("policy_kwargs", {})}
    agent = model(
        toy(observation, action, kind=Masked if algorithm == "maskable" else Toy),
        policy,
        ALGORITHMS[algorithm],
        **{**options, "policy_kwargs": policy_kwargs},
    )
    # Minibatches of whole sequences and of cut ones, with and without burn-in.
    check_identity(agent, [(16, 0), (8, 0), (4, 3)], 32)
