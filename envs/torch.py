"""Front end for torch: a batch of environments whose arrays are tensors on any device.

This is the only file of the environments that needs torch.
"""

from __future__ import annotations

from typing import Any

import array_api_compat.torch
import torch

from rlgates.envs.engine import BatchedEnv
from rlgates.envs.tasks import make_task


def make_torch_env(
    env_id: str,
    n_envs: int,
    seed: int | None = None,
    *,
    device: torch.device | str = "cpu",
    debug: bool = False,
    **settings: Any,
) -> BatchedEnv:
    """`n_envs` environments `env_id` with `settings`, as tensors on `device`.

    They are the environments that the same seed gives in NumPy, bit for bit. On a GPU no step
    waits for the device; where episodes differ in length, each step prepares a start for every
    row, and info has the entries of finished rows at every step.

    Args:
        env_id: for example "rlgates/PassiveMatch-v0".
        n_envs: at least 1.
        seed: in [0, 2**64); None draws one at the first reset.
        device: of all tensors.
        debug: check the values of actions on a GPU too, which waits for it.
        settings: of the task, with `preset` and those of `View`.

    Raises:
        ValueError: unknown id or setting (the nearest known one is named), or a value out of
            range. TypeError: a value of the wrong type.
    """
    return BatchedEnv(
        make_task(env_id, **settings),
        n_envs,
        seed,
        xp=array_api_compat.torch,
        device=torch.device(device),
        debug=debug,
    )
