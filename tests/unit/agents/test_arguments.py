"""Arguments of agents at their limits, and in files; what a call refuses is in `bad_inputs.txt`."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.toys import model, toy

from rlgates import RecurrentA2C, RecurrentPPO


def test_no_limits_are_allowed() -> None:
    model(max_grad_norm=math.inf, clip_range=math.inf, n_epochs=1).learn(64)


@pytest.mark.parametrize("algorithm", ["RecurrentPPO", "RecurrentA2C"])
def test_an_id_of_rlgates_needs_no_import_of_its_environments(algorithm: str) -> None:
    code = (
        f"import rlgates; agent = rlgates.{algorithm}('MlpLstmPolicy', "
        "'rlgates/PassiveTMaze-v0'); print(agent.env.envs[0].spec.id)"
    )
    command = [sys.executable, "-W", "ignore", "-c", code]
    finished = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert finished.stdout.strip() == "rlgates/PassiveTMaze-v0", finished.stderr


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


@pytest.mark.parametrize("safe", [False, True], ids=["sb3", "safe"])
def test_a_clip_range_of_0_may_stand_in_for_a_schedule(safe: bool, tmp_path: Path) -> None:
    path = tmp_path / ("model.rlgates" if safe else "model.zip")
    model(clip_range=0.1 if safe else lambda _: 0.1).save(path)
    loaded = RecurrentPPO.load(path, custom_objects={"clip_range": 0.0, "learning_rate": 0.0})
    assert loaded.clip_range(1) == 0


@pytest.mark.parametrize("suffix", ["zip", "rlgates"])
@pytest.mark.parametrize("algorithm", [RecurrentPPO, RecurrentA2C])
def test_numbers_and_flags_of_numpy(algorithm: Any, suffix: str, tmp_path: Path) -> None:
    agent = model(
        toy(),
        algorithm=algorithm,
        n_steps=np.int64(16),
        seed=np.int64(0),
        verbose=np.int64(0),
        normalize_advantage=np.True_,
        policy_kwargs={"ortho_init": np.True_, "core_kwargs": {"learned_state": np.True_}},
    )
    agent.learn(64, reset_num_timesteps=np.True_)
    agent.save(tmp_path / f"model.{suffix}")
    loaded = algorithm.load(tmp_path / f"model.{suffix}", env=toy(), normalize_advantage=np.False_)
    loaded.learn(64)
    agent.policy.save(tmp_path / f"policy.{suffix}")
    type(agent.policy).load(tmp_path / f"policy.{suffix}")
    with pytest.raises(TypeError, match="normalize_advantage must be True or False, got 1"):
        model(algorithm=algorithm, normalize_advantage=1)


@pytest.mark.parametrize("name", ["clip_range", "clip_range_vf"])
def test_a_schedule_out_of_range(name: str) -> None:
    agent = model(**{name: lambda remaining: remaining - 1.5})
    with pytest.raises(ValueError, match=f"{name} must be at least 0, got -1.5 from its schedule"):
        agent.learn(64)


@pytest.mark.parametrize("algorithm", [RecurrentPPO, RecurrentA2C])
def test_steps_of_learn_may_be_a_float(algorithm: Any) -> None:
    assert model(algorithm=algorithm).learn(1e2).num_timesteps == 128
