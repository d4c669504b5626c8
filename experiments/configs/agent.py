"""The config of an agent in an environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from rlgates.deprecation import renamed
from rlgates.envs import EnvSpec, make_env_spec
from rlgates.errors import (
    MAX_LENGTH,
    MAX_WIDTH,
    check_choice,
    check_fraction,
    check_nonnegative,
    check_number,
    check_seeds,
    check_size,
    nearest_divisor,
)
from rlgates.experiments.configs.base import MAX_ENVS, Pairs, RunConfig
from rlgates.experiments.configs.devices import check_threads, find_device
from rlgates.experiments.configs.modules import naming_module
from rlgates.registry import PROBE_INPUTS, check_options, make_core

SUCCESS_THRESHOLD = 0.9
"""Success rate of the last training episodes; when it is first reached is `steps_to_0.9`."""


def match(distractor_steps: int) -> dict[str, Any]:
    """Settings of Passive Match without distractor rewards."""
    return {"explore_steps": 15, "distractor_steps": distractor_steps, "reward_steps": 15}


@dataclass(frozen=True, kw_only=True)
class AgentConfig(RunConfig):
    """How to train one core on one environment. Steps are counted over all environments."""

    kind: ClassVar[str] = "agent"
    settings_field: ClassVar[str] = "env_settings"
    stop_field: ClassVar[str] = "stop_success"

    env: str = "rlgates/PassiveMatch-v0"
    """Environment id."""
    env_settings: Pairs = field(default_factory=lambda: match(30))
    """Settings of the environment, laid over the defaults; NAME= removes one."""
    core_options: Pairs = field(default_factory=lambda: {"input_scale": 8.0})
    """Options of the core, laid over the defaults; NAME= removes one."""
    critic: Literal["shared", "separate", "none"] = "shared"
    """What the critic reads: the actor's core (which both train), its own, or no memory."""
    net_arch: tuple[int, ...] = (64,)
    """Hidden layers between the core and the action, and between the core and the value."""

    total_steps: int = 10_000_000
    """Number of steps to train for, rounded up to whole rollouts."""
    stop_success: float | None = None
    """Training also ends when this share of the last `window` episodes succeeded; None: it does
    not."""
    window: int = 500
    """Number of training episodes over which reported means are taken."""

    algo: Literal["ppo", "a2c"] = "ppo"
    """RecurrentPPO, or RecurrentA2C with Adam. The latter makes one update per rollout, so
    `n_epochs`, `n_minibatches` and `clip_range` have no effect."""
    n_envs: int = 128
    """Environments that are stepped together."""
    n_steps: int | None = None
    """Steps of a rollout in each environment; None: one whole episode."""
    n_epochs: int = 4
    """Passes over a rollout, in PPO."""
    n_minibatches: int = 4
    """Minibatches of a rollout, in PPO; each is one update."""
    learning_rate: float = 2e-3
    """Learning rate of Adam."""
    linear_schedule: bool = False
    """Whether the learning rate falls linearly to zero."""
    gamma: float = 0.95
    """Discount factor."""
    gae_lambda: float = 0.95
    """Trade-off of bias and variance in the advantages."""
    normalize_advantage: bool = True
    """Whether the advantages of a minibatch are normalized. Once all episodes succeed, advantages
    are noise, which normalizing makes large."""
    clip_range: float = 0.2
    """Clipping of the policy ratio in PPO."""
    ent_coef: float = 0.2
    """Weight of the entropy bonus."""
    vf_coef: float = 1.0
    """Weight of the value loss."""
    max_grad_norm: float = 0.5
    """Gradients are clipped to this norm."""
    reward_scale: float = 0.1
    """Factor on the rewards that the agent learns from; reported returns are unscaled."""

    eval_every: int | None = 500_000
    """Steps between evaluations during training; None: only at the end."""
    eval_episodes: int = 200
    """Number of fresh episodes in each evaluation during training."""
    final_episodes: int = 1_000
    """Number of fresh episodes in the final evaluation."""
    eval_deterministic: bool = True
    """Take the most likely action in evaluations; else sample it, as in training."""

    @property
    def title(self) -> str:
        """The environment, and the algorithm unless it is PPO: "PassiveMatch 15/30/15, A2C"."""
        return self.env_title + (f", {self.algo.upper()}" if self.algo != "ppo" else "")

    @property
    def env_title(self) -> str:
        """The environment and the steps of its phases, such as "PassiveMatch 15/30/15"."""
        spec = self.make_spec()
        name = self.env.rpartition("/")[2].rpartition("-v")[0]
        phases = [getattr(spec, f"{phase}_steps") for phase in spec.phase_names]
        return f"{name} {'/'.join(map(str, phases or [spec.max_episode_length]))}"

    @property
    def chance(self) -> float | None:
        """The success rate of guessing, the most possible without memory; None if unknown."""
        chance: float | None = self.make_spec().chance
        return chance

    @property
    def rollout_steps(self) -> int:
        """Steps of a rollout in each environment."""
        steps: int = self.n_steps or self.make_spec().max_episode_length
        return steps

    def make_spec(self) -> EnvSpec:
        """The definition of the environment."""
        return make_env_spec(self.env, **self.env_settings)

    def full_settings(self) -> dict[str, Any]:
        spec: Any = self.make_spec()
        settings = asdict(spec)
        wrapped: Mapping[str, Any] = settings.pop("spec", {})  # of a View
        return {**wrapped, **settings}

    def run_folder(self, seed: int) -> Path:
        name = f"{self.title} {self.core}".replace(",", "").replace("/", "-")
        return Path(self.folder) / name.replace(" ", "-") / f"seed-{seed}"

    def check(self) -> None:
        self.make_spec()
        check_options(self.core, self.core_options)
        with naming_module(self.core):
            make_core(self.core, PROBE_INPUTS, self.hidden_size, **self.core_options)
        check_choice("algo", self.algo, ("ppo", "a2c"))
        check_choice("critic", self.critic, ("shared", "separate", "none"))
        counts = ("total_steps", "window", "n_epochs", "n_minibatches", "eval_episodes")
        for name in (*counts, "final_episodes", "jobs"):
            check_size(name, getattr(self, name))
        check_size("n_envs", self.n_envs, maximum=MAX_ENVS)
        if self.n_steps is not None:
            check_size("n_steps", self.n_steps, maximum=MAX_LENGTH)
        if self.eval_every is not None:
            check_size("eval_every", self.eval_every)
        for width in self.net_arch:
            check_size("net_arch", width, maximum=MAX_WIDTH)
        for name in ("learning_rate", "clip_range", "max_grad_norm", "reward_scale"):
            check_number(name, getattr(self, name), above=0)
        for name in ("ent_coef", "vf_coef", "checkpoint_minutes"):
            check_nonnegative(name, getattr(self, name))
        for name in ("gamma", "gae_lambda"):
            check_fraction(name, getattr(self, name))
        success = self.stop_success
        if success is not None and not 0 < check_number("stop_success", success) <= 1:
            raise ValueError(f"stop_success must be above 0 and at most 1, got {success}.")
        if self.max_minutes is not None:
            check_number("max_minutes", self.max_minutes, above=0)
        check_seeds(self.seeds)
        check_threads(self.threads)
        if self.algo == "ppo":
            self._check_minibatches()
        find_device(self.device)

    def _check_minibatches(self) -> None:
        steps = self.rollout_steps
        rollout = steps * self.n_envs
        if rollout % self.n_minibatches:
            nearest = nearest_divisor(rollout, self.n_minibatches)
            raise ValueError(
                f"n_minibatches must divide the rollout, {steps} steps in {self.n_envs} "
                f"environments = {rollout}; got {self.n_minibatches}. Nearest: {nearest}."
            )
        if rollout // self.n_minibatches < 2:
            raise ValueError(f"n_minibatches = {self.n_minibatches} leaves one step in each.")


_BASE, _PRESETS = "rlgates.experiments.configs.base", "rlgates.experiments.configs.presets"
__getattr__ = renamed(
    __name__,
    {
        "TrainConfig": "rlgates.experiments.configs.agent.AgentConfig",
        "PRESETS": f"{_PRESETS}.PRESETS",
        "preset": f"{_PRESETS}.preset",
        "parse_pairs": f"{_BASE}.parse_pairs",
    },
)
