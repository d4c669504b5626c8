"""Time RecurrentPPO of rlgates and of sb3-contrib in frames per second, in one process."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import gymnasium
import numpy as np
import sb3_contrib
from gymnasium.wrappers import FlattenObservation
from stable_baselines3.common.env_util import make_vec_env
from torch import Tensor

from rlgates.agents import RecurrentPPO
from rlgates.errors import check_choice, check_seeds, check_size
from rlgates.experiments.bench.configs import PPOBenchConfig
from rlgates.experiments.bench.pairs import (
    check_threads,
    circumstances,
    median_interval,
    short,
    write_results,
)
from rlgates.experiments.configs.devices import threads_set
from rlgates.experiments.configs.gym import select_observations
from rlgates.experiments.report.outputs import OUTPUTS, redraw_output
from rlgates.experiments.report.timings.ppo_speed import (
    ENV_TITLES,
    PHASES,
    REFERENCES,
    SB3_ONE_CORE,
    SB3_TWO_CORES,
)
from rlgates.experiments.runs.files import read_json
from rlgates.kernels.cpu import layer
from rlgates.registry import check_options

N_ENVS = 8
SETTINGS: dict[str, Any] = {"n_steps": 128, "batch_size": 128, "n_epochs": 10}
UNITS = 128
ONE_CORE: dict[str, Any] = {"shared_lstm": True, "enable_critic_lstm": False}


class Agent(NamedTuple):
    """An agent of the comparison.

    Attributes:
        is_rlgates: whether it is of rlgates.
        options: of its policy.
        chunks: number of chunks of an environment's rollout; rlgates only.
    """

    is_rlgates: bool
    options: dict[str, Any]
    chunks: int = 1


PLAIN: dict[str, Any] = {"core_kwargs": {"backend": "plain"}}
AGENTS: dict[str, Agent] = {
    SB3_TWO_CORES: Agent(False, {}),
    "rlgates, two cores": Agent(True, {}),
    "rlgates, two cores, chunks of 32": Agent(True, {}, chunks=4),
    "rlgates, two cores, plain loop": Agent(True, PLAIN),
    SB3_ONE_CORE: Agent(False, ONE_CORE),
    "rlgates, one core": Agent(True, ONE_CORE),
    "rlgates, one core, chunks of 32": Agent(True, ONE_CORE, chunks=4),
    "rlgates, one core, plain loop": Agent(True, {**ONE_CORE, **PLAIN}),
}


def cartpole() -> gymnasium.Env[Any, Any]:
    """CartPole-v1 with the two positions as observation, without the velocities."""
    return select_observations(gymnasium.make("CartPole-v1"), (0, 2))


def minigrid() -> gymnasium.Env[Any, Any]:
    """MiniGrid-MemoryS7-v0 with its 7 x 7 x 3 view as a vector."""
    image_only: Any = importlib.import_module("minigrid.wrappers").ImgObsWrapper
    return FlattenObservation(image_only(gymnasium.make("MiniGrid-MemoryS7-v0")))


ENVS: dict[str, Callable[[], gymnasium.Env[Any, Any]]] = {
    "cartpole": cartpole,
    "minigrid": minigrid,
}


class Clock:
    """Seconds of each phase; the clock of a phase pauses while one inside it runs.

    Args:
        phases: their names.

    Attributes:
        seconds: of each phase.
    """

    def __init__(self, phases: Iterable[str]) -> None:
        self.seconds = dict.fromkeys(phases, 0.0)
        self._running: list[str] = []
        self._since = 0.0

    def _switch(self) -> None:
        now = time.perf_counter()
        if self._running:
            self.seconds[self._running[-1]] += now - self._since
        self._since = now

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a function so that its time counts for a phase."""

        def run(*args: Any, **kwargs: Any) -> Any:
            # Core steps during the rollout belong to acting.
            if part == "cores" and "train" not in self._running:
                return function(*args, **kwargs)
            self._switch()
            self._running.append(part)
            try:
                return function(*args, **kwargs)
            finally:
                self._switch()
                self._running.pop()

        return run


@contextmanager
def profiled(model: RecurrentPPO) -> Iterator[Clock]:
    """Clock the phases of a model while it learns; only one at a time in a process."""
    clock = Clock(PHASES)
    places: list[tuple[str, Any, str]] = [
        ("environments", model.env, "step"),
        ("act", model.policy, "act"),
        ("rollout", model, "collect_rollouts"),
        ("cores", layer, "forward"),
        ("cores", layer, "gradients"),
        ("loss", model, "_loss"),
        ("step", model, "_compute_gradients"),
        ("optimizer", model, "_step_optimizer"),
        ("train", model, "train"),
    ]
    with ExitStack() as stack:
        for part, owner, name in places:
            stack.enter_context(patch.object(owner, name, clock.timed(part, getattr(owner, name))))
        yield clock


class Timed:
    """An agent with timed rollouts and updates, and counted optimizer steps."""

    def __init__(self, title: str, env: str, config: PPOBenchConfig, settings: Any) -> None:
        agent = AGENTS[title]
        options = {"lstm_hidden_size": UNITS, **agent.options}
        if agent.is_rlgates:
            options["core"] = config.core
        if agent.chunks > 1:
            settings = {**settings, "chunk_len": settings["n_steps"] // agent.chunks}
        kind: Any = RecurrentPPO if agent.is_rlgates else sb3_contrib.RecurrentPPO
        vec = make_vec_env(ENVS[env], n_envs=N_ENVS, seed=config.seed)
        self.model = kind(
            "MlpLstmPolicy",
            vec,
            policy_kwargs=options,
            seed=config.seed,
            device="cpu",
            **settings,
        )
        self.clock = Clock(("rollout", "train"))
        self.updates = 0
        self.model.collect_rollouts = self.clock.timed("rollout", self.model.collect_rollouts)
        self.model.train = self.clock.timed("train", self.model.train)
        self._count_updates()
        self.frames = self.model.n_steps * N_ENVS
        self.rows: list[tuple[float, ...]] = []

    def _count_updates(self) -> None:
        def count(*_: Any) -> None:
            self.updates += 1

        if not isinstance(self.model, RecurrentPPO):
            self.model.policy.optimizer.register_step_post_hook(count)
            return
        step = self.model._step_optimizer

        def counted() -> Tensor:  # a hook of the optimizer would keep its steps in torch
            count()
            return step()

        self.model._step_optimizer = counted  # type: ignore[method-assign]

    def iterate(self) -> None:
        """Make a rollout and its updates; record the seconds of both, the rollout, the updates."""
        self.clock.seconds.update(rollout=0.0, train=0.0)
        self.updates = 0
        start = time.perf_counter()
        self.model.learn(self.frames, reset_num_timesteps=False)
        self.rows.append((time.perf_counter() - start, *self.clock.seconds.values()))

    def profile(self, iterations: int) -> dict[str, float] | None:
        """The time share of each part over further iterations; None for sb3-contrib."""
        if not isinstance(self.model, RecurrentPPO):
            return None
        with profiled(self.model) as clock:
            self.model.learn(iterations * self.frames, reset_num_timesteps=False)
        whole = sum(clock.seconds.values())
        return {part: short(seconds / whole) for part, seconds in clock.seconds.items()}


def bench_ppo(config: PPOBenchConfig) -> Path:
    """Time all agents, interleaved by iteration, and write `ppo_speed.json`.

    Raises:
        ValueError: an unknown environment or core, or a number out of range.
    """
    settings = SETTINGS
    if config.quick:
        config = replace(config, iterations=min(config.iterations, 2), results="runs/quick")
        settings = {**SETTINGS, "n_epochs": 1}
    check_size("iterations", config.iterations)
    check_seeds([config.seed])
    check_threads([config.threads])
    check_options(config.core, {})
    for env in config.envs:
        check_choice("environment", env, ENVS)
    (path,) = OUTPUTS["ppo_speed"].source_paths(Path(config.results))
    content: dict[str, Any] = read_json(path) or {}
    for env in config.envs:
        sizes = {"n_envs": N_ENVS, "units": UNITS}
        facts = {**settings, **sizes, "core": config.core, "seed": config.seed}
        run = circumstances(threads=config.threads, iterations=config.iterations, **facts)
        try:
            with threads_set(config.threads):
                content[env] = {"run": run, "agents": in_turn(env, config, settings)}
        except ImportError as error:
            print(f"{ENV_TITLES[env]} is left out: {error}", flush=True)
            continue
        write_results(path, content)
    redraw_output("ppo_speed", path.parent)
    return path


def in_turn(env: str, config: PPOBenchConfig, settings: Any) -> dict[str, Any]:
    """All agents on one environment: what each took."""
    agents = {title: Timed(title, env, config, settings) for title in AGENTS}
    for iteration in range(config.iterations + 1):
        for title, agent in agents.items():
            agent.iterate()
            if iteration == 0:
                agent.rows.clear()  # caches and lazy initialization
            else:
                fps = agent.frames / agent.rows[-1][0]
                print(f"{env} {iteration:>3} {title:<32} {fps:8.0f} frames/s", flush=True)
    results = {}
    for title, agent in agents.items():
        whole, rollout, train = np.array(agent.rows).T
        rewards = [episode["r"] for episode in agent.model.ep_info_buffer]
        results[title] = {
            "fps": short(agent.frames / float(np.median(whole))),
            "most": short(agent.frames / float(whole.min())),
            "times": _ratio(agents[REFERENCES[title]], agent),
            "times_two": _ratio(agents[SB3_TWO_CORES], agent),
            "rollout": short(float(np.median(rollout / whole))),
            "train": short(float(np.median(train / whole))),
            "updates": agent.updates,
            "reward": short(float(np.mean(rewards))) if rewards else None,
            "profile": agent.profile(config.iterations),
        }
    for agent in agents.values():
        agent.model.env.close()
    return results


def _ratio(rival: Timed, agent: Timed) -> list[float]:
    """How many times as fast an agent is as its rival: median over the iterations, interval."""
    times = np.array(rival.rows)[:, 0] / np.array(agent.rows)[:, 0]
    return [short(number) for number in (float(np.median(times)), *median_interval(times))]
