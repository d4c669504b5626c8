"""Settings of papers for RecurrentA2C."""

from __future__ import annotations

from typing import Any

import torch

from rlgates.agents.tvt import TVT

# The agents of Hung et al. 2019; without a name the settings alone, for any policy.
_HUNG: dict[str, dict[str, Any]] = {
    "": {},
    "rma_": {"core": "rma"},
    "rma_tvt_": {"core": "rma"},
    "lstm_mem_": {"core": "rma", "reconstruction": False},
    "lstm_": {"core": "rma", "reconstruction": False, "core_kwargs": {"memory": False}},
}


def _hung2019(agent: str, gamma: float) -> dict[str, Any]:
    """Released code: one update for 16 whole episodes, lambda = gamma, and no clipping of the
    gradient's norm. Their value loss is 0.4 * 0.5 * (G - V)^2."""
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
            **_HUNG[agent],
        },
    }
    return {**settings, "tvt": TVT()} if "tvt" in agent else settings


# Arguments of `RecurrentA2C`; n_steps is the length of an episode there. Those that name an agent
# are for "RMAPolicy".
A2C_PRESETS: dict[str, dict[str, Any]] = {
    f"hung2019_{agent}gamma_{str(gamma).removeprefix('0.').removesuffix('.0')}": _hung2019(
        agent, gamma
    )
    for agent in _HUNG
    for gamma in (0.92, 0.96, 0.998, 1.0)
}
