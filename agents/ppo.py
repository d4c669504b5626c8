"""Recurrent PPO with any core."""

from __future__ import annotations

from typing import Any, ClassVar

import sb3_contrib
import sb3_contrib.ppo_recurrent.policies as upstream
from gymnasium import spaces
from sb3_contrib.common.recurrent.policies import RecurrentActorCriticPolicy
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import GymEnv

from rlgates.agents.buffers import SequenceDictRolloutBuffer, SequenceRolloutBuffer
from rlgates.agents.policies import CnnLstmPolicy, MlpLstmPolicy, MultiInputLstmPolicy
from rlgates.errors import nearest_divisor

_OURS: dict[type[BasePolicy], type[BasePolicy]] = {
    upstream.MlpLstmPolicy: MlpLstmPolicy,
    upstream.CnnLstmPolicy: CnnLstmPolicy,
    upstream.MultiInputLstmPolicy: MultiInputLstmPolicy,
}


class RecurrentPPO(sb3_contrib.RecurrentPPO):
    """`sb3_contrib.RecurrentPPO` whose policy names take any core.

        RecurrentPPO("MlpLstmPolicy", env, policy_kwargs={"core": "ur_lstm"})

    All arguments are those of `sb3_contrib.RecurrentPPO`; those of the policies stand in
    `rlgates.agents.MlpLstmPolicy`. `load` also takes a model that sb3-contrib saved: its
    LSTM becomes `core="lstm"` with equal weights. A `batch_size` that is a multiple of
    `n_steps` makes minibatches of whole environments, which is also the fastest.

    Raises:
        ValueError: an unknown core or option; a `batch_size` that does not divide the rollout
            of n_steps * n_envs, which would leave a last minibatch of another size (of a
            single step at worst, whose advantage cannot be normalized).
    """

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {
        "MlpLstmPolicy": MlpLstmPolicy,
        "CnnLstmPolicy": CnnLstmPolicy,
        "MultiInputLstmPolicy": MultiInputLstmPolicy,
    }

    def __init__(
        self,
        policy: str | type[RecurrentActorCriticPolicy],
        env: GymEnv | str,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        super().__init__(policy, env, *args, **kwargs)
        if self.env is not None:
            self._check_batch_size()

    def _setup_model(self) -> None:
        # A model that sb3-contrib saved names its own policies: ours take its weights.
        self.policy_class = _OURS.get(self.policy_class, self.policy_class)
        super()._setup_model()
        is_dict = isinstance(self.observation_space, spaces.Dict)
        buffer_class = SequenceDictRolloutBuffer if is_dict else SequenceRolloutBuffer
        upstream_buffer: Any = self.rollout_buffer
        self.rollout_buffer = buffer_class(
            self.n_steps,
            self.observation_space,
            self.action_space,
            upstream_buffer.hidden_state_shape,
            self.device,
            gamma=self.gamma,
            gae_lambda=self.gae_lambda,
            n_envs=self.n_envs,
        )

    def _check_batch_size(self) -> None:
        rollout, size = self.n_steps * self.n_envs, self.batch_size
        if size is None or (size > 1 and rollout % size == 0):
            return
        raise ValueError(
            f"batch_size must be at least 2 and divide the rollout, n_steps * n_envs = "
            f"{self.n_steps} * {self.n_envs} = {rollout}; got {size}. "
            f"Nearest: {nearest_divisor(rollout, size, minimum=2)}."
        )

    def learn(self, *args: Any, **kwargs: Any) -> RecurrentPPO:
        """As upstream, with the batch size checked again: a loaded model may have other envs."""
        self._check_batch_size()
        return super().learn(*args, **kwargs)
