"""Recurrent PPO with action masks."""

from __future__ import annotations

import warnings
from typing import Any, ClassVar, Self

import numpy as np
import torch
from gymnasium import spaces
from sb3_contrib.common.maskable import callbacks as contrib_callbacks
from sb3_contrib.common.maskable.distributions import (
    MaskableDistribution,
    make_masked_proba_distribution,
)
from sb3_contrib.common.maskable.utils import get_action_masks, is_masking_supported
from stable_baselines3.common.callbacks import BaseCallback, EvalCallback
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import MaybeCallback
from stable_baselines3.common.vec_env import VecEnv
from torch import Tensor

from rlgates.agents.policies import CnnLstmPolicy, MlpLstmPolicy, MultiInputLstmPolicy
from rlgates.agents.ppo import RecurrentPPO
from rlgates.agents.sequences.buffers import RolloutArrays
from rlgates.agents.sequences.distributions import unchecked
from rlgates.agents.sequences.policy import Latents, SequencePolicy
from rlgates.agents.sequences.rollouts import callers_level
from rlgates.errors import check_flag

_MASKABLE_SPACES = (spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


class MaskableMlpLstmPolicy(MlpLstmPolicy):
    """`MlpLstmPolicy` whose `predict` takes `action_masks`, like sb3-contrib's policies.

    `predict` warns, once, where a step in the middle of an episode comes without a `state`, as it
    does from the `evaluate_policy` of sb3-contrib for maskable models.

    Raises:
        ValueError: actions that are not Discrete, MultiDiscrete or MultiBinary.
    """

    takes_masks: ClassVar[bool] = True
    action_dist: MaskableDistribution
    _masks: Any = None
    _warned_of_no_state = False

    def _replace_distribution(self) -> None:
        if not isinstance(self.action_space, _MASKABLE_SPACES):
            raise ValueError(
                "masks are for Discrete, MultiDiscrete and MultiBinary actions, got "
                f"{self.action_space}."
            )
        self.action_dist = unchecked(make_masked_proba_distribution(self.action_space))
        if isinstance(self.action_space, spaces.MultiBinary):  # two logits for each action
            width = self.mlp_extractor.latent_dim_pi
            self.action_net = self.action_dist.proba_distribution_net(width)
            if self.ortho_init:
                self.init_weights(self.action_net, gain=0.01)

    def _get_action_dist_from_latent(self, latent_pi: Tensor) -> MaskableDistribution:
        distribution: MaskableDistribution
        distribution = self.action_dist.proba_distribution(self.action_net(latent_pi))
        if self._masks is not None:
            _check_masks(self._masks, self.action_space, len(latent_pi))
            distribution.apply_masking(self._masks)
        return distribution

    def distribution(self, latents: Latents, action_masks: Tensor | None) -> MaskableDistribution:
        distribution = self._get_action_dist_from_latent(latents.pi)
        if action_masks is not None:
            distribution.apply_masking(action_masks)
        return distribution

    def predict(
        self,
        observation: np.ndarray[Any, Any] | dict[str, np.ndarray[Any, Any]],
        state: tuple[np.ndarray[Any, Any], ...] | None = None,
        episode_start: np.ndarray[Any, Any] | None = None,
        deterministic: bool = False,
        action_masks: Any = None,
    ) -> tuple[np.ndarray[Any, Any], tuple[np.ndarray[Any, Any], ...] | None]:
        """As in `MaskablePPO`; `action_masks` (n_envs, ...) is true where an action is allowed."""
        if state is None and episode_start is not None and not np.all(episode_start):
            self._warn_of_no_state()
        self._masks = action_masks
        try:
            return super().predict(observation, state, episode_start, deterministic)
        finally:
            self._masks = None

    def _warn_of_no_state(self) -> None:
        if not self._warned_of_no_state:
            self._warned_of_no_state = True
            warnings.warn(
                "predict got no state in the middle of an episode (episode_start is False), so the "
                "agent has forgotten what came before: pass the state that it returned. The "
                "evaluate_policy and MaskableEvalCallback of sb3_contrib.common.maskable drop it; "
                "use those of rlgates.agents.",
                stacklevel=callers_level(),
            )


def _check_masks(action_masks: Any, space: Any, count: int) -> None:
    """Raise unless they are masks of the actions of `count` environments."""
    choices = int(spaces.flatdim(space))
    width = 2 * choices if isinstance(space, spaces.MultiBinary) else choices
    masks = np.asarray(action_masks)
    if masks.dtype.kind not in "biuf":
        raise TypeError(f"action_masks must be true or false, got {action_masks!r}.")
    if masks.size != count * width:
        raise ValueError(
            f"action_masks must be ({count}, {width}), one for each action, got {masks.shape}."
        )


class MaskableCnnLstmPolicy(MaskableMlpLstmPolicy, CnnLstmPolicy):
    """`CnnLstmPolicy` with masks."""


class MaskableMultiInputLstmPolicy(MaskableMlpLstmPolicy, MultiInputLstmPolicy):
    """`MultiInputLstmPolicy` with masks."""


class MaskableRecurrentPPO(RecurrentPPO):
    """`rlgates.RecurrentPPO` with action masks, following the conventions of sb3-contrib.

        MaskableRecurrentPPO("MlpLstmPolicy", env, policy_kwargs={"core": "ur_lstm"})

    The environment must have a method `action_masks`, which returns whether each action is
    currently allowed (`sb3_contrib.common.wrappers.ActionMasker` adds one). For MultiDiscrete and
    MultiBinary actions it concatenates their masks. `predict` takes `action_masks`, and
    `rlgates.agents.evaluate_policy` and `MaskableEvalCallback` pass them, with the state. The
    functions of sb3-contrib with these names drop the state: their agents act without memory.

    Raises:
        ValueError: as in `rlgates.RecurrentPPO`; while learning, an environment without masks.
        TypeError: a policy that takes no masks.
    """

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {
        "MlpLstmPolicy": MaskableMlpLstmPolicy,
        "CnnLstmPolicy": MaskableCnnLstmPolicy,
        "MultiInputLstmPolicy": MaskableMultiInputLstmPolicy,
    }

    use_masking = True

    def _check_policy_class(self) -> None:
        super()._check_policy_class()
        policy: Any = self.policy_class
        if policy.distribution is SequencePolicy.distribution:
            raise TypeError(
                f"the policy must take action masks, as MaskableMlpLstmPolicy does, got "
                f"{policy.__name__}."
            )

    def _setup_learn(self, *args: Any, **kwargs: Any) -> Any:
        if self.use_masking and self.env is not None and not is_masking_supported(self.env):
            raise ValueError(
                "the environment has no method action_masks: wrap it in "
                "sb3_contrib.common.wrappers.ActionMasker, or learn with use_masking=False."
            )
        return super()._setup_learn(*args, **kwargs)

    def _action_masks(self, env: VecEnv) -> Tensor | None:
        if not self.use_masking:
            return None
        masks = get_action_masks(env)
        _check_masks(masks, self.action_space, env.num_envs)
        return torch.as_tensor(masks, dtype=torch.bool, device=self.device)

    def learn(  # type: ignore[override]
        self,
        total_timesteps: int,
        callback: MaybeCallback = None,
        log_interval: int | None = 1,
        tb_log_name: str = "RecurrentPPO",
        reset_num_timesteps: bool = True,
        use_masking: bool = True,
        progress_bar: bool = False,
    ) -> Self:
        """As in sb3-contrib's `MaskablePPO`; `use_masking=False` allows every action."""
        self._set_masking(use_masking)
        return super().learn(
            total_timesteps, callback, log_interval, tb_log_name, reset_num_timesteps, progress_bar
        )

    def collect_rollouts(  # type: ignore[override]
        self,
        env: VecEnv,
        callback: BaseCallback,
        rollout_buffer: RolloutArrays,
        n_rollout_steps: int,
        use_masking: bool | None = None,
    ) -> bool:
        """As in `RecurrentPPO`; `use_masking` as in `learn`, None for that of the last `learn`."""
        if use_masking is not None:
            self._set_masking(use_masking)
        return super().collect_rollouts(env, callback, rollout_buffer, n_rollout_steps)

    def _set_masking(self, use_masking: bool) -> None:
        self.use_masking = check_flag("use_masking", use_masking)
        if not self.use_masking:
            self.rollout_buffer.sequences.action_masks = None

    def predict(
        self,
        observation: np.ndarray[Any, Any] | dict[str, np.ndarray[Any, Any]],
        state: tuple[np.ndarray[Any, Any], ...] | None = None,
        episode_start: np.ndarray[Any, Any] | None = None,
        deterministic: bool = False,
        action_masks: Any = None,
    ) -> tuple[np.ndarray[Any, Any], tuple[np.ndarray[Any, Any], ...] | None]:
        """As in `MaskablePPO`; `action_masks` (n_envs, ...) is true where an action is allowed."""
        policy: Any = self.policy
        return policy.predict(  # type: ignore[no-any-return]
            observation, state, episode_start, deterministic, action_masks=action_masks
        )


class MaskableEvalCallback(contrib_callbacks.MaskableEvalCallback):
    """SB3's `EvalCallback` with action masks, for agents with memory.

        model.learn(100_000, callback=MaskableEvalCallback(eval_env, eval_freq=1_000))

    That of sb3-contrib drops the recurrent state at every step.

    Args:
        args, kwargs: of `EvalCallback`.
        use_masking: ask the environment for masks; False allows every action.

    Raises:
        ValueError: when learning begins, an environment without masks.
    """

    def _init_callback(self) -> None:
        if self.use_masking and not is_masking_supported(self.eval_env):
            raise ValueError(
                "the environment of the evaluation has no method action_masks: wrap it in "
                "sb3_contrib.common.wrappers.ActionMasker, or pass use_masking=False."
            )
        super()._init_callback()

    def _on_step(self) -> bool:
        model = self.model
        if self.use_masking:
            self.model = _WithMasks(model, self.eval_env)  # type: ignore[assignment]
        try:
            return EvalCallback._on_step(self)
        finally:
            self.model = model


class _WithMasks:
    """A model that asks an environment for the masks of its actions."""

    def __init__(self, model: Any, env: VecEnv) -> None:
        self._model, self._env = model, env

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def predict(self, *args: Any, **kwargs: Any) -> Any:
        return self._model.predict(*args, **kwargs, action_masks=get_action_masks(self._env))
