"""The config of an agent in any environment of gymnasium, judged by its return."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Literal

import gymnasium
from gymnasium import spaces
from stable_baselines3.common.torch_layers import FlattenExtractor, NatureCNN
from torch import nn

from rlgates.agents.encoders import GridEncoder, LinearEncoder
from rlgates.envs import ENVS, make_env_spec
from rlgates.envs.adapters import minigrid, popgym
from rlgates.errors import (
    MAX_LENGTH,
    MAX_WIDTH,
    check_choice,
    check_fraction,
    check_nonnegative,
    check_number,
    check_seeds,
    check_size,
)
from rlgates.experiments.configs.base import MAX_ENVS, Pairs, RunConfig, bookkeeping, options_text
from rlgates.experiments.configs.devices import check_threads, find_device
from rlgates.experiments.configs.gym_env import (
    POLICIES,
    WRAPPERS,
    check_wrappers,
    find_env_id,
    full_settings,
    make_env,
    pick_policy,
    pick_wrappers,
    registered_env,
    wrap,
)
from rlgates.experiments.configs.modules import naming_module
from rlgates.registry import PROBE_INPUTS, check_options, make_core

ALGOS = ("ppo", "a2c", "sb3-contrib")
CLASSES: Mapping[str, Mapping[str, type[nn.Module]]] = {
    "activation_fn": {
        "tanh": nn.Tanh,
        "relu": nn.ReLU,
        "elu": nn.ELU,
        "gelu": nn.GELU,
        "silu": nn.SiLU,
    },
    "features_extractor_class": {
        "flatten": FlattenExtractor,
        "linear": LinearEncoder,
        "grid": GridEncoder,
        "cnn": NatureCNN,
    },
}
"""What these arguments in `policy_kwargs` can be."""


@dataclass(frozen=True, kw_only=True)
class GymConfig(RunConfig):
    """How to train one core in an environment of gymnasium, judged by its return.

    Steps are counted over all environments. The settings are those of PPO in
    sb3-contrib, so that both implementations run with identical settings. `AgentConfig` is for
    the environments of rlgates, which are stepped as one batch.
    """

    kind: ClassVar[str] = "gym"
    settings_field: ClassVar[str] = "env_settings"

    env: str = "CartPole-v1"
    """Environment id."""
    env_settings: Pairs = field(default_factory=dict)
    """Keyword arguments of the environment."""
    env_title: str = bookkeeping("")
    """Name of the environment in tables; by default its id and settings."""
    observation_indices: tuple[int, ...] = ()
    """Indices of the parts of the observation that the agent gets; all by default."""
    wrappers: tuple[str, ...] | None = None
    """Wrappers from the inside out: minigrid, grayscale, resize=84, stack=4, previous (action and
    reward), time, flatten; None: chosen for the observations."""
    normalize: bool = False
    """Normalize observations and rewards by their running mean and variance."""
    algo: Literal["ppo", "a2c", "sb3-contrib"] = "ppo"
    """RecurrentPPO or RecurrentA2C of rlgates, or RecurrentPPO of sb3-contrib, whose only core is
    `torch.nn.LSTM`: "lstm" with forget_bias=0.0. RecurrentA2C makes one update per rollout, so
    `n_epochs`, `batch_size` and `clip_range` have no effect."""
    algo_kwargs: Pairs = field(default_factory=dict)
    """Further arguments of the algorithm, such as chunk_len=32 or use_sde=True; those of `TVT` are
    given as tvt={"threshold": 2.0}."""
    policy: str | None = None
    """Policy, such as MlpLstmPolicy; None: chosen for the observations."""
    policy_kwargs: Pairs = field(default_factory=dict)
    """Further arguments of the policy, such as shared_lstm=True, activation_fn=relu or
    features_extractor_class=linear."""
    net_arch: tuple[int, ...] = (64,)
    """Hidden layers between the core and the action."""
    vf_net_arch: tuple[int, ...] = (64,)
    """Hidden layers between the core and the value."""
    ortho_init: bool = True
    """Whether the initial weights of layers are orthogonal."""

    total_steps: int = 100_000
    """Number of steps to train for, rounded up to whole rollouts."""
    n_envs: int = 8
    """Number of copies of the environment."""
    n_steps: int = 128
    """Steps of a rollout in each copy."""
    batch_size: int = 256
    """Steps of a minibatch."""
    n_epochs: int = 10
    """Passes over a rollout."""
    linear_schedule: bool = False
    """Whether the learning rate falls linearly to zero."""
    gamma: float = 0.99
    """Discount factor."""
    gae_lambda: float = 0.95
    """Trade-off of bias and variance in the advantages."""
    clip_range: float = 0.2
    """Clipping of the policy ratio."""
    normalize_advantage: bool = True
    """Whether the advantages of a minibatch are normalized."""
    ent_coef: float = 0.0
    """Weight of the entropy bonus."""
    vf_coef: float = 0.5
    """Weight of the value loss."""
    max_grad_norm: float = 0.5
    """Gradients are clipped to this norm."""

    eval_every: int | Literal["epoch"] | None = 20_000
    """Steps between evaluations during training; None: only at the end."""
    eval_episodes: int = 20
    """Number of fresh episodes in each evaluation during training."""
    final_episodes: int = 100
    """Number of fresh episodes in the final evaluation."""
    eval_deterministic: bool = True
    """Take the most likely action in evaluations; else sample it, as in training."""
    vec_env: Literal["dummy", "subproc"] = bookkeeping("dummy")
    """Run the environments one after the other (dummy), or each in its own process (subproc), whose
    time is not part of the CPU time of the run."""
    success_return: float | None = bookkeeping(None)
    """Mean return from which an evaluation counts as learned; None: the `reward_threshold` with
    which the environment is registered, if any."""
    best_return: float | None = bookkeeping(None)
    """The best possible return, 100 % in figures; None: figures show the returns themselves."""
    worst_return: float = bookkeeping(0.0)
    """The return of an agent that does nothing useful, 0 % in figures. Needs `best_return`."""
    published: str = bookkeeping("")
    """A published return and its source, which tables show beside ours."""

    @property
    def title(self) -> str:
        return self.env_title or " ".join(
            filter(None, (self.env.rpartition("/")[2], options_text(self.env_settings)))
        )

    @staticmethod
    def takes(env_id: str) -> bool:
        """Whether an environment is trained with this config, and not with `AgentConfig`."""
        single = env_id in (*minigrid.IDS, *popgym.IDS)
        return single or (not env_id.startswith("rlgates/") and env_id not in ENVS)

    @property
    def reward_threshold(self) -> float | None:
        """Mean return from which an evaluation counts as learned; None where nobody has set it."""
        if self.success_return is not None or self.is_batched:
            return self.success_return
        return registered_env(self.env).reward_threshold

    @property
    def is_batched(self) -> bool:
        """Whether the environment is one of rlgates, which are stepped as one batch."""
        return self.env in ENVS

    def full_settings(self) -> dict[str, Any]:
        if self.is_batched:
            spec: Any = make_env_spec(self.env, **self.env_settings)
            return asdict(spec)
        return full_settings(self.env, self.env_settings)

    def resolved(self) -> GymConfig:
        wrappers, policy = self.wrappers, self.policy
        if wrappers is None or policy is None:
            wrappers, policy = _pick(
                self.env,
                json.dumps(dict(self.env_settings), sort_keys=True),
                self.observation_indices,
                self.wrappers,
                self.policy,
            )
        return replace(self, wrappers=wrappers, policy=policy)

    def describe(self) -> list[str]:
        """What was chosen for the environment, in lines."""
        config = self.resolved()
        env = config.make_env()
        lines = [
            f"{self.env}: actions {env.action_space}",
            f"observations {env.observation_space}",
        ]
        for word in config.wrappers or ():
            lines.append(f"wrapper {word}: {WRAPPERS[word.partition('=')[0]].words}")
        env.close()
        return [
            *lines,
            f"{config.policy}, core {self.core}, {self.hidden_size} units; "
            f"{self.n_envs} environments ({self.vec_env}), "
            f"{'with' if self.normalize else 'without'} VecNormalize",
        ]

    def run_folder(self, seed: int) -> Path:
        name = f"{self.title} {self.algo} {self.core}".replace(",", "")
        # "my_module:MyEnv-v0" has a colon, which is no part of a name on Windows.
        return Path(self.folder) / re.sub("[ /:]", "-", name) / f"seed-{seed}"

    def make_env(self, render_mode: str | None = None) -> gymnasium.Env[Any, Any]:
        """One copy of the environment, with the observation that the agent sees.

        Raises:
            ValueError: an unknown environment or setting, or a number that it does not observe.
        """
        env = make_env(self.env, self.env_settings, render_mode)
        if self.observation_indices:
            env = select_observations(env, self.observation_indices)
        return wrap(env, self.resolved().wrappers or ())

    def check(self) -> None:
        check_choice("algo", self.algo, ALGOS)
        check_choice("vec_env", self.vec_env, ("dummy", "subproc"))
        if not self.is_batched:
            find_env_id(self.env)  # its module may register the core
        check_options(self.core, self.core_options)
        with naming_module(self.core):
            make_core(self.core, PROBE_INPUTS, self.hidden_size, **self.core_options)
        if self.algo == "sb3-contrib" and (
            self.core != "lstm" or dict(self.core_options) != {"forget_bias": 0.0}
        ):
            raise ValueError(
                "the core of sb3-contrib is torch.nn.LSTM: core must be 'lstm' with "
                f"forget_bias=0.0, got {self.core!r} with "
                f"{options_text(self.core_options) or 'no options'}."
            )
        counts = ("total_steps", "n_epochs", "eval_episodes")
        optional = ("eval_every",) if self.eval_every is not None else ()
        for name in (*counts, *optional, "final_episodes", "hidden_size", "jobs"):
            check_size(name, getattr(self, name))
        check_size("n_envs", self.n_envs, maximum=MAX_ENVS)
        for name in ("n_steps", "batch_size"):
            check_size(name, getattr(self, name), maximum=MAX_LENGTH)
        for name in ("net_arch", "vf_net_arch"):
            for width in getattr(self, name):
                check_size(name, width, maximum=MAX_WIDTH)
        for name in ("learning_rate", "clip_range", "max_grad_norm"):
            check_number(name, getattr(self, name), above=0)
        for name in ("gamma", "gae_lambda"):
            check_fraction(name, getattr(self, name))
        for name in ("ent_coef", "vf_coef", "worst_return"):
            check_number(name, getattr(self, name))
        for name in ("success_return", "best_return"):
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name))
        if self.best_return is None and self.worst_return:
            raise ValueError(f"worst_return={self.worst_return:g} needs best_return.")
        # Figures divide by their difference.
        if self.best_return is not None and self.worst_return >= self.best_return:
            raise ValueError(
                f"worst_return must be below best_return, {self.best_return:g}, "
                f"got {self.worst_return:g}."
            )
        check_nonnegative("checkpoint_minutes", self.checkpoint_minutes)
        if self.max_minutes is not None:
            check_number("max_minutes", self.max_minutes, above=0)
        if self.policy is not None:
            check_choice("policy", self.policy, POLICIES)
        if self.policy == "RMAPolicy":
            for name in ("net_arch", "vf_net_arch", "ortho_init"):
                if getattr(self, name) != getattr(GymConfig, name):
                    raise ValueError(f"{name} is not for RMAPolicy, which has its own networks.")
        for name, classes in CLASSES.items():
            if name in self.policy_kwargs:
                check_choice(name, self.policy_kwargs[name], classes)
        if self.is_batched:
            for name in ("observation_indices", "wrappers"):
                if getattr(self, name):
                    raise ValueError(
                        f"{name} must be empty for {self.env}, got {getattr(self, name)}."
                    )
            if self.vec_env != "dummy":
                raise ValueError(f"vec_env must be 'dummy' for {self.env}, a batch of one process.")
        else:
            check_wrappers(self.wrappers or ())
            self.make_env().close()
        check_seeds(self.seeds)
        check_threads(self.threads)
        find_device(self.device)


def select_observations(
    env: gymnasium.Env[Any, Any], indices: tuple[int, ...]
) -> gymnasium.Env[Any, Any]:
    """The environment with a part of its observation.

    Args:
        env: with an observation of numbers, (n,).
        indices: of the numbers that are kept.

    Raises:
        ValueError: the observation is of another kind or has fewer numbers; an index twice.
    """
    space = env.observation_space
    if not isinstance(space, spaces.Box) or len(space.shape) != 1:
        raise ValueError(f"observation_indices needs an observation of numbers, (n,); got {space}.")
    (size,) = space.shape
    if not set(indices) <= set(range(size)) or len(set(indices)) < len(indices):
        raise ValueError(
            f"observation_indices must be different numbers from 0 to {size - 1}, got {indices}."
        )
    kept = list(indices)
    part = spaces.Box(space.low[kept], space.high[kept], dtype=space.dtype.type)
    return gymnasium.wrappers.TransformObservation(env, lambda obs: obs[kept], part)


@lru_cache(maxsize=256)
def _pick(
    env_id: str,
    settings: str,
    indices: tuple[int, ...],
    wrappers: tuple[str, ...] | None,
    policy: str | None,
) -> tuple[tuple[str, ...], str]:
    """The wrappers and the policy that fit an environment, where they are None."""
    if env_id in ENVS:
        space = make_env_spec(env_id, **json.loads(settings)).observation_space
        return (), policy or pick_policy(space)
    env = make_env(env_id, json.loads(settings))
    try:
        if indices:
            env = select_observations(env, indices)
        wrappers = pick_wrappers(env) if wrappers is None else wrappers
        return wrappers, policy or pick_policy(wrap(env, wrappers).observation_space)
    finally:
        env.close()
