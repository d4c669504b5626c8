"""Do agents of rlgates learn as those of sb3-contrib? The same tasks, settings and seeds."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, ProcessPoolExecutor, wait
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import sb3_contrib
import torch
from matplotlib import rc_context
from matplotlib.figure import Figure
from stable_baselines3.common.callbacks import EvalCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from rlgates.agents import RecurrentPPO
from rlgates.envs.sb3 import make_vec_env as make_own
from rlgates.errors import check_choice, check_seeds, check_size
from rlgates.experiments.configs import LearningConfig, core_of
from rlgates.experiments.exits import FAILED, FINISHED, interrupted
from rlgates.experiments.figures import LOOK, MUTED, Curve, plot_curves, save
from rlgates.experiments.files import alone, check_folder, write_atomically
from rlgates.experiments.manifest import git_state
from rlgates.experiments.ppo_bench import cartpole
from rlgates.experiments.stats import iqm, iqm_interval, median_reached
from rlgates.experiments.stopping import StopRequest
from rlgates.experiments.tables import Row, markdown, merge, read
from rlgates.experiments.text import steps_text, time_text

NAME = "learning"
EVALUATIONS, EPISODES = 10, 20
FAR = 2**20  # seeds of the environments of evaluations: of no training run
UPSTREAM = "sb3-contrib"
POLL = 0.5  # seconds
STOPPING = "finishing the runs under way; once more to stop at once, without them"


class Setting(NamedTuple):
    """A task, and the settings that all agents have.

    Attributes:
        title: for people.
        make: the environments of a seed, `training` or not.
        steps: the budget.
        scale: factor that makes the best return 1 in the picture.
        goal: mean return of the last evaluation that counts as learned.
        options, settings: of the policy and of the algorithm.
    """

    title: str
    make: Callable[[int, bool], VecEnv]
    steps: int
    scale: float
    goal: float
    options: Mapping[str, Any]
    settings: Mapping[str, Any]


def _cartpole(seed: int, training: bool) -> VecEnv:
    env = make_vec_env(cartpole, n_envs=8 if training else 4, seed=seed)
    return VecNormalize(env, training=training, norm_reward=training)


def _tmaze(seed: int, training: bool) -> VecEnv:
    return make_own(
        "rlgates/PassiveTMaze-v0",
        128 if training else 4,
        seed=seed,
        corridor_length=10,
    )


def _minigrid(size: int, seed: int, training: bool) -> VecEnv:
    env_id, n_envs = f"rlgates/MiniGridMemoryS{size}-v0", 32 if training else 4
    return make_vec_env(env_id, n_envs, seed=seed, env_kwargs={"observation": "objects"})


_MINIGRID: dict[str, Any] = {
    "scale": 1.0,
    "goal": 0.9,
    "options": {"net_arch": [64], "lstm_hidden_size": 64},
    "settings": {
        "n_steps": 128,
        "batch_size": 1024,
        "n_epochs": 4,
        "learning_rate": 2e-3,
        "gamma": 0.98,
        "ent_coef": 0.05,
    },
}
TASKS: dict[str, Setting] = {
    # As in sb3-contrib's own test of what its agent learns.
    "cartpole": Setting(
        "CartPole-v1 without velocities",
        _cartpole,
        50_000,
        scale=1 / 500,
        goal=450.0,
        options={"net_arch": {"vf": [64], "pi": []}, "lstm_hidden_size": 64, "ortho_init": False},
        settings={
            "n_steps": 128,
            "batch_size": 256,
            "n_epochs": 10,
            "learning_rate": 7e-4,
            "max_grad_norm": 1.0,
            "gae_lambda": 0.98,
        },
    ),
    "tmaze": Setting(
        "Passive T-Maze, corridor of 10",
        _tmaze,
        500_000,
        scale=1.0,
        goal=0.9,
        options={"net_arch": [64], "lstm_hidden_size": 64},
        settings={
            "n_steps": 32,
            "batch_size": 1024,
            "n_epochs": 4,
            "learning_rate": LinearSchedule(1e-3, 0.0, 1.0),
            "ent_coef": 0.02,
            "vf_coef": 1.0,
            # Once all episodes succeed, advantages that are normalized are noise.
            "normalize_advantage": False,
        },
    ),
    "minigrid7": Setting(
        "MiniGrid-MemoryS7, view of 3 cells", partial(_minigrid, 7), 1_000_000, **_MINIGRID
    ),
    "minigrid9": Setting(
        "MiniGrid-MemoryS9, view of 3 cells", partial(_minigrid, 9), 2_000_000, **_MINIGRID
    ),
}


Run = tuple[str, str, int]  # task, agent and seed


class Learned(NamedTuple):
    """Steps, the mean return at each evaluation, and CPU seconds in all."""

    steps: list[int]
    returns: list[float]
    seconds: float


def learn(task: str, agent: str, seed: int) -> Learned:
    """Train an agent: `UPSTREAM`, or a core of rlgates, see `core_of`. One thread."""
    torch.set_num_threads(1)
    setting = TASKS[task]
    env, fresh = setting.make(seed, True), setting.make(FAR + seed, False)
    options = dict(setting.options)
    if agent != UPSTREAM:
        options["core"], options["core_kwargs"] = core_of(agent)
    kind: Any = sb3_contrib.RecurrentPPO if agent == UPSTREAM else RecurrentPPO
    model = kind(
        "MlpLstmPolicy", env, seed=seed, device="cpu", policy_kwargs=options, **setting.settings
    )
    start = time.process_time()
    with TemporaryDirectory() as folder:
        every = setting.steps // EVALUATIONS // env.num_envs
        look = EvalCallback(
            fresh, n_eval_episodes=EPISODES, eval_freq=every, log_path=folder, verbose=0
        )
        model.learn(setting.steps, callback=look)
        seen = np.load(Path(folder) / "evaluations.npz")
        steps, returns = seen["timesteps"].tolist(), seen["results"].mean(axis=1).tolist()
    return Learned(steps, returns, time.process_time() - start)


def run_learning(config: LearningConfig) -> int:
    """Make the runs that are missing, and draw.

    After Ctrl-C or SIGTERM the runs under way are finished and kept, and the others not begun.

    Returns:
        the exit code: of runs that failed, or were not begun.

    Raises:
        ValueError: an unknown task, core or option; a number below 1; a seed twice; a folder that
            cannot be written to.
    """
    for task in config.tasks:
        check_choice("task", task, TASKS)
    for agent in config.agents:
        if agent != UPSTREAM:
            core_of(agent)
    check_seeds(config.seeds)
    check_size("jobs", config.jobs)
    path = Path(config.results) / f"{NAME}.csv"
    check_folder("results", path.parent)
    there = {(row["title"], row["core"], row["seed"]) for row in read(path)}
    runs = [
        (task, agent, seed)
        for seed in config.seeds
        for task in config.tasks
        for agent in config.agents
        if (task, agent, str(seed)) not in there
    ]
    failed = ended = 0
    with StopRequest(STOPPING).listening() as stop:
        for run, learned in _side_by_side(runs, stop, config.jobs):
            ended += 1
            if isinstance(learned, BaseException):
                print(f"{run} failed: {learned}", flush=True)
                failed += 1
                continue
            print(f"{run}: {learned.returns[-1]:.1f}, {time_text(learned.seconds)}", flush=True)
            with alone(path.parent):
                merge(path, _rows(run, learned))
    with alone(path.parent):
        redraw_learning(path.parent)
    if ended < len(runs):
        print(f"{len(runs) - ended} of {len(runs)} runs were not begun", flush=True)
        return interrupted()
    return FAILED if failed else FINISHED


def _side_by_side(
    runs: Iterable[Run], stop: Callable[[], bool], jobs: int
) -> Iterator[tuple[Run, Learned | BaseException]]:
    """What each run came to, as they end; after `stop` no more are begun."""
    waiting, busy = iter(runs), dict[Future[Learned], Run]()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context, initializer=_follow) as pool:
        while True:
            while len(busy) < jobs and not stop() and (run := next(waiting, None)):
                try:
                    busy[pool.submit(learn, *run)] = run
                except BrokenExecutor as error:  # a process died, and the pool with it
                    yield run, error
            if not busy:
                return
            for future in wait(busy, POLL, FIRST_COMPLETED).done:
                yield busy.pop(future), future.exception() or future.result()


def _follow() -> None:
    """Leave Ctrl-C to the first process, which lets the runs finish, and end where it is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if first := multiprocessing.parent_process():

        def end() -> None:
            first.join()
            os._exit(1)

        threading.Thread(target=end, daemon=True).start()


def _rows(run: Run, learned: Learned) -> list[Row]:
    commit = (git_state() or {"commit": ""})["commit"]
    task, agent, seed = run
    return [
        {
            "title": task,
            "core": agent,
            "seed": str(seed),
            "steps": str(steps),
            "mean_return": f"{value:.3f}",
            "seconds": f"{learned.seconds:.0f}",
            "commit": commit,
        }
        for steps, value in zip(learned.steps, learned.returns, strict=True)
    ]


def redraw_learning(results: Path) -> list[Path]:
    """Write table and picture again from the CSV file; what was written."""
    rows = sorted(read(results / f"{NAME}.csv"), key=_place)
    if not rows:
        return []
    write_atomically(results / f"{NAME}.md", table(rows).encode())
    _draw(rows, results / f"{NAME}.png")
    return [results / f"{NAME}.md", results / f"{NAME}.png"]


def _place(row: Row) -> tuple[int, int]:
    """Where a run stands, so that an agent has the same colour in all panels."""
    agents = (*LearningConfig.agents, row["core"])
    return list(TASKS).index(row["title"]), agents.index(row["core"])


def _runs(rows: list[Row], task: str, agent: str) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        if (row["title"], row["core"]) == (task, agent):
            found.setdefault(row["seed"], []).append(row)
    return found


def table(rows: list[Row]) -> str:
    """A line for each task and agent."""
    heads = ("task", "agent", "return at the end", "learned", "first there", "CPU time a run")
    lines = []
    for task, agent in dict.fromkeys((row["title"], row["core"]) for row in rows):
        runs = list(_runs(rows, task, agent).values())
        ends = [float(run[-1]["mean_return"]) for run in runs]
        good = sum(end >= TASKS[task].goal for end in ends)
        first, count = median_reached([_reached(run, TASKS[task].goal) for run in runs])
        when = "never" if first is None else f"{steps_text(first)} ({count})"
        seconds = float(np.median([float(run[-1]["seconds"]) for run in runs]))
        end = f"{iqm(ends):.3g}"
        if len(ends) > 1:
            end += " [{:.3g}, {:.3g}]".format(*iqm_interval(ends))
        learned = f"{good} of {len(ends)}"
        lines.append([TASKS[task].title, f"`{agent}`", end, learned, when, time_text(seconds)])
    seeds = sorted({int(row["seed"]) for row in rows})
    commits = ", ".join(dict.fromkeys(row["commit"][:7] for row in rows))
    goals = ", ".join(f"{TASKS[task].goal:g}" for task in dict.fromkeys(r["title"] for r in rows))
    return markdown(heads, lines) + (
        f"\nMean return of {EPISODES} fresh episodes after the last update: interquartile mean "
        f"over seeds {seeds[0]} to {seeds[-1]}, or as many as there are, with its 95 % bootstrap "
        f"interval; learned: how many were at {goals} or above, task by task. First there: median "
        "of the steps at which an evaluation first reached it, and how many did. CPU time: median, "
        f"one thread a run, evaluations included. `rlgates compare --jobs 2`, commit {commits}.\n"
    )


def _reached(run: list[Row], goal: float) -> float | None:
    """Steps of the first evaluation that reached the goal."""
    return next((float(row["steps"]) for row in run if float(row["mean_return"]) >= goal), None)


def _draw(rows: list[Row], path: Path) -> None:
    tasks, agents = (list(dict.fromkeys(row[name] for row in rows)) for name in ("title", "core"))
    lines, columns = -(-len(tasks) // 2), min(2, len(tasks))
    with rc_context(LOOK):
        figure = Figure(figsize=(5.6 * columns, 3.4 * lines + 0.4), layout="constrained")
        panels = figure.subplots(lines, columns, squeeze=False).ravel()
        for axes, task in zip(panels, tasks, strict=False):
            setting, curves = TASKS[task], []
            for agent in agents:
                for seed, run in _runs(rows, task, agent).items():
                    steps = np.array([float(row["steps"]) for row in run])
                    returns = setting.scale * np.array([float(row["mean_return"]) for row in run])
                    curves.append(Curve(agent, int(seed), steps, returns))
            plot_curves(axes, curves, None, agents)
            axes.axhline(setting.scale * setting.goal, color=MUTED, lw=0.8, ls=(0, (2, 2)))
            axes.set_title(setting.title, loc="left")
        for axes in panels[len(tasks) :]:
            axes.set_visible(False)
        for axes in panels[::columns]:
            axes.set_ylabel(f"of the best return, {EPISODES} episodes")
        named: dict[str, Any] = {}
        for axes in panels:
            handles, labels = axes.get_legend_handles_labels()
            named |= dict(zip(labels, handles, strict=True))
        figure.legend(
            list(named.values()), list(named), loc="outside lower center", ncols=len(named)
        )
        save(figure, path)
