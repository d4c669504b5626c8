"""README and CONTRIBUTING are up to date: their code runs, their tables match code and results."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rlgates.experiments.cli.main import main
from rlgates.experiments.report.readme import fill_in
from rlgates.kernels.cpu import abi
from rlgates.registry import CORES

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
BLOCK = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)
BLOCKS = BLOCK.findall(README)
CONTRIBUTING = BLOCK.findall((ROOT / "CONTRIBUTING.md").read_text())
EXAMPLES = [code for language, code in CONTRIBUTING if language == "python"]
FILES = {  # blocks that begin with a path
    match[1]: code for code in EXAMPLES if (match := re.match(r"# (\S+\.py)\n", code))
}
(KERNEL_SCRIPT,) = (code for code in EXAMPLES if "CellSpec(" in code)
SCRIPTS = [code for code in EXAMPLES if code not in (*FILES.values(), KERNEL_SCRIPT)]
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


@pytest.mark.parametrize("code", SCRIPTS, ids=range(len(SCRIPTS)))
def test_examples_for_contributors_run(code: str, tmp_path: Path) -> None:
    """Each in a process of its own, because it registers what it defines."""
    command = [sys.executable, "-W", "ignore", "-c", code]
    finished = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120
    )
    assert finished.returncode == 0, finished.stderr


@pytest.mark.skipif(not abi.built(), reason="there is no compiler")
def test_a_native_kernel_takes_three_files(tmp_path: Path) -> None:
    """In a copy of the package, built again with the kernel."""
    ((_, header),) = (block for block in CONTRIBUTING if block[0] == "cpp")
    ((_, diff),) = (block for block in CONTRIBUTING if block[0] == "diff")
    ignored = shutil.ignore_patterns("__py*", "*.so", "agents", "envs", "experiments")
    shutil.copytree(ROOT / "rlgates", tmp_path / "rlgates", ignore=ignored)
    for name in ("agents", "envs", "experiments"):
        (tmp_path / "rlgates" / name).symlink_to(ROOT / name)
    for name in ("agents", "envs", "experiments", "setup.py", "pyproject.toml"):
        (tmp_path / name).symlink_to(ROOT / name)
    path = header.split("\n", 1)[0].removeprefix("// ")
    (tmp_path / path).write_text(header)
    (core,) = (code for code in SCRIPTS if "class Leaky" in code)
    (tmp_path / "leaky.py").write_text(core.split("model = ")[0])
    (tmp_path / "kernel.py").write_text(KERNEL_SCRIPT)
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT / 'tests'}"}
    build = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    for command in (["patch", "-p1"], build, [sys.executable, "-W", "ignore", "kernel.py"]):
        finished = subprocess.run(
            command, cwd=tmp_path, env=environment, input=diff, capture_output=True, text=True,
            check=False, timeout=300,
        )  # fmt: skip
        assert finished.returncode == 0, finished.stderr + finished.stdout


def test_an_environment_takes_two_files(tmp_path: Path) -> None:
    """In a copy of the tree with nothing else: its own tests, and those of every environment."""
    assert list(FILES) == ["envs/games/parity.py", "tests/twins/test_parity.py"]
    for folder in ("envs", "tests"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__py*"))
    for path in ("rlgates", "agents", "experiments"):
        (tmp_path / path).mkdir()
        for entry in (ROOT / path).iterdir():
            if not entry.is_symlink():  # those of the checkout lead to the folders beside it
                (tmp_path / path / entry.name).symlink_to(entry)
    for path in ("envs", "agents", "experiments"):
        (tmp_path / "rlgates" / path).symlink_to(tmp_path / path)
    (tmp_path / "pyproject.toml").symlink_to(ROOT / "pyproject.toml")
    for path, code in FILES.items():
        (tmp_path / path).write_text(code)
    tests = (
        "twins/test_parity.py",
        "conformance/test_envs.py",
        "unit/envs/test_players.py",
        "unit/envs/test_render.py",
        "unit/report/test_environments.py",
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--golden", "-k"]
    finished = subprocess.run(
        [*command, "parity or Parity or scene", *(f"tests/{path}" for path in tests)],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True,
        text=True, check=False, timeout=300,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stdout
    passed = re.search(r"(\d+) passed", finished.stdout)
    assert passed is not None
    assert int(passed[1]) > 25  # the conformance tests too
    golden = (tmp_path / "tests/golden/envs.json").read_text()
    added = [line for line in golden.splitlines() if "Parity" in line]
    assert len(added) == 1


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
