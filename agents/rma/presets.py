"""Settings of Hung et al. 2019 for RecurrentA2C."""

from __future__ import annotations

from typing import Any

import torch

from rlgates.agents.tvt import TVT

# Options of `RMAPolicy` by agent; the empty name is for any policy.
_AGENTS: dict[str, dict[str, Any]] = {
    "": {},
    "rma_": {"core": "rma"},
    "rma_tvt_": {"core": "rma"},
    "lstm_mem_": {"core": "rma", "reconstruction": False},
    "lstm_": {"core": "rma", "reconstruction": False, "core_kwargs": {"memory": False}},
}


def _hung2019(agent: str, gamma: float) -> dict[str, Any]:
    """Settings of the authors' code: one update for 16 whole episodes, lambda = gamma, no clipping
    of the gradient norm. Their value loss is 0.4 * 0.5 * (G - V)^2."""
    settings = {
        "gamma": gamma,
        "gae_lambda": gamma,
        "learning_rate": 2e-4,
        "ent_coef": 0.05,
        "vf_coef": 0.2,
        "max_grad_norm": float("inf"),
        "sum_over_time": True,
        "use_rms_prop": False,
        "policy_kwargs": {
            "optimizer_class": torch.optim.Adam,
            "optimizer_kwargs": {"betas": (0.0, 0.95), "eps": 1e-6},
            **_AGENTS[agent],
        },
    }
    return {**settings, "tvt": TVT()} if "tvt" in agent else settings


A2C_PRESETS: dict[str, dict[str, Any]] = {
    f"hung2019_{agent}gamma_{str(gamma).removeprefix('0.').removesuffix('.0')}": _hung2019(
        agent, gamma
    )
    for agent in _AGENTS
    for gamma in (0.92, 0.96, 0.998, 1.0)
}
"""Arguments of `RecurrentA2C`, without n_steps, which is the length of an episode in the paper.
Presets with the name of an agent are for "RMAPolicy"."""
