"""Runs that several processes make together: stopped, killed, resumed, refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.ranks import together
from support.tiny import agent, equal, stop_after, table, tiny, words

from rlgates.agents.ranks import Ranks
from rlgates.experiments.cli.main import main
from rlgates.experiments.configs.agent import AgentConfig
from rlgates.experiments.configs.gym import GymConfig
from rlgates.experiments.runs.agent.train import train
from rlgates.experiments.runs.gym.train import train as train_gym
from rlgates.experiments.runs.jobs import Job, run_job
from rlgates.experiments.runs.stopping import InterruptedRun
from rlgates.experiments.sweep.workers import run_all

Run = Callable[[Any, Callable[[], bool]], Any]
NEVER = stop_after(10**9)


def game(folder: Path) -> AgentConfig:
    return tiny(folder, total_steps=4 * 56, critic="separate", net_arch=(3,))


def cartpole(folder: Path) -> GymConfig:
    return GymConfig(
        hidden_size=4, normalize=True, n_envs=4, n_steps=8, batch_size=16, n_epochs=1,
        total_steps=4 * 32, eval_every=64, eval_episodes=2, final_episodes=2,
        checkpoint_minutes=0.0, folder=str(folder),
    )  # fmt: skip


def make(config: Any, stop: Callable[[], bool] = NEVER) -> Any:
    """The result of a run; None if it was stopped."""
    runner = train if isinstance(config, AgentConfig) else train_gym
    try:
        return runner(config, 0, stop=stop, bar=False)
    except InterruptedRun:
        return None


def close(one: Any, other: Any) -> bool:
    """Whether nested weights are equal up to the order of sums."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(close(one[key], other[key]) for key in one)
    if isinstance(one, torch.Tensor):
        return torch.allclose(one, other, atol=1e-6, rtol=1e-4)
    return bool(one == other)


def weights(config: Any) -> Any:
    return agent(config, 0)["policy"]


@pytest.mark.parametrize("config_of", [game, pytest.param(cartpole, marks=pytest.mark.slow)])
def test_a_run_goes_on_with_any_number_of_ranks(config_of: Any, tmp_path: Path) -> None:
    alone, straight, same, other = (
        config_of(tmp_path / name) for name in ("alone", "straight", "same", "other")
    )
    result = make(alone)

    def run() -> Any:
        found = make(straight)
        # One rank is asked to stop, and all do.
        is_last = Ranks.world().rank == Ranks.world().size - 1
        stopped = [make(config, stop_after(2) if is_last else NEVER) for config in (same, other)]
        return found, stopped, make(same)

    for found, stopped, resumed in together(2, tmp_path / "two", run):
        assert stopped == [None, None]
        assert replace(found, seconds=0.0) == replace(resumed, seconds=0.0)
        assert (found.steps, found.best_step) == (result.steps, result.best_step)
    assert equal(agent(straight, 0), agent(same, 0))
    assert table(straight, 0) == table(same, 0)
    assert close(weights(straight), weights(alone))
    rows, rows_alone = table(straight, 0), table(alone, 0)
    for name in ("rollout/ep_len_mean", "rollout/ep_rew_mean", "rollout/success_rate"):
        assert [row.get(name) for row in rows] == [row.get(name) for row in rows_alone]
    # That of two ranks goes on in one for a while, and then in three.
    assert make(other, stop_after(1)) is None
    manifest = json.loads((other.run_folder(0) / "manifest.json").read_text())
    assert [session["ranks"] for session in manifest["sessions"]] == [2, 1]
    assert all(together(3, tmp_path / "three", lambda: make(other)))
    assert close(weights(other), weights(alone))


def test_a_rank_that_fails_ends_the_run_which_goes_on_later(tmp_path: Path) -> None:
    straight, killed = game(tmp_path / "straight"), game(tmp_path / "killed")

    def run() -> Any:
        make(straight)
        asked = iter(range(100))

        def die() -> bool:
            if next(asked) == 2 and Ranks.world().rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            return False

        # The first question is whether to start at all.
        found = run_job(Job(killed, 0), die, bar=False)
        (tmp_path / "error").write_text(found.error)
        raise SystemExit(0)

    with pytest.raises(RuntimeError, match=r"ranks \[1\] of 2 failed|ranks \[0, 1\]"):
        together(2, tmp_path / "first", run)
    assert "RankLost: another process of this training ended" in (tmp_path / "error").read_text()
    manifest = json.loads((killed.run_folder(0) / "manifest.json").read_text())
    assert manifest["status"] == "failed"
    assert "RankLost" in manifest["error"]
    again = together(2, tmp_path / "second", lambda: run_job(Job(killed, 0), bar=False))
    assert all(found.result for found in again), again
    assert equal(agent(straight, 0), agent(killed, 0))
    assert table(straight, 0) == table(killed, 0)
    # A third time it is looked up, on all ranks.
    once_more = together(2, tmp_path / "third", lambda: run_all([Job(killed, 0)]))
    assert all(found.cached for (found,) in once_more)


def test_refusals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = replace(game(tmp_path / "runs"), n_envs=2)

    def run() -> Any:
        found = run_job(Job(small, 0), bar=False)
        contrib = replace(
            cartpole(tmp_path / "runs"), algo="sb3-contrib", core="lstm",
            core_options={"forget_bias": 0.0},
        )  # fmt: skip
        other = run_job(Job(contrib, 0), bar=False)
        with pytest.raises(ValueError, match="jobs must be 1 where 3 processes make a run, got 2"):
            run_all([Job(small, 0)], 2)
        wrong = replace(small, gamma=2.0)
        with pytest.raises(ValueError, match="gamma must be"):
            run_all([Job(wrong, 0)])
        return found.error, other.error

    for error, other in together(3, tmp_path, run):
        assert "n_envs must be at least 3, one for each process, got 2" in error
        assert "the agent of sb3-contrib is trained by one process" in other


def test_other_commands_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    variables = {"RANK": "0", "WORLD_SIZE": "4", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert main(["sweep", "learning"]) == 2
    assert "sweep cannot run in 4 processes" in capsys.readouterr().err


def torchrun(size: int, arguments: list[str], **options: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(size), "-m", "rlgates", *arguments]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options
    )


@pytest.mark.slow
def test_torchrun_killed_and_again(tmp_path: Path) -> None:
    config = tiny(tmp_path / "runs", total_steps=100 * 56, n_epochs=1, n_minibatches=1)
    arguments = [*words(config), "--eval-every", "100000"]
    process = torchrun(2, arguments, start_new_session=True)
    checkpoint = config.run_folder(0) / "checkpoint"
    for _ in range(6_000):
        if checkpoint.exists() or process.poll() is not None:
            break
        time.sleep(0.05)
    if not checkpoint.exists():
        os.killpg(process.pid, signal.SIGKILL)
        pytest.fail(f"it saved nothing: {process.communicate()[0]}")
    workers = subprocess.run(
        ["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=True
    ).stdout.split()
    os.kill(int(workers[-1]), signal.SIGKILL)
    output, _ = process.communicate(timeout=300)
    assert process.returncode != 0
    assert "exitcode  : -9" in output
    assert checkpoint.exists()
    again = torchrun(2, [*arguments, "--total-steps", str(config.total_steps)])
    output, _ = again.communicate(timeout=900)
    assert again.returncode == 0, output
    assert output.count("fresh episodes after") == 1  # one rank prints
    manifest = json.loads((config.run_folder(0) / "manifest.json").read_text())
    assert manifest["status"] == "finished"
    assert manifest["sessions"][-1]["ranks"] == 2
    assert manifest["sessions"][-1]["from_step"] > 0
    assert manifest["sessions"][0]["command"].startswith("torchrun --nproc-per-node 2 -m rlgates")
