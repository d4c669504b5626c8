"""The report of the memory benchmark."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from PIL import Image

from rlgates.experiments.report.rows import to_frame
from rlgates.experiments.report.studies.benchmark import (
    _draw_efficiency,
    _in_order,
    benchmark_tables,
    draw_benchmark,
    levels,
    rankings,
    read_costs,
)
from rlgates.experiments.report.studies.returns import read_return_curves
from rlgates.experiments.runs.files import Row, write_table

GAMES = {"RepeatFirst, easy": -1.0, "StatelessCartPole, easy": 0.0}
# Return at the end and MMER of each core in each game, seed by seed.
ENDS = {
    ("gru", "RepeatFirst, easy"): ((0.5, 0.8), (0.7, 0.8)),
    ("gru", "StatelessCartPole, easy"): ((0.2, 0.4), (0.4, 0.6)),
    ("none", "RepeatFirst, easy"): ((-0.5, -0.4), (-0.5, -0.4)),
    ("none", "StatelessCartPole, easy"): ((0.5, 0.6), (0.7, 0.8)),
    ("lmu", "RepeatFirst, easy"): ((1.0, 1.0), (1.0, 1.0)),
}


def run(core: str, title: str, seed: int, end: float, best: float) -> Row:
    return {
        "title": title,
        "variant": "",
        "core": core,
        "seed": str(seed),
        "mean_return": str(end),
        "best": str(best),
        "worst_return": str(GAMES[title]),
        "best_return": "1.0",
        "episodes": "100",
        "budget": "500000",
        "parameters": "33280",
        "state_size": "0" if core == "none" else "76",
        "seconds": "20",
        "steps": "500000",
        "commit": "1234567890",
        "dirty": "False",
        "command": "rlgates sweep popgym",
    }


@pytest.fixture
def rows() -> pd.DataFrame:
    return to_frame(
        run(core, title, seed, *both)
        for (core, title), runs in ENDS.items()
        for seed, both in enumerate(runs)
    )


def write_curves(folder: Path, rows: pd.DataFrame) -> None:
    points = [
        {**{name: row[name] for name in ("title", "variant", "core", "seed")}, **point}
        for row in rows.to_dict("records")
        for point in (
            {"steps": "50000", "mean_return": "0.0"},
            {"steps": "500000", "mean_return": row["mean_return"]},
        )
    ]
    write_table(folder / "popgym_curves.csv", points, list(points[0]))


def test_memories_are_ranked_by_their_return_over_all_games(rows: pd.DataFrame) -> None:
    ((titles, memories),) = rankings(rows, read_costs(Path(), "absent"))
    assert titles == list(GAMES)
    assert [one.core for one in memories] == ["gru", "none"]  # lmu lacks a game
    first = memories[0]
    assert first.returns.value == pytest.approx((0.6 + 0.3) / 2)
    assert first.mmer == pytest.approx((0.8 + 0.5) / 2)
    # From the least to the most that a game pays.
    assert first.scores["RepeatFirst, easy"].tolist() == pytest.approx([0.75, 0.85])
    assert first.scores["StatelessCartPole, easy"].tolist() == pytest.approx([0.2, 0.4])
    assert first.returns.low <= first.returns.value <= first.returns.high
    assert first.seconds == pytest.approx(40)  # of a million steps


def test_games_that_few_memories_have_are_ranked_apart(tmp_path: Path, rows: pd.DataFrame) -> None:
    others = [
        run(core, "RepeatFirst, easy", seed, 0.1, 0.2)
        for core in ("lstm", "lru", "s5", "rtu")
        for seed in (0, 1)
    ]
    others.append(run("lru", "StatelessCartPole, easy", 0, 0.1, 0.2))
    rows = pd.concat([rows, to_frame(others)], ignore_index=True)
    most, widest = rankings(rows, read_costs(tmp_path, "popgym"))
    assert most.titles == ["RepeatFirst, easy"]
    order = ["lmu", "gru", "lstm", "lru", "s5", "rtu", "none"]
    assert [one.core for one in most.memories] == order
    assert widest.titles == list(GAMES)
    assert [one.core for one in widest.memories] == ["gru", "lru", "none"]
    # Without the LRU there are two memories in both games, which make no ranking of their own.
    (most,) = rankings(rows[rows["core"] != "lru"], read_costs(tmp_path, "popgym"))
    assert most.titles == ["RepeatFirst, easy"]
    text = benchmark_tables(tmp_path, "popgym", rows)
    assert "Mean over 1 game (Repeat First, easy)" in text
    assert "Mean over 2 games (Repeat First, easy; Stateless Cart-Pole, easy)" in text


def test_games_with_more_seeds_are_ranked_first(tmp_path: Path, rows: pd.DataFrame) -> None:
    first = rows[(rows["title"] == "RepeatFirst, easy") | (rows["seed"] == "0")]
    others = [
        run("lmu", "StatelessCartPole, easy", 0, 0.1, 0.2),
        run("lstm", "RepeatFirst, easy", 0, 0.1, 0.2),
    ]
    rows = pd.concat([first, to_frame(others)], ignore_index=True)
    most, widest = rankings(rows, read_costs(tmp_path, "popgym"))
    assert {one.core: len(one.by_seed) for one in most.memories} == {
        "lmu": 2, "gru": 2, "lstm": 1, "none": 2,
    }  # fmt: skip
    assert {one.core: len(one.by_seed) for one in widest.memories} == {
        "gru": 1,
        "none": 1,
        "lmu": 1,
    }


def test_each_level_has_tables_of_its_own(tmp_path: Path, rows: pd.DataFrame) -> None:
    easy = rows["title"] == "RepeatFirst, easy"
    rows.loc[easy, "title"] = "RepeatFirst, medium"
    text = benchmark_tables(tmp_path, "popgym", rows)
    lines = [line for line in text.splitlines() if line.startswith("| memory")]
    assert [line.split(" | ")[1:] for line in lines[2:]] == [
        ["Stateless Cart-Pole, easy |"],
        ["Repeat First, medium |"],
    ]
    assert text.index("1 game (Stateless Cart-Pole, easy)") < text.index("(Repeat First, medium)")
    write_curves(tmp_path, rows)
    assert draw_benchmark(tmp_path, "popgym", rows) == [tmp_path / "popgym.png"]
    # Titles without a level, as those of a study of a user's own, are one part.
    rows["title"] = rows["title"].str.replace(", ", " at level ")
    assert len(levels(rows)) == 1


def test_times_are_of_the_runs_that_were_made_for_them(tmp_path: Path, rows: pd.DataFrame) -> None:
    timed = {**run("gru", "RepeatFirst, easy", 100, 0.0, 0.0), "seconds": "3", "steps": "200000"}
    write_table(tmp_path / "popgym_costs.csv", [timed], list(timed))
    ((_, memories),) = rankings(rows, read_costs(tmp_path, "popgym"))
    assert {one.core: one.seconds for one in memories} == pytest.approx({"gru": 15, "none": 40})


def test_the_tables_have_every_run_and_published_figures(
    tmp_path: Path, rows: pd.DataFrame
) -> None:
    text = benchmark_tables(tmp_path, "popgym", rows)
    lines = text.splitlines()
    assert lines[2].startswith("| `gru` | 0.45 [0.35, 0.55] | 0.65 | 1 | 33,280 | 76 | 40 s |")
    assert lines[3].startswith("| `none` | 0.05 ")
    assert "| memory | Repeat First, easy | Stateless Cart-Pole, easy |" in text
    assert "| `gru` | 0.60 / 0.80 | 0.30 / 0.50 |" in text
    assert "| `lmu` | **1.00 / 1.00** |  |" in text
    assert "seeds 0 to 1 (or those available), 500.0 k steps per run" in text
    assert "published" not in text
    games = {"RepeatFirst, easy": "CountRecall, easy"}
    assert "| Count Recall, easy | `gru` | 0.177 | 0.800 |" in benchmark_tables(
        tmp_path, "popgym", rows.replace({"title": games})
    )


def test_ties_are_first_together_and_diverged_runs_are_named(
    tmp_path: Path, rows: pd.DataFrame
) -> None:
    cart_pole = (rows["title"] == "StatelessCartPole, easy") & (rows["core"] == "gru")
    rows.loc[cart_pole, "mean_return"] = ["0.552", "0.651"]  # 0.6015 and 0.60 are equal here
    rows["ended"] = [
        "diverged" if row and seed == "1" else ""
        for row, seed in zip(cart_pole, rows["seed"], strict=True)
    ]
    text = benchmark_tables(tmp_path, "popgym", rows)
    cells = {line.split(" | ")[0]: line.split(" | ") for line in text.splitlines()[2:4]}
    assert {name: row[3] for name, row in cells.items()} == {"| `gru`": "2", "| `none`": "1"}
    assert "**0.60 / 0.60**" in text  # both ends are above what was seen in training
    assert "**0.60 / 0.70**" in text
    assert "with the worst return: `gru` on Stateless Cart-Pole, easy (seed 1)." in text


def test_an_agent_that_could_not_act_counts_with_the_worst_return(
    tmp_path: Path, rows: pd.DataFrame
) -> None:
    lost = (rows["title"] == "RepeatFirst, easy") & (rows["core"] == "gru") & (rows["seed"] == "1")
    rows["ended"] = np.where(lost, "diverged", "budget")
    tables = []
    for end in ("nan", "-1.0"):
        rows.loc[lost, ["mean_return", "best"]] = end
        tables.append(benchmark_tables(tmp_path, "popgym", rows))
    assert tables[0] == tables[1]
    assert "-0.25 / -0.10" in tables[0]


def test_runs_that_a_ranking_leaves_out_are_in_no_column_of_it(
    tmp_path: Path, rows: pd.DataFrame
) -> None:
    # A seed in one game alone, in which it is far behind.
    extra = run("gru", "RepeatFirst, easy", 7, -1.0, -1.0)
    more = pd.concat([rows, to_frame([{**extra, "ended": "diverged"}])], ignore_index=True)
    before, after = (benchmark_tables(tmp_path, "popgym", one) for one in (rows, more))
    assert before.splitlines()[2] == after.splitlines()[2]
    assert "seeds 0 to 1" in after
    assert "Diverged" not in after


def test_gains_over_the_lstm_are_tested_seed_for_seed(tmp_path: Path) -> None:
    # In both games the GRU is better on all seeds but one.
    ends = {"lstm": [0.1 * seed for seed in range(6)]}
    ends["gru"] = [end + (0.3 if seed else -0.3) for seed, end in enumerate(ends["lstm"])]
    rows = to_frame(
        run(core, title, seed, end, end)
        for core, values in ends.items()
        # The order of the rows does not matter.
        for seed, end in sorted(enumerate(values), reverse=core == "gru")
        for title in GAMES
    )
    text = benchmark_tables(tmp_path, "memory_suite", rows)
    heads, _, gru, lstm = (
        [cell.strip() for cell in line.split("|")] for line in text.splitlines()[:4]
    )
    assert heads[3] == "share gained over `lstm`"
    # 0.3 is 0.15 of a range from -1 to 1, and 0.3 of one from 0. Of 64 choices of signs seven are
    # as good, those with at most one loss, and seven as bad.
    assert gru[3].startswith("+0.150 [")
    assert gru[3].endswith("p = 0.22")
    assert lstm[3] == ""
    few = rows[rows["seed"].isin(list("0123"))]
    assert "share gained" not in benchmark_tables(tmp_path, "memory_suite", few)


def test_one_seed_has_no_interval(tmp_path: Path, rows: pd.DataFrame) -> None:
    text = benchmark_tables(tmp_path, "popgym", rows[rows["seed"] == "0"])
    assert text.splitlines()[2].startswith("| `gru` | 0.35 (1 seed) | 0.60 | 1 |")
    assert "one seed, 500.0 k steps" in text


def test_the_figure_needs_two_memories_and_curves(tmp_path: Path, rows: pd.DataFrame) -> None:
    assert draw_benchmark(tmp_path, "popgym", rows) == []
    write_curves(tmp_path, rows)
    assert draw_benchmark(tmp_path, "popgym", rows) == [tmp_path / "popgym.png"]
    with Image.open(tmp_path / "popgym.png") as image:
        assert image.width > 1500
    assert draw_benchmark(tmp_path, "popgym", rows[rows["core"] == "gru"]) == []


def test_memories_that_end_alike_are_drawn_apart(tmp_path: Path, rows: pd.DataFrame) -> None:
    alike = to_frame(dict(row, mean_return="0.5") for row in rows.to_dict("records"))
    write_curves(tmp_path, alike)
    assert draw_benchmark(tmp_path, "popgym", alike) == [tmp_path / "popgym.png"]


def test_runs_with_a_variant_are_drawn_too(tmp_path: Path, rows: pd.DataFrame) -> None:
    rows = to_frame(
        dict(row, variant="of a game") for row in rows.to_dict("records")
    )  # as in smoke
    write_curves(tmp_path, rows)
    assert draw_benchmark(tmp_path, "popgym", rows) == [tmp_path / "popgym.png"]


def test_variants_of_a_core_are_memories_of_their_own(tmp_path: Path, rows: pd.DataFrame) -> None:
    slow = [dict(row, variant="slow", mean_return="0.0") for row in rows.to_dict("records")]
    both = to_frame([*rows.to_dict("records"), *(row for row in slow if row["core"] == "gru")])
    memories = rankings(_in_order("popgym", both), read_costs(tmp_path, "popgym"))[0].memories
    assert [one.core for one in memories] == ["gru", "none", "gru, slow"]
    assert memories[2].returns.value == 0
    assert memories[2].seconds == memories[0].seconds
    write_curves(tmp_path, both)
    assert "| `gru, slow` | 0.00 " in benchmark_tables(tmp_path, "popgym", both)
    assert draw_benchmark(tmp_path, "popgym", both) == [tmp_path / "popgym.png"]


def test_games_of_other_budgets_are_compared_after_equal_shares_of_them(
    tmp_path: Path, rows: pd.DataFrame
) -> None:
    rows.loc[rows["title"] == "RepeatFirst, easy", "budget"] = "2000000"
    assert ", 500.0 k to 2.0 M steps per run." in benchmark_tables(tmp_path, "popgym", rows)
    write_curves(tmp_path, rows)
    curves = read_return_curves(rows, tmp_path / "popgym_curves.csv")
    memories = rankings(rows, read_costs(tmp_path, "popgym"))[0].memories
    budgets = {"RepeatFirst, easy": 500_000, "StatelessCartPole, easy": 1_000_000}
    axes = Figure().subplots()
    _draw_efficiency(axes, budgets, memories, {"gru", "none"}, curves)
    assert axes.get_xlabel().endswith("as a share of the game's budget")
    # From where both have been evaluated; the runs of the second ended after half of theirs.
    for line, end in zip(axes.lines, (0.55, 0.425), strict=True):
        assert line.get_xdata()[[0, -1]] == pytest.approx([0.1, 1.0])
        assert line.get_ydata()[-1] == pytest.approx(end)
