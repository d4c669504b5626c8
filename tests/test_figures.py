"""Numbers over seeds, the study's tables, and the pictures."""

from __future__ import annotations

import itertools
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread
from scipy.stats import trim_mean
from tiny import tiny

from rlgates.experiments import cli, configs
from rlgates.experiments.figures import Curve, draw_curves, draw_panels, styles
from rlgates.experiments.manifest import plain
from rlgates.experiments.pictures import phase_pictures
from rlgates.experiments.runs import run_title
from rlgates.experiments.stats import iqm, iqm_interval, median_reached
from rlgates.experiments.study import digest, grid, read_curves, redraw, summary
from rlgates.experiments.tables import read


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


def test_cores_look_different() -> None:
    cores = configs.StudyConfig().cores
    assert len(set(styles(cores).values())) == len(cores)


def test_pictures_of_the_phases() -> None:
    settings = {"explore_steps": 3, "distractor_steps": 14, "reward_steps": 9}
    pictures = phase_pictures("rlgates/PassiveMatch-v0", settings)
    assert len(pictures) == 3
    assert len({picture.tobytes() for picture in pictures}) == 3


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name, steps in (("study30", 1), ("study90", 2)):
        small = tiny("runs", total_steps=112, eval_every=None)
        settings = {**small.env_settings, "distractor_steps": steps}
        values = {**vars(small), "env_settings": settings}
        monkeypatch.setitem(configs.PRESETS, name, configs.TrainConfig(**values))


@pytest.mark.usefixtures("_small")
def test_a_study(capsys: pytest.CaptureFixture[str]) -> None:
    line = ["study", "--cores", "ur_lstm", "none", "--seeds", "0", "1", "--results", "results"]
    assert cli.main([*line, "--presets", "study30"]) == 0
    assert "already" not in capsys.readouterr().out
    shutil.rmtree("runs")  # the second part may be made where the first one's runs are not
    assert cli.main(line) == 0
    assert "4 runs are in results/passive_match.csv already" in capsys.readouterr().out
    results = Path("results")
    ends = (".csv", ".md", ".png", "_curves.csv", "_readme.png")
    assert {file.name for file in results.iterdir()} == {f"passive_match{end}" for end in ends}
    table = (results / "passive_match.csv").read_text().splitlines()
    assert len(table) == 1 + 2 * 2 * 2
    assert table[0].startswith("title,core,seed,success,low,high,last_phase_reward,episodes,")
    assert {"steps_to_0.9", "seconds", "commit", "torch"} <= set(table[0].split(","))
    panels = read_curves(results / "passive_match_curves.csv")
    assert list(panels) == ["PassiveMatch 1/1/5", "PassiveMatch 1/2/5"]
    assert [(run.core, run.seed) for run in panels["PassiveMatch 1/1/5"]] == [
        *(("ur_lstm", 0), ("none", 0), ("ur_lstm", 1), ("none", 1))
    ]

    # Again: nothing is trained, and everything drawn is the same.
    before = {file: file.read_bytes() for file in results.iterdir()}
    assert cli.main(line) == 0
    assert "8 runs are in results/passive_match.csv already" in capsys.readouterr().out
    assert {file: file.read_bytes() for file in results.iterdir()} == before
    for file in (*results.glob("*.png"), *results.glob("*.md")):
        file.unlink()
    redraw(results)
    assert {file: file.read_bytes() for file in results.iterdir()} == before


def test_the_grid_of_the_study() -> None:
    runs = grid(configs.StudyConfig())
    assert len(runs) == 5 * 2 * 5
    # The same budget and tuning for all cores: what is left differs by the environment alone.
    alike = {str(replace(config, core="", seeds=())) for config, _ in runs}
    assert len(alike) == 2
    assert len({(config.core, str(config.env_settings), seed) for config, seed in runs}) == 50


def test_cores_that_lack_an_option_of_the_preset_can_be_compared() -> None:
    (one, _), (other, _) = grid(
        configs.StudyConfig(cores=("ur_lstm", "dnc"), seeds=(1,), presets=("study30",))
    )
    assert (one.core_options, other.core_options) == ({"input_scale": 8.0}, {})
    assert digest(one) == digest(other)
    assert digest(one) != digest(replace(one, core_options={"input_scale": 1.0}))


def test_runs_of_earlier_versions_are_known_by_their_digest() -> None:
    path = Path(__file__).parent.parent / "experiments" / "results" / "passive_match.csv"
    made = {(row["title"], row["config"]) for row in read(path)}
    configs_ = [configs.preset(name) for name in ("study30", "study90")]
    assert made == {(run_title(config), digest(config)) for config in configs_}
    for config in configs_:
        assert "algo" not in plain(config)
        other = replace(config, algo="a2c")
        assert digest(other) != digest(config)
        assert run_title(other) == f"{run_title(config)}, A2C"


@pytest.mark.usefixtures("_small")
def test_a_study_of_two_environments_and_algorithms(monkeypatch: pytest.MonkeyPatch) -> None:
    base = configs.PRESETS["study30"]
    active = replace(base, env="rlgates/ActiveMatch-v0", algo="a2c")
    monkeypatch.setitem(configs.PRESETS, "study30_active_a2c", active)
    presets = ["--presets", "study30", "study30_active_a2c"]
    line = ["study", "--name", "match_agents", *presets, "--cores", "none", "--seeds", "0"]
    assert cli.main([*line, "--results", "results"]) == 0
    ends = (".csv", ".md", ".png", "_curves.csv")  # no picture beside boards of one of them
    assert {file.name for file in Path("results").iterdir()} == {f"match_agents{e}" for e in ends}
    panels = read_curves(Path("results/match_agents_curves.csv"))
    assert list(panels) == ["PassiveMatch 1/1/5", "ActiveMatch 1/1/5, A2C"]
    text = Path("results/match_agents.md").read_text()
    assert "| ActiveMatch 1/1/5, A2C | success |" in text
    assert "`rlgates study --name match_agents --jobs 2`" in text


def test_the_name_of_a_study_stands_for_its_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[configs.StudyConfig] = []
    monkeypatch.setattr(
        "rlgates.experiments.study.run_study", lambda config: seen.append(config) or []
    )
    assert cli.main(["study", "--name", "match_agents", "--seeds", "7"]) == 0
    assert cli.main(["study", "--name", "mine"]) == 0
    assert cli.main(["study"]) == 0
    known = configs.STUDIES["match_agents"]
    assert seen[0] == replace(known, seeds=(7,))
    assert seen[1] == replace(configs.StudyConfig(), name="mine")
    assert seen[2] == configs.StudyConfig()
    assert len(grid(known)) == 4 * 3 * 5


@pytest.mark.parametrize(("number", "lines"), [(1, 1), (3, 1), (4, 2), (5, 3)])
def test_panels_in_lines(number: int, lines: int, tmp_path: Path) -> None:
    draw_panels({str(k): [curve("none", 0)] for k in range(number)}, tmp_path / "p.png", None)
    height, width = imread(tmp_path / "p.png").shape[:2]
    assert height == pytest.approx(160 * (0.8 + 3.4 * lines), abs=2)
    assert width == pytest.approx(160 * (1 + 4.6 * (number if lines == 1 else 2)), abs=2)


def test_the_table_of_the_readme() -> None:
    def row(core: str, title: str, seed: int, success: float, steps: str) -> dict[str, str]:
        return {
            "core": core,
            "title": title,
            "seed": str(seed),
            "success": str(success),
            "episodes": "1000",
            "budget": "10000000",
            "steps_to_0.9": steps,
            "seconds": "90",
            "stop_success": "0.97",
            "threads": "1",
            "commit": "0123456789",
        }

    rows = [row("ur_lstm", "T", seed, 0.97, "2000000") for seed in range(3)]
    rows += [row("lstm", "T", seed, 0.5, "") for seed in range(2)]
    rows.append(row("lstm", "T", 2, 0.5, "9000000"))
    lines = summary(rows, "passive_match").splitlines()
    assert lines[0] == "| T | success | steps to 0.9 | time a run |"
    assert lines[2] == "| `ur_lstm` | 0.97 [0.97, 0.97] | 2.0 M (3 of 3) | 1 min 30 s |"
    assert lines[3] == "| `lstm` | 0.50 [0.50, 0.50] | > 10.0 M (1 of 3) | 1 min 30 s |"
    for words in (
        "seeds 0 to 2",
        "Budget 10.0 M steps",
        "when 97% succeed",
        "1 thread a run",
        "commit 0123456.",
    ):
        assert words in lines[-1]
