"""How long agents on a GPU, with environments there, take until they remember."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from stable_baselines3.common.callbacks import BaseCallback

from rlgates.agents.compilation import CompileMode
from rlgates.agents.sequences.tensor_vec_env import TensorVecEnv
from rlgates.envs.torch import make_torch_env
from rlgates.errors import TrainingDiverged
from rlgates.experiments.bench.children import Entry
from rlgates.experiments.bench.gpu_agents import training_in
from rlgates.experiments.configs.agent import SUCCESS_THRESHOLD, AgentConfig, match
from rlgates.experiments.configs.base import supported_options
from rlgates.experiments.configs.presets import PRESETS
from rlgates.experiments.runs.agent.build import make_agent
from rlgates.experiments.runs.folder import EndReason

STUDY = PRESETS["study30"]
SEEDS = (10, 11, 12, 13, 14)
PRECISION = "tf32"
POINTS = 100  # of a learning curve


class Lesson(NamedTuple):
    """What agents learn, at which sizes; all else is as in the study of Passive Match.

    Attributes:
        num_envs: environments of an agent; a rollout is an episode in each.
        distractor_steps: between the colour to remember and the choice.
        units: of the core.
        total_steps: budget of a training, over all environments.
    """

    num_envs: int
    distractor_steps: int
    units: int = STUDY.hidden_size
    total_steps: int = 10**9

    def config(self, core: str, device: torch.device) -> AgentConfig:
        """The settings of a training, in environments whose rewards have the study's scale."""
        spec: Any = STUDY.make_spec()
        choice_reward = STUDY.reward_scale * spec.choice_reward
        return replace(
            STUDY,
            core=core,
            core_options=supported_options(STUDY.core_options, core),
            env_settings={**match(self.distractor_steps), "choice_reward": choice_reward},
            reward_scale=1.0,
            hidden_size=self.units,
            n_envs=self.num_envs,
            window=max(STUDY.window, self.num_envs),
            total_steps=self.total_steps,
            device="cpu" if device.type == "cpu" else "cuda",
        )


class Course(BaseCallback):
    """Notes what an agent has learned after each rollout, and ends training.

    Args:
        goal: success rate at which training ends.
        until: value of `time.monotonic` after which it ends.

    Attributes:
        steps, seconds, success: at the end of each rollout: steps in all environments, time since
            the first rollout began, and success rate of the last training episodes.
        reached: index of the first rollout with a success rate of `SUCCESS_THRESHOLD` over as
            many episodes as the rate may have; None: there was none.
        ended: why training ended.
    """

    def __init__(self, goal: float, until: float) -> None:
        super().__init__()
        self.goal, self.until = goal, until
        self.begin = 0.0
        self.steps: list[int] = []
        self.seconds: list[float] = []
        self.success: list[float] = []
        self.reached: int | None = None
        self.ended: EndReason | None = None

    def _on_training_start(self) -> None:
        self.begin = time.monotonic()

    def _on_step(self) -> bool:
        return self.ended is None

    def _on_rollout_end(self) -> None:
        # The agent has looked at the rewards by now, so that the device has made all steps.
        now, successes = time.monotonic(), self.model.ep_success_buffer
        assert successes is not None
        rate = float(np.mean(successes)) if successes else 0.0
        self.steps.append(self.model.num_timesteps)
        self.seconds.append(now - self.begin)
        self.success.append(rate)
        is_full = len(successes) == successes.maxlen
        if self.reached is None and is_full and rate >= SUCCESS_THRESHOLD:
            self.reached = len(self.steps) - 1
        if is_full and rate >= self.goal:
            self.ended = "goal"
        elif now >= self.until:
            self.ended = "time"

    def result(self) -> Entry:
        """What the training reached.

        Returns:
            `steps_to_0.9` and `seconds_to_0.9` (None: never), the last success, steps and seconds,
            the rate of a median iteration (None: there is no whole one), and the curve.
        """
        reached, rate = self.reached, None
        if len(self.steps) > 1:
            rates = np.diff(self.steps) / np.diff(self.seconds) / 1e6
            rate = float(np.median(rates))
        number = min(POINTS, len(self.steps))
        kept = np.linspace(0, len(self.steps) - 1, number).round().astype(int)
        return {
            f"steps_to_{SUCCESS_THRESHOLD}": None if reached is None else self.steps[reached],
            f"seconds_to_{SUCCESS_THRESHOLD}": None if reached is None else self.seconds[reached],
            "success": self.success[-1],
            "steps": self.steps[-1],
            "seconds": self.seconds[-1],
            "million_steps_per_second": rate,
            "curve": {
                "steps": [self.steps[k] for k in kept],
                "seconds": [round(self.seconds[k], 2) for k in kept],
                "success": [round(self.success[k], 4) for k in kept],
            },
        }


def learning(
    core: str,
    seed: int,
    lesson: Lesson,
    compile: bool | CompileMode,
    device: torch.device,
    folder: str,
    until: float,
) -> Entry:
    """Train an agent until it remembers.

    Args:
        core, seed: of the agent; the environments have the same seed.
        lesson: what it learns.
        compile: as in `rlgates.RecurrentPPO`.
        device: of the agent and its environments.
        folder: for event files, in a folder of its own.
        until: value of `time.monotonic`, which all processes share; training ends after the first
            rollout that ends later.

    Returns:
        `Course.result`, why training ended, and `first_s`: the seconds from the call to the end of
        the first rollout, most of them for compilation; on a GPU `mib`, the most memory in use.

    Raises:
        TrainingDiverged: in the first rollout.
    """
    begin = time.monotonic()
    config = lesson.config(core, device)
    batch = make_torch_env(
        config.env, config.n_envs, seed=seed, device=device, **config.env_settings
    )
    model = make_agent(config, TensorVecEnv(batch), seed, compile=compile, tensorboard_log=folder)
    assert config.stop_success is not None
    course = Course(config.stop_success, until)
    ended: EndReason = "budget"
    try:
        with training_in(PRECISION, device):
            model.learn(config.total_steps, course, log_interval=1, tb_log_name=f"{core}-{seed}")
    except TrainingDiverged:
        if not course.steps:
            raise
        ended = "diverged"
    first_s = course.begin + course.seconds[0] - begin
    entry = {"ended": course.ended or ended, "first_s": first_s, **course.result()}
    if device.type == "cuda":
        entry["mib"] = torch.cuda.max_memory_allocated() / 2**20
    return entry
