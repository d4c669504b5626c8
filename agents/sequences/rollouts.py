"""Collecting rollouts of sequences."""

from __future__ import annotations

import math
import operator
import sys
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, SupportsIndex

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.preprocessing import get_obs_shape
from stable_baselines3.common.vec_env import VecEnv, VecNormalize
from torch import Tensor

from rlgates.agents.arguments import check_policy_kwargs
from rlgates.agents.compilation import (
    Compiled,
    CompileMode,
    check_compile,
    records_graphs,
)
from rlgates.agents.files.agent import SavedAgent
from rlgates.agents.ranks import ALONE, Ranks, check_first_index, pool_statistics, seed_envs
from rlgates.agents.recording import Recorded, can_record, copied
from rlgates.agents.sequences.buffers import (
    Minibatch,
    RolloutArrays,
    SequenceBuffer,
    advantages,
    chunks_of,
)
from rlgates.agents.sequences.core_module import CoreModule
from rlgates.agents.sequences.distributions import sampling
from rlgates.agents.sequences.policy import (
    CONTRIB_METHODS,
    Observations,
    PolicyOutput,
    SequencePolicy,
    StatePairs,
    States,
    overridden,
)
from rlgates.agents.sequences.recorded_steps import RecordedSteps
from rlgates.agents.sequences.tensor_vec_env import (
    LazyArray,
    TensorVecEnv,
    check_environment,
    is_tensor_env,
)
from rlgates.agents.tvt import (
    TVT,
    check_tvt,
    check_whole_episodes,
    recompute_reads,
    rma_cell,
)
from rlgates.cell import check_device, is_bare
from rlgates.errors import (
    MAX_LENGTH,
    TrainingDiverged,
    check_choice,
    check_flag,
    check_fraction,
    check_nonnegative,
    check_number,
    check_positive,
    check_size,
    nearest_divisor,
)
from rlgates.kernels import ClipAndStep
from rlgates.registry import core_modules, core_name


def callers_level() -> int:
    """The `stacklevel` of warnings, in the calling function, that shows the caller of an agent."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").startswith(_LIBRARIES):
        level, frame = level + 1, frame.f_back
    return level


_LIBRARIES = ("rlgates.agents.", "sb3_contrib.", "stable_baselines3.")


def _nothing_made() -> dict[str, Any]:
    """The attributes that hold what an agent has compiled, recorded or looked up, all empty."""
    return {
        "_compiled": {},
        "_recorded": {},
        "_recorded_steps": None,
        "_bounds": {},
        "_clip_and_step": ClipAndStep(),
    }


def with_module(env: Any) -> Any:
    """The id of an environment of rlgates with the module that registers it; all else as it is."""
    return f"rlgates.envs:{env}" if isinstance(env, str) and env.startswith("rlgates/") else env


def _check_overrides(policy: Any) -> None:
    """Raise TypeError if a policy or its class has its own version of what no agent calls."""
    if others := overridden(policy, *CONTRIB_METHODS):
        name = policy.__name__ if isinstance(policy, type) else type(policy).__name__
        raise TypeError(
            f"{name} has its own {', '.join(others)}, which only the algorithms of sb3-contrib "
            "call: override act, evaluate or latents instead."
        )


def _of_environments(name: str, values: Any, count: int) -> Any:
    """What a VecEnv returns for each environment as (N,), from (N,) or (N, 1).

    Raises:
        ValueError: it has another shape.
    """
    if getattr(values, "shape", None) == (count,):
        return values
    values = values if isinstance(values, Tensor) else np.asarray(values)
    if values.shape not in ((count,), (count, 1)):
        raise ValueError(
            f"the {name} of {count} environments must be ({count},), got {tuple(values.shape)}."
        )
    return values.reshape(count)


def is_normalized(normalize: VecNormalize | None, name: str) -> bool:
    """Whether these are the floats of a `VecNormalize`, which leaves the dtype of the space alone.

    Args:
        normalize: of the environments.
        name: a key of a Dict of observations; any name for others.
    """
    if normalize is None or not normalize.norm_obs:
        return False
    return normalize.norm_obs_keys is None or name in normalize.norm_obs_keys


def check_learning(callback: Any, log_interval: Any, *flags: Any) -> None:
    """Raise unless these are arguments of SB3's `learn`, which notices only once it has begun.

    Args:
        callback, log_interval: of `learn`.
        flags: its `reset_num_timesteps` and `progress_bar`.
    """
    if not (callback is None or callable(callback) or isinstance(callback, list | BaseCallback)):
        raise TypeError(f"callback must be a callback, a list of them or None, got {callback!r}.")
    if log_interval is not None:
        check_size("log_interval", log_interval)
    for name, flag in zip(("reset_num_timesteps", "progress_bar"), flags, strict=True):
        check_flag(name, flag)


class SequenceRollouts(SavedAgent):
    """The part of an algorithm that collects rollouts of sequences; subclasses train on them.

    Attributes:
        chunk_len, burn_in: see `SequenceBuffer`; with chunk_len None, the longest that divides
            the minibatches.
        tvt: temporal value transport, which adds to the rewards of a rollout; or None.
        distributed: whether the processes of torch.distributed train this agent together.
        ranks: these processes, and which environments this one has.
        compile: whether steps and losses run as graphs of torch.compile, or its mode.
    """

    policy: SequencePolicy
    rollout_buffer: RolloutArrays  # type: ignore[assignment]
    chunk_len: int | None
    burn_in: int
    tvt: TVT | None
    normalize_advantage: bool
    distributed: bool = False
    ranks: Ranks = ALONE
    compile: bool | CompileMode = False  # which models of earlier versions do not have
    _compiled: dict[str, Compiled]
    _recorded: dict[str, Recorded]
    _recorded_steps: RecordedSteps | None
    _bounds: dict[torch.device, Any]
    _clip_and_step: ClipAndStep
    _last_lstm_states: Any
    _last_warning = ""

    @staticmethod
    def _wrap_env(env: Any, verbose: int = 0, monitor_wrapper: bool = True) -> VecEnv:
        check_environment(env)
        if is_tensor_env(env):
            env = TensorVecEnv(env)
        elif isinstance(env, gymnasium.Env):
            get_obs_shape(env.observation_space)  # raises, before SB3 fails to store observations
        return OnPolicyAlgorithm._wrap_env(env, verbose, monitor_wrapper)

    def _minibatch_size(self) -> int | None:
        """Steps of a minibatch; None for the whole rollout."""
        return None

    def _set_chunk_len(self) -> None:
        """Set the steps of a chunk; warn, once, of minibatches that are not of `batch_size` steps.

        Raises:
            ValueError: `chunk_len` or `burn_in` does not fit, and the message says what does;
                states to recompute, but a rollout is not cut into chunks.
        """
        n_envs = self.ranks.total
        steps, rollout = self.n_steps, self.n_steps * n_envs
        batch = self._minibatch_size() or rollout
        chunk = self.chunk_len
        if chunk is None:
            chunk = steps if batch >= steps else nearest_divisor(steps, batch, min(batch, 2))
        elif steps % chunk or batch % chunk:
            common = int(np.gcd(steps, batch))
            raise ValueError(
                f"chunk_len must divide n_steps = {steps} and batch_size = {batch}, got {chunk}. "
                f"Nearest: {nearest_divisor(common, chunk)}."
            )
        if not 0 <= self.burn_in < chunk:
            raise ValueError(
                f"burn_in must be at least 0 and less than chunk_len = {chunk}, got {self.burn_in}."
            )
        if chunk == steps:
            for name in ("burn_in", "refresh_states"):
                if getattr(self, name, False):  # no state of A2C is refreshed
                    raise ValueError(
                        f"{name}={getattr(self, name)} would have no effect: a rollout is one "
                        f"sequence of n_steps = {steps}. Set chunk_len to cut it."
                    )
        self.rollout_buffer.sequences.chunk_len = chunk
        self.rollout_buffer.sequences.ranks = self.ranks
        size = min(chunk * chunks_of(batch, chunk), rollout)
        if size == batch and rollout % size == 0:
            return
        last = f", the last one {rollout % size}" if rollout % size else ""
        warning = (
            f"batch_size = {batch} does not divide the n_steps * n_envs = {steps} * {n_envs} "
            f"= {rollout} steps of a rollout into whole sequences: minibatches have {size} "
            f"steps{last}."
        )
        if warning != self._last_warning and self.ranks.is_first:
            self._last_warning = warning
            warnings.warn(warning, stacklevel=callers_level())

    def _check_construction(
        self, policy: Any, env: Any, policy_kwargs: Any, verbose: Any, device: Any
    ) -> None:
        """Check what SB3's constructor takes to pieces.

        Raises:
            TypeError, ValueError: one of a wrong type, a policy or a device that does not exist.
        """
        if isinstance(policy, str):
            check_choice("policy", policy, self.policy_aliases)
        elif not isinstance(policy, type):
            raise TypeError(f"policy must be a name or a class, got {policy!r}.")
        if env is None:
            raise TypeError("env must be an environment or the id of one, got None.")
        check_policy_kwargs(policy_kwargs)
        if not isinstance(verbose, SupportsIndex):
            raise TypeError(f"verbose must be an integer, got {verbose!r}.")
        # Without any GPU, SB3 takes the CPU in its place.
        if torch.cuda.is_available() or not str(device).startswith(("auto", "cuda")):
            check_device("cuda" if device == "auto" else device)

    def _check_arguments(self) -> None:
        """Check the arguments that SB3 does not check; `load` takes them, too.

        Raises:
            TypeError, ValueError: one of a wrong type, or out of range.
        """
        self.n_steps = check_size("n_steps", self.n_steps, maximum=MAX_LENGTH)
        check_size("stats_window_size", self._stats_window_size)
        check_size("sde_sample_freq", self.sde_sample_freq, minimum=-1)
        for name in ("use_sde", "normalize_advantage", "distributed"):
            setattr(self, name, check_flag(name, getattr(self, name)))  # NumPy's become bools
        if self.chunk_len is not None:
            self.chunk_len = check_size("chunk_len", self.chunk_len)
        self.burn_in = check_size("burn_in", self.burn_in, minimum=0)
        self.tvt = check_tvt(self.tvt)
        self.compile = check_compile(self.compile)
        for name in ("gamma", "gae_lambda"):
            check_fraction(name, getattr(self, name))
        for name in ("ent_coef", "vf_coef"):
            check_number(name, getattr(self, name))
        check_positive("max_grad_norm", self.max_grad_norm)
        if not callable(self.learning_rate):
            check_nonnegative("learning_rate", self.learning_rate)

    def _check_policy_class(self) -> None:
        """Raise TypeError or ValueError unless the algorithm can train this policy."""
        if not issubclass(self.policy_class, SequencePolicy):
            raise TypeError(
                f"the policy must be one of rlgates, such as MlpLstmPolicy, or a subclass; got "
                f"{self.policy_class.__name__}."
            )
        _check_overrides(self.policy_class)
        if self.policy_class.takes_masks and not self._has_masks:
            name = type(self).__name__
            raise ValueError(
                f"{self.policy_class.__name__} takes action masks, which {name} does not give: "
                "make the agent with MaskableRecurrentPPO, and load it with "
                f"MaskableRecurrentPPO.load, not {name}.load."
            )

    @property
    def _has_masks(self) -> bool:
        """Whether the algorithm asks the environments for masks of the actions."""
        return type(self)._action_masks is not SequenceRollouts._action_masks

    def _check_policy(self) -> None:
        """Raise TypeError for a policy of another kind, or what was attached and would never run.

        Callbacks attach things, too: it is called again when a rollout or an update begins.
        """
        policy = self.policy
        if not isinstance(policy, SequencePolicy):
            raise TypeError(
                f"the policy must be one of rlgates, got {type(policy).__name__}. To compile it, "
                "give the agent compile=True."
            )
        _check_overrides(policy)
        self._check_cores()
        for name in ("policy", "policy.lstm_actor", "policy.lstm_critic"):
            module: Any = operator.attrgetter(name)(self)
            if module is not None and not is_bare(module):
                core = f"{'policy.lstm_actor' if module is policy else name}.core"
                raise TypeError(
                    f"hooks on {name}, its own forward or compile() would never run: agents call "
                    f"policy.act, policy.evaluate and {core}, whose hooks run."
                )

    def _check_cores(self) -> None:
        """Raise TypeError unless the policy has the cores of rlgates."""
        for name in ("lstm_actor", "lstm_critic"):
            module: Any = getattr(self.policy, name)
            is_absent = module is None and name == "lstm_critic"
            if not (is_absent or isinstance(module, CoreModule)):
                raise TypeError(
                    f"policy.{name} must be a CoreModule of rlgates, got {type(module).__name__}: "
                    'choose the core in policy_kwargs={"core": ...}; register_core adds your own.'
                )

    def _setup_model(self) -> None:
        self._check_arguments()
        if "core" in self.policy_kwargs:  # files store its name, not its class
            core = self._core_name(self.policy_kwargs["core"])
            self.policy_kwargs = {**self.policy_kwargs, "core": core}
            self.core_modules = core_modules(core)
        self._check_policy_class()
        self._join_ranks()
        if not self.ranks.is_first:  # which logs for all
            self.verbose, self.tensorboard_log = 0, None
        self.__dict__.update(_nothing_made())
        # As `super()._setup_model()` without its buffer, which has the states of every step.
        get_obs_shape(self.observation_space)  # raises for spaces that SB3 does not support
        self._setup_lr_schedule()
        self.set_random_seed(self.seed)
        policy = self.policy_class(
            self.observation_space,
            self.action_space,
            self.lr_schedule,
            use_sde=self.use_sde,
            **self.policy_kwargs,
        )
        self.policy = policy.to(self.device)  # type: ignore[assignment]
        self._check_cores()
        if self.tvt is not None:
            rma_cell(self.policy)  # raises if the policy has none
        sequences = SequenceBuffer(
            self.n_steps, self.n_envs, self.n_steps, self.burn_in, self.gamma, self.gae_lambda
        )
        self.rollout_buffer = RolloutArrays(
            sequences, self.observation_space, self.action_space, self.device
        )
        self._reset_states()
        if self.env is not None:
            self._check_env()

    def _reset_states(self) -> None:
        """Set the states of the cores to the initial ones of the current weights."""
        with torch.no_grad():  # or a learned state, with its graph, could not be copied
            self._last_lstm_states = self.policy.initial_states(self.n_envs)

    def _check_env(self) -> None:
        """Check what depends on the environments, and set what does.

        Raises:
            ValueError: environments of tensors on another device than the policy; and as
                `_set_chunk_len`.
        """
        if isinstance(self.env, TensorVecEnv):
            self.env.check_device(self.policy.device)
        self._set_chunk_len()

    def _core_name(self, core: Any) -> str:
        try:
            return core_name(core)
        except ValueError as error:
            modules = getattr(self, "core_modules", None)  # a loaded model has those of its file
            if not modules:
                raise
            raise ValueError(
                f"{error} When the model was saved, it was registered by {', '.join(modules)}."
            ) from error

    def _setup_learn(self, total_timesteps: int, *args: Any, **kwargs: Any) -> Any:
        if total_timesteps != math.inf:
            check_nonnegative("total_timesteps", total_timesteps)
        if self.env is None:
            raise ValueError("the agent has no environment: pass env to load, or call set_env.")
        self._check_policy()
        # Again, because the environments may be others now.
        self._join_ranks()
        self._check_env()
        if not self.ranks.is_alone:
            for value in self.policy.state_dict().values():
                if isinstance(value, Tensor):  # not what `get_extra_state` returns
                    self.ranks.broadcast(value)
        if isinstance(self.env, TensorVecEnv):
            self.env.compile(False if self._compiles_steps() else self.compile)
        # Weights or environments may be other tensors now.
        self._recorded = {}
        if self._recorded_steps is not None:
            self._recorded_steps.forget()
        return super()._setup_learn(total_timesteps, *args, **kwargs)

    def _join_ranks(self) -> None:
        """Find out which environments this rank has, and share the statistics of a VecNormalize.

        Raises:
            ValueError: `distributed` without a process group, or environments with the indices of
                those of another rank.
        """
        self.ranks = Ranks.asked_for(self.distributed).joined(self.n_envs)
        if self.env is not None:
            check_first_index(self.env, self.ranks)
            pool_statistics(self.env, self.ranks)

    def set_random_seed(self, seed: int | None = None) -> None:
        """As in SB3; the environments of each rank get their own seeds."""
        if seed is not None:
            seed = check_size("seed", seed, minimum=0, maximum=2**32 - 1)
        super().set_random_seed(seed)
        if seed is not None and self.env is not None and not self.ranks.is_alone:
            seed_envs(self.env, seed, self.ranks)

    def collect_rollouts(  # type: ignore[override]
        self,
        env: VecEnv,
        callback: BaseCallback,
        rollout_buffer: RolloutArrays,
        n_rollout_steps: int,
    ) -> bool:
        """Fill the buffer with `n_rollout_steps` of all environments.

        Callbacks see the local variables under the names of sb3-contrib. With a batch of tensors
        as environments, actions and observations are tensors, and rewards and dones become arrays
        when they are read (`LazyArray`); in CUDA graphs there are those of `RecordedStep`, which
        the next step overwrites.

        Returns:
            False if the callback stopped the training.

        Raises:
            ValueError: another number of steps than the buffer has; environments of tensors that
                truncate episodes without `final_obs`.
        """
        assert self._last_obs is not None, "no previous observation was provided"
        policy, sequences, ranks = self.policy, rollout_buffer.sequences, self.ranks
        if n_rollout_steps != sequences.n_steps:  # an agent whose n_steps was set later
            raise ValueError(
                f"n_steps must stay {sequences.n_steps}, with which the agent was created, got "
                f"{n_rollout_steps}: save the agent, and load it with n_steps={n_rollout_steps}."
            )
        policy.set_training_mode(False)
        sequences.reset()
        if self.use_sde:
            policy.reset_noise(ranks.total)
        callback.on_rollout_start()
        self._check_policy()
        ranks.same_random(self.device)
        take_steps = self._take_recorded_steps if self._records_steps() else self._take_steps
        ended = take_steps(env, callback, rollout_buffer, n_rollout_steps)
        if ended is None:
            return False
        last = self._as_tensors(self._last_obs), self._last_lstm_states, self._episode_starts()
        with torch.no_grad():
            last_values = self._replayed("value", policy.value)(*last)
        self._transport_value(sequences, last[-1])
        sequences.finish(last_values, last[-1], self._replayed("advantages", advantages))
        self._check_rollout()
        if isinstance(env, TensorVecEnv):
            env.check_truncations()
            ended = env.episodes(most=self._stats_window_size)
        self._record_episodes(ended)
        callback.update_locals(locals())
        callback.on_rollout_end()
        return True

    def _episode_starts(self) -> Tensor:
        """Of the next step, (N,) bool."""
        return torch.as_tensor(self._last_episode_starts, dtype=torch.bool, device=self.device)

    def _take_steps(
        self,
        env: VecEnv,
        callback: BaseCallback,
        rollout_buffer: RolloutArrays,
        n_rollout_steps: int,
    ) -> list[tuple[int, dict[str, Any]]] | None:
        """Take the steps of a rollout.

        Returns:
            with several ranks, the last infos of episodes, each with its step; None if the callback
            stopped the training.
        """
        policy, sequences, ranks = self.policy, rollout_buffer.sequences, self.ranks
        act = self._acting()
        ended: list[tuple[int, dict[str, Any]]] = []
        obs_tensor = self._as_tensors(self._last_obs)
        episode_starts = self._episode_starts()
        states: States = self._last_lstm_states
        for n_steps in range(n_rollout_steps):
            if self.use_sde and self.sde_sample_freq > 0 and n_steps % self.sde_sample_freq == 0:
                policy.reset_noise(ranks.total)
            action_masks = self._action_masks(env)
            with torch.no_grad(), sampling():
                action_tensor, values, log_probs, new_states, outputs = act(
                    obs_tensor, states, episode_starts, action_masks
                )
            lstm_states = StatePairs(policy, new_states)
            actions: Any = action_tensor
            if not isinstance(env, TensorVecEnv):
                actions = actions.cpu().numpy()
            clipped_actions = self._within_bounds(actions)
            new_obs: Any
            new_obs, rewards, dones, infos = env.step(clipped_actions)
            rewards = _of_environments("rewards", rewards, env.num_envs)
            dones = _of_environments("dones", dones, env.num_envs)
            if not isinstance(env, TensorVecEnv):
                dones = np.asarray(dones, dtype=bool)  # an environment may say 1 for True
            self.num_timesteps += ranks.total
            shown = self._as_arrays(rewards, dones, action_masks)
            callback.update_locals({**locals(), **shown})
            proceeds = callback.on_step()
            # Also where the callback stops: the environments have taken the step.
            self._last_obs, self._last_episode_starts = new_obs, dones
            self._last_lstm_states = new_states
            if not proceeds:
                return None
            if ranks.is_alone:
                if any(infos):
                    self._update_info_buffer(infos, dones)
            else:
                ended += [(n_steps, info) for info, done in zip(infos, dones, strict=False) if done]
            sequences.add(
                states,
                observations=obs_tensor,
                actions=action_tensor,
                action_masks=action_masks,
                rewards=(
                    self._bootstrapped_tensors(env, rewards, new_states)
                    if isinstance(env, TensorVecEnv)
                    else self._bootstrapped_rewards(rewards, dones, infos, new_states)
                ),
                episode_starts=episode_starts,
                values=values,
                log_probs=log_probs,
                **({} if self.tvt is None else {"outputs": outputs}),
            )
            obs_tensor = self._as_tensors(new_obs)
            episode_starts = torch.as_tensor(dones, device=self.device)
            states = new_states
        return ended

    def _take_recorded_steps(
        self,
        env: Any,
        callback: BaseCallback,
        rollout_buffer: RolloutArrays,
        n_rollout_steps: int,
    ) -> list[tuple[int, dict[str, Any]]] | None:
        """As `_take_steps`, each of them a CUDA graph."""
        steps, last = self._recorded_steps, self._last_lstm_states
        mode: Any = self.compile
        act = self.policy.act if self._compiles_steps() else self._graph(self.policy.act)
        if steps is None or not steps.is_of(
            act, env, rollout_buffer.sequences, self.tvt is not None
        ):
            steps = self._recorded_steps = RecordedSteps(
                act,
                self._within_bounds,
                env,
                rollout_buffer.sequences,
                with_outputs=self.tvt is not None,
                mode=mode,
            )
        observations: Any = self._last_obs
        steps.begin(observations, last, self._episode_starts())
        # The tensors that each step writes to.
        self._last_obs, self._last_lstm_states = steps.observations, steps.states  # type: ignore[assignment]
        self._last_episode_starts = steps.episode_starts  # type: ignore[assignment]
        infos: list[Any] = []
        sequences = rollout_buffer.sequences
        for n_steps in range(n_rollout_steps):
            step = steps()
            sequences.steps_ahead = 1
            self.num_timesteps += env.num_envs
            seen = {**step._asdict(), **self._as_arrays(step.rewards, step.dones, writable=False)}
            callback.update_locals({**locals(), **seen, "n_steps": n_steps})
            if not callback.on_step():
                return None
            sequences.pos, sequences.steps_ahead = sequences.pos + 1, 0
        return []

    @staticmethod
    def _as_arrays(
        rewards: Any, dones: Any, action_masks: Tensor | None = None, writable: bool = True
    ) -> dict[str, Any]:
        """What callbacks of SB3 read as arrays; masks of environments of tensors stay tensors."""
        masks: Any = action_masks
        if isinstance(dones, Tensor):
            rewards, dones = LazyArray(rewards, writable), LazyArray(dones, writable)
        elif masks is not None:
            masks = masks.cpu().numpy()
        return {"rewards": rewards, "dones": dones, "action_masks": masks}

    def _records_steps(self) -> bool:
        """Whether the steps of policy and environments run as CUDA graphs."""
        places = isinstance(self.env, TensorVecEnv) and self.env.can_step_in_place
        return self._records() and places and not self._has_masks

    def _compiles_steps(self) -> bool:
        """Whether most steps, those in which no episode can end, are compiled as a whole."""
        env: Any = self.env
        return self._records_steps() and env.env.spec.fixed_length

    def _records(self) -> bool:
        """Whether there may be CUDA graphs; noise of gSDE, which is replaced, has none."""
        return (
            can_record(self.device)
            and records_graphs(self.compile)
            and self.ranks.is_alone
            and not self.use_sde
        )

    def _acting(self) -> Callable[..., PolicyOutput]:
        """The policy's step as `compile` says."""
        if not self.ranks.is_alone:
            return partial(self.policy.act, ranks=self.ranks)
        act: Callable[..., PolicyOutput] = self._graph(self.policy.act)
        if not self._records():
            return act
        recorded = self._replayed("act", act)
        return lambda *args: copied(recorded(*args))

    def _replayed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function as a CUDA graph, if there may be any; the next call overwrites its results."""
        if not self._records():
            return function
        recorded = self._recorded.get(name)
        if recorded is None or recorded.function != function:  # of another policy
            recorded = self._recorded[name] = Recorded(function, self.device)
        return recorded

    def _record_episodes(self, ended: list[tuple[int, dict[str, Any]]]) -> None:
        """Add the last infos of episodes, each with its step, to the statistics of all ranks."""
        kept = [
            (step, {name: info[name] for name in ("episode", "is_success") if name in info})
            for step, info in ended[-self._stats_window_size :]
        ]
        infos: list[Any] = self.ranks.in_order(kept)
        self._update_info_buffer(infos, np.ones(len(infos), dtype=bool))

    def _as_tensors(self, observations: Any, envs: list[int] | None = None) -> Observations:
        """Observations of a VecEnv as tensors of the dtypes of their spaces; floats are float32.

        An environment may return other dtypes than its space has, and another in `reset` than in
        `step`; a `SubprocVecEnv` passes them on. What a `VecNormalize` gives is float32, whatever
        the space.

        Args:
            observations: (N, ...).
            envs: the environments that they are of; None for all.

        Raises:
            ValueError: one is not finite.
        """
        space = self.observation_space
        if isinstance(observations, dict):
            assert isinstance(space, spaces.Dict)
            parts = observations.items()
            return {name: self._as_tensor(part, name, space[name], envs) for name, part in parts}
        return self._as_tensor(observations, "observation", space, envs)

    def _as_tensor(
        self, values: Any, name: str, space: spaces.Space[Any], envs: list[int] | None
    ) -> Tensor:
        if isinstance(values, Tensor):
            return values
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            index = int(np.argwhere(~np.isfinite(values))[0][0])
            env = index if envs is None else envs[index]
            raise ValueError(f"the {name} of environment {env} is not finite: {values[index]}.")
        dtype = np.dtype(space.dtype)
        if dtype.kind == "f" or is_normalized(self._vec_normalize_env, name):
            dtype = np.dtype(np.float32)
        values = values.astype(dtype, copy=False)
        return torch.as_tensor(values, device=self.device)

    def _action_masks(self, env: VecEnv) -> Tensor | None:
        """The masks of the actions (N, ...); None if every action is allowed."""
        return None

    def _within_bounds(self, actions: Any) -> Any:
        """Actions, an array or a tensor, rescaled or clipped to the bounds of the action space.

        Raises:
            TrainingDiverged: they are not finite. Those on a GPU are checked after the rollout.
        """
        space = self.action_space
        if not isinstance(space, spaces.Box):
            return actions
        on_gpu = isinstance(actions, Tensor) and actions.device.type != "cpu"
        if not on_gpu and not torch.as_tensor(actions).isfinite().all():
            raise TrainingDiverged("the policy's actions are not finite, like some of its weights.")
        low: Any = space.low
        high: Any = space.high
        if isinstance(actions, Tensor):
            if actions.device not in self._bounds:  # copied once: a GPU is waited for
                bounds = torch.as_tensor(low), torch.as_tensor(high)
                self._bounds[actions.device] = tuple(x.to(actions.device) for x in bounds)
            low, high = self._bounds[actions.device]
        if self.policy.squash_output:
            actions = low + 0.5 * (actions + 1.0) * (high - low)
        return actions.clip(low, high)

    def _bootstrapped_rewards(self, rewards: Any, dones: Any, infos: Any, states: States) -> Tensor:
        """Rewards (N,), plus the discounted value of the last state where a time limit cut it."""
        bootstrapped = torch.as_tensor(rewards, dtype=torch.float32, device=self.device)
        truncated = [
            index
            for index, info in enumerate(infos)
            if info  # empty for most of many environments
            and info.get("TimeLimit.truncated", False)
            and dones[index]
            and info.get("terminal_observation") is not None
        ]
        if not truncated:
            return bootstrapped
        terminal: Any = [infos[index]["terminal_observation"] for index in truncated]
        if isinstance(terminal[0], dict):
            terminal = {name: np.stack([obs[name] for obs in terminal]) for name in terminal[0]}
        else:
            terminal = np.stack(terminal)
        no_starts = torch.zeros(len(truncated), dtype=torch.bool, device=self.device)
        with torch.no_grad():
            values = self.policy.value(
                self._as_tensors(terminal, truncated), states.select(truncated), no_starts
            )
        bootstrapped = bootstrapped.clone()  # it may share memory with the environment
        bootstrapped[truncated] += self.gamma * values
        return bootstrapped

    def _bootstrapped_tensors(self, env: TensorVecEnv, rewards: Tensor, states: States) -> Tensor:
        """`_bootstrapped_rewards` of environments of tensors, without waiting for a GPU."""
        rewards = rewards.to(torch.float32)
        if env.truncation is None:
            return rewards
        truncated, last = env.truncation
        with torch.no_grad():
            values = self.policy.value(self._as_tensors(last), states, torch.zeros_like(truncated))
        return rewards + self.gamma * values.where(truncated, 0.0)

    def _transport_value(self, buffer: SequenceBuffer, last_episode_starts: Tensor) -> None:
        """Add the rewards of `tvt` to a rollout."""
        if self.tvt is None:
            return
        check_whole_episodes(buffer.episode_starts, last_episode_starts)
        reads = recompute_reads(rma_cell(self.policy), buffer.outputs, buffer.episode_starts)
        bonus = self.tvt.rewards(reads, buffer.episode_starts, buffer.values, self.gamma)
        buffer.rewards += bonus
        sums = self.ranks.sum(torch.stack([bonus.sum(), buffer.episode_starts.sum()]))
        self.logger.record("rollout/tvt_reward", float(sums[0] / sums[1]))

    def _check_rollout(self) -> None:
        names = ("rewards", "values", "log_probs", "advantages")
        parts = [getattr(self.rollout_buffer.sequences, name) for name in names]
        counts = torch.stack([(~part.isfinite()).sum() for part in parts])
        for name, count in zip(names, counts.tolist(), strict=True):  # one look at all of them
            if count:
                error = ValueError if name == "rewards" else TrainingDiverged
                raise error(
                    f"the {name} of a rollout must be finite, got {count} numbers that are not."
                )

    def _graph(self, function: Callable[..., Any], batch: Minibatch | None = None) -> Any:
        """A function as `compile` says, but as it is for a batch of another shape than most."""
        if self.compile is False or not self._compiles(batch):
            return function
        name = function.__name__
        graph = self._compiled.get(name)
        if graph is None or graph.function != function:  # of another policy
            graph = self._compiled[name] = Compiled(function, self.compile)
        return graph

    def _compiles(self, batch: Minibatch | None) -> bool:
        """Whether a graph runs for such a batch; not where torch.compile has turned out to fail."""
        works = all(graph.works for graph in self._compiled.values())
        return bool(self.compile) and works and (batch is None or self._is_whole(batch))

    def _is_whole(self, batch: Minibatch) -> bool:
        """Whether a minibatch has as many chunks as all but the last one."""
        sequences, size = self.rollout_buffer.sequences, self._minibatch_size()
        length, count = batch.episode_starts.shape
        chunks = sequences.n_steps // length * sequences.n_envs
        return count == (chunks if size is None else min(chunks, chunks_of(size, length)))

    def _excluded_save_params(self) -> list[str]:
        ours = ["_last_lstm_states", "_last_warning", "distributed", "ranks"]
        return [*super()._excluded_save_params(), *ours, *_nothing_made()]

    def __getstate__(self) -> dict[str, Any]:
        # A copy makes its own: those of this agent compute with its policy.
        return {**self.__dict__, **_nothing_made()}
