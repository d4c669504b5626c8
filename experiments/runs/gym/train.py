"""Train an agent in an environment of gymnasium: one run of a core from one seed."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, fields, replace
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import sb3_contrib
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.vec_env import VecEnv, sync_envs_normalization

from rlgates.agents import TVT, Estimate, PolicyEvaluation, evaluate_policy
from rlgates.agents.files.archive import SUFFIX
from rlgates.agents.ranks import ALONE, Ranks
from rlgates.agents.sequences.updates import SequenceAlgorithm
from rlgates.atomic import write_atomically
from rlgates.errors import TrainingDiverged, check_choice, nearest
from rlgates.experiments.configs.devices import find_device, threads_set
from rlgates.experiments.configs.gym import CLASSES, GymConfig
from rlgates.experiments.runs import logs
from rlgates.experiments.runs.agent import snapshot
from rlgates.experiments.runs.agent.build import AGENTS as OURS
from rlgates.experiments.runs.agent.build import algorithm_arguments, save_agent
from rlgates.experiments.runs.agent.callbacks import Boundary, RolloutCallback
from rlgates.experiments.runs.agent.evaluate import evaluation_seed
from rlgates.experiments.runs.agent.session import learn_to_the_end
from rlgates.experiments.runs.folder import EndReason, RunFolder, RunResult
from rlgates.experiments.runs.gym.envs import SavedEnvs, make_envs, observation_statistics
from rlgates.experiments.runs.hparams import write_hparams

AGENTS: Mapping[str, type[OnPolicyAlgorithm]] = {**OURS, "sb3-contrib": sb3_contrib.RecurrentPPO}
OPTIONS: Mapping[str, Mapping[str, str]] = {
    "algo_kwargs": {item.name: item.name for item in fields(GymConfig)} | {"seed": "seeds"},
    "policy_kwargs": {
        "core": "core",
        "core_kwargs": "core_options",
        "lstm_hidden_size": "hidden_size",
        "use_sde": "algo_kwargs",
    },
}
"""Arguments of the algorithm and the policy, with the field of the config that sets them."""
RETURN, SUCCESS = "eval/mean_reward", "eval/success_rate"
"""Columns of `progress.csv`, named as in SB3."""


@dataclass(frozen=True, kw_only=True)
class GymResult(RunResult):
    """What a finished run reached; `seconds` are those of the CPU, evaluations included.

    Attributes:
        mean_return, low, high: of fresh episodes after training, with a 95 % interval; nan if the
            agent's states or probabilities are no longer finite, so that it cannot act.
        success: share of them that succeeded; None where the environment does not say so, or then.
        steps_to_goal: of training, until an evaluation reached `reward_threshold`; None: never.
    """

    mean_return: float
    low: float
    high: float
    success: float | None
    steps_to_goal: int | None


def build(
    config: GymConfig, seed: int, env: VecEnv | None = None, ranks: Ranks = ALONE
) -> OnPolicyAlgorithm:
    """The untrained agent.

    Args:
        config: of the run.
        seed: of all random numbers.
        env: its environments; None: new ones.
        ranks: that train it together.

    Raises:
        ValueError, TypeError: an argument that the algorithm or the policy does not have, that is a
            field of the config, or that is out of range.
    """
    config = config.resolved()
    agent: Any = AGENTS[config.algo]
    policy = agent.policy_aliases.get(config.policy)
    _check_arguments("algo_kwargs", config.algo_kwargs, agent, agent.__name__)
    if policy is not None:
        _check_arguments("policy_kwargs", config.policy_kwargs, policy, str(config.policy))
    policy_kwargs: dict[str, Any] = {"lstm_hidden_size": config.hidden_size}
    if config.policy != "RMAPolicy":  # which has networks of its own
        policy_kwargs |= {
            "net_arch": {"pi": list(config.net_arch), "vf": list(config.vf_net_arch)},
            "ortho_init": config.ortho_init,
        }
    policy_kwargs |= config.policy_kwargs
    for name, classes in CLASSES.items():
        if name in policy_kwargs:
            policy_kwargs[name] = classes[policy_kwargs[name]]
    if config.algo != "sb3-contrib":
        policy_kwargs |= {"core": config.core, "core_kwargs": dict(config.core_options)}
    arguments = algorithm_arguments(config, config.batch_size)
    if not ranks.is_alone:
        arguments["distributed"] = True
    model: OnPolicyAlgorithm = agent(
        config.policy,
        make_envs(config, seed, training=True) if env is None else env,
        n_steps=config.n_steps,
        policy_kwargs=policy_kwargs,
        seed=seed,
        device=find_device(config.device),
        **{**arguments, **_with_classes(config.algo_kwargs)},
    )
    return model


def _check_arguments(kind: str, arguments: Iterable[str], taker: type, title: str) -> None:
    """Raise ValueError for an argument that `taker` does not have, or that is an option."""
    parameters = signature(taker).parameters.values()
    optional = (item.name for item in parameters if item.default is not item.empty)
    allowed = [name for name in optional if name not in OPTIONS[kind] and name[0] != "_"]
    for name in arguments:
        near = "".join(nearest(name, (*allowed, *OPTIONS[kind])))
        if near in OPTIONS[kind]:
            option = OPTIONS[kind][near].replace("_", "-")
            meant = "" if near == name else f" (did you mean {near!r}?)"
            raise ValueError(
                f"{kind} must be without {name}{meant}: --{option} is the option for it."
            )
        check_choice(f"argument of {title}", name, allowed)


def _with_classes(algo_kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of an algorithm, with the settings of `tvt` as a `TVT`.

    Raises:
        ValueError, TypeError: an unknown setting of `tvt`, or one that is out of range.
    """
    tvt = algo_kwargs.get("tvt")
    if not isinstance(tvt, Mapping):
        return dict(algo_kwargs)
    for name in tvt:
        check_choice("setting of tvt", name, [field.name for field in fields(TVT)])
    return {**algo_kwargs, "tvt": TVT(**tvt)}


def train(
    config: GymConfig,
    seed: int,
    *,
    stop: Callable[[], bool] = lambda: False,
    bar: bool | None = None,
) -> GymResult:
    """Train an agent, continue a stopped run, or look up the result of a finished one.

    A stopped run continues from its last checkpoint, bit for bit as if it had not been stopped
    (on the same machine, with the same versions and numbers of threads and ranks), in environments
    whose episodes are determined by the seed of their reset and by the actions. The processes of
    torch.distributed, if it is initialized, make the run together, as in `runs.agent.train`.

    Args:
        config: of the run.
        seed: of all random numbers.
        stop: called after each update; if it returns true, the run is saved and stopped.
        bar: draw a progress bar; by default, on a terminal.

    Returns:
        the result. The folder `config.run_folder(seed)` holds the agent in `model.rlgates`, the
        one with the best evaluation in `best.rlgates`, beside each the statistics of normalized
        observations (`model.json`, `best.json`), and `curve.png`. Agents of sb3-contrib are in
        `model.zip` and `best.zip`, since it has no other format.

    Raises:
        InterruptedRun: `stop` returned true.
        ValueError, TypeError: an invalid config, a folder with a run of another config, or a
            damaged checkpoint or log; more processes than environments, or several of them with
            the agent of sb3-contrib.
    """
    config.check()
    folder = RunFolder(config, seed, Ranks.world().split(config.n_envs))
    if config.algo == "sb3-contrib" and not folder.ranks.is_alone:
        raise ValueError("the agent of sb3-contrib is trained by one process, got several.")
    result = folder.ranks.from_first(lambda: folder.result(GymResult))
    if result is not None:
        return result
    try:
        with (
            threads_set(config.threads),
            closing(make_envs(config, seed, training=True, ranks=folder.ranks)) as env,
            closing(make_envs(config, seed, training=False)) as eval_env,
        ):
            return _train(folder, config, env, eval_env, stop, bar)
    except (EOFError, ConnectionError) as error:
        if config.vec_env != "subproc":
            raise
        raise RuntimeError(
            "the process of an environment ended. What it printed is above; with --vec-env dummy "
            "the run says what failed."
        ) from error


def _train(
    folder: RunFolder,
    config: GymConfig,
    env: VecEnv,
    eval_env: VecEnv,
    stop: Callable[[], bool],
    bar: bool | None,
) -> GymResult:
    ranks = folder.ranks
    model, envs = build(config, folder.seed, env, ranks), SavedEnvs(env)
    saved = ranks.from_first(folder.load)
    start = time.process_time() - (saved["cpu_seconds"] / ranks.size if saved else 0.0)

    def cpu_seconds() -> float:
        return sum(ranks.gather(time.process_time() - start))

    with closing(folder.open_logs(saved)) as logger:
        folder.begin(saved["counters"]["num_timesteps"] if saved else 0)
        model.set_logger(logger)
        measure = Measure(config, folder, eval_env)
        boundary = Boundary(
            folder,
            lambda: {
                **snapshot.of_all(snapshot.snapshot(model, envs), ranks),
                "best": [measure.best, measure.best_step],
                "cpu_seconds": cpu_seconds(),
            },
            stop,
        )
        if saved:
            snapshot.restore(model, envs, snapshot.part_of(saved, ranks))
            boundary.restore(saved, model.num_timesteps)
            measure.best, measure.best_step = saved["best"]
        ended = learn_to_the_end(model, boundary, [measure], bar)
        result = ranks.from_first(
            lambda: _measure(folder, config, model, eval_env, ended, measure.best_step)
        )
        result = replace(result, seconds=round(cpu_seconds(), 1))
        reported = ("mean_return", "success", "steps", "seconds")
        metrics = {metric: getattr(result, metric) for metric in reported}
        write_hparams(logger, config, folder.seed, metrics, result.steps)
    folder.finish(result)
    return result


def _measure(
    folder: RunFolder,
    config: GymConfig,
    model: OnPolicyAlgorithm,
    eval_env: VecEnv,
    ended: EndReason,
    best_step: int | None,
) -> GymResult:
    """Save and evaluate the agent, and draw its learning curve."""
    save(model, folder.path / "model")
    seed = evaluation_seed(folder.seed, final=True)
    try:
        final = evaluate(model, config, eval_env, config.final_episodes, seed)
        returns, success = final.estimate("return"), success_of(final)
    except TrainingDiverged:
        ended, returns, success = "diverged", Estimate(math.nan, math.nan, math.nan, 0), None
    result = GymResult(
        mean_return=returns.mean,
        low=returns.low,
        high=returns.high,
        success=None if success is None else success.mean,
        steps_to_goal=find_steps_to_goal(
            folder.path, config, returns.mean, final_steps=model.num_timesteps
        ),
        steps=model.num_timesteps,
        seconds=0.0,
        ended=ended,
        best_step=best_step,
    )
    _draw(folder.path, config, result)
    return result


class Measure(RolloutCallback):
    """Evaluates on fresh episodes, and saves the best agent.

    The best one has the highest success, where the environment reports it, or else the highest
    mean return; the first one at a tie.

    Args:
        config: of the run.
        folder: of the run.
        env: for the evaluations.
    """

    def __init__(self, config: GymConfig, folder: RunFolder, env: VecEnv) -> None:
        super().__init__()
        self.config, self.env, self.path = config, env, folder.path / "best"
        self.seed = evaluation_seed(folder.seed, final=False)
        self.best: tuple[float, float] | None = None
        self.best_step: int | None = None

    def _on_rollout_end(self) -> None:
        every = self.config.eval_every
        assert every != "epoch"
        if not self.passed(every):
            return
        model: Any = self.model
        evaluation = evaluate(model, self.config, self.env, self.config.eval_episodes, self.seed)
        success = success_of(evaluation)
        mean_return = evaluation.estimate("return").mean
        self.logger.record(RETURN, mean_return)
        self.logger.record("eval/mean_ep_length", evaluation.estimate("length").mean)
        if success is not None:
            self.logger.record(SUCCESS, success.mean)
        reached = (0.0 if success is None else success.mean, mean_return)
        if self.best is None or reached > tuple(self.best):
            self.best, self.best_step = reached, model.num_timesteps
            save(model, self.path)


def evaluate(
    model: OnPolicyAlgorithm, config: GymConfig, env: VecEnv, episodes: int, seed: int
) -> PolicyEvaluation:
    """Evaluate on fresh episodes, with the agent's statistics of observations.

    Args:
        model: with its own environments.
        config: whether actions are sampled.
        env: for the evaluation.
        episodes: number of episodes, at least 1.
        seed: of the environments and of sampled actions.
    """
    normalize = model.get_vec_normalize_env()  # images are transposed above it
    if normalize is not None:
        sync_envs_normalization(normalize, env)
    return evaluate_policy(model, env, episodes, config.eval_deterministic, seed)


def success_of(evaluation: PolicyEvaluation) -> Estimate | None:
    """The share of successful episodes; None where the environment does not report success."""
    return next(
        (
            evaluation.estimate(name)
            for name in ("is_success", "success")
            if name in evaluation.metrics
        ),
        None,
    )


def find_steps_to_goal(
    folder: Path, config: GymConfig, final_return: float, final_steps: int
) -> int | None:
    """Steps of training until an evaluation reached `reward_threshold`; None: never.

    Args:
        folder: of the run, with the evaluations during training.
        config: of the run.
        final_return: mean return of the final evaluation.
        final_steps: of training, before it.

    Raises:
        Damaged: the file of the evaluations is not what was written.
    """
    if (threshold := config.reward_threshold) is None:
        return None
    steps, returns = read_evaluations(folder)
    reached = steps[returns >= threshold].tolist()
    if final_return >= threshold:
        reached.append(final_steps)
    return int(reached[0]) if reached else None


def read_evaluations(folder: Path) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The steps of the evaluations in a run's folder, and the mean return of each.

    Raises:
        Damaged: the file is not what was written.
    """
    rows = logs.read_rows(folder / "progress.csv")
    steps, returns = logs.column(rows, logs.STEPS), logs.column(rows, RETURN)
    known = ~np.isnan(returns)
    return steps[known], returns[known]


def _draw(folder: Path, config: GymConfig, result: GymResult) -> None:
    """The learning curve of a run; the final evaluation ends that of evaluations."""
    # Here, since matplotlib delays the start of every command.
    from rlgates.experiments.plots.curves import draw_returns

    rows = logs.read_rows(folder / "progress.csv")
    steps = logs.column(rows, logs.STEPS)
    if result.success is None:
        label, names = "return of an episode", ("rollout/ep_rew_mean", RETURN)
        final = result.mean_return
    else:
        label, names = "success rate", ("rollout/success_rate", SUCCESS)
        final = result.success
    earlier = steps < result.steps  # one after the last update has fewer episodes than the final
    evaluations = np.append(logs.column(rows, names[1])[earlier], final)
    lines = {
        "in training": (steps, logs.column(rows, names[0])),
        "evaluations on fresh episodes": (np.append(steps[earlier], result.steps), evaluations),
    }
    draw_returns(lines, folder / "curve.png", f"{config.title}, {config.core}", label)


def save(model: OnPolicyAlgorithm, path: Path) -> None:
    """Save an agent, and the statistics by which its observations were normalized.

    Args:
        model: of one of `AGENTS`.
        path: without a suffix.
    """
    if isinstance(model, SequenceAlgorithm):
        save_agent(model, path.with_suffix(SUFFIX))
    else:
        model.save(path)
    env = model.get_vec_normalize_env()
    if env is not None and env.norm_obs:
        parts = {
            name: {"mean": part.mean.tolist(), "var": part.var.tolist()}
            for name, part in observation_statistics(env).items()
        }
        values = {
            **parts.get("", {"parts": parts}),
            "epsilon": env.epsilon,
            "clip": env.clip_obs,
        }
        write_atomically(path.with_suffix(".json"), json.dumps(values).encode())
