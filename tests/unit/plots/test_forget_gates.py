"""Pictures of gates: the numbers in them, and the ones that runs leave behind."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import imread
from support.tiny import assert_readable, equal, figures_of, stop_after, tiny

from rlgates import GateTrace, make_core
from rlgates.experiments.analysis.unit_gates import Growth, unit_means, unit_timescales
from rlgates.experiments.cli import main as cli
from rlgates.experiments.configs.agent import AgentConfig
from rlgates.experiments.plots import curves
from rlgates.experiments.plots.forget_gates import (
    draw_gates,
    histogram_figure,
    plot_growth,
    timescale_figure,
)
from rlgates.experiments.plots.styles import MUTED, style
from rlgates.experiments.runs.agent.build import build
from rlgates.experiments.runs.agent.gates import draw_runs, gates_of_run, growth
from rlgates.experiments.runs.agent.train import train
from rlgates.experiments.runs.files import record_digest
from rlgates.experiments.runs.folder import read_checkpoint, read_config
from rlgates.experiments.runs.stopping import InterruptedRun


def gates(d: int, seed: int, *before: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).random((*before, d), dtype=np.float32)


PANELS = {"ur_lstm": (gates(12, 0, 5, 3), gates(12, 1, 7)), "lstm": (gates(8, 2), gates(8, 3))}
GROWTH = Growth(*np.array([[0, 2e6], [1, 2], [3, 40], [5, 600]], float))


def axes_of(figure: Figure) -> list[Axes]:
    figure.savefig("/dev/null", format="png")  # it can be saved by anybody
    return figure.axes


def test_units_by_hand() -> None:
    seen = np.array([[[0.5, 0.9], [0.125, 0.9]]])
    np.testing.assert_allclose(unit_means(seen), [0.3125, 0.9])
    # 0.5 * 0.125 = 1 / 16 in two steps: the mean step keeps a quarter.
    np.testing.assert_allclose(unit_timescales(seen), [1 / np.log(4), -1 / np.log(0.9)])
    np.testing.assert_allclose(unit_timescales([0.5, 0.75]), -1 / np.log([0.5, 0.75]))
    np.testing.assert_allclose(unit_timescales(torch.tensor([0.5])), 1 / np.log(2))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_gates_at_the_bounds_have_finite_timescales(dtype: type) -> None:
    never, always = unit_timescales(np.array([0, 1], dtype))
    assert 0 < never < 0.1
    assert always == pytest.approx(2 / np.finfo(dtype).eps, rel=1e-6)


def test_layers_of_an_observation_stand_side_by_side() -> None:
    core = make_core("f_lstm", 3, 5, num_layers=2)
    seen = core.trace_gates(torch.randn(6, 4, 3))
    means = unit_means(seen)
    assert means.shape == (10,)
    np.testing.assert_allclose(means[:5], seen.forget[0].mean((0, 1)), rtol=1e-6)
    np.testing.assert_allclose(means[5:], seen.forget[1].mean((0, 1)), rtol=1e-6)
    assert np.array_equal(unit_timescales(seen)[5:], unit_timescales(seen.forget[1]))


def test_what_are_no_gates_is_refused() -> None:
    empty = GateTrace(torch.zeros(1, 1, 1), torch.zeros(1, 1), [])
    for given in (empty, np.zeros((0, 4)), 0.5):
        with pytest.raises(ValueError, match="there are no forget gates to draw"):
            unit_means(given)
    with pytest.raises(ValueError, match=r"gates must be in \[0, 1\], got -0.5 to 1"):
        unit_means([-0.5, 1])
    with pytest.raises(ValueError, match="got nan"):
        unit_timescales([0.5, float("nan")])
    for draw in (histogram_figure, timescale_figure, partial(plot_growth, Figure())):
        with pytest.raises(ValueError, match="no cores to draw"):
            draw({})  # type: ignore[operator]


def test_histograms_count_every_unit() -> None:
    axes = axes_of(histogram_figure(PANELS))
    assert len(axes) == 4
    rows = [(above, below) for above, below in zip(axes[:2], axes[2:], strict=True)]
    for (core, pair), panel in zip(PANELS.items(), rows, strict=True):
        assert panel[0].get_title("left") == core
        for axes_, when, values in zip(panel, ("before", "after"), pair, strict=True):
            (stairs,) = axes_.patches
            counts, edges, _ = stairs.get_data()  # type: ignore[attr-defined]
            expected, _ = np.histogram(values.reshape(-1, values.shape[-1]).mean(0), edges)
            np.testing.assert_array_equal(counts, expected)
            assert counts.sum() == values.shape[-1]
            assert (edges[0], edges[-1]) == (0, 1)
            assert axes_.get_title("right") == when


def test_curves_of_sorted_time_constants() -> None:
    axes = axes_of(timescale_figure(PANELS))
    assert len(axes) == 2
    assert {one.get_yscale() for one in axes} == {"log"}
    assert axes[0].get_ylim() == axes[1].get_ylim()
    for (core, pair), panel in zip(PANELS.items(), axes, strict=True):
        assert panel.get_title("left") == core
        lines = panel.get_lines()
        assert [line.get_label() for line in lines] == ["before", "after"]
        assert [line.get_color() for line in lines] == [MUTED, style(core).color]
        for line, values in zip(lines, pair, strict=True):
            x, y = np.asarray(line.get_data(), float)
            np.testing.assert_array_equal(y, np.sort(unit_timescales(values)))
            assert np.all((x > 0) & (x < 1))


def test_growth_over_training() -> None:
    figure = Figure()
    plot_growth(figure, {"ur_lstm": GROWTH, "lstm": GROWTH})
    (axes,) = axes_of(figure)
    assert axes.get_yscale() == "log"
    assert [line.get_label() for line in axes.get_lines()] == ["ur_lstm", "lstm"]
    assert "band: 10 to 90 %" in figure.legends[0].get_title().get_text()
    assert "stopped" not in figure.legends[0].get_title().get_text()
    for line, band in zip(axes.get_lines(), axes.collections, strict=True):
        np.testing.assert_array_equal(line.get_data(), (GROWTH.steps, GROWTH.middle))
        (path,) = band.get_paths()
        assert (path.vertices.min(), path.vertices.max()) == (0, 2e6)  # type: ignore[union-attr]
        heights = set(np.asarray(path.vertices)[:, 1])
        assert heights >= {*GROWTH.low, *GROWTH.high}


def test_a_dot_where_a_core_stopped_early() -> None:
    short = GROWTH._replace(steps=np.array([0, 1e6]))
    plot_growth(figure := Figure(), {"ur_lstm": GROWTH, "lstm": short})
    (axes,) = figure.axes
    dots = [line for line in axes.get_lines() if line.get_marker() == "o"]
    assert [list(line.get_xdata()) for line in dots] == [[1e6]]
    assert [line.get_color() for line in dots] == [style("lstm").color]
    assert "stopped early" in figure.legends[0].get_title().get_text()


def test_a_page_of_many_cores_is_no_wider_than_one_of_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = figures_of(curves, monkeypatch, pictures=False)
    cores = ["f_lstm", "lstm", "c_lstm", "r_lstm", "ur_lstm", "u_lstm"]
    for number in (3, 6):
        panels = dict.fromkeys(cores[:number], PANELS["lstm"])
        draw_gates(panels, tmp_path / "a.png", "title", dict.fromkeys(panels, GROWTH))
    few, many = seen
    assert few.get_figwidth() == many.get_figwidth() < 10
    assert many.get_figheight() > few.get_figheight()
    assert_readable(many)
    assert len(many.axes) == 6 * 3 + 1
    timescales = [axes.get_title("left") for axes in many.axes if axes.get_yscale() == "log"]
    ordered = ["lstm", "c_lstm", "u_lstm", "r_lstm", "ur_lstm", "f_lstm"]
    assert timescales == [*ordered, "Timescales during training"]


@pytest.mark.parametrize(
    ("cores", "grown"), [(["ur_lstm", "lstm"], {"lstm": GROWTH}), (["lstm"], None)]
)
def test_the_same_gates_are_the_same_picture(
    cores: list[str], grown: dict[str, Growth] | None, tmp_path: Path
) -> None:
    panels = {core: PANELS[core] for core in cores}
    for name in ("one.png", "two.png"):
        draw_gates(panels, tmp_path / name, "title", grown)
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "two.png").read_bytes()
    picture = imread(tmp_path / "one.png")
    assert picture.shape[1] >= 1000
    assert picture.std() > 0.05


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> AgentConfig:
    """A run that was made, seed 3."""
    config = tiny(tmp_path_factory.mktemp("runs"))
    train(config, 3, bar=False)
    return config


def test_a_run_leaves_the_picture_of_its_gates(finished: AgentConfig, tmp_path: Path) -> None:
    picture = finished.run_folder(3) / "gates.png"
    assert imread(picture).std() > 0.05
    assert draw_runs([finished.run_folder(3)], tmp_path / "again.png")
    assert (tmp_path / "again.png").read_bytes() == picture.read_bytes()

    # A run that was stopped and went on leaves the same one.
    stopped = tiny(tmp_path)
    with pytest.raises(InterruptedRun):
        train(stopped, 3, stop=stop_after(2), bar=False)
    assert not (stopped.run_folder(3) / "gates.png").exists()
    train(stopped, 3, bar=False)
    assert (stopped.run_folder(3) / "gates.png").read_bytes() == picture.read_bytes()


def test_before_is_the_agent_that_training_began_with(tmp_path: Path) -> None:
    config = tiny(tmp_path)
    with pytest.raises(InterruptedRun, match="at 0 steps"):
        train(config, 5, stop=lambda: True, bar=False)
    began = read_checkpoint(config.run_folder(5) / "checkpoint")["parameters"]["policy"]
    assert equal(dict(build(config, 5)[0].policy.state_dict()), dict(began))


def test_before_and_after_see_the_same_episodes(finished: AgentConfig, tmp_path: Path) -> None:
    folder = finished.run_folder(3)
    config, seed = read_config(folder)
    assert (config, seed) == (finished, 3)
    before, last = gates_of_run(folder, config, seed)
    again, _ = gates_of_run(folder, config, seed)
    assert before.forget[0].shape == last.forget[0].shape == (7, 32, 4)
    assert torch.equal(again.forget[0], before.forget[0])
    assert not torch.equal(before.forget[0], last.forget[0])

    # Without any training in between, they are the same.
    build(config, seed)[0].save(tmp_path / "model.rlgates", format="safe")
    first, second = gates_of_run(tmp_path, config, seed)
    assert torch.equal(first.forget[0], second.forget[0])


def test_growth_is_what_the_run_wrote_down(finished: AgentConfig) -> None:
    seen = growth(finished.run_folder(3))
    assert seen is not None
    assert seen.steps.tolist() == [56]
    assert 1 <= seen.low[0] < seen.middle[0] < seen.high[0]


def test_the_command(
    finished: AgentConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    none = tiny(tmp_path / "none", core="none", critic="none", total_steps=56)
    train(none, 0, bar=False)
    ours, gateless = str(finished.run_folder(3)), str(none.run_folder(0))
    assert not (none.run_folder(0) / "gates.png").exists()
    assert cli.main(["gates", ours, gateless]) == 0
    assert capsys.readouterr().out == "gates.png\n"
    assert imread("gates.png").std() > 0.05
    assert cli.main(["gates", ours, "--out", "here/two.png"]) == 0
    assert Path("here/two.png").exists()
    for folder, message in (
        (gateless, "none of these runs has a core with forget gates"),
        (str(tmp_path), "holds no run: it has no manifest.json with a config"),
    ):
        assert cli.main(["gates", folder]) == cli.WRONG
        assert message in capsys.readouterr().err


def test_runs_that_cannot_be_drawn_say_why(tmp_path: Path) -> None:
    config = tiny(tmp_path)
    with pytest.raises(InterruptedRun):
        train(config, 0, stop=stop_after(1), bar=False)
    folder = config.run_folder(0)
    with pytest.raises(ValueError, match=r"holds no finished run: it has no model.rlgates"):
        draw_runs([folder], tmp_path / "gates.png")
    manifest = folder / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"gamma"', '"discount"'))
    record_digest(manifest)
    with pytest.raises(ValueError, match=r"of another version of rlgates: .*'discount'"):
        draw_runs([folder], tmp_path / "gates.png")


def test_runs_of_one_core_are_told_apart(
    finished: AgentConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[list[str]] = []
    monkeypatch.setattr(
        "rlgates.experiments.plots.forget_gates.draw_gates",
        lambda panels, *_: drawn.append(list(panels)),
    )
    monkeypatch.setattr(
        "rlgates.experiments.runs.agent.gates.gates_of_run",
        lambda *_: (None, make_core("lstm", 1, 1).trace_gates(torch.zeros(1, 1, 1))),
    )
    folder = finished.run_folder(3)
    other = tmp_path / "other"
    other.mkdir()
    for name in ("manifest.json", "progress.csv"):
        (other / name).write_bytes((folder / name).read_bytes().replace(b'"seed": 3', b'"seed": 4'))
    draw_runs([folder, folder], tmp_path / "a.png")
    draw_runs([folder, other], tmp_path / "b.png")
    assert drawn == [["ur_lstm"], ["ur_lstm seed 3", "ur_lstm seed 4"]]
