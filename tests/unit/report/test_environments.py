"""The sheet with a picture of every environment."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from rlgates.envs import ENVS
from rlgates.experiments.report.environments import (
    GAP,
    LINES,
    SCENES,
    Scene,
    all_scenes,
    draw_environments,
    scene_image,
)


def test_every_task_has_its_scene() -> None:
    scenes = all_scenes()
    assert all(scenes[env_id].words for env_id in ENVS)
    pictures = [scene_image(env_id, scenes[env_id]) for env_id in ENVS]
    assert len({picture.tobytes() for picture in pictures}) == len(ENVS)


def test_an_environment_without_a_scene_is_described_by_its_first_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(SCENES, "rlgates/RepeatFirst-v0")
    words = "Decks of 52 cards are shuffled together and dealt one by one."
    assert all_scenes()["rlgates/RepeatFirst-v0"] == Scene(words)


def test_the_sheet_has_the_pictures_as_they_are(tmp_path: Path) -> None:
    for name in ("one.png", "two.png"):
        draw_environments(tmp_path / name)
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "two.png").read_bytes()
    assert (tmp_path / "one.png").stat().st_size < 300_000
    sheet = (imread(tmp_path / "one.png")[..., :3] * 255).round().astype(np.uint8)
    first = scene_image("rlgates/PassiveMatch-v0", SCENES["rlgates/PassiveMatch-v0"])
    height, width, _ = first.shape
    np.testing.assert_array_equal(sheet[LINES:, GAP // 2 :][:height, :width], first)
