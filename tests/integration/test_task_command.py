"""`rlgates task`: what it lists, refuses, trains and says."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from support.toy_tasks import Parity, Text

from rlgates.experiments.cli import main as cli
from rlgates.experiments.configs.published import PROTOCOLS, Protocol
from rlgates.experiments.configs.task import build_model
from rlgates.experiments.configs.tiers import task_config
from rlgates.experiments.runs.jobs import Job
from rlgates.experiments.runs.load import load_network, load_run
from rlgates.experiments.runs.network.train import TaskRun
from rlgates.experiments.tasks import TASKS, GeneratedTask


@pytest.fixture(autouse=True)
def _tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(TASKS, "text", Text)
    monkeypatch.setitem(TASKS, "parity", Parity)


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["task", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(TASKS)
    copy = lines[list(TASKS).index("copy")]
    assert "delay" in copy
    assert copy.split("loss")[1].strip().startswith("Reproduce ten symbols after a delay")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("task", "the name of a task is needed; rlgates task --list shows all"),
        ("task cpoy", "unknown task 'cpoy'. Did you mean 'copy'?"),
        ("task copy --core ur_lstn", "Did you mean 'ur_lstm'"),
        ("task copy --task-settings dely=3", "Did you mean 'delay'"),
        ("task copy --core-options zoneout=0.1", "Did you mean 'zoneout_"),
        ("task copy --seeds 1 1", "seeds must be one or more different numbers"),
        ("task copy --jobs 0", "jobs must be at least 1"),
        ("task copy --epochs 3", "generates its sequences"),
        ("task --folder adding copy", "give the name of the task first: rlgates task copy"),
        ("task parity --tier full", "no published protocol of task 'parity'"),
        ("task copy --protocol copy-ohn", "Did you mean 'copy-ohno'"),
        ("task copy --protocol adding-gu", "Allowed: copy-gu, copy-ohno"),
    ],
)
def test_what_is_wrong_is_said(
    line: str, message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert cli.main(line.split()) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("rlgates: error: ")
    assert message in printed
    assert not list(tmp_path.iterdir())


def test_runs_are_made_once_and_held_against_published_figures(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["task", "text", "--tier", "smoke", "--core", "gru", "--seeds", "0", "1"]
    assert cli.main(words) == 0
    printed = capsys.readouterr().out
    label = "text: gru seed 0: perplexity "
    assert label in printed
    assert "loss without memory 1.6094" in printed
    assert printed.count("published: perplexity 4.5 of gru on test (nobody, table 1)") == 2
    assert Path("runs/smoke/text-gru/seed-1/manifest.json").exists()
    table = Path("runs/smoke/text-gru/seed-0/progress.csv")
    before = table.stat().st_mtime_ns
    assert cli.main(words) == 0
    again = capsys.readouterr().out
    assert again.count(" (finished before)\n") == 2
    assert again.replace(" (finished before)", "") == printed
    assert table.stat().st_mtime_ns == before
    assert cli.main([*words, "--hidden-size", "5"]) == 2
    assert "hidden_size was 8 and is now 5" in capsys.readouterr().err


def test_the_trained_network_is_loaded_from_anywhere(tmp_path: Path) -> None:
    words = ["task", "text", "--tier", "smoke", "--core", "gru", "--updates", "9"]
    assert cli.main(words) == 0
    folder = Path("runs/smoke/text-gru/seed-0").rename(tmp_path / "elsewhere")
    network = load_network(folder)
    assert not network.training
    losses, state, task = [], None, Text()
    batches = islice(task.batches("test", 4, torch.Generator()), 2)
    for batch in batches:
        predictions, state = network.unroll(batch.inputs, state, batch.episode_starts)
        losses.append(task.loss(predictions, batch).item())
    result = json.loads((folder / "manifest.json").read_text())["result"]
    assert sum(losses) / 2 == pytest.approx(result["test"]["loss"])
    (folder / "best.pt").unlink()
    with pytest.raises(ValueError, match=r"elsewhere has no best\.pt"):
        load_network(folder)
    with pytest.raises(ValueError, match="does not hold a run of `rlgates train`"):
        load_run(folder)
    with pytest.raises(ValueError, match="holds no run"):
        load_network(tmp_path)


def test_a_stopped_run_says_how_to_go_on(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["task", "copy", "--tier", "smoke", "--task-settings", "delay=3", "--seeds", "0", "1"]
    learn = TaskRun.learn

    def interrupted(self: TaskRun) -> None:
        learn(self)
        if self.update == 3:
            os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as once:
        once.setattr(TaskRun, "learn", interrupted)
        once.setattr(sys, "argv", ["rlgates", *words])
        assert cli.main(words) == 130
    printed = capfd.readouterr()
    assert "copy, delay 3: ur_lstm seed 0 stopped: at 3 updates, saved in runs" in printed.out
    assert "\n1 of 2 runs were not started\n" in printed.out
    assert "stopping after this update, and saving" in printed.err
    assert "stopped; to continue, run the same command: " in printed.err
    assert "task copy --tier smoke" in printed.err
    assert cli.main(words) == 0
    assert "seed 0: loss " in capfd.readouterr().out


def test_a_config_is_the_whole_of_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["task", "copy", "--tier", "smoke", "--task-settings", "delay=3"]) == 0
    (manifest,) = map(str, Path("runs/smoke").rglob("manifest.json"))
    assert cli.main(["task", "--config", manifest, "--folder", "again"]) == 0
    assert "copy, delay 3: ur_lstm seed 0: loss" in capsys.readouterr().out
    for words, message in (
        (["--tier", "full"], "--config and --tier exclude each other: choose one."),
        (["--protocol", "copy-gu"], "--config and --protocol exclude each other: choose one."),
        (["adding"], f"{manifest} is of the task 'copy', not 'adding'."),
    ):
        assert cli.main(["task", *words, "--config", manifest]) == 2
        assert message in capsys.readouterr().err.replace("\n", " ").replace("  ", " ")


def test_a_run_that_fails_does_not_stop_the_others(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    train = TaskRun.train

    def full(self: TaskRun, *rest: Any) -> Any:
        if self.seed == 0:
            raise OSError(28, "the checkpoint could not be written")
        return train(self, *rest)

    monkeypatch.setattr(TaskRun, "train", full)
    assert cli.main(["task", "copy", "--tier", "smoke", "--seeds", "0", "1"]) == 1
    printed = capsys.readouterr()
    assert "seed 0 failed: OSError: [Errno 28] the checkpoint could not be" in printed.out
    assert "seed 1: loss " in printed.out
    assert "1 of 2 runs failed" in printed.err


@pytest.mark.parametrize("jobs", [pytest.param(2, marks=pytest.mark.slow)])
def test_runs_side_by_side_are_those_one_after_the_other(
    jobs: int, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["task", "copy", "--tier", "smoke", "--seeds", "0", "1", "--folder"]
    assert cli.main([*words, "one"]) == 0
    assert cli.main([*words, "two", "--jobs", str(jobs)]) == 0
    for seed in (0, 1):
        tables = [Path(f"{f}/copy-4-ur_lstm/seed-{seed}/progress.csv") for f in ("one", "two")]
        assert tables[0].read_text() == tables[1].read_text()


@pytest.mark.parametrize("name", TASKS)
def test_the_tiers_of_each_task_make_sense(name: str) -> None:
    for tier in ("smoke", "laptop"):
        config = task_config(name, tier)
        assert config.task == name
        assert (config.epochs is None) or not issubclass(TASKS[name], GeneratedTask)
        if issubclass(TASKS[name], GeneratedTask):  # the others need their data
            config.check()


def test_options_are_laid_over_those_of_the_tier(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def run_all(jobs: Sequence[Job], _: int) -> list[Any]:
        seen.extend(job.config for job in jobs)
        return []

    monkeypatch.setattr("rlgates.experiments.sweep.workers.run_all", run_all)
    line = "task copy --core lstm --core-options forget_bias=2 --task-settings delay=7"
    assert cli.main([*line.split(), "--decay-at", "3", "5"]) == 0
    assert cli.main(["task", "parity", "--epochs", "2"]) == 0
    copy, parity = seen
    assert (copy.core, copy.core_options, copy.task_settings) == (
        *("lstm", {"forget_bias": 2}, {"delay": 7}),
    )
    assert (copy.updates, copy.epochs, copy.decay_at) == (2000, None, (3, 5))
    assert (parity.updates, parity.epochs, parity.eval_every) == (None, 2, "epoch")


def test_the_data_folder_is_looked_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RLGATES_DATA", "elsewhere")
    monkeypatch.setenv("RLGATES_OFFLINE", "1")
    data = tmp_path / "data"
    assert cli.main(["task", "smnist", "--data-dir", str(data)]) == 2
    assert f"there is none at {data}" in capsys.readouterr().err
    data.mkdir()
    for command in (["task", "smnist"], ["sweep", "tied_smnist"]):
        assert cli.main([*command, "--data-dir", str(data)]) == 2
        assert f"Put it into {data / 'mnist'} or " in capsys.readouterr().err


def test_the_full_tier_reads_published_protocols(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = Protocol(
        task="parity",
        cores=("lstm",),
        source="nowhere",
        core_options={"lstm": {"forget_bias": 1.0}},
        hidden_size=512,
        num_layers=2,
        decoder_size=256,
        optimizer="rmsprop",
        learning_rates=(5e-4, 1e-3),
        batch_size=50,
        weight_decay=1e-6,
        dropout=(0.5,),
        epochs=150,
        decay_at=(100,),
        decay_factor=1 / 5,
    )
    monkeypatch.setitem(PROTOCOLS, "parity-nobody", row)
    run_all = "rlgates.experiments.sweep.workers.run_all"
    monkeypatch.setattr(run_all, lambda *_: list[Any]())
    assert cli.main(["task", "parity", "--tier", "full", "--core", "gru"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "protocol parity-nobody (nowhere)"
    assert said[1] == "  the paper has no gru: its settings are those of lstm"
    config = task_config("parity", "full", "lstm")
    assert (config.hidden_size, config.num_layers, config.decoder_size) == (512, 2, 256)
    assert (config.optimizer, config.learning_rate, config.batch_size) == ("rmsprop", 5e-4, 50)
    assert (config.max_grad_norm, config.epochs, config.updates) == (None, 150, None)
    assert config.core_options == {"forget_bias": 1.0}
    assert (config.output_dropout, config.decay_at, config.decay_factor) == (0.5, (100,), 0.2)
    assert config.check().output_size == 2
    other = replace(row, hidden_size=None, parameters=20_000, halve_block=10_000)
    monkeypatch.setitem(PROTOCOLS, "parity-other", other)
    config = task_config("parity", "full", "lstm", "parity-other")
    assert config.halve_block == 10_000

    def count(width: int) -> int:
        model = build_model(replace(config, hidden_size=width), Parity())
        return sum(parameter.numel() for parameter in model.parameters())

    assert count(config.hidden_size) <= 20_000 < count(config.hidden_size + 8)
