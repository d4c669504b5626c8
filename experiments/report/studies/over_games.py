"""Each memory of the benchmark against one of them, with the games as the sample.

Few seeds tell little of one game, but a memory that is the better one should be so in most games.
"""

from __future__ import annotations

import pandas as pd
from scipy.stats import false_discovery_control

from rlgates.experiments.analysis.stats import p_gained, paired_difference
from rlgates.experiments.report.rows import markdown, returns_of
from rlgates.experiments.report.studies.paired import BASE
from rlgates.experiments.report.studies.returns import return_share
from rlgates.experiments.studies.popgym import LEVELS

MIN_GAMES = 6  # below which no p is below 0.05
NOTABLE = 0.05  # of a game's range, from which it counts as better or worse


def over_games_table(rows: pd.DataFrame) -> str:
    """Compare the memories that have runs in all games and levels.

    Args:
        rows: the runs; the titles of games that have levels are "game, level".

    Returns:
        the table; empty without `BASE`, with one level, or with fewer than `MIN_GAMES` games.
    """
    titles = rows["title"].str.rpartition(", ")
    rows = rows.assign(game=titles[0], level=titles[2])
    rows = rows[rows["level"].isin(LEVELS)]
    scores = _scores(rows).dropna(axis="columns")
    games, levels = (scores.index.unique(part) for part in scores.index.names)
    if BASE not in scores or len(levels) < 2 or len(games) < MIN_GAMES:
        return ""
    by_game = scores.groupby("game").mean()
    gained = by_game.sub(by_game[BASE], axis="index")
    order = by_game.mean().sort_values(ascending=False).index
    others = [core for core in order if core != BASE]
    p = {core: p_gained(gained[core], two_sided=True) for core in others}
    q = dict(zip(p, false_discovery_control(list(p.values())), strict=True)) if p else {}
    apart = scores.sub(scores[BASE], axis="index")
    lines = []
    for core in order:
        cells = [""] * 5
        if core != BASE:
            gain = paired_difference(by_game[core], by_game[BASE])
            cells = [
                f"{gain.value:+.3f} [{gain.low:+.3f}, {gain.high:+.3f}]",
                f"{p[core]:.2g}",
                f"{q[core]:.2g}",
                str((apart[core] > NOTABLE).sum()),
                str((apart[core] < -NOTABLE).sum()),
            ]
        lines.append([f"`{core}`", f"{by_game[core].mean():.3f}", *cells])
    seeds = ", ".join(f"{level} {_num_seeds(rows, level)}" for level in levels)
    note = (
        f"\nMean over {len(games)} games and their {len(levels)} levels, equally weighted, of the "
        "return at the end (0 for a game's worst, 1 for its best), itself the mean over seeds "
        f"(number of seeds: {seeds}). Minus `{BASE}`: with a 95 % bootstrap interval over games. "
        "p: how often chance alone would give a difference this large (two-sided, over all swaps "
        "of the two memories within games). q: p corrected for all memories in the table "
        f"(Benjamini and Hochberg 1995). Better, worse: in how many of the {len(scores)} games and "
        f"levels the share differs by more than {NOTABLE:g}, some of them by chance.\n"
    )
    heads = ["memory", "share of the range", f"minus `{BASE}`", "p", "q", "better", "worse"]
    return markdown(heads, lines) + note


def shared_games_table(rows: pd.DataFrame) -> str:
    """Compare each memory that lacks runs in a game or level with `BASE`, on what both have.

    Args:
        rows: as of `over_games_table`; games that have no levels count as well.

    Returns:
        the table; empty where all memories have runs in all games and levels, or share none with
        `BASE`.
    """
    titles = rows["title"].str.rpartition(", ")
    has_level = titles[2].isin(LEVELS)
    rows = rows.assign(
        game=titles[0].where(has_level, rows["title"]), level=titles[2].where(has_level, "")
    )
    scores = _scores(rows)
    if BASE not in scores:
        return ""
    incomplete = scores.columns[scores.isna().any()].drop(BASE, errors="ignore")
    shared = {core: scores[[core, BASE]].dropna() for core in incomplete}
    means = {core: both.groupby("game").mean() for core, both in shared.items() if len(both)}
    order = sorted(means, key=lambda core: (means[core][BASE] - means[core][core]).mean())
    lines = []
    for core in order:
        by_game = means[core]
        ours, theirs = by_game[core].mean(), by_game[BASE].mean()
        cells = [f"{ours - theirs:+.3f}", ""]
        if len(by_game) >= MIN_GAMES:
            gain = paired_difference(by_game[core], by_game[BASE])
            p = p_gained(by_game[core] - by_game[BASE], two_sided=True)
            cells = [f"{cells[0]} [{gain.low:+.3f}, {gain.high:+.3f}]", f"{p:.2g}"]
        counts = [str(len(by_game)), str(len(shared[core]))]
        lines.append([f"`{core}`", *counts, f"{ours:.3f}", f"{theirs:.3f}", *cells])
    if not lines:
        return ""
    title = f"Memories without runs in all games, against `{BASE}` on the games that both have\n\n"
    note = (
        "\nShare of the range: return at the end (0 for a game's worst, 1 for its best), mean over "
        f"seeds, over the levels that the memory shares with `{BASE}`, and over games, equally "
        "weighted. This is not a ranking: each memory has different games. With fewer than "
        f"{MIN_GAMES} games, where no p can be below 0.05, only the difference is given; otherwise "
        "also its 95 % bootstrap interval over games and p: how often chance alone would give a "
        "difference this large (two-sided, over all swaps of the two memories within games).\n"
    )
    heads = ["memory", "games", "their levels", "share of the range", f"of `{BASE}`"]
    return title + markdown([*heads, "difference", "p"], lines) + note


def _scores(rows: pd.DataFrame) -> pd.DataFrame:
    """Scores by game and level, a column for each memory; missing where it has no runs."""
    keys = ["game", "level", "core"]
    scores = [
        (*key, return_share(runs.iloc[0], returns_of(runs)).mean())
        for key, runs in rows.groupby(keys, sort=False)
    ]
    return (
        pd.DataFrame(scores, columns=[*keys, "score"])
        .pivot(index=["game", "level"], columns="core", values="score")
        .sort_index(key=_with_levels_in_order)
    )


def _with_levels_in_order(keys: pd.Index) -> pd.Index:
    return keys.map(("", *LEVELS).index) if keys.name == "level" else keys


def _num_seeds(rows: pd.DataFrame, level: str) -> str:
    """How many seeds the memories have in the games of a level."""
    counts = rows[rows["level"] == level].groupby(["game", "core"])["seed"].nunique()
    return " to ".join(map(str, sorted({counts.min(), counts.max()})))
