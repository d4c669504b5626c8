"""The settings of a study's runs: `<name>.json`, beside its tables."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlgates.experiments.runs.files import read_json, write_json

CHART = "chart"  # how the study is plotted; the other keys are digests of settings
SHARED = "shared"  # in the file: what all of its runs have, which each then lacks


def study_settings_path(results: Path, name: str) -> Path:
    """Return the file that holds the settings of a study's runs."""
    return results / f"{name}.json"


def study_settings(results: Path, name: str) -> dict[str, Any]:
    """Read the settings of a study's runs by their digest, and its `CHART`; empty if absent.

    Raises:
        Damaged: the file is.
    """
    content = read_json(study_settings_path(results, name)) or {}
    shared = content.pop(SHARED, {})
    return {
        key: {**shared, **value} if isinstance(value, dict) else value
        for key, value in content.items()
    }


def write_study_settings(results: Path, name: str, settings: Mapping[str, Any]) -> None:
    """Write what `study_settings` reads.

    A study of thousands of runs differs in five settings of thirty; those that it shares are
    written once.
    """
    runs = {key: run for key, run in settings.items() if key != CHART}
    first, *others = runs.values()
    # As text: settings that differ as 1, 1.0 and True do are not shared.
    shared = {
        setting: value
        for setting, value in first.items()
        if all(setting in run and repr(run[setting]) == repr(value) for run in others)
    }
    differing = {
        key: {setting: value for setting, value in run.items() if setting not in shared}
        for key, run in runs.items()
    }
    content = {CHART: settings[CHART], SHARED: shared, **differing}
    write_json(study_settings_path(results, name), content)
