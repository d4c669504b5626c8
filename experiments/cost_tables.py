"""What a core reaches beside what it costs, out of the CSV files of a study."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rlgates.experiments import logs
from rlgates.experiments.agent_tables import chances
from rlgates.experiments.cost_figures import COSTS, Account, Spent, draw_accounts
from rlgates.experiments.files import write_atomically
from rlgates.experiments.stats import iqm
from rlgates.experiments.tables import Row, heading, made_by, markdown, ordered
from rlgates.experiments.text import time_text

SHORTEST = 0.1  # second, to which times are rounded


def draw_costs(results: Path, name: str, rows: Sequence[Row]) -> list[Path]:
    """Draw each core's score against its costs, and write them into a table.

    Args:
        results: where `<name>_cost.png` and `.md` are written.
        name: of the study.
        rows: its runs.

    Returns:
        what was written.
    """
    accounts = accounts_of(rows)
    picture, text = (results / f"{name}_cost.{end}" for end in ("png", "md"))
    draw_accounts(accounts, picture)
    note = (
        "Score: median loss on held-out sequences, or interquartile mean of the success, over "
        "seeds. Best for: no other core is as good for less of it, among those that go a twentieth "
        "of the way from no memory to a perfect one. Times are medians, and hang on how busy the "
        f"machine was. {made_by(rows)}.\n"
    )
    write_atomically(text, "\n".join([*map(_table, accounts), note]).encode())
    return [picture, text]


def accounts_of(rows: Sequence[Row]) -> list[Account]:
    """Scores and costs in the runs of a study, task by task."""
    levels = chances([row for row in rows if row.get("env")])
    found = []
    for title in dict.fromkeys(map(heading, rows)):
        mine = [row for row in rows if heading(row) == title]
        floor = float(mine[0]["baseline"]) if mine[0].get("baseline") else levels.get(title)
        cores = [
            _spent(core, [row for row in mine if row["core"] == core])
            for core in ordered(row["core"] for row in mine)
        ]
        finite = [one for one in cores if np.isfinite(one.score)]
        found.append(Account(title, title in levels, floor, finite))
    return found


def _spent(core: str, rows: list[Row]) -> Spent:
    if rows[0].get("env"):
        score = float(iqm(logs.column(rows, "success")))
    else:
        score = float(np.median(logs.column(rows, "loss")))
    medians = {cost: max(float(np.median(logs.column(rows, cost))), SHORTEST) for cost in COSTS}
    known = {cost: median for cost, median in medians.items() if np.isfinite(median)}
    return Spent(core, score, known)


def _table(account: Account) -> str:
    fronts = {
        words: [one.core for one in account.front(cost)]
        for cost, words in (("seconds", "time"), ("parameters", "parameters"))
    }
    known = [cost for cost in COSTS if any(cost in one.costs for one in account.cores)]
    heads = [account.title, "success" if account.agent else "loss", *map(COSTS.get, known)]
    lines = []
    for one in sorted(account.cores, key=lambda one: one.score, reverse=account.agent):
        score = f"{one.score:.2f}" if account.agent else f"{one.score:.4f}"
        costs = [_cost_text(cost, one.costs[cost]) if cost in one.costs else "" for cost in known]
        good = ", ".join(words for words, cores in fronts.items() if one.core in cores)
        lines.append([f"`{one.core}`", score, *costs, good])
    return markdown([*map(str, heads), "best for"], lines)


def _cost_text(cost: str, value: float) -> str:
    return time_text(value) if cost == "seconds" else f"{value:,.0f}"
