"""The tables of searches: all trials as CSV, and the best of each core for people."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rlgates.experiments.files import alone, write_atomically
from rlgates.experiments.logs import write_rows
from rlgates.experiments.tables import Row, heading, made_by, read
from rlgates.experiments.text import time_text

BEST = 3  # trials of a core
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
    """The best trials of each core, a table for each task."""
    headings = dict.fromkeys(map(heading, rows))
    return "\n".join(_table([row for row in rows if heading(row) == one]) for one in headings)


def _search(row: Row) -> tuple[str, str, str]:
    return row["title"], row["variant"], row["core"]


def _table(rows: Sequence[Row]) -> str:
    first = rows[0]
    lines = [[heading(first), first["aim"], "settings", "trial", "time"], ["---"] * 5]
    counts = []
    for core in dict.fromkeys(row["core"] for row in rows):
        mine = sorted((row for row in rows if row["core"] == core), key=_rank)
        best = [row for row in mine if row["ended"] == "finished"][:BEST]
        lines += [[f"`{core}`", *_cells(row)] for row in best]
        counts.append(f"`{core}` {_count(mine)}")
    seeds = first["seeds"].replace(" ", ", ")
    mean = f"mean over seeds {seeds}" if "," in seeds else f"seed {seeds}"
    note = (
        f"The best {BEST} trials of each core by {first['aim']} ({first['better']} is better, "
        f"{mean}): {', '.join(counts)}. They were chosen by these very figures; how good the "
        "settings are, other seeds tell, and what no choice was made by. "
        f"{made_by([row for row in rows if row.get('commit')] or rows)}.\n"
    )
    return "".join(f"| {' | '.join(line)} |\n" for line in lines) + "\n" + note


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
