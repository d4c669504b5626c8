"""One thread per worker, no windows, no downloads: set before torch and matplotlib are imported."""

from __future__ import annotations

import math
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest
from support import game_parity, public_parity

os.environ["OMP_NUM_THREADS"] = "1"
for _name in ("NO_PROXY", "no_proxy"):  # some tests serve files
    os.environ[_name] = ",".join(filter(None, (os.environ.get(_name), "127.0.0.1,localhost")))
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
os.environ.setdefault("RLGATES_OFFLINE", "1")
if not Path("/dev/nvidiactl").exists():  # Triton reads it when it is imported, as by torch.compile
    os.environ.setdefault("TRITON_INTERPRET", "1")


# CI must be able to repeat a failure; --hypothesis-profile nightly looks for new ones.
hypothesis.settings.register_profile("ci", derandomize=True)
hypothesis.settings.register_profile("dev")
hypothesis.settings.register_profile("nightly", derandomize=False, print_blob=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "dev")


def pytest_make_parametrize_id(val: object) -> str | None:
    """Compressed bytes contain a date, but all workers must see the same test names."""
    return f"{len(val)} bytes" if isinstance(val, bytes) else None


@pytest.fixture(scope="session", autouse=True)
def _temporary_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Artificial archives must not be kept where real runs would find them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def _no_loaded_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlgates.experiments.tasks.data.dataset._last_loaded", (None, None))


@pytest.fixture(autouse=True)
def _same_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands add the folders of the user's modules."""
    monkeypatch.setattr(sys, "path", [*sys.path])


@pytest.fixture(autouse=True)
def _no_lines_of_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run prints one every few seconds, which no run of a test takes but on a busy machine."""
    monkeypatch.setattr("rlgates.experiments.runs.progress.LINE_EVERY", math.inf)


@pytest.fixture(autouse=True)
def _checked_distributions() -> Iterator[None]:
    """The first use of torch.compile turns their checks off in the whole process."""
    yield
    distributions = sys.modules.get("torch.distributions")
    if distributions is not None:
        distributions.Distribution.set_default_validate_args(True)


@pytest.fixture
def in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test runs in an empty folder of its own."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="session")
def published_data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Path]]:
    """The data folder with one set, by its name, in the published form; skips if it is missing."""
    from support.packed_data import published_folder

    folder = tmp_path_factory.mktemp("published")
    yield lambda name: published_folder(name, folder)
    shutil.rmtree(folder, ignore_errors=True)


# What `make test-quick` leaves out: these take most of the time.
NOT_QUICK = (
    "conformance/test_bad_inputs.py",
    "conformance/test_contract.py",
    "conformance/test_envs.py",
    "conformance/test_gradients.py",
    "conformance/test_identity.py",
    "conformance/test_precision.py",
    "conformance/test_sb3_promises.py",
    "conformance/test_sequence.py",
    "integration/",
    "twins/test_cores.py",
    "twins/test_dnc.py",
    "twins/test_rma.py",
    "twins/test_rmc.py",
    "unit/agents/test_a2c.py",
    "unit/agents/test_gate_callback.py",
    "unit/agents/test_hostile_files.py",
    "unit/agents/test_maskable.py",
    "unit/agents/test_onnx.py",
    "unit/agents/test_policies.py",
    "unit/agents/test_rma_policy.py",
    "unit/agents/test_safe_files.py",
    "unit/analysis/test_closed_form.py",
    "unit/bench/test_bench.py",
    "unit/envs/test_players.py",
    "unit/envs/test_repeat.py",
    "unit/envs/test_tmaze.py",
    "unit/kernels/test_channel_kernels.py",
    "unit/kernels/test_linear_backends.py",
    "unit/kernels/test_scan.py",
    "unit/plots/test_forget_gates.py",
    "unit/report/test_cost_figures.py",
    "unit/report/test_length_figures.py",
    "unit/runs/test_horizon.py",
    "unit/runs/test_hparams.py",
    "unit/runs/test_network_runs.py",
    "unit/runs/test_train.py",
    "unit/show/test_film.py",
    "unit/tasks/test_hub.py",
    "unit/tasks/test_protocols.py",
    "unit/tasks/test_published_data.py",
    "unit/tune/test_journal.py",
)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With --quick, leave out the files of `NOT_QUICK`."""
    if not config.getoption("quick"):
        return
    slow = tuple(str(Path(__file__).parent / name) for name in NOT_QUICK)
    excluded = [item for item in items if str(item.path).startswith(slow)]
    config.hook.pytest_deselected(items=excluded)
    items[:] = [item for item in items if item not in set(excluded)]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="leave out what takes long")
    parser.addoption("--golden", action="store_true", help="write digests of new environments")
    parser.addoption("--faults", type=int, default=1, help="times as many faults and updates")
    parser.addoption("--parity", type=Path, help="write the errors against the twins as CSV")
    parser.addoption("--game-parity", type=Path, help="write how games differ from their originals")
    parser.addoption("--public-parity", type=Path, help="write how cores differ from public ones")
    parser.addoption(
        "--random-cases", default="0:50", help="cases that test_random_shapes.py runs: A:B, or A"
    )


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if exitstatus:
        return
    games = session.config.getoption("game_parity")
    if games is not None:
        games.write_text(game_parity.table())
    public = session.config.getoption("public_parity")
    if public is not None:
        public.write_text(public_parity.table())
    path, harness = session.config.getoption("parity"), sys.modules.get("support.twin_harness")
    if path is None or harness is None:
        return
    from rlgates.experiments.runs.files import write_table  # the digest of results is listed

    dtypes = ("float64", "float32")
    rows = [
        {"core": core, **{dtype: _error(harness, core, dtype) for dtype in dtypes}}
        for core in sorted({core for core, _ in harness.PARITY})
    ]
    write_table(path, rows, ["core", *dtypes])


def _error(harness: object, core: str, dtype: str) -> str:
    error = harness.PARITY.get((core, dtype))  # type: ignore[attr-defined]
    return "" if error is None else f"{error:.1e}"
