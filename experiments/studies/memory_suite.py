"""The headline study, in nine environments: gates against the plain LSTM at equal parameters.

The LSTM and the GRU start as those of torch.nn (forget bias 0); the linear core is the one that
learned most in `popgym`, and `none` is the floor. The learning rate of each core is the best of
`RATES` by `memory_suite_rates`, in three of the environments with three seeds that are not
reported. All else is equal: the recurrent PPO of `popgym` with normalized rewards and float
observations, and in Match, where no core learns anything with it, that of the study `match`, whose
settings were found with an LSTM with UR gates (there all cores that can scale their inputs do).
The seeds and their number were fixed before the first run. The LSTM with a forget bias of 1, which
says how much of a gate's gain the bias alone would give, was added when the others had been seen,
with the same seeds.
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


class SuiteEnv(NamedTuple):
    """An environment, and what its returns say.

    Attributes:
        title: in tables.
        name: in its id, rlgates/<name>-v0.
        settings: of it.
        steps: the budget.
        episode: most steps of an episode, for the initial timescales of the chrono LSTM; in Match
            also those of a rollout.
        worst: the least return; the best is 1 everywhere, so that the environments have a mean.
        ppo: settings of PPO, in place of those of `popgym`.
    """

    title: str
    name: str
    settings: dict[str, Any]
    steps: int
    episode: int
    worst: float = 0.0
    ppo: Mapping[str, Any] = MappingProxyType({"normalize": True})


def _match(game: str, distractor_steps: int, steps: int) -> SuiteEnv:
    """Match with the agent of the study `match`: its encoder, and rollouts of whole episodes."""
    agent = PRESETS["study30_active" if game == "Active" else "study30"]
    episode = 30 + distractor_steps
    return SuiteEnv(
        title=f"{game} Match 15/{distractor_steps}/15",
        name=f"{game}Match",
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


ENVS = (
    SuiteEnv("T-Maze 10", "PassiveTMaze", {"corridor_length": 10}, 500_000, 11, -1.0),
    SuiteEnv("T-Maze 30", "PassiveTMaze", {"corridor_length": 30}, 1_000_000, 31, -1.0),
    SuiteEnv("Memory Chain 30", "MemoryChain", {"memory_length": 30}, 500_000, 31, -1.0),
    SuiteEnv("Repeat First", "RepeatFirst", {}, 500_000, 51, -1.0),
    SuiteEnv("Repeat Previous 4", "RepeatPrevious", {"k": 4}, 500_000, 51, -1.0),
    _match("Passive", 30, 2_000_000),
    _match("Passive", 90, 4_000_000),
    _match("Active", 30, 4_000_000),
    SuiteEnv("MiniGrid Memory S9", "MiniGridMemory", {"preset": "S9"}, 2_000_000, 405),
)
TUNED_ON = ("T-Maze 10", "Repeat Previous 4", "Passive Match 15/30/15")


def _row(env: SuiteEnv, **changes: Any) -> EqualParameters:
    """All cores in one environment."""
    config: GymConfig = replace(
        BASE,
        env=f"rlgates/{env.name}-v0",
        env_title=env.title,
        env_settings=env.settings,
        total_steps=env.steps,
        eval_every=env.steps // 10,
        worst_return=env.worst,
        **env.ppo,
    )
    torch_bias = {"forget_bias": 0.0}
    options = {"lstm": torch_bias, "gru": torch_bias, "c_lstm": {"t_max": float(env.episode)}}
    row = EqualParameters(config, CORES, PARAMETERS, INPUT_SIZE, options, LEARNING_RATES)
    return replace(row, **changes)


def _biased(env: SuiteEnv, rates: Mapping[str, float], variant: str) -> EqualParameters:
    """The cores of `BIASED` in one environment."""
    options = {core: {"forget_bias": 1.0} for core in BIASED}
    others = {"cores": BIASED, "core_options": options, "learning_rates": rates}
    return _row(env, variant=variant, **others)


def _timed(title: str) -> EqualParameters:
    """An environment in fewer steps, and without evaluations in training."""
    (env,) = (env for env in ENVS if env.title == title)
    row = _row(env._replace(steps=200_000))
    return replace(row, config=replace(row.config, eval_every=None))


def _searched() -> Iterator[EqualParameters]:
    """The rows of the search, one for each environment and learning rate."""
    for env in ENVS:
        for rate in RATES if env.title in TUNED_ON else ():
            variant = f"rate {rate:g}"
            for row in (
                _row(env, learning_rates={}, variant=variant),
                _biased(env, {}, f"{FORGET_BIAS_1}, {variant}"),
            ):
                yield replace(row, config=replace(row.config, learning_rate=rate, eval_every=None))


STUDIES: dict[str, Study] = {
    "memory_suite": Study(
        title="Gates against the plain LSTM and GRU at equal parameters",
        laptop=(
            *map(_row, ENVS),
            *(_biased(env, BIASED_LEARNING_RATES, FORGET_BIAS_1) for env in ENVS),
        ),
        seeds=TEN,
        chart="benchmark",
    ),
    # One environment stands for all, as in `popgym_costs`.
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
