"""The tables of searches: all trials as CSV, and the best of each search in Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from rlgates.atomic import write_atomically
from rlgates.experiments.plots.titles import title_words
from rlgates.experiments.report.rows import TITLE, markdown, provenance, to_frame
from rlgates.experiments.runs.files import Row, read_table, write_table
from rlgates.experiments.runs.locks import locked
from rlgates.experiments.runs.text import time_text

BEST = 3  # trials of a search
SEARCHES = "_tune"  # what the names of these tables end with
SEARCH = ["title", "variant", "core", "search"]  # a core may be searched with several settings


def write_trials(results: Path, name: str, rows: Sequence[Row]) -> Path:
    """Write `<name>.csv`, replacing the trials of the same searches, and its table.

    Args:
        results: the folder.
        name: of the files.
        rows: all trials of some searches.

    Returns:
        the CSV file.
    """
    path = results / f"{name}.csv"
    searches = list(dict.fromkeys(map(_search, rows)))
    with locked(results):
        kept = [row for row in read_table(path) if _search(row) not in searches]
        new = sorted(rows, key=lambda row: (searches.index(_search(row)), int(row["trial"])))
        merged = [*kept, *new]
        write_table(path, merged, list(dict.fromkeys(column for row in merged for column in row)))
        write_search_table(path)
    return path


def write_search_table(path: Path) -> Path:
    """Write the table of a CSV file of trials beside it, and return its path."""
    table = path.with_suffix(".md")
    write_atomically(table, search_tables(read_table(path)).encode())
    return table


def search_tables(rows: Sequence[Row]) -> str:
    """Format the best trials of each search, a table for each task and set of seeds."""
    groups = to_frame(rows).groupby([TITLE, "seeds"], sort=False)
    return "\n".join(_table(group) for _, group in groups)


def _search(row: Row) -> tuple[str, ...]:
    """Identify the search of a trial."""
    return tuple(row[name] for name in SEARCH)


def _table(rows: pd.DataFrame) -> str:
    first = rows.iloc[0]
    heads = (title_words(first[TITLE]), first["aim"], "settings", "trial", "time")
    lines, counts = [], []
    for (_, _, core, _), trials in rows.groupby(SEARCH, sort=False):
        ranked = sorted(trials.to_dict("records"), key=_rank)
        best = [row for row in ranked if row["ended"] == "finished"][:BEST]
        lines += [[f"`{core}`", *_cells(row)] for row in best]
        counts.append(f"`{core}` {_count(trials)}")
    seeds = first["seeds"].replace(" ", ", ")
    mean = f"mean over seeds {seeds}" if "," in seeds else f"seed {seeds}"
    committed = rows[rows["commit"] != ""]
    note = (
        f"The best {BEST} trials of each search by {first['aim']} ({first['better']} is better, "
        f"{mean}): {', '.join(counts)}. They were selected by these scores, so only runs on other "
        "seeds tell how good the settings are. "
        f"{provenance(rows if committed.empty else committed)}.\n"
    )
    return markdown(heads, lines) + "\n" + note


def _rank(row: Row) -> tuple[bool, float, int]:
    """Rank the best first, and trials without a value last."""
    value = float(row["value"] or 0)
    sign = -1 if row["better"] == "higher" else 1
    return not row["value"], sign * value, int(row["trial"])


def _cells(row: Row) -> list[str]:
    settings = ", ".join(row["settings"].split(" "))
    time = time_text(float(row["seconds"]))
    return [f"{float(row['value']):.4g}", settings, row["trial"], time]


def _count(trials: pd.DataFrame) -> str:
    """Count trials: "20 trials, 2 of them diverged"."""
    ends = trials["ended"].tolist()
    bad = [f"{ends.count(end)} of them {end}" for end in ("diverged", "failed") if end in ends]
    return ", ".join([f"{len(ends)} trial{'s' * (len(ends) != 1)}", *bad])
