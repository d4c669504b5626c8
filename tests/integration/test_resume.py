"""A run that was stopped, killed or damaged: it goes on bit for bit, or says why not."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.processes import start
from support.tiny import agent, equal, scalars, stop_after, table, tiny, words

from rlgates.agents import RecurrentPPO
from rlgates.atomic import write_atomically
from rlgates.experiments.configs.agent import AgentConfig
from rlgates.experiments.runs import logs, stopping
from rlgates.experiments.runs.agent.callbacks import Boundary
from rlgates.experiments.runs.agent.train import train
from rlgates.experiments.runs.folder import read_checkpoint, write_checkpoint
from rlgates.experiments.runs.jobs import Job
from rlgates.experiments.runs.progress import Progress
from rlgates.experiments.runs.stopping import InterruptedRun, StopRequest
from rlgates.experiments.sweep.workers import run_all


def assert_same_run(config: AgentConfig, other: AgentConfig, seed: int) -> None:
    assert equal(agent(config, seed), agent(other, seed))
    assert table(config, seed) == table(other, seed)
    assert scalars(config, seed) == scalars(other, seed)


@pytest.mark.parametrize(
    ("core", "algo"), [("ur_lstm", "ppo"), ("none", "ppo"), ("ur_lstm", "a2c")]
)
def test_stopped_after_every_update(core: str, algo: str, tmp_path: Path) -> None:
    changes = {"core": core, "algo": algo, "critic": "separate", "net_arch": (3,), "hidden_size": 5}
    straight, stopped = (tiny(tmp_path / name, **changes) for name in ("straight", "stopped"))
    result = train(straight, 0, bar=False)
    for steps in (0, 56, 112, 168, 224, 280):
        with pytest.raises(InterruptedRun, match=f"at {steps} steps, saved in"):
            train(stopped, 0, stop=stop_after(0 if steps == 0 else 1), bar=False)
    again = train(stopped, 0, bar=False)
    assert_same_run(stopped, straight, 0)
    assert (again.success, again.steps) == (result.success, result.steps)
    manifest = json.loads((stopped.run_folder(0) / "manifest.json").read_text())
    assert [session["from_step"] for session in manifest["sessions"]] == [0, 56, 112, 168, 224, 280]


def test_the_time_that_is_left_is_that_of_all_sessions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[Any] = []
    begin = Progress.begin

    def noted(self: Progress, *words: Any) -> None:
        begun.append(words)
        begin(self, *words)

    monkeypatch.setattr(Progress, "begin", noted)
    config = tiny(tmp_path)
    with pytest.raises(InterruptedRun):
        train(config, 0, stop=stop_after(1), bar=False)
    saved = read_checkpoint(config.run_folder(0) / "checkpoint")
    train(config, 0, bar=False)
    assert begun == [(0, 0.0), (56, saved["seconds"])]
    assert saved["seconds"] > 0


def _rows(table: Path) -> int:
    """How many there are; a run without a checkpoint begins its table anew."""
    try:
        return len(table.read_text().splitlines())
    except FileNotFoundError:
        return 0


def wait_for_signal(table: Path, rows: int) -> None:
    """Let no run of this process get further than so many rows: it may be signalled late."""
    parent = os.getppid()

    def asked(request: StopRequest) -> bool:
        while _rows(table) >= rows and not request.requested and os.getppid() == parent:
            time.sleep(0.01)
        return request.requested

    StopRequest.__call__ = asked  # type: ignore[method-assign]


KILLED, ENDED, STOPPED = (signal.SIGKILL, -9), (signal.SIGTERM, 130), (signal.SIGINT, 130)


@pytest.mark.parametrize(
    "signals",
    [
        [KILLED, STOPPED],
        pytest.param([KILLED, ENDED, KILLED, STOPPED, ENDED], marks=pytest.mark.slow),
    ],
    ids=["twice", "five times"],
)
def test_killed_at_random_moments(
    signals: list[tuple[signal.Signals, int]], tmp_path: Path
) -> None:
    straight, killed = (
        tiny(
            tmp_path / name,
            total_steps=20 * (len(signals) + 1) * 56,
            checkpoint_minutes=0.0005,
            eval_every=1000,
            n_epochs=1,
            n_minibatches=1,
        )
        for name in ("straight", "killed")
    )
    train(straight, 0, bar=False)
    progress = killed.run_folder(0) / "progress.csv"
    moments = random.Random(int.from_bytes(os.urandom(4)))
    for turn, (number, code) in enumerate(signals):
        goal = _rows(progress) + moments.randrange(5, 20)
        prepare = partial(wait_for_signal, progress, 20 * (turn + 1))
        process = start(words(killed), tmp_path / f"log{turn}", prepare)
        while _rows(progress) < goal:
            assert process.is_running(), process.log.read_text()
            time.sleep(0.02)
        time.sleep(moments.random() / 50)
        os.kill(process.pid, number)
        ended, errors = process.end(), process.log.read_text()
        assert ended == code, errors
        if code == 130:
            assert "to continue, run the same command: " in errors
            assert "Traceback" not in errors
    train(killed, 0, bar=False)
    assert_same_run(killed, straight, 0)


@pytest.mark.parametrize(
    ("changes", "every", "rows", "again_from"),
    [
        # What was logged after the checkpoint is taken back, and logged again.
        ({}, 112, 5, 224),
        # Rollouts shorter than an episode, and log entries that wait for the next dump.
        ({"algo": "a2c", "n_steps": 3}, 100, 9, 120),
    ],
    ids=["ppo", "a2c in the middle of episodes"],
)
def test_the_files_are_not_mixed_up_when_killed_between_checkpoints(
    changes: dict[str, Any],
    every: int,
    rows: int,
    again_from: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Checkpoints by steps, and not by the clock.
    monkeypatch.setattr(Boundary, "is_due", lambda self: self.passed(every))
    straight, killed = (tiny(tmp_path / name, **changes) for name in ("straight", "killed"))
    train(straight, 0, bar=False)

    def die() -> bool:
        if (killed.run_folder(0) / "progress.csv").exists() and len(table(killed, 0)) == rows:
            raise KeyboardInterrupt
        return False

    with pytest.raises(KeyboardInterrupt):
        train(killed, 0, stop=die, bar=False)
    assert len(table(killed, 0)) == rows
    train(killed, 0, bar=False)
    assert_same_run(killed, straight, 0)
    manifest = json.loads((killed.run_folder(0) / "manifest.json").read_text())
    assert [session["from_step"] for session in manifest["sessions"]] == [0, again_from]


def test_killed_between_the_last_update_and_the_last_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The last rollout goes beyond the budget.
    straight, killed = (tiny(tmp_path / name, total_steps=300) for name in ("straight", "killed"))
    result = train(straight, 0, bar=False)
    assert result.steps > 300

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("rlgates.experiments.runs.agent.train._measure", die)
    with pytest.raises(KeyboardInterrupt):
        train(killed, 0, bar=False)
    monkeypatch.undo()
    assert train(killed, 0, bar=False).steps == result.steps
    assert_same_run(killed, straight, 0)


def test_the_table_is_there_at_every_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{logs.STEPS: str(n)} for n in range(5)]
    logs.write_rows(tmp_path / "progress.csv", rows, [logs.STEPS])

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(logs, "write_rows", killed)
    with pytest.raises(KeyboardInterrupt):
        logs.rewind(tmp_path, {"rows": 3, "events": {}})
    monkeypatch.undo()
    assert logs.read_rows(tmp_path / "progress.csv") == rows
    logs.rewind(tmp_path, {"rows": 3, "events": {}})
    assert logs.read_rows(tmp_path / "progress.csv") == rows[:3]
    logs.rewind(tmp_path, None)
    assert not (tmp_path / "progress.csv").exists()


def interrupted(folder: Path) -> AgentConfig:
    """A run that was stopped after two updates."""
    config = tiny(folder)
    with pytest.raises(InterruptedRun):
        train(config, 0, stop=stop_after(2), bar=False)
    return config


def test_another_config_does_not_go_on(tmp_path: Path) -> None:
    interrupted(tmp_path)
    with pytest.raises(ValueError, match="n_epochs was 2 and is now 3"):
        train(tiny(tmp_path, n_epochs=3), 0)


@pytest.mark.parametrize(
    ("changes", "seed", "message"),
    [
        ({"gamma": 0.5}, 0, "gamma was 0.95 and is now 0.5"),
        ({"core": "lstm"}, 0, "core was 'ur_lstm' and is now 'lstm'"),
        ({}, 1, "seed was 0 and is now 1"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(
    changes: dict[str, Any], seed: int, message: str, tmp_path: Path
) -> None:
    checkpoint = interrupted(tmp_path).run_folder(0) / "checkpoint"
    other = tiny(tmp_path / "other", **changes)
    with pytest.raises(InterruptedRun):
        train(other, seed, stop=stop_after(1), bar=False)
    (other.run_folder(seed) / "checkpoint").write_bytes(checkpoint.read_bytes())
    with pytest.raises(ValueError, match=f"holds a checkpoint with another config: .*{message}"):
        train(other, seed)


def test_the_best_agent_is_kept(tmp_path: Path) -> None:
    config, stopped = (tiny(tmp_path / name, eval_every=56) for name in ("whole", "stopped"))
    result = train(config, 0, bar=False)
    success = {int(s): value for s, value in scalars(config, 0)["eval/success_rate"]}
    best = max(success.values())
    assert result.best_step == next(step for step, value in success.items() if value == best)
    with pytest.raises(InterruptedRun):
        train(stopped, 0, stop=stop_after(4), bar=False)
    assert train(stopped, 0, bar=False).best_step == result.best_step
    loaded = [
        RecurrentPPO.load(one.run_folder(0) / "best.rlgates").get_parameters()
        for one in (config, stopped)
    ]
    assert equal(*loaded)
    last = train(tiny(tmp_path / "none", eval_every=None, total_steps=56), 0, bar=False)
    assert last.best_step is None


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty"])
def test_a_damaged_checkpoint_is_refused(damage: str, tmp_path: Path) -> None:
    config = interrupted(tmp_path)
    path = config.run_folder(0) / "checkpoint"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    damaged = {"cut": content[:-100], "flipped": content, "empty": b""}
    path.write_bytes(damaged[damage])
    with pytest.raises(ValueError, match=r"checkpoint .* is damaged: its checksum does not match"):
        train(config, 0)


def test_a_checkpoint_of_another_version_is_refused(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "checkpoint", {"format": 0})
    with pytest.raises(ValueError, match="has format 0, expected 3"):
        read_checkpoint(tmp_path / "checkpoint")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("progress.csv", "holds 0 rows, but 2 were written before the checkpoint"),
        ("manifest.json", "has a checkpoint, but its manifest.json is missing"),
    ],
)
def test_missing_files_are_named(name: str, message: str, tmp_path: Path) -> None:
    config = interrupted(tmp_path)
    (config.run_folder(0) / name).unlink()
    for _ in range(2):  # the first failure is no reason to let it go on
        with pytest.raises(ValueError, match=message):
            train(config, 0)
        (outcome,) = run_all([Job(config, 0)])
        assert outcome.result is None


def test_a_signal_that_comes_twice_is_one_request(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    ended: list[int] = []
    monkeypatch.setattr(stopping.os, "_exit", ended.append)
    stop = StopRequest()
    stop.handle(signal.SIGTERM, None)
    stop.handle(signal.SIGTERM, None)
    assert (stop(), ended) == (True, [])
    assert capfd.readouterr().err.count("once more to stop at once") == 1
    monkeypatch.setattr(stopping, "ONCE", 0.0)
    stop.handle(signal.SIGINT, None)
    assert ended == [130]


def test_a_stop_that_nobody_can_read_is_one_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    end, other = os.pipe()
    os.close(end)
    with os.fdopen(other, "wb", buffering=0) as closed:
        monkeypatch.setattr(sys, "stderr", closed)
        stop = StopRequest()
        stop.handle(signal.SIGINT, None)
    assert stop()


def test_a_file_is_the_old_or_the_new_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def killed(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", killed)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"


def test_a_failing_run_does_not_stop_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One after the other; runs side by side are those of `test_sweep`."""
    config = interrupted(tmp_path)
    (config.run_folder(0) / "checkpoint").write_bytes(b"rubbish")
    failed, made = run_all([Job(config, 0), Job(config, 1)])
    assert failed.result is None
    assert "is damaged" in failed.error
    assert made.result is not None
    manifest = json.loads((config.run_folder(0) / "manifest.json").read_text())
    assert manifest["status"] == "failed"
    assert "ValueError: the checkpoint" in manifest["error"]
    assert "ur_lstm seed 0 failed: ValueError: the checkpoint" in capsys.readouterr().out
