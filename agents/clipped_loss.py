"""The loss of PPO with its gradient, in half the operations that autograd would make of it."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rlgates.agents.buffers import Minibatch
from rlgates.agents.sequences import Evaluation


class Losses(NamedTuple):
    """Numbers of a minibatch; all but the first are for the log alone.

    Attributes:
        loss: what is trained on.
        policy_gradient_loss, value_loss, entropy_loss: its parts, before they are weighted.
        approx_kl: estimate of the KL divergence from the old policy (Schulman 2020).
        clip_fraction: share of the ratios that were clipped.
    """

    loss: Tensor
    policy_gradient_loss: Tensor
    value_loss: Tensor
    entropy_loss: Tensor
    approx_kl: Tensor
    clip_fraction: Tensor


class Weights(NamedTuple):
    """The settings of the loss: bounds of ratios and of values (None: none), and coefficients."""

    clip_range: float
    clip_range_vf: float | None
    ent_coef: float
    vf_coef: float


def clipped_loss(
    seen: Evaluation, batch: Minibatch, advantages: Tensor, weights: Weights
) -> Losses:
    """The clipped surrogate objective (Schulman et al. 2017, eq. 9), to be made small.

    Args:
        seen: what the policy thinks now; where its distribution has no entropy, the mean of the
            log-probabilities stands for it.
        batch: what it thought when it acted, and the returns.
        advantages: (T, B), normalized if that is wanted.
        weights: of the loss.
    """
    return Losses._make(
        _ClippedLoss.apply(  # type: ignore[no-untyped-call]
            seen.log_probs, seen.values, seen.entropy, batch, advantages, weights
        )
    )


class _ClippedLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        log_probs: Tensor,
        values: Tensor,
        entropy: Tensor | None,
        batch: Minibatch,
        advantages: Tensor,
        weights: Weights,
    ) -> tuple[Tensor, ...]:
        count, bound = log_probs.numel(), weights.clip_range
        log_ratio = log_probs - batch.log_probs
        ratio = log_ratio.exp()
        gain = advantages * ratio
        clipped = advantages * ratio.clamp(1 - bound, 1 + bound)
        policy_loss = -torch.min(gain, clipped).mean()
        # Where the clipped gain is the smaller one, it does not change with the policy.
        d_log_probs = gain.masked_fill(gain > clipped, 0.0).div_(-count)

        free = None
        if weights.clip_range_vf is not None:
            change, most = values - batch.values, weights.clip_range_vf
            values, free = batch.values + change.clamp(-most, most), change.abs() <= most
        error = values - batch.returns
        value_loss = error.square().mean()
        d_values = error.mul_(2 * weights.vf_coef / count)
        if free is not None:
            d_values = d_values * free

        d_entropy = None
        if entropy is None:
            entropy_loss = log_probs.mean()
            d_log_probs += weights.ent_coef / count
        else:
            entropy_loss = -entropy.mean()
            d_entropy = torch.full_like(entropy, -weights.ent_coef / count)

        loss = policy_loss + weights.ent_coef * entropy_loss + weights.vf_coef * value_loss
        away = ratio - 1
        seen = (
            policy_loss,
            value_loss,
            entropy_loss,
            (away - log_ratio).mean(),
            (away.abs() > bound).float().mean(),
        )
        ctx.mark_non_differentiable(*seen)
        ctx.set_materialize_grads(False)
        ctx.gradients = (d_log_probs, d_values, d_entropy)
        return loss, *seen

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_loss: Tensor, *_: None) -> tuple[Tensor | None, ...]:
        made = (None if part is None else part * d_loss for part in ctx.gradients)
        return *made, None, None, None
