"""Front end for torch: a batch of environments whose arrays are tensors on any device.

This is the only file of the environments that needs torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias, cast

import array_api_compat.torch
import torch
from torch import Tensor

from rlgates.envs.engine import BatchedEnv, Task
from rlgates.envs.tasks import make_task

TensorObservation: TypeAlias = Tensor | dict[str, Tensor]
"""What agents see: a tensor (B, ...), or several by name."""


class TorchEnv(BatchedEnv):
    """A `BatchedEnv` of tensors; all is as there, but for the types.

    Args:
        device: of all tensors. Others: as in `BatchedEnv`.
    """

    def __init__(
        self,
        task: Task,
        num_envs: int,
        seed: int | None = None,
        first_index: int = 0,
        *,
        device: torch.device | str = "cpu",
        debug: bool = False,
    ) -> None:
        kind = {"xp": array_api_compat.torch, "device": torch.device(device)}
        super().__init__(task, num_envs, seed, first_index, debug=debug, **kind)

    # The engine knows no torch: its hints speak of NumPy arrays.

    @property
    def state(self) -> dict[str, Tensor]:  # type: ignore[override]
        """The task's state, (num_envs, ...) tensors to read and not to write."""
        return cast("dict[str, Tensor]", super().state)

    def reset(  # type: ignore[override]
        self, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[TensorObservation, dict[str, Any]]:
        """As `BatchedEnv.reset`."""
        return cast("tuple[TensorObservation, dict[str, Any]]", super().reset(seed, options))

    def step(  # type: ignore[override]
        self, actions: Any
    ) -> tuple[TensorObservation, Tensor, Tensor, Tensor, dict[str, Any]]:
        """As `BatchedEnv.step`."""
        return cast(
            "tuple[TensorObservation, Tensor, Tensor, Tensor, dict[str, Any]]",
            super().step(actions),
        )

    def set_state(self, saved: Mapping[str, Any]) -> TensorObservation:  # type: ignore[override]
        """As `BatchedEnv.set_state`."""
        return cast("TensorObservation", super().set_state(saved))


def make_torch_env(
    env_id: str,
    num_envs: int,
    seed: int | None = None,
    *,
    device: torch.device | str = "cpu",
    debug: bool = False,
    **settings: Any,
) -> TorchEnv:
    """`num_envs` environments `env_id` with `settings`, as tensors on `device`.

    They are the environments that the same seed gives in NumPy, bit for bit. On a GPU no step
    waits for the device; where episodes differ in length, each step prepares a start for every
    row, and info has the entries of finished rows at every step.

    Args:
        env_id: for example "rlgates/PassiveMatch-v0".
        num_envs: at least 1.
        seed: in [0, 2**64); None draws one at the first reset.
        device: of all tensors.
        debug: check the values of actions on a GPU too, which waits for it.
        settings: of the task, with `preset` and those of `View`.

    Raises:
        ValueError: unknown id or setting (the nearest known one is named), or a value out of
            range. TypeError: a value of the wrong type.
    """
    return TorchEnv(make_task(env_id, **settings), num_envs, seed, device=device, debug=debug)
