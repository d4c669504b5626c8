"""Collecting rollouts for recurrent algorithms, and what they have in common."""

from __future__ import annotations

import json
import pickle
import zipfile
import zlib
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.vec_env import VecEnv
from torch import Tensor

from rlgates.agents.buffers import Minibatch, SequenceBuffer
from rlgates.agents.sequences import Evaluation, Observations, SequencePolicy, States
from rlgates.agents.tensor_env import TensorVecEnv, is_tensor_batch
from rlgates.agents.tvt import TVT, check_whole_episodes, memory_of, read_again
from rlgates.errors import nearest_divisor

_UNREADABLE = (
    zipfile.BadZipFile,
    zlib.error,
    json.JSONDecodeError,
    pickle.UnpicklingError,
    EOFError,
    KeyError,
    AttributeError,
    AssertionError,
    RuntimeError,
)


class SequenceRollouts(OnPolicyAlgorithm):
    """The part of an algorithm that makes rollouts of sequences; a subclass trains on them.

    Attributes:
        chunk_len, burn_in: see `SequenceBuffer`; chunk_len is None for the longest that divides
            the minibatches.
        tvt: what is added to the rewards of a rollout; None for nothing.
    """

    policy: SequencePolicy
    rollout_buffer: SequenceBuffer  # type: ignore[assignment]
    chunk_len: int | None
    burn_in: int
    tvt: TVT | None
    _last_lstm_states: Any

    @staticmethod
    def _wrap_env(env: Any, verbose: int = 0, monitor_wrapper: bool = True) -> VecEnv:
        if is_tensor_batch(env):
            env = TensorVecEnv(env)
        return OnPolicyAlgorithm._wrap_env(env, verbose, monitor_wrapper)

    def _minibatch(self) -> int | None:
        """Steps of a minibatch; None for the whole rollout."""
        return None

    def _checked_chunk_len(self) -> int:
        """Steps of a chunk.

        Raises:
            ValueError: numbers that do not divide, with the nearest that do.
        """
        steps, rollout = self.n_steps, self.n_steps * self.n_envs
        batch = self._minibatch() or rollout
        if batch < 2 or rollout % batch:
            raise ValueError(
                f"batch_size must be at least 2 and divide the rollout, n_steps * n_envs = "
                f"{steps} * {self.n_envs} = {rollout}; got {batch}. "
                f"Nearest: {nearest_divisor(rollout, batch, minimum=2)}."
            )
        chunk = self.chunk_len
        if chunk is None:
            chunk = steps if batch % steps == 0 else batch
            if steps % chunk:
                raise ValueError(
                    f"batch_size must be a multiple of n_steps = {steps} or divide it, so that "
                    f"minibatches are whole sequences, got {batch}. Nearest: "
                    f"{nearest_divisor(steps, batch, minimum=2)}. Or set chunk_len, such as "
                    f"{np.gcd(steps, batch)}."
                )
        elif steps % chunk or batch % chunk:
            both = int(np.gcd(steps, batch))
            raise ValueError(
                f"chunk_len must divide n_steps = {steps} and batch_size = {batch}, got {chunk}. "
                f"Nearest: {nearest_divisor(both, chunk)}."
            )
        if not 0 <= self.burn_in < chunk:
            raise ValueError(
                f"burn_in must be at least 0 and less than chunk_len = {chunk}, got {self.burn_in}."
            )
        return chunk

    def _use_sequences(self) -> None:
        """Keep rollouts and states as sequences: at the end of `_setup_model`."""
        if not isinstance(self.policy, SequencePolicy):
            raise TypeError(
                f"the policy must be one of rlgates, such as MlpLstmPolicy, or a subclass; got "
                f"{type(self.policy).__name__}."
            )
        if self.tvt is not None:
            memory_of(self.policy)  # a policy without one is an error here
        self.rollout_buffer = SequenceBuffer(
            self.n_steps, self.n_envs, self.n_steps, self.burn_in, self.gamma, self.gae_lambda
        )
        self._last_lstm_states = self.policy.initial_states(self.n_envs)

    def _setup_learn(self, *args: Any, **kwargs: Any) -> Any:
        # Here and not earlier: a model that was loaded may have another number of environments.
        self.rollout_buffer.chunk_len = self._checked_chunk_len()
        return super()._setup_learn(*args, **kwargs)

    def collect_rollouts(  # type: ignore[override]
        self,
        env: VecEnv,
        callback: BaseCallback,
        rollout_buffer: SequenceBuffer,
        n_rollout_steps: int,
    ) -> bool:
        """Fill the buffer with `n_rollout_steps` of all environments; False if stopped."""
        assert self._last_obs is not None, "no observation to begin with"
        policy = self.policy
        policy.set_training_mode(False)
        rollout_buffer.reset()
        if self.use_sde:
            policy.reset_noise(env.num_envs)
        callback.on_rollout_start()
        observations = self._observe(self._last_obs)
        starts = torch.as_tensor(self._last_episode_starts, device=self.device)
        states: States = self._last_lstm_states
        for n_steps in range(n_rollout_steps):
            if self.use_sde and self.sde_sample_freq > 0 and n_steps % self.sde_sample_freq == 0:
                policy.reset_noise(env.num_envs)
            action_masks = self._action_masks(env)
            with torch.no_grad():
                actions, values, log_probs, new_states, outputs = policy.act(
                    observations, states, starts, action_masks
                )
            given: Any = self._within_bounds(actions)
            if not isinstance(env, TensorVecEnv):
                given = given.cpu().numpy()
            new_obs: Any
            new_obs, rewards, dones, infos = env.step(given)
            self.num_timesteps += env.num_envs
            callback.update_locals(locals())
            if not callback.on_step():
                return False
            self._update_info_buffer(infos, dones)
            paid = self._paid(rewards, dones, infos, new_states)
            rollout_buffer.add(
                states,
                observations=observations,
                actions=actions,
                action_masks=action_masks,
                rewards=paid,
                starts=starts,
                values=values,
                log_probs=log_probs,
                **({} if self.tvt is None else {"outputs": outputs}),
            )
            observations = self._observe(new_obs)
            starts = torch.as_tensor(dones, device=self.device)
            states = new_states
            self._last_obs, self._last_episode_starts = new_obs, dones
            self._last_lstm_states = states
        with torch.no_grad():
            last_values = policy.value(observations, states, starts)
        self._transport_value(rollout_buffer, starts)
        rollout_buffer.finish(last_values, starts)
        self._check_rollout()
        if isinstance(env, TensorVecEnv):
            told = env.episodes(most=self._stats_window_size)
            self._update_info_buffer(told, np.ones(len(told), dtype=bool))
        callback.update_locals(locals())
        callback.on_rollout_end()
        return True

    def _observe(self, observations: Any) -> Observations:
        """Observations of a VecEnv as tensors.

        Raises:
            ValueError: one is not finite.
        """
        if isinstance(observations, dict):
            return {name: self._tensor(part, name) for name, part in observations.items()}
        return self._tensor(observations, "observation")

    def _tensor(self, values: Any, name: str) -> Tensor:
        if isinstance(values, Tensor):
            return values
        if values.dtype.kind == "f":
            if not np.isfinite(values).all():
                row = int(np.argwhere(~np.isfinite(values))[0][0])
                raise ValueError(f"the {name} of environment {row} is not finite: {values[row]}.")
            values = values.astype(np.float32, copy=False)
        return torch.as_tensor(values, device=self.device)

    def _action_masks(self, env: VecEnv) -> Tensor | None:
        """The masks of the actions (N, ...); None for all actions."""
        return None

    def _within_bounds(self, actions: Tensor) -> Tensor:
        """Actions as the environment takes them."""
        space = self.action_space
        if not isinstance(space, spaces.Box):
            return actions
        low = torch.as_tensor(space.low, device=actions.device)
        high = torch.as_tensor(space.high, device=actions.device)
        if self.policy.squash_output:
            actions = low + 0.5 * (actions + 1.0) * (high - low)
        return actions.clamp(low, high)

    def _paid(self, rewards: Any, dones: Any, infos: Any, states: States) -> Tensor:
        """Rewards (N,), with the value of what a time limit has cut off."""
        paid = torch.as_tensor(rewards, dtype=torch.float32, device=self.device)
        cut = [
            row
            for row, info in enumerate(infos)
            if info.get("TimeLimit.truncated", False)
            and dones[row]
            and info.get("terminal_observation") is not None
        ]
        if not cut:
            return paid
        last: Any = [infos[row]["terminal_observation"] for row in cut]
        if isinstance(last[0], dict):
            last = {name: np.stack([part[name] for part in last]) for name in last[0]}
        else:
            last = np.stack(last)
        no_start = torch.zeros(len(cut), dtype=torch.bool, device=self.device)
        with torch.no_grad():
            values = self.policy.value(self._observe(last), states.rows(cut), no_start)
        paid = paid.clone()  # which may be the environment's own
        paid[cut] += self.gamma * values
        return paid

    def _transport_value(self, buffer: SequenceBuffer, ends: Tensor) -> None:
        """Raise the rewards of a rollout by what `tvt` says."""
        if self.tvt is None:
            return
        check_whole_episodes(buffer.starts, ends)
        reads = read_again(memory_of(self.policy), buffer.outputs, buffer.starts)
        more = self.tvt.rewards(reads, buffer.starts, buffer.values, self.gamma)
        buffer.rewards += more
        self.logger.record("rollout/tvt_reward", float(more.sum() / buffer.starts.sum()))

    def _check_rollout(self) -> None:
        for name in ("rewards", "values", "log_probs", "advantages"):
            values = getattr(self.rollout_buffer, name)
            if not values.isfinite().all():
                wrong = int((~values.isfinite()).sum())
                raise ValueError(
                    f"the {name} of a rollout must be finite, got {wrong} numbers that are not."
                )

    def _evaluate(self, batch: Minibatch) -> Evaluation:
        return self.policy.evaluate(
            batch.observations, batch.actions, batch.states, batch.starts, batch.action_masks
        )

    def _step_optimizer(self, loss: Tensor) -> Tensor:
        """Follow the gradient of a loss; the norm it had before it was clipped."""
        optimizer = self.policy.optimizer
        weights = [weight for group in optimizer.param_groups for weight in group["params"]]
        for weight in weights:
            weight.grad = None
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(weights, self.max_grad_norm, foreach=True)
        optimizer.step()
        return norm

    def _record(self, means: dict[str, Any]) -> None:
        """Write the numbers of an update to the logger, below `train/`."""
        for name, value in means.items():
            self.logger.record(f"train/{name}", float(value))
        if hasattr(self.policy, "log_std"):
            self.logger.record("train/std", self.policy.log_std.exp().mean().item())
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")

    @classmethod
    def load(cls, path: Any, *args: Any, **kwargs: Any) -> Any:
        """As in SB3.

        Raises:
            ValueError: a file that is damaged, or holds no model of this kind.
            FileNotFoundError: there is none.
        """
        try:
            return super().load(path, *args, **kwargs)
        except _UNREADABLE as error:
            raise ValueError(
                f"{path} is damaged, or no model of {cls.__name__}: {type(error).__name__}: {error}"
            ) from error

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "_last_lstm_states"]
