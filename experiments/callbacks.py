"""What happens around a rollout: measuring, showing, saving, stopping."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.utils import safe_mean
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper
from stable_baselines3.common.vec_env.base_vec_env import VecEnvStepReturn
from tqdm import tqdm

from rlgates.experiments.checkpoint import snapshot, write_checkpoint
from rlgates.experiments.configs import TrainConfig
from rlgates.experiments.evaluate import evaluate, evaluation_seed, last_phase_reward
from rlgates.experiments.logs import position
from rlgates.experiments.text import steps_text, time_text

LINE_EVERY = 10.0  # seconds between lines where there is no terminal


class ScaledReward(VecEnvWrapper):
    """Rewards times a factor; what is reported at the end of an episode stays unscaled.

    The last phase's reward joins the `episode` record that SB3 takes its means from.
    """

    def __init__(self, venv: VecEnv, scale: float) -> None:
        super().__init__(venv)
        self.scale = scale

    def reset(self) -> Any:
        return self.venv.reset()

    def step_wait(self) -> VecEnvStepReturn:
        obs, rewards, dones, infos = self.venv.step_wait()
        for row in np.flatnonzero(dones):
            infos[row]["episode"]["last_phase_reward"] = last_phase_reward(infos[row])
        return obs, rewards * np.float32(self.scale), dones, infos


class RolloutCallback(BaseCallback):
    """A callback that is interested in rollouts and not in steps."""

    def _on_step(self) -> bool:
        return True

    def passed(self, every: int | None) -> bool:
        """Whether a multiple of `every` was reached by the last rollout."""
        steps = self.model.num_timesteps
        rollout = self.model.n_steps * self.model.n_envs  # type: ignore[attr-defined]
        return every is not None and steps // every > max(steps - rollout, 0) // every


class Measure(RolloutCallback):
    """Records the last phase's reward, and now and then an evaluation on fresh episodes."""

    def __init__(self, config: TrainConfig, seed: int) -> None:
        super().__init__()
        self.config, self.seed = config, evaluation_seed(seed, final=False)

    def _on_rollout_end(self) -> None:
        rewards = [end["last_phase_reward"] for end in self.model.ep_info_buffer or ()]
        if rewards:
            self.logger.record("match/last_phase_reward", safe_mean(rewards))
        if self.passed(self.config.eval_every):
            seen = evaluate(
                self.model,
                self.config.env,
                self.config.env_settings,
                self.config.eval_episodes,
                self.seed,
                self.config.eval_deterministic,
            )
            self.logger.record("eval/success_rate", seen.success)
            self.logger.record("eval/last_phase_reward", seen.last_phase_reward)


class Stop(Exception):
    """Ends training between an update and the next rollout.

    Args:
        reason: "success", "time" or "interrupted".
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Boundary(RolloutCallback):
    """Between an update and the next rollout: checkpoints, and the reasons to stop.

    Args:
        config: of the run.
        folder: of the run.
        env: the environments below all wrappers.
        seconds: training time before this session.
        stop: asked whether to save and stop now.
    """

    def __init__(
        self,
        config: TrainConfig,
        folder: Path,
        env: Any,
        seconds: float,
        stop: Callable[[], bool],
    ) -> None:
        super().__init__()
        self.config, self.path, self.env, self.stop = config, folder / "checkpoint", env, stop
        self.before, self.start, self.saved = seconds, time.monotonic(), -1

    @property
    def seconds(self) -> float:
        """Training time, over all sessions."""
        return self.before + time.monotonic() - self.start

    def save(self) -> None:
        """Write a checkpoint, unless the present state is saved already."""
        if self.saved != self.model.num_timesteps:
            content = {
                **snapshot(self.model, self.env),  # type: ignore[arg-type]
                "logs": position(self.path.parent, self.logger),
                "seconds": self.seconds,
            }
            write_checkpoint(self.path, content)
            self.saved = self.model.num_timesteps

    def _on_rollout_start(self) -> None:
        reason = self._reason()
        if reason or (self.model.num_timesteps and self.passed(self.config.checkpoint_every)):
            self.save()
        if reason:
            raise Stop(reason)

    def _reason(self) -> str | None:
        successes = list(self.model.ep_success_buffer or ())
        full = len(successes) == self.config.window
        goal, limit = self.config.stop_success, self.config.max_minutes
        if full and goal is not None and np.mean(successes) >= goal:
            return "success"
        if limit is not None and self.model.num_timesteps and self.seconds >= 60 * limit:
            return "time"
        return "interrupted" if self.stop() else None

    def _on_rollout_end(self) -> None:
        self.logger.record("time/seconds", round(self.seconds, 2), exclude="tensorboard")


class Progress(RolloutCallback):
    """A bar on a terminal, and else a line now and then.

    Args:
        label: which run.
        total: budget in steps.
        bar: whether to draw a bar.
    """

    def __init__(self, label: str, total: int, bar: bool | None = None) -> None:
        super().__init__()
        self.label, self.total = label, total
        self.bar = sys.stderr.isatty() if bar is None else bar
        self.tqdm: tqdm[Any] | None = None

    def _on_training_start(self) -> None:
        self.first = self.model.num_timesteps
        self.start = self.said = time.monotonic()
        self.tqdm = tqdm(
            total=self.total,
            initial=self.first,
            desc=self.label,
            unit=" steps",
            unit_scale=True,
            dynamic_ncols=True,
            disable=not self.bar,
        )

    def _on_rollout_end(self) -> None:
        steps, now = self.model.num_timesteps, time.monotonic()
        wins = self.model.ep_success_buffer
        success = f"{np.mean(wins):.2f}" if wins else "?"
        if self.bar and self.tqdm is not None:
            self.tqdm.set_postfix(success=success, refresh=False)
            self.tqdm.update(min(steps, self.total) - self.tqdm.n)
        elif now - self.said >= LINE_EVERY:
            self.said = now
            speed = (steps - self.first) / (now - self.start)
            left = max(self.total - steps, 0) / speed
            print(
                f"{self.label}: {steps_text(steps)} of {steps_text(self.total)} steps, "
                f"success {success}, {speed:,.0f} steps/s, at most {time_text(left)} left",
                flush=True,
            )

    def close(self) -> None:
        """Take the bar away."""
        if self.tqdm is not None:
            self.tqdm.close()
