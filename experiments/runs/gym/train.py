"""Train an agent in an environment of gymnasium: one run of a core from one seed."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import sb3_contrib
from stable_baselines3.common.callbacks import BaseCallback, EvalCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from rlgates.agents import RecurrentPPO
from rlgates.envs.sb3 import make_vec_env as make_batched
from rlgates.errors import TrainingDiverged
from rlgates.experiments.configs.devices import threads_set
from rlgates.experiments.configs.gym import GymConfig
from rlgates.experiments.runs.files import read_bytes, write_atomically
from rlgates.experiments.runs.folder import EndReason, RunFolder, RunResult
from rlgates.experiments.runs.hparams import write_hparams
from rlgates.experiments.runs.progress import Progress

EVAL_ENVS = 4
EVAL_SEED = 2**20  # above the seeds of training

AGENTS: Mapping[str, type[OnPolicyAlgorithm]] = {
    "ppo": RecurrentPPO,
    "sb3-contrib": sb3_contrib.RecurrentPPO,
}


@dataclass(frozen=True, kw_only=True)
class GymResult(RunResult):
    """What a finished run reached; `seconds` are those of the CPU, evaluations included.

    Attributes:
        mean_return: of the episodes of the last evaluation.
        steps_to_goal: of training, until an evaluation reached `success_return`; None: never.
    """

    mean_return: float
    steps_to_goal: int | None


def make_envs(config: GymConfig, seed: int, *, training: bool) -> VecEnv:
    """The environments of a run, for training or for evaluations."""
    num_envs = config.n_envs if training else EVAL_ENVS
    seed += 0 if training else EVAL_SEED
    env: VecEnv
    if config.is_batched:
        env = make_batched(config.env, num_envs, seed=seed, **config.env_settings)
    else:
        env = make_vec_env(config.make_env, n_envs=num_envs, seed=seed)
    if config.normalize:
        env = VecNormalize(env, training=training, norm_reward=training)
    return env


def build(config: GymConfig, seed: int) -> OnPolicyAlgorithm:
    """The untrained agent in its environments."""
    options: dict[str, Any] = {
        "net_arch": {"pi": list(config.net_arch), "vf": list(config.vf_net_arch)},
        "lstm_hidden_size": config.hidden_size,
        "ortho_init": config.ortho_init,
    }
    if config.algo == "ppo":
        options |= {"core": config.core, "core_kwargs": dict(config.core_options)}
    rate: Any = config.learning_rate
    agent: Any = AGENTS[config.algo]
    model: OnPolicyAlgorithm = agent(
        "MlpLstmPolicy",
        make_envs(config, seed, training=True),
        learning_rate=LinearSchedule(rate, 0.0, 1.0) if config.linear_schedule else rate,
        n_steps=config.n_steps,
        batch_size=config.batch_size,
        n_epochs=config.n_epochs,
        gamma=config.gamma,
        gae_lambda=config.gae_lambda,
        clip_range=config.clip_range,
        normalize_advantage=config.normalize_advantage,
        ent_coef=config.ent_coef,
        vf_coef=config.vf_coef,
        max_grad_norm=config.max_grad_norm,
        policy_kwargs=options,
        seed=seed,
        device=config.device,
    )
    return model


def train(config: GymConfig, seed: int, *, bar: bool | None = None) -> GymResult:
    """Train an agent, or look up the result of a finished run.

    Gymnasium has no interface to save an environment's state, so these runs have no checkpoints:
    Ctrl-C waits for the run to finish, and a killed run starts over.

    Args:
        config: of the run.
        seed: of all random numbers.
        bar: draw a progress bar; by default, on a terminal.

    Returns:
        the result. The folder `config.run_folder(seed)` holds the agent in `model.rlgates`, the
        one with the highest mean return in `best.rlgates`, beside each the statistics of normalized
        observations (`model.json`, `best.json`), and `evaluations.npz`. Agents of sb3-contrib are
        in `model.zip` and `best.zip`, since it has no other format.

    Raises:
        ValueError, TypeError: an invalid config, or a folder with a run of another config.
    """
    config.check()
    folder = RunFolder(config, seed)
    result = folder.result(GymResult)
    if result is not None:
        return result
    with threads_set(config.threads):
        return _train(folder, config, bar)


def _train(folder: RunFolder, config: GymConfig, bar: bool | None) -> GymResult:
    seed = folder.seed
    model = build(config, seed)
    start = time.process_time()
    progress = Progress(f"{config.core} seed {seed}", "steps", config.total_steps, bar)
    evaluation = _evaluation(folder, config)
    callbacks = [evaluation, _Watch(config, progress, start)]
    with closing(folder.open_logs(None)) as logger:
        folder.begin(0)
        model.set_logger(logger)
        ended: EndReason = "budget"
        try:
            model.learn(config.total_steps, callbacks)
            if model.num_timesteps < config.total_steps:
                ended = "time"
        except TrainingDiverged as reason:
            ended = "diverged"
            print(f"{config.core} seed {seed} diverged: {reason}", flush=True)
        finally:
            progress.close()
        if not evaluation.evaluations_timesteps:
            evaluation.eval_freq = 1
            evaluation._on_step()
        save(model, folder.path / "model")
        steps, returns = read_evaluations(folder.path)
        reached = np.flatnonzero(returns >= config.success_return)
        result = GymResult(
            mean_return=float(returns[-1]),
            steps_to_goal=int(steps[reached[0]]) if len(reached) else None,
            steps=model.num_timesteps,
            seconds=round(time.process_time() - start, 1),
            ended=ended,
            best_step=int(steps[returns.argmax()]),
        )
        metrics = {name: getattr(result, name) for name in ("mean_return", "steps", "seconds")}
        write_hparams(logger, config, seed, metrics, result.steps)
    folder.finish(result)
    return result


def _evaluation(folder: RunFolder, config: GymConfig) -> EvalCallback:
    """The evaluations of a run, which also keep the best agent."""
    every = config.eval_every
    assert every != "epoch"
    return EvalCallback(
        make_envs(config, folder.seed, training=False),
        n_eval_episodes=config.eval_episodes,
        eval_freq=0 if every is None else max(1, every // config.n_envs),  # 0: never
        log_path=str(folder.path),
        callback_on_new_best=_Save(folder.path / "best"),
        verbose=0,
    )


def read_evaluations(folder: Path) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The steps of the evaluations in a run's folder, and the mean return of each.

    Raises:
        Damaged: the file is not what was written.
    """
    with np.load(io.BytesIO(read_bytes(folder / "evaluations.npz"))) as saved:
        return saved["timesteps"], saved["results"].mean(axis=1)


def save(model: OnPolicyAlgorithm, path: Path) -> None:
    """Save an agent, and the statistics by which its observations were normalized.

    Args:
        model: of one of `AGENTS`.
        path: without a suffix.
    """
    if isinstance(model, RecurrentPPO):
        model.save(path, format="safe")
    else:
        model.save(path)
    env = model.get_vec_normalize_env()
    if env is not None:
        assert not isinstance(env.obs_rms, dict)
        values = {
            "mean": env.obs_rms.mean.tolist(),
            "var": env.obs_rms.var.tolist(),
            "epsilon": env.epsilon,
            "clip": env.clip_obs,
        }
        write_atomically(path.with_suffix(".json"), json.dumps(values).encode())


class _Save(BaseCallback):
    """Saves the agent."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def _on_step(self) -> bool:
        save(self.model, self.path)  # type: ignore[arg-type]
        return True


class _Watch(BaseCallback):
    """Shows how far training is, and ends it when its time is over."""

    def __init__(self, config: GymConfig, progress: Progress, start: float) -> None:
        super().__init__()
        self.limit, self.progress, self.start = config.max_minutes, progress, start

    def _on_training_start(self) -> None:
        self.progress.begin(self.model.num_timesteps)

    def _on_rollout_end(self) -> None:
        self.progress.update(self.model.num_timesteps)

    def _on_step(self) -> bool:
        return self.limit is None or time.process_time() - self.start < 60 * self.limit
