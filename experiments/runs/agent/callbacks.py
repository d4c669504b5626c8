"""Callbacks around a rollout: evaluation, progress, checkpoints, and when to stop."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.utils import safe_mean

from rlgates.agents.sequences.updates import SequenceAlgorithm
from rlgates.experiments.configs.agent import AgentConfig
from rlgates.experiments.runs.agent.build import save_agent
from rlgates.experiments.runs.agent.evaluate import evaluate, evaluation_seed
from rlgates.experiments.runs.agent.snapshot import restore_random
from rlgates.experiments.runs.folder import EndReason, RunFolder
from rlgates.experiments.runs.progress import Progress


def rollout_envs(model: Any) -> int:
    """The environments of a rollout, those of all ranks."""
    envs: int = model.ranks.total if isinstance(model, SequenceAlgorithm) else model.n_envs
    return envs


class RolloutCallback(BaseCallback):
    """A callback that is called once per rollout."""

    def _on_step(self) -> bool:
        return True

    def passed(self, every: int | None) -> bool:
        """Whether the last rollout reached a multiple of `every`."""
        steps = self.model.num_timesteps
        rollout = self.model.n_steps * rollout_envs(self.model)  # type: ignore[attr-defined]
        return every is not None and steps // every > max(steps - rollout, 0) // every


class Measure(RolloutCallback):
    """Records the last phase's reward, evaluates on fresh episodes and saves the best agent.

    Args:
        config, seed: of the run.
        path: file of the agent with the highest success; the first one at a tie.
    """

    def __init__(self, config: AgentConfig, seed: int, path: Path) -> None:
        super().__init__()
        self.config, self.path = config, path
        self.seed = evaluation_seed(seed, final=False)
        self.best_success = -1.0
        self.best_step: int | None = None

    def _on_rollout_end(self) -> None:
        rewards = [info["last_phase_reward"] for info in self.model.ep_info_buffer or ()]
        if rewards:
            self.logger.record("rollout/last_phase_reward", safe_mean(rewards))
        if self.passed(self.config.eval_every):
            episodes = self.config.eval_episodes
            evaluation = evaluate(self.model, self.config, episodes, self.seed)
            self.logger.record("eval/success_rate", evaluation.success)
            self.logger.record("eval/last_phase_reward", evaluation.last_phase_reward)
            if evaluation.success > self.best_success:
                self.best_success, self.best_step = evaluation.success, self.model.num_timesteps
                save_agent(self.model, self.path)


class Stop(Exception):
    """Ends training between an update and the next rollout.

    Args:
        ended: the reason; None: the run can be continued.
    """

    def __init__(self, ended: EndReason | None) -> None:
        super().__init__(ended)
        self.ended = ended


class Boundary(RolloutCallback):
    """Saves checkpoints and ends training, between an update and the next rollout.

    All ranks do so together: where one was asked to stop, and else as rank 0 decides.

    Args:
        folder: of the run.
        content: what a checkpoint holds besides the training time; all ranks call it.
        stop: called after each update; the run is saved and stopped if it returns true.
        goal: whether the agent is good enough.
    """

    def __init__(
        self,
        folder: RunFolder,
        content: Callable[[], dict[str, Any]],
        stop: Callable[[], bool],
        goal: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__()
        self.folder, self.content, self.stop, self.goal = folder, content, stop, goal
        self.config = folder.config
        self.seconds_before, self.start = 0.0, time.monotonic()
        self.saved_step, self.saved_at = -1, self.start
        self.saved: dict[str, Any] | None = None  # what this session continues from

    @property
    def seconds(self) -> float:
        """Training time over all sessions."""
        return self.seconds_before + time.monotonic() - self.start

    def save(self) -> None:
        """Write a checkpoint, unless the current state is saved already."""
        if self.saved_step != self.model.num_timesteps:
            self.folder.save({**self.content(), "seconds": self.seconds}, self.logger)
            self.saved_step, self.saved_at = self.model.num_timesteps, time.monotonic()

    def restore(self, saved: dict[str, Any], step: int) -> None:
        """Continue from the content of a checkpoint at `step`."""
        self.seconds_before, self.saved_step = saved["seconds"], step
        self.saved = saved

    def is_due(self) -> bool:
        """Whether a checkpoint is due."""
        return time.monotonic() - self.saved_at >= 60 * self.config.checkpoint_minutes

    def _on_rollout_start(self) -> None:
        if self.saved is not None:
            restore_random(self.model, self.saved)
            self.saved = None
        ended = self._ended()
        stopped = ended is None and self.stop()
        due = self.model.num_timesteps > 0 and self.is_due()
        decisions = self.folder.ranks.gather((ended, stopped, due))
        ended, _, due = decisions[0]
        stopped = ended is None and any(stopped for _, stopped, _ in decisions)
        if ended or stopped or due:
            self.save()
        if ended or stopped:
            raise Stop(ended)

    def _ended(self) -> EndReason | None:
        limit = self.config.max_minutes
        if self.goal():
            return "goal"
        if limit is not None and self.model.num_timesteps and self.seconds >= 60 * limit:
            return "time"
        return None

    def _on_rollout_end(self) -> None:
        self.logger.record("time/seconds", round(self.seconds, 2), exclude="tensorboard")


class RolloutProgress(RolloutCallback):
    """Shows the steps after each rollout, and the success rate or else the mean return.

    Args:
        progress: what shows them.
        seconds_before: training time of earlier sessions.
    """

    def __init__(self, progress: Progress, seconds_before: float) -> None:
        super().__init__()
        self.progress, self.seconds_before = progress, seconds_before

    def _on_training_start(self) -> None:
        self.progress.begin(self.model.num_timesteps, self.seconds_before)

    def _on_rollout_end(self) -> None:
        successes, episodes = self.model.ep_success_buffer, self.model.ep_info_buffer
        details = {"success": "?"}
        if successes:
            details = {"success": f"{np.mean(successes):.2f}"}
        elif episodes:
            details = {"return": f"{np.mean([info['r'] for info in episodes]):.4g}"}
        self.progress.update(self.model.num_timesteps, **details)
