"""README, docs and CONTRIBUTING are up to date: code runs, tables match code and results."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from itertools import takewhile
from pathlib import Path

import pytest
from stable_baselines3.common.logger import Logger

from rlgates import GateCallback, RecurrentA2C, RecurrentPPO
from rlgates.agents.callbacks import QUANTILES
from rlgates.envs.sb3 import make_vec_env
from rlgates.experiments.cli.main import main
from rlgates.experiments.report.readme import fill_in, fill_in_pages
from rlgates.experiments.sweep.sweep import find_study, matching_titles
from rlgates.kernels.cpu import abi
from rlgates.registry import CORES

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "experiments" / "results"
README = (ROOT / "README.md").read_text()
PAGES = {  # the others of docs/ are generated
    str(path.relative_to(ROOT)): path.read_text()
    for path in (
        ROOT / "README.md",
        ROOT / "docs" / "index.md",
        *sorted(ROOT.glob("docs/guides/*.md")),
        *sorted(ROOT.glob("docs/results/*.md")),
        *sorted(ROOT.glob("docs/reference/*.md")),
    )
}
BLOCK = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)
LINK = re.compile(r"\]\(([^)\s#]*)(?:#[^)]*)?\)")
CONTRIBUTING = BLOCK.findall((ROOT / "CONTRIBUTING.md").read_text())
EXAMPLES = [code for language, code in CONTRIBUTING if language == "python"]
FILES = {  # blocks that begin with a path
    match[1]: code for code in EXAMPLES if (match := re.match(r"# (\S+\.py)\n", code))
}
(KERNEL_SCRIPT,) = (code for code in EXAMPLES if "CellSpec(" in code)
SCRIPTS = [code for code in EXAMPLES if code not in (*FILES.values(), KERNEL_SCRIPT)]
CODE = {
    name: [code for language, code in BLOCK.findall(text) if language == "python"]
    for name, text in PAGES.items()
}
SHELL = [
    line.split("  #")[0].strip()
    for text in PAGES.values()
    for language, code in BLOCK.findall(text)
    if language == "bash"
    for line in code.splitlines()
]


@pytest.mark.parametrize("page", [page for page, blocks in CODE.items() if blocks])
def test_code_runs_from_top_to_bottom(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "page"}
    registered = dict(CORES)
    try:
        for code in CODE[page]:
            exec(compile(code, page, "exec"), names)
    finally:  # a page may register a core, which is no other test's
        CORES.clear()
        CORES.update(registered)


@pytest.mark.parametrize("code", SCRIPTS, ids=range(len(SCRIPTS)))
def test_examples_for_contributors_run(code: str, tmp_path: Path) -> None:
    """Each in a process of its own, because it registers what it defines."""
    command = [sys.executable, "-W", "ignore", "-c", code]
    finished = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=600
    )
    assert finished.returncode == 0, finished.stderr


@pytest.mark.slow
@pytest.mark.skipif(not abi.built(), reason="there is no compiler")
def test_a_native_kernel_takes_three_files(tmp_path: Path) -> None:
    """In a copy of the package, built again with the kernel; to save time, less optimized and for
    one instruction set alone."""
    ((_, header),) = (block for block in CONTRIBUTING if block[0] == "cpp")
    ((_, diff),) = (block for block in CONTRIBUTING if block[0] == "diff")
    ignored = shutil.ignore_patterns("__py*", "*.so", "agents", "envs", "experiments")
    shutil.copytree(ROOT / "rlgates", tmp_path / "rlgates", ignore=ignored)
    for name in ("agents", "envs", "experiments"):
        (tmp_path / "rlgates" / name).symlink_to(ROOT / name)
    for name in ("agents", "envs", "experiments", "pyproject.toml"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "setup.py").write_text((ROOT / "setup.py").read_text().replace('"-O3"', '"-O1"'))
    instructions = tmp_path / "rlgates/kernels/cpu/csrc/instructions.h"
    code = instructions.read_text()
    assert "defined(__x86_64__)" in code
    instructions.write_text(code.replace("defined(__x86_64__)", "0"))
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
            check=False, timeout=900,
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
        text=True, check=False, timeout=900,
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
    for name, text in PAGES.items():
        assert fill_in(text, RESULTS) == text, name
    names = PAGES["docs/reference/names.md"]
    assert "| `ur_` | uniform refine |" in names
    assert all(f"\n| `{core}` |" in names for core in CORES)


def test_every_table_for_markers_is_in_a_page() -> None:
    """And none is in two."""
    marked = [name for text in PAGES.values() for name in re.findall("<!-- /(\\w+) -->", text)]
    assert len(marked) == len(set(marked)) == 24


def test_readme_fits_a_screen_and_quotes_the_tables_it_links() -> None:
    assert len(README.splitlines()) <= 150
    section = README.partition("## Measured")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if "experiments/results/" in line and "|" in line]
    assert len(rows) == 5
    for row in rows:
        (link,) = LINK.findall(row)
        numbers = re.findall(r"[\d.]+ \[[^\]]+\]", row)
        table = (ROOT / link).read_text()
        assert row.split("|")[-2].strip() in table
        assert numbers
        assert all(f"| {number} |" in table for number in numbers), row


def test_shell_commands_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    makes = [line for line in SHELL if line.startswith("make ")]
    assert makes[:2] == ["make demo", "make test"]
    for line in makes:
        assert f"\n{line.removeprefix('make ')}:" in makefile


@pytest.mark.parametrize(
    "line", dict.fromkeys(line for line in SHELL if line.startswith("rlgates "))
)
def test_rlgates_commands_are_understood(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main([*line.partition(" > ")[0].split()[1:], "--help-all"])
    assert stop.value.code == 0
    assert "usage" in capsys.readouterr().out.lower()


def test_studies_and_tasks_in_commands_exist() -> None:
    # Tables name the commands that made them, under their names of then.
    generated = re.compile(r"<!-- (\w+) -->.*?<!-- /\1 -->", re.DOTALL)
    prose = [generated.sub("", text) for text in PAGES.values()]
    spans = [span for text in prose for span in re.findall(r"`(rlgates [^`]+)`", text)]
    commands = [shlex.split(line) for line in dict.fromkeys([*SHELL, *spans])]
    named = [words for words in commands if words[1:2] in (["sweep"], ["tune"]) and words[2:]]
    tasks = 0
    for _, _, name, *options in named:
        if name.startswith(("-", "NAME", "mine")):  # all studies, any, one of the reader
            continue
        _, study = find_study(name)
        for option in ("--task", "--tasks"):
            after = options[options.index(option) + 1 :] if option in options else []
            for task in takewhile(lambda word: not word.startswith("--"), after):
                assert matching_titles(name, task, study.titles("laptop"))
                tasks += 1
    assert tasks > 4


def test_a_text_without_markers_is_unchanged() -> None:
    assert fill_in("mine", RESULTS) == "mine"


def test_figures_fills_in_the_pages_beside_the_readme(tmp_path: Path) -> None:
    page = tmp_path / "docs" / "names.md"
    page.parent.mkdir()
    page.write_text("<!-- gates -->\nold\n<!-- /gates -->\n")
    (tmp_path / "README.md").write_text("mine")
    assert list(fill_in_pages(tmp_path / "README.md", RESULTS)) == [page]
    assert "| `ur_` | uniform refine |" in page.read_text()
    assert "old" not in page.read_text()


def test_every_logged_metric_is_explained() -> None:
    described = set(re.findall(r"`([a-z]+/[\w]+)`", PAGES["docs/reference/metrics.md"]))
    logged = set()
    policy, env = "MlpLstmPolicy", make_vec_env("rlgates/PassiveTMaze-v0", 4, corridor_length=5)
    for model in (
        RecurrentPPO(policy, env, n_steps=16, batch_size=16, clip_range_vf=0.2, target_kl=1.0),
        RecurrentPPO(policy, "Pendulum-v1", n_steps=16, batch_size=16),
        RecurrentA2C(policy, env, n_steps=16),
    ):
        logger = Logger(None, output_formats=[])
        names = logger.name_to_value
        logger.dump = lambda step=0, names=names: logged.update(names)  # type: ignore[method-assign]
        model.set_logger(logger)
        model.learn(128, callback=GateCallback(every=1), log_interval=1)
        logged.update(names)
    assert len(logged) > 20
    described_names = {name for name in logged if name in described}
    quantiles = {f"gates/{gate}/{q}" for gate in ("forget", "log10_timescale") for q in QUANTILES}
    assert logged - described_names == quantiles


@pytest.mark.parametrize("page", PAGES)
def test_links_and_images_exist(page: str) -> None:
    """They are links to files in git, which readers of the repository have, and not of the site."""
    folder = (ROOT / page).parent
    generated = {"api", "cores", "environments", "gates", "studies", "tables", "tasks"}
    for link in LINK.findall(BLOCK.sub("", PAGES[page])):
        if not link or link.startswith("http"):
            continue
        target = (folder / link).resolve()
        assert target.relative_to(ROOT).parts[:2] not in {("docs", name) for name in generated}
        assert target.exists(), link
