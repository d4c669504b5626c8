"""Recurrent A2C with any core."""

from __future__ import annotations

from typing import Any, ClassVar

import stable_baselines3
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import GymEnv

from rlgates.agents.policies import CnnLstmPolicy, MlpLstmPolicy, MultiInputLstmPolicy
from rlgates.agents.rma import RMAPolicy
from rlgates.agents.rollouts import SequenceRollouts
from rlgates.agents.sequences import SequencePolicy
from rlgates.agents.tvt import TVT, check_tvt
from rlgates.agents.updates import Means, all_or_nothing, check_norm, explained_variance
from rlgates.errors import check_flag, check_size


class RecurrentA2C(SequenceRollouts, stable_baselines3.A2C):
    """Advantage actor-critic (Mnih et al. 2016, synchronous) with any core.

        RecurrentA2C("MlpLstmPolicy", env, n_steps=16, policy_kwargs={"core": "ur_lstm"})

    Arguments are those of `stable_baselines3.A2C`, and those below; those of the policies stand
    in `rlgates.agents.MlpLstmPolicy` and `RMAPolicy`. Each update makes one step on the whole
    rollout, as n_envs sequences of n_steps. `rlgates.agents.A2C_PRESETS` has settings of papers.

    Args:
        env: as in SB3, or a batch of tensors of `rlgates.envs.torch.make_torch_env`.
        chunk_len, burn_in: as in `rlgates.RecurrentPPO`.
        sum_over_time: the losses are summed over the n_steps and averaged over environments
            (Hung et al. 2019), instead of averaged over both.
        tvt: `rlgates.agents.TVT()` for temporal value transport, which needs an RMA core and
            rollouts of whole episodes.

    Raises:
        ValueError: as `rlgates.RecurrentPPO`. TypeError: a policy class without the methods of
            `SequencePolicy`.
    """

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {
        "MlpLstmPolicy": MlpLstmPolicy,
        "CnnLstmPolicy": CnnLstmPolicy,
        "MultiInputLstmPolicy": MultiInputLstmPolicy,
        "RMAPolicy": RMAPolicy,
    }

    def __init__(
        self,
        policy: str | type[SequencePolicy],
        env: GymEnv | str,
        *args: Any,
        chunk_len: int | None = None,
        burn_in: int = 0,
        sum_over_time: bool = False,
        tvt: TVT | None = None,
        **kwargs: Any,
    ) -> None:
        self.chunk_len = None if chunk_len is None else check_size("chunk_len", chunk_len)
        self.burn_in = check_size("burn_in", burn_in, minimum=0)
        self.sum_over_time = check_flag("sum_over_time", sum_over_time)
        self.tvt = check_tvt(tvt)
        super().__init__(policy, env, *args, **kwargs)
        if self.env is not None:
            self._checked_chunk_len()

    def _setup_model(self) -> None:
        super()._setup_model()
        self._use_sequences()

    def train(self) -> None:
        """Update the policy with the rollout that has been made."""
        self.policy.set_training_mode(True)
        self._update_learning_rate(self.policy.optimizer)
        buffer, means = self.rollout_buffer, Means()
        (batch,) = buffer.minibatches(None, self.policy)
        with all_or_nothing(self.policy):
            seen = self._evaluate(batch)
            advantages = batch.advantages
            if self.normalize_advantage:
                advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
            policy_loss = -(advantages * seen.log_probs).mean()
            value_loss = (batch.returns - seen.values).square().mean()
            entropy_loss = (seen.log_probs if seen.entropy is None else -seen.entropy).mean()
            loss = policy_loss + self.ent_coef * entropy_loss + self.vf_coef * value_loss
            for value in seen.auxiliary.values():
                loss = loss + value
            norm = self._step_optimizer(loss * self.n_steps if self.sum_over_time else loss)
            check_norm([norm])
        means.add(
            policy_loss=policy_loss,
            value_loss=value_loss,
            entropy_loss=entropy_loss,
            loss=loss,
            grad_norm=norm,
            **seen.auxiliary,
        )
        self._n_updates += 1
        variance = explained_variance(buffer.values, buffer.returns)
        self._record({**means.result(), "explained_variance": variance})
