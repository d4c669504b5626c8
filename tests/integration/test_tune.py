"""`rlgates tune`: the trials it makes, how it resumes, and what it refuses."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.processes import start
from support.tiny import TINY, tiny

from rlgates.experiments.cli import main as cli
from rlgates.experiments.report.outputs import redraw_studies
from rlgates.experiments.runs import logs
from rlgates.experiments.runs.files import Damaged, Row, read_table
from rlgates.experiments.runs.jobs import Job
from rlgates.experiments.runs.network.runner import TaskRunner
from rlgates.experiments.runs.network.train import TaskRun
from rlgates.experiments.studies import STUDIES, Arm, Choice, Range, Study

pytest.importorskip("optuna")

from rlgates.experiments.tune.journal import Journal

pytestmark = pytest.mark.usefixtures("in_tmp_path")

ADDING = replace(TINY, task="adding", task_settings={"steps": 4})
BIAS = {"lstm": {"forget_bias": 3.0}}
VARYING = ("seconds", "commit", "dirty", "command")
LINE = ["tune", "tiny", "--task", "copy, delay 2", "--cores", "lstm", "--results", "results"]
SMALL: dict[str, Any] = {
    "learning_rate": Range(1e-3, 1e-1, log=True),
    "hidden_size": Choice((4, 8)),
    "lstm.forget_bias": Range(-3.0, 3.0),
}
MINE = """
from collections.abc import Callable
from dataclasses import replace
from rlgates.experiments.studies import Arm, Choice, Range, Study
from rlgates.experiments.configs.tiers import task_config
COPY = replace(task_config("copy", "smoke"), updates={updates}, eval_every=10)
COPY = replace(COPY, checkpoint_minutes=1e-3)
STUDY = Study(title="mine", laptop=(Arm(COPY, ("lstm",)),), seeds=(0, 1),
              space={{"learning_rate": Range(1e-3, 1e-1, log=True), "hidden_size": Choice((4, 8))}})
"""


@pytest.fixture(autouse=True)
def study(monkeypatch: pytest.MonkeyPatch) -> Study:
    """Two tasks, one of them twice."""
    arms = (
        Arm(TINY, ("lstm", "none")),
        Arm(TINY, ("lstm",), BIAS, variant="bias 3"),
        Arm(ADDING, ("lstm",)),
    )
    made = Study(title="tiny", laptop=arms, seeds=(3, 4), space=SMALL)
    monkeypatch.setitem(STUDIES, "tiny", made)
    return made


def put(monkeypatch: pytest.MonkeyPatch, config: Any, space: Any) -> None:
    """Another study in its place, of one task and core."""
    made = Study(title="tiny", laptop=(Arm(config, ("lstm",)),), seeds=(3, 4), space=space)
    monkeypatch.setitem(STUDIES, "tiny", made)


def trials(results: str = "results", name: str = "tiny") -> list[Row]:
    return read_table(Path(results) / f"{name}_tune.csv")


def plain(rows: list[Row]) -> list[Row]:
    """The rows without columns that vary."""
    return [{k: v for k, v in row.items() if k not in VARYING} for row in rows]


def settings(row: Row) -> dict[str, float]:
    return {
        name: float(v) for name, _, v in (one.partition("=") for one in row["settings"].split())
    }


def test_a_search(capsys: pytest.CaptureFixture[str]) -> None:
    line = [*LINE, "--seeds", "6", "7"]
    assert cli.main([*line, "--trials", "2"]) == 0
    assert cli.main([*line, "--trials", "4"]) == 0
    printed = capsys.readouterr().out
    rows = trials()
    assert [row["trial"] for row in rows] == ["0", "1", "2", "3"]
    assert len({row["settings"] for row in rows}) == 4
    for row in rows:
        chosen = settings(row)
        assert set(chosen) == {"learning_rate", "hidden_size", "core.forget_bias"}
        assert 1e-3 <= chosen["learning_rate"] <= 1e-1
        assert chosen["hidden_size"] in (4, 8)
        assert -3 <= chosen["core.forget_bias"] <= 3
        words = row["settings"].replace(" ", "_").replace("=", "_")
        best = []
        for seed in (6, 7):
            folder = Path("runs/tiny/tune-lstm", words, f"copy-2-lstm/seed-{seed}")
            config = json.loads((folder / "manifest.json").read_text())["config"]
            assert config["learning_rate"] == chosen["learning_rate"]
            assert config["hidden_size"] == chosen["hidden_size"]
            assert config["core_options"] == {"forget_bias": chosen["core.forget_bias"]}
            losses = logs.column(logs.read_rows(folder / "progress.csv"), "eval/loss")
            best.append(losses.min())
        assert float(row["value"]) == pytest.approx(sum(best) / 2)
        assert (row["aim"], row["better"], row["ended"]) == ("loss on valid", "lower", "finished")
        assert (row["seeds"], row["title"], row["core"]) == ("6 7", "copy, delay 2", "lstm")
    assert len(list(Path("runs/tiny").rglob("manifest.json"))) == 8
    text = Path("results/tiny_tune.md").read_text()
    assert text in printed
    assert "tuning lstm on copy, delay 2\n" in printed
    winner = min(rows, key=lambda row: float(row["value"]))
    first = text.splitlines()[2]
    assert first.startswith(f"| `lstm` | {float(winner['value']):.4g} | learning_rate=")
    assert f"| {winner['trial']} |" in first
    assert "`lstm` 4 trials" in text
    command = "rlgates tune tiny --task 'copy, delay 2' --cores lstm --trials 4 --seeds 6 7"
    assert f"`{command}`, commit" in text

    # Again: nothing is trained, and the tables are the same.
    before = {file: file.read_bytes() for file in Path("results").iterdir()}
    assert cli.main([*line, "--trials", "4"]) == 0
    assert {file: file.read_bytes() for file in Path("results").iterdir()} == before
    assert len(list(Path("runs/tiny").rglob("manifest.json"))) == 8
    Path("results/tiny_tune.md").unlink()
    redraw_studies(Path("results"))
    assert {file: file.read_bytes() for file in Path("results").iterdir()} == before


def test_each_core_and_task_has_its_own_search(study: Study) -> None:
    line = ["tune", "tiny", "--results", "results", "--trials", "2"]
    assert cli.main([*line, "--task", "copy, delay 2", "--jobs", "2"]) == 0
    assert cli.main([*line, "--task", "copy, delay 2, b"]) == 0
    assert cli.main([*line, "--task", "adding", "--parameters", "learning_rate"]) == 0
    rows = trials()
    found = {(row["title"], row["variant"], row["core"]): settings(row) for row in rows}
    assert len(rows) == 2 * len(found) == 8
    assert set(found["copy, delay 2", "", "none"]) == {"learning_rate", "hidden_size"}
    assert set(found["copy, delay 2", "bias 3", "lstm"]) == set(found["copy, delay 2", "", "lstm"])
    assert set(found["adding, steps 4", "", "lstm"]) == {"learning_rate"}
    text = Path("results/tiny_tune.md").read_text()
    assert "`lstm` 2 trials, `none` 2 trials" in text
    assert "| Copy, delay 2, bias 3 | loss on valid |" in text
    assert [path.name for path in sorted(Path("runs/tiny").glob("*.journal"))] == [
        *("tune-lstm.journal", "tune-none.journal")
    ]


def test_the_same_sampler_seed_gives_the_same_trials() -> None:
    for folder, seed in (("one", "0"), ("two", "0"), ("three", "1")):
        line = [*LINE[:-1], folder, "--folder", f"runs-{folder}", "--trials", "12"]
        assert cli.main([*line, "--sampler-seed", seed]) == 0
    assert plain(trials("one")) == plain(trials("two"))
    others = {row["settings"] for row in trials("three")}
    assert not others & {row["settings"] for row in trials("one")}
    # More than the number of random ones that come first: these depend on what was told.
    assert len(trials("one")) == 12


@pytest.mark.parametrize(
    "how", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_a_stopped_search_resumes(how: signal.Signals) -> None:
    Path("mine.py").write_text(MINE.format(updates=200))
    line = ["tune", "mine.py", "--trials", "3", "--seeds", "2", "3"]
    learn, runs = TaskRun.learn, set[Path]()

    def stopped(self: TaskRun) -> None:
        """Half-way through the second run of the second trial, the process is signalled."""
        learn(self)
        runs.add(self.folder.path)
        if len(runs) == 4 and self.update == 100:
            assert (self.folder.path / "checkpoint").exists()
            os.kill(os.getpid(), how)

    process = start(
        [*line, "--results", "killed", "--folder", "runs-killed"],
        Path("log"),
        lambda: setattr(TaskRun, "learn", stopped),
    )
    assert process.end() == (-9 if how == signal.SIGKILL else 130), process.log.read_text()
    journal = Path("runs-killed/mine/tune-lstm.journal")
    lines = len(journal.read_text().splitlines())
    assert cli.main([*line, "--results", "killed", "--folder", "runs-killed"]) == 0
    assert len(journal.read_text().splitlines()) > lines
    assert cli.main([*line, "--results", "straight", "--folder", "runs"]) == 0
    assert plain(trials("killed", "mine")) == plain(trials("straight", "mine"))
    manifests = [
        json.loads(path.read_text()) for path in Path("runs-killed").rglob("manifest.json")
    ]
    assert len(manifests) == 6
    assert sorted(len(one["sessions"]) for one in manifests) == [1, 1, 1, 1, 1, 2]


def test_a_search_that_is_stopped_between_two_trials_is_not_finished(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    tell = Journal.tell

    def stopped(self: Journal, *result: Any) -> None:
        tell(self, *result)
        os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as once:
        once.setattr(Journal, "tell", stopped)
        assert cli.main([*LINE, "--trials", "2"]) == 130
    assert "stopped; to continue, run the same command" in capfd.readouterr().err
    assert len(trials()) == 1
    assert cli.main([*LINE, "--trials", "2"]) == 0
    assert len(trials()) == 2


@pytest.mark.slow
def test_several_processes_share_a_search() -> None:
    Path("mine.py").write_text(MINE.format(updates=200))
    words = ["tune", "mine.py", "--trials", "6", "--results", "results"]
    command = [sys.executable, "-m", "rlgates", *words]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, **pipes)
    deadline = time.monotonic() + 300
    while not list(Path("runs/mine").rglob("progress.csv")):  # until its first run is under way
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert cli.main(words) == 0
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    assert cli.main(words) == 0  # the process that ended first wrote fewer rows
    rows = trials(name="mine")
    assert [row["trial"] for row in rows] == [str(number) for number in range(6)]
    assert len({row["settings"] for row in rows}) == 6
    manifests = list(Path("runs/mine").rglob("manifest.json"))
    sessions = [json.loads(path.read_text())["sessions"] for path in manifests]
    assert [len(one) for one in sessions] == [1] * 6


@pytest.mark.parametrize("kind", ["network", "agent"])
def test_a_diverged_trial_counts_as_the_worst(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = TINY if kind == "network" else tiny("runs", total_steps=112, eval_every=None)
    put(monkeypatch, config, {"learning_rate": Choice((1e-3, 3e37))})
    assert cli.main(["tune", "tiny", "--trials", "4", "--results", "results"]) == 0
    rows = {row["settings"]: row for row in trials()}
    worse, better = rows["learning_rate=3e+37"], rows["learning_rate=0.001"]
    assert (worse["ended"], worse["value"]) == ("diverged", "")
    assert better["ended"] == "finished"
    assert math.isfinite(float(better["value"]))
    assert "of them diverged" in Path("results/tiny_tune.md").read_text()
    if kind == "agent":
        assert (better["aim"], better["better"]) == ("success", "higher")


def test_runs_that_would_stop_at_a_goal_use_their_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    put(monkeypatch, replace(TINY, stop_loss=1e9), {"learning_rate": Choice((1e-3, 1e-2))})
    assert cli.main(["tune", "tiny", "--trials", "2", "--results", "results"]) == 0
    assert len(trials()) == 2
    manifests = list(Path("runs/tiny").rglob("manifest.json"))
    results = [json.loads(path.read_text())["result"] for path in manifests]
    assert [one["ended"] for one in results] == ["budget", "budget"]


def test_a_failed_trial_is_replaced(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*LINE, "--trials", "3"]) == 0
    second = trials()[1]["settings"].replace(" ", "_").replace("=", "_")
    for folder in ("runs", "results"):
        shutil.rmtree(folder)
    spoiled = Path("runs/tiny/tune-lstm", second, "copy-2-lstm/seed-5/checkpoint")
    spoiled.parent.mkdir(parents=True)
    spoiled.write_bytes(b"rubbish")
    assert cli.main([*LINE, "--trials", "3"]) == 1
    failed = spoiled.parent / "manifest.json"
    text = f"1 of 3 runs failed: see above, with tracebacks in {failed}"
    assert text in capsys.readouterr().err
    assert [row["ended"] for row in trials()] == ["finished", "failed", "finished"]
    assert "is damaged" in trials()[1]["error"]
    assert "3 trials, 1 of them failed" in Path("results/tiny_tune.md").read_text()
    assert cli.main([*LINE, "--trials", "3"]) == 0
    ends_ = [row["ended"] for row in trials()]
    assert ends_ == ["finished", "failed", "finished", "finished"]


def test_a_trial_whose_log_is_damaged_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    score, scored = TaskRunner.score, list[Job]()

    def damaged(self: TaskRunner, job: Job, result: Any) -> float:
        scored.append(job)
        if len(scored) == 1:
            raise Damaged("progress.csv is damaged")
        return score(self, job, result)

    monkeypatch.setattr(TaskRunner, "score", damaged)
    assert cli.main([*LINE, "--trials", "2"]) == 1
    assert [row["ended"] for row in trials()] == ["failed", "finished"]
    assert "progress.csv is damaged" in trials()[0]["error"]
    assert cli.main([*LINE, "--trials", "2"]) == 0
    assert [row["ended"] for row in trials()] == ["failed", "finished", "finished"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("tinny", "unknown study 'tinny'. Did you mean 'tiny'?"),
        ("mine.py", "there is no file mine.py"),
        ("tiny", "--task must choose one of: copy, delay 2; copy, delay 2, bias 3; adding, steps"),
        ("tiny --task cpoy", "unknown task of the study 'tiny' 'cpoy'"),
        ("tiny --task adding --cores lstn", "Did you mean 'lstm'"),
        ("tiny --task adding --parameters lerning_rate", "Did you mean 'learning_rate'?"),
        ("tiny --task adding --cores gru --parameters lstm.forget_bias", "searched for core 'gru'"),
        ("tiny --task adding --trials 0", "trials must be at least 1"),
        ("tiny --task adding --jobs 0", "jobs must be at least 1"),
        ("tiny --task adding --seeds 1 1", "one or more different numbers"),
        ("tiny --task adding --seeds 8 4", "the seeds (3, 4), which the study reports, got (8, 4)"),
        ("tiny --task adding --seeds 3", "got (3,). The default is 5."),
        ("tiny --task adding --sampler-seed -1", "sampler_seed must be at least 0"),
        ("tiny --task adding --tier full", "there is no tier 'full'"),
        ("tiny --task adding --device gpu", "unknown device 'gpu'"),
    ],
)
def test_invalid_arguments_are_refused_before_any_work(
    line: str, message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert cli.main(["tune", *line.split()]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_without_optuna_nothing_starts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.delitem(sys.modules, "rlgates.experiments.tune.journal", raising=False)
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert cli.main(LINE) == 2
    assert 'rlgates tune needs Optuna: pip install ".[tune]"' in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_another_version_of_a_study_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*LINE, "--trials", "1"]) == 0
    assert cli.main([*LINE, "--trials", "2", "--seeds", "8"]) == 2
    assert "a search with other settings: seeds was [5] and is now [8]" in capsys.readouterr().err
    put(monkeypatch, TINY, {**SMALL, "hidden_size": Choice((4, 16))})
    assert cli.main([*LINE, "--trials", "2"]) == 2
    assert "other settings: space was" in capsys.readouterr().err
    put(monkeypatch, replace(TINY, batch_size=5), SMALL)
    assert cli.main([*LINE, "--trials", "2"]) == 2
    assert "batch_size was 4 and is now 5. Choose another --folder" in capsys.readouterr().err
    assert len(trials()) == 1


def test_a_core_can_be_searched_twice(capsys: pytest.CaptureFixture[str]) -> None:
    first = [*LINE, "--trials", "2", "--parameters", "learning_rate"]
    second = [*LINE, "--trials", "3", "--parameters", "hidden_size"]
    assert cli.main(first) == 0
    before = trials()
    assert cli.main(second) == 2
    assert "Choose another --folder" in capsys.readouterr().err
    assert cli.main([*second, "--folder", "runs-2"]) == 0
    rows = trials()
    assert rows[:2] == before
    assert [set(settings(row)) for row in rows[2:]] == [{"hidden_size"}] * 3
    assert len({row["search"] for row in rows}) == 2
    text = Path("results/tiny_tune.md").read_text()
    assert "`lstm` 2 trials, `lstm` 3 trials" in text
    assert text.count("| `lstm` |") == 5
    assert cli.main([*second, "--folder", "runs-3", "--seeds", "7"]) == 0
    assert len(trials()) == 8
    text = Path("results/tiny_tune.md").read_text()
    assert text.count("| Copy, delay 2 | loss on valid |") == 2
    assert "seed 5)" in text
    assert "seed 7)" in text


def test_a_line_that_was_not_finished_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*LINE, "--trials", "2"]) == 0
    before = plain(trials())
    journal = Path("runs/tiny/tune-lstm.journal")
    for cut in (1, 9, 150):
        journal.write_bytes(journal.read_bytes()[:-cut])
        capsys.readouterr()
        assert cli.main([*LINE, "--trials", "2"]) == 0
        assert "its last line was not finished, and is left out" in capsys.readouterr().out
        assert plain(trials()) == before


def flipped(content: bytes) -> bytes:
    """The content with the rate of the first trial changed by one digit: still a valid journal."""
    place = content.index(b'"param_value_internal":0.0') + len(b'"param_value_internal":0.0')
    digit = b"1" if content[place : place + 1] != b"1" else b"2"
    return content[:place] + digit + content[place + 1 :]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "a flipped digit": flipped,
    "a line less": lambda content: (
        b"".join(content.splitlines(keepends=True)[:3])
        + b"".join(content.splitlines(keepends=True)[4:])
    ),
    "a broken line": lambda content: (
        content[: len(content) // 2] + b"\n" + content[len(content) // 2 :]
    ),
    "a line of another program": lambda content: content + b'{"op_code":0,"worker_id":"x"}\n',
    "a line twice": lambda content: content + content.splitlines(keepends=True)[-1],
}


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_journal_is_refused_and_can_be_rebuilt(
    how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*LINE, "--trials", "2"]) == 0
    journal = Path("runs/tiny/tune-lstm.journal")
    journal.write_bytes(DAMAGES[how](journal.read_bytes()))
    assert cli.main([*LINE, "--trials", "2"]) == 2
    printed = capsys.readouterr().err
    assert re.search(r"tune-lstm\.journal is damaged: line \d+ ", printed)
    assert "Put back a copy of it, or remove it" in printed
    before = plain(trials())
    journal.unlink()
    assert cli.main([*LINE, "--trials", "2"]) == 0
    assert plain(trials()) == before
    assert "(finished before)" in capsys.readouterr().out


def test_the_smoke_tier_writes_no_results() -> None:
    line = ["tune", "tiny", "--task", "copy, delay 2, bias 3", "--tier", "smoke", "--trials", "1"]
    assert cli.main([*line, "--parameters", "learning_rate"]) == 0
    (row,) = trials("runs/tiny_smoke", "tiny_smoke")
    assert row["variant"] == "bias 3 of copy, delay 2"
    assert not Path("experiments").exists()
