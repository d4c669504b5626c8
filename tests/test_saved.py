"""Saved models: of an earlier version, from a GPU, damaged, or somebody else's."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
import stable_baselines3
import torch
from toys import model, toy

from rlgates import RecurrentA2C, RecurrentPPO

GOLDEN = Path(__file__).parent / "golden"


@torch.no_grad()
def thoughts(agent: Any) -> list[float]:
    """Its values of observations that are written out here, with starts in between."""
    states, found = agent.policy.initial_states(1), []
    for step in range(12):
        observation = torch.sin(torch.arange(3.0) + step)[None]
        seen = agent.policy.act(observation, states, torch.tensor([step % 5 == 0]))
        states = seen.states
        found.append(seen.values.item())
    return found


def test_a_model_of_an_earlier_version_thinks_what_it_did() -> None:
    loaded = RecurrentPPO.load(GOLDEN / "ppo_ur_lstm.zip", device="cpu")
    assert loaded.policy.lstm_actor.core.name == "ur_lstm"
    wanted = json.loads((GOLDEN / "ppo_ur_lstm.json").read_text())
    assert thoughts(loaded) == pytest.approx(wanted["values"], rel=1e-4)
    assert len(set(wanted["values"])) == 12
    loaded.set_env(toy(n_envs=loaded.n_envs))
    loaded.learn(64)


@pytest.mark.gpu
def test_a_model_of_a_gpu_is_loaded_on_the_cpu(tmp_path: Path) -> None:
    agent = model(device="cuda").learn(64)
    agent.save(tmp_path / "model")
    loaded = RecurrentPPO.load(tmp_path / "model", device="cpu")
    agent.policy.cpu()
    assert {parameter.device.type for parameter in loaded.policy.parameters()} == {"cpu"}
    assert thoughts(loaded) == pytest.approx(thoughts(agent), rel=1e-4)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.95])
def test_a_damaged_file_is_a_clear_error(share: float, tmp_path: Path) -> None:
    path = tmp_path / "model.zip"
    model().save(path)
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(ValueError, match=r"model\.zip"):
        RecurrentPPO.load(path)


@pytest.mark.parametrize("cut", ["policy.pth", "data"])
def test_a_part_that_was_cut_is_a_clear_error(cut: str, tmp_path: Path) -> None:
    model().save(tmp_path / "model")
    changed = tmp_path / "changed.zip"
    with zipfile.ZipFile(tmp_path / "model.zip") as old, zipfile.ZipFile(changed, "w") as new:
        for part in old.namelist():
            content = old.read(part)
            new.writestr(part, content[: len(content) // 2] if part == cut else content)
    with pytest.raises(ValueError, match=r"changed\.zip"):
        RecurrentPPO.load(changed)


def test_other_models_are_refused(tmp_path: Path) -> None:
    stable_baselines3.PPO("MlpPolicy", toy(), device="cpu").save(tmp_path / "flat")
    with pytest.raises((TypeError, ValueError), match=r"must be one of rlgates|no model of"):
        RecurrentPPO.load(tmp_path / "flat")
    with pytest.raises((TypeError, ValueError), match=r"must be one of rlgates|no model of"):
        RecurrentA2C.load(tmp_path / "flat")
    with pytest.raises(FileNotFoundError):
        RecurrentPPO.load(tmp_path / "none")
    (tmp_path / "text.zip").write_text("no model")
    with pytest.raises(ValueError, match=r"text\.zip"):
        RecurrentPPO.load(tmp_path / "text.zip")


def test_weights_of_another_core_are_refused(tmp_path: Path) -> None:
    model(policy_kwargs={"core": "gru"}).save(tmp_path / "gru")
    with pytest.raises((RuntimeError, ValueError), match="lstm_actor"):
        model(policy_kwargs={"core": "ur_lstm"}).set_parameters(tmp_path / "gru")
