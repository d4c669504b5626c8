"""Numbers over seeds, the tables of agents, and the pictures."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread
from PIL import Image
from scipy.stats import trim_mean
from support.tiny import assert_readable

from rlgates.experiments.analysis.stats import interval, iqm, iqm_interval, median_reached
from rlgates.experiments.plots.curves import (
    Curve,
    draw_curves,
    draw_panels,
    new_figure,
    plot_panels,
)
from rlgates.experiments.plots.styles import style
from rlgates.experiments.report.environments import phase_images
from rlgates.experiments.report.rows import to_frame, with_best
from rlgates.experiments.report.studies.agents import agent_tables


def test_iqm_by_hand() -> None:
    assert iqm([7, 100, 3, 4, 5, 6, -50, 2]) == 4.5  # of 3, 4, 5, 6
    assert iqm([0.9, 0.1, 1.0, 0.8, 0.4]) == pytest.approx(0.7)  # of 0.4, 0.8, 0.9


def test_interval_is_that_of_all_resamples() -> None:
    values = np.array([0.31, 0.97, 0.55, 0.99, 0.83])
    every = [trim_mean(draw, 0.25) for draw in itertools.product(values, repeat=5)]
    low, high = iqm_interval(values)
    assert low == pytest.approx(np.quantile(every, 0.025), abs=0.02)
    assert high == pytest.approx(np.quantile(every, 0.975), abs=0.02)
    assert iqm_interval(values) == (low, high)


def test_interval_keeps_groups_apart() -> None:
    # Drawn over both groups at once, the mean of the middle would vary.
    low, high = iqm_interval(np.zeros(4), np.ones(4))
    assert (low, high) == (0.5, 0.5)


def test_groups_of_one_value_are_as_they_are() -> None:
    few, one = np.array([0.0, 1.0, 2.0, 3.0]), np.array([7.0])
    mean = [
        float(bound) for bound in interval(lambda a, b, axis: a.mean(axis) + b.mean(axis), few, one)
    ]
    alone = [float(bound) for bound in interval(lambda a, axis: a.mean(axis), few)]
    assert mean == [bound + 7 for bound in alone]
    curves, single = np.random.default_rng(0).random((4, 3)), np.ones((1, 3))
    low, high = iqm_interval(curves, single)
    assert low.shape == high.shape == (3,)
    assert (low < high).all()


def test_interval_over_a_curve() -> None:
    rng = np.random.default_rng(0)
    curves = rng.random((5, 7))
    low, high = iqm_interval(curves)
    assert low.shape == high.shape == (7,)
    assert np.all((low <= iqm(curves)) & (iqm(curves) <= high))
    only, _ = iqm_interval(curves[:1])
    assert np.array_equal(only, curves[0])


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([3, 1, 2], (2, 3)),
        ([4, None, 1, 2, None], (4, 3)),
        ([4, None, None, 2, None], (None, 2)),
        ([1, 2, None, None], (None, 2)),
        ([1, 2, 4, None], (3, 3)),
        ([None], (None, 0)),
    ],
)
def test_median_of_those_that_arrive(
    steps: list[float | None], expected: tuple[float | None, int]
) -> None:
    assert median_reached(steps) == expected


def curve(core: str, seed: int) -> Curve:
    steps = np.linspace(100, 2e6, 50)
    return Curve(core, seed, steps, np.clip(steps / 2e6 + 0.05 * seed, 0, 1))


def test_the_same_curves_are_the_same_picture(tmp_path: Path) -> None:
    curves = [curve(core, seed) for core in ("ur_lstm", "none") for seed in range(3)]
    for name in ("one.png", "two.png"):
        draw_curves(curves, tmp_path / name, "title", 1 / 3)
    one = (tmp_path / "one.png").read_bytes()
    assert one == (tmp_path / "two.png").read_bytes()
    picture = imread(tmp_path / "one.png")
    assert picture.shape[1] >= 800
    assert picture.std() > 0.05


def test_areas_of_a_small_png_keep_their_colours(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    colors = (217, 232, 241), (217, 238, 232), (255, 0, 0)
    with new_figure(tmp_path / "a.png", (3, 3)) as figure:
        noise, *areas = figure.subplots(4, 1)
        noise.imshow(rng.random((40, 40, 3)), interpolation="bilinear")
        for axes, color in zip(areas, colors, strict=True):
            axes.imshow(np.full((9, 9, 3), color, np.uint8))
    with Image.open(tmp_path / "a.png") as image:
        assert image.mode == "P"
        pixels = np.asarray(image.convert("RGB"))
    for color in ((255, 255, 255), *colors):
        assert (pixels == color).all(axis=-1).sum() > 1000


def test_pictures_of_the_phases() -> None:
    settings = {"explore_steps": 3, "distractor_steps": 14, "reward_steps": 9}
    pictures = phase_images("rlgates/PassiveMatch-v0", settings)
    assert len(pictures) == 3
    assert len({picture.tobytes() for picture in pictures}) == 3


def test_a_core_has_one_colour_in_all_panels() -> None:
    panels = {
        "one": [curve("lstm", 0), curve("c_lstm", 0), curve("ur_lstm", 0)],
        "other": [curve("ur_lstm", 0), curve("none", 0), curve("f_lstm", 0)],
    }
    figure = Figure()
    plot_panels(figure, panels, {})
    assert_readable(figure)
    for axes in figure.axes:
        for line, label in zip(*axes.get_legend_handles_labels(), strict=True):
            assert line.get_color() == style(label).color
    (legend,) = figure.legends
    named = [text.get_text() for text in legend.get_texts()]
    assert named == ["lstm", "c_lstm", "ur_lstm", "f_lstm", "none"]
    assert legend.get_title().get_text() == "", "one seed has no band, and none stopped early"


def test_the_legend_explains_what_is_drawn() -> None:
    short = [curve("lstm", seed)._replace(steps=np.linspace(100, 1e6, 50)) for seed in range(3)]
    long = [curve("gru", seed) for seed in range(3)]
    lost = long[-1]._replace(diverged=True)
    figure = Figure(figsize=(9, 4))
    plot_panels(figure, {"PassiveMatch 1/2/5": [*short, *long[:2], lost], "jsb": long}, {})
    assert_readable(figure)
    first, second = figure.axes
    assert first.get_title("left") == "Passive Match, 1/2/5 steps"
    assert second.get_title("left") == "Bach chorales"
    (legend,) = figure.legends
    note = legend.get_title().get_text().replace("\n", " ")
    for words in ("interquartile mean", "band: its 95 % interval", "thin: single seeds"):
        assert words in note
    assert "stopped early" in note
    dots = [line for line in first.lines if line.get_marker() == "o"]
    assert [line.get_xdata()[0] for line in dots] == [1e6]
    assert [text.get_text() for text in first.texts][-1] == "diverged: gru 1 of 3"
    assert not any("diverged" in text.get_text() for text in second.texts)
    plot_panels(again := Figure(), {"jsb": long}, {})
    assert "stopped" not in again.legends[0].get_title().get_text()


def test_nothing_is_drawn_before_the_first_measurement() -> None:
    runs = [curve("lstm", seed)._replace(steps=np.linspace(5e5, 2e6, 50)) for seed in range(3)]
    figure = Figure()
    plot_panels(figure, {"jsb": runs}, {})
    (line,) = (line for line in figure.axes[0].lines if line.get_label() == "lstm")
    assert line.get_xdata()[0] == 5e5


def test_an_axis_begins_below_what_is_plotted() -> None:
    runs = [curve(core, seed) for core in ("none", "lstm") for seed in range(3)]
    below = [run._replace(success=run.success - 1.2) for run in runs]
    plot_panels(figure := Figure(), {"jsb": runs, "copy": below}, {})
    assert_readable(figure)
    above, under = (axes.get_ylim() for axes in figure.axes)
    assert above == (0, 1.08)
    assert under == pytest.approx((-1.25, 1.18), abs=1e-3)


@pytest.mark.parametrize(("number", "lines"), [(1, 1), (3, 1), (4, 2), (5, 3)])
def test_panels_in_lines(number: int, lines: int, tmp_path: Path) -> None:
    draw_panels({str(k): [curve("none", 0)] for k in range(number)}, tmp_path / "p.png", {})
    height, width = imread(tmp_path / "p.png").shape[:2]
    assert height == pytest.approx(160 * (1.1 + 3.4 * lines), abs=2)
    columns = number if lines == 1 else 2
    assert width == pytest.approx(160 * (7.5 if columns == 1 else 1 + 4.6 * columns), abs=2)


def test_the_table_of_the_readme() -> None:
    def row(core: str, title: str, seed: int, success: float, steps: str) -> dict[str, str]:
        return {
            "core": core,
            "title": title,
            "seed": str(seed),
            "success": str(success),
            "episodes": "1000",
            "budget": "10000000",
            "steps": steps or "4000000",  # which is when it was stopped
            "steps_to_0.9": steps,
            "parameters": "33280" if core == "ur_lstm" else "",
            "seconds": "90",
            "stop_success": "0.97",
            "threads": "1",
            "commit": "0123456789",
            "command": "rlgates sweep passive_match",
        }

    rows = [row("ur_lstm", "T", seed, 0.97, "2000000") for seed in range(3)]
    rows += [row("lstm", "T", seed, 0.5, "") for seed in range(2)]
    rows.append(row("lstm", "T", 2, 0.5, "9000000"))
    lines = agent_tables(to_frame(rows)).splitlines()
    assert lines[0] == "| T | success | steps to 0.9 | parameters | time per run |"
    assert lines[2] == "| `ur_lstm` | 0.97 [0.97, 0.97] | 2.0 M (3 of 3) | 33,280 | 1 min 30 s |"
    assert lines[3] == "| `lstm` | 0.50 [0.50, 0.50] | > 4.0 M (1 of 3) |  | 1 min 30 s |"
    for words in (
        "seeds 0 to 2",
        "Budget: 10.0 M steps",
        "when 97% succeed",
        "1 thread per run",
        "commit 0123456.",
    ):
        assert words in lines[-1]
    curves = to_frame(
        {**runs, "steps": "1", "success": success}
        for runs in rows
        for success in ("0.1", "0.9" if runs["core"] == "lstm" else "0.98", "0.2")
    )
    lines = agent_tables(with_best(to_frame(rows), curves[curves["seed"] != "2"])).splitlines()
    assert lines[0].startswith("| T | success | best in training | steps to 0.9 |")
    assert lines[2].startswith("| `ur_lstm` | 0.97 [0.97, 0.97] | 0.98 | 2.0 M")
    assert lines[3].startswith("| `lstm` | 0.50 [0.50, 0.50] | 0.90 | > 4.0 M")
    assert "from which it may fall again" in lines[-1]
