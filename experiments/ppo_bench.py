"""How many frames a second RecurrentPPO makes, ours and sb3-contrib's, in turn in one process."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import sb3_contrib
from gymnasium import spaces
from gymnasium.wrappers import FlattenObservation, TransformObservation
from stable_baselines3.common.env_util import make_vec_env

from rlgates.agents import RecurrentPPO
from rlgates.cores import check_options
from rlgates.errors import check_choice, check_size
from rlgates.experiments.bench_configs import PPOBenchConfig
from rlgates.experiments.bench_tables import notes, place_words
from rlgates.experiments.files import read_json, write_atomically
from rlgates.experiments.pairs import (
    check_threads,
    circumstances,
    median_interval,
    short,
    threads_set,
    write_results,
)
from rlgates.experiments.ppo_profile import profile_table, profiled
from rlgates.experiments.tables import markdown

NAME = "ppo_speed"
N_ENVS = 8
SETTINGS: dict[str, Any] = {"n_steps": 128, "batch_size": 128, "n_epochs": 10}
UNITS = 128
ONE_CORE: dict[str, Any] = {"shared_lstm": True, "enable_critic_lstm": False}


class Agent(NamedTuple):
    """A row of the comparison.

    Attributes:
        ours: whether it is of rlgates.
        options: of its policy.
        rival: the agent with the same networks that it is compared with.
        chunks: that the rollout of an environment is cut into, for ours alone.
    """

    ours: bool
    options: dict[str, Any]
    rival: str
    chunks: int = 1


TWO, ONE = "sb3-contrib, two cores", "sb3-contrib, one core"
PLAIN: dict[str, Any] = {"core_kwargs": {"backend": "plain"}}
AGENTS: dict[str, Agent] = {
    TWO: Agent(False, {}, TWO),
    "rlgates, two cores": Agent(True, {}, TWO),
    "rlgates, two cores, chunks of 32": Agent(True, {}, TWO, chunks=4),
    "rlgates, two cores, plain loop": Agent(True, PLAIN, TWO),
    ONE: Agent(False, ONE_CORE, ONE),
    "rlgates, one core": Agent(True, ONE_CORE, ONE),
    "rlgates, one core, chunks of 32": Agent(True, ONE_CORE, ONE, chunks=4),
    "rlgates, one core, plain loop": Agent(True, {**ONE_CORE, **PLAIN}, ONE),
}


def cartpole() -> gymnasium.Env[Any, Any]:
    """CartPole-v1 whose agent sees the two positions and not the two velocities."""
    env = gymnasium.make("CartPole-v1")
    whole = env.observation_space
    assert isinstance(whole, spaces.Box)
    seen = spaces.Box(whole.low[[0, 2]], whole.high[[0, 2]])
    return TransformObservation(env, lambda obs: obs[[0, 2]], seen)


def minigrid() -> gymnasium.Env[Any, Any]:
    """MiniGrid-MemoryS7-v0 with its view of 7 x 7 x 3 numbers as a vector."""
    picture: Any = importlib.import_module("minigrid.wrappers").ImgObsWrapper
    return FlattenObservation(picture(gymnasium.make("MiniGrid-MemoryS7-v0")))


class Env(NamedTuple):
    """An environment: its name for people, and what makes one."""

    title: str
    make: Callable[[], gymnasium.Env[Any, Any]]


ENVS: dict[str, Env] = {
    "cartpole": Env("CartPole-v1 without velocities", cartpole),
    "minigrid": Env("MiniGrid-MemoryS7-v0", minigrid),
}


class Timed:
    """An agent whose rollouts, updates and steps of the optimizer are counted."""

    def __init__(self, title: str, env: str, config: PPOBenchConfig, settings: Any) -> None:
        agent = AGENTS[title]
        options = {"lstm_hidden_size": UNITS, **agent.options}
        if agent.ours:
            options["core"] = config.core
        if agent.chunks > 1:
            settings = {**settings, "chunk_len": settings["n_steps"] // agent.chunks}
        kind: Any = RecurrentPPO if agent.ours else sb3_contrib.RecurrentPPO
        vec = make_vec_env(ENVS[env].make, n_envs=N_ENVS, seed=config.seed)
        self.model = kind(
            "MlpLstmPolicy",
            vec,
            policy_kwargs=options,
            seed=config.seed,
            device="cpu",
            **settings,
        )
        self.seconds = {"rollout": 0.0, "train": 0.0}
        self.updates = 0
        self.model.collect_rollouts = self._timed("rollout", self.model.collect_rollouts)
        self.model.train = self._timed("train", self.model.train)
        self.model.policy.optimizer.register_step_post_hook(self._count)
        self.frames = self.model.n_steps * N_ENVS
        self.rows: list[tuple[float, ...]] = []

    def _timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            result = function(*args, **kwargs)
            self.seconds[part] += time.perf_counter() - start
            return result

        return run

    def _count(self, *_: Any) -> None:
        self.updates += 1

    def iterate(self) -> None:
        """One rollout and its updates; a row of seconds: all of it, rollout, train."""
        self.seconds.update(rollout=0.0, train=0.0)
        self.updates = 0
        start = time.perf_counter()
        self.model.learn(self.frames, reset_num_timesteps=False)
        self.rows.append((time.perf_counter() - start, *self.seconds.values()))

    def profile(self, iterations: int) -> dict[str, float] | None:
        """The share of each part of ours, over further iterations; None for the other's."""
        if not isinstance(self.model, RecurrentPPO):
            return None
        with profiled(self.model) as clock:
            self.model.learn(iterations * self.frames, reset_num_timesteps=False)
        whole = sum(clock.seconds.values())
        return {part: short(seconds / whole) for part, seconds in clock.seconds.items()}


def bench_ppo(config: PPOBenchConfig) -> Path:
    """Let all agents learn in turn, iteration by iteration, and write `ppo_speed.json`.

    Raises:
        ValueError: an unknown environment or core, or a number out of range.
    """
    settings = SETTINGS
    if config.quick:
        config = replace(config, iterations=min(config.iterations, 2), results="runs/quick")
        settings = {**SETTINGS, "n_epochs": 1}
    check_size("iterations", config.iterations)
    check_threads([config.threads])
    check_options(config.core, {})
    for env in config.envs:
        check_choice("environment", env, ENVS)
    path = Path(config.results) / f"{NAME}.json"
    content: dict[str, Any] = read_json(path) or {}
    for env in config.envs:
        facts = {**settings, "n_envs": N_ENVS, "units": UNITS, "core": config.core}
        run = circumstances(threads=config.threads, iterations=config.iterations, **facts)
        try:
            with threads_set(config.threads):
                content[env] = {"run": run, "agents": in_turn(env, config, settings)}
        except ImportError as error:
            print(f"{ENVS[env].title} is left out: {error}", flush=True)
            continue
        write_results(path, content)
    redraw_ppo(path.parent)
    return path


def in_turn(env: str, config: PPOBenchConfig, settings: Any) -> dict[str, Any]:
    """All agents on one environment: what each took."""
    agents = {title: Timed(title, env, config, settings) for title in AGENTS}
    for iteration in range(config.iterations + 1):
        for title, agent in agents.items():
            agent.iterate()
            if iteration == 0:
                agent.rows.clear()  # caches and lazy initialisation
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
            "times": _ratio(agents[AGENTS[title].rival], agent),
            "times_two": _ratio(agents[TWO], agent),
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


def redraw_ppo(results: Path) -> list[Path]:
    """Write the table again; what was written."""
    content = read_json(results / f"{NAME}.json")
    if not content:
        return []
    write_atomically(results / f"{NAME}.md", table(content).encode())
    return [results / f"{NAME}.md"]


def table(content: dict[str, Any]) -> str:
    """A line for each environment and agent."""
    lines = []
    for env, found in content.items():
        for title, row in found["agents"].items():
            like, two = (
                f"{middle:.1f} [{low:.1f}, {high:.1f}]"
                for middle, low, high in (row["times"], row["times_two"])
            )
            cells = (
                *(ENVS[env].title, title, f"{row['fps']:,.0f}"),
                "" if AGENTS[title].rival == title else like,
                "" if AGENTS[title].rival in (title, TWO) else two,
                *(f"{row['rollout']:.0%}", f"{row['train']:.0%}"),
                "" if row["reward"] is None else f"{row['reward']:.3g}",
            )
            lines.append(cells)
    shares = [
        (ENVS[env].title, title, row["profile"])
        for env, found in content.items()
        for title, row in found["agents"].items()
        if row.get("profile")
    ]
    heads = (
        *("environment", "agent", "frames a second", "times sb3-contrib, as many cores"),
        *("times sb3-contrib, two cores", "rollout", "training", "last rewards"),
    )
    return f"{markdown(heads, lines)}\n{profile_table(shares)}\n{_how(content)}\n"


def _how(content: dict[str, Any]) -> str:
    """What is equal, what differs, and where it was measured."""
    runs = [found["run"] for found in content.values()]
    rows = [row for found in content.values() for row in found["agents"].values()]
    updates = ", ".join(map(str, sorted({row["updates"] for row in rows})))
    threads = ", ".join(dict.fromkeys(place_words(str(run["threads"])) for run in runs))
    first = runs[0]
    size = first["batch_size"]
    return (
        "All agents in turn, iteration by iteration, in one process: medians of "
        f"{first['iterations']} iterations, ratios with their 95 % interval. Rollout, training: "
        "shares of the time; its parts, below, over further iterations, each without those inside "
        "it. Last rewards: mean of the last 100 training episodes. "
        f"`MlpLstmPolicy`, `{first['core']}` of {first['units']} units, {first['n_envs']} "
        f"environments, n_steps {first['n_steps']}, batch_size {size}, {first['n_epochs']} epochs: "
        f"{updates} updates of {size} steps an iteration for each agent. sb3-contrib takes its "
        "batches from the rollouts in a row, splits them at episode starts and pads the pieces; "
        "here a batch is the rollout of one environment, as it is, or as many chunks of 32 steps "
        "(`chunk_len=32`), beyond which no gradient goes back. "
        f"{threads}; {notes(runs, 'ppo')}"
    )
