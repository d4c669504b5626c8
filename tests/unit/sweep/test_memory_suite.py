"""The headline study: equal sizes, rates from seeds that are not reported, valid tasks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pandas as pd
import pytest

from rlgates.experiments.configs.gym import GymConfig
from rlgates.experiments.studies import STUDIES, EqualParameters
from rlgates.experiments.studies.memory_suite import (
    BIASED,
    BIASED_LEARNING_RATES,
    CORES,
    ENVS,
    FORGET_BIAS_1,
    LEARNING_RATES,
    RATES,
    TUNED_ON,
)
from rlgates.experiments.studies.popgym import INPUT_SIZE, PARAMETERS
from rlgates.registry import make_core

RESULTS = Path(__file__).parents[3] / "experiments/results"
SUITE, SEARCH = STUDIES["memory_suite"], STUDIES["memory_suite_rates"]


def test_reported_seeds_are_not_those_of_the_search() -> None:
    assert len(SUITE.seeds) == 10
    assert not set(SUITE.seeds) & set(SEARCH.seeds)


def test_every_core_is_searched_with_the_same_budget() -> None:
    assert set(TUNED_ON) <= {env.title for env in ENVS}
    rows = [row for row in SEARCH.laptop if isinstance(row, EqualParameters)]
    tried = {(row.config.title, row.config.learning_rate) for row in rows}
    assert tried == {(title, rate) for title in TUNED_ON for rate in RATES}
    for cores in (CORES, BIASED):
        of_these = [row.config for row in rows if row.cores == cores]
        assert len(of_these) == len(tried)
    assert {row.cores for row in (*rows, *SUITE.laptop)} == {CORES, BIASED}


@pytest.mark.parametrize(
    ("prefix", "rates"),
    [("rate ", LEARNING_RATES), (f"{FORGET_BIAS_1}, rate ", BIASED_LEARNING_RATES)],
)
def test_learning_rates_are_those_that_the_search_found_best(
    prefix: str, rates: Mapping[str, float]
) -> None:
    rows = pd.read_csv(RESULTS / "memory_suite_rates.csv")
    rows = rows[rows["variant"].str.startswith(prefix)]
    share = (rows["mean_return"] - rows["worst_return"]) / (1 - rows["worst_return"])
    by_task = share.groupby([rows["core"], rows["variant"], rows["title"]])
    assert set(by_task.size()) == {len(SEARCH.seeds)}
    scores = by_task.mean().groupby(["core", "variant"]).mean().unstack()
    best = scores.idxmax(axis=1).str.removeprefix(prefix).astype(float)
    assert rates == best.to_dict()


@pytest.mark.parametrize("row", SUITE.laptop, ids=lambda row: f"{row.config.title} {row.variant}")
def test_environments_are_valid_for_every_core(row: EqualParameters) -> None:
    assert isinstance(row.config, GymConfig)
    row.config.check()
    for arm in row.arms():
        (core,) = arm.cores
        config = arm.of(core)
        made = make_core(core, INPUT_SIZE, config.hidden_size, **config.core_options)
        assert 0.9 * PARAMETERS < sum(p.numel() for p in made.parameters()) <= PARAMETERS
        if core in ("lstm", "gru"):
            assert config.core_options["forget_bias"] == float(row.variant == FORGET_BIAS_1)


def test_the_chrono_lstm_knows_the_length_of_episodes() -> None:
    for row, env in zip(SUITE.laptop[: len(ENVS)], ENVS, strict=True):
        assert isinstance(row, EqualParameters)
        assert row.core_options["c_lstm"]["t_max"] == env.episode


@pytest.mark.parametrize("name", ["popgym_costs", "memory_suite_costs"])
def test_runs_that_are_timed_are_not_evaluated_in_training(name: str) -> None:
    assert all(arm.config.eval_every is None for arm in STUDIES[name].arms("laptop"))  # type: ignore[union-attr]
