"""The tables of searches: all trials as CSV, and the best of each search for people."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rlgates.experiments.files import alone, write_atomically
from rlgates.experiments.logs import write_rows
from rlgates.experiments.tables import Row, heading, made_by, markdown, read
from rlgates.experiments.text import time_text

BEST = 3  # trials of a search
TUNED = "_tune"  # what the names of the files end with


def write_trials(results: Path, name: str, rows: Sequence[Row]) -> Path:
    """Write `<name>.csv`, with these trials in place of those of the same searches, and its table.

    Args:
        results: the folder.
        name: of the files.
        rows: all trials of some searches.

    Returns:
        the CSV file.
    """
    path = results / f"{name}.csv"
    ours = list(dict.fromkeys(map(_search, rows)))
    with alone(results):
        kept = [row for row in read(path) if _search(row) not in ours]
        ordered = sorted(rows, key=lambda row: (ours.index(_search(row)), int(row["trial"])))
        whole = [*kept, *ordered]
        write_rows(path, whole, list(dict.fromkeys(column for row in whole for column in row)))
        redraw_trials(path)
    return path


def redraw_trials(path: Path) -> Path:
    """Write the table of a CSV file of trials again, beside it."""
    table = path.with_suffix(".md")
    write_atomically(table, trials_text(read(path)).encode())
    return table


def trials_text(rows: Sequence[Row]) -> str:
    """The best trials of each search, a table for each task and choice of seeds."""
    tables: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        tables.setdefault((heading(row), row["seeds"]), []).append(row)
    return "\n".join(map(_table, tables.values()))


def _search(row: Row) -> tuple[str, str, str, str]:
    """What a row belongs to: a core may be searched more than once, with other settings."""
    return row["title"], row["variant"], row["core"], row["search"]


def _table(rows: Sequence[Row]) -> str:
    first = rows[0]
    heads = (heading(first), first["aim"], "settings", "trial", "time")
    lines, counts = [], []
    for search in dict.fromkeys(map(_search, rows)):
        mine = sorted((row for row in rows if _search(row) == search), key=_rank)
        core = mine[0]["core"]
        best = [row for row in mine if row["ended"] == "finished"][:BEST]
        lines += [[f"`{core}`", *_cells(row)] for row in best]
        counts.append(f"`{core}` {_count(mine)}")
    seeds = first["seeds"].replace(" ", ", ")
    mean = f"mean over seeds {seeds}" if "," in seeds else f"seed {seeds}"
    note = (
        f"The best {BEST} trials of each search by {first['aim']} ({first['better']} is better, "
        f"{mean}): {', '.join(counts)}. They were chosen by these very figures; how good the "
        "settings are, other seeds tell, and what no choice was made by. "
        f"{made_by([row for row in rows if row.get('commit')] or rows)}.\n"
    )
    return markdown(heads, lines) + "\n" + note


def _rank(row: Row) -> tuple[bool, float, int]:
    """The best first, then those without a value."""
    value = float(row["value"] or 0)
    sign = -1 if row["better"] == "higher" else 1
    return not row["value"], sign * value, int(row["trial"])


def _cells(row: Row) -> list[str]:
    settings = ", ".join(row["settings"].split(" "))
    return [
        f"{float(row['value']):.4g}",
        settings,
        row["trial"],
        time_text(float(row["seconds"])),
    ]


def _count(rows: Sequence[Row]) -> str:
    """ "20 trials, 2 of them diverged"."""
    ends = [row["ended"] for row in rows]
    words = [
        f"{ends.count(end)} of them {end}" for end in ("diverged", "failed") if ends.count(end)
    ]
    return ", ".join([f"{len(rows)} trial{'s' * (len(rows) != 1)}", *words])
