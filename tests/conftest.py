"""One thread a worker, no windows, no downloads: set before torch and matplotlib are imported."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
os.environ.setdefault("RLGATES_OFFLINE", "1")


def pytest_make_parametrize_id(val: object) -> str | None:
    """Bytes are not shown: what is packed bears a date, and workers must see the same names."""
    return f"{len(val)} bytes" if isinstance(val, bytes) else None


@pytest.fixture(scope="session", autouse=True)
def _no_cache_of_the_user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Made-up archives must not be kept where real runs would find them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def _no_data_of_another_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlgates.tasks.stored._last", (None, None))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--parity", type=Path, help="write the errors against the twins as CSV")
    parser.addoption(
        "--random-cases", default="0:100", help="cases that test_random_shapes.py runs: A:B, or A"
    )


def pytest_sessionfinish(session: pytest.Session) -> None:
    path, harness = session.config.getoption("parity"), sys.modules.get("twins.harness")
    if path is None or harness is None:
        return
    cores = sorted({core for core, _ in harness.PARITY})
    lines = [
        f"{core},{_error(harness, core, 'float64')},{_error(harness, core, 'float32')}\n"
        for core in cores
    ]
    path.write_text("core,float64,float32\n" + "".join(lines))


def _error(harness: object, core: str, dtype: str) -> str:
    error = harness.PARITY.get((core, dtype))  # type: ignore[attr-defined]
    return "" if error is None else f"{error:.1e}"
