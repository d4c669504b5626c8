"""A recurrent policy over sequences as they are: (T, B) steps, flat states, starts inside.

What `rlgates.RecurrentPPO` and `rlgates.RecurrentA2C` ask of a policy. sb3-contrib's own methods,
which want pairs of states and one sequence after the other, stay beside it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from sb3_contrib.common.recurrent.policies import RecurrentActorCriticPolicy
from stable_baselines3.common.distributions import Distribution
from stable_baselines3.common.policies import BasePolicy
from torch import Tensor

from rlgates.agents.core_module import CoreModule
from rlgates.together import run_together

Observations = Tensor | dict[str, Tensor]


class States(NamedTuple):
    """The states of the cores of a policy.

    Attributes:
        pi: of the actor's core, (B, state_size).
        vf: of the critic's own core; None if it has none.
    """

    pi: Tensor
    vf: Tensor | None

    def rows(self, which: Any) -> States:
        """The states of some rows."""
        return States(self.pi[which], None if self.vf is None else self.vf[which])


class Latents(NamedTuple):
    """What the cores make of a batch of sequences.

    Attributes:
        pi, vf: behind the layers of actor and critic, (T * B, ...): what their heads read.
        states: after the last step.
        features, outputs: what the actor's core was given and gave, (T, B, ...).
    """

    pi: Tensor
    vf: Tensor
    states: States
    features: Tensor
    outputs: Tensor


class Decision(NamedTuple):
    """What a policy did in one step of B rows.

    Attributes:
        actions: (B, ...) of the action space, not yet clipped or rescaled to its bounds.
        values, log_probs: (B,).
        states: after the step.
        outputs: of the actor's core, (B, output_size).
    """

    actions: Tensor
    values: Tensor
    log_probs: Tensor
    states: States
    outputs: Tensor


class Evaluation(NamedTuple):
    """What a policy thinks of the actions of a batch of sequences.

    Attributes:
        values, log_probs: (T, B).
        entropy: (T, B); None where the distribution has no formula for it.
        auxiliary: what `SequencePolicy.auxiliary_losses` gave.
    """

    values: Tensor
    log_probs: Tensor
    entropy: Tensor | None
    auxiliary: dict[str, Tensor]


class SequencePolicy(RecurrentActorCriticPolicy):
    """Methods of a policy for whole sequences; its parts are made by `MlpLstmPolicy`."""

    # Upstream declares nn.LSTM where it needs no more than what CoreModule gives.
    lstm_actor: CoreModule  # type: ignore[assignment]
    lstm_critic: CoreModule | None  # type: ignore[assignment]
    shared_gradient: str

    def initial_states(self, batch_size: int) -> States:
        """The states at the start of an episode."""
        critic = self.lstm_critic
        return States(
            self.lstm_actor.core.initial_state(batch_size),
            None if critic is None else critic.core.initial_state(batch_size),
        )

    def latents(self, observations: Observations, states: States, starts: Tensor) -> Latents:
        """Run encoders, cores and the layers behind them.

        Args:
            observations: (T * B, ...), step by step.
            states: before the first step.
            starts: (T, B) bool, true where an episode starts.
        """
        features: Any = self.extract_features(observations)
        pi_features, vf_features = (
            (features, features) if self.share_features_extractor else features
        )
        x, vf = pi_features.unflatten(0, starts.shape), None
        actor = self.lstm_actor.core
        if self.lstm_critic is not None:
            seen = vf_features.unflatten(0, starts.shape)
            assert states.vf is not None
            (outputs, pi), (read, vf) = run_together(
                [(actor, x, states.pi), (self.lstm_critic.core, seen, states.vf)], starts
            )
            latent_vf = read.flatten(0, 1)
        else:
            outputs, pi = actor(x, states.pi, starts)
        latent_pi = outputs.flatten(0, 1)
        if self.shared_lstm and self.shared_gradient == "both":
            behind_pi, behind_vf = self.mlp_extractor(latent_pi)
            return Latents(behind_pi, behind_vf, States(pi, vf), x, outputs)
        if self.shared_lstm:
            latent_vf = latent_pi.detach()
        elif self.lstm_critic is None:
            assert self.critic is not None
            latent_vf = self.critic(vf_features)
        return Latents(
            self.mlp_extractor.forward_actor(latent_pi),
            self.mlp_extractor.forward_critic(latent_vf),
            States(pi, vf),
            x,
            outputs,
        )

    def distribution(self, latents: Latents, action_masks: Tensor | None) -> Distribution:
        """The distribution of actions, (T * B) of them.

        Args:
            latents: of `latents`.
            action_masks: (T * B, ...), true where an action is allowed; only policies that are
                made for masks are given any.
        """
        return self._get_action_dist_from_latent(latents.pi)

    def values_of(self, latents: Latents) -> Tensor:
        """Values (T * B,)."""
        return self.value_net(latents.vf).flatten()  # type: ignore[no-any-return]

    def act(
        self,
        observations: Observations,
        states: States,
        starts: Tensor,
        action_masks: Tensor | None = None,
        deterministic: bool = False,
    ) -> Decision:
        """One step of B rows; `starts` is (B,) bool, true where an episode starts."""
        latents = self.latents(observations, states, starts.unsqueeze(0))
        with _unchecked():
            distribution = self.distribution(latents, action_masks)
            actions = distribution.get_actions(deterministic)
            log_probs = distribution.log_prob(actions)
        actions = actions.reshape(-1, *(self.action_space.shape or ()))
        return Decision(
            actions, self.values_of(latents), log_probs, latents.states, latents.outputs[0]
        )

    def value(self, observations: Observations, states: States, starts: Tensor) -> Tensor:
        """Values (B,) before one step; only the critic runs where it is apart."""
        if self.lstm_critic is None:
            return self.values_of(self.latents(observations, states, starts.unsqueeze(0)))
        extractor = self.vf_features_extractor
        # The override in SB3's actor-critic policies gives the features of both.
        features = BasePolicy.extract_features(self, observations, extractor)
        read, _ = self.lstm_critic.core(features.unsqueeze(0), states.vf, starts.unsqueeze(0))
        return self.value_net(self.mlp_extractor.forward_critic(read[0])).flatten()  # type: ignore[no-any-return]

    def evaluate(
        self,
        observations: Observations,
        actions: Tensor,
        states: States,
        starts: Tensor,
        action_masks: Tensor | None = None,
    ) -> Evaluation:
        """What the policy thinks of actions that were taken.

        Args:
            observations, actions: (T * B, ...), step by step.
            states: before the first step.
            starts: (T, B) bool.
            action_masks: as for `distribution`.
        """
        latents = self.latents(observations, states, starts)
        with _unchecked():
            distribution = self.distribution(latents, action_masks)
            log_probs, entropy = distribution.log_prob(actions), distribution.entropy()
        return Evaluation(
            self.values_of(latents).view(starts.shape),
            log_probs.view(starts.shape),
            None if entropy is None else entropy.view(starts.shape),
            self.auxiliary_losses(observations, latents),
        )

    def auxiliary_losses(self, observations: Observations, latents: Latents) -> dict[str, Tensor]:
        """Further losses to be trained on, by name: numbers, which are added up and logged.

        For policies that learn more than to act: override it. What is not trained on has no
        place here, as it is computed in every minibatch.

        Each is an average over the steps and rows of a minibatch, as the losses of the algorithms
        are: `RecurrentA2C(..., sum_over_time=True)` multiplies all of them by n_steps.

        Args:
            observations: (T * B, ...), step by step, as the environment gave them.
            latents: what `latents` made of them.
        """
        return {}


@contextmanager
def _unchecked() -> Iterator[None]:
    """Without torch's checks of the numbers in a distribution, for which a GPU has to wait.

    Rollouts are checked as a whole.
    """
    before = torch.distributions.Distribution._validate_args
    torch.distributions.Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        torch.distributions.Distribution.set_default_validate_args(before)
