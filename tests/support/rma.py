"""Small agents with the Reconstructive Memory Agent's policy, and environments for them."""

from __future__ import annotations

from typing import Any

from rlgates import RecurrentA2C, RecurrentPPO
from rlgates.envs.sb3 import make_vec_env

ENV_ID = "rlgates/PassiveMatch-v0"
SHORT: dict[str, Any] = {"explore_steps": 3, "distractor_steps": 4, "reward_steps": 6}
VIEW = {"add_previous_action": True, "add_previous_reward": True}
SMALL: dict[str, Any] = {
    "core": "ur_rma",
    "lstm_hidden_size": 6,
    "code_size": 12,
    "head_size": 10,
    "channels": 4,
    "core_kwargs": {"latent_size": 8, "num_slots": 13, "num_heads": 2, "top_k": 4},
}


def rma_env(n_envs: int = 4, make: Any = make_vec_env, **settings: Any) -> Any:
    return make(ENV_ID, n_envs, seed=0, **{**SHORT, **VIEW, **settings})


def rma_model(env: Any = None, kind: Any = RecurrentA2C, **kwargs: Any) -> Any:
    """A small agent; options that are not of the algorithm are those of the policy."""
    names = ("n_steps", "batch_size", "gamma", "tvt", "chunk_len", "policy_kwargs")
    settings = {name: kwargs.pop(name) for name in names if name in kwargs}
    if kind is RecurrentPPO:
        settings = {"batch_size": None, "n_epochs": 2, **settings}
    options = {**SMALL, **kwargs}
    options["core_kwargs"] = {**SMALL["core_kwargs"], **kwargs.get("core_kwargs", {})}
    settings = {"n_steps": 8, "seed": 0, "device": "cpu", "policy_kwargs": options, **settings}
    return kind("RMAPolicy", env or rma_env(), **settings)
