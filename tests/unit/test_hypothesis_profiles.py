"""The profiles of hypothesis: CI can repeat a failure, the night looks for new ones."""

from __future__ import annotations

import re
from pathlib import Path

import hypothesis
import pytest

TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize(("profile", "derandomized"), [("ci", True), ("nightly", False)])
def test_profiles(profile: str, derandomized: bool) -> None:
    assert hypothesis.settings.get_profile(profile).derandomize is derandomized


def test_no_test_has_a_choice_of_its_own() -> None:
    setting = re.compile(r"settings\([^)]*derandomize")
    own = [path.name for path in TESTS.rglob("test_*.py") if setting.search(path.read_text())]
    assert own == []
