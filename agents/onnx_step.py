"""One step of a policy as a function of tensors, for `rlgates.agents.export_onnx`."""

from __future__ import annotations

from typing import Any

import torch
from gymnasium import spaces
from sb3_contrib.common.maskable.distributions import (
    MaskableBernoulliDistribution,
    MaskableCategoricalDistribution,
    MaskableMultiCategoricalDistribution,
)
from stable_baselines3.common.distributions import (
    BernoulliDistribution,
    CategoricalDistribution,
    DiagGaussianDistribution,
    MultiCategoricalDistribution,
    StateDependentNoiseDistribution,
)
from stable_baselines3.common.policies import BasePolicy
from torch import Tensor, nn

from rlgates.agents.sequences import SequencePolicy, States

_MASKABLE = (MaskableCategoricalDistribution, MaskableMultiCategoricalDistribution)
_CATEGORICAL = (CategoricalDistribution, MultiCategoricalDistribution)
_NORMAL = (DiagGaussianDistribution, StateDependentNoiseDistribution)
_FORBIDDEN = -1e8
"""The logit of an action that a mask forbids, as in sb3-contrib."""


class PolicyStep(nn.Module):
    """The policy's decision for B rows.

    Args:
        policy: a policy of rlgates.
        names: of the observations, in the order in which they are given.
        deterministic: the likeliest action; else one that is drawn with noise.
        value, logits: whether they are given too.
    """

    low: Tensor
    high: Tensor

    def __init__(
        self,
        policy: SequencePolicy,
        names: list[str],
        deterministic: bool,
        value: bool,
        logits: bool,
    ) -> None:
        super().__init__()
        dist, space = policy.action_dist, policy.action_space
        kinds = (*_MASKABLE, MaskableBernoulliDistribution, *_CATEGORICAL, *_NORMAL)
        if not isinstance(dist, (*kinds, BernoulliDistribution)):
            raise TypeError(f"cannot export the distribution {type(dist).__name__}.")
        self.normal = isinstance(dist, _NORMAL)
        if self.normal and logits:
            raise ValueError("actions of a Box have no logits.")
        if isinstance(dist, StateDependentNoiseDistribution) and not deterministic:
            raise ValueError("the noise of gSDE cannot be exported: use deterministic=True.")
        self.policy = policy
        self.names = names
        self.deterministic = deterministic
        self.wants_value, self.wants_logits = value, logits
        self.masked = isinstance(dist, (*_MASKABLE, MaskableBernoulliDistribution))
        self.choices = _choices(space, self.masked)
        self.with_critic = value and policy.lstm_critic is not None
        if isinstance(space, spaces.Box):
            self.register_buffer("low", torch.as_tensor(space.low, device=policy.device))
            self.register_buffer("high", torch.as_tensor(space.high, device=policy.device))

    def initial_state(self) -> list[float]:
        """One row of the state at the start of an episode."""
        states = self.policy.initial_states(1)
        row: list[float] = states.pi[0].tolist()
        return row + (states.vf[0].tolist() if self.with_critic and states.vf is not None else [])

    def examples(self, observations: list[Tensor]) -> dict[str, Tensor]:
        """All inputs by name, of two rows, with these observations."""
        given = dict(zip(self.names, observations, strict=True))
        given["state"] = torch.tensor([self.initial_state()] * 2, dtype=torch.float32)
        given["episode_start"] = torch.tensor([True, False])
        width = sum(self.choices)
        if self.masked:
            given["action_masks"] = torch.ones(2, width, dtype=torch.bool)
        if not self.deterministic:
            given["noise"] = torch.full((2, width), 0.5)
        return {name: tensor.to(self.policy.device) for name, tensor in given.items()}

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """The outputs in their order, from the inputs in the order of `examples`."""
        count = len(self.names)
        observations: Any = inputs[0]
        if isinstance(self.policy.observation_space, spaces.Dict):
            observations = dict(zip(self.names, inputs[:count], strict=True))
        state, start, *rest = inputs[count:]
        latent, state_out, value = self._recall(observations, state, start)
        scores = self.policy.action_net(latent)
        if self.masked:
            scores = torch.where(rest.pop(0), scores, _FORBIDDEN)
        noise = None if self.deterministic else rest.pop(0)
        shape = self.policy.action_space.shape or ()
        action = self._action(scores, noise).reshape(-1, *shape)
        outputs = [action, state_out]
        if value is not None:
            outputs.append(value)
        if self.wants_logits:
            outputs.append(scores)
        return tuple(outputs)

    def _recall(
        self, observations: Any, state: Tensor, start: Tensor
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """What the actor's head reads, the state afterwards, and the value if asked for."""
        policy, core = self.policy, self.policy.lstm_actor.core
        if self.wants_value:
            pi, vf = state[:, : core.state_size], state[:, core.state_size :]
            states = States(pi, vf if self.with_critic else None)
            seen = policy.latents(observations, states, start.unsqueeze(0))
            parts = [seen.states.pi]
            if seen.states.vf is not None:
                parts.append(seen.states.vf)
            return seen.pi, torch.cat(parts, dim=1), policy.values_of(seen)
        # The override in SB3's actor-critic policies gives the features of both.
        extractor = policy.pi_features_extractor
        features = BasePolicy.extract_features(policy, observations, extractor)
        outputs, after = core(features.unsqueeze(0), state, start.unsqueeze(0))
        return policy.mlp_extractor.forward_actor(outputs[0]), after, None

    def _action(self, scores: Tensor, noise: Tensor | None) -> Tensor:
        policy = self.policy
        if self.normal:
            if noise is not None:
                scores = scores + policy.log_std.exp() * noise
            if policy.squash_output:
                share = 0.5 * (scores.tanh().reshape(-1, *self.low.shape) + 1)
                return self.low + share * (self.high - self.low)
            return scores.reshape(-1, *self.low.shape).clamp(self.low, self.high)
        if isinstance(policy.action_space, spaces.MultiBinary) and not self.masked:
            threshold = 0.5 if noise is None else noise
            return (scores.sigmoid() > threshold).to(torch.int64)
        if noise is not None:
            # The first of as many exponential clocks, of rate p each, to ring.
            scores = scores - (-(1 - noise).clamp(min=1e-30).log()).clamp(min=1e-30).log()
        best = [part.argmax(dim=-1) for part in scores.split(self.choices, dim=-1)]
        return torch.stack(best, dim=-1)


def _choices(space: spaces.Space[Any], masked: bool) -> list[int]:
    """How many numbers the head gives for each action."""
    if isinstance(space, spaces.Discrete):
        return [int(space.n)]
    if isinstance(space, spaces.MultiDiscrete):
        return [int(n) for n in space.nvec]
    count = int(spaces.flatdim(space))
    return [2] * count if masked else [1] * count
