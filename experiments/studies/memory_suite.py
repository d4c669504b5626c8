"""The headline study: gates against the plain LSTM and GRU at equal parameters, on nine tasks.

The LSTM and the GRU start as those of torch.nn (forget bias 0); the linear core is the one that
learned most in `popgym`, and `none` is the floor. The learning rate of each core is the best of
`RATES` by `memory_suite_rates`, on three of the tasks with three seeds that are not reported. All
else is equal: the recurrent PPO of `popgym` with normalized rewards and float observations, and in
Match, where no core learns anything with it, that of the study `match`, whose settings were found
with an LSTM with UR gates (there all cores that can scale their inputs do). The seeds and their
number were fixed before the first run. The LSTM with a forget bias of 1, which says how much of a
gate's gain the bias alone would give, was added when the others had been seen, with the same seeds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

from rlgates.experiments.configs.agent import match
from rlgates.experiments.configs.gym import GymConfig
from rlgates.experiments.configs.presets import PRESETS
from rlgates.experiments.studies.popgym import BASE, INPUT_SIZE, PARAMETERS
from rlgates.experiments.studies.study import TEN, EqualParameters, Study

CORES = ("lstm", "gru", "ur_lstm", "f_lstm", "c_lstm", "r_lstm", "mamba", "none")
RATES = (1e-3, 2e-3, 4e-3, 8e-3)
"""Learning rates that are tried with each core."""
LEARNING_RATES: Mapping[str, float] = {
    **dict.fromkeys(("lstm", "ur_lstm", "f_lstm", "mamba"), 2e-3),
    **dict.fromkeys(("gru", "c_lstm", "none"), 4e-3),
    "r_lstm": 8e-3,
}
"""The best of `RATES` for each core, by its returns at the end, as a share of the range, on average
over `TUNED_ON`."""
FORGET_BIAS_1 = "forget bias 1"
BIASED = ("lstm",)
"""Cores that are also tried with a forget bias of 1."""
BIASED_LEARNING_RATES: Mapping[str, float] = {"lstm": 2e-3}
"""As `LEARNING_RATES`, of these."""


class Task(NamedTuple):
    """An environment, and what its returns say.

    Attributes:
        title: in tables.
        env: its id.
        settings: of it.
        steps: the budget.
        episode: most steps of an episode, for the initial timescales of the chrono LSTM; in Match
            also those of a rollout.
        worst: the least return; the best is 1 everywhere, so that the tasks have a mean.
        ppo: settings of PPO, in place of those of `popgym`.
    """

    title: str
    env: str
    settings: dict[str, Any]
    steps: int
    episode: int
    worst: float = 0.0
    ppo: Mapping[str, Any] = MappingProxyType({"normalize": True})


def _match(game: str, distractor_steps: int, steps: int) -> Task:
    """Match with the agent of the study `match`: its encoder, and rollouts of whole episodes."""
    agent = PRESETS["study30_active" if game == "Active" else "study30"]
    episode = 30 + distractor_steps
    return Task(
        title=f"{game} Match 15/{distractor_steps}/15",
        env=f"{game}Match",
        settings={**match(distractor_steps), "choice_reward": 1.0},
        steps=steps,
        episode=episode,
        ppo={
            "n_envs": agent.n_envs,
            "n_steps": episode,
            "batch_size": agent.n_envs * episode // agent.n_minibatches,
            "gamma": agent.gamma,
            "ent_coef": agent.ent_coef,
            "vf_coef": agent.vf_coef,
            "core_options": agent.core_options,  # of the cores that have them
            "policy_kwargs": {**BASE.policy_kwargs, "features_extractor_class": "grid"},
        },
    )


TASKS = (
    Task("T-Maze 10", "PassiveTMaze", {"corridor_length": 10}, 500_000, 11, -1.0),
    Task("T-Maze 30", "PassiveTMaze", {"corridor_length": 30}, 1_000_000, 31, -1.0),
    Task("Memory Chain 30", "MemoryChain", {"memory_length": 30}, 500_000, 31, -1.0),
    Task("Repeat First", "RepeatFirst", {}, 500_000, 51, -1.0),
    Task("Repeat Previous 4", "RepeatPrevious", {"k": 4}, 500_000, 51, -1.0),
    _match("Passive", 30, 2_000_000),
    _match("Passive", 90, 4_000_000),
    _match("Active", 30, 4_000_000),
    Task("MiniGrid Memory S9", "MiniGridMemory", {"preset": "S9"}, 2_000_000, 405),
)
TUNED_ON = ("T-Maze 10", "Repeat Previous 4", "Passive Match 15/30/15")


def _row(task: Task, **changes: Any) -> EqualParameters:
    """All cores on one task."""
    config: GymConfig = replace(
        BASE,
        env=f"rlgates/{task.env}-v0",
        env_title=task.title,
        env_settings=task.settings,
        total_steps=task.steps,
        eval_every=task.steps // 10,
        worst_return=task.worst,
        **task.ppo,
    )
    torch_bias = {"forget_bias": 0.0}
    options = {"lstm": torch_bias, "gru": torch_bias, "c_lstm": {"t_max": float(task.episode)}}
    row = EqualParameters(config, CORES, PARAMETERS, INPUT_SIZE, options, LEARNING_RATES)
    return replace(row, **changes)


def _biased(task: Task, rates: Mapping[str, float], variant: str) -> EqualParameters:
    """The cores of `BIASED` on one task."""
    options = {core: {"forget_bias": 1.0} for core in BIASED}
    others = {"cores": BIASED, "core_options": options, "learning_rates": rates}
    return _row(task, variant=variant, **others)


def _timed(title: str) -> EqualParameters:
    """A task in fewer steps, and without evaluations in training."""
    (task,) = (task for task in TASKS if task.title == title)
    row = _row(task._replace(steps=200_000))
    return replace(row, config=replace(row.config, eval_every=None))


def _searched() -> Iterator[EqualParameters]:
    """The rows of the search, one for each task and learning rate."""
    for task in TASKS:
        for rate in RATES if task.title in TUNED_ON else ():
            variant = f"rate {rate:g}"
            for row in (
                _row(task, learning_rates={}, variant=variant),
                _biased(task, {}, f"{FORGET_BIAS_1}, {variant}"),
            ):
                yield replace(row, config=replace(row.config, learning_rate=rate, eval_every=None))


STUDIES: dict[str, Study] = {
    "memory_suite": Study(
        title="Gates against the plain LSTM and GRU at equal parameters",
        laptop=(
            *map(_row, TASKS),
            *(_biased(task, BIASED_LEARNING_RATES, FORGET_BIAS_1) for task in TASKS),
        ),
        seeds=TEN,
        chart="benchmark",
    ),
    # One task stands for all, as in `popgym_costs`.
    "memory_suite_costs": Study(
        title="The cost of a run of each core in the study memory_suite",
        laptop=(_timed("Passive Match 15/30/15"),),
        seeds=(100,),
    ),
    "memory_suite_rates": Study(
        title="The learning rate of each core in the study memory_suite",
        laptop=tuple(_searched()),
        seeds=(100, 101, 102),
    ),
}
