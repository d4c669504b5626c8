"""Rollout buffers that give whole environments: no sequence is cut, split or padded."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, TypeVar

import numpy as np
import torch
from sb3_contrib.common.recurrent.buffers import (
    RecurrentDictRolloutBuffer,
    RecurrentRolloutBuffer,
)
from sb3_contrib.common.recurrent.type_aliases import (
    RecurrentDictRolloutBufferSamples,
    RecurrentRolloutBufferSamples,
    RNNStates,
)
from torch import Tensor

Samples = TypeVar("Samples")


class SequenceRolloutBuffer(RecurrentRolloutBuffer):
    """sb3-contrib's buffer, with minibatches of whole environments where they divide.

    A core takes episode starts inside a sequence, so the rollout of an environment is one
    sequence and environments can be shuffled. With a `batch_size` that is not a multiple of
    n_steps, minibatches are cut, split at episode starts and padded as upstream does it.
    """

    def get(  # type: ignore[override]
        self, batch_size: int | None = None
    ) -> Generator[RecurrentRolloutBufferSamples, None, None]:
        if batch_size is not None and batch_size % self.buffer_size:
            return super().get(batch_size)
        return _whole_environments(self, batch_size, RecurrentRolloutBufferSamples)


class SequenceDictRolloutBuffer(RecurrentDictRolloutBuffer):
    """`SequenceRolloutBuffer` for dictionary observations."""

    def get(  # type: ignore[override]
        self, batch_size: int | None = None
    ) -> Generator[RecurrentDictRolloutBufferSamples, None, None]:
        if batch_size is not None and batch_size % self.buffer_size:
            return super().get(batch_size)
        return _whole_environments(self, batch_size, RecurrentDictRolloutBufferSamples)


def _whole_environments(
    buffer: Any, batch_size: int | None, samples: Callable[..., Samples]
) -> Generator[Samples, None, None]:
    """Minibatches of `batch_size / n_steps` environments drawn without replacement."""
    assert buffer.full, "the rollout buffer must be full before sampling from it"
    n_steps, n_envs = buffer.buffer_size, buffer.n_envs
    chunk = n_envs if batch_size is None else batch_size // n_steps
    # The generator that SB3 seeds.
    order = np.random.permutation(n_envs)  # noqa: NPY002
    for first in range(0, n_envs, chunk):
        yield _take(buffer, order[first : first + chunk], samples)


def _take(buffer: Any, envs: np.ndarray[Any, Any], samples: Callable[..., Samples]) -> Samples:
    def flat(array: np.ndarray[Any, Any]) -> Tensor:
        """(n_steps, n_envs, ...) -> (len(envs) * n_steps, ...), environment by environment."""
        taken = array[:, envs].swapaxes(0, 1)
        return buffer.to_torch(taken.reshape(-1, *taken.shape[2:]))  # type: ignore[no-any-return]

    def state(name: str) -> Tensor:
        return buffer.to_torch(getattr(buffer, name)[0][:, envs])  # type: ignore[no-any-return]

    observations = buffer.observations
    fields = ("values", "log_probs", "advantages", "returns")
    values, log_probs, advantages, returns = (flat(getattr(buffer, name)) for name in fields)
    return samples(
        observations={name: flat(array) for name, array in observations.items()}
        if isinstance(observations, dict)
        else flat(observations),
        actions=flat(buffer.actions),
        old_values=values,
        old_log_prob=log_probs,
        advantages=advantages,
        returns=returns,
        lstm_states=RNNStates(
            (state("hidden_states_pi"), state("cell_states_pi")),
            (state("hidden_states_vf"), state("cell_states_vf")),
        ),
        episode_starts=flat(buffer.episode_starts),
        mask=torch.ones_like(values),
    )
