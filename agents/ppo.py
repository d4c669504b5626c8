"""Recurrent PPO with any core."""

from __future__ import annotations

from typing import Any, ClassVar

import sb3_contrib
import sb3_contrib.ppo_recurrent.policies as upstream
import torch
from sb3_contrib.common.recurrent.policies import RecurrentActorCriticPolicy
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import GymEnv
from torch import Tensor

from rlgates.agents.buffers import Minibatch
from rlgates.agents.clipped_loss import Weights, clipped_loss
from rlgates.agents.policies import CnnLstmPolicy, MlpLstmPolicy, MultiInputLstmPolicy
from rlgates.agents.rma import RMAPolicy
from rlgates.agents.rollouts import SequenceRollouts
from rlgates.agents.sequences import SequencePolicy
from rlgates.agents.tvt import TVT, check_tvt
from rlgates.agents.updates import Means, all_or_nothing, check_norm, explained_variance
from rlgates.errors import check_choice, check_flag, check_size

_OURS: dict[type[BasePolicy], type[BasePolicy]] = {
    upstream.MlpLstmPolicy: MlpLstmPolicy,
    upstream.CnnLstmPolicy: CnnLstmPolicy,
    upstream.MultiInputLstmPolicy: MultiInputLstmPolicy,
}


class RecurrentPPO(SequenceRollouts, sb3_contrib.RecurrentPPO):
    """Proximal policy optimization (Schulman et al. 2017) with any core.

        RecurrentPPO("MlpLstmPolicy", env, policy_kwargs={"core": "ur_lstm"})

    Arguments are those of `sb3_contrib.RecurrentPPO`, and those below; those of the policies
    stand in `rlgates.agents.MlpLstmPolicy` and `RMAPolicy`. Minibatches are whole sequences: of
    n_steps, if `batch_size` is a multiple of it, else of `batch_size` steps. `load` also takes a
    model that sb3-contrib saved: its LSTM becomes `core="lstm"` with equal weights.

    Args:
        env: as in SB3, or a batch of tensors of `rlgates.envs.torch.make_torch_env`, with which
            a rollout never leaves the device.
        chunk_len: steps of the sequences that a minibatch is made of, and so how far gradients
            go back; a divisor of n_steps and batch_size. None for the longest.
        burn_in: steps before a sequence over which the state that it begins in is made anew, in
            every epoch and without gradients (Kapturowski et al. 2019); less than chunk_len.
        refresh_states: make these states anew before every epoch but the first, over the whole
            rollout.
        kl_stop: whether the epochs end when the KL divergence of a "minibatch" is above
            1.5 target_kl, without stepping there, as upstream does; or of an "epoch" on average.
        sequences: "whole", as said above, or "upstream": sb3-contrib's own minibatches, which are
            cut, split at episode starts and padded; to compare with.
        tvt: as in `rlgates.RecurrentA2C`.

    Raises:
        ValueError: an unknown core or option; numbers that do not divide, with the nearest that
            do; auxiliary losses or `tvt` with `sequences="upstream"`, which knows neither. With
            `tvt`, a core without an RMA's memory, and rollouts that cut episodes. While learning:
            observations, rewards or gradients that are not finite; the model is then as it was
            before the update.
        TypeError: a policy class without the methods of `SequencePolicy`.
    """

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {
        "MlpLstmPolicy": MlpLstmPolicy,
        "CnnLstmPolicy": CnnLstmPolicy,
        "MultiInputLstmPolicy": MultiInputLstmPolicy,
        "RMAPolicy": RMAPolicy,
    }

    def __init__(
        self,
        policy: str | type[RecurrentActorCriticPolicy],
        env: GymEnv | str,
        *args: Any,
        chunk_len: int | None = None,
        burn_in: int = 0,
        refresh_states: bool = False,
        kl_stop: str = "minibatch",
        sequences: str = "whole",
        tvt: TVT | None = None,
        **kwargs: Any,
    ) -> None:
        self.chunk_len = None if chunk_len is None else check_size("chunk_len", chunk_len)
        self.burn_in = check_size("burn_in", burn_in, minimum=0)
        self.refresh_states = check_flag("refresh_states", refresh_states)
        self.kl_stop = check_choice("kl_stop", kl_stop, ("minibatch", "epoch"))
        self.sequences = check_choice("sequences", sequences, ("whole", "upstream"))
        self.tvt = check_tvt(tvt)
        super().__init__(policy, env, *args, **kwargs)
        if self.env is not None and self.sequences == "whole":
            self._checked_chunk_len()

    def _setup_model(self) -> None:
        # A model that sb3-contrib saved names its own policies: ours take its weights.
        self.policy_class = _OURS.get(self.policy_class, self.policy_class)
        super()._setup_model()
        if self.sequences == "whole":
            self._use_sequences()
        elif self.tvt is not None or _has_auxiliary_losses(self.policy):
            raise ValueError("auxiliary losses and tvt need sequences='whole'.")

    def _minibatch(self) -> int | None:
        return self.batch_size

    def collect_rollouts(self, *args: Any, **kwargs: Any) -> bool:
        if self.sequences == "upstream":
            return sb3_contrib.RecurrentPPO.collect_rollouts(self, *args, **kwargs)
        return SequenceRollouts.collect_rollouts(self, *args, **kwargs)

    def train(self) -> None:
        """Update the policy with the rollout that has been made."""
        if self.sequences == "upstream":
            return super().train()
        self.policy.set_training_mode(True)
        self._update_learning_rate(self.policy.optimizer)
        means = Means()
        with all_or_nothing(self.policy):
            for epoch in range(self.n_epochs):
                if epoch and self.refresh_states:
                    self.rollout_buffer.refresh(self.policy)
                stop = self._epoch(means)
                self._n_updates += 1
                if stop:
                    break
        buffer = self.rollout_buffer
        self._record(
            {
                **means.result(),
                "explained_variance": explained_variance(buffer.values, buffer.returns),
                "clip_range": self._clip_range(),
                **({"clip_range_vf": self._clip_range_vf()} if self.clip_range_vf else {}),
            }
        )
        return None

    def _epoch(self, means: Means) -> bool:
        """Go once through the rollout; whether to stop there."""
        norms: list[Tensor] = []
        divergences: list[Tensor] = []
        limit = None if self.target_kl is None else 1.5 * self.target_kl
        for batch in self.rollout_buffer.minibatches(self.batch_size, self.policy):
            loss, divergence = self._loss(batch, means)
            divergences.append(divergence)
            if limit is not None and self.kl_stop == "minibatch" and divergence > limit:
                check_norm(norms)
                return True
            norms.append(self._step_optimizer(loss))
        check_norm(norms)
        return limit is not None and bool(torch.stack(divergences).mean() > limit)

    def _loss(self, batch: Minibatch, means: Means) -> tuple[Tensor, Tensor]:
        """The loss of a minibatch, and an estimate of the KL divergence."""
        seen = self._evaluate(batch)
        advantages = batch.advantages
        if self.normalize_advantage:
            advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        bound_vf = None if self.clip_range_vf is None else self._clip_range_vf()
        weights = Weights(self._clip_range(), bound_vf, self.ent_coef, self.vf_coef)
        losses = clipped_loss(seen, batch, advantages, weights)
        loss = losses.loss
        for value in seen.auxiliary.values():
            loss = loss + value
        means.add(**{**losses._asdict(), "loss": loss}, **seen.auxiliary)
        return loss, losses.approx_kl

    def _clip_range(self) -> float:
        schedule: Any = self.clip_range
        return float(schedule(self._current_progress_remaining))

    def _clip_range_vf(self) -> float:
        schedule: Any = self.clip_range_vf
        return float(schedule(self._current_progress_remaining))

    def _setup_learn(self, *args: Any, **kwargs: Any) -> Any:
        if self.sequences == "upstream":
            return sb3_contrib.RecurrentPPO._setup_learn(self, *args, **kwargs)
        return super()._setup_learn(*args, **kwargs)


def _has_auxiliary_losses(policy: Any) -> bool:
    own = getattr(type(policy), "auxiliary_losses", SequencePolicy.auxiliary_losses)
    return own is not SequencePolicy.auxiliary_losses
