"""A module of the user that fails, or whose core cannot be made: one line, before any run."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlgates.experiments.cli import main as cli
from rlgates.registry import CORES

pytestmark = pytest.mark.usefixtures("in_tmp_path")

COMMANDS = [
    ["sweep", "popgym", "--tasks", "RepeatFirst, easy", "--cores"],
    ["sweep", "all_cores", "--cores"],
    ["tune", "all_cores", "--task", "copy", "--cores"],
    ["task", "copy", "--tier", "smoke", "--core"],
    ["train", "--core"],
]
LACKS = """
from rlgates import Cell, register_core

class Mine(Cell):
    def project(self, x): ...
    def step(self, projected, state): ...

register_core("mine", Mine)
"""
NOTHING = """
from rlgates import register_core

def make(input_size, hidden_size):
    pass

register_core("mine", make)
"""
FAILS = """
from rlgates import register_core

def make(input_size, hidden_size):
    return hidden_size.units

register_core("mine", make)
"""


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    CORES.pop("mine", None)
    for name in ("mine", "package", "package.helper"):
        sys.modules.pop(name, None)


def refusal(line: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The error of a command line that writes nothing else; without its beginning."""
    before = {path.name for path in Path().iterdir()}
    assert cli.main(line) == 2
    printed, error = capsys.readouterr()
    assert printed == ""
    assert error.startswith("rlgates: error: ")
    assert error.count("\n") == 1
    assert {path.name for path in Path().iterdir()} - before <= {"__pycache__"}
    return error.removeprefix("rlgates: error: ").rstrip()


@pytest.mark.parametrize("line", COMMANDS, ids=" ".join)
def test_a_class_that_lacks_a_method_is_named_with_its_module(
    line: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("mine.py").write_text(LACKS)
    assert refusal([*line, "mine:mine"], capsys) == (
        "mine cannot be imported: mine.py, line 8: TypeError: cell must be a concrete "
        "subclass of rlgates.Cell or a factory, got <class 'mine.Mine'>, which lacks the "
        "methods reset_parameters."
    )


@pytest.mark.parametrize("line", COMMANDS, ids=" ".join)
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (NOTHING, "TypeError: the factory of 'mine' must return a Cell or a Core, got None."),
        (FAILS, "mine.py, line 5: AttributeError: 'int' object has no attribute 'units'"),
    ],
)
def test_a_factory_that_fails_is_named_with_its_module(
    line: list[str], text: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("mine.py").write_text(text)
    error = refusal([*line, "mine:mine"], capsys)
    assert error == f"core 'mine' of mine cannot be made: {reason}"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("import no_such", "helper.py, line 1: ModuleNotFoundError: No module named 'no_such'"),
        (
            "from torch import no_such",
            "helper.py, line 1: ImportError: cannot import name 'no_such' from 'torch' (",
        ),
        ("\n1 / 0", "helper.py, line 2: ZeroDivisionError: division by zero"),
        ("(", "__init__.py, line 1: SyntaxError: '(' was never closed (helper.py, line 1)"),
    ],
)
def test_what_fails_inside_a_module_is_said(
    text: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("package").mkdir()
    Path("package/__init__.py").write_text("import package.helper\n")
    Path("package/helper.py").write_text(text)
    error = refusal([*COMMANDS[0], "package:mine"], capsys)
    assert error.startswith(f"package cannot be imported: package/{reason}")
    assert "Install it" not in error


@pytest.mark.parametrize("module", ["no_such", "json.no_such"])
def test_a_module_that_is_not_there_is_to_be_installed(
    module: str, capsys: pytest.CaptureFixture[str]
) -> None:
    error = refusal([*COMMANDS[0], f"{module}:mine"], capsys)
    assert error.startswith(f"{module} cannot be imported (No module named '{module}'")
    assert "Install it, or run the command in the folder of" in error


def test_a_module_is_named_without_its_suffix(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.py").write_text("")
    error = refusal([*COMMANDS[0], "mine.py:mine"], capsys)
    assert error == "mine.py cannot be imported: name the module, mine, without .py."
