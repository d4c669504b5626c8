"""The figures of supervised tasks: the ends of runs, the order of panels, and none empty."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from support.tiny import assert_readable, figures_of

from rlgates.experiments.plots import curves
from rlgates.experiments.plots.curves import ALARM
from rlgates.experiments.plots.styles import MUTED, style
from rlgates.experiments.report.rows import read_frame, to_frame
from rlgates.experiments.report.studies.tasks import Line, draw_tasks, plot_losses
from rlgates.experiments.report.studies.unit_gates import _median_growth
from rlgates.experiments.runs.gates import QUANTILES

RESULTS = Path(__file__).parents[3] / "experiments" / "results"
LONG = [0, 100, 200, 300], [0.2, 0.15, 0.1, 0.05]
CURVES = {
    "nru": [Line([0], [9e9], "diverged"), Line([0, 100], [0.2, 0.19], "diverged")],
    "gru, tied": [Line(*LONG, "budget"), Line([0, 100], [70.0, 60.0], "budget")],
    "lstm": [Line(*LONG, "budget"), Line([0, 100], [0.2, 0.01], "goal")],
    "none": [Line([0, 100], [0.2, math.nan], "diverged")],
    "gru": [Line([0, 50], [0.2, 0.1], "patience")],
}


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """What is drawn while the test runs."""
    return figures_of(curves, monkeypatch, pictures=False)


def marks(axes: Axes, marker: str) -> list[tuple[float, float, str]]:
    """Where a marker is, and its colour."""
    lines = [line for line in axes.lines if line.get_marker() == marker]
    return [(*line.get_xydata()[0], line.get_color()) for line in lines]  # type: ignore[index,misc]


def words(axes: Axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


def test_runs_that_ended_before_their_budget(figures: list[Figure], tmp_path: Path) -> None:
    plot_losses("adding, steps 200", CURVES, 0.17, tmp_path / "a.png")
    (figure,) = figures
    assert_readable(figure)
    assert figure.get_suptitle() == "Adding, 200 steps"
    panels = {axes.get_title("left"): axes for axes in figure.axes}
    assert list(panels) == ["lstm", "gru", "gru, tied", "nru", "none"]
    assert {axes.get_xlabel() for axes in figure.axes} == {"updates"}
    assert {axes.get_ylabel() for axes in figure.axes} == {"squared error"}
    assert marks(panels["lstm"], "o") == [(100, 0.01, style("lstm").color)]
    assert marks(panels["gru"], "s") == [(50, 0.1, style("gru").color)]
    assert marks(panels["nru"], "x") == [(100, 0.19, ALARM)]
    assert marks(panels["none"], "x") == [(0, 0.2, ALARM)]
    assert words(panels["nru"]) == ["diverged: 2 of 2"]
    assert words(panels["none"]) == ["diverged: 1 of 1"]
    assert words(panels["gru, tied"]) == ["1 of 2 beyond the axis"]
    assert words(panels["lstm"]) == []
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == [
        "a seed, on held-out sequences",
        "the best without memory",
        "ended early: solved",
        "stopped early: no further improvement",
        "diverged",
    ]


def test_the_legend_of_a_single_core_fits(figures: list[Figure], tmp_path: Path) -> None:
    plot_losses("jsb", {"gru": [Line(*LONG, "patience")]}, 0.17, tmp_path / "a.png")
    (figure,) = figures
    assert_readable(figure)
    (legend,) = figure.legends
    figure.draw_without_rendering()
    box = legend.get_window_extent()
    assert 0 <= box.x0 < box.x1 <= figure.bbox.width


def test_where_nothing_is_learned_all_runs_are_seen(figures: list[Figure], tmp_path: Path) -> None:
    """The noise above the baseline does not fill the panel."""
    lines = {
        core: [Line([0, 44, 88], [2.31, 2.304, 2.3031], "patience")] for core in ("lstm", "gru")
    }
    plot_losses("jsb", lines, 2.3026, tmp_path / "a.png")
    (figure,) = figures
    for axes in figure.axes:
        low, high = axes.get_ylim()
        assert 2.1 < low < 2.3
        assert 2.31 < high < 2.5
        assert words(axes) == []


def test_a_legend_says_only_what_there_is(figures: list[Figure], tmp_path: Path) -> None:
    some = {core: [Line(*LONG, "budget")] for core in ("lstm", "gru")}
    plot_losses("jsb", some, None, tmp_path / "a.png")
    (figure,) = figures
    assert figure.get_suptitle() == "Bach chorales"
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == ["a seed, on held-out sequences", "the other cores"]
    for axes in figure.axes:
        colors = [line.get_color() for line in axes.lines]
        assert colors == [MUTED, MUTED, style(axes.get_title("left")).color]


@pytest.mark.parametrize(("study", "number"), [("all_cores", 2), ("music", 2), ("icu", 1)])
def test_no_panel_of_a_committed_study_is_empty(
    study: str, number: int, figures: list[Figure], tmp_path: Path
) -> None:
    for end in ("", "_curves"):
        (tmp_path / f"{study}{end}.csv").write_bytes((RESULTS / f"{study}{end}.csv").read_bytes())
    rows = read_frame(RESULTS / f"{study}.csv")
    draw_tasks(tmp_path, study, rows)
    assert len(figures) == number
    for figure in figures:
        assert_readable(figure)
    diverged = len(rows[rows["diverged_at"] != ""].drop_duplicates(["title", "core"]))
    panels = [axes for figure in figures for axes in figure.axes]
    assert sum("diverged" in " ".join(words(axes)) for axes in panels) == diverged


def test_every_seed_counts_in_each_median_of_the_timescales() -> None:
    """Whether it was measured at other updates, or had stopped."""
    seeds = {
        0: {0: 1.0, 10: 2.0, 20: 3.0, 30: 4.0},
        1: {0: 10.0, 15: 25.0, 30: 40.0},
        2: {5: 100.0, 10: 100.0},  # stopped early
    }
    points = [
        {"core": "lstm", "variant": "", "seed": str(seed), "update": str(update)}
        | dict.fromkeys(QUANTILES, str(value))
        for seed, values in seeds.items()
        for update, value in values.items()
    ]
    growth = _median_growth(to_frame(points), "lstm")
    assert growth is not None
    assert growth.steps.tolist() == [5, 10, 15, 20, 30]
    for line in growth[1:]:
        assert line.tolist() == pytest.approx([15, 20, 25, 30, 40])
