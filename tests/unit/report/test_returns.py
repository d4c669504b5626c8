"""Agents that are judged by their return: their table and their figure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.tiny import figures_of

from rlgates.experiments.plots import curves
from rlgates.experiments.report.rows import merge_rows, returns_of, seeds_text, to_frame
from rlgates.experiments.report.studies.agents import read_curves
from rlgates.experiments.report.studies.returns import (
    draw_returns,
    read_return_curves,
    return_table,
)
from rlgates.experiments.report.study import redraw_study
from rlgates.experiments.runs.files import Row


def agent(seed: int, core: str = "lstm", **columns: str) -> Row:
    return {
        "title": "CartPole-v1",
        "variant": "",
        "core": core,
        "seed": str(seed),
        "env": "CartPole-v1",
        "mean_return": "400",
        "success_return": "450",
        "best_return": "500",
        "steps_to_goal": "",
        "budget": "100000",
        "steps": "100000",
        "ended": "budget",
        "episodes": "20",
        "seconds": "60",
        "commit": "abcdefghij",
        "command": "rlgates sweep some",
        **columns,
    }


def test_when_fewer_than_half_get_there_it_is_later_than_the_shortest_of_the_others() -> None:
    def when(*rows: Row) -> str:
        return return_table(to_frame(rows)).splitlines()[2].split(" | ")[-2]

    there = agent(0, steps_to_goal="20000")
    short, lost = agent(1, steps="70000"), agent(2, steps="5000", ended="diverged")
    assert when(there, agent(1, steps_to_goal="30000"), lost) == "30.0 k (2)"
    assert when(there, short, agent(2)) == "> 70.0 k (1)"
    assert when(there, agent(1), lost) == "> 100.0 k (1)"
    assert when(agent(0), agent(1)) == "never"


def test_the_seeds_are_those_that_were_run() -> None:
    def words(*seeds: int) -> str:
        return seeds_text(to_frame([agent(seed) for seed in seeds]))

    assert words(3) == "seed 3"
    assert words(2, 0, 1) == "seeds 0 to 2"
    assert words(0, 1, 5) == "seeds 0, 1 and 5"


def test_the_note_has_no_mean_over_one_seed_and_names_an_equal_goal_once() -> None:
    games = [agent(3, title="CartPole-v1"), agent(3, title="CartPole-v0")]
    note = return_table(to_frame(games)).splitlines()[-1]
    assert "in the last evaluation: seed 3; learned: how many runs were at 450 or above" in note


def test_without_goals_nothing_is_said_of_who_learned() -> None:
    games = [agent(0, title="a", success_return=""), agent(0, title="b", success_return="")]
    head, _, line, *_, note = return_table(to_frame(games)).splitlines()
    assert head.endswith("| agent | return at the end | CPU time per run |")
    assert line.endswith("| 400 | 1 min 0 s |")
    assert "learned" not in note
    table = return_table(to_frame([*games, agent(0)]))
    assert "| learned | first there |" in table
    assert "| a | `lstm` | 400 |  |  | 1 min 0 s |" in table
    assert "were at 450 or above" in table
    other = return_table(to_frame([agent(0), agent(0, title="b", success_return="9")]))
    assert "were at 450, 9 (one for each environment) or above" in other


def test_where_no_return_is_the_goal_the_success_is_shown() -> None:
    apples = [agent(0, success_return="", success="0.9"), agent(1, success_return="", success="1")]
    head, _, line, *_, note = return_table(to_frame(apples)).splitlines()
    assert head.endswith("| agent | return at the end | success | CPU time per run |")
    assert "| 400 [400, 400] | 0.95 [0.90, 1.00] |" in line
    assert "; success: the same mean, of the share of these episodes that succeeded" in note
    lost = agent(1, success_return="", mean_return="nan", ended="diverged")
    table = return_table(to_frame([apples[0], lost, agent(0, title="a", success="0.5")]))
    assert "| 0.45 [0.00, 0.90] |" in table
    assert "| a | `lstm` | 400 |  | 0 of 1 |" in table
    assert " success " not in return_table(to_frame([agent(0, success="0.5")]))


def test_a_diverged_run_counts_with_the_lowest_return_of_its_environment() -> None:
    rows = [agent(seed, mean_return=text, best_return="") for seed, text in enumerate("31")]
    lost = agent(2, mean_return="nan", ended="diverged", worst_return="")
    other = agent(0, title="b", mean_return="0")
    assert returns_of(to_frame([*rows, lost, other])).tolist() == [3, 1, 1, 0]


@pytest.mark.parametrize(
    ("best", "returns", "label"),
    [
        ("500", ("250", "450"), "return as a share of the best"),
        ("500", ("2500", "450"), "return"),
        ("500", ("-900000", "-1000"), "return"),
        ("500", ("2500", "nan"), "return"),
        ("", ("0.5", "0.9"), "return"),
        ("", ("2500", "nan"), "return"),
    ],
)
def test_returns_are_drawn_as_they_are_unless_the_best_is_known(
    best: str, returns: Any, label: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = figures_of(curves, monkeypatch)
    row = agent(0, best_return=best)
    key = {name: row[name] for name in ("title", "variant", "core", "seed")}
    points = [
        {**key, "steps": steps, "mean_return": value}
        for steps, value in zip(("50000", "100000"), returns, strict=True)
    ]
    merge_rows(tmp_path / "some_curves.csv", points)
    assert [path.name for path in draw_returns(tmp_path, "some", to_frame([row]))] == ["some.png"]
    (axes,) = seen[0].axes
    assert axes.get_ylabel() == label
    low, high = axes.get_ylim()
    for line in axes.lines:
        assert all(low <= value <= high for value in line.get_ydata())


def test_runs_without_curves_have_a_table_alone(tmp_path: Path) -> None:
    merge_rows(tmp_path / "some.csv", [agent(0), agent(1)])
    assert redraw_study(tmp_path, "some") == [tmp_path / "some.md"]


def test_agents_with_success_rates_have_a_figure_of_their_own(tmp_path: Path) -> None:
    success = {"mean_return": "", "success": "0.5", "stop_success": "", "threads": "1"}
    match = {"title": "PassiveMatch 15/30/15", "env": "rlgates/PassiveMatch-v0"}
    settings = "explore_steps=15 distractor_steps=30 reward_steps=15"
    rows = [agent(0, "gru"), agent(0, **match, **success, env_settings=settings)]
    for row, point in zip(rows, ({"mean_return": "250"}, {"success": "0.5"}), strict=True):
        key = {name: row[name] for name in ("title", "variant", "core", "seed")}
        points = [{**key, "steps": steps, **point} for steps in ("50000", "100000")]
        for study in ("some", "returns")[: 1 + ("mean_return" in point)]:
            merge_rows(tmp_path / f"{study}.csv", [row])
            merge_rows(tmp_path / f"{study}_curves.csv", points)
    files = [path.name for path in redraw_study(tmp_path, "some")]
    assert files == ["some.md", "some.png", "some_readme.png", "some_returns.png"]
    (panel,) = read_curves(tmp_path / "some_curves.csv").values()
    assert [curve.success.tolist() for curve in panel] == [[0.5, 0.5]]
    found = read_return_curves(to_frame(rows[:1]), tmp_path / "some_curves.csv")
    assert {title: len(curves) for title, curves in found.items()} == {"CartPole-v1": 1}
    alone = [path.name for path in redraw_study(tmp_path, "returns")]
    assert alone == ["returns.md", "returns.png"]
