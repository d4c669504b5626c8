"""Evaluation of a recurrent model on whole episodes, with confidence intervals."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sb3_contrib.common.maskable.utils import get_action_masks, is_masking_supported
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    VecEnv,
    VecMonitor,
    is_vecenv_wrapped,
    unwrap_vec_normalize,
)

from rlgates.agents.sequences.tensor_vec_env import TensorVecEnv, check_environment, is_tensor_env
from rlgates.agents.sequences.updates import SequenceAlgorithm
from rlgates.errors import check_choice, check_flag, check_size

RESAMPLES = 2_000
POLL_STEPS = 64
"""Steps between two transfers of finished episodes from environments of tensors."""

Floats = NDArray[np.float64]


class Estimate(NamedTuple):
    """A mean over episodes.

    Attributes:
        mean: over the episodes that have a value.
        low, high: 95 % interval of the mean, percentile bootstrap over episodes. Its width is 0
            if all values are equal.
        episodes: number of episodes with a value.
    """

    mean: float
    low: float
    high: float
    episodes: int

    def __str__(self) -> str:
        return f"{self.mean:.4g} [{self.low:.4g}, {self.high:.4g}]"


class PolicyEvaluation(NamedTuple):
    """The result of `evaluate_policy`, episode by episode.

    `print` shows the mean and the interval of each quantity.

    Attributes:
        returns: sums of rewards (episodes,), in the environment's unit.
        lengths: in steps (episodes,).
        metrics: numbers in the infos of last steps, (episodes,) by name, such as `is_success` and
            `last_phase_reward`; NaN for episodes without one.
    """

    returns: Floats
    lengths: Floats
    metrics: dict[str, Floats]

    @property
    def names(self) -> tuple[str, ...]:
        """The quantities: `return`, `length` and the metrics."""
        return ("return", "length", *self.metrics)

    def estimate(self, name: str) -> Estimate:
        """Mean and 95 % interval of one of `names` or "success"; equal values give equal intervals.

        Raises:
            ValueError: an unknown name; the message names the nearest.
        """
        if name == "success" and "is_success" in self.metrics:
            name = "is_success"
        check_choice("number of an evaluation", name, self.names)
        values = {**self.metrics, "return": self.returns, "length": self.lengths}[name]
        return _estimate(values[~np.isnan(values)])

    @property
    def success(self) -> Estimate | None:
        """Share of episodes with a true `is_success`; None if the infos have none."""
        return self.estimate("is_success") if "is_success" in self.metrics else None

    @property
    def last_phase_reward(self) -> Estimate | None:
        """Mean reward of the last phase; None if the infos have none."""
        name = "last_phase_reward"
        return self.estimate(name) if name in self.metrics else None

    def __str__(self) -> str:
        lines = [f"{len(self.returns)} episodes, mean and 95 % interval"]
        width = max(map(len, self.names))
        for name in self.names:
            estimate = self.estimate(name)
            count = estimate.episodes
            suffix = "" if count == len(self.returns) else f" in {count} episodes"
            lines.append(f"{name:<{width}}  {estimate}{suffix}")
        return "\n".join(lines)


def evaluate_policy(
    model: Any,
    env: Any,
    n_eval_episodes: int = 100,
    deterministic: bool = True,
    seed: int | None = None,
) -> PolicyEvaluation:
    """Run whole episodes and report all of them.

    Each environment of a vectorized one runs a number of episodes that is fixed beforehand, so
    that short episodes do not count more. Recurrent states are carried along and reset where an
    episode starts. Pass separate environments, because they are reset. With a `Monitor`, returns
    and lengths are those it recorded, before other wrappers changed the rewards; without one,
    returns sum the rewards before a `VecNormalize` scaled them. Set `training` of a `VecNormalize`
    to False, or its statistics are updated.

    Args:
        model: of rlgates or sb3-contrib, or any object with the same `predict`. A maskable model
            gets the masks of the environment. Environments of tensors need a model of rlgates.
        env: a VecEnv, one gymnasium environment, or a batch of tensors from
            `rlgates.envs.torch.make_torch_env`.
        n_eval_episodes: number of episodes, at least 1; each environment runs an equal share, or
            one less.
        deterministic: take the most likely action; else sample it.
        seed: of the environments and of the sampled actions, below 2**64; the global random state
            is restored afterwards. With None, the environments are not seeded, and the global
            random state is used.

    Raises:
        ValueError: n_eval_episodes below 1, or a seed out of range; environments of tensors on
            another device than the model.
        TypeError: a model without `predict`; an env that is not an environment; environments of
            tensors with a model not of rlgates.
    """
    total = check_size("n_eval_episodes", n_eval_episodes)
    check_flag("deterministic", deterministic)
    if seed is not None:
        check_size("seed", seed, minimum=0, maximum=2**64 - 1)
    if not hasattr(model, "predict"):
        raise TypeError(f"model must have a method predict, got {model!r}.")
    check_environment(env)
    if is_tensor_env(env):
        env = TensorVecEnv(env)
    elif not isinstance(env, VecEnv):
        single = env
        env = DummyVecEnv([lambda: single])
    if seed is not None:
        env.seed(seed)
    remaining = (total + np.arange(env.num_envs)) // env.num_envs
    run_episodes = _run_tensor_episodes if isinstance(env, TensorVecEnv) else _run_episodes
    last_infos: list[dict[str, Any]] = []
    with _seeded_sampling(model, seed):
        for index, info in run_episodes(model, env, deterministic):
            if remaining[index] > 0:
                remaining[index] -= 1
                last_infos.append(info)
            if not remaining.any():
                break
    return _evaluation(last_infos)


def _run_episodes(
    model: Any, env: VecEnv, deterministic: bool
) -> Iterator[tuple[int, dict[str, Any]]]:
    """The environment and the last info of every episode, with `r` and `l` in `episode`."""
    monitored = is_vecenv_wrapped(env, VecMonitor) or env.env_is_wrapped(Monitor)[0]
    normalize = unwrap_vec_normalize(env)
    takes_masks = "action_masks" in inspect.signature(model.predict).parameters
    masked = takes_masks and is_masking_supported(env)
    returns, lengths = np.zeros(env.num_envs), np.zeros(env.num_envs)
    observations: Any = env.reset()
    state, episode_starts = None, np.ones(env.num_envs, dtype=bool)
    while True:
        masks = {"action_masks": get_action_masks(env)} if masked else {}
        actions, state = model.predict(
            observations,
            state=state,
            episode_start=episode_starts,
            deterministic=deterministic,
            **masks,
        )
        observations, rewards, episode_starts, infos = env.step(actions)
        returns += (
            normalize.get_original_reward() if normalize and normalize.norm_reward else rewards
        )
        lengths += 1
        for index in np.flatnonzero(episode_starts).tolist():
            info = infos[index]
            if not monitored:
                info = {**info, "episode": {"r": returns[index], "l": lengths[index]}}
            returns[index] = lengths[index] = 0
            if "episode" in info:  # else a wrapper ended it, and the monitored episode goes on
                yield index, info


def _run_tensor_episodes(
    model: Any, env: TensorVecEnv, deterministic: bool
) -> Iterator[tuple[int, dict[str, Any]]]:
    """As `_run_episodes`, but finished episodes leave the device every `POLL_STEPS` steps."""
    if not isinstance(model, SequenceAlgorithm):
        raise TypeError(
            f"environments of tensors need a model of rlgates, got {type(model).__name__}."
        )
    policy, device = model.policy, model.policy.device
    env.check_device(device)
    policy.set_training_mode(False)
    observations = env.reset()
    states = policy.initial_states(env.num_envs)
    episode_starts: Any = torch.ones(env.num_envs, dtype=torch.bool, device=device)
    while True:
        for _ in range(POLL_STEPS):
            with torch.no_grad():
                output = policy.act(
                    observations, states, episode_starts, deterministic=deterministic
                )
            actions: Any = model._within_bounds(output.actions)
            observations, _, episode_starts, _ = env.step(actions)
            states = output.states
        for _, info in env.episodes(most=POLL_STEPS * env.num_envs):
            yield info.pop("env_index"), info


@contextmanager
def _seeded_sampling(model: Any, seed: int | None) -> Iterator[None]:
    """Seed torch's generators, and restore them afterwards; None: leave them alone."""
    if seed is None:
        yield
        return
    device = torch.device(getattr(model, "device", "cpu"))
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


def _evaluation(last_infos: list[dict[str, Any]]) -> PolicyEvaluation:
    metrics = [{k: v for k, v in info.items() if _is_metric(k, v)} for info in last_infos]
    names = sorted({name for episode in metrics for name in episode})
    return PolicyEvaluation(
        np.array([float(info["episode"]["r"]) for info in last_infos]),
        np.array([float(info["episode"]["l"]) for info in last_infos]),
        {name: np.array([float(m.get(name, np.nan)) for m in metrics]) for name in names},
    )


def _is_metric(name: str, value: Any) -> bool:
    """Whether it is one number about the episode, not about how it ended."""
    about_the_end = name in ("TimeLimit.truncated", "terminal_observation")
    return not about_the_end and isinstance(value, Real | np.bool_)


def _estimate(values: Floats) -> Estimate:
    rng, count = np.random.default_rng(0), len(values)
    means = [values[rng.integers(count, size=count)].mean() for _ in range(RESAMPLES)]
    low, high = np.quantile(means, (0.025, 0.975))
    return Estimate(float(values.mean()), float(low), float(high), count)
