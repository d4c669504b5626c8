"""Scores against lengths: what is drawn and written, from made-up rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread
from support.tiny import assert_readable, figures_of

from rlgates.experiments.plots import curves
from rlgates.experiments.plots.styles import MUTED, style
from rlgates.experiments.report.rows import to_frame
from rlgates.experiments.report.studies.lengths import (
    ASIDE,
    BACKGROUND,
    MAX_TOGETHER,
    ROW_CORES,
    LengthScores,
    draw_env_lengths,
    draw_stretched,
    length_tables,
    plot_grid,
    plot_one,
)
from rlgates.experiments.report.study import redraw_study
from rlgates.experiments.runs.files import Row
from rlgates.experiments.runs.logs import write_rows
from rlgates.experiments.studies import STUDIES, Study
from rlgates.registry import core_names

# IQM of five values: the mean of those in the middle.
FIVE = (0.1, 0.4, 0.5, 0.6, 1.0)


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """What is drawn while the test runs."""
    return figures_of(curves, monkeypatch, pictures=False)


def panel(cores: Any, title: str = "task") -> LengthScores:
    scores = {core: {1.0: FIVE, 2.0: (0.3, 0.3, 0.3, 0.3, 0.3)} for core in cores}
    return LengthScores(title, "delay", {1.0: "×1\n5", 2.0: "×2\n10"}, scores, 0.25)


def lines(axes: Any) -> Iterator[Any]:
    return (line for line in axes.lines if len(line.get_xdata()) == 2 and line.get_lw() != 0.9)


def colors(axes: Any) -> list[str]:
    return [line.get_color() for line in lines(axes)]


def test_means_and_levels(figures: list[Figure], tmp_path: Path) -> None:
    plot_grid([panel(["lstm", "none"])], tmp_path / "a.png", "accuracy")
    (axes,) = figures[0].axes
    for line in lines(axes):
        assert line.get_ydata() == pytest.approx([0.5, 0.3])
    assert {line.get_ydata()[0] for line in axes.lines if line.get_lw() == 0.9} == {0.25, 1.0}
    assert [label.get_text() for label in axes.get_xticklabels()] == ["×1\n5", "×2\n10"]
    assert axes.get_xscale() == "log"
    assert axes.get_ylabel() == "accuracy"
    first, second = axes.collections[0].get_segments()
    assert first[0, 1] < 0.5 < first[1, 1]
    assert second[:, 1] == pytest.approx(0.3)
    places = [line.get_xdata() for line in lines(axes)]
    assert places[0][0] < 1 < places[1][0], "the bars are beside each other"
    assert places[0] == pytest.approx([bar[0, 0] for bar in (first, second)])
    words = [text.get_text() for text in axes.texts]
    assert words == ["ceiling: perfect memory (1.00)", "floor: chance, no memory (0.25)"]


def test_a_row_of_panels_for_every_few_cores(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    figures = figures_of(curves, monkeypatch)
    cores = [*[*core_names()][: ROW_CORES + 2], "none"]
    plot_grid([panel(cores, "jsb"), panel(cores[3:], "b")], tmp_path / "a.png", "score")
    first, _, last, right = axes = figures[0].axes
    assert len(axes) == 4
    assert_readable(figures[0])
    assert [one.get_title("left") for one in axes] == ["Bach chorales", "b"] * 2
    assert colors(first).count(BACKGROUND) == 2
    assert colors(last).count(BACKGROUND) == ROW_CORES
    legend = right.get_legend()
    assert [text.get_text() for text in legend.get_texts()] == cores[-3:]
    for words in ("bar: its 95 % interval", "grey: the other cores"):
        assert words in legend.get_title().get_text()
    shown = [(line.get_color(), str(line._dash_pattern)) for line in (*lines(first), *lines(last))]
    named = [one for one in shown if one[0] not in (BACKGROUND, MUTED)]
    assert len(set(named)) == ROW_CORES + 2
    assert imread(tmp_path / "a.png").shape[:2] == (160 * 6.7, 160 * 9.6)


@pytest.mark.parametrize("number", [2, MAX_TOGETHER, MAX_TOGETHER + 1])
def test_many_lines_have_small_panels(number: int, figures: list[Figure], tmp_path: Path) -> None:
    cores = [*[*core_names()][: number - 1], "none"]
    plot_one(panel(cores), tmp_path / "a.png", "success rate")
    shown = figures[0].axes
    assert_readable(figures[0])
    if number <= MAX_TOGETHER:
        assert len(shown) == 1
        assert len(set(colors(shown[0]))) == number
        assert BACKGROUND not in colors(shown[0])
        assert "bar" in figures[0].legends[0].get_title().get_text()
        return
    assert [axes.get_title("left") for axes in shown] == cores
    for axes in shown:
        assert colors(axes).count(BACKGROUND) == number - 1
        assert style(axes.get_title("left")).color in colors(axes)
    assert "0.25 chance" in figures[0].get_suptitle()


def test_lengths_that_were_not_made_leave_a_gap(figures: list[Figure], tmp_path: Path) -> None:
    one = panel(["lstm", "gru"])
    scores = {**one.scores, "gru": {2.0: (0.7,)}}
    plot_one(one._replace(scores=scores, floor=None), tmp_path / "a.png", "success rate")
    (axes,) = figures[0].axes
    (line,) = (line for line in axes.lines if line.get_label() == "gru")
    assert line.get_xdata() == pytest.approx([2 * 2 ** (ASIDE / 2)])  # beside the other core
    assert list(line.get_ydata()) == [0.7]
    text = length_tables([one._replace(scores=scores)])
    assert text.splitlines()[0] == "| task: delay | ×1, 5 | ×2, 10 |"
    assert text.splitlines()[3] == "| `gru` |  | 0.70 |"


def test_there_may_be_a_length_of_nothing(figures: list[Figure], tmp_path: Path) -> None:
    one = panel(["lstm"])
    plot_one(one._replace(lengths={0.0: "0", 2.0: "2"}), tmp_path / "a.png", "success rate")
    assert figures[0].axes[0].get_xscale() == "linear"


RUN = {"variant": "", "command": "rlgates sweep some", "commit": "0123456789", "seconds": "3"}


def horizon_rows(core: str, seed: int, score: float, title: str = "copy, delay 25") -> list[Row]:
    run = {"title": title, "variant": "", "core": core, "seed": str(seed)}
    return [
        {
            **run, "factor": str(factor), "setting": f"delay {25 * factor}", "length": "45",
            "count": "256", "score": str(score / factor), "loss": "0.1", "floor": "0.125",
        }
        for factor in (16, 4, 1, 2)
    ]  # fmt: skip


def test_the_table_of_the_horizon(tmp_path: Path) -> None:
    rows = [{**RUN, "title": "copy, delay 25", "core": core, "seed": "0"} for core in ("gru", "x")]
    assert draw_stretched(tmp_path, "some", to_frame(rows)) == []
    tested = [row for seed, score in enumerate(FIVE) for row in horizon_rows("gru", seed, score)]
    # Which run was over first makes no difference.
    tested = [*horizon_rows("none", 0, 0.5), *tested, *horizon_rows("lstm", 0, 1.0)]
    write_rows(tmp_path / "some_horizon.csv", tested, list(tested[0]))
    written = draw_stretched(tmp_path, "some", to_frame(rows))
    assert [path.name for path in written] == ["some_horizon.png", "some_horizon.md"]
    text = written[1].read_text().splitlines()
    heads = ("Copy, delay 25: delay, ×1 as trained", "×1, 25", "×2, 50", "×4, 100", "×16, 400")
    assert text[0] == f"| {' | '.join(heads)} |"
    assert [line.split("`")[1] for line in text[2:5]] == ["lstm", "gru", "none"]
    for cell in ("| 0.50 [0.", "| 0.25 [0.", "| 0.12 [0.", "| 0.03 [0."):
        assert cell in text[3]
    assert "on 256 fresh episodes" in text[-1]
    assert "seeds 0 to 4" in text[-1]
    assert "Without memory: 0.12 on Copy, delay 25." in text[-1]
    assert "`rlgates sweep some`, commit 0123456." in text[-1]
    assert imread(written[0]).std() > 0.05


def match_row(core: str, steps: int, seed: int, success: float, **changes: str) -> Row:
    settings = f"explore_steps=15 distractor_steps={steps} reward_steps=15"
    row = {
        **RUN, "title": f"PassiveMatch 15/{steps}/15", "core": core, "seed": str(seed),
        "success": str(success), "episodes": "1000", "env": "rlgates/PassiveMatch-v0",
        "env_settings": settings, "budget": "100", "stop_success": "", "threads": "1",
        "steps_to_0.9": "", "steps": "100",
    }  # fmt: skip
    return {**row, **changes}


def test_success_against_the_one_setting_that_differs(
    figures: list[Figure], tmp_path: Path
) -> None:
    rows = [
        match_row(core, steps, seed, success / (steps / 30))
        for core in ("none", "lstm")
        for steps in (60, 30)
        for seed, success in enumerate(FIVE)
    ]
    picture, text = draw_env_lengths(tmp_path, "some", to_frame(rows))
    assert (picture.name, text.name) == ("some_lengths.png", "some_lengths.md")
    (axes,) = figures[0].axes
    assert axes.get_title("left") == "Passive Match, explore steps 15, reward steps 15"
    assert axes.get_xlabel() == "distractor steps"
    assert len(list(lines(axes))) == 2
    for line, side in zip(lines(axes), (-1, 1), strict=True):  # beside each other
        places = np.array([30, 60]) * 2 ** (side * ASIDE / 2)
        assert line.get_xdata() == pytest.approx(places)
        assert line.get_ydata() == pytest.approx([0.5, 0.25])
    head, _, first, second, _, note = text.read_text().splitlines()
    assert head.endswith("reward steps 15: distractor steps | 30 | 60 |")
    assert first.startswith("| `lstm` | 0.50 [")
    assert second.startswith("| `none` | 0.50 [")
    assert "Success on 1,000 fresh episodes per seed." in note
    assert "Without memory: 0.33." in note


@pytest.mark.parametrize(
    "rows",
    [
        [match_row("lstm", 30, 0, 1.0)],
        [
            match_row("lstm", 30, 0, 1.0),
            match_row("lstm", 60, 0, 1.0, env_settings="explore_steps=2 distractor_steps=60"),
        ],
        [
            match_row("lstm", 30, 0, 1.0, env_settings="shuffle_pads=env"),
            match_row("lstm", 30, 0, 1.0, env_settings="shuffle_pads=episode"),
        ],
        [
            match_row("lstm", 30, 0, 1.0, env_settings="ship_sizes='[2, 3]'"),
            match_row("lstm", 60, 0, 1.0, env_settings="ship_sizes='[2, 4]'"),
        ],
        [
            match_row("lstm", 30, 0, 1.0),
            match_row("lstm", 60, 0, 1.0),
            match_row("lstm", 60, 0, 1.0, title="PassiveMatch 15/60/15, A2C"),
        ],
    ],
)
def test_runs_that_differ_in_more_or_less_than_a_length_have_no_such_picture(
    rows: list[Row], tmp_path: Path
) -> None:
    assert draw_env_lengths(tmp_path, "some", to_frame(rows)) == []
    assert not list(tmp_path.iterdir())


def test_a_study_has_the_chart_that_it_asks_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [match_row("lstm", steps, seed, 0.5) for steps in (30, 60) for seed in (0, 1)]
    for name in ("some", "other", "some_full"):
        write_rows(tmp_path / f"{name}.csv", rows, list(rows[0]))
        points = [
            {**{key: row[key] for key in ("title", "variant", "core", "seed")}, **point}
            for row in rows
            for point in ({"steps": "0", "success": "0"}, {"steps": "9", "success": "1"})
        ]
        write_rows(tmp_path / f"{name}_curves.csv", points, list(points[0]))
    for name, chart in (("some", "lengths"), ("other", "curves")):
        monkeypatch.setitem(STUDIES, name, Study(title=name, laptop=(), chart=chart))  # type: ignore[arg-type]

    def drawn(name: str, study: Study | None = None) -> set[str]:
        return {path.name.removeprefix(name) for path in redraw_study(tmp_path, name, study)}

    against = {"_lengths.png", "_lengths.md", ".md"}
    curves = {".png", "_readme.png", ".md"}
    assert drawn("some") == drawn("some_full") == against
    assert drawn("other") == curves
    assert drawn("other", STUDIES["some"]) == against
    assert redraw_study(tmp_path, "nowhere") == []
    (tmp_path / "some_curves.csv").unlink()
    assert drawn("some", STUDIES["other"]) == {".md"}
