"""Distributions of actions that compute what SB3's do, without checking their arguments.

torch's checks synchronize with a GPU and take longer than the distributions themselves. A rollout
is checked once, as a whole; `predict` checks its result.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from sb3_contrib.common.maskable.distributions import (
    MaskableBernoulliDistribution,
    MaskableCategorical,
    MaskableCategoricalDistribution,
    MaskableMultiCategoricalDistribution,
)
from stable_baselines3.common.distributions import (
    BernoulliDistribution,
    CategoricalDistribution,
    DiagGaussianDistribution,
    Distribution,
    MultiCategoricalDistribution,
    StateDependentNoiseDistribution,
)
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Normal

from rlgates.errors import TrainingDiverged

NOT_FINITE = "the policy's probabilities are not finite, like some of its weights or states."
# Of torch.multinomial, torch.bernoulli and torch.normal on a CPU.
_REFUSALS = ("probability tensor contains", "Expected p_in", "normal expects all elements of std")


@contextmanager
def sampling() -> Iterator[None]:
    """Sample actions; that torch refuses their probabilities is a divergence.

    Raises:
        TrainingDiverged: they are not finite.
    """
    try:
        yield
    except RuntimeError as error:
        if str(error).startswith(_REFUSALS):
            raise TrainingDiverged(NOT_FINITE) from error
        raise


class LogCategorical(CategoricalDistribution):
    """SB3's distribution of discrete actions, kept as log-probabilities: half the operations."""

    log_probs: Tensor  # (B, action_dim)

    def proba_distribution(self, action_logits: Tensor) -> LogCategorical:
        self.log_probs = torch.log_softmax(action_logits, dim=-1)
        return self

    @property
    def distribution(self) -> Categorical:  # type: ignore[override]
        """The equivalent distribution of torch."""
        return Categorical(logits=self.log_probs, validate_args=False)

    def log_prob(self, actions: Tensor) -> Tensor:
        return self.log_probs.gather(-1, actions.long().unsqueeze(-1)).squeeze(-1)

    def entropy(self) -> Tensor:
        # An action of probability 0 contributes nothing, but its log-probability may be -inf.
        log_probs = self.log_probs.clamp(min=torch.finfo(self.log_probs.dtype).min)
        return -(log_probs.exp() * log_probs).sum(-1)

    def sample(self) -> Tensor:
        # The exponential race: argmax of p_i / E_i with E_i ~ Exp(1), the Gumbel-max trick.
        clocks = torch.empty_like(self.log_probs).exponential_()
        return (self.log_probs.exp() / clocks).argmax(dim=-1)

    def mode(self) -> Tensor:
        return self.log_probs.argmax(dim=-1)


class _MultiCategorical(MultiCategoricalDistribution):
    def proba_distribution(self, action_logits: Tensor) -> _MultiCategorical:
        self.distribution = [
            Categorical(logits=logits, validate_args=False)
            for logits in action_logits.split(list(self.action_dims), dim=1)
        ]
        return self


class _Bernoulli(BernoulliDistribution):
    def proba_distribution(self, action_logits: Tensor) -> _Bernoulli:
        self.distribution = Bernoulli(logits=action_logits, validate_args=False)
        return self


class _DiagGaussian(DiagGaussianDistribution):
    def proba_distribution(self, mean_actions: Tensor, log_std: Tensor) -> _DiagGaussian:
        std = log_std.exp().expand_as(mean_actions)
        self.distribution = Normal(mean_actions, std, validate_args=False)
        return self


class _StateDependentNoise(StateDependentNoiseDistribution):
    def proba_distribution(
        self, mean_actions: Tensor, log_std: Tensor, latent_sde: Tensor
    ) -> _StateDependentNoise:
        self._latent_sde = latent_sde if self.learn_features else latent_sde.detach()
        variance = self._latent_sde.square() @ self.get_std(log_std).square()
        std = (variance + self.epsilon).sqrt()
        self.distribution = Normal(mean_actions, std, validate_args=False)
        return self


class _MaskableCategorical(MaskableCategoricalDistribution):
    def proba_distribution(self, action_logits: Tensor) -> _MaskableCategorical:
        self.distribution = MaskableCategorical(logits=action_logits, validate_args=False)
        return self


class _MaskableMultiCategorical(MaskableMultiCategoricalDistribution):
    def proba_distribution(self, action_logits: Tensor) -> _MaskableMultiCategorical:
        self.distributions = [
            MaskableCategorical(logits=logits, validate_args=False)
            for logits in action_logits.split(list(self.action_dims), dim=1)
        ]
        return self


class _MaskableBernoulli(_MaskableMultiCategorical, MaskableBernoulliDistribution):
    pass


_UNCHECKED: dict[type[Distribution], type[Distribution]] = {
    CategoricalDistribution: LogCategorical,
    MultiCategoricalDistribution: _MultiCategorical,
    BernoulliDistribution: _Bernoulli,
    DiagGaussianDistribution: _DiagGaussian,
    StateDependentNoiseDistribution: _StateDependentNoise,
    MaskableCategoricalDistribution: _MaskableCategorical,
    MaskableMultiCategoricalDistribution: _MaskableMultiCategorical,
    MaskableBernoulliDistribution: _MaskableBernoulli,
}


def unchecked(distribution: Any) -> Any:
    """A distribution of SB3 or sb3-contrib as one that does not check its arguments.

    Others are returned as they are.
    """
    kind = _UNCHECKED.get(type(distribution))
    if kind is None:
        return distribution
    result: Any = kind.__new__(kind)
    vars(result).update(vars(distribution))
    if isinstance(
        getattr(result, "action_dims", None), list
    ):  # torch.compile takes no numbers of NumPy
        result.action_dims = [int(size) for size in result.action_dims]
    return result
