"""PPO's loss with a hand-written backward pass, with half the operations that autograd needs."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from rlgates import kernels
from rlgates.agents.sequences.buffers import Minibatch
from rlgates.agents.sequences.policy import (
    CORE_METHODS,
    ActionEvaluation,
    CoreInputs,
    SequencePolicy,
)
from rlgates.core import layer_requests
from rlgates.kernels import Heads, LossSettings, Taken
from rlgates.kernels.scan import raise_second_derivative


class PPOLosses(NamedTuple):
    """Scalars of a minibatch; only `loss` has a gradient, the others are for the log.

    Attributes:
        loss: the weighted sum to minimize.
        policy_gradient_loss, value_loss, entropy_loss: its terms, unweighted.
        approx_kl: estimate of the KL divergence from the old policy (Schulman 2020).
        clip_fraction: share of the ratios that were clipped.
    """

    loss: Tensor
    policy_gradient_loss: Tensor
    value_loss: Tensor
    entropy_loss: Tensor
    approx_kl: Tensor
    clip_fraction: Tensor


def ppo_loss(
    evaluation: ActionEvaluation, batch: Minibatch, advantages: Tensor, settings: LossSettings
) -> PPOLosses:
    """The negative clipped surrogate objective (Schulman et al. 2017, eq. 9).

    Args:
        evaluation: of the current policy. Where its distribution has no entropy, the mean
            log-probability is used instead.
        batch: values and log-probabilities of the old policy, and the returns.
        advantages: (T, B), normalized or not.
        settings: ranges and coefficients.
    """
    losses = _ClippedLoss.apply(  # type: ignore[no-untyped-call]
        evaluation.log_probs,
        evaluation.values,
        evaluation.entropy,
        batch,
        advantages,
        settings,
    )
    return PPOLosses(*losses)


def native_ppo_losses(
    policy: SequencePolicy, batch: Minibatch, advantages: Tensor, settings: LossSettings
) -> PPOLosses | None:
    """`ppo_loss` of what `policy.evaluate` gives, in native code behind the encoders or the cores.

    Returns:
        the same up to rounding; None where native code cannot compute it, or where the policy has
        its own version of what it would pass over.
    """
    heads = policy.native_heads("evaluate", "flat_actions", "auxiliary_losses")
    if heads is None:
        return None
    starts = batch.episode_starts
    old = batch.old_log_prob, batch.old_values, advantages, batch.returns
    taken = Taken(batch.actions.long(), *(part.flatten() for part in old))
    if not policy.runs_as_defined(*CORE_METHODS):
        core = policy.core_outputs(batch.observations, batch.states, starts)
    else:
        inputs = policy.core_inputs(batch.observations, batch.states, starts)
        found = _losses_behind_encoders(policy, inputs, starts, heads, taken, settings)
        if found is not None:
            return found
        core = policy.run_cores(inputs, starts)
    losses = kernels.ppo_losses(heads, core.pi, core.vf, taken, settings)
    return None if losses is None else PPOLosses(*losses)


def _losses_behind_encoders(
    policy: SequencePolicy,
    inputs: CoreInputs,
    episode_starts: Tensor,
    heads: Heads,
    taken: Taken,
    settings: LossSettings,
) -> PPOLosses | None:
    """The losses in one call from the cores on; None where cores and heads run one by one."""
    if not policy.shared_lstm and policy.lstm_critic is None:  # the critic has no core
        return None
    requests = layer_requests(inputs.cores, episode_starts)
    if requests is None:
        return None
    detached = policy.shared_lstm and policy.shared_gradient != "both"
    losses = kernels.ppo_losses_of_cores(requests, heads, detached, taken, settings)
    return None if losses is None else PPOLosses(*losses)


class _ClippedLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        log_probs: Tensor,
        values: Tensor,
        entropy: Tensor | None,
        batch: Minibatch,
        advantages: Tensor,
        settings: LossSettings,
    ) -> tuple[Tensor, ...]:
        count, clip_range = log_probs.numel(), settings.clip_range
        log_ratio = log_probs - batch.old_log_prob
        ratio = log_ratio.exp()
        objective = advantages * ratio
        clipped = advantages * ratio.clamp(1 - clip_range, 1 + clip_range)
        policy_loss = -torch.min(objective, clipped).mean()
        # Where the clipped objective is smaller, it is constant in the policy.
        d_log_probs = objective.masked_fill(objective > clipped, 0.0).div_(-count)

        unclipped = None
        if settings.clip_range_vf is not None:
            change, limit = values - batch.old_values, settings.clip_range_vf
            values, unclipped = (
                batch.old_values + change.clamp(-limit, limit),
                change.abs() <= limit,
            )
        error = values - batch.returns
        value_loss = error.square().mean()
        d_values = error.mul_(2 * settings.vf_coef / count)
        if unclipped is not None:
            d_values = d_values * unclipped

        d_entropy = None
        if entropy is None:
            entropy_loss = log_probs.mean()
            d_log_probs += settings.ent_coef / count
        else:
            entropy_loss = -entropy.mean()
            d_entropy = torch.ones_like(entropy) * (-settings.ent_coef / count)

        loss = policy_loss + settings.ent_coef * entropy_loss + settings.vf_coef * value_loss
        ratio_change = ratio - 1
        metrics = (
            policy_loss,
            value_loss,
            entropy_loss,
            (ratio_change - log_ratio).mean(),
            (ratio_change.abs() > clip_range).float().mean(),
        )
        ctx.mark_non_differentiable(*metrics)
        ctx.set_materialize_grads(False)
        ctx.gradients = (d_log_probs, d_values, d_entropy)
        return loss, *metrics

    @staticmethod
    def backward(ctx: Any, d_loss: Tensor, *_: None) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # with create_graph=True
            raise_second_derivative(ctx)
        gradients = (None if part is None else part * d_loss for part in ctx.gradients)
        return *gradients, None, None, None
