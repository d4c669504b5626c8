"""The comparison of memories with the games as the sample."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from rlgates.experiments.report.rows import to_frame
from rlgates.experiments.report.studies.benchmark import benchmark_tables
from rlgates.experiments.report.studies.over_games import over_games_table, shared_games_table
from rlgates.experiments.runs.files import Row

GAMES = [f"Game{number}" for number in range(6)]
LEVELS = ("hard", "easy")


def run(core: str, title: str, seed: int, end: float) -> Row:
    return {
        "title": title,
        "core": core,
        "seed": str(seed),
        "mean_return": str(end),
        "worst_return": "-1.0",
        "best_return": "1.0",
        "ended": "budget",
    }


def returns(core: str, game: int, level: str) -> float:
    """The GRU is ahead in each game at one level; without memory is ahead in each second game."""
    gains = {"gru": 0.2 * (level == "easy"), "lstm": 0.0, "none": (-1) ** game * 0.3 - 0.01}
    return -0.5 + 0.2 * game + gains[core]


@pytest.fixture
def rows() -> pd.DataFrame:
    return to_frame(
        run(core, f"{name}, {level}", seed, returns(core, game, level) + (seed - 0.5) * 0.1)
        for core in ("gru", "lstm", "none")
        for game, name in enumerate(GAMES)
        for level in LEVELS
        for seed in (0, 1)
    )


def cells(text: str) -> dict[str, list[str]]:
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line[:3] == "| `"]
    return {line[0].strip("`"): line[1:] for line in lines}


def test_games_are_compared_and_not_seeds(rows: pd.DataFrame) -> None:
    text = over_games_table(rows)
    table = cells(text)
    assert list(table) == ["gru", "lstm", "none"]
    assert table["lstm"][0] == "0.500"
    # In six games of six by the same 0.1, which is 0.05 of the range: 2 of 64 choices of signs are
    # as extreme, and of two memories it is the more extreme one.
    assert table["gru"] == ["0.550", "+0.050 [+0.050, +0.050]", "0.031", "0.062", "6", "0"]
    gain, p, q, better, worse = table["none"][1:]
    assert gain.startswith("-0.005 [-0.1")
    assert float(p) == float(q) > 0.5
    assert (better, worse) == ("6", "6")
    assert "Mean over 6 games and their 2 levels" in text
    assert "(number of seeds: easy 2, hard 2)" in text
    assert "the 12 games and levels the share differs" in text


def test_a_memory_that_lacks_a_game_is_not_compared(rows: pd.DataFrame) -> None:
    lacks = (rows["core"] == "gru") & (rows["title"] == "Game3, hard")
    assert list(cells(over_games_table(rows[~lacks]))) == ["lstm", "none"]
    one_seed = over_games_table(rows[~(lacks & (rows["seed"] == "1"))])
    assert list(cells(one_seed)) == ["gru", "lstm", "none"]
    assert "(number of seeds: easy 2, hard 1 to 2)" in one_seed


def test_runs_that_diverged_count_with_the_worst(rows: pd.DataFrame) -> None:
    lost = (rows["core"] == "gru") & rows["title"].isin(["Game5, easy", "Game5, hard"])
    rows.loc[lost, ["mean_return", "ended"]] = ["nan", "diverged"]
    # 0.75 and 0.85 were lost in one game of six.
    assert cells(over_games_table(rows))["gru"][0] == f"{0.55 - (0.75 + 0.85) / 12:.3f}"


def test_memories_that_lack_games_are_compared_on_those_they_share(rows: pd.DataFrame) -> None:
    assert shared_games_table(rows) == ""
    lacks = (rows["core"] == "gru") & (rows["title"] == "Game3, hard")
    few = (rows["core"] == "none") & ~rows["title"].isin(["Game0, easy", "Game0, hard"])
    text = shared_games_table(rows[~lacks & ~few])
    title, table, note = text.split("\n\n")
    assert title == (
        "Memories without runs in all games, against `lstm` on the games that both have"
    )
    heads, *_ = table.splitlines()
    assert heads == (
        "| memory | games | their levels | share of the range | of `lstm` | difference | p |"
    )
    # 0.145 of the range in one game; 0.1 at level easy alone, and in Game3 there is no other.
    assert cells(text) == {
        "none": ["1", "2", "0.395", "0.250", "+0.145"],
        "gru": ["6", "11", "0.558", "0.500", "+0.058 [+0.050, +0.075]", "0.031"],
    }
    assert "With fewer than 6 games" in note


def test_one_game_of_a_memory_is_enough(rows: pd.DataFrame) -> None:
    one = rows[rows["title"] == "Game1, easy"].query("core == 'gru'").assign(core="my_memory")
    text = shared_games_table(pd.concat([rows, one]))
    assert cells(text) == {"my_memory": ["1", "1", "0.450", "0.350", "+0.100"]}
    no_levels = rows["title"].str.replace(", ", " at level ")
    mine = one.assign(title="Game1 at level easy")
    assert shared_games_table(pd.concat([rows.assign(title=no_levels), mine])) == text


@pytest.mark.parametrize("without", ["the base", "a shared game"])
def test_without_the_base_or_a_shared_game_there_is_no_table(
    rows: pd.DataFrame, without: str
) -> None:
    base, game = rows["core"] == "lstm", rows["title"] == "Game0, easy"
    mine = rows[game & (rows["core"] == "gru")].assign(core="my_memory")
    kept = rows[~base] if without == "the base" else rows[~(base & game)]
    assert "my_memory" not in shared_games_table(pd.concat([kept, mine]))


@pytest.mark.parametrize("without", ["lstm", "a game", "a level", "levels"])
def test_nothing_is_compared_without_enough(rows: pd.DataFrame, without: str) -> None:
    rows = {
        "lstm": rows[rows["core"] != "lstm"],
        "a game": rows[~rows["title"].str.startswith("Game0")],
        "a level": rows[rows["title"].str.endswith("easy")],
        "levels": rows.assign(title=rows["title"].str.replace(", ", " at level ")),
    }[without]
    assert over_games_table(rows) == ""


def test_it_is_the_first_table_of_the_benchmark(rows: pd.DataFrame, tmp_path: Path) -> None:
    extra = {"episodes": "100", "budget": "500000", "parameters": "1", "state_size": "1"}
    extra |= {"seconds": "20", "steps": "500000", "variant": ""}
    extra |= {"commit": "1234567890", "dirty": "False", "command": "rlgates sweep popgym"}
    text = benchmark_tables(tmp_path, "popgym", rows.assign(**extra))
    assert text.startswith(over_games_table(rows) + "\n| memory | return at the end |")
    kept = rows[(rows["core"] != "gru") | (rows["title"] == "Game0, easy")]
    text = benchmark_tables(tmp_path, "popgym", kept.assign(**extra))
    shared = shared_games_table(kept)
    beginning = f"{over_games_table(kept)}\n{shared}\n| memory | return at the end |"
    assert shared
    assert text.startswith(beginning)
