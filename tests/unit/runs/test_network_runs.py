"""Training on supervised tasks: what is learned, stopping and going on, the study's tables."""

from __future__ import annotations

import json
import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib.image import imread
from support.tiny import TINY, figures_of, stop_after

from rlgates.experiments.plots import curves
from rlgates.experiments.report.rows import merge_rows, to_frame
from rlgates.experiments.report.studies.tasks import (
    Line,
    draw_tasks,
    loss_limits,
    overview,
    task_table,
)
from rlgates.experiments.report.studies.unit_gates import draw_unit_gates
from rlgates.experiments.runs.folder import RunFolder
from rlgates.experiments.runs.gates import QUANTILES
from rlgates.experiments.runs.jobs import Job, run_job, runner_for
from rlgates.experiments.runs.locks import locked
from rlgates.experiments.runs.network.optim import clip_gradients, gradient_norm
from rlgates.experiments.runs.network.train import MAX_SKIPPED, TaskResult, TaskRun
from rlgates.experiments.runs.runner import CURVE_POINTS
from rlgates.experiments.runs.stopping import InterruptedRun

FALLING = range(0, 101, 5), [60.0, 5.0, *[4.0] * 18, 3.0]
RESULT = TaskResult(
    losses=((0, 2.0),),
    metrics={},
    baseline=None,
    parameters=1,
    state_size=1,
    seconds=1.0,
    steps=499,
    diverged_at=None,
    test={},
    best_step=None,
    ended="budget",
)


def test_an_easy_task_is_learned(tmp_path: Path) -> None:
    config = replace(TINY, hidden_size=32, updates=300, batch_size=32, eval_every=100)
    config = replace(config, learning_rate=1e-2, folder=str(tmp_path))
    run = TaskRun(config, 0)
    learned, core = run.train(), run.network.core
    assert learned.parameters == sum(map(torch.numel, core.parameters()))
    assert learned.state_size == core.state_size
    assert [update for update, _ in learned.losses] == [0, 100, 200, 300]
    assert learned.losses[0][1] > 0.95 * learned.baseline
    assert learned.losses[-1][1] < 0.7 * learned.baseline
    assert learned.metrics["accuracy"] > 0.4
    memoryless = TaskRun(replace(config, core="none"), 0).train()
    assert memoryless.losses[-1][1] > 0.95 * learned.baseline


def test_a_run_that_waits_for_another_process_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = Job(replace(TINY, folder=str(tmp_path)), 0)
    stops = iter((False, True))
    with locked(job.folder.path), ThreadPoolExecutor() as other:
        assert other.submit(run_job, job, lambda: next(stops)).result().interrupted
    waits = f"another process is working in {job.folder.path}: waiting for its end\n"
    assert capsys.readouterr() == ("", waits)


def test_a_stopped_run_goes_on_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    whole = TaskRun(replace(TINY, folder=str(tmp_path / "whole")), 3)
    expected = whole.train()
    stopped = replace(TINY, folder=str(tmp_path / "stopped"))
    for updates in (0, 1):
        with pytest.raises(InterruptedRun, match=f"at {updates} updates, saved in"):
            TaskRun(stopped, 3).train(stop=stop_after(updates))
    last = TaskRun(stopped, 3)
    assert last.train().losses == expected.losses
    pairs = zip(last.network.parameters(), whole.network.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)
    tables = [(run.folder.path / "progress.csv").read_text().splitlines() for run in (whole, last)]
    assert tables[0] == tables[1]
    assert len(tables[0]) == 1 + 4
    again = TaskRun(stopped, 3)
    assert again.train().losses == expected.losses
    assert again.update == 0, "a finished run was made again"


def test_another_config_in_the_folder_is_refused(tmp_path: Path) -> None:
    config = replace(TINY, folder=str(tmp_path))
    with pytest.raises(InterruptedRun):
        TaskRun(config, 0).train(stop=stop_after(0))
    with pytest.raises(ValueError, match="holds a run with another config"):
        TaskRun(replace(config, batch_size=5), 0).train()


def test_seeds_differ_and_cores_see_the_same_sequences(tmp_path: Path) -> None:
    runs = [TaskRun(replace(TINY, core=core, folder=str(tmp_path)), 1) for core in ("lstm", "none")]
    one, other = (run.feed.draw() for run in runs)
    assert torch.equal(one.inputs, other.inputs)
    for split in ("valid", "test"):
        first, second = (next(run.held_out(split)) for run in runs)
        assert torch.equal(first.inputs, second.inputs)
    fresh = TaskRun(replace(TINY, folder=str(tmp_path)), 2)
    assert not torch.equal(fresh.feed.draw().inputs, one.inputs)


def test_training_and_held_out_sequences_differ(tmp_path: Path) -> None:
    config = replace(TINY, batch_size=50, eval_sequences=50, folder=str(tmp_path))
    run, other = TaskRun(config, 0), TaskRun(config, 1)
    held_out = [next(r.held_out(split)) for r in (run, other) for split in ("valid", "test")]
    drawn = [run.feed.draw().inputs, *(batch.inputs for batch in held_out)]
    assert len({inputs.numpy().tobytes() for inputs in drawn}) == len(drawn)


def test_a_divergence_is_reported(tmp_path: Path) -> None:
    run = TaskRun(replace(TINY, folder=str(tmp_path)), 0)
    with torch.no_grad():
        run.network.decoder.bias.fill_(torch.inf)
    learned = run.train()
    assert learned.diverged_at == 1
    assert json.loads((run.folder.path / "manifest.json").read_text())["result"]["diverged_at"] == 1


def test_gradients_that_overflow_are_clipped_or_left_out(tmp_path: Path) -> None:
    moved: list[bool] = []

    class Steep(TaskRun):
        """The gradients of update 3 are huge, those of 5 and of all from 8 on infinite."""

        def learn(self) -> None:
            factors = {3: 1e30, 5: math.inf} | dict.fromkeys(range(8, 99), math.inf)
            factor = factors.get(self.update + 1, 1.0)
            hook = self.network.decoder.bias.register_hook(lambda gradient: gradient * factor)
            before = [parameter.detach().clone() for parameter in self.network.parameters()]
            super().learn()
            hook.remove()
            same = map(torch.equal, before, self.network.parameters())
            moved.append(not all(same))

    run = Steep(replace(TINY, updates=50, folder=str(tmp_path)), 0)
    learned = run.train()
    assert (learned.ended, learned.diverged_at) == ("diverged", 8 + MAX_SKIPPED)
    assert moved == [True] * 4 + [False] + [True] * 2 + [False] * (MAX_SKIPPED + 1)
    for limit in (1.0, 100.0):
        given = [torch.nn.Parameter(torch.zeros(2)) for _ in range(2)]
        for parameter, gradient in zip(given, ([3e30, 0.0], [0.0, -4e30]), strict=True):
            parameter.grad = torch.tensor(gradient)
        norm = gradient_norm(given)
        assert norm == math.inf
        assert math.isfinite(clip_gradients(given, limit, norm, math.inf))
        clipped = [parameter.grad.tolist() for parameter in given if parameter.grad is not None]
        assert clipped == [[pytest.approx(0.6 * limit), 0], [0, pytest.approx(-0.8 * limit)]]


def test_a_last_update_that_breaks_the_weights_is_a_divergence(tmp_path: Path) -> None:
    config = replace(TINY, folder=str(tmp_path), optimizer="sgd", learning_rate=1e38, updates=1)
    learned = TaskRun(config, 0).train()
    assert (learned.ended, learned.diverged_at, learned.best_step) == ("diverged", 1, 0)
    said = runner_for(config).describe(Job(config, 0), learned)[0]
    assert "diverged at update 1, the last finite weights are in" in said


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
        replace(TINY, **changes).check()


def test_a_run_ends_when_the_task_is_solved(tmp_path: Path) -> None:
    config = replace(TINY, folder=str(tmp_path), stop_loss=10.0)
    learned = TaskRun(config, 0).train()
    assert (learned.ended, learned.losses[-1][0]) == ("goal", 0)
    exact = replace(TINY, folder=str(tmp_path / "exact"), stop_loss=learned.losses[0][1])
    assert TaskRun(exact, 0).train().losses[-1][0] > 0  # it must get below
    with pytest.raises(ValueError, match="stop_loss must be finite and above 0"):
        replace(TINY, stop_loss=0.0).check()


def test_tables_say_who_solved_it_and_what_is_published() -> None:
    common = {
        "title": "some, steps 3", "baseline": "0.5", "diverged_at": "", "updates": "900",
        "batch_size": "7", "hidden_size": "8", "learning_rate": "0.1", "parameters": "1234",
        "seconds": "5", "commit": "abcdef0123", "stop_loss": "0.01",
        "command": "rlgates sweep some",
    }  # fmt: skip
    ends = {"slow": ("goal", "800"), "fast": ("goal", "200"), "never": ("budget", "900")}
    rows = [
        {**common, "core": core, "seed": str(seed), "ended": ended, "made": made, "loss": "0.005"}
        for core, (ended, made) in ends.items()
        for seed in (0, 1)
    ]
    rows[-1]["loss"] = "0.3"
    text = task_table(to_frame(rows))
    assert [line.split("`")[1] for line in text.splitlines()[2:5]] == ["fast", "slow", "never"]
    assert "| `fast` | 2 of 2, after 200 | 0.0050 | 0.0050 | 0 of 2 | 1,234 | 5.0 s |" in text
    assert "| `never` | 0 of 2 | 0.1525 | 0.3000 |" in text
    assert "Solved: a loss below 0.01" in text
    text = task_table(
        to_frame([{**row, "variant": "to the end", "stop_loss": ""} for row in rows[:2]] + rows[2:])
    )
    assert "| `slow`, to the end |  | 0.0050 |" in text
    assert "| `fast` | 2 of 2, after 200 |" in text
    assert "Solved: a loss below 0.01" in text
    music = [
        {**row, "stop_loss": "", "epochs": "4", "updates": "", "metric": "nll", "test": test,
         "first_loss": "9", "published": "7.72 3" if row["core"] == "fast" else "",
         "optimizer": "radam"}
        for row, test in zip(rows, ("8", "9", "7", "7.5", "10", "11"), strict=True)
    ]  # fmt: skip
    text = task_table(to_frame(music))
    assert "| loss before | loss | worst seed | nll on test | published | diverged |" in text
    assert "| `fast` | 9.0000 | 0.0050 | 0.0050 | 7.25 [7, 7.5] | 7.72, 3 |" in text
    parts = [{**row, "test_nll_rare": f"{20 * float(row['test'])}"} for row in music]
    text = task_table(to_frame(parts))
    assert "| nll on test | published | nll_rare on test | diverged |" in text
    assert "| 7.25 [7, 7.5] | 7.72, 3 | 145 [140, 150] |" in text
    lost = {**music[1], "diverged_at": "3", "loss": "nan"}
    text = task_table(to_frame([music[0], lost, *music[2:]]))
    assert "| `slow` | 9.0000 | nan | nan | 8 [8, 8] | 1 of 2 |" in text.replace("|  |", "|")
    assert "Runs that diverged have no figure on test" in text
    some = [{**row, "title": title} for row, title in zip(music[:2], ("a, b 1", "c"), strict=True)]
    text = overview(to_frame(some))
    assert "| a, b 1 | 4 epochs | 9.0000 | 0.0050 | nll 8 | " in text
    assert "`slow` unless another core is named, seed 0, 1: loss" in text
    text = overview(to_frame([some[0], some[0] | {"title": "d"}, some[1] | {"core": "gru"}]))
    assert "| c (`gru`) | 4 epochs" in text
    text = task_table(to_frame(music))
    assert "after 4 epochs, 7 sequences per batch" in text
    assert "RAdam" in text
    text = task_table(to_frame([{**row, "ended": "patience"} for row in music[:2]] + music[2:]))
    assert "after at most 4 epochs, 7 sequences per batch" in text
    assert "2 of 6 runs stopped early" in text
    other = {"epochs": "9", "batch_size": "3", "optimizer": "", "learning_rate": "0.2"}
    text = task_table(to_frame([{**row, **other} for row in music[:2]] + music[2:]))
    assert "after 9 epochs or 4 epochs, 3 or 7 sequences per batch" in text
    assert "d = 8, Adam or RAdam, rate 0.2 or 0.1" in text


def test_a_long_curve_keeps_its_ends_and_its_lowest_point() -> None:
    losses = [(update, 2.0 + update) for update in range(500)]
    losses[7], losses[9] = (7, 1.0), (9, float("nan"))
    learned = replace(RESULT, losses=tuple(losses))
    curve = runner_for(TINY).curve(Job(TINY, 0), learned)
    updates = [int(point["update"]) for point in curve]
    assert (updates[0], updates[-1]) == (0, 499)
    assert {"update": "7", "loss": "1.00000"} in curve
    assert updates == sorted(set(updates))
    assert len(updates) <= CURVE_POINTS + 1


def test_the_timescales_of_kept_gates_are_seen_during_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(TINY, core="lstm", folder=str(tmp_path))
    job = Job(config, 0, extras=("gates",))
    result = run_job(job).result
    assert result is not None
    kind = runner_for(config)
    points = [{"core": "lstm", "seed": "0", **point} for point in kind.curve(job, result)]
    assert [point["update"] for point in points] == ["0", "2", "4", "6"]
    for point in points:
        low, middle, high = (float(point[name]) for name in QUANTILES)
        assert 1 <= low <= middle <= high
    assert 3 < float(points[0]["timescale"]) < 5, "1 / (1 - sigmoid(1)) is 3.7"
    assert QUANTILES[0] not in kind.curve(replace(job, extras=()), result)[0]
    rows = [{"title": "copy", "core": "or_lstm", **row} for row in kind.gates(job, result)]
    assert draw_unit_gates("copy", to_frame(rows), tmp_path / "gates.png"), "of any core"
    rows = [{**row, "core": "lstm"} for row in rows]
    heights = []
    for some in ([], points, [*points, *({**point, "seed": "1"} for point in points[:2])]):
        assert draw_unit_gates("copy", to_frame(rows), tmp_path / "gates.png", to_frame(some))
        heights.append(imread(tmp_path / "gates.png").shape[0])
    assert heights[0] < heights[1] == heights[2]
    figures = figures_of(curves, monkeypatch, pictures=False)
    variants = [{**row, "variant": "longer"} for row in (*rows, *points)]
    both, grown = [*rows, *variants[: len(rows)]], [*points, *variants[len(rows) :]]
    assert draw_unit_gates("copy", to_frame(both), tmp_path / "gates.png", to_frame(grown))
    titles = {axes.get_title("left") for axes in figures[0].axes}
    assert {"lstm", "lstm, longer"} < titles, "a panel of its own"


def test_a_core_that_is_compared_with_nothing_has_no_pictures(tmp_path: Path) -> None:
    rows = [
        {"title": title, "core": core, "seed": "0", "baseline": ""}
        for title in ("copy", "adding")
        for core in ("gru", "lstm")
    ]
    points = [{**row, "update": str(n), "loss": "1"} for row in rows for n in range(3)]
    merge_rows(tmp_path / "mine_curves.csv", points)
    drawn = {path.name for path in draw_tasks(tmp_path, "mine", to_frame(rows))}
    assert drawn == {"mine_copy.png", "mine_adding.png"}
    assert draw_tasks(tmp_path, "mine", to_frame(rows[::2])) == []
    assert draw_tasks(tmp_path, "mine", to_frame(rows[::3])) == [], "gru on copy, lstm on adding"


@pytest.mark.parametrize(
    ("lines", "baseline", "limits", "scale"),
    [
        ([FALLING], None, (2.6, 5.4), "linear"),
        ([FALLING, ([0, 10], [60.0, 50.0])], None, (1.5, 200), "log"),
        ([FALLING], 6.0, (2.4, 6.6), "linear"),
        ([(range(2), [5.0, 0.01])], 6.0, (0.005, 24), "log"),
        ([(range(2), [2.1, 0.24])], 2.08, (0, 2.448), "linear"),  # not below 0
        ([([0], [2.0])], None, (1.9, 2.1), "linear"),
        ([([0, 10], [math.nan, math.inf]), FALLING], None, (2.6, 5.4), "linear"),
        ([([0], [math.nan])], 6.0, (5.7, 6.3), "linear"),  # as where nothing is learned
        ([([0], [math.nan])], None, (0, 0.1), "linear"),
    ],
)
def test_pictures_leave_out_what_is_above_all_later_losses(
    lines: Any, baseline: float | None, limits: tuple[float, float], scale: str
) -> None:
    *found, kind = loss_limits([Line(*line) for line in lines], baseline)
    assert found == pytest.approx(limits)
    assert kind == scale


def test_rows_have_the_figure_of_each_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RunFolder, "provenance", lambda _: {})
    config = replace(TINY, task="ptb_words", task_settings={"by_frequency": True})
    test = {"loss": 4.5, "perplexity": 90.0, "loss_rare": 2.0, "perplexity_rare": 1936.02}
    row = runner_for(config).row(Job(config, 0), replace(RESULT, test=test))
    assert row["test"] == "90"
    assert {name for name in row if name.startswith("test_")} == {"test_perplexity_rare"}
    assert row["test_perplexity_rare"] == "1936.02"
