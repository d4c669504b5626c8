"""The README is up to date: its code runs, and its tables match the code and the results."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rlgates.experiments.cli.main import main
from rlgates.experiments.report.readme import fill_in
from rlgates.registry import CORES

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README, re.DOTALL)
PYTHON = [code for language, code in BLOCKS if language == "python"]
SHELL = [
    line.split("  #")[0].strip()
    for language, code in BLOCKS
    if language == "bash"
    for line in code.splitlines()
]


@pytest.mark.parametrize("code", PYTHON, ids=range(len(PYTHON)))
def test_code_runs(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "README.md", "exec"), {})


def test_tables_match_the_code_and_the_results() -> None:
    """`rlgates figures` writes them again."""
    assert fill_in(README, ROOT / "experiments" / "results") == README
    assert "| `ur_` | uniform refine |" in README
    assert all(f"\n| `{core}` |" in README for core in CORES)


def test_shell_commands_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert [line for line in SHELL if line.startswith("make ")] == ["make demo", "make test"]
    for line in SHELL:
        if line.startswith("make "):
            assert f"\n{line.removeprefix('make ')}:" in makefile


@pytest.mark.parametrize("line", [line for line in SHELL if line.startswith("rlgates ")])
def test_rlgates_commands_are_understood(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main([*line.split()[1:], "--help"])
    assert stop.value.code == 0
    assert "usage" in capsys.readouterr().out.lower()


def test_a_text_without_markers_is_unchanged() -> None:
    assert fill_in("mine", ROOT / "experiments" / "results") == "mine"


def test_images_exist() -> None:
    for path in re.findall(r"!\[.*?\]\((.*?)\)", README, re.DOTALL):
        assert (ROOT / path).exists()
