"""Front end for torch: a batch of environments whose arrays are tensors on any device.

This is the only file of the environments that needs torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias, cast

import array_api_compat.torch
import torch
from torch import Tensor

from rlgates.cell import check_device
from rlgates.deprecation import renamed_arguments
from rlgates.envs.engine.batched import BatchedEnv
from rlgates.envs.engine.spec import EnvSpec
from rlgates.envs.registration import make_env_spec

TensorObservation: TypeAlias = Tensor | dict[str, Tensor]
"""What agents observe: a tensor (B, ...), or several by name."""


class TorchEnv(BatchedEnv):
    """A `BatchedEnv` with tensors for arrays.

    Args:
        device: of all tensors. The others are those of `BatchedEnv`.
    """

    _static_variables: list[Tensor] | None = None

    @renamed_arguments(task="spec")
    def __init__(
        self,
        spec: EnvSpec,
        num_envs: int,
        seed: int | None = None,
        first_index: int = 0,
        *,
        device: torch.device | str = "cpu",
        debug: bool = False,
    ) -> None:
        arrays = {"xp": array_api_compat.torch, "device": check_device(device)}
        super().__init__(spec, num_envs, seed, first_index, debug=debug, **arrays)

    # The engine does not import torch: its annotations say NumPy arrays.

    @property
    def state(self) -> dict[str, Tensor]:  # type: ignore[override]
        """The state of the game, (num_envs, ...) tensors. Do not write into them."""
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

    def _check(self, actions: Any) -> Any:
        # With the gradients of actions, a state would hold the graph of all steps before it.
        return super()._check(actions.detach() if isinstance(actions, Tensor) else actions)

    @property
    def can_step_in_place(self) -> bool:
        """Whether a step never reads values, for which it would have to wait for a GPU."""
        return not self._looks

    @property
    def may_end(self) -> bool:
        """Whether an episode may end in the next step: such steps consist of other operations."""
        return self._length is None or self._clock + 1 == self._length

    def step_in_place(
        self, actions: Any, may_end: bool
    ) -> tuple[TensorObservation, Tensor, Tensor, dict[str, Tensor]]:
        """As `step`, but the state stays in the same tensors and the clock stops: see `tick`.

        A CUDA graph can record that: one for steps in which an episode may end, and one for the
        others.

        Returns:
            observation, reward and terminated as from `step`; and, with `may_end`,
            `episode_return`, `episode_length` and the metrics of the spec.
        """
        own = self._variables()
        step: Any = self.advance(cast("Any", self._state), self._check(actions))
        state, reward, finished, obs = step
        self._return = self._return + reward
        results: dict[str, Any] = {}
        if may_end:
            results = self._results(state)
            state, obs = self._restart(state, obs, finished)
        self._state = state
        # Before any is overwritten: what was one variable may have become another one.
        new = [x if x is old else x.clone() for old, x in zip(own, self._variables(), strict=True)]
        for old, x in zip(own, new, strict=True):
            if x is not old:
                old.copy_(x)
        self._set_variables(own)
        return obs, reward, finished, results

    def tick(self, ended: bool) -> None:
        """Advance the clock by a step that `step_in_place` took, or a replay of it."""
        self._clock = 0 if ended else self._clock + 1

    def make_variables_static(self) -> None:
        """Move the state into tensors that never change, for `step_in_place`.

        This also sets the clock, which an interrupted step may have left behind, and so waits for a
        GPU.
        """
        if self._length is not None:
            self._clock = int(self.state["t"][0])
        if self._static_variables is None:
            self._static_variables = [
                torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in self._variables()
            ]
        for tensor, value in zip(self._static_variables, self._variables(), strict=True):
            if tensor is not value:
                tensor.copy_(value)
        self._set_variables(self._static_variables)

    def _variables(self) -> list[Tensor]:
        """All that a step reads, but for the seed, and what it replaces."""
        state: Any = self._state  # the property stops torch.compile
        parts = [state[name] for name in sorted(state)]
        return cast("list[Tensor]", [self._index, self._episode, self._return, *parts])

    def _set_variables(self, tensors: list[Tensor]) -> None:
        variables: Any = tensors
        self._index, self._episode, self._return, *parts = variables
        state: Any = self._state
        self._state = dict(zip(sorted(state), parts, strict=True))

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
    first_index: int = 0,
    **settings: Any,
) -> TorchEnv:
    """`num_envs` environments `env_id` with `settings`, as tensors on `device`.

    They equal the NumPy environments of the same seed, bit for bit. On a GPU no step
    synchronizes; where episodes differ in length, each step computes a new episode for every
    environment, and info has the entries of finished episodes at every step.

    Args:
        env_id: for example "rlgates/PassiveMatch-v0".
        num_envs: at least 1.
        seed: in [0, 2**64); None takes one from the operating system at the first reset.
        device: of all tensors.
        debug: check the values of actions on a GPU too, which synchronizes.
        first_index: of the first environment, as in `BatchedEnv`.
        settings: of the game, with `preset` and those of `View`.

    Raises:
        ValueError: unknown id or setting (the nearest known one is named), or a value out of
            range. TypeError: a value of the wrong type.
    """
    spec = make_env_spec(env_id, **settings)
    return TorchEnv(spec, num_envs, seed, first_index, device=device, debug=debug)
