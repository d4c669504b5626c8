"""The comparison with sb3-contrib: same settings for both, runs made once, table and picture."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import BrokenExecutor
from pathlib import Path
from typing import Any

import pytest
from matplotlib.image import imread

from rlgates.experiments import learning
from rlgates.experiments.cli import main
from rlgates.experiments.configs import LearningConfig
from rlgates.experiments.learning import TASKS, UPSTREAM, learn, run_learning, table
from rlgates.experiments.tables import read


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Budgets of two rollouts, in this process."""
    for name, setting in TASKS.items():
        settings = {**setting.settings, "n_steps": 16, "batch_size": 32, "n_epochs": 1}
        steps = 2 * 16 * setting.make(0, True).num_envs
        monkeypatch.setitem(TASKS, name, setting._replace(steps=steps, settings=settings))
    monkeypatch.setattr(learning, "EVALUATIONS", 2)
    monkeypatch.setattr(learning, "EPISODES", 2)
    monkeypatch.setattr(learning, "ProcessPoolExecutor", Here)


class Here:
    """A pool that does the work itself."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __enter__(self) -> Here:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def submit(self, function: Any, *args: Any) -> Any:
        from concurrent.futures import Future

        future: Future[Any] = Future()
        try:
            future.set_result(function(*args))
        except Exception as error:
            future.set_exception(error)
        return future


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("agent", [UPSTREAM, "lstm:forget_bias=0.0,input_scale=2"])
def test_a_run(task: str, agent: str) -> None:
    learned = learn(task, agent, 0)
    assert learned.steps == [TASKS[task].steps // 2, TASKS[task].steps]
    assert len(learned.returns) == 2
    assert learned.returns == learn(task, agent, 0).returns


@pytest.mark.usefixtures("tiny")
def test_what_is_there_is_not_made_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = LearningConfig(
        tasks=("cartpole",), agents=(UPSTREAM, "lstm"), seeds=(0, 1), results=str(tmp_path)
    )
    assert run_learning(config) == 0
    rows = read(tmp_path / "learning.csv")
    assert len(rows) == 2 * 2 * 2
    assert "of 2" in (tmp_path / "learning.md").read_text()
    assert imread(tmp_path / "learning.png").std() > 0.01
    capsys.readouterr()
    monkeypatch.setattr(learning, "learn", lambda *_: 1 / 0)
    assert run_learning(config) == 0  # nothing is left to be done
    assert read(tmp_path / "learning.csv") == rows
    more = LearningConfig(tasks=("cartpole",), agents=("none",), seeds=(0,), results=str(tmp_path))
    assert run_learning(more) == 1
    assert "failed: division by zero" in capsys.readouterr().out


@pytest.mark.usefixtures("tiny")
def test_ctrl_c_keeps_what_is_under_way_and_begins_no_more(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*run: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        return learn(*run)

    monkeypatch.setattr(learning, "learn", interrupted)
    config = LearningConfig(tasks=("cartpole",), agents=("lstm", "none"), results=str(tmp_path))
    assert run_learning(config) == 130
    said = capfd.readouterr()
    assert "9 of 10 runs were not begun" in said.out
    assert "the same command goes on" in said.err
    assert {(row["core"], row["seed"]) for row in read(tmp_path / "learning.csv")} == {
        ("lstm", "0")
    }
    assert (tmp_path / "learning.png").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
def test_no_process_outlives_the_first_one(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "rlgates.experiments.cli", "compare", "--tasks", "minigrid9"]
    process = subprocess.Popen(
        [*command, "--agents", "none", "--seeds", "0", "--results", str(tmp_path)],
        stdout=subprocess.PIPE,  # which its workers have open as long as they live
    )
    time.sleep(12)
    assert process.poll() is None
    process.kill()
    process.communicate(timeout=30)


def test_a_pool_that_breaks_fails_every_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken(Here):
        def submit(self, function: Any, *args: Any) -> Any:
            raise BrokenExecutor("a process died")

    monkeypatch.setattr(learning, "ProcessPoolExecutor", Broken)
    config = LearningConfig(tasks=("cartpole",), agents=("none",), results=str(tmp_path))
    assert run_learning(config) == 1
    assert capsys.readouterr().out.count("failed: a process died") == 5


def test_the_table_tells_who_learned() -> None:
    rows = [
        {
            "title": "cartpole",
            "core": "lstm",
            "seed": str(seed),
            "steps": "100",
            "mean_return": str(value),
            "seconds": "60",
            "commit": "abcdefghij",
        }
        for seed, value in enumerate((449.0, 450.0, 500.0))
    ]
    line = table(rows).splitlines()[2]
    assert "| `lstm` | 466 [" in line
    assert "| 2 of 3 | 100 (2) | 1 min 0 s |" in line


def test_bad_input(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "--tasks", "cartpol"]) == 2
    assert "Did you mean 'cartpole'" in capsys.readouterr().err
    assert main(["compare", "--agents", "lstn"]) == 2
    assert "Did you mean 'lstm'" in capsys.readouterr().err
    assert main(["compare", "--agents", "lstm:forget_bais=0"]) == 2
    assert "Did you mean 'forget_bias'" in capsys.readouterr().err
    assert main(["compare", "--jobs", "0"]) == 2
    capsys.readouterr()
    assert main(["compare", "--seeds", "0", "0"]) == 2
    assert "seeds must be one or more different numbers" in capsys.readouterr().err
    assert main(["compare", "--results", f"{__file__}/below"]) == 2
    assert "cannot be written to" in capsys.readouterr().err
