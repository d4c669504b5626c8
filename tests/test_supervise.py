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
from rlgates.experiments.supervised_configs import (
    CORES,
    PRESETS,
    SupervisedConfig,
    SupervisedStudy,
)
from rlgates.experiments.supervised_saved import Learned
from rlgates.experiments.supervised_study import grid, redraw_supervised, run_supervised_study

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
        first, second = (next(run._held_out(split)) for run in runs)
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


def test_every_preset_makes_sense() -> None:
    runs = grid(SupervisedStudy(seeds=(0,)))
    assert len(runs) == 2 * len(CORES)
    assert len(set(CORES)) == len(CORES)
    with pytest.raises(ValueError, match="unknown preset 'cpy'"):
        grid(SupervisedStudy(presets=("cpy",)))
    with pytest.raises(ValueError, match="seeds must not be empty"):
        grid(SupervisedStudy(seeds=()))
    assert all(f"{name}-smoke" in PRESETS for name in ("copy", "adding"))


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
    text = Path("runs/smoke/supervised.md").read_text()
    assert text.count("| `lstm` |") == text.count("| `none` |") == 2
    assert "| copy, delay 6 | loss |" in text
    capsys.readouterr()
    more = SupervisedStudy(cores=("lstm", "none"), seeds=(0, 1, 2), smoke=True)
    assert run_supervised_study(more) == 0
    assert capsys.readouterr().out.count("seed 2: loss") == 4
    pictures = [path for path in redraw_supervised(Path("runs/smoke")) if path.suffix == ".png"]
    assert [path.name for path in pictures] == ["supervised_copy.png", "supervised_adding.png"]
    assert all(path.read_bytes()[:4] == b"\x89PNG" for path in pictures)
