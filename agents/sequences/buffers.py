"""The rollout of a recurrent agent: tensors (T, N, ...) on the device of its policy.

The states of the cores are stored only where a chunk begins. Minibatches are whole chunks,
sampled without replacement; all but the last have the same shape. Nothing is cut, split or
padded, because a core takes episode starts inside a sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.preprocessing import get_action_dim, get_obs_shape
from torch import Tensor

from rlgates.agents.ranks import ALONE, Ranks
from rlgates.agents.sequences.policy import Observations, SequencePolicy, States, evaluating


class Minibatch(NamedTuple):
    """C chunks of L steps; tensors (L * C, ...) are flattened time first.

    Attributes:
        observations, actions: (L * C, ...).
        action_masks: (L * C, ...), or None.
        episode_starts: (L, C) bool, true where an episode starts.
        old_values, old_log_prob: of the policy that collected the rollout, (L, C).
        advantages, returns: (L, C).
        states: before the first step.
        weight: the share of these chunks in the minibatch of all ranks. Where it is 0, the
            minibatch has none of this rank, and a chunk of it stands in.
    """

    observations: Observations
    actions: Tensor
    action_masks: Tensor | None
    episode_starts: Tensor
    old_values: Tensor
    old_log_prob: Tensor
    advantages: Tensor
    returns: Tensor
    states: States
    weight: float = 1.0


class SequenceBuffer:
    """A rollout of n_steps of n_envs environments.

    Args:
        n_steps, n_envs: T and N.
        chunk_len: steps L of a chunk, a divisor of n_steps.
        burn_in: steps before a chunk over which its first state is recomputed with the current
            weights; less than chunk_len. The first chunk of a rollout starts from the state that
            the rollout started from.
        gamma, gae_lambda: discount factor and GAE lambda (Schulman et al. 2016).

    Attributes:
        ranks: that have the environments before and after these; a minibatch has chunks of all.
        pos: the steps so far.
        observations, actions, action_masks, rewards, episode_starts, values, log_probs,
            advantages, returns: (T, N, ...); action_masks may be None.
        outputs: of the actor's core, (T, N, output_size); only with temporal value transport.
        states: before the first step, and before every later chunk (or its burn-in).
    """

    observations: Observations
    actions: Tensor
    action_masks: Tensor | None = None
    rewards: Tensor
    episode_starts: Tensor
    values: Tensor
    log_probs: Tensor
    outputs: Tensor
    advantages: Tensor
    returns: Tensor
    ranks: Ranks = ALONE

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
        self.reset()

    @property
    def full(self) -> bool:
        """Whether the rollout is complete."""
        return self.pos == self.n_steps

    def reset(self) -> None:
        """Start a new rollout, which overwrites the old one."""
        self.states: list[States] = []
        self.pos = 0
        self.steps_ahead = 0  # that a CUDA graph has written, and that do not count yet
        self._zeroed: set[str] = set()  # what has zeros where this rollout has no steps yet

    def so_far(self, name: str) -> Observations | None:
        """A tensor with zeros in the steps that this rollout does not have yet; None before any."""
        tensor: Observations | None = getattr(self, name, None)
        if tensor is not None and not self.full and name not in self._zeroed:
            first = 0 if name in ("advantages", "returns") else self.pos + self.steps_ahead
            map_tensors(lambda x: x[first:].zero_(), tensor)
            self._zeroed.add(name)
        if tensor is not None and self.steps_ahead:
            tensor = map_tensors(self._without_steps_ahead, tensor)
        return tensor

    def _without_steps_ahead(self, x: Tensor) -> Tensor:
        counted = x.clone()
        counted[self.pos : self.pos + self.steps_ahead].zero_()
        return counted

    def add(self, states: States, **step: Any) -> None:
        """Add one step of all environments, with what `write` takes; `states` are before it."""
        if self.keeps_states:
            self.states.append(states)
        self.write(self.pos, **step)
        self.pos += 1

    @property
    def keeps_states(self) -> bool:
        """Whether the states before the next step are kept: a chunk, or its burn-in, begins."""
        chunk = self.pos + self.burn_in  # the first step of the chunk whose burn-in starts here
        return self.pos == 0 or (chunk % self.chunk_len == 0 and chunk < self.n_steps)

    def write(
        self,
        t: int | Tensor,
        *,
        observations: Observations,
        action_masks: Tensor | None = None,
        **step: Tensor,
    ) -> None:
        """Write one step of all environments.

        Args:
            t: its number, which a CUDA graph takes from a tensor (1,).
            observations: (N, ...).
            action_masks: (N, ...), in every step or in none.
            step: actions (N, ...), episode_starts (N,) bool and rewards, values, log_probs (N,);
                and outputs (N, output_size), in every step or in none.

        Raises:
            ValueError: in the first step, one that must be (N,) has another shape, which would
                spread over the environments.
        """
        for name, value in {"observations": observations, **step}.items():
            self._write(name, value, t)
        if action_masks is not None:
            self._write("action_masks", action_masks, t)

    def _write(self, name: str, value: Observations, t: int | Tensor) -> None:
        storage = getattr(self, name, None)
        is_first = isinstance(t, int) and t == 0
        # Other environments may normalize integers, which are floats then.
        if storage is None or (is_first and _dtypes(storage) != _dtypes(value)):
            if name in _NUMBERS:
                _check_number(name, value, self.n_envs)
            storage = map_tensors(lambda x: x.new_empty(self.n_steps, *x.shape), value)
            setattr(self, name, storage)
            self._zeroed.discard(name)
        parts = value if isinstance(value, dict) else {None: value}
        for key, part in parts.items():
            whole = storage if key is None else storage[key]
            if isinstance(t, int):
                whole[t] = part
            else:
                whole.index_copy_(0, t, part.unsqueeze(0))

    def finish(
        self,
        last_values: Tensor,
        last_episode_starts: Tensor,
        estimate: Callable[..., Tensor] | None = None,
    ) -> None:
        """Compute advantages and returns.

        Args:
            last_values: of the observations after the last step, (N,).
            last_episode_starts: (N,) bool, true where the last step ended an episode.
            estimate: what computes `advantages`; that function by default.

        Raises:
            ValueError: `last_values` has another shape.
        """
        _check_number("values", last_values, self.n_envs)
        rollout = self.rewards, self.values, self.episode_starts
        options = self.gamma, self.gae_lambda
        estimate = estimate or advantages
        self.advantages = estimate(*rollout, last_values, last_episode_starts, *options)
        self.returns = self.advantages + self.values

    def minibatches(self, batch_size: int | None, policy: SequencePolicy) -> Iterator[Minibatch]:
        """All chunks in random order, about `batch_size` steps at a time (None: all at once).

        A minibatch has the number of chunks that is nearest to `batch_size` steps, at least one;
        the last may have fewer. With several ranks it is the minibatch of all, of which each rank
        gets its own chunks: the same one as if they were one rank.
        """
        return self._minibatches(self.chunk_len, batch_size, self._chunk_states(policy), self.ranks)

    def whole_sequences(self, batch_size: int | None) -> Iterator[Minibatch]:
        """As `minibatches`, of sequences of n_steps, from the state that the rollout began in."""
        return self._minibatches(self.n_steps, batch_size, self.states[0], ALONE)

    def _minibatches(
        self, chunk_len: int, batch_size: int | None, states: States, ranks: Ranks
    ) -> Iterator[Minibatch]:
        envs = self.n_envs if ranks.is_alone else ranks.total
        count = self.n_steps // chunk_len * envs
        size = count if batch_size is None else chunks_of(batch_size, chunk_len)
        order = torch.randperm(count, device=self.episode_starts.device)
        if ranks.is_alone:
            for indices in order.split(size):
                yield self._minibatch(chunk_len, indices, states)
            return
        for indices, weight in self._own(ranks.broadcast(order), size, ranks):
            yield self._minibatch(chunk_len, indices, states)._replace(weight=weight)

    def _own(self, order: Tensor, size: int, ranks: Ranks) -> Iterator[tuple[Tensor, float]]:
        """The chunks of this rank in the minibatches of all ranks, and their share in each."""
        numbers = order.cpu()  # once, so that no minibatch waits for the GPU
        chunks, envs = numbers // ranks.total, numbers % ranks.total - ranks.first
        is_own, own = (envs >= 0) & (envs < self.n_envs), chunks * self.n_envs + envs
        for part, kept in zip(own.split(size), is_own.split(size), strict=True):
            indices = part[kept]
            stand_in = indices if len(indices) else part.new_zeros(1)
            yield stand_in.to(order.device), len(indices) / len(part)

    def refresh(self, policy: SequencePolicy) -> None:
        """Recompute the states before the chunks with the current weights of the policy."""
        states = self.states[:1]
        for begin in range(0, self.n_steps - self.chunk_len, self.chunk_len):
            first = max(0, begin - self.burn_in)
            end = begin + self.chunk_len - self.burn_in
            states.append(self._states_after(policy, states[-1], first, end))
        self.states = states

    def _chunk_states(self, policy: SequencePolicy) -> States:
        """The states before all K * N chunks, (K * N, state_size)."""
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
        """The states after the steps [first, end), given those before `first`."""
        if first == end:
            return states
        observations = map_tensors(lambda x: x[first:end].flatten(0, 1), self.observations)
        with evaluating(policy):  # as when the rollout was collected
            return policy.latents(observations, states, self.episode_starts[first:end]).states

    def _minibatch(self, chunk_len: int, indices: Tensor, states: States) -> Minibatch:
        """The chunks with these indices; chunk k of environment n is number k * N + n."""
        chunks, envs = indices // self.n_envs, indices % self.n_envs

        def select(x: Tensor) -> Tensor:
            """(T, N, ...) -> (L, C, ...)."""
            if chunk_len == self.n_steps:
                return x.index_select(1, indices)
            by_chunk: Tensor = x.unflatten(0, (-1, chunk_len)).transpose(0, 1)
            return by_chunk[:, chunks, envs]

        def select_flat(x: Observations) -> Any:
            """(T, N, ...) -> (L * C, ...)."""
            return map_tensors(lambda part: select(part).flatten(0, 1), x)

        return Minibatch(
            select_flat(self.observations),
            select_flat(self.actions),
            None if self.action_masks is None else select_flat(self.action_masks),
            select(self.episode_starts),
            select(self.values),
            select(self.log_probs),
            select(self.advantages),
            select(self.returns),
            states.select(indices),
        )


def advantages(
    rewards: Tensor,
    values: Tensor,
    episode_starts: Tensor,
    last_values: Tensor,
    last_episode_starts: Tensor,
    gamma: float,
    gae_lambda: float,
) -> Tensor:
    """Generalized advantage estimates (Schulman et al. 2016) of a rollout, (T, N).

    Args:
        rewards, values, episode_starts: (T, N).
        last_values, last_episode_starts: as in `SequenceBuffer.finish`.
        gamma, gae_lambda: as in `SequenceBuffer`.
    """
    next_starts = torch.cat([episode_starts[1:], last_episode_starts[None]])
    continues = (~next_starts).to(values.dtype)
    next_values = torch.cat([values[1:], last_values[None]])
    delta = rewards + gamma * continues * next_values - values
    decay = gamma * gae_lambda * continues
    estimates = torch.empty_like(delta)
    advantage = torch.zeros_like(last_values)
    for t in reversed(range(len(delta))):
        advantage = torch.addcmul(delta[t], decay[t], advantage, out=estimates[t])
    return estimates


class _Array:
    """A tensor of a `SequenceBuffer` as a NumPy array."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, rollout: RolloutArrays, owner: type) -> Any:
        tensor = rollout.sequences.so_far(self._name)
        return rollout.zeros(self._name) if tensor is None else map_tensors(_as_array, tensor)

    def __set__(self, rollout: RolloutArrays, values: Any) -> None:
        tensor = getattr(rollout.sequences, self._name, None)
        if isinstance(tensor, dict):
            for name, part in tensor.items():
                part.copy_(torch.as_tensor(values[name]))
        elif tensor is not None:  # or else the first rollout will write all of it
            tensor.copy_(torch.as_tensor(values))


class _Number:
    """A number of a `SequenceBuffer`, which is set there."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, rollout: RolloutArrays, owner: type) -> float:
        number: float = getattr(rollout.sequences, self._name)
        return number

    def __set__(self, rollout: RolloutArrays, number: float) -> None:
        setattr(rollout.sequences, self._name, number)


class RolloutArrays:
    """A rollout under the names of SB3's `RolloutBuffer`, as callbacks use it.

    Its arrays are (n_steps, n_envs, ...), those of discrete actions (n_steps, n_envs). Those of a
    policy on a CPU share their memory with the tensors in `sequences`, and the next rollout
    overwrites them: copy what is to be kept. Others are copies, which assignment writes back.
    Steps that the rollout does not have yet are zeros. It is no subclass of SB3's buffer,
    and lacks `add` and `compute_returns_and_advantage`: `sequences` has `add` and `finish`.

    Args:
        sequences: the tensors.
        observation_space, action_space: of one environment.
        device: of the policy.

    Attributes:
        sequences: the tensors.
        obs_shape, action_dim: as in SB3.
        gamma, gae_lambda: of the advantages; a callback may set them, as in SB3.
        episode_starts: float32, 1 where an episode starts; always a copy.
    """

    observations = _Array()
    actions = _Array()
    rewards = _Array()
    episode_starts = _Array()
    values = _Array()
    log_probs = _Array()
    advantages = _Array()
    returns = _Array()
    gamma = _Number()
    gae_lambda = _Number()

    def __init__(
        self,
        sequences: SequenceBuffer,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        device: torch.device | str = "cpu",
    ) -> None:
        self.sequences = sequences
        self.observation_space, self.action_space = observation_space, action_space
        self.obs_shape = get_obs_shape(observation_space)
        self.action_dim = get_action_dim(action_space)
        self.device = torch.device(device)
        self.buffer_size, self.n_envs = sequences.n_steps, sequences.n_envs
        self._spaces = {"observations": observation_space, "actions": action_space}

    def zeros(self, name: str) -> Any:
        """An array as it is before the first rollout."""
        space = self._spaces.get(name)
        if isinstance(space, spaces.Dict):
            return {key: self._zeros(part.shape, part.dtype) for key, part in space.items()}
        if space is None:
            return self._zeros((), np.float32)
        # A policy gives forces and switches as floats, whatever dtype their space has.
        is_float = name == "actions" and isinstance(space, spaces.Box | spaces.MultiBinary)
        return self._zeros(space.shape, np.float32 if is_float else space.dtype)

    def _zeros(self, shape: Any, dtype: Any) -> np.ndarray[Any, Any]:
        dtype = np.float32 if np.dtype(dtype).kind == "f" else dtype
        return np.zeros((self.buffer_size, self.n_envs, *shape), dtype)

    @property
    def pos(self) -> int:
        """The steps so far."""
        return self.sequences.pos

    @property
    def full(self) -> bool:
        """Whether the rollout is complete."""
        return self.sequences.full

    @property
    def action_masks(self) -> Any:
        """1 where an action is allowed, (n_steps, n_envs, ...); None without masks."""
        masks = self.sequences.so_far("action_masks")
        return None if masks is None else map_tensors(_as_array, masks)

    swap_and_flatten = staticmethod(RolloutBuffer.swap_and_flatten)

    def to_torch(self, array: np.ndarray[Any, Any], copy: bool = True) -> Tensor:
        """As in SB3: a tensor on `device`."""
        make = torch.tensor if copy else torch.as_tensor
        return make(array, device=self.device)

    def size(self) -> int:
        """The steps so far."""
        return self.sequences.pos

    def reset(self) -> None:
        """Start a new rollout, which overwrites the old one."""
        self.sequences.reset()

    def get(self, batch_size: int | None = None) -> Iterator[Minibatch]:
        """The rollout of all environments in random order, about `batch_size` steps at a time.

        Raises:
            ValueError: the rollout is not complete.
        """
        if not self.full:
            raise ValueError(f"the rollout has {self.pos} of {self.buffer_size} steps.")
        return self.sequences.whole_sequences(batch_size)


def _as_array(tensor: Tensor) -> np.ndarray[Any, Any]:
    array: np.ndarray[Any, Any] = tensor.detach().cpu().numpy()
    return array.astype(np.float32) if array.dtype == bool else array


def chunks_of(batch_size: int, chunk_len: int) -> int:
    """The number of chunks in a minibatch."""
    return max(1, round(batch_size / chunk_len))


_NUMBERS = ("rewards", "episode_starts", "values", "log_probs")


def _check_number(name: str, value: Any, n_envs: int) -> None:
    if value.shape != (n_envs,):
        raise ValueError(
            f"the {name} of a step must be ({n_envs},), one for each environment, got "
            f"{tuple(value.shape)}."
        )


def _dtypes(value: Observations) -> Any:
    """The dtype of a tensor, or of each tensor of a dictionary."""
    return map_tensors(lambda x: x.dtype, value)


def map_tensors(function: Any, value: Observations) -> Any:
    """Apply a function to a tensor, or to each tensor of a dictionary."""
    if isinstance(value, dict):
        return {name: function(part) for name, part in value.items()}
    return function(value)
