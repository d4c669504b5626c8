"""One run: train a core on an environment from one seed, and measure what it learned."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.preprocessing import is_image_space

from rlgates.agents import GateCallback, RecurrentA2C, RecurrentPPO
from rlgates.envs.sb3 import BatchedVecEnv, make_vec_env
from rlgates.errors import Diverged
from rlgates.experiments import checkpoint, hparams, logs, manifest
from rlgates.experiments.callbacks import (
    Boundary,
    Measure,
    Progress,
    ScaledReward,
    Stop,
)
from rlgates.experiments.configs import NOT_LEARNED_FROM, TrainConfig
from rlgates.experiments.evaluate import evaluate, evaluation_seed
from rlgates.experiments.files import write_atomically
from rlgates.experiments.runs import chance, check, rollout_steps, run_folder, run_title
from rlgates.experiments.stopping import InterruptedRun
from rlgates.experiments.text import steps_text, time_text

GOAL = 0.9
Agent = RecurrentPPO | RecurrentA2C
AGENTS: dict[str, type[Agent]] = {"ppo": RecurrentPPO, "a2c": RecurrentA2C}


@dataclass(frozen=True)
class Result:
    """What a finished run reached.

    Attributes:
        success, low, high: share of successful fresh episodes and its 95 % interval.
        last_phase_reward: mean over the same episodes, in the environment's unit.
        episodes: how many fresh episodes.
        steps: training steps made.
        steps_to_goal: when `GOAL` of the last training episodes had succeeded; None: never.
        seconds: training time.
        ended: "budget", "success", "time" or "diverged": a gradient was not finite, and what was
            reached is that of the weights before that update.
    """

    success: float
    low: float
    high: float
    last_phase_reward: float
    episodes: int
    steps: int
    steps_to_goal: int | None
    seconds: float
    ended: str


def finished(config: TrainConfig, seed: int) -> Result | None:
    """The result of the run if it was finished before.

    Raises:
        ValueError: the folder holds a run with another config; what differs is named.
    """
    folder = run_folder(config, seed)
    result = manifest.result_of(folder, manifest.plain(config), seed, besides=NOT_LEARNED_FROM)
    return None if result is None else Result(**result)


def build(config: TrainConfig, seed: int) -> tuple[Agent, BatchedVecEnv]:
    """The untrained model, and its environments below all wrappers."""
    env = make_vec_env(config.env, config.n_envs, seed=seed, **config.env_settings)
    space = env.observation_space
    if isinstance(space, spaces.Dict):
        policy = "MultiInputLstmPolicy"
    else:
        policy = "CnnLstmPolicy" if is_image_space(space) else "MlpLstmPolicy"
    n_steps = rollout_steps(config, env.env.task)
    own: dict[str, Any] = {"normalize_advantage": True, "use_rms_prop": False}
    if config.algo == "ppo":
        own = {
            "batch_size": n_steps * config.n_envs // config.n_minibatches,
            "n_epochs": config.n_epochs,
            "clip_range": config.clip_range,
        }
    model = AGENTS[config.algo](
        policy,
        ScaledReward(env, config.reward_scale),
        learning_rate=config.learning_rate,
        n_steps=n_steps,
        gamma=config.gamma,
        gae_lambda=config.gae_lambda,
        ent_coef=config.ent_coef,
        vf_coef=config.vf_coef,
        max_grad_norm=config.max_grad_norm,
        stats_window_size=config.window,
        policy_kwargs={
            "core": config.core,
            "core_kwargs": dict(config.core_options),
            "lstm_hidden_size": config.hidden_size,
            "shared_lstm": config.critic == "shared",
            "shared_gradient": "both" if config.critic == "shared" else "actor",
            "enable_critic_lstm": config.critic == "separate",
            "net_arch": list(config.net_arch),
        },
        seed=seed,
        device=config.device,
        **own,
    )
    return model, env


def core_parameters(config: TrainConfig) -> int:
    """Parameters of an agent's memory, that of a critic of its own included."""
    model, env = build(config, 0)
    env.close()
    cores = model.policy.lstm_actor, model.policy.lstm_critic
    return sum(p.numel() for core in cores if core is not None for p in core.parameters())


def trained(folder: Path, config: TrainConfig, seed: int) -> Agent:
    """The agent of the finished run in `folder`.

    Raises:
        ValueError: there is none.
    """
    weights = folder / "model.zip"
    if not weights.exists():
        raise ValueError(f"{folder} holds no finished run: it has no model.zip.")
    model, _ = build(config, seed)
    model.set_parameters(str(weights), device=model.device)
    return model


def train(
    config: TrainConfig,
    seed: int,
    *,
    stop: Callable[[], bool] = lambda: False,
    bar: bool | None = None,
) -> Result:
    """Make one run, or go on with it, or look up what it reached.

    A run that was stopped goes on from its last checkpoint, and ends bit for bit as if it had
    never stopped (on the same machine, with the same versions and as many threads).

    Args:
        config: what to train.
        seed: of everything that is drawn.
        stop: asked after each update; if true, the run is saved and stopped.
        bar: draw a progress bar; by default, on a terminal.

    Returns:
        what was reached; the folder `run_folder(config, seed)` has the rest.

    Raises:
        InterruptedRun: `stop` said so.
        ValueError, TypeError: a config that makes no sense; a folder that holds a run with
            another config; a checkpoint or log that is damaged.
    """
    check(config)
    done = finished(config, seed)
    if done is not None:
        return done
    with _threads(config.threads):
        return _train(config, seed, stop, bar)


def _train(config: TrainConfig, seed: int, stop: Callable[[], bool], bar: bool | None) -> Result:
    folder = run_folder(config, seed)
    model, env = build(config, seed)
    path = folder / "checkpoint"
    saved = checkpoint.read_checkpoint(path) if path.exists() else None
    if saved and not manifest.manifest_path(folder).exists():
        raise ValueError(f"{folder} has a checkpoint, but its manifest.json is missing.")
    logs.rewind(folder, saved and saved["logs"])
    steps = saved["counters"]["num_timesteps"] if saved else 0
    manifest.begin(folder, manifest.plain(config), seed, steps, config.threads)
    logger = logs.make_logger(folder, run_title(config))
    model.set_logger(logger)
    boundary = Boundary(config, folder, env, saved["seconds"] if saved else 0.0, stop)
    progress = Progress(f"{config.core} seed {seed}", config.total_steps, bar)
    callbacks: list[BaseCallback] = [boundary, GateCallback(), Measure(config, seed), progress]
    if saved:
        logs.restore_waiting(logger, saved["logs"])
        checkpoint.restore(model, env, saved)
        boundary.saved = model.num_timesteps
    ended = "budget"
    try:
        left = config.total_steps - model.num_timesteps
        model.learn(left, callbacks, log_interval=1, reset_num_timesteps=False)
    except Stop as reason:
        ended = reason.reason
    except Diverged as reason:
        ended = "diverged"
        print(f"{config.core} seed {seed} diverged: {reason}", flush=True)
    finally:
        progress.close()
        logger.close()
    if ended != "diverged":  # in the midst of an iteration, which a checkpoint never is
        boundary.save()
    if ended == "interrupted":
        manifest.end(folder, "interrupted")
        raise InterruptedRun(f"at {model.num_timesteps:,} steps, saved in {folder}")
    result = _measure(config, seed, model, boundary.seconds, ended)
    metrics = {name: getattr(result, name) for name in hparams.AGENT_METRICS}
    hparams.write_hparams(folder, config, seed, metrics, result.steps, diverged=ended == "diverged")
    manifest.end(folder, "finished", result=asdict(result))
    path.unlink(missing_ok=True)
    return result


def _measure(config: TrainConfig, seed: int, model: Agent, seconds: float, ended: str) -> Result:
    """The agent as a file, its evaluation, and pictures of its learning curve and its gates."""
    from rlgates.experiments.figures import Curve, draw_curves
    from rlgates.experiments.gate_runs import draw_runs

    folder = run_folder(config, seed)
    agent = io.BytesIO()
    model.save(agent)
    write_atomically(folder / "model.zip", agent.getvalue())
    final = evaluation_seed(seed, final=True)
    episodes, how = config.final_episodes, config.eval_deterministic
    seen = evaluate(model, config.env, config.env_settings, episodes, final, how)
    rows = logs.read_rows(folder / "progress.csv")
    steps, success = logs.column(rows, logs.STEPS), logs.column(rows, "rollout/success_rate")
    above = np.flatnonzero(success >= GOAL)
    curve = Curve(config.core, seed, steps, success)
    draw_curves([curve], folder / "curve.png", run_title(config), chance(config))
    draw_runs([folder], folder / "gates.png")
    return Result(
        seen.success,
        seen.low,
        seen.high,
        seen.last_phase_reward,
        seen.episodes,
        model.num_timesteps,
        int(steps[above[0]]) if len(above) else None,
        round(seconds, 1),
        ended,
    )


def describe(config: TrainConfig, seed: int, result: Result) -> str:
    """One line that says what was reached."""
    level = chance(config)
    return (
        f"{config.core} on {run_title(config)}, seed {seed}: "
        f"success {result.success:.2f} [{result.low:.2f}, {result.high:.2f}] "
        f"over {result.episodes:,} fresh episodes after {steps_text(result.steps)} steps "
        f"in {time_text(result.seconds)}{'' if level is None else f' (chance {level:.2f})'}"
        f"{', diverged' if result.ended == 'diverged' else ''} "
        f"-> {run_folder(config, seed) / 'curve.png'}"
    )


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


if __name__ == "__main__":
    from rlgates.experiments.cli import main

    sys.exit(main(["train", *sys.argv[1:]]))
