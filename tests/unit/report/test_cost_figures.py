"""Scores beside costs: what is read, drawn and written, from made-up rows."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from matplotlib.image import imread
from support.tiny import assert_readable, figures_of

from rlgates.experiments.plots import curves
from rlgates.experiments.report.rows import to_frame
from rlgates.experiments.report.studies import costs as cost_figures
from rlgates.experiments.report.studies.costs import CoreCost, TaskCosts, draw_costs, task_costs
from rlgates.experiments.report.study import redraw_study
from rlgates.experiments.runs.files import Row

RESULTS = Path(__file__).parents[3] / "experiments" / "results"


def row(core: str, score: str, seconds: str, parameters: str = "", seed: int = 0) -> Row:
    """Of a network if it has parameters, else of an agent."""
    common = {
        "core": core, "seed": str(seed), "seconds": seconds, "variant": "",
        "command": "rlgates sweep some", "commit": "0123456789",
    }  # fmt: skip
    if parameters:
        own = {"title": "copy, delay 9", "loss": score, "baseline": "2.0", "env": ""}
        return {**common, **own, "parameters": parameters}
    settings = "explore_steps=1 distractor_steps=2 reward_steps=5"
    env = {"env": "rlgates/PassiveMatch-v0", "env_settings": settings}
    return {**common, **env, "title": "PassiveMatch 1/2/5", "success": score, "parameters": ""}


NETWORKS = [
    row("none", "2.0", "1", "10"),
    row("gru", "0.5", "20", "300"),
    *(row("lstm", loss, time, "400", n) for n, (loss, time) in enumerate(
        (("0.1", "20"), ("0.2", "60"), ("1.9", "30"))
    )),
    row("lru", "1.95", "5", "100"),  # not a twentieth of the way
    row("janet", "0.5", "40", "200"),
    row("nru", "nan", "2", "20"),
    row("dnc", "0.0", "900", "5000"),
]  # fmt: skip
AGENTS = [row("gru", "0.9", "100"), row("lstm", "0.9", "90"), row("none", "0.34", "10")]


def test_medians_over_seeds_and_what_is_known() -> None:
    networks, agents = task_costs(to_frame([*NETWORKS, *AGENTS]))
    assert (networks.title, networks.is_agent, networks.floor) == ("copy, delay 9", False, 2.0)
    assert (agents.title, agents.is_agent) == ("PassiveMatch 1/2/5", True)
    assert agents.floor == pytest.approx(1 / 3)
    found = {one.core: one for one in networks.cores}
    assert found["lstm"] == CoreCost("lstm", 0.2, {"seconds": 30.0, "parameters": 400.0})
    assert "nru" not in found
    assert agents.cores[0] == CoreCost("lstm", 0.9, {"seconds": 90.0})


def test_runs_of_no_time_can_be_drawn(tmp_path: Path) -> None:
    rows = [row("gru", "1.9", "0.0", "300"), row("none", "2.1", "0.0", "10")]
    (account,) = task_costs(to_frame(rows))
    assert [one.costs["seconds"] for one in account.cores] == [0.1, 0.1]
    assert draw_costs(tmp_path, "some", to_frame(rows))[0].exists()


def test_tasks_without_a_finite_score_are_left_out(tmp_path: Path) -> None:
    lost = [row("gru", "nan", "3", "300"), row("lstm", "nan", "4", "400")]
    assert draw_costs(tmp_path, "some", to_frame(lost)) == []
    kept = task_costs(to_frame([*lost, *AGENTS]))
    assert [account.title for account in kept] == ["PassiveMatch 1/2/5"]


def test_the_front_is_what_nobody_beats_for_less() -> None:
    networks, agents = task_costs(to_frame([*NETWORKS, *AGENTS]))
    assert [one.core for one in networks.front("seconds")] == ["gru", "lstm", "dnc"]
    # JANET is as good as the GRU, and has fewer parameters.
    assert [one.core for one in networks.front("parameters")] == ["janet", "lstm", "dnc"]
    assert [one.core for one in agents.front("seconds")] == ["lstm"]
    assert agents.front("parameters") == []


@pytest.mark.parametrize(("floor", "expected"), [(0.5, []), (0.46, ["a"]), (None, ["a"])])
def test_what_is_hardly_better_than_no_memory_is_not_worth_it(
    floor: float | None, expected: list[str]
) -> None:
    one = CoreCost("a", 0.51, {"seconds": 1.0})
    account = TaskCosts("task", True, floor, [one])
    assert [each.core for each in account.front("seconds")] == expected


def test_the_picture_and_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = figures_of(curves, monkeypatch)
    picture, text = draw_costs(tmp_path, "some", to_frame([*NETWORKS, *AGENTS]))
    assert (picture.name, text.name) == ("some_cost.png", "some_cost.md")
    assert imread(picture).std() > 0.05
    time, parameters, success = seen[0].axes  # there are no parameters of agents
    assert_readable(seen[0])
    assert time.get_title("left") == "Copy, delay 9"
    assert (time.get_ylabel(), success.get_ylabel()) == ("loss, nats", "success rate")
    for axes, expected in ((time, [20, 30, 900]), (parameters, [200, 400, 5000])):
        line = axes.lines[0]
        assert list(line.get_xdata()) == expected
        # The DNC has no loss to speak of, and is drawn at a thousandth of the floor.
        assert line.get_ydata() == pytest.approx([0.5, 0.2, 0.002])
    assert [words.get_text() for words in parameters.texts] == ["janet", "lstm", "dnc"]
    points = {(line.get_xdata()[0], line.get_ydata()[0]) for line in success.lines[1:-1]}
    assert points == {(100, 0.9), (90, 0.9), (10, 0.34)}
    looks = [(line.get_color(), line.get_marker()) for line in time.lines[1:-1]]
    assert len(set(looks)) == 6
    lines = text.read_text().splitlines()
    assert lines[0].split(" | ")[1:] == [
        *("loss", "time of a run", "parameters of the core", "best for |")
    ]
    assert lines[2] == "| `dnc` | 0.0000 | 15 min 0 s | 5,000 | time, parameters |"
    assert "| `gru` | 0.5000 | 20 s | 300 | time |" in lines
    assert "| `janet` | 0.5000 | 40 s | 200 | parameters |" in lines
    assert "| `lru` | 1.9500 | 5.0 s | 100 |  |" in lines
    assert "| Passive Match, 1/2/5 steps | success | time of a run | best for |" in lines
    assert "| `lstm` | 0.90 | 1 min 30 s | time |" in lines
    assert lines[-1].endswith("`rlgates sweep some`, commit 0123456.")


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (4, 70, ["5 s", "10 s", "20 s", "1 min"]),
        (1, 3_600, ["1 s", "5 s", "20 s", "2 min", "10 min", "1 h"]),
        (100_000, 2e6, ["50 h", "100 h", "200 h", "500 h"]),
    ],
)
def test_round_times_on_the_axis(low: float, high: float, expected: list[str]) -> None:
    assert list(cost_figures.time_ticks(low, high)) == expected


def test_the_committed_tables_are_those_of_the_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures_of(curves, monkeypatch, pictures=False)
    for end in ("", "_curves"):
        shutil.copy(RESULTS / f"all_cores{end}.csv", tmp_path)
    written: Any = {path.name for path in redraw_study(tmp_path, "all_cores")}
    assert {"all_cores_cost.png", "all_cores_cost.md"} < written
    for name in ("all_cores_cost.md", "all_cores.md"):
        assert (tmp_path / name).read_text() == (RESULTS / name).read_text()
