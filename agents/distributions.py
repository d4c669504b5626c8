"""The distribution of discrete actions with fewer operations, none of which waits for a GPU."""

from __future__ import annotations

import torch
from stable_baselines3.common.distributions import CategoricalDistribution
from torch import Tensor
from torch.distributions import Categorical


class LogCategorical(CategoricalDistribution):
    """As SB3's, of logarithms of probabilities: the same numbers in half the operations."""

    log_probs: Tensor  # (B, action_dim)

    def proba_distribution(self, action_logits: Tensor) -> LogCategorical:
        self.log_probs = torch.log_softmax(action_logits, dim=-1)
        return self

    @property
    def distribution(self) -> Categorical:  # type: ignore[override]
        """The same as torch has it."""
        return Categorical(logits=self.log_probs)

    def log_prob(self, actions: Tensor) -> Tensor:
        return self.log_probs.gather(-1, actions.long().unsqueeze(-1)).squeeze(-1)

    def entropy(self) -> Tensor:
        # A probability of 0 has no part in it, and its logarithm may be -inf.
        log_probs = self.log_probs.clamp(min=torch.finfo(self.log_probs.dtype).min)
        return -(log_probs.exp() * log_probs).sum(-1)

    def sample(self) -> Tensor:
        # The first of as many exponential clocks, of rate p each, to ring.
        clocks = torch.empty_like(self.log_probs).exponential_()
        return (self.log_probs.exp() / clocks).argmax(dim=-1)

    def mode(self) -> Tensor:
        return self.log_probs.argmax(dim=-1)
