"""PPO's loss and its gradient by hand: as autograd makes them of the formula."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rlgates.agents.buffers import Minibatch
from rlgates.agents.clipped_loss import Losses, Weights, clipped_loss
from rlgates.agents.sequences import Evaluation, States

T, B = 7, 5


def numbers(with_entropy: bool) -> tuple[Evaluation, Minibatch, Tensor]:
    generator = torch.Generator().manual_seed(3)

    def draw(scale: float = 1.0) -> Tensor:
        return scale * torch.randn(T, B, generator=generator, dtype=torch.float64)

    old, values = draw(), draw()
    step = draw(0.3)
    step[0] = 0.0  # where nothing has changed yet, both gains are equal
    seen = Evaluation(values + draw(0.3), old + step, draw() if with_entropy else None, {})
    for tensor in seen[:3]:
        if tensor is not None:
            tensor.requires_grad_()
    nothing = torch.empty(0)
    starts = torch.zeros(T, B, dtype=torch.bool)
    batch = Minibatch(
        nothing, nothing, None, starts, values, old, nothing, draw(), States(nothing, None)
    )
    return seen, batch, draw()


def by_autograd(seen: Evaluation, batch: Minibatch, advantages: Tensor, weights: Weights) -> Losses:
    ratio, bound = (seen.log_probs - batch.log_probs).exp(), weights.clip_range
    policy = -torch.min(advantages * ratio, advantages * ratio.clamp(1 - bound, 1 + bound)).mean()
    values, most = seen.values, weights.clip_range_vf
    if most is not None:
        values = batch.values + (values - batch.values).clamp(-most, most)
    value = (batch.returns - values).square().mean()
    entropy = (seen.log_probs if seen.entropy is None else -seen.entropy).mean()
    loss = policy + weights.ent_coef * entropy + weights.vf_coef * value
    kl = (ratio - 1 - ratio.log()).mean()
    return Losses(loss, policy, value, entropy, kl, ((ratio - 1).abs() > bound).double().mean())


@pytest.mark.parametrize("clip_range_vf", [None, 0.2])
@pytest.mark.parametrize("with_entropy", [True, False])
def test_values_and_gradients(with_entropy: bool, clip_range_vf: float | None) -> None:
    seen, batch, advantages = numbers(with_entropy)
    weights = Weights(0.2, clip_range_vf, 0.03, 0.7)
    ours = clipped_loss(seen, batch, advantages, weights)
    expected = by_autograd(seen, batch, advantages, weights)
    assert 0.1 < expected.clip_fraction < 0.9
    for name, number in expected._asdict().items():
        torch.testing.assert_close(getattr(ours, name).double(), number, msg=name)
    inputs = [tensor for tensor in seen[:3] if tensor is not None]
    for one, other in zip(
        torch.autograd.grad(3 * ours.loss, inputs),
        torch.autograd.grad(3 * expected.loss, inputs),
        strict=True,
    ):
        assert other.abs().max() > 1e-3
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


def test_what_is_for_the_log_has_no_gradient() -> None:
    seen, batch, advantages = numbers(with_entropy=True)
    losses = clipped_loss(seen, batch, advantages, Weights(0.2, None, 0.03, 0.7))
    assert [number.requires_grad for number in losses] == [True] + [False] * 5
