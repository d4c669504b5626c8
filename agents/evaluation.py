"""How good a model with a memory is, on whole episodes, with intervals."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sb3_contrib.common.maskable.utils import get_action_masks, is_masking_supported
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecMonitor, is_vecenv_wrapped

from rlgates.agents.maskable import MaskableRecurrentPPO
from rlgates.agents.rollouts import SequenceRollouts
from rlgates.agents.tensor_env import TensorVecEnv, is_tensor_batch
from rlgates.errors import check_choice, check_flag, check_size

RESAMPLES = 2_000
STRETCH = 64
"""Steps after which environments of tensors are asked what has finished."""

Floats = NDArray[np.float64]


class Estimate(NamedTuple):
    """A mean over episodes.

    Attributes:
        mean: of the episodes that have the number.
        low, high: its 95 % interval, percentile bootstrap over episodes. It has no width where
            all of them are equal.
        episodes: how many have the number.
    """

    mean: float
    low: float
    high: float
    episodes: int

    def __str__(self) -> str:
        return f"{self.mean:.4g} [{self.low:.4g}, {self.high:.4g}]"


class PolicyEvaluation(NamedTuple):
    """What `evaluate_policy` saw, episode by episode.

    `print` shows every number with its mean and interval.

    Attributes:
        returns: sums of rewards (episodes,), in the environment's unit.
        lengths: in steps (episodes,).
        metrics: whatever numbers the infos of last steps had, (episodes,) by name, such as
            `is_success` and `last_phase_reward`; NaN in episodes without.
    """

    returns: Floats
    lengths: Floats
    metrics: dict[str, Floats]

    @property
    def names(self) -> tuple[str, ...]:
        """What can be estimated: `return`, `length` and the metrics."""
        return ("return", "length", *self.metrics)

    def estimate(self, name: str) -> Estimate:
        """Mean and 95 % interval of one of `names`; the same values give the same interval.

        Raises:
            ValueError: there is no such number; the nearest is named.
        """
        check_choice("number of an evaluation", name, self.names)
        own = {"return": self.returns, "length": self.lengths}
        values = own[name] if name in own else self.metrics[name]
        return _estimate(values[~np.isnan(values)])

    @property
    def success(self) -> Estimate | None:
        """Share of episodes with a true `is_success`; None if the infos do not tell."""
        return self.estimate("is_success") if "is_success" in self.metrics else None

    @property
    def last_phase_reward(self) -> Estimate | None:
        """Mean reward of the last phase; None if the infos do not tell."""
        name = "last_phase_reward"
        return self.estimate(name) if name in self.metrics else None

    def __str__(self) -> str:
        lines = [f"{len(self.returns)} episodes, mean and 95 % interval"]
        width = max(map(len, self.names))
        for name in self.names:
            found = self.estimate(name)
            some = "" if found.episodes == len(self.returns) else f" in {found.episodes} episodes"
            lines.append(f"{name:<{width}}  {found}{some}")
        return "\n".join(lines)


def evaluate_policy(
    model: Any,
    env: Any,
    n_eval_episodes: int = 100,
    deterministic: bool = True,
    seed: int | None = None,
) -> PolicyEvaluation:
    """Play episodes to their end, and report all of them.

    Each row of a vectorised environment plays a number of episodes that is fixed beforehand, so
    that short episodes do not count for more. States are carried along, and begin anew where an
    episode does. Give it environments of their own: they are reset. Where a `Monitor` is around
    them, returns and lengths are those it wrote, before other wrappers changed the rewards;
    switch off the training of a `VecNormalize`.

    Args:
        model: of rlgates or of sb3-contrib, or whatever has their `predict`. One with masks asks
            the environment for them. Environments of tensors need a model of rlgates.
        env: a VecEnv, one gymnasium environment, or a batch of tensors of
            `rlgates.envs.torch.make_torch_env`.
        n_eval_episodes: how many, at least 1; each row plays as many as the others, or one less.
        deterministic: take the likeliest action; else draw it.
        seed: of the environments, and of the drawn actions; the random numbers of the process
            are left as they were. None leaves the environments theirs, and draws.

    Raises:
        ValueError: no episodes. TypeError: environments of tensors with a model that takes
            arrays.
    """
    total = check_size("n_eval_episodes", n_eval_episodes)
    check_flag("deterministic", deterministic)
    if is_tensor_batch(env):
        env = TensorVecEnv(env)
    elif not isinstance(env, VecEnv):
        single = env
        env = DummyVecEnv([lambda: single])
    if seed is not None:
        env.seed(seed)
    rows = env.num_envs
    left = (total + np.arange(rows)) // rows
    play = _play_tensors if isinstance(env, TensorVecEnv) else _play
    ends: list[dict[str, Any]] = []
    with _own_random_numbers(model, seed):
        for row, info in play(model, env, deterministic):
            if left[row] > 0:
                left[row] -= 1
                ends.append(info)
            if not left.any():
                break
    return _collected(ends)


def _play(model: Any, env: VecEnv, deterministic: bool) -> Iterator[tuple[int, dict[str, Any]]]:
    """The row and the last info of every episode that ends, with `r` and `l` in `episode`."""
    monitored = is_vecenv_wrapped(env, VecMonitor) or env.env_is_wrapped(Monitor)[0]
    masked = isinstance(model, MaskableRecurrentPPO) and is_masking_supported(env)
    returns, lengths = np.zeros(env.num_envs), np.zeros(env.num_envs)
    observations: Any = env.reset()
    state, starts = None, np.ones(env.num_envs, dtype=bool)
    while True:
        masks = {"action_masks": get_action_masks(env)} if masked else {}
        actions, state = model.predict(
            observations, state=state, episode_start=starts, deterministic=deterministic, **masks
        )
        observations, rewards, starts, infos = env.step(actions)
        returns += rewards
        lengths += 1
        for row in np.flatnonzero(starts).tolist():
            info = infos[row]
            if not monitored:
                info = {**info, "episode": {"r": returns[row], "l": lengths[row]}}
            returns[row] = lengths[row] = 0
            if "episode" in info:  # else a wrapper has cut an episode into pieces
                yield row, info


def _play_tensors(
    model: Any, env: TensorVecEnv, deterministic: bool
) -> Iterator[tuple[int, dict[str, Any]]]:
    """As `_play`; the device is asked once in a while what has finished."""
    if not isinstance(model, SequenceRollouts):
        raise TypeError(
            f"environments of tensors need a model of rlgates, got {type(model).__name__}."
        )
    policy, device = model.policy, model.device
    policy.set_training_mode(False)
    observations = env.reset()
    states = policy.initial_states(env.num_envs)
    starts: Any = torch.ones(env.num_envs, dtype=torch.bool, device=device)
    while True:
        for _ in range(STRETCH):
            with torch.no_grad():
                seen = policy.act(observations, states, starts, deterministic=deterministic)
            actions: Any = model._within_bounds(seen.actions)
            observations, _, starts, _ = env.step(actions)
            states = seen.states
        for info in env.episodes(most=STRETCH * env.num_envs):
            yield info.pop("row"), info


@contextmanager
def _own_random_numbers(model: Any, seed: int | None) -> Iterator[None]:
    if seed is None:
        yield
        return
    device = torch.device(getattr(model, "device", "cpu"))
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


def _collected(ends: list[dict[str, Any]]) -> PolicyEvaluation:
    told = [{k: v for k, v in end.items() if _is_metric(k, v)} for end in ends]
    names = sorted({name for metrics in told for name in metrics})
    return PolicyEvaluation(
        np.array([float(end["episode"]["r"]) for end in ends]),
        np.array([float(end["episode"]["l"]) for end in ends]),
        {name: np.array([float(one.get(name, np.nan)) for one in told]) for name in names},
    )


def _is_metric(name: str, value: Any) -> bool:
    """Whether it is one number, and tells of the episode rather than of its end."""
    return name != "TimeLimit.truncated" and isinstance(value, Real | np.bool_)


def _estimate(values: Floats) -> Estimate:
    rng, count = np.random.default_rng(0), len(values)
    means = [values[rng.integers(count, size=count)].mean() for _ in range(RESAMPLES)]
    low, high = np.quantile(means, (0.025, 0.975))
    return Estimate(float(values.mean()), float(low), float(high), count)
