"""Recurrent A2C with any core."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, Self

import stable_baselines3
import torch
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import GymEnv, MaybeCallback, Schedule
from torch import Tensor

from rlgates.agents.arguments import explained
from rlgates.agents.compilation import CompileMode
from rlgates.agents.policies import CnnLstmPolicy, MlpLstmPolicy, MultiInputLstmPolicy
from rlgates.agents.rma.policy import RMAPolicy
from rlgates.agents.sequences.buffers import Minibatch
from rlgates.agents.sequences.policy import SequencePolicy
from rlgates.agents.sequences.rollouts import callers_level, check_learning, with_module
from rlgates.agents.sequences.updates import (
    MeanMetrics,
    SequenceAlgorithm,
    all_or_nothing,
    check_gradient_norms,
    explained_variance,
)
from rlgates.agents.tvt import TVT
from rlgates.errors import check_flag, check_number

_RMS_PROP_EPS = 1e-5


def _warn_of_unused(
    policy_kwargs: Mapping[str, Any], use_rms_prop: bool, rms_prop_eps: float
) -> None:
    """Warn of options of the optimizer that SB3 leaves out of account."""
    message = None
    if "optimizer_class" in policy_kwargs or not use_rms_prop:
        if rms_prop_eps != _RMS_PROP_EPS:
            message = (
                f"rms_prop_eps={rms_prop_eps} is not used: it is an option of RMSprop with "
                "use_rms_prop=True and without an optimizer_class. Pass eps in optimizer_kwargs."
            )
    elif options := policy_kwargs.get("optimizer_kwargs"):
        message = (
            f"optimizer_kwargs={options} are not used: use_rms_prop=True makes RMSprop with "
            "options of its own. Pass an optimizer_class, too, or use_rms_prop=False for Adam."
        )
    if message is not None:
        warnings.warn(message, stacklevel=callers_level())


class _Settings(NamedTuple):
    """Coefficients of the loss, and its scale."""

    ent_coef: float
    vf_coef: float
    scale: float


class RecurrentA2C(SequenceAlgorithm, stable_baselines3.A2C):
    """Synchronous advantage actor-critic (Mnih et al. 2016) with any core.

        RecurrentA2C("MlpLstmPolicy", env, n_steps=16, policy_kwargs={"core": "ur_lstm"})

    Takes the arguments of `stable_baselines3.A2C` and those below; `rlgates.agents.MlpLstmPolicy`
    and `RMAPolicy` document `policy_kwargs`. An update is one gradient step on the whole rollout,
    n_envs sequences of n_steps. `rlgates.agents.A2C_PRESETS` holds the settings of published
    agents. As in SB3, `use_rms_prop=True` replaces `optimizer_kwargs` that come without an
    `optimizer_class`; a warning is given.

    Args:
        env: as in SB3, or a batch of tensors from `rlgates.envs.torch.make_torch_env`.
        chunk_len, burn_in: as in `rlgates.RecurrentPPO`.
        sum_over_time: sum the losses over the n_steps and average them over environments
            (Hung et al. 2019), instead of averaging over both.
        tvt: `rlgates.agents.TVT()` for temporal value transport, which needs an RMA core and
            rollouts of whole episodes.
        distributed: as in `rlgates.RecurrentPPO`.
        compile: as in `rlgates.RecurrentPPO`.

    Raises:
        ValueError: as in `rlgates.RecurrentPPO`.
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
        policy: str | type[SequencePolicy],
        env: GymEnv | str,
        learning_rate: float | Schedule = 7e-4,
        n_steps: int = 5,
        gamma: float = 0.99,
        gae_lambda: float = 1.0,
        ent_coef: float = 0.0,
        vf_coef: float = 0.5,
        max_grad_norm: float = 0.5,
        rms_prop_eps: float = _RMS_PROP_EPS,
        use_rms_prop: bool = True,
        use_sde: bool = False,
        sde_sample_freq: int = -1,
        rollout_buffer_class: type[RolloutBuffer] | None = None,
        rollout_buffer_kwargs: dict[str, Any] | None = None,
        normalize_advantage: bool = False,
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
        sum_over_time: bool = False,
        tvt: TVT | None = None,
        distributed: bool = False,
        compile: bool | CompileMode = False,
    ) -> None:
        for name, value in (
            ("rollout_buffer_class", rollout_buffer_class),
            ("rollout_buffer_kwargs", rollout_buffer_kwargs),
        ):
            if value is not None:
                raise ValueError(
                    f"{name} must be None, got {value!r}: rollouts are sequences, kept by a buffer "
                    "of rlgates."
                )
        self._check_construction(
            policy, env if _init_setup_model else "", policy_kwargs, verbose, device
        )
        check_flag("use_rms_prop", use_rms_prop)
        check_number("rms_prop_eps", rms_prop_eps, above=0)
        _warn_of_unused(policy_kwargs or {}, use_rms_prop, rms_prop_eps)
        self.chunk_len, self.burn_in, self.sum_over_time = chunk_len, burn_in, sum_over_time
        self.tvt, self.distributed, self.compile = tvt, distributed, compile
        super().__init__(
            policy,
            with_module(env),
            learning_rate=learning_rate,
            n_steps=n_steps,
            gamma=gamma,
            gae_lambda=gae_lambda,
            ent_coef=ent_coef,
            vf_coef=vf_coef,
            max_grad_norm=max_grad_norm,
            rms_prop_eps=rms_prop_eps,
            use_rms_prop=use_rms_prop,
            use_sde=use_sde,
            sde_sample_freq=sde_sample_freq,
            normalize_advantage=normalize_advantage,
            stats_window_size=stats_window_size,
            tensorboard_log=tensorboard_log,
            policy_kwargs=dict(policy_kwargs or {}),  # SB3 writes its optimizer into it
            verbose=verbose,
            seed=seed,
            device=device,
            _init_setup_model=_init_setup_model,
        )

    def _check_arguments(self) -> None:
        super()._check_arguments()
        self.sum_over_time = check_flag("sum_over_time", self.sum_over_time)

    def learn(
        self,
        total_timesteps: int,
        callback: MaybeCallback = None,
        log_interval: int | None = 100,
        tb_log_name: str = "A2C",
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> Self:
        """As in SB3."""
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
        buffer, means = self.rollout_buffer.sequences, MeanMetrics()
        (batch,) = buffer.minibatches(None, self.policy)
        with all_or_nothing(self.policy):
            scale = float(self.n_steps if self.sum_over_time else 1)
            metrics = self._compute_gradients(batch, _Settings(self.ent_coef, self.vf_coef, scale))
            norm = self._step_optimizer()
            check_gradient_norms([norm])
        means.add(**metrics, grad_norm=norm)
        self._n_updates += 1
        variance = explained_variance(buffer.values, buffer.returns, self.ranks)
        self._record({**means.result(), "explained_variance": variance})

    def _loss(self, batch: Minibatch, settings: _Settings) -> tuple[Tensor, dict[str, Tensor]]:
        evaluation = self._evaluate(batch)
        log_probs, entropy = evaluation.log_probs, evaluation.entropy
        advantages = self._normalized(batch) if self.normalize_advantage else batch.advantages
        policy_loss = -(advantages * log_probs).mean()
        value_loss = (batch.returns - evaluation.values).square().mean()
        entropy_loss = (log_probs if entropy is None else -entropy).mean()
        loss = policy_loss + settings.ent_coef * entropy_loss + settings.vf_coef * value_loss
        for auxiliary_loss in evaluation.auxiliary.values():
            loss = loss + auxiliary_loss
        metrics = {
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "entropy_loss": entropy_loss,
            "loss": loss,
            **evaluation.auxiliary,
        }
        return loss * settings.scale, metrics
