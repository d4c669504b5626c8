"""Horizon generalisation: what was learned at one length, tested at longer ones.

Nothing is adapted: the weights are those of the run, and with them all that a core was told of
the length it is trained at (the `t_max` of chrono gates, the slots of a memory).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, TypeVar

import numpy as np
import torch
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper

from rlgates.envs import make_task as make_env_task
from rlgates.errors import check_choice
from rlgates.experiments.configs import TrainConfig
from rlgates.experiments.evaluate import evaluate_in, evaluation_seed, fresh_env
from rlgates.experiments.pairs import threads_set
from rlgates.experiments.runs import run_folder
from rlgates.experiments.supervise import Run
from rlgates.experiments.supervised_configs import SupervisedConfig
from rlgates.experiments.supervised_evaluate import evaluate
from rlgates.experiments.supervised_saved import Learned, load_best
from rlgates.experiments.tables import Row
from rlgates.experiments.train import Agent, trained
from rlgates.tasks import make_task

FACTORS = (1, 2, 4, 16)
EPISODES = 256  # fresh ones of an agent at each length, unless its run was tested on fewer

Config = TrainConfig | SupervisedConfig
ConfigT = TypeVar("ConfigT", bound=Config)


def check_horizon(config: Config, setting: str) -> None:
    """Find out before any work whether a network or agent can be tested at all `FACTORS`.

    Args:
        config: what is trained.
        setting: of its task or environment, that is stretched.

    Raises:
        ValueError: no such setting (those that there are are named), one that is no length, or a
            task whose floor nobody knows.
    """
    short = _task(config)
    if isinstance(config, SupervisedConfig) and short.baseline is None:
        raise ValueError(f"horizon: the loss without memory is not known for {config.task!r}.")
    for factor in FACTORS:
        if _faces(_task(stretched(config, setting, factor))) != _faces(short):
            raise ValueError(
                f"horizon: {setting} is no length: what is seen or to be done is another at "
                f"{factor} times as much."
            )


def stretched(config: ConfigT, setting: str, factor: int) -> ConfigT:
    """The config with a longer task, all else as it is.

    Raises:
        ValueError: see `check_horizon`.
    """
    task = _task(config)
    agent = isinstance(config, TrainConfig)
    names = [field.name for field in fields(task)] if agent else task.settings
    whole = {name: value for name in names if type(value := getattr(task, name)) is int}
    lengths = [name for name, value in whole.items() if value > 0]
    value = factor * whole[check_choice("setting for a horizon", setting, lengths)]
    kind = "env_settings" if agent else "task_settings"
    changes: dict[str, Any] = {kind: {**getattr(config, kind), setting: value}}
    return replace(config, **changes)


def network_rows(config: SupervisedConfig, seed: int, setting: str, learned: Learned) -> list[Row]:
    """The best weights of a finished run on fresh held-out sequences of longer tasks.

    The score is the accuracy, of tasks that have none the share of the loss without memory that
    is saved. A prediction that is no finite number is wrong.

    Args:
        config, seed: of the run.
        setting: that is stretched.
        learned: what the run came to.

    Returns:
        for each of `FACTORS`, the sequences' length in steps and number, score, loss, and the
        score without memory.

    Raises:
        ValueError: the weights are gone, damaged, or of another run.
    """
    weights = None if learned.best_update is None else load_best(Run(config, seed))
    rows = []
    for factor in FACTORS:
        run = Run(stretched(config, setting, factor), seed)
        if weights is None:  # the run never had a finite figure, and gets none here
            for parameter in run.reader.parameters():
                torch.nn.init.constant_(parameter, math.nan)
        else:
            run.reader.load_state_dict(weights)
        batches = list(run.held_out("test"))
        figures = evaluate(run.reader, run.task, batches, run.precision)
        score, floor = _score(figures, run.task.baseline)
        rows.append(
            {
                **_where(run.task, setting, factor, len(batches[0].inputs)),
                "count": str(sum(batch.inputs.shape[1] for batch in batches)),
                "score": f"{score:.6g}",
                "loss": f"{figures['loss']:.6g}",
                "floor": f"{floor:.6g}",
            }
        )
    return rows


def _score(figures: Mapping[str, float], baseline: float | None) -> tuple[float, float]:
    """The score of a network, and that without memory."""
    assert baseline is not None
    if "accuracy" in figures:  # the baseline is that of guessing among answers as likely
        return figures["accuracy"], math.exp(-baseline)
    loss = figures["loss"]
    return max(0.0, 1 - loss / baseline) if math.isfinite(loss) else 0.0, 0.0


def agent_rows(config: TrainConfig, seed: int, setting: str) -> list[Row]:
    """A finished run's agent in fresh episodes of longer environments.

    The score is the share of successful episodes. One in which the memory held a number that is
    not finite is a failure.

    Args:
        config, seed: of the run.
        setting: that is stretched.

    Returns:
        for each of `FACTORS`, the episodes' length in steps and number, score with its 95 %
        interval (Wilson), and the score without memory, empty where it is not known.

    Raises:
        ValueError: there is no finished run.
    """
    episodes = min(EPISODES, config.final_episodes)
    first, rows = evaluation_seed(seed, final=True), []
    with threads_set(config.threads):
        model = trained(run_folder(config, seed), config, seed)
        for factor in FACTORS:
            longer = stretched(config, setting, factor)
            env = fresh_env(model, longer.env, longer.env_settings, episodes, first)
            player = _Player(model, env.num_envs)
            judged = _Judged(env, player)
            seen = evaluate_in(player, judged, episodes, first, config.eval_deterministic)
            task = _task(longer)
            rows.append(
                {
                    **_where(task, setting, factor, task.max_episode_length),
                    "count": str(episodes),
                    "score": f"{seen.success:.6g}",
                    "low": f"{seen.low:.6g}",
                    "high": f"{seen.high:.6g}",
                    "floor": "" if task.chance is None else f"{task.chance:.6g}",
                }
            )
    return rows


class _Player:
    """A model, and in which rows its memory held a number that is not finite in this episode."""

    def __init__(self, model: Agent, rows: int) -> None:
        self.model, self.device = model, model.device
        self.lost = np.zeros(rows, dtype=bool)

    def predict(
        self, observations: Any, state: Any, episode_start: Any, deterministic: bool
    ) -> tuple[Any, Any]:
        actions, state = self.model.predict(observations, state, episode_start, deterministic)
        finite = [np.isfinite(half).all(axis=(0, 2)) for half in state]
        self.lost = (self.lost & ~episode_start) | ~np.logical_and.reduce(finite)
        return actions, state


class _Judged(VecEnvWrapper):
    """Environments in which who has lost its memory has failed."""

    def __init__(self, env: VecEnv, player: _Player) -> None:
        super().__init__(env)
        self.player = player

    def reset(self) -> Any:
        return self.venv.reset()

    def step_wait(self) -> Any:
        obs, rewards, dones, infos = self.venv.step_wait()
        for row in np.flatnonzero(dones & self.player.lost):
            infos[row] = {**infos[row], "is_success": False}
        return obs, rewards, dones, infos


def _task(config: Config) -> Any:
    if isinstance(config, TrainConfig):
        return make_env_task(config.env, **config.env_settings)
    return make_task(config.task, **config.task_settings)


def _faces(task: Any) -> tuple[Any, Any]:
    """What a network meets: of a length that is stretched it must not depend."""
    if hasattr(task, "observation_space"):
        return task.observation_space, task.action_space
    return task.input_size, task.output_size


def _where(task: Any, setting: str, factor: int, steps: int) -> Row:
    value = getattr(task, setting)
    return {"factor": str(factor), "setting": f"{setting} {value}", "length": str(steps)}
