"""Saved models: of earlier versions, from a GPU, damaged, or of other libraries."""

from __future__ import annotations

import importlib
import json
import zipfile
from pathlib import Path
from typing import Any, ClassVar

import pytest
import stable_baselines3
import torch
from support.rma import rma_env
from support.toys import model, toy

from rlgates import MlpLstmPolicy, RecurrentA2C, RecurrentPPO, RMAPolicy
from rlgates.agents import TVT
from rlgates.agents.ranks import RankLost

GOLDEN = Path(__file__).parents[2] / "golden"


@torch.no_grad()
def values_of(agent: Any) -> list[float]:
    """The values of fixed observations, with episode starts."""
    states, values = agent.policy.initial_states(1), []
    for step in range(12):
        observation = torch.sin(torch.arange(3.0) + step)[None]
        output = agent.policy.act(observation, states, torch.tensor([step % 5 == 0]))
        states = output.states
        values.append(output.values.item())
    return values


def test_a_model_of_an_earlier_version_computes_the_same() -> None:
    loaded = RecurrentPPO.load(GOLDEN / "ppo_ur_lstm.zip", device="cpu")
    assert loaded.policy.lstm_actor.core.name == "ur_lstm"
    expected = json.loads((GOLDEN / "ppo_ur_lstm.json").read_text())
    assert values_of(loaded) == pytest.approx(expected["values"], rel=1e-4)
    assert len(set(expected["values"])) == 12
    loaded.set_env(toy(n_envs=loaded.n_envs))
    loaded.learn(64)


def test_a_model_of_an_earlier_version_with_classes_from_moved_modules() -> None:
    """It names rlgates.agents.rma.RMAPolicy and rlgates.agents.tvt.TVT."""
    loaded = RecurrentA2C.load(GOLDEN / "a2c_rma_tvt.zip", device="cpu")
    assert type(loaded.policy) is RMAPolicy
    assert loaded.tvt == TVT(alpha=0.5)
    loaded.set_env(rma_env(2, explore_steps=1, distractor_steps=1, reward_steps=2))
    loaded.learn(16)


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("policies", ["MlpLstmPolicy", "CnnLstmPolicy", "MultiInputLstmPolicy"]),
        (
            "maskable",
            ["MaskableMlpLstmPolicy", "MaskableCnnLstmPolicy", "MaskableMultiInputLstmPolicy"],
        ),
        ("encoders", ["GridEncoder", "MixedEncoder"]),
        ("rma", ["RMAPolicy"]),
        ("sequences", ["SequencePolicy", "Latents", "States", "Observations"]),
        ("tvt", ["TVT"]),
    ],
)
def test_names_in_saved_models_are_stable(module: str, names: list[str]) -> None:
    """Pickles hold classes, and the bases of a user's own policies, by module and name."""
    home = importlib.import_module(f"rlgates.agents.{module}")
    assert [name for name in names if not hasattr(home, name)] == []


@pytest.mark.parametrize("sequences", ["whole", "upstream"])
def test_a_former_option_in_a_saved_model_is_dropped(sequences: str, tmp_path: Path) -> None:
    agent = model()
    agent.sequences = sequences  # type: ignore[attr-defined]
    agent.save(tmp_path / "model")
    loaded = RecurrentPPO.load(tmp_path / "model", env=toy())
    assert not hasattr(loaded, "sequences")
    loaded.learn(64)


@pytest.mark.gpu
def test_a_model_of_a_gpu_is_loaded_on_the_cpu(tmp_path: Path) -> None:
    agent = model(device="cuda").learn(64)
    agent.save(tmp_path / "model")
    loaded = RecurrentPPO.load(tmp_path / "model", device="cpu")
    agent.policy.cpu()
    assert {parameter.device.type for parameter in loaded.policy.parameters()} == {"cpu"}
    assert values_of(loaded) == pytest.approx(values_of(agent), rel=1e-4)


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


@pytest.mark.parametrize("suffix", [".zip", ".rlgates"])
@pytest.mark.parametrize("error", [torch.OutOfMemoryError, RankLost])
def test_a_file_is_not_blamed_for_other_trouble(
    error: type[Exception], suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / f"model{suffix}"
    model().save(path)

    def fail(*_: Any, **__: Any) -> None:
        raise error("elsewhere")

    monkeypatch.setattr(RecurrentPPO, "_setup_model", fail)
    with pytest.raises(error, match=r"^elsewhere$"):
        RecurrentPPO.load(path)


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


class ReadsItsEnv(RecurrentPPO):
    def __init__(self, policy: Any, env: Any, **kwargs: Any) -> None:
        super().__init__(policy, env, **kwargs)
        self.share = 1 / self.env.num_envs  # type: ignore[union-attr]


class TakesKeywords(RecurrentPPO):
    def __init__(self, *, policy: Any, env: Any, bonus: float = 0.1, **kwargs: Any) -> None:
        self.bonus = bonus
        super().__init__(policy, env, **kwargs)


class SetsUp(RecurrentPPO):
    def _setup_model(self) -> None:
        super()._setup_model()
        self.extra = getattr(self, "extra", 1)


class WithoutAliases(RecurrentPPO):
    policy_aliases: ClassVar[dict[str, Any]] = {}


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (ReadsItsEnv, {"share": 0.5}),
        (TakesKeywords, {"bonus": 0.2}),
        (SetsUp, {"extra": 3}),
        (WithoutAliases, {"learning_rate": 0.1}),
    ],
)
def test_a_class_of_the_users_is_loaded(kind: Any, options: dict[str, Any], tmp_path: Path) -> None:
    env, path = toy(), tmp_path / "agent"
    kind(policy=MlpLstmPolicy, env=env, device="cpu").save(path)
    for given in ({}, options):
        loaded = kind.load(path, env=env, **given)
        assert {name: getattr(loaded, name) for name in given} == given
    with pytest.warns(
        UserWarning, match="no argument 'n_epoch'. Did you mean 'n_epochs'?"
    ) as found:
        kind.load(path, env=env, n_epoch=3)
    assert found[0].filename == __file__


def test_weights_of_another_core_are_refused(tmp_path: Path) -> None:
    model(policy_kwargs={"core": "gru"}).save(tmp_path / "gru")
    with pytest.raises((RuntimeError, ValueError), match="lstm_actor"):
        model(policy_kwargs={"core": "ur_lstm"}).set_parameters(tmp_path / "gru")
