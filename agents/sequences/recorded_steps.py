"""The steps of a policy in environments of tensors, as CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rlgates.agents.compilation import Compiled, CompileMode
from rlgates.agents.recording import Recorded, aside, copied
from rlgates.agents.sequences.buffers import SequenceBuffer
from rlgates.agents.sequences.policy import Observations, PolicyOutput, States
from rlgates.agents.sequences.tensor_vec_env import TensorVecEnv


class RecordedStep(NamedTuple):
    """The result of a step, under the names that callbacks see; the next step overwrites it."""

    actions: Tensor
    values: Tensor
    log_probs: Tensor
    new_obs: Observations
    rewards: Tensor
    dones: Tensor


class RecordedSteps:
    """Steps of all environments, of which each is one launch of a CUDA graph.

    A step reads observations, states and episode starts from tensors that it then overwrites with
    those of the next step, and writes into the slots of a rollout.

    Args:
        act: `SequencePolicy.act`.
        within_bounds: actions as the environments take them.
        env: environments that can `step_in_place`.
        sequences: the rollout.
        with_outputs: whether the rollout keeps the outputs of the actor's core.
        mode: of torch.compile.

    Attributes:
        observations, states, episode_starts: before the next step.
    """

    observations: Observations
    states: States
    episode_starts: Tensor

    def __init__(
        self,
        act: Callable[..., PolicyOutput],
        within_bounds: Callable[[Tensor], Tensor],
        env: TensorVecEnv,
        sequences: SequenceBuffer,
        with_outputs: bool,
        mode: CompileMode,
    ) -> None:
        self._act, self._within_bounds = act, within_bounds
        self._env, self._sequences, self._with_outputs = env, sequences, with_outputs
        self._games: Any = env.env
        # A graph has the seed of the episodes that it begins.
        self._seeds = self._games.seed, self._games.first_index
        self._slot = torch.zeros(1, dtype=torch.int64, device=self._games.device)
        # Where new episodes may begin, games compute what torch.compile cannot follow.
        self._steps: dict[bool, Callable[..., Any]] = {
            False: Compiled(self._step_within, mode),
            True: self._step_to_end,
        }
        self.forget()
        self._is_new = True

    def forget(self) -> None:
        """Record anew, with what is compiled."""
        self._graphs = {
            may_end: Recorded(step, self._games.device) for may_end, step in self._steps.items()
        }

    def is_of(
        self,
        act: Callable[..., PolicyOutput],
        env: TensorVecEnv,
        sequences: SequenceBuffer,
        with_outputs: bool,
    ) -> bool:
        """Whether the graphs are of this policy, rollout, and environments with their seed."""
        seeds = self._games.seed, self._games.first_index
        same = self._env is env and self._sequences is sequences and self._seeds == seeds
        return same and self._act == act and self._with_outputs == with_outputs

    def begin(self, observations: Observations, states: States, episode_starts: Tensor) -> None:
        """Begin a rollout."""
        self._games.make_variables_static()
        self._slot.zero_()
        if not hasattr(self, "observations"):
            self.observations = copied(observations)
            self.states = copied(states)
            self.episode_starts = episode_starts.clone()
        else:
            self._copy(observations, states, episode_starts)

    def __call__(self) -> RecordedStep:
        """Take one step, and write it into the rollout, which does not count it yet."""
        if self._sequences.keeps_states:
            self._sequences.states.append(copied(self.states))
        may_end = self._games.may_end
        step: RecordedStep
        if self._is_new:  # the rollout has no tensors yet
            self._is_new = False
            with aside(self._games.device):
                step, results = self._step(may_end)
        else:
            step, results = self._graphs[may_end]()
        self._games.tick(may_end)
        self._env.add_episodes(*copied((step.dones, results)) if may_end else (step.dones, {}))
        return step

    def _step_within(self) -> tuple[RecordedStep, dict[str, Tensor]]:
        return self._step(may_end=False)

    def _step_to_end(self) -> tuple[RecordedStep, dict[str, Tensor]]:
        return self._step(may_end=True)

    def _step(self, may_end: bool) -> tuple[RecordedStep, dict[str, Tensor]]:
        with torch.no_grad():
            actions, values, log_probs, states, outputs = self._act(
                self.observations, self.states, self.episode_starts, None
            )
        new_obs, rewards, dones, results = self._env.step_in_place(
            self._within_bounds(actions), may_end
        )
        self._sequences.write(
            self._slot,
            observations=self.observations,
            actions=actions,
            rewards=rewards.float(),
            episode_starts=self.episode_starts,
            values=values,
            log_probs=log_probs,
            **({"outputs": outputs} if self._with_outputs else {}),
        )
        self._slot.add_(1)
        self._copy(new_obs, states, dones)
        return RecordedStep(actions, values, log_probs, new_obs, rewards, dones), results

    def _copy(self, observations: Observations, states: States, episode_starts: Tensor) -> None:
        if isinstance(observations, dict):
            assert isinstance(self.observations, dict)
            for name, part in observations.items():
                self.observations[name].copy_(part)
        else:
            assert isinstance(self.observations, Tensor)
            self.observations.copy_(observations)
        for own, state in zip(self.states, states, strict=True):
            if own is not None and state is not None:
                own.copy_(state)
        self.episode_starts.copy_(episode_starts)
