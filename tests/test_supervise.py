"""Training on supervised tasks: what is learned, stopping and going on, the study's tables."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rlgates.experiments import cli
from rlgates.experiments.supervise import Run
from rlgates.experiments.supervised_check import check
from rlgates.experiments.supervised_configs import SupervisedConfig
from rlgates.experiments.supervised_gates import gates_before_and_after
from rlgates.experiments.supervised_saved import Learned
from rlgates.experiments.supervised_studies import (
    CORES,
    GATES,
    STUDIES,
    Comparison,
    SupervisedStudy,
)
from rlgates.experiments.supervised_study import grid, run_supervised_study
from rlgates.experiments.supervised_tables import overview, redraw_supervised, table
from rlgates.experiments.tables import read

TINY = SupervisedConfig(
    task_settings={"delay": 2},
    hidden_size=8,
    updates=6,
    batch_size=4,
    eval_every=2,
    eval_sequences=16,
)


def losses(run: Learned | None) -> list[tuple[int, float]]:
    assert run is not None
    return run.losses


def test_an_easy_task_is_learned(tmp_path: Path) -> None:
    config = replace(TINY, hidden_size=32, updates=300, batch_size=32, eval_every=100)
    config = replace(config, learning_rate=1e-2, folder=str(tmp_path))
    learned = Run(config, 0).go()
    assert learned is not None
    assert [update for update, _ in learned.losses] == [0, 100, 200, 300]
    assert learned.losses[0][1] > 0.95 * learned.baseline
    assert learned.losses[-1][1] < 0.7 * learned.baseline
    assert learned.metrics["accuracy"] > 0.4
    memoryless = Run(replace(config, core="none"), 0).go()
    assert losses(memoryless)[-1][1] > 0.95 * learned.baseline


def test_a_stopped_run_goes_on_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    whole = Run(replace(TINY, folder=str(tmp_path / "whole")), 3)
    expected = whole.go()
    stopped = replace(TINY, folder=str(tmp_path / "stopped"))
    assert Run(stopped, 3).go(stop=lambda: True) is None  # at once
    asked = iter([False, True])
    assert Run(stopped, 3).go(stop=lambda: next(asked)) is None  # after two updates
    last = Run(stopped, 3)
    assert losses(last.go()) == losses(expected)
    pairs = zip(last.reader.parameters(), whole.reader.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)
    tables = [(run.folder / "progress.csv").read_text().splitlines() for run in (whole, last)]
    assert tables[0] == tables[1]
    assert len(tables[0]) == 1 + 4
    again = Run(stopped, 3)
    assert losses(again.go()) == losses(expected)
    assert again.update == 0, "a finished run was made again"


def test_another_config_in_the_folder_is_refused(tmp_path: Path) -> None:
    config = replace(TINY, folder=str(tmp_path))
    Run(config, 0).go(stop=lambda: True)
    with pytest.raises(ValueError, match="holds a run with another config"):
        Run(replace(config, batch_size=5), 0).go()


def test_seeds_differ_and_cores_see_the_same_sequences(tmp_path: Path) -> None:
    runs = [Run(replace(TINY, core=core, folder=str(tmp_path)), 1) for core in ("lstm", "none")]
    one, other = (run.feed.draw() for run in runs)
    assert torch.equal(one.inputs, other.inputs)
    for split in ("valid", "test"):
        first, second = (next(run.held_out(split)) for run in runs)
        assert torch.equal(first.inputs, second.inputs)
    fresh = Run(replace(TINY, folder=str(tmp_path)), 2)
    assert not torch.equal(fresh.feed.draw().inputs, one.inputs)


def test_a_divergence_is_reported(tmp_path: Path) -> None:
    run = Run(replace(TINY, folder=str(tmp_path)), 0)
    with torch.no_grad():
        run.reader.decoder.bias.fill_(torch.inf)
    learned = run.go()
    assert learned is not None
    assert learned.diverged_at == 1
    assert json.loads((run.folder / "result.json").read_text())["result"]["diverged_at"] == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task": "adding"}, "setting of task 'adding' 'delay'"),
        ({"core": "ur_lstn"}, "Did you mean 'ur_lstm'"),
        ({"core_options": {"zoneout": 1}}, "Did you mean 'zoneout_"),
        ({"updates": 0}, "updates must be at least 1"),
        ({"learning_rate": -1.0}, "learning_rate must be finite and above 0"),
    ],
)
def test_bad_configs_are_refused_before_any_work(changes: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check(replace(TINY, **changes))


def test_a_run_ends_when_the_task_is_solved(tmp_path: Path) -> None:
    config = replace(TINY, folder=str(tmp_path), stop_loss=10.0)
    learned = Run(config, 0).go()
    assert learned is not None
    assert (learned.ended, losses(learned)[-1][0]) == ("solved", 0)
    with pytest.raises(ValueError, match="stop_loss must be finite and above 0"):
        check(replace(TINY, stop_loss=0.0))


def test_every_study_makes_sense(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = grid(SupervisedStudy(seeds=(0,)))
    assert len(runs) == 2 * len(CORES)
    assert len(set(CORES)) == len(CORES)
    runs = grid(SupervisedStudy(name="gates", seeds=(3, 4), tasks=("copy",)))
    assert [seed for _, seed, _ in runs] == [3] * 2 * len(GATES) + [4] * 2 * len(GATES)
    assert all(keep == (seed == 3) for _, seed, keep in runs)
    config = next(config for config, _, _ in runs if config.core == "janet")
    assert config.core_options == {"t_max": 100}
    monkeypatch.setattr("rlgates.experiments.supervised_study.check", lambda config: None)
    for name in STUDIES:  # the data of some are not everywhere
        assert len(grid(SupervisedStudy(name=name))) == 3 * sum(
            len(comparison.cores) for comparison in STUDIES[name]
        )
        assert grid(SupervisedStudy(name=name, smoke=True))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "gate"}, "Did you mean 'gates'"),
        ({"tasks": ("ading",)}, "unknown task of the study 'supervised' 'ading'. Did you mean"),
        ({"cores": ("lstn",)}, "Did you mean 'lstm'"),
        ({"seeds": ()}, "one or more different numbers"),
        ({"seeds": (1, 1)}, "one or more different numbers"),
        ({"seeds": (-1,)}, "seed must be at least 0"),
        ({"jobs": 0}, "jobs must be at least 1"),
    ],
)
def test_wrong_studies_are_refused(changes: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run_supervised_study(SupervisedStudy(**changes))


def test_a_study_without_its_data_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RLGATES_DATA", str(tmp_path))
    assert cli.main(["supervise", "--name", "music", "--seeds", "0"]) == 2
    message = capsys.readouterr().err
    assert message.startswith("rlgates: error: jsb: the data file music/")
    assert not list(tmp_path.iterdir())


def test_a_study_writes_tables_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["supervise", "--smoke", "--cores", "lstm", "none", "--seeds", "0", "1"]
    assert cli.main(words) == 0
    with Path("runs/smoke/supervised.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * 2 * 2
    for row in rows:
        assert float(row["loss"]) > 0
        assert bool(row["accuracy"]) == row["title"].startswith("copy")
        assert (row["ended"], row["made"]) == ("budget", "4")
    text = Path("runs/smoke/supervised.md").read_text()
    assert text.count("| `lstm` |") == text.count("| `none` |") == 2
    assert "| copy, delay 4 | loss | worst seed |" in text
    capsys.readouterr()
    more = SupervisedStudy(cores=("lstm", "none"), seeds=(0, 1, 2), jobs=2, smoke=True)
    assert [outcome.seed for outcome in run_supervised_study(more)] == [2] * 4
    printed = capsys.readouterr().out
    assert printed.count("seed 2: loss") == 4
    assert "8 of 12 runs are in" in printed
    pictures = [path for path in redraw_supervised(Path("runs/smoke")) if path.suffix == ".png"]
    assert [path.name for path in pictures] == ["supervised_copy.png", "supervised_adding.png"]
    assert all(path.read_bytes()[:4] == b"\x89PNG" for path in pictures)
    other = replace(TINY, task_settings={"delay": 100}, learning_rate=1.0)
    changed = (Comparison(other, ("lstm",)),)
    monkeypatch.setitem(STUDIES, "supervised", changed)
    with pytest.raises(ValueError, match="with other settings"):
        run_supervised_study(replace(more, tasks=("copy",), cores=()))


def test_gates_are_kept_before_and_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    base = replace(TINY, updates=40, batch_size=32, learning_rate=1e-2, stop_loss=1e-9)
    row = Comparison(replace(base, folder="runs/gates"), ("lstm", "none"), {}, gates=True)
    monkeypatch.setitem(STUDIES, "gates", (row,))
    study = SupervisedStudy(name="gates", seeds=(0, 1), results="results")
    assert all(outcome.result for outcome in run_supervised_study(study))
    rows = read(Path("results/gates_gates.csv"))
    assert [(one["core"], one["seed"], one["unit"]) for one in rows] == [
        ("lstm", "0", str(unit)) for unit in range(8)
    ]
    pair = gates_before_and_after(row.of("lstm"), 0)
    assert pair is not None
    for when, seen in zip(("before", "after"), pair, strict=True):
        means = seen.forget[0].double().mean(dim=(0, 1))
        scales = -1 / seen.forget[0].double().log().mean(dim=(0, 1))
        for name, expected in (("gate", means), ("timescale", scales)):
            given = torch.tensor([float(one[f"{name}_{when}"]) for one in rows]).double()
            torch.testing.assert_close(given, expected, rtol=1e-3, atol=1e-4)
    assert any(one["gate_before"] != one["gate_after"] for one in rows)
    assert Path("results/gates_copy_gates.png").read_bytes()[:4] == b"\x89PNG"


def test_tables_say_who_solved_it_and_what_is_published() -> None:
    common = {
        "title": "some, steps 3", "baseline": "0.5", "diverged_at": "", "updates": "900",
        "batch_size": "7", "hidden_size": "8", "learning_rate": "0.1", "parameters": "1234",
        "seconds": "5", "commit": "abcdef0123", "stop_loss": "0.01",
    }  # fmt: skip
    ends = {"slow": ("solved", "800"), "fast": ("solved", "200"), "never": ("budget", "900")}
    rows = [
        {**common, "core": core, "seed": str(seed), "ended": ended, "made": made, "loss": "0.005"}
        for core, (ended, made) in ends.items()
        for seed in (0, 1)
    ]
    rows[-1]["loss"] = "0.3"
    text = table(rows, "some")
    assert [line.split("`")[1] for line in text.splitlines()[2:5]] == ["fast", "slow", "never"]
    assert "| `fast` | 2 of 2, after 200 | 0.0050 | 0.0050 | 0 of 2 | 1,234 | 5.0 s |" in text
    assert "| `never` | 0 of 2 | 0.1525 | 0.3000 |" in text
    assert "Solved: a loss below 0.01" in text
    music = [
        {**row, "stop_loss": "", "epochs": "4", "updates": "", "metric": "nll", "test": test,
         "first_loss": "9", "published": "7.72 3" if row["core"] == "fast" else "",
         "optimizer": "radam"}
        for row, test in zip(rows, ("8", "9", "7", "7.5", "10", "11"), strict=True)
    ]  # fmt: skip
    text = table(music, "some")
    assert "| loss before | loss | worst seed | nll on test | published | diverged |" in text
    assert "| `fast` | 9.0000 | 0.0050 | 0.0050 | 7.25 [7, 7.5] | 7.72, 3 |" in text
    some = [{**row, "title": title} for row, title in zip(music[:2], ("a, b 1", "c"), strict=True)]
    text = overview(some, "epochs")
    assert "| a, b 1 | 4 epochs | 9.0000 | 0.0050 | nll 8 | " in text
    assert "`slow` with the settings of the laptop tier, seed 0, 1: loss" in text
    text = table(music, "some")
    assert "after 4 epochs, 7 sequences at a time" in text
    assert "RAdam" in text
