"""What a config means: whether it makes sense, and the names and folders of its runs."""

from __future__ import annotations

from pathlib import Path

from rlgates.cores import check_options, make_core
from rlgates.envs import Task, make_task
from rlgates.errors import check_choice, check_seeds, check_size, nearest_divisor
from rlgates.experiments.configs import TrainConfig
from rlgates.experiments.devices import find_device


def check(config: TrainConfig) -> None:
    """Find what is wrong with a config before any work starts.

    Raises:
        ValueError: an unknown name (the nearest is named) or a value that makes no sense.
        TypeError: a value of the wrong type.
    """
    task = make_task(config.env, **config.env_settings)
    check_options(config.core, config.core_options)
    make_core(config.core, 1, config.hidden_size, **config.core_options)
    check_choice("algo", config.algo, ("ppo", "a2c"))
    check_choice("critic", config.critic, ("shared", "separate", "none"))
    counts = ("total_steps", "window", "n_envs", "n_epochs", "n_minibatches", "eval_episodes")
    for name in (*counts, "final_episodes", "checkpoint_every", "jobs", "threads"):
        check_size(name, getattr(config, name))
    for name in ("n_steps", "eval_every"):
        if getattr(config, name) is not None:
            check_size(name, getattr(config, name))
    for width in config.net_arch:
        check_size("net_arch", width)
    for name in ("learning_rate", "clip_range", "max_grad_norm", "reward_scale"):
        _check_between(name, getattr(config, name), above=0.0)
    for name in ("ent_coef", "vf_coef"):
        _check_between(name, getattr(config, name), minimum=0.0)
    for name in ("gamma", "gae_lambda"):
        _check_between(name, getattr(config, name), minimum=0.0, maximum=1.0)
    if config.stop_success is not None:
        _check_between("stop_success", config.stop_success, above=0.0, maximum=1.0)
    if config.max_minutes is not None:
        _check_between("max_minutes", config.max_minutes, above=0.0)
    check_seeds(config.seeds)
    if config.algo == "ppo":
        _check_minibatches(config, rollout_steps(config, task) * config.n_envs)
    find_device(config.device)


def _check_minibatches(config: TrainConfig, rollout: int) -> None:
    if rollout % config.n_minibatches:
        steps = rollout // config.n_envs
        nearest = nearest_divisor(rollout, config.n_minibatches)
        raise ValueError(
            f"n_minibatches must divide the rollout, {steps} steps in {config.n_envs} "
            f"environments = {rollout}; got {config.n_minibatches}. Nearest: {nearest}."
        )
    if rollout // config.n_minibatches < 2:
        raise ValueError(f"n_minibatches = {config.n_minibatches} leaves one step in each.")


def _check_between(
    name: str,
    value: float,
    *,
    above: float | None = None,
    minimum: float | None = None,
    maximum: float = float("inf"),
) -> None:
    low = value > above if above is not None else value >= (minimum or 0.0)
    if not (low and value <= maximum and value < float("inf")):
        bound = f"above {above:g}" if above is not None else f"at least {minimum:g}"
        top = "" if maximum == float("inf") else f" and at most {maximum:g}"
        raise ValueError(f"{name} must be {bound}{top}, got {value}.")


def rollout_steps(config: TrainConfig, task: Task) -> int:
    """Steps of a rollout in each environment."""
    return config.n_steps or task.max_episode_length


def env_title(config: TrainConfig) -> str:
    """The environment and the steps of its phases, such as "PassiveMatch 15/30/15"."""
    task = make_task(config.env, **config.env_settings)
    name = config.env.rpartition("/")[2].rpartition("-v")[0]
    phases = [getattr(task, f"{phase}_steps") for phase in task.phase_names]
    return f"{name} {'/'.join(map(str, phases or [task.max_episode_length]))}"


def run_title(config: TrainConfig) -> str:
    """The environment, and the algorithm unless it is PPO: "PassiveMatch 15/30/15, A2C"."""
    return env_title(config) + (f", {config.algo.upper()}" if config.algo != "ppo" else "")


def chance(config: TrainConfig) -> float | None:
    """Success of guessing, the most that can be had without memory; None where it is unknown."""
    return make_task(config.env, **config.env_settings).chance


def run_folder(config: TrainConfig, seed: int) -> Path:
    """Where the run of that seed is."""
    name = f"{run_title(config)} {config.core}".replace(",", "").replace("/", "-")
    return Path(config.folder) / name.replace(" ", "-") / f"seed-{seed}"
