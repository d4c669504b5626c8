"""Small CSV tables of results, which grow run by run."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from rlgates.cores import list_cores
from rlgates.experiments.files import Damaged, write_atomically
from rlgates.experiments.logs import write_rows
from rlgates.experiments.text import time_text

Row = dict[str, str]
Key = tuple[str, ...]


def read(path: Path) -> list[Row]:
    """The rows of a table; none if there is no such file.

    Raises:
        Damaged: it was cut off, or a row has too few cells or too many.
    """
    if not path.exists():
        return []
    text = path.read_text()
    rows = list(csv.DictReader(io.StringIO(text, newline="")))
    if any(None in row or None in row.values() for row in rows) or not text.endswith("\n"):
        raise Damaged(f"{path} is damaged: a row is not whole. Put it back, or remove that row.")
    return rows


def nothing_in(results: Path) -> ValueError:
    """The error for a folder without results."""
    return ValueError(f"no results in {results}; `rlgates sweep` makes them.")


def key(row: Row) -> Key:
    """Which run a row belongs to."""
    return row["title"], row.get("variant", ""), row["core"], row["seed"]


def heading(row: Row) -> str:
    """What was learned, and which of several settings it was."""
    return ", ".join(filter(None, (row["title"], row.get("variant", ""))))


def who(row: Row) -> str:
    """The core, and what tells it from others with the same core."""
    variant = row.get("variant", "")
    return f"{row['core']}, {variant}" if variant else row["core"]


def ordered(cores: Iterable[str]) -> list[str]:
    """Each core once, in the order of `list_cores`, whichever run was over first."""
    place = {core: number for number, core in enumerate(list_cores())}
    return sorted(dict.fromkeys(cores), key=lambda core: place.get(core, len(place)))


def slug(title: str, titles: Sequence[str]) -> str:
    """For a file: the task, or where it is there with several settings, all of the title."""
    task = title.partition(",")[0]
    alone = [other.partition(",")[0] for other in titles].count(task) == 1
    return task if alone else re.sub(r"\W+", "_", title)


def markdown(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table in Markdown, a newline after each line.

    Args:
        heads: of the columns.
        lines: the cells, as many in each.
    """
    rows = (heads, ["---"] * len(heads), *lines)
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def spent(rows: Sequence[Row]) -> str:
    """How long these runs took, one after the other: "40 runs took 1 h 2 min in all"."""
    seconds = sum(float(row["seconds"]) for row in rows)
    return f"{len(rows)} run{'s' * (len(rows) != 1)} took {time_text(seconds)} in all"


def made_by(rows: Sequence[Row]) -> str:
    """The commands and commits that made these rows: "`rlgates sweep music`, commit 1234567".

    A commit with a "+" had changes that were not committed; without git there is none.
    """
    commands = dict.fromkeys(f"`{row['command']}`" for row in rows)
    commits = dict.fromkeys(
        commit[:7] + "+" * (row.get("dirty") == "True")
        for row in rows
        for commit in row["commit"].split()
    )
    return ", ".join(commands) + (f", commit {', '.join(commits)}" if commits else "")


def merge(path: Path, rows: Sequence[Row]) -> None:
    """Write rows into a table, in place of those of the same runs.

    A column that some of the runs do not have is empty there.
    """
    new = set(map(key, rows))
    there = read(path)
    kept = [row for row in there if key(row) not in new]
    columns = dict.fromkeys(name for row in (*there[:1], *rows[:1]) for name in row)
    write_rows(path, [*kept, *rows], list(columns))


def redraw_table(results: Path, name: str, table: Callable[[list[Row]], str]) -> list[Path]:
    """Write `<name>.md` again from the rows of `<name>.csv`; the files that were written."""
    rows = read(results / f"{name}.csv")
    if not rows:
        return []
    path = results / f"{name}.md"
    write_atomically(path, table(rows).encode())
    return [path]
