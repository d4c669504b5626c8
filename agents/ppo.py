"""Recurrent PPO with any core."""

from __future__ import annotations

import math
import warnings
from typing import Any, ClassVar, Literal, Self

import sb3_contrib
import sb3_contrib.ppo_recurrent.policies as contrib_policies
import torch
from sb3_contrib.common.recurrent.policies import RecurrentActorCriticPolicy
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import GymEnv, MaybeCallback, Schedule
from stable_baselines3.common.utils import FloatSchedule
from torch import Tensor

from rlgates.agents.arguments import explained
from rlgates.agents.compilation import CompileMode
from rlgates.agents.policies import CnnLstmPolicy, MlpLstmPolicy, MultiInputLstmPolicy
from rlgates.agents.rma.policy import RMAPolicy
from rlgates.agents.sequences.buffers import Minibatch
from rlgates.agents.sequences.losses import native_ppo_losses, ppo_loss
from rlgates.agents.sequences.rollouts import callers_level, check_learning, with_module
from rlgates.agents.sequences.updates import (
    MeanMetrics,
    SequenceAlgorithm,
    all_or_nothing,
    check_gradient_norms,
    explained_variance,
)
from rlgates.agents.tvt import TVT
from rlgates.errors import (
    MAX_LENGTH,
    check_choice,
    check_flag,
    check_nonnegative,
    check_positive,
    check_size,
)
from rlgates.kernels import LossSettings

_CONTRIB_POLICIES: dict[type[BasePolicy], type[BasePolicy]] = {
    contrib_policies.MlpLstmPolicy: MlpLstmPolicy,
    contrib_policies.CnnLstmPolicy: CnnLstmPolicy,
    contrib_policies.MultiInputLstmPolicy: MultiInputLstmPolicy,
}
"""Policies of rlgates by those of sb3-contrib, whose weights they load."""


class RecurrentPPO(SequenceAlgorithm, sb3_contrib.RecurrentPPO):  # type: ignore[misc]
    """Proximal policy optimization (Schulman et al. 2017) with any core.

        RecurrentPPO("MlpLstmPolicy", env, policy_kwargs={"core": "ur_lstm"})

    Takes the arguments of `sb3_contrib.RecurrentPPO` and those below;
    `rlgates.agents.MlpLstmPolicy` and `RMAPolicy` document `policy_kwargs`. Minibatches are whole
    sequences of n_steps, as many as come nearest to `batch_size`; if `batch_size` is smaller than
    n_steps, they are sequences of the nearest length that divides n_steps. A warning is given if
    not all minibatches have `batch_size` steps. `load` also reads models saved by sb3-contrib:
    their LSTM becomes `core="lstm"` with the same weights.

    Args:
        env: as in SB3 (an id of rlgates needs no import), or a batch of tensors from
            `rlgates.envs.torch.make_torch_env`, with which a rollout never leaves the device.
        chunk_len: length in steps of the sequences in a minibatch, and so of backpropagation
            through time; a divisor of n_steps and batch_size. None for the longest possible.
        burn_in: number of steps before a sequence over which its initial state is recomputed, in
            every epoch and without gradients (Kapturowski et al. 2019); less than chunk_len, which
            must be less than n_steps.
        refresh_states: recompute the initial states over the whole rollout before every epoch but
            the first; chunk_len must be less than n_steps.
        kl_stop: end the epochs when the KL divergence exceeds 1.5 target_kl: that of a
            "minibatch", without a gradient step on it, as in SB3; or the mean of an "epoch".
        tvt: as in `rlgates.RecurrentA2C`.
        distributed: train together with the other processes of torch.distributed, each of which
            creates the agent with the same arguments and its own part of the environments.
            `batch_size` and `total_timesteps` count the steps of all processes. The agent is the
            same as one trained by a single process with all environments, up to the order of sums.
            This setting is not saved.
        compile: run the policy's steps, its evaluation of minibatches, the loss and the steps of
            tensor environments through `torch.compile`. True or one of its modes; on a GPU,
            "reduce-overhead" and "max-autotune" record CUDA graphs of whole steps of policy and
            environments, and of minibatches with their gradients. This takes about half a minute at
            the start and computes the same up to rounding. The guide "On a GPU" says when it pays
            off. Where torch.compile does not work, for example without a C++ compiler, a warning is
            given and training continues without it.
        sequences: deprecated; "whole" is the only value.

    Raises:
        ValueError: an unknown core or option; a number out of range; a `chunk_len` or `burn_in`
            that does not fit (the message names the nearest that does); `burn_in` or
            `refresh_states` with a rollout that is one sequence; with `tvt`, a core without
            the memory of an RMA, or rollouts that cut episodes. An unknown mode of `compile`. While
            learning: a policy that cannot be compiled into one graph, or that waits for the GPU in
            a CUDA graph; observations or rewards that are not finite.
        TrainingDiverged (a ValueError): while learning, gradients that are not finite (the model is
            then restored to its state before the update), or such actions, values or probabilities.
        TypeError: a policy class that is not a `SequencePolicy`, or that overrides methods that
            only the algorithms of sb3-contrib call, or has no core of rlgates; an unknown argument;
            when learning, a rollout or an update begins, a policy with an attached method or hook
            that would never run.
    """

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {
        "MlpLstmPolicy": MlpLstmPolicy,
        "CnnLstmPolicy": CnnLstmPolicy,
        "MultiInputLstmPolicy": MultiInputLstmPolicy,
        "RMAPolicy": RMAPolicy,
    }

    @explained
    def __init__(
        self,
        policy: str | type[RecurrentActorCriticPolicy],
        env: GymEnv | str,
        learning_rate: float | Schedule = 3e-4,
        n_steps: int = 128,
        batch_size: int | None = 128,
        n_epochs: int = 10,
        gamma: float = 0.99,
        gae_lambda: float = 0.95,
        clip_range: float | Schedule = 0.2,
        clip_range_vf: float | Schedule | None = None,
        normalize_advantage: bool = True,
        ent_coef: float = 0.0,
        vf_coef: float = 0.5,
        max_grad_norm: float = 0.5,
        use_sde: bool = False,
        sde_sample_freq: int = -1,
        target_kl: float | None = None,
        stats_window_size: int = 100,
        tensorboard_log: str | None = None,
        policy_kwargs: dict[str, Any] | None = None,
        verbose: int = 0,
        seed: int | None = None,
        device: torch.device | str = "auto",
        _init_setup_model: bool = True,
        *,
        chunk_len: int | None = None,
        burn_in: int = 0,
        refresh_states: bool = False,
        kl_stop: Literal["minibatch", "epoch"] = "minibatch",
        tvt: TVT | None = None,
        distributed: bool = False,
        compile: bool | CompileMode = False,
        sequences: str | None = None,
    ) -> None:
        if sequences is not None:
            _check_removed_sequences(sequences)
        self._check_construction(
            policy, env if _init_setup_model else "", policy_kwargs, verbose, device
        )
        self.chunk_len, self.burn_in = chunk_len, burn_in
        self.refresh_states, self.kl_stop = refresh_states, kl_stop
        self.tvt, self.distributed, self.compile = tvt, distributed, compile
        super().__init__(
            policy,
            with_module(env),
            learning_rate=learning_rate,
            n_steps=n_steps,
            batch_size=batch_size,
            n_epochs=n_epochs,
            gamma=gamma,
            gae_lambda=gae_lambda,
            clip_range=clip_range,
            clip_range_vf=clip_range_vf,
            normalize_advantage=normalize_advantage,
            ent_coef=ent_coef,
            vf_coef=vf_coef,
            max_grad_norm=max_grad_norm,
            use_sde=use_sde,
            sde_sample_freq=sde_sample_freq,
            target_kl=target_kl,
            stats_window_size=stats_window_size,
            tensorboard_log=tensorboard_log,
            policy_kwargs=policy_kwargs,
            verbose=verbose,
            seed=seed,
            device=device,
            _init_setup_model=_init_setup_model,
        )

    def _setup_model(self) -> None:
        # Models saved by sb3-contrib name its own policies.
        self.policy_class = _CONTRIB_POLICIES.get(self.policy_class, self.policy_class)
        self.__dict__.pop("sequences", None)  # a former option, in models of earlier versions
        super()._setup_model()
        self.clip_range = FloatSchedule(self.clip_range)
        if self.clip_range_vf is not None:
            self.clip_range_vf = FloatSchedule(self.clip_range_vf)

    def _check_arguments(self) -> None:
        super()._check_arguments()
        if self.batch_size is not None:
            # The advantage of a single step cannot be normalized.
            self.batch_size = check_size(
                "batch_size", self.batch_size, 1 + self.normalize_advantage, maximum=MAX_LENGTH
            )
        self.n_epochs = check_size("n_epochs", self.n_epochs)
        self.refresh_states = check_flag("refresh_states", self.refresh_states)
        check_choice("kl_stop", self.kl_stop, ("minibatch", "epoch"))
        if not callable(self.clip_range) and self.clip_range != math.inf:
            check_nonnegative("clip_range", self.clip_range)  # 0 stands in when a file is loaded
        if self.clip_range_vf is not None and not callable(self.clip_range_vf):
            check_positive("clip_range_vf", self.clip_range_vf)
        if self.target_kl is not None:  # which has no schedule, in SB3 either
            check_positive("target_kl", self.target_kl)

    def _minibatch_size(self) -> int | None:
        return self.batch_size

    def learn(
        self,
        total_timesteps: int,
        callback: MaybeCallback = None,
        log_interval: int | None = 1,
        tb_log_name: str = "RecurrentPPO",
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> Self:
        """As in sb3-contrib."""
        check_learning(callback, log_interval, reset_num_timesteps, progress_bar)
        return super().learn(
            total_timesteps,
            callback,
            log_interval,  # type: ignore[arg-type]
            tb_log_name,
            reset_num_timesteps,
            progress_bar,
        )

    def train(self) -> None:
        """Update the policy with the current rollout.

        Raises:
            ValueError: the rollout is not complete.
        """
        self._begin_update()
        means, norms, epochs = MeanMetrics(), list[Tensor](), 0
        with all_or_nothing(self.policy):
            for epoch in range(self.n_epochs):
                if epoch and self.refresh_states:
                    self.rollout_buffer.sequences.refresh(self.policy)
                divergence = self._epoch(means, norms)
                epochs += 1
                if divergence is not None:
                    if self.verbose >= 1:
                        text = f"step {epoch} due to reaching max kl: {float(divergence):.2f}"
                        print(f"Early stopping at {text}")  # noqa: T201
                    break
            check_gradient_norms(norms)  # once, since looking waits for a GPU
        self._n_updates += epochs
        buffer = self.rollout_buffer.sequences
        self._record(
            {
                **means.result(),
                "explained_variance": explained_variance(buffer.values, buffer.returns, self.ranks),
                "clip_range": self._clip_range(),
                **({"clip_range_vf": self._clip_range_vf()} if self.clip_range_vf else {}),
            }
        )

    def _epoch(self, means: MeanMetrics, norms: list[Tensor]) -> Tensor | None:
        """One pass over the rollout; returns the KL divergence if it ends the update."""
        divergences: list[Tensor] = []
        limit = None if self.target_kl is None else 1.5 * self.target_kl
        sequences = self.rollout_buffer.sequences
        for batch in sequences.minibatches(self.batch_size, self.policy):
            metrics = self._compute_gradients(batch, self._loss_settings())
            means.add(**metrics)
            divergence = metrics["approx_kl"]
            divergences.append(divergence)
            if limit is not None and self.kl_stop == "minibatch" and divergence > limit:
                return divergence
            norms.append(self._step_optimizer())
        if limit is None:
            return None
        mean = torch.stack(divergences).mean()
        return mean if mean > limit else None

    def _loss_settings(self) -> LossSettings:
        clip_range_vf = None if self.clip_range_vf is None else self._clip_range_vf()
        return LossSettings(self._clip_range(), clip_range_vf, self.ent_coef, self.vf_coef)

    def _loss(self, batch: Minibatch, settings: LossSettings) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of a minibatch, and its metrics; `approx_kl` estimates the KL divergence."""
        advantages = self._normalized(batch) if self.normalize_advantage else batch.advantages
        auxiliary: dict[str, Tensor] = {}
        losses = None
        if not self._compiles(batch):
            losses = native_ppo_losses(self.policy, batch, advantages, settings)
        if losses is None:
            evaluation = self._evaluate(batch)
            auxiliary = evaluation.auxiliary
            losses = self._graph(ppo_loss, batch)(evaluation, batch, advantages, settings)
        loss = sum(auxiliary.values(), start=losses.loss)
        return loss, {**losses._asdict(), "loss": loss, **auxiliary}

    def _clip_range(self) -> float:
        return self._scheduled("clip_range")

    def _clip_range_vf(self) -> float:
        return self._scheduled("clip_range_vf")

    def _scheduled(self, name: str) -> float:
        value = float(getattr(self, name)(self._current_progress_remaining))
        if not value >= 0:
            raise ValueError(f"{name} must be at least 0, got {value} from its schedule.")
        return value


def _check_removed_sequences(sequences: Any) -> None:
    """Handle the former option `sequences`, which had the values "whole" and "upstream"."""
    if sequences != "whole":
        raise ValueError(
            f"sequences={sequences!r} was removed, minibatches are whole sequences. For those of "
            "sb3-contrib, pass a policy class of rlgates to sb3_contrib.RecurrentPPO."
        )
    warnings.warn(
        "sequences='whole' is deprecated and will be an error in the next release; leave it out.",
        DeprecationWarning,
        stacklevel=callers_level(),
    )
