"""The memory benchmark: equal sizes, searched rates, and every game at every level."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
import torch
from torch import nn

from rlgates.cores.feedforward import FeedForward
from rlgates.envs import ENVS, make_env_spec
from rlgates.experiments.cli import main as cli
from rlgates.experiments.configs.gym import GymConfig
from rlgates.experiments.configs.presets import PRESETS
from rlgates.experiments.configs.sizes import equal_size
from rlgates.experiments.studies import STUDIES, EqualParameters
from rlgates.experiments.studies.popgym import (
    CORES,
    INPUT_SIZE,
    LEARNING_RATES,
    OPTIONS,
    PARAMETERS,
    RATES,
)
from rlgates.registry import CORES as TABLE
from rlgates.registry import make_core

RESULTS = Path(__file__).parents[3] / "experiments/results"


def test_every_kind_of_memory_is_compared() -> None:
    assert set(TABLE) <= set(CORES)


@pytest.mark.parametrize("core", CORES)
def test_cores_are_as_large_as_the_budget_allows(core: str) -> None:
    options = OPTIONS.get(core, {})
    size = equal_size(core, INPUT_SIZE, PARAMETERS, options)

    def parameters(hidden_size: int) -> int:
        made = make_core(core, INPUT_SIZE, hidden_size, **options)
        return sum(parameter.numel() for parameter in made.parameters())

    assert (
        parameters(size) <= PARAMETERS < parameters(size + math.lcm(2, options.get("num_heads", 1)))
    )
    assert parameters(size) > 0.85 * PARAMETERS


def test_the_reference_is_an_lstm_of_64_units() -> None:
    assert equal_size("lstm", INPUT_SIZE, PARAMETERS, {}) == 64


@pytest.mark.parametrize("tier", ["smoke", "laptop"])
@pytest.mark.usefixtures("in_tmp_path")
def test_a_core_above_the_budget_is_refused_before_any_run(
    tier: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(TABLE, "large", TABLE["none"]._replace(cell=_with_fixed_weights(100_000)))
    line = ["sweep", "popgym", "--tier", tier, "--tasks", "RepeatFirst, easy", "--cores", "large"]
    assert cli.main(line) == 2
    assert capsys.readouterr() == (
        "",
        "rlgates: error: core 'large' has 100,130 parameters at its smallest size, 2; the budget "
        "is 33,280.\n",
    )
    assert not list(Path().iterdir())


def test_a_core_that_takes_the_whole_budget_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = _with_fixed_weights(PARAMETERS - 130)
    monkeypatch.setitem(TABLE, "whole", TABLE["none"]._replace(cell=whole))
    assert equal_size("whole", INPUT_SIZE, PARAMETERS, {}) == 2


def test_a_core_of_one_size_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    frozen = TABLE["none"]._replace(cell=lambda input_size, _: FeedForward(input_size, 2))
    monkeypatch.setitem(TABLE, "frozen", frozen)
    with pytest.raises(ValueError, match="'frozen' has 130 parameters at its sizes 2 and 4, so"):
        equal_size("frozen", INPUT_SIZE, PARAMETERS, {})


def _with_fixed_weights(number: int) -> Callable[[int, int], FeedForward]:
    """A factory of `none`, which has 130 parameters with two units, with so many more."""

    def make(input_size: int, hidden_size: int) -> FeedForward:
        cell = FeedForward(input_size, hidden_size)
        cell.fixed = nn.Parameter(torch.zeros(number), requires_grad=False)
        return cell

    return make


def test_learning_rates_are_those_that_the_search_found_best() -> None:
    rows = pd.read_csv(RESULTS / "popgym_rates.csv")
    share = (rows["mean_return"] - rows["worst_return"]) / (1 - rows["worst_return"])
    scores = share.groupby([rows["core"], rows["variant"]]).mean().unstack()
    best = scores.idxmax(axis=1).str.removeprefix("rate ").astype(float)
    assert scores.notna().all(axis=None)
    # A user's module, as the guide has one, may add the rate of its own core.
    assert {core: LEARNING_RATES[core] for core in CORES} == best.to_dict()
    assert set(RATES) == {float(name.removeprefix("rate ")) for name in scores.columns}


def test_reported_seeds_are_not_those_of_the_search() -> None:
    assert not set(STUDIES["popgym"].seeds) & set(STUDIES["popgym_rates"].seeds)


@pytest.mark.parametrize("row", STUDIES["popgym"].laptop, ids=lambda row: row.config.title)
def test_every_game_is_valid_at_every_level(row: EqualParameters) -> None:
    assert isinstance(row.config, GymConfig)
    row.config.check()
    (arm,) = row.with_cores(["gru"]).arms()
    config = arm.of("gru")
    assert config.learning_rate == LEARNING_RATES["gru"]
    made = make_core("gru", INPUT_SIZE, config.hidden_size)
    assert sum(parameter.numel() for parameter in made.parameters()) <= PARAMETERS


def test_agents_see_the_previous_action_where_it_is_needed() -> None:
    presets = [config for config in PRESETS.values() if config.env in ENVS]
    for config in (*(row.config for row in STUDIES["popgym"].laptop), *presets):
        spec = make_env_spec(config.env, **config.env_settings)
        seen = "previous_action" in getattr(spec.observation_space, "spaces", ())
        assert seen >= spec.needs_previous_action
    assert make_env_spec("rlgates/MineSweeper-v0").needs_previous_action
