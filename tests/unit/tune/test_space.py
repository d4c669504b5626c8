"""What a search may choose from: in each study, for each core, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.tiny import TINY, tiny

from rlgates.experiments.cli import main as cli
from rlgates.experiments.studies import STUDIES, Arm, Choice, Range, Study
from rlgates.experiments.studies.space import SPACE
from rlgates.experiments.tune.config import TuneConfig
from rlgates.experiments.tune.space import boundary_configs, search_space, with_values
from rlgates.experiments.tune.spec import search_specs


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ({"lerning_rate": Range(0.1, 0.2)}, "Did you mean 'learning_rate'?"),
        ({"lstn.forget_bias": Range(0.1, 0.2)}, "unknown core 'lstn'"),
        ({"lstm.forget_bais": Range(0.1, 0.2)}, "Did you mean 'forget_bias'?"),
        ({"learning_rate": Range(-1.0, 0.2)}, "learning_rate must be finite and above 0, got -1.0"),
        ({"learning_rate": (0.1, 0.2)}, "learning_rate must be a Range or a Choice"),
    ],
)
def test_a_space_that_makes_no_sense_is_refused(
    space: Any,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    study = Study(title="tiny", laptop=(Arm(TINY, ("lstm",)),), seeds=(3,), space=space)
    monkeypatch.setitem(STUDIES, "tiny", study)
    monkeypatch.chdir(tmp_path)
    assert cli.main(["tune", "tiny"]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_default_space_is_that_of_the_paper_for_cores_with_options() -> None:
    config = replace(TINY, core_options={"input_scale": 2.0})
    assert set(search_space(SPACE, replace(config, core="ur_lstm"))) == {
        *("learning_rate", "hidden_size")
    }
    found = search_space(SPACE, replace(TINY, core="rru"))
    assert found["core.expansion"] == Range(0.1, 8.0)
    agent = tiny("runs", core="rru", core_options={})
    assert set(search_space(SPACE, agent)) == {"learning_rate", "hidden_size", "core.expansion"}
    changed = with_values(config, {"learning_rate": 0.5, "core.forget_bias": -1.0})
    assert changed.learning_rate == 0.5
    assert changed.core_options == {"input_scale": 2.0, "forget_bias": -1.0}


def test_numbers_are_used_as_they_are_written() -> None:
    assert Range(1e-4, 1e-2).plain(0.00123456) == 0.001235
    assert Range(1, 9).plain(4) == 4
    assert isinstance(Range(1, 9).plain(4), int)
    for bad, message in (((2, 1), "below high"), ((0, 1, True), "above 0 where log")):
        with pytest.raises(ValueError, match=message):
            Range(*bad)
    with pytest.raises(TypeError, match="low must be a number"):
        Range("a", 1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="two or more different values"):
        Choice((1, 1))


@pytest.mark.parametrize("name", STUDIES)
def test_the_space_of_every_study_makes_sense(name: str) -> None:
    study = STUDIES[name]
    for arm in study.arms("laptop"):
        for core in arm.cores:
            assert search_space(study.space, arm.of(core))
    first = study.arms("laptop")[0]
    if getattr(first.config, "epochs", None) is None:  # the others need their data
        for core in first.cores[:2]:
            config = first.of(core)
            for one in boundary_configs(config, search_space(study.space, config)):
                one.check()


def test_a_paper_s_settings_of_a_core_are_taken() -> None:
    study = STUDIES["music"]
    tune = TuneConfig(tier="full", task="jsb", seeds=(0,))
    found = search_specs("music", study, tune)
    assert [goal.config.core for goal in found] == ["rru", "gru", "lstm", "mogrifier"]
    assert [goal.config.learning_rate for goal in found] == [0.00495, 0.0046, 0.01, 0.00255]
    assert "core.recurrent_dropout" in found[1].space
    with pytest.raises(ValueError, match="no settings for core 'janet' here, only for rru, gru"):
        search_specs(
            "music", study, TuneConfig(tier="full", task="jsb", cores=("janet",), seeds=(0,))
        )


def test_agents_that_would_stop_at_a_goal_use_their_budget() -> None:
    arm = Arm(tiny("runs", stop_success=0.9), ("lstm",))
    study = Study(title="tiny", laptop=(arm,), seeds=(3,), space=SPACE)
    (found,) = search_specs("tiny", study, TuneConfig(seeds=(4,)))
    assert found.config == replace(arm.of("lstm"), stop_success=None, threads=found.config.threads)
