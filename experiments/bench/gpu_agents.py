"""Agents and environments on a GPU: whole iterations of PPO, and steps of environments alone."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from stable_baselines3.common.callbacks import BaseCallback

from rlgates.agents import RecurrentPPO
from rlgates.envs.engine.actions import random_actions
from rlgates.envs.torch import make_torch_env
from rlgates.experiments.bench.children import Entry
from rlgates.experiments.bench.gpu_cores import arithmetic, milliseconds

ENV, PHASES = "rlgates/PassiveMatch-v0", (15, 30, 15)
EPOCHS = 4
WARM_UP = 3  # iterations; the first ones compile, record CUDA graphs and fill caches
CHUNK = 16  # steps of environments for one look at the clock


class Training(NamedTuple):
    """The sizes of a training.

    Attributes:
        num_envs, steps: of a rollout.
        units: of the core.
        iterations: how many are timed.
        minibatches: of an epoch.
    """

    num_envs: int
    steps: int
    units: int
    iterations: int
    minibatches: int = 4


class Clock(BaseCallback):
    """The time at the begin and end of rollouts, and at the end of training."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device
        self.times: list[float] = []

    def _on_step(self) -> bool:
        return True

    def _look(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        self.times.append(time.perf_counter())

    _on_rollout_start = _on_rollout_end = _on_training_end = _look


@contextmanager
def training_in(precision: str, device: torch.device) -> Iterator[None]:
    """Train in float32, tf32 or bfloat16; that an agent is not compiled is an error."""
    # The policy enters autocast by itself: around `learn`, casts of weights would be kept.
    with arithmetic(precision, device), warnings.catch_warnings():
        # What is timed would be something else.
        warnings.filterwarnings("error", "compile=.* has no effect")
        yield


def end_to_end(
    compile: Any, precision: str, device: torch.device, sizes: Training
) -> Callable[[], Entry]:
    """Warm up an agent on environments on the device, and return what times its iterations.

    The seconds to the first iteration are those of a process that shares the device with the
    warm-up of others.
    """
    begin = time.perf_counter()
    frames = sizes.num_envs * sizes.steps
    explore, distractor, reward = PHASES
    env: Any = make_torch_env(
        ENV,
        sizes.num_envs,
        seed=0,
        device=device,
        explore_steps=explore,
        distractor_steps=distractor,
        reward_steps=reward,
    )
    model = RecurrentPPO(
        "CnnLstmPolicy",
        env,
        n_steps=sizes.steps,
        batch_size=frames // sizes.minibatches,
        n_epochs=EPOCHS,
        learning_rate=1e-3,
        gamma=0.95,
        ent_coef=0.2,
        vf_coef=1.0,
        device=device,
        seed=0,
        compile=compile,
        policy_kwargs={
            "core": "ur_lstm",
            "lstm_hidden_size": sizes.units,
            "net_arch": [64],
            "shared_lstm": True,
            "enable_critic_lstm": False,
            "shared_gradient": "both",
            "amp": "bf16" if precision == "bf16" else None,
        },
    )

    def learn(iterations: int, first: bool = False) -> list[float]:
        clock = Clock(device)
        with training_in(precision, device):
            model.learn(iterations * frames, callback=clock, reset_num_timesteps=first)
        return clock.times

    first_s = learn(WARM_UP, first=True)[2] - begin

    def measure() -> Entry:
        # Each call of `learn` records its graphs.
        times = learn(WARM_UP + sizes.iterations)[2 * WARM_UP :]
        starts, rollouts_end, ends = (np.array(times[k:][::2]) for k in range(3))
        starts = starts[: len(rollouts_end)]
        rates = frames / (ends - starts) / 1e6
        entry = {
            "million_steps_per_second": float(np.median(rates)),
            "range": [float(rates.min()), float(rates.max())],
            "rollout_ms": 1e3 * float(np.median(rollouts_end - starts)),
            "update_ms": 1e3 * float(np.median(ends - rollouts_end)),
            "first_s": first_s,
        }
        if device.type == "cuda":
            entry["mib"] = torch.cuda.max_memory_allocated() / 2**20
        return entry

    return measure


def environment(env: str, num_envs: int, device: torch.device, seconds: float = 0.5) -> Entry:
    """Million steps per second of a torch environment, with random actions and resets."""
    batch = make_torch_env(env, num_envs, seed=0, device=device)
    batch.reset()
    sampled = random_actions(batch.spec.action_space, np.random.default_rng(0), CHUNK, num_envs)
    actions = torch.as_tensor(sampled, device=device)

    def play() -> None:
        for action in actions:
            batch.step(action)

    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    play()
    rates: list[float] = []
    begin = time.monotonic()
    while not rates or time.monotonic() - begin < seconds:
        rates.append(CHUNK * num_envs / milliseconds(play, device) / 1e3)
    entry = {"million_steps_per_second": float(np.median(rates)), "range": [min(rates), max(rates)]}
    if device.type == "cuda":
        entry["mib"] = torch.cuda.max_memory_allocated() / 2**20
    return entry
