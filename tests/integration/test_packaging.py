"""The house itself: what is installed, what an import drags in, what is in git."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest

import rlgates

ROOT = Path(__file__).parents[2]
FLOORS = {folder: f"rlgates.{folder}" for folder in ("agents", "envs", "experiments")}
FLOORS["rlgates"] = "rlgates"

WITHOUT = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in absent:
            asked.append(name)
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

absent, asked = sys.argv[1:], []
sys.meta_path.insert(0, Absent())
"""


def python_files() -> list[Path]:
    return [file for floor in FLOORS for file in (ROOT / floor).rglob("*.py")]


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        (
            "import rlgates; rlgates.make_core('ur_lstm', 3, 4); assert not asked, asked",
            ["gymnasium", "stable_baselines3", "sb3_contrib"],
        ),
        (
            "import rlgates.envs; rlgates.envs.make_env_spec('rlgates/ActiveMatch-v0');"
            "assert not asked, asked",
            ["torch", "stable_baselines3", "sb3_contrib", "minigrid", "popgym", "pygame"],
        ),
        ("import rlgates; assert not asked, asked", ["torch", "numpy", "gymnasium"]),
        (
            "import rlgates; rlgates.envs.ENVS, rlgates.envs.register_env; assert not asked, asked",
            ["torch", "stable_baselines3", "sb3_contrib"],
        ),
        ("import rlgates.agents", ["rich", "tensorboard", "tqdm", "tyro"]),
    ],
)
def test_each_floor_stands_without_the_ones_above(code: str, absent: list[str]) -> None:
    command = [sys.executable, "-c", WITHOUT + code, *absent]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("missing", ["tyro", "matplotlib", "scipy", "stable_baselines3"])
def test_the_command_names_the_extra_that_it_needs(missing: str) -> None:
    code = "from rlgates.__main__ import main; sys.exit(main())"
    command = [sys.executable, "-c", WITHOUT + code, missing]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 2
    assert run.stderr == (
        f"rlgates: error: the command needs {missing}: install rlgates with its extra "
        "[experiments].\n"
    )
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"rlgates": "rlgates.__main__:main"}


def test_ctrl_c_while_packages_are_imported() -> None:
    code = """
import builtins, sys
load = builtins.__import__
def press_ctrl_c(name, *args):
    if name == "torch":
        raise KeyboardInterrupt
    return load(name, *args)
builtins.__import__ = press_ctrl_c
from rlgates.__main__ import main
sys.exit(main())
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout, run.stderr) == (130, "", "")


@pytest.mark.parametrize(
    "code",
    [
        "import rlgates; rlgates.cores.DNC, rlgates.gates.GATES, rlgates.core.Core",
        "import rlgates; all(hasattr(rlgates, name) for name in dir(rlgates)) or 1 / 0",
        "from rlgates import *; make_core, timescale",
    ],
)
def test_what_an_import_leaves_out_is_there_when_asked_for(code: str) -> None:
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def test_version_is_the_installed_one() -> None:
    installed = importlib.metadata.version("rlgates")
    assert installed == rlgates.__version__, "touch pyproject.toml and run make setup"


def test_citation_and_changelog_know_the_version() -> None:
    assert f"\nversion: {rlgates.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"\n## [{rlgates.__version__}]" in (ROOT / "CHANGELOG.md").read_text()


def test_every_folder_with_code_is_a_package() -> None:
    """setup.py installs the packages that it finds."""
    folders = {file.parent for file in python_files()}
    assert [str(folder) for folder in folders if not (folder / "__init__.py").exists()] == []


def test_the_package_is_typed() -> None:
    assert (ROOT / "rlgates" / "py.typed").exists()


def test_files_in_git_are_small() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    files = [ROOT / name for name in listed.stdout.split("\0") if name]
    # The rows and curves of the memory benchmark are text of 3,300 runs.
    limits = dict.fromkeys(("popgym.csv", "popgym_curves.csv"), 2_000_000)
    large = [
        str(file)
        for file in files
        if file.is_file() and file.stat().st_size > limits.get(file.name, 1_000_000)
    ]
    assert not large, f"files in git have at most 1 MB, got {large}"


@pytest.mark.slow
@pytest.mark.parametrize("native", ["", "0"])
def test_the_sdist_needs_neither_git_nor_a_compiler(native: str, tmp_path: Path) -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, check=True)
    for name in listed.stdout.decode().splitlines():
        if not name.startswith(("tests/", "experiments/results/")):
            target = tmp_path / "source" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target, follow_symlinks=False)
    env = {**os.environ, "CC": "false", "CXX": "false", "RLGATES_NATIVE": native}
    env.pop("PYTHONPATH", None)

    def run(*words: str) -> None:
        made = subprocess.run(
            [sys.executable, *words], cwd=tmp_path, env=env, capture_output=True, text=True
        )
        assert made.returncode == 0, made.stdout + made.stderr

    run("-m", "build", "-q", "--sdist", "--no-isolation", "--outdir", "dist", "source")
    (sdist,) = (tmp_path / "dist").iterdir()
    installed = tmp_path / "installed"
    pip = ("-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index")
    run(*pip, "--target", str(installed), str(sdist))
    assert not list(installed.rglob("*.so"))
    assert (installed / "rlgates" / "agents" / "zoo" / "hyperparams").is_dir()
    run(
        "-ISc",
        "import sys; sys.path[:0] = sys.argv[1:]; import rlgates, torch;"
        "assert rlgates.__file__.startswith(sys.argv[1]);"
        "core = rlgates.make_core('ur_lstm', 3, 4); core(torch.randn(5, 2, 3));"
        "assert core.explain_backend(torch.randn(5, 2, 3))[0].backend == 'plain'",
        str(installed),
        sysconfig.get_path("purelib"),
    )
