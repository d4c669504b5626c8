"""The environments of a run: seeded episode by episode, so that their state can be saved."""

from __future__ import annotations

import signal
import zlib
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import (
    SubprocVecEnv,
    VecEnv,
    VecNormalize,
    unwrap_vec_normalize,
)

from rlgates.agents.ranks import ALONE, Ranks
from rlgates.envs.sb3 import BatchedVecEnv
from rlgates.envs.sb3 import make_vec_env as make_batched
from rlgates.experiments.configs.gym import GymConfig
from rlgates.experiments.runs.agent.evaluate import evaluation_seed
from rlgates.experiments.runs.stopping import SIGNALS

EVAL_ENVS, BATCHED_EVAL_ENVS = 4, 64
"""The most copies in an evaluation; those of rlgates cost hardly more than one."""


class Replay(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment whose state is the seed of its episode, and the actions since then.

    Gymnasium has no interface to save the state of an environment, but an episode is determined
    by the seed of its reset and by the actions. So every episode is started with a seed of its
    own, drawn from that of the first reset and the number of the episode.

    Args:
        env: the environment.
        run: the number of the run. SB3 seeds copy k with the seed of the agent plus k, so that runs
            of neighbouring seeds would share most episodes.
    """

    seed: int = 0
    episode: int = 0

    def __init__(self, env: gymnasium.Env[Any, Any], run: int = 0) -> None:
        super().__init__(env)
        self.run = run
        self.actions: list[Any] = []
        self.observation: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if seed is None:
            self.episode += 1
        else:
            self.seed, self.episode = seed, 0
        self.actions = []
        (episode_seed,) = np.random.SeedSequence(
            [self.run, self.seed, self.episode]
        ).generate_state(1)
        self.observation, info = self.env.reset(seed=int(episode_seed), options=options)
        return self.observation, info

    def step(self, action: Any) -> Any:
        self.actions.append(action)
        self.observation, *others = self.env.step(action)
        return self.observation, *others

    def get_state(self) -> dict[str, Any]:
        """What the episode's seed is drawn from, its actions, and a sum of what was seen last."""
        return {
            "run": self.run,
            "seed": self.seed,
            "episode": self.episode,
            "actions": np.array(self.actions),
            "sum": _checksum(self.observation),
        }

    def set_state(self, saved: dict[str, Any]) -> None:
        """Play the episode again up to where it was.

        Raises:
            ValueError: its last observation is another one.
        """
        self.run = saved.get("run", 0)  # which earlier versions did not have
        self.seed, self.episode = saved["seed"], saved["episode"] - 1
        self.reset()
        for action in saved["actions"]:
            self.step(action)
        if _checksum(self.observation) != saved["sum"]:
            raise ValueError(
                f"{self.env} does not repeat an episode from its seed and actions, so that the run "
                "cannot be continued. Start again in another --folder."
            )


def _checksum(observation: Any) -> int:
    if isinstance(observation, dict):
        return zlib.crc32(str([_checksum(observation[name]) for name in observation]).encode())
    return zlib.crc32(np.asarray(observation).tobytes())


def make_envs(config: GymConfig, seed: int, *, training: bool, ranks: Ranks = ALONE) -> VecEnv:
    """The environments of a run, for training (those of this rank) or for evaluations."""
    copies = config.n_envs
    if not training:
        most = BATCHED_EVAL_ENVS if config.is_batched else EVAL_ENVS
        copies = min(most, config.eval_episodes)
    ranks = (ranks if training else ALONE).split(copies)
    seed = seed if training else evaluation_seed(seed, final=False)
    env: VecEnv
    if config.is_batched:
        env = make_batched(
            config.env, ranks.count, seed=seed, first_index=ranks.first, **config.env_settings
        )
    else:
        config = config.resolved()
        subproc = training and config.vec_env == "subproc"
        env = make_vec_env(
            partial(_make_in_process, config) if subproc else config.make_env,
            n_envs=ranks.count,
            seed=seed,
            start_index=ranks.first,
            wrapper_class=partial(Replay, run=seed),
            vec_env_cls=SubprocVecEnv if subproc else None,
        )
    return normalized(env, training, config.gamma) if config.normalize else env


def _make_in_process(config: GymConfig) -> gymnasium.Env[Any, Any]:
    """One copy of the environment, in a process of its own, which the run ends.

    A terminal sends Ctrl-C to all processes; without its environments a run could not be saved.
    """
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    return config.make_env()


def normalized(env: VecEnv, training: bool, gamma: float) -> VecNormalize:
    """The environments with rewards and all observations but images normalized.

    Rewards are divided by the standard deviation of the returns, discounted as the agent's.
    """
    space = env.observation_space
    parts = space.spaces if isinstance(space, spaces.Dict) else {"": space}
    keys = [
        name
        for name, part in parts.items()
        if isinstance(part, spaces.Box) and part.dtype != np.uint8
    ]
    return VecNormalize(
        env,
        training=training,
        norm_obs=bool(keys),
        norm_reward=training,
        gamma=gamma,
        norm_obs_keys=keys if isinstance(space, spaces.Dict) and keys else None,
    )


class SavedEnvs:
    """Environments as `snapshot` takes them: their state can be saved and put back."""

    def __init__(self, env: VecEnv) -> None:
        self.env = env
        self.normalize = unwrap_vec_normalize(env)

    def get_state(self) -> dict[str, Any]:
        """The state of all copies, and the statistics of the normalization."""
        base = self.env.unwrapped
        states: Any = (
            base.get_state() if isinstance(base, BatchedVecEnv) else base.env_method("get_state")
        )
        state = {"envs": states}
        if self.normalize is not None:
            state["normalize"] = {
                "returns": self.normalize.returns.copy(),
                "rewards": dict(vars(self.normalize.ret_rms)),
                "observations": {
                    name: dict(vars(part))
                    for name, part in observation_statistics(self.normalize).items()
                },
            }
        return state

    def set_state(self, saved: dict[str, Any]) -> None:
        """Put back what `get_state` returned."""
        base = self.env.unwrapped
        if isinstance(base, BatchedVecEnv):
            base.set_state(saved["envs"])
        else:
            for index, state in enumerate(saved["envs"]):
                base.env_method("set_state", state, indices=index)
        if self.normalize is not None:
            parts = saved["normalize"]
            self.normalize.returns = parts["returns"]
            vars(self.normalize.ret_rms).update(parts["rewards"])
            for name, part in observation_statistics(self.normalize).items():
                vars(part).update(parts["observations"][name])


def observation_statistics(env: VecNormalize) -> dict[str, RunningMeanStd]:
    """Statistics of the observations by name, "" where there is one without a name."""
    if not env.norm_obs:
        return {}
    statistics: Any = env.obs_rms
    return statistics if isinstance(statistics, dict) else {"": statistics}
