"""Numbers out of range are refused before work starts."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from support.toys import model

from rlgates import RecurrentA2C, RecurrentPPO

SHARED: list[tuple[str, Any, str]] = [
    ("n_steps", 0, "n_steps must be at least 1, got 0"),
    ("gamma", 2, "gamma must be from 0 to 1, got 2"),
    ("gae_lambda", 5, "gae_lambda must be from 0 to 1, got 5"),
    ("gae_lambda", math.nan, "gae_lambda must be finite, got nan"),
    ("ent_coef", math.nan, "ent_coef must be finite, got nan"),
    ("vf_coef", math.inf, "vf_coef must be finite, got inf"),
    ("max_grad_norm", -1, "max_grad_norm must be .* above 0, got -1"),
    ("max_grad_norm", math.nan, "max_grad_norm must be .* above 0, got nan"),
    ("learning_rate", -1.0, "learning_rate must be at least 0, got -1.0"),
    ("learning_rate", math.nan, "learning_rate must be finite, got nan"),
]
PPO_ONLY: list[tuple[str, Any, str]] = [
    ("batch_size", 0, "batch_size must be at least 2, got 0"),
    ("batch_size", 1, "batch_size must be at least 2, got 1"),
    ("n_epochs", -1, "n_epochs must be at least 1, got -1"),
    ("clip_range", math.nan, "clip_range must be .* above 0, got nan"),
    ("clip_range_vf", -0.1, "clip_range_vf must be .* above 0, got -0.1"),
    ("target_kl", math.nan, "target_kl must be .* above 0, got nan"),
    ("target_kl", -1, "target_kl must be .* above 0, got -1"),
]


@pytest.mark.parametrize(
    ("algorithm", "name", "value", "message"),
    [
        *((kind, *case) for kind in (RecurrentPPO, RecurrentA2C) for case in SHARED),
        *((RecurrentPPO, *case) for case in PPO_ONLY),
    ],
)
def test_numbers_out_of_range(algorithm: Any, name: str, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        model(algorithm=algorithm, **{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [("batch_size", 2.5), ("n_epochs", "3"), ("gamma", "high"), ("vf_coef", None)],
)
def test_values_of_another_type(name: str, value: Any) -> None:
    with pytest.raises(TypeError, match=f"{name} must be a"):
        model(**{name: value})


def test_no_limits_are_allowed() -> None:
    model(max_grad_norm=math.inf, clip_range=math.inf, n_epochs=1).learn(64)


def test_a_saved_number_out_of_range(tmp_path: Path) -> None:
    agent = model()
    agent.gamma = 2.0
    agent.save(tmp_path / "model")
    with pytest.raises(ValueError, match="gamma must be from 0 to 1"):
        RecurrentPPO.load(tmp_path / "model")


SHARED_OWN: list[tuple[str, Any, str]] = [
    ("chunk_len", 0, "chunk_len must be at least 1, got 0"),
    ("burn_in", 1.5, "burn_in must be an integer, got 1.5"),
    ("tvt", True, "tvt must be an rlgates.agents.TVT or None, got True"),
    ("distributed", "no", "distributed must be True or False, got 'no'"),
]
PPO_OWN: list[tuple[str, Any, str]] = [
    ("kl_stop", "foo", "unknown kl_stop 'foo'"),
    ("refresh_states", "no", "refresh_states must be True or False, got 'no'"),
]


@pytest.mark.parametrize("safe", [False, True], ids=["sb3", "safe"])
@pytest.mark.parametrize("algorithm", [RecurrentPPO, RecurrentA2C])
def test_arguments_of_load(algorithm: Any, safe: bool, tmp_path: Path) -> None:
    path = tmp_path / ("model.rlgates" if safe else "model.zip")
    model(algorithm=algorithm).save(path, format="safe" if safe else "sb3")
    own = [("sum_over_time", 1, "sum_over_time must be True or False, got 1")]
    for name, value, message in SHARED_OWN + (PPO_OWN if algorithm is RecurrentPPO else own):
        with pytest.raises((TypeError, ValueError), match=message):
            algorithm.load(path, **{name: value})


@pytest.mark.parametrize("name", ["clip_range", "clip_range_vf"])
def test_a_schedule_out_of_range(name: str) -> None:
    agent = model(**{name: lambda remaining: remaining - 1.5})
    with pytest.raises(ValueError, match=f"{name} must be at least 0, got -1.5 from its schedule"):
        agent.learn(64)


@pytest.mark.parametrize("algorithm", [RecurrentPPO, RecurrentA2C])
def test_steps_of_learn(algorithm: Any) -> None:
    agent = model(algorithm=algorithm)
    with pytest.raises(ValueError, match="total_timesteps must be finite, got nan"):
        agent.learn(math.nan)
    with pytest.raises(TypeError, match="total_timesteps must be a number, got '64'"):
        agent.learn("64")
    assert agent.learn(1e2).num_timesteps == 128
