"""PPO's loss and its gradient by hand: as autograd makes them of the formula."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rlgates.agents.sequences.buffers import Minibatch
from rlgates.agents.sequences.losses import LossSettings, PPOLosses, ppo_loss
from rlgates.agents.sequences.policy import ActionEvaluation, States

T, B = 7, 5


def numbers(with_entropy: bool) -> tuple[ActionEvaluation, Minibatch, Tensor]:
    generator = torch.Generator().manual_seed(3)

    def normal(scale: float = 1.0) -> Tensor:
        return scale * torch.randn(T, B, generator=generator, dtype=torch.float64)

    old, values = normal(), normal()
    step = normal(0.3)
    step[0] = 0.0  # where nothing has changed yet, both gains are equal
    evaluation = ActionEvaluation(
        values + normal(0.3), old + step, normal() if with_entropy else None, {}
    )
    for tensor in evaluation[:3]:
        if tensor is not None:
            tensor.requires_grad_()
    nothing = torch.empty(0)
    episode_starts = torch.zeros(T, B, dtype=torch.bool)
    batch = Minibatch(
        nothing,
        nothing,
        None,
        episode_starts,
        values,
        old,
        nothing,
        normal(),
        States(nothing, None),
    )
    return evaluation, batch, normal()


def by_autograd(
    evaluation: ActionEvaluation, batch: Minibatch, advantages: Tensor, settings: LossSettings
) -> PPOLosses:
    ratio, bound = (evaluation.log_probs - batch.old_log_prob).exp(), settings.clip_range
    policy = -torch.min(advantages * ratio, advantages * ratio.clamp(1 - bound, 1 + bound)).mean()
    values, limit = evaluation.values, settings.clip_range_vf
    if limit is not None:
        values = batch.old_values + (values - batch.old_values).clamp(-limit, limit)
    value = (batch.returns - values).square().mean()
    entropy = (evaluation.log_probs if evaluation.entropy is None else -evaluation.entropy).mean()
    loss = policy + settings.ent_coef * entropy + settings.vf_coef * value
    kl = (ratio - 1 - ratio.log()).mean()
    return PPOLosses(loss, policy, value, entropy, kl, ((ratio - 1).abs() > bound).double().mean())


@pytest.mark.parametrize("clip_range_vf", [None, 0.2])
@pytest.mark.parametrize("with_entropy", [True, False])
def test_values_and_gradients(with_entropy: bool, clip_range_vf: float | None) -> None:
    evaluation, batch, advantages = numbers(with_entropy)
    settings = LossSettings(0.2, clip_range_vf, 0.03, 0.7)
    loss = ppo_loss(evaluation, batch, advantages, settings)
    expected = by_autograd(evaluation, batch, advantages, settings)
    assert 0.1 < expected.clip_fraction < 0.9
    for name, number in expected._asdict().items():
        torch.testing.assert_close(getattr(loss, name).double(), number, msg=name)
    inputs = [tensor for tensor in evaluation[:3] if tensor is not None]
    for one, other in zip(
        torch.autograd.grad(3 * loss.loss, inputs),
        torch.autograd.grad(3 * expected.loss, inputs),
        strict=True,
    ):
        assert other.abs().max() > 1e-3
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


def test_what_is_for_the_log_has_no_gradient() -> None:
    evaluation, batch, advantages = numbers(with_entropy=True)
    losses = ppo_loss(evaluation, batch, advantages, LossSettings(0.2, None, 0.03, 0.7))
    assert [number.requires_grad for number in losses] == [True] + [False] * 5
