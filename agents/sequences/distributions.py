"""A categorical distribution with fewer operations, none of which synchronizes with a GPU."""

from __future__ import annotations

import torch
from stable_baselines3.common.distributions import CategoricalDistribution
from torch import Tensor
from torch.distributions import Categorical


class LogCategorical(CategoricalDistribution):
    """SB3's distribution of discrete actions, kept as log-probabilities: half the operations."""

    log_probs: Tensor  # (B, action_dim)

    def proba_distribution(self, action_logits: Tensor) -> LogCategorical:
        self.log_probs = torch.log_softmax(action_logits, dim=-1)
        return self

    @property
    def distribution(self) -> Categorical:  # type: ignore[override]
        """The equivalent distribution of torch."""
        return Categorical(logits=self.log_probs)

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
