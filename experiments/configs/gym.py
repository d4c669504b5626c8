"""The config of an agent in any environment of gymnasium, judged by its return."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from inspect import signature
from pathlib import Path
from typing import Any, ClassVar, Literal

import gymnasium
from gymnasium import spaces
from gymnasium.envs.registration import load_env_creator
from gymnasium.error import Error

from rlgates.envs import ENVS, make_env_spec
from rlgates.errors import check_choice, check_seeds, check_size
from rlgates.experiments.configs.base import Pairs, RunConfig, bookkeeping, options_text
from rlgates.experiments.configs.devices import check_threads, find_device
from rlgates.registry import make_core

ALGOS = ("ppo", "sb3-contrib")


@dataclass(frozen=True, kw_only=True)
class GymConfig(RunConfig):
    """How to train one core in an environment of gymnasium, judged by its return.

    Steps are counted over all copies of the environment. The settings are those of PPO in
    sb3-contrib, so that both implementations run with identical settings. `AgentConfig` is for
    the environments of rlgates, whose episodes succeed or fail, and whose runs resume exactly.
    """

    kind: ClassVar[str] = "gym"
    settings_field: ClassVar[str] = "env_settings"

    env: str = "CartPole-v1"
    """Environment id."""
    env_settings: Pairs = field(default_factory=dict)
    """Keyword arguments of the environment."""
    env_title: str = bookkeeping("")
    """What tables call the environment; by default its name and settings."""
    observation_indices: tuple[int, ...] = ()
    """Indices of the observation that the agent gets; all by default."""
    normalize: bool = False
    """Whether observations and rewards are normalized by their running mean and variance."""
    algo: Literal["ppo", "sb3-contrib"] = "ppo"
    """RecurrentPPO of rlgates, or that of sb3-contrib, whose core is `torch.nn.LSTM`: "lstm" with
    forget_bias=0.0."""
    net_arch: tuple[int, ...] = (64,)
    """Hidden layers between the core and the action."""
    vf_net_arch: tuple[int, ...] = (64,)
    """Hidden layers between the core and the value."""
    ortho_init: bool = True
    """Whether the initial weights of layers are orthogonal."""

    total_steps: int = 100_000
    """Budget; whole rollouts are made until it is reached."""
    n_envs: int = 8
    """Copies of the environment."""
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

    eval_episodes: int = 20
    """Fresh episodes of an evaluation."""
    success_return: float = bookkeeping(1.0)
    """Mean return of an evaluation that counts as learned."""
    best_return: float = bookkeeping(1.0)
    """The best possible return, by which figures divide."""

    @property
    def title(self) -> str:
        return self.env_title or " ".join(
            filter(None, (self.env.rpartition("/")[2], options_text(self.env_settings)))
        )

    @property
    def is_batched(self) -> bool:
        """Whether the environment is one of rlgates, which steps all copies at once."""
        return self.env in ENVS

    def full_settings(self) -> dict[str, Any]:
        if self.is_batched:
            spec: Any = make_env_spec(self.env, **self.env_settings)
            return asdict(spec)
        registered = gymnasium.spec(self.env)
        return {**_defaults(registered.entry_point), **registered.kwargs, **self.env_settings}

    def run_folder(self, seed: int) -> Path:
        name = f"{self.title} {self.algo} {self.core}".replace(",", "").replace("/", "-")
        return Path(self.folder) / name.replace(" ", "-") / f"seed-{seed}"

    def make_env(self) -> gymnasium.Env[Any, Any]:
        """One copy of the environment, with the observation that the agent sees.

        Raises:
            ValueError: an unknown environment or setting, or a number that it does not observe.
        """
        try:
            env = gymnasium.make(self.env, **self.env_settings)
        except (Error, TypeError, ImportError) as error:
            raise ValueError(f"{self.env} cannot be made: {error}") from error
        return (
            select_observations(env, self.observation_indices) if self.observation_indices else env
        )

    def check(self) -> None:
        check_choice("algo", self.algo, ALGOS)
        make_core(self.core, 1, self.hidden_size, **self.core_options)
        if self.algo == "sb3-contrib" and (
            self.core != "lstm" or dict(self.core_options) != {"forget_bias": 0.0}
        ):
            raise ValueError(
                "the core of sb3-contrib is torch.nn.LSTM: core must be 'lstm' with "
                f"forget_bias=0.0, got {self.core!r} with {options_text(self.core_options)!r}."
            )
        counts = ("total_steps", "n_envs", "n_steps", "batch_size", "n_epochs", "eval_episodes")
        optional = ("eval_every",) if self.eval_every is not None else ()
        for name in (*counts, *optional, "hidden_size", "jobs"):
            check_size(name, getattr(self, name))
        if self.is_batched and self.observation_indices:
            raise ValueError(
                f"observation_indices must be empty for {self.env}, got {self.observation_indices}."
            )
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
        ValueError: the observation is of another kind, or has fewer numbers.
    """
    space = env.observation_space
    if not isinstance(space, spaces.Box) or len(space.shape) != 1:
        raise ValueError(f"observation_indices needs an observation of numbers, (n,); got {space}.")
    if not all(0 <= index < space.shape[0] for index in indices):
        raise ValueError(f"observation_indices must be below {space.shape[0]}, got {indices}.")
    kept = list(indices)
    part = spaces.Box(space.low[kept], space.high[kept], dtype=space.dtype.type)
    return gymnasium.wrappers.TransformObservation(env, lambda obs: obs[kept], part)


def _defaults(entry_point: str | Callable[..., Any] | None) -> dict[str, Any]:
    """The defaults of the keyword arguments of an environment."""
    creator = load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
    assert creator is not None
    values = {name: item.default for name, item in signature(creator).parameters.items()}
    return {
        name: value
        for name, value in values.items()
        if value is None or isinstance(value, bool | int | float | str)
    }
