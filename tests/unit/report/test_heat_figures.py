"""Heat maps over learning rates and sizes: what is read, drawn and written, from made-up rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.image import imread
from support.tiny import figures_of

from rlgates.experiments.plots import curves
from rlgates.experiments.report.rows import to_frame
from rlgates.experiments.report.studies.heat import DIVERGED, draw_heat, heat_maps
from rlgates.experiments.report.study import redraw_study
from rlgates.experiments.runs.files import Row
from rlgates.experiments.runs.logs import write_rows

RATES = (1e-4, 1e-3, 1e-2)


def run(core: str, rate: float, size: int, loss: str, seed: int = 0, **changes: str) -> Row:
    row = {
        "title": "nottingham", "variant": f"rate {rate:g}, size {size}", "core": core,
        "seed": str(seed), "loss": loss, "diverged_at": "", "learning_rate": str(rate),
        "hidden_size": str(size), "metric": "nll", "test": "", "command": "rlgates sweep rate_size",
        "commit": "0123456789", "seconds": "20", "made": "1200",
    }  # fmt: skip
    return {**row, **changes}


def curve(row: Row, *losses: str) -> list[Row]:
    named = {name: row[name] for name in ("title", "variant", "core", "seed")}
    return [{**named, "update": str(k), "loss": loss} for k, loss in enumerate(losses)]


ROWS = [
    run("gru", 1e-4, 32, "4.0"),
    run("gru", 1e-3, 32, "3.0", test="2.9"),
    run("gru", 1e-2, 32, "nan", diverged_at="7"),
    run("gru", 1e-4, 64, "5.0"),
    run("gru", 1e-2, 64, "3.5"),
    run("lstm", 1e-3, 48, "2.0", test="1.5"),
]
POINTS = [
    *curve(ROWS[0], "9", "3.2", "4.0"),  # the lowest is not the last
    *curve(ROWS[2], "1.0", "nan"),  # no merit of a run that diverged
    *curve(ROWS[4], "9", "inf", "3.5"),
]


def test_the_lowest_loss_of_each_rate_and_size() -> None:
    lstm, gru = heat_maps(to_frame(ROWS), to_frame(POINTS))
    assert (gru.core, gru.rates, gru.sizes) == ("gru", RATES, (32, 64))
    losses = {(32, 1e-4): 3.2, (32, 1e-3): 3.0, (64, 1e-4): 5.0, (64, 1e-2): 3.5}
    assert gru.losses == losses
    assert gru.best == (32, 1e-3)
    assert [gru.cells[place].updates for place in losses] == [1, 1200, 1200, 2]
    assert (gru.cells[32, 1e-2].loss, gru.cells[32, 1e-2].diverged) == (None, 1)
    assert (64, 1e-3) not in gru.cells
    assert (lstm.rates, lstm.sizes, lstm.best) == (RATES, (48,), (48, 1e-3))


def test_seeds_that_diverged_are_left_out_of_the_median() -> None:
    rows = [run("gru", 1e-3, 8, loss, seed) for seed, loss in enumerate(("1", "5", "2", "nan"))]
    (only,) = heat_maps(to_frame(rows), to_frame([]))
    assert only.losses == {(8, 1e-3): 2.0}
    assert only.cells[8, 1e-3].diverged == 1
    (lost,) = heat_maps(to_frame(rows[3:]), to_frame([]))
    assert (lost.best, lost.losses) == (None, {})


def drawn(rows: list[Row], points: list[Row], folder: Path, patch: Any) -> list[Figure]:
    seen = figures_of(curves, patch)
    write_rows(folder / "rate_size_curves.csv", points, list(points[0]))
    for path in draw_heat(folder, "rate_size", to_frame(rows)):
        assert imread(path).std() > 0.05
    return seen


def test_a_panel_for_each_core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (figure,) = drawn(ROWS, POINTS, tmp_path, monkeypatch)
    lstm, gru, _ = figure.axes
    assert [axes.get_xlabel() for axes in (lstm, gru)] == ["learning rate"] * 2
    assert [axes.get_ylabel() for axes in (lstm, gru)] == ["units"] * 2
    assert "Nottingham folk tunes: lowest loss" in figure.get_suptitle()
    words = {text.get_position(): text.get_text() for text in gru.texts}
    assert words == {
        (0, 0): "3.20\n1", (1, 0): "3.00\n1.2 k", (0, 1): "5.00\n1.2 k", (1, 1): "–",
        (2, 1): "3.50\n2",
    }  # fmt: skip
    patches: list[Any] = list(gru.patches)
    failed = [patch for patch in patches if patch.get_hatch()]
    assert [patch.get_xy() for patch in failed] == [(1.5, -0.5)]
    assert to_hex(failed[0].get_facecolor()) == DIVERGED
    frames = [patch for patch in patches if patch.get_linewidth() == 2.5]
    assert [frame.get_xy() for frame in frames] == [(0.5, -0.5)]
    color = {patch.get_xy(): patch.get_facecolor() for patch in patches if patch not in frames}
    # One scale of colours: the lowest loss is another core's.
    best: Any = next(patch for patch in lstm.patches if patch.get_linewidth() != 2.5)
    brightness = [np.dot(c[:3], (0.3, 0.6, 0.1)) for c in (best.get_facecolor(), color[0.5, -0.5])]
    assert brightness[0] < brightness[1]
    assert [label.get_text() for label in gru.get_xticklabels()] == ["0.0001", "0.001", "0.01"]
    assert [label.get_text() for label in gru.get_yticklabels()] == ["32", "64"]
    assert [label.get_text() for label in lstm.get_yticklabels()] == ["48"]
    assert [text.get_text() for text in lstm.texts] == ["–", "2.00\n1.2 k", "–"]


def test_nothing_but_failures_can_be_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (figure,) = drawn([ROWS[2]], curve(ROWS[2], "nan"), tmp_path, monkeypatch)
    assert [patch.get_hatch() for patch in figure.axes[0].patches] == ["////"]


def test_the_study_has_it_in_place_of_curves(tmp_path: Path) -> None:
    rows = [*ROWS, *({**row, "title": "jsb", "metric": "loss"} for row in ROWS[:2])]
    write_rows(tmp_path / "rate_size.csv", rows, list(rows[0]))
    write_rows(tmp_path / "rate_size_curves.csv", POINTS, list(POINTS[0]))
    written = redraw_study(tmp_path, "rate_size")
    heats = [f"rate_size_{task}_heat.png" for task in ("nottingham", "jsb")]
    assert [path.name for path in written] == ["rate_size.md", *heats]
    text = written[0].read_text().splitlines()
    assert text[:4] == [
        "| Nottingham folk tunes | lowest loss | after updates | rate | size | nll on test "
        "| diverged | missing |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
        "| `lstm` | 2.0000 | 1,200 | 0.001 | 48 | 1.5 | 0 of 1 runs | 2 |",
        "| `gru` | 3.0000 | 1,200 | 0.001 | 32 | 2.9 | 1 of 5 runs | 1 |",
    ]
    assert text[5].startswith("| Bach chorales | lowest loss | after updates | rate | size | loss")
    assert "seed 0" in text[-1]
    end = " 8 runs took 2 min 40 s in all. `rlgates sweep rate_size`, commit 0123456."
    assert text[-1].endswith(end)
