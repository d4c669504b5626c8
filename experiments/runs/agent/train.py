"""Train an agent: one run of a core in an environment from one seed."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

import numpy as np

from rlgates.agents import GateCallback
from rlgates.agents.ranks import Ranks
from rlgates.errors import TrainingDiverged
from rlgates.experiments.configs.agent import SUCCESS_THRESHOLD, AgentConfig
from rlgates.experiments.configs.devices import threads_set
from rlgates.experiments.runs import logs
from rlgates.experiments.runs.agent import snapshot
from rlgates.experiments.runs.agent.build import AGENT_FILE, BEST_FILE, Agent, build, save_agent
from rlgates.experiments.runs.agent.callbacks import Boundary, Measure
from rlgates.experiments.runs.agent.evaluate import Evaluation, evaluate, evaluation_seed
from rlgates.experiments.runs.agent.gates import draw_runs
from rlgates.experiments.runs.agent.session import learn_to_the_end
from rlgates.experiments.runs.folder import EndReason, RunFolder, RunResult
from rlgates.experiments.runs.hparams import write_hparams


@dataclass(frozen=True, kw_only=True)
class AgentResult(RunResult):
    """What a finished run of an agent reached.

    If training diverged, the evaluation uses the weights from before the failed update; an agent
    whose states or probabilities are not finite never succeeds, and has no `last_phase_reward`.

    Attributes:
        success, low, high: share of successful fresh episodes and its 95 % interval.
        last_phase_reward: mean over the same episodes, in the environment's unit.
        episodes: number of fresh episodes.
        steps_to_threshold: training steps until `SUCCESS_THRESHOLD` of the last training
            episodes had succeeded; None: never.
    """

    success: float
    low: float
    high: float
    last_phase_reward: float
    episodes: int
    steps_to_threshold: int | None


def train(
    config: AgentConfig,
    seed: int,
    *,
    stop: Callable[[], bool] = lambda: False,
    bar: bool | None = None,
) -> AgentResult:
    """Train an agent, continue a stopped run, or look up the result of a finished one.

    A stopped run continues from its last checkpoint, bit for bit as if it had not been stopped
    (on the same machine, with the same versions and numbers of threads and ranks).

    Where torch.distributed is initialized, its processes make the run together: each calls this,
    has its part of the environments, and gets the result; rank 0 writes and evaluates. The run is
    the same as that of one process, up to the order of sums.

    Args:
        config: of the run.
        seed: of all random numbers.
        stop: called after each update; if it returns true, the run is saved and stopped.
        bar: draw a progress bar; by default, on a terminal.

    Returns:
        the result. The folder `config.run_folder(seed)` holds the final agent in `model.rlgates`
        and, with evaluations during training, the one with the highest success in `best.rlgates`.

    Raises:
        InterruptedRun: `stop` returned true.
        ValueError, TypeError: an invalid config, a folder with a run of another config, a
            damaged checkpoint or log, or more processes than environments.
    """
    config.check()
    folder = RunFolder(config, seed, Ranks.world().split(config.n_envs))
    result = folder.ranks.from_first(lambda: folder.result(AgentResult))
    if result is not None:
        return result
    with threads_set(config.threads):
        return _train(folder, config, stop, bar)


def _train(
    folder: RunFolder, config: AgentConfig, stop: Callable[[], bool], bar: bool | None
) -> AgentResult:
    ranks = folder.ranks
    model, env = build(config, folder.seed, ranks)
    saved = ranks.from_first(folder.load)
    with closing(folder.open_logs(saved)) as logger:
        folder.begin(saved["counters"]["num_timesteps"] if saved else 0)
        model.set_logger(logger)
        measure = Measure(config, folder.seed, folder.path / BEST_FILE)
        boundary = Boundary(
            folder,
            lambda: {
                **snapshot.of_all(snapshot.snapshot(model, env), ranks),
                "best": [measure.best_success, measure.best_step],
            },
            stop,
            lambda: _is_good_enough(model, config),
        )
        if saved:
            snapshot.restore(model, env, snapshot.part_of(saved, ranks))
            measure.best_success, measure.best_step = saved["best"]
            boundary.restore(saved, model.num_timesteps)
        ended = learn_to_the_end(model, boundary, [GateCallback(), measure], bar)
        result = ranks.from_first(
            lambda: _measure(folder, config, model, boundary.seconds, ended, measure.best_step)
        )
        reported = ("success", "last_phase_reward", "steps", "seconds")
        metrics = {metric: getattr(result, metric) for metric in reported}
        write_hparams(logger, config, folder.seed, metrics, result.steps)
        folder.finish(result)
        return result


def _is_good_enough(model: Agent, config: AgentConfig) -> bool:
    successes = list(model.ep_success_buffer or ())
    if config.stop_success is None or len(successes) < config.window:
        return False
    return bool(np.mean(successes) >= config.stop_success)


def _measure(
    folder: RunFolder,
    config: AgentConfig,
    model: Agent,
    seconds: float,
    ended: EndReason,
    best_step: int | None,
) -> AgentResult:
    """Save and evaluate the agent, and draw its learning curve and, if it can act, its gates."""
    # Here, since matplotlib delays the start of every command.
    from rlgates.experiments.plots.curves import Curve, draw_curves

    save_agent(model, folder.path / AGENT_FILE)
    seed = evaluation_seed(folder.seed, final=True)
    try:
        evaluation = evaluate(model, config, config.final_episodes, seed)
        draw_runs([folder.path], folder.path / "gates.png")
    except TrainingDiverged:
        ended, evaluation = "diverged", Evaluation(config.final_episodes, 0.0, 0.0, 0.0, math.nan)
    rows = logs.read_rows(folder.path / "progress.csv")
    steps, success = logs.column(rows, logs.STEPS), logs.column(rows, "rollout/success_rate")
    above = np.flatnonzero(success >= SUCCESS_THRESHOLD)
    curve = Curve(config.core, folder.seed, steps, success)
    draw_curves([curve], folder.path / "curve.png", config.title, config.chance)
    return AgentResult(
        **evaluation._asdict(),
        steps=model.num_timesteps,
        steps_to_threshold=int(steps[above[0]]) if len(above) else None,
        seconds=round(seconds, 1),
        ended=ended,
        best_step=best_step,
    )
