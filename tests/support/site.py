"""The site of docs/, built once for all tests of a run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock

ROOT = Path(__file__).parents[2]


def build_site(factory: pytest.TempPathFactory) -> Path:
    """The HTML of a copy of docs/, beside the files that it includes; all workers share it.

    RLGATES_SITE names a folder where `make docs` has just built it.
    """
    if built_before := os.environ.get("RLGATES_SITE"):
        return Path(built_before)
    shared = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    folder = shared / "site"
    built = folder / "html"
    with FileLock(shared / "site.lock"):
        if not built.exists():
            shutil.rmtree(folder, ignore_errors=True)
            _build(folder, built)
    return built


def _build(folder: Path, built: Path) -> None:
    shutil.copytree(
        ROOT / "docs", folder / "docs", ignore=shutil.ignore_patterns("_build", "__py*")
    )
    for name in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "experiments"):
        (folder / name).symlink_to(ROOT / name)
    search = os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", "")))
    unfinished = folder / "unfinished"
    build = ["-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", "docs", str(unfinished)]
    for arguments in (["docs/generate.py"], build):
        finished = subprocess.run(
            [sys.executable, "-W", "ignore", *arguments],
            cwd=folder, env={**os.environ, "PYTHONPATH": search}, capture_output=True, text=True,
            check=False, timeout=3_600,
        )  # fmt: skip
        assert finished.returncode == 0, finished.stderr[-3_000:]
    unfinished.rename(built)
