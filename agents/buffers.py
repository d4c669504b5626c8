"""The rollout of a recurrent agent as tensors (T, N, ...) on the device of its policy.

The states of the cores are kept where a chunk begins, and nowhere else. Minibatches are whole
chunks, drawn without replacement: all have the same shape, and nothing is cut, split or padded,
because a core takes episode starts inside a sequence.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rlgates.agents.sequences import Observations, SequencePolicy, States


class Minibatch(NamedTuple):
    """C chunks of L steps; what is (L * C, ...) goes step by step.

    Attributes:
        observations, actions: (L * C, ...).
        action_masks: (L * C, ...), or None.
        starts: (L, C) bool, true where an episode starts.
        values, log_probs: of the rollout, (L, C).
        advantages, returns: (L, C).
        states: before the first step.
    """

    observations: Observations
    actions: Tensor
    action_masks: Tensor | None
    starts: Tensor
    values: Tensor
    log_probs: Tensor
    advantages: Tensor
    returns: Tensor
    states: States


class SequenceBuffer:
    """n_steps of n_envs environments.

    Args:
        n_steps, n_envs: T and N.
        chunk_len: steps L of a chunk, a divisor of n_steps.
        burn_in: steps before a chunk over which its first state is made anew, with the weights
            of the moment; less than chunk_len. The first chunk of a rollout has the state that
            the rollout began in.
        gamma, gae_lambda: discount and trace of the advantages (Schulman et al. 2016).

    Attributes:
        observations, actions, action_masks, rewards, starts, values, log_probs, advantages,
            returns: (T, N, ...); action_masks may be None.
        outputs: of the actor's core, (T, N, output_size); only where temporal value transport
            asks for them.
        states: before the first step, and before every chunk (or its burn-in) after it.
    """

    observations: Observations
    actions: Tensor
    action_masks: Tensor | None = None
    rewards: Tensor
    starts: Tensor
    values: Tensor
    log_probs: Tensor
    outputs: Tensor
    advantages: Tensor
    returns: Tensor

    def __init__(
        self,
        n_steps: int,
        n_envs: int,
        chunk_len: int,
        burn_in: int = 0,
        gamma: float = 0.99,
        gae_lambda: float = 0.95,
    ) -> None:
        self.n_steps, self.n_envs = n_steps, n_envs
        self.chunk_len, self.burn_in = chunk_len, burn_in
        self.gamma, self.gae_lambda = gamma, gae_lambda
        self.states: list[States] = []
        self._position = 0

    @property
    def full(self) -> bool:
        """Whether the rollout is complete."""
        return self._position == self.n_steps

    def reset(self) -> None:
        """Begin a new rollout in the place of the old one."""
        self.states = []
        self._position = 0

    def add(
        self,
        states: States,
        *,
        observations: Observations,
        action_masks: Tensor | None = None,
        **step: Tensor,
    ) -> None:
        """Add a step of all environments.

        Args:
            states: before the step.
            observations: (N, ...).
            action_masks: (N, ...), in every step or in none.
            step: actions (N, ...), starts (N,) bool and rewards, values, log_probs (N,); and
                outputs (N, output_size), in every step or in none.
        """
        t = self._position
        chunk = t + self.burn_in  # which this step, or the burn-in from it on, comes before
        if t == 0 or (chunk % self.chunk_len == 0 and chunk < self.n_steps):
            self.states.append(states)
        for name, value in {"observations": observations, **step}.items():
            self._write(name, value, t)
        if action_masks is not None:
            self._write("action_masks", action_masks, t)
        self._position += 1

    def _write(self, name: str, value: Observations, t: int) -> None:
        slots = getattr(self, name, None)
        if slots is None:
            slots = _each(lambda x: x.new_empty(self.n_steps, *x.shape), value)
            setattr(self, name, slots)
        if isinstance(value, dict):
            for key, part in value.items():
                slots[key][t] = part
        else:
            slots[t] = value

    def finish(self, last_values: Tensor, last_starts: Tensor) -> None:
        """Advantages and returns, from values (N,) behind the last step.

        Args:
            last_values: of the observations after the last step.
            last_starts: (N,) bool, true where an episode ended with it.
        """
        goes_on = (~torch.cat([self.starts[1:], last_starts[None]])).to(self.values.dtype)
        following = torch.cat([self.values[1:], last_values[None]])
        delta = self.rewards + self.gamma * goes_on * following - self.values
        decay = self.gamma * self.gae_lambda * goes_on
        self.advantages = torch.empty_like(delta)
        advantage = torch.zeros_like(last_values)
        for t in reversed(range(self.n_steps)):
            advantage = torch.addcmul(delta[t], decay[t], advantage, out=self.advantages[t])
        self.returns = self.advantages + self.values

    def minibatches(self, batch_size: int | None, policy: SequencePolicy) -> Iterator[Minibatch]:
        """All chunks in a random order, `batch_size` steps at a time (None: all at once)."""
        count = self.n_steps // self.chunk_len * self.n_envs
        size = count if batch_size is None else batch_size // self.chunk_len
        order = torch.randperm(count, device=self.starts.device)
        states = self._chunk_states(policy)
        for chosen in order.split(size):
            yield self._take(chosen, states)

    def refresh(self, policy: SequencePolicy) -> None:
        """Make the states before the chunks anew, with the weights that the policy has now."""
        states = self.states[:1]
        for begin in range(0, self.n_steps - self.chunk_len, self.chunk_len):
            first = max(0, begin - self.burn_in)
            end = begin + self.chunk_len - self.burn_in
            states.append(self._states_after(policy, states[-1], first, end))
        self.states = states

    def _chunk_states(self, policy: SequencePolicy) -> States:
        """The states before all chunks, (K * N, state_size)."""
        states = self.states
        if self.burn_in:
            begins = range(self.chunk_len, self.n_steps, self.chunk_len)
            states = states[:1] + [
                self._states_after(policy, state, begin - self.burn_in, begin)
                for state, begin in zip(states[1:], begins, strict=True)
            ]
        if len(states) == 1:
            return states[0]
        vf = [state.vf for state in states if state.vf is not None]
        return States(torch.cat([state.pi for state in states]), torch.cat(vf) if vf else None)

    @torch.no_grad()
    def _states_after(self, policy: SequencePolicy, states: States, first: int, end: int) -> States:
        if first == end:
            return states
        observations = _each(lambda x: x[first:end].flatten(0, 1), self.observations)
        return policy.latents(observations, states, self.starts[first:end]).states

    def _take(self, chosen: Tensor, states: States) -> Minibatch:
        chunks, rows = chosen // self.n_envs, chosen % self.n_envs

        def take(x: Tensor) -> Tensor:
            """(T, N, ...) -> (L, C, ...)."""
            if self.chunk_len == self.n_steps:
                return x.index_select(1, chosen)
            by_chunk: Tensor = x.unflatten(0, (-1, self.chunk_len)).transpose(0, 1)
            return by_chunk[:, chunks, rows]

        def flat(x: Observations) -> Any:
            return _each(lambda part: take(part).flatten(0, 1), x)

        return Minibatch(
            flat(self.observations),
            flat(self.actions),
            None if self.action_masks is None else flat(self.action_masks),
            take(self.starts),
            take(self.values),
            take(self.log_probs),
            take(self.advantages),
            take(self.returns),
            states.rows(chosen),
        )


def _each(function: Any, value: Observations) -> Any:
    if isinstance(value, dict):
        return {name: function(part) for name, part in value.items()}
    return function(value)
