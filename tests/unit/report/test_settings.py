from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlgates.experiments.report.settings import (
    study_settings,
    study_settings_path,
    write_study_settings,
)
from rlgates.experiments.runs.files import write_json

RUNS = {
    "chart": "curves",
    "0123456789ab": {"env": "A", "gamma": 0.9, "steps": 1, "ortho_init": True, "mask": None},
    "123456789abc": {"env": "A", "gamma": 0.9, "steps": 1.0, "ortho_init": 1},
    "23456789abcd": {"env": "A", "gamma": 0.8, "steps": 1, "ortho_init": True, "extra": []},
}


@pytest.mark.parametrize("count", [2, 3, 4])
def test_settings_of_runs_are_read_as_they_were_written(tmp_path: Path, count: int) -> None:
    settings = dict(list(RUNS.items())[:count])
    write_study_settings(tmp_path, "some", settings)
    # As text: to Python 1, 1.0 and True are equal, and as settings they are not.
    read = json.dumps(study_settings(tmp_path, "some"), sort_keys=True)
    assert read == json.dumps(settings, sort_keys=True)


def test_what_all_runs_share_is_written_once(tmp_path: Path) -> None:
    write_study_settings(tmp_path, "some", RUNS)
    text = study_settings_path(tmp_path, "some").read_text()
    assert text.count('"env"') == 1
    assert text.count('"gamma"') == 3


def test_files_of_earlier_versions_can_be_read(tmp_path: Path) -> None:
    assert study_settings(tmp_path, "some") == {}
    write_json(study_settings_path(tmp_path, "some"), RUNS)
    assert study_settings(tmp_path, "some") == RUNS
