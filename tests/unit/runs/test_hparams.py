"""The HParams tab of TensorBoard: the settings of runs, and what they reached."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.tiny import TINY, tiny
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import metadata
from tensorboard.plugins.hparams.plugin_data_pb2 import SessionEndInfo, SessionStartInfo

from rlgates.experiments.runs.agent.train import train
from rlgates.experiments.runs.folder import RunFolder
from rlgates.experiments.runs.hparams import hyperparameters
from rlgates.experiments.runs.network.train import TaskRun
from rlgates.registry import ALIASES


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def session(folder: Path) -> tuple[SessionStartInfo, SessionEndInfo, dict[str, float]]:
    """What a run's event files hold for the tab HParams."""
    events = EventAccumulator(str(folder))
    events.Reload()
    contents = events.PluginTagToContent("hparams")
    final = {
        tag.removeprefix("final/"): events.Scalars(tag)[-1].value
        for tag in events.Tags()["scalars"]
        if tag.startswith("final/")
    }
    return (
        metadata.parse_session_start_info_plugin_data(contents[metadata.SESSION_START_INFO_TAG]),
        metadata.parse_session_end_info_plugin_data(contents[metadata.SESSION_END_INFO_TAG]),
        final,
    )


def test_the_settings_of_an_agent_and_what_it_reached() -> None:
    config = tiny("runs", core_options={"input_scale": 2.0}, total_steps=112, eval_every=56)
    result = train(config, 3, bar=False)
    start, end, final = session(config.run_folder(3))
    said = {name: getattr(value, value.WhichOneof("kind")) for name, value in start.hparams.items()}
    assert said == hyperparameters(config, 3)
    assert (said["core"], said["gate"], said["seed"]) == ("ur_lstm", "ur", 3)
    assert (said["core.input_scale"], said["task.end_on_choice"]) == (2.0, True)
    assert said["net_arch"] == "[]"
    assert not {"folder", "seeds", "jobs", "stop_success", "core_options"} & set(said)
    assert end.status == 1
    expected = {name: getattr(result, name) for name in ("success", "last_phase_reward", "steps")}
    assert final == pytest.approx({**expected, "seconds": result.seconds})


def test_the_settings_of_a_network_and_what_it_reached() -> None:
    config = replace(TINY, folder="runs")
    run = TaskRun(config, 2)
    learned = run.train()
    start, end, final = session(run.folder.path)
    said = {name: getattr(value, value.WhichOneof("kind")) for name, value in start.hparams.items()}
    assert said == hyperparameters(config, 2)
    assert (said["task"], said["task.delay"], said["learning_rate"]) == ("copy", 2, 4e-3)
    assert end.status == 1
    loss = learned.losses[-1][1]
    expected = {"test_loss": learned.test["loss"], "loss": loss, "steps": 6}
    assert final == pytest.approx({**expected, "seconds": learned.seconds})


@pytest.mark.parametrize("alias", ALIASES)
def test_a_core_by_another_name_has_the_gate_of_its_core(alias: str) -> None:
    said, expected = (
        hyperparameters(replace(TINY, core=core), 0) for core in (alias, ALIASES[alias])
    )
    assert said == {**expected, "core": alias}


def test_what_a_network_that_diverged_reached() -> None:
    run = TaskRun(replace(TINY, folder="runs"), 0)
    with torch.no_grad():
        run.network.decoder.bias.fill_(torch.inf)
    run.train()
    _, _, final = session(run.folder.path)
    assert set(final) == {"steps", "seconds"}


@pytest.mark.parametrize("kind", ["agent", "network"])
def test_a_run_killed_at_its_very_end_writes_it_again(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(folder: str) -> Path:
        if kind == "agent":
            config = tiny(folder, total_steps=112, eval_every=None)
            train(config, 0, bar=False)
            return config.run_folder(0)
        made = TaskRun(replace(TINY, folder=folder), 0)
        made.train()
        return made.folder.path

    def die(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    straight = run("straight")
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "finish", die)
        with pytest.raises(KeyboardInterrupt):
            run("killed")
    killed = run("killed")
    (one, _, reached), (other, _, expected) = session(killed), session(straight)
    assert one.hparams == other.hparams
    assert {**reached, "seconds": 0} == {**expected, "seconds": 0}
