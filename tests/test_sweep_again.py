"""What is read back from a study's tables and folders: its pictures, its settings, its runs."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from test_supervise import TINY
from tiny import tiny

from rlgates.experiments import cli
from rlgates.experiments.agent_tables import env_settings
from rlgates.experiments.studies import STUDIES, Arm, Study
from rlgates.experiments.sweep import SweepConfig, run_sweep
from rlgates.experiments.sweep_tables import redraw_studies
from rlgates.experiments.tables import read


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_pictures_are_drawn_again_as_the_study_has_them() -> None:
    Path("mine.py").write_text(
        "from rlgates.experiments.studies import Arm, Study\n"
        "from rlgates.experiments.supervised_tiers import task_config\n"
        "STUDY = Study(title='mine', laptop=(Arm(task_config('copy', 'smoke'), ('lstm',)),),\n"
        "              seeds=(1,), chart='heat')\n"
    )
    assert cli.main(["sweep", "mine.py", "--results", "results"]) == 0
    made = {path.name: path.read_bytes() for path in Path("results").iterdir()}
    redraw_studies(Path("results"))
    assert made == {path.name: path.read_bytes() for path in Path("results").iterdir()}


def test_settings_of_any_kind_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny("runs", total_steps=112, eval_every=None)
    settings = {**config.env_settings, "apple_reward": (1.0, 10.0)}
    arm = Arm(replace(config, env_settings=settings), ("none",))
    monkeypatch.setitem(STUDIES, "agents", Study(title="one", laptop=(arm,), seeds=(0,)))
    (outcome,) = run_sweep("agents", SweepConfig(results="results", jobs=1))
    assert not outcome.error
    (row,) = read(Path("results/agents.csv"))
    assert env_settings(row) == settings
    words = {"env_settings": "explore_steps=15 distractor_steps=30"}  # of earlier versions
    assert env_settings(words) == {"explore_steps": 15, "distractor_steps": 30}


def test_a_damaged_run_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    study = Study(title="one", laptop=(Arm(TINY, ("lstm",)),), seeds=(4, 5))
    monkeypatch.setitem(STUDIES, "networks", study)
    sweep = SweepConfig(results="results", jobs=1)
    run_sweep("networks", sweep)
    shutil.rmtree("results")
    (damaged,) = Path("runs").rglob("seed-5/manifest.json")
    damaged.write_text(damaged.read_text()[:50])
    one, other = run_sweep("networks", sweep)
    assert (one.error, one.before) == ("", True)
    assert f"{damaged} is damaged" in other.error
    assert len(read(Path("results/networks.csv"))) == 1


@pytest.mark.parametrize("env", ["PassiveTMaze", "KeyToDoor", "MemoryChain"])
def test_environments_without_a_scripted_player_have_curves_alone(
    env: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"env": f"rlgates/{env}-v0", "env_settings": {}}
    config = tiny("runs", **settings, total_steps=112, eval_every=None)
    study = Study(title="others", laptop=(Arm(config, ("none",)),), seeds=(0,))
    monkeypatch.setitem(STUDIES, "others", study)
    run_sweep("others", SweepConfig(results="results", jobs=1))
    assert {path.name for path in Path("results").glob("*.png")} == {"others.png"}
