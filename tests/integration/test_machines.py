"""The same runs on other machines, which variables of the environment stand for.

They make the native code and torch use other instructions, so that sums are rounded otherwise. Runs
are equal bit for bit where the instructions are, and alike over seeds where they are not.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from rlgates.agents import RecurrentPPO
from rlgates.experiments.analysis.stats import Floats
from rlgates.experiments.configs.agent import AgentConfig
from rlgates.experiments.configs.presets import PRESETS
from rlgates.experiments.configs.task import TaskConfig
from rlgates.experiments.runs.agent.build import AGENT_FILE
from rlgates.experiments.runs.agent.train import AgentResult, train
from rlgates.experiments.runs.files import read_json
from rlgates.experiments.runs.folder import RunFolder
from rlgates.experiments.runs.network.train import TaskRun, load_best
from rlgates.kernels.cpu import abi

SEEDS = range(5)
CONFIG = TaskConfig(
    task_settings={"delay": 2},
    core="om_lstm",
    hidden_size=16,
    updates=200,
    batch_size=16,
    eval_sequences=64,
    learning_rate=2e-2,
    gate_rows=0,
)
AGENT = replace(
    PRESETS["tmaze"],
    core="om_lstm",
    env_settings={"corridor_length": 7},
    hidden_size=32,
    net_arch=(32,),
    n_envs=64,
    n_epochs=2,
    n_minibatches=2,
    total_steps=200_000,
    stop_success=0.9,
    window=200,
    eval_every=None,
    final_episodes=20,
)
OTHER = {abi.ISA: "plain", "ATEN_CPU_CAPABILITY": "default"}
SMALL = 0.1  # a difference, of the spread over seeds

pytestmark = pytest.mark.skipif(
    abi.instruction_set() in ("", "plain"), reason="needs native code for two instruction sets"
)


def runs(folder: Path, rate: float = CONFIG.learning_rate) -> list[TaskRun]:
    """The finished runs in a folder; those that are missing are made here."""
    config = replace(CONFIG, folder=str(folder), learning_rate=rate)
    made = [TaskRun(config, seed) for seed in SEEDS]
    for run in made:
        run.train()
    return made


def make_elsewhere(command: str, manifest: Path, folder: Path) -> None:
    """Make the runs of a manifest with other instructions, in a process of its own."""
    words = [sys.executable, "-m", "rlgates", command, "--config", str(manifest), "--jobs", "1"]
    words += ["--seeds", *map(str, SEEDS), "--folder", str(folder)]
    subprocess.run(words, env={**os.environ, **OTHER}, check=True, capture_output=True)


def losses(made: list[TaskRun]) -> Floats:
    return np.array([run.train().losses[-1][1] for run in made])


def equal(one: TaskRun, other: TaskRun) -> bool:
    """Whether the weights are the same, bit for bit."""
    a, b = load_best(one.folder), load_best(other.folder)
    return all(torch.equal(a[name], b[name]) for name in a)


def alike(one: Floats, other: Floats) -> bool:
    """Whether each run is much nearer to its like elsewhere than seeds are to each other.

    This is equivalence: of a few runs it says more than that a test finds no difference.
    """
    return bool((abs(one - other) < SMALL * one.std(ddof=1)).all())


def test_runs_are_equal_on_this_machine_and_alike_on_others(tmp_path: Path) -> None:
    here = runs(tmp_path / "here")
    again = TaskRun(replace(CONFIG, folder=str(tmp_path / "again")), SEEDS[0])
    again.train()
    assert equal(again, here[0])

    make_elsewhere("task", here[0].folder.manifest, tmp_path / "other")
    other = runs(tmp_path / "other")
    for run in other:
        assert [part["isa"] for part in read_json(run.folder.manifest)["sessions"]] == ["plain"]
    assert not any(map(equal, here, other))
    assert alike(losses(here), losses(other))
    assert losses(here).std() > 0.01, "seeds matter"
    slower = runs(tmp_path / "slower", rate=1.8e-2)
    assert not alike(losses(here), losses(slower)), "and a small difference is found"


def agents(config: AgentConfig) -> list[AgentResult]:
    """The finished runs of an agent; those that are missing are made here."""
    return [train(config, seed) for seed in SEEDS]


def steps(results: list[AgentResult]) -> Floats:
    """Until an agent had learned, or all."""
    return np.array([result.steps_to_threshold or result.steps for result in results], dtype=float)


@pytest.mark.slow
def test_agents_are_alike_on_other_machines(tmp_path: Path) -> None:
    """Until they have learned a short T-Maze; from longer runs see docs/guides/reproduce.md."""
    config = replace(AGENT, folder=str(tmp_path / "here"))
    here = agents(config)
    make_elsewhere("train", RunFolder(config, SEEDS[0]).manifest, tmp_path / "other")
    elsewhere = replace(AGENT, folder=str(tmp_path / "other"))
    other = agents(elsewhere)
    for seed in SEEDS:
        folders = (config.run_folder(seed), elsewhere.run_folder(seed))
        one, its_like = (RecurrentPPO.load(folder / AGENT_FILE) for folder in folders)
        weights = its_like.policy.state_dict()
        assert any(not torch.equal(w, weights[n]) for n, w in one.policy.state_dict().items())
    assert alike(steps(here), steps(other))
    slower = agents(replace(AGENT, learning_rate=1e-3, folder=str(tmp_path / "slower")))
    assert not alike(steps(here), steps(slower)), "and a difference is found"
