"""Results as data frames of strings, and the parts that all tables share."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from rlgates.experiments.analysis.stats import Floats, iqm, iqm_interval
from rlgates.experiments.runs.files import Row, read_table, write_table
from rlgates.experiments.runs.text import time_text

# Columns that only some kinds of runs have; in a frame they are there, empty.
OPTIONAL = (
    *("variant", "env", "task", "success", "loss", "test", "baseline", "ended", "diverged_at"),
    *("stop_loss", "epochs", "updates", "made", "metric", "published", "optimizer", "parameters"),
    *("commit", "dirty", "command", "mean_return", "best"),
)
TITLE, LABEL = "full_title", "core_label"


def run_key(row: Row) -> tuple[str, ...]:
    """Identify the run of a row: title, variant, core and seed."""
    return row["title"], row.get("variant", ""), row["core"], row["seed"]


def merge_rows(path: Path, rows: Sequence[Row]) -> None:
    """Write rows into a table, replacing the rows of the same runs.

    Columns that some runs lack are empty there.
    """
    new = set(map(run_key, rows))
    present = read_table(path)
    kept = [row for row in present if run_key(row) not in new]
    columns = dict.fromkeys(name for row in (*present[:1], *rows) for name in row)
    write_table(path, [*kept, *rows], list(columns))


def to_frame(rows: Iterable[Row]) -> pd.DataFrame:
    """Collect rows into a frame of strings, "" where a row lacks a column.

    Two columns are added: `full_title`, the title with its variant, and `core_label`, the core
    with its variant.
    """
    frame = pd.DataFrame(list(rows), dtype=object).fillna("")
    for name in OPTIONAL:
        if name not in frame:
            frame[name] = ""
    for name, first in ((TITLE, "title"), (LABEL, "core")):
        if first in frame:
            pairs = zip(frame[first], frame["variant"], strict=True)
            frame[name] = [", ".join(filter(None, pair)) for pair in pairs]
    return frame


def read_frame(path: Path) -> pd.DataFrame:
    """Read a table as `to_frame` does; an absent file gives an empty frame.

    Raises:
        Damaged: a row is not whole.
    """
    return to_frame(read_table(path))


def with_best(rows: pd.DataFrame, curves: pd.DataFrame) -> pd.DataFrame:
    """Add the column "best": the best of a run's learning curve, "" where there is none.

    It is the highest success in training, the highest return of an evaluation, or the lowest loss
    on held-out sequences.
    """
    keys = ["title", "variant", "core", "seed"]
    keys_of_curves = [] if curves.empty else list(zip(*(curves[key] for key in keys), strict=True))
    best: dict[Any, float] = {}
    for column, choose in (("success", max), ("mean_return", max), ("loss", min)):
        of_column: dict[Any, float] = {}
        values = numbers(curves, column).tolist()
        for key, value in zip(keys_of_curves, values, strict=True):
            if math.isfinite(value):
                of_column[key] = choose(of_column.get(key, value), value)
        best |= of_column
    found = [str(best.get(key, "")) for key in rows[keys].itertuples(index=False, name=None)]
    return rows.assign(best=found)


def numbers(rows: pd.DataFrame, column: str) -> Floats:
    """Convert a column to floats; nan where it is empty or missing."""
    if column not in rows:
        return np.full(len(rows), np.nan)
    return np.array([float(text or "nan") for text in rows[column]])


def test_figures(rows: pd.DataFrame, column: str) -> Floats:
    """Figures on the test set; nan where a run diverged, which has those of earlier weights."""
    return np.where(rows["diverged_at"] == "", numbers(rows, column), np.nan)


def returns_of(rows: pd.DataFrame, column: str = "mean_return") -> Floats:
    """Mean returns; the environment's worst where a run diverged before it had one.

    Where nobody has set the worst return it is the lowest of these.
    """
    returns, worst = numbers(rows, column), numbers(rows, "worst_return")
    lowest = pd.Series(returns, rows.index).groupby(rows["title"]).transform("min")
    worst = np.where(np.isnan(worst), lowest, worst)
    return np.where(np.isnan(returns) & (rows["ended"] == "diverged"), worst, returns)


def seed_numbers(rows: pd.DataFrame) -> list[int]:
    """List the seeds in ascending order."""
    return sorted({int(seed) for seed in rows["seed"]})


def seeds_text(rows: pd.DataFrame) -> str:
    """Name the seeds: "seed 3", "seeds 0 to 4" or "seeds 0, 1 and 5"."""
    seeds = seed_numbers(rows)
    if len(seeds) == 1:
        return f"seed {seeds[0]}"
    if seeds[-1] - seeds[0] >= len(seeds):
        return f"seeds {', '.join(map(str, seeds[:-1]))} and {seeds[-1]}"
    return f"seeds {seeds[0]} to {seeds[-1]}"


def iqm_text(
    values: Sequence[float] | Floats, text: Callable[[float], str] = "{:.2f}".format
) -> str:
    """Format the interquartile mean over seeds, and its interval where there are several."""
    middle = text(float(iqm(values)))
    if len(values) > 1:
        low, high = map(float, iqm_interval(values))
        middle += f" [{text(low)}, {text(high)}]"
    return middle


def file_slug(title: str, titles: Sequence[str]) -> str:
    """Name a task in a file name: by its name alone, or by its settings where titles share it."""
    task = title.partition(",")[0]
    unique = [other.partition(",")[0] for other in titles].count(task) == 1
    return task if unique else re.sub(r"\W+", "_", title)


def markdown(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Format a table in Markdown, with a newline after each line.

    Args:
        heads: the column heads.
        lines: the cells of each row, as many as there are heads.
    """
    rows = (heads, ["---"] * len(heads), *lines)
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def total_time(rows: pd.DataFrame) -> str:
    """Sum up the time of runs: "40 runs took 1 h 2 min in all"."""
    seconds = sum(numbers(rows, "seconds").tolist())
    return f"{len(rows)} run{'s' * (len(rows) != 1)} took {time_text(seconds)} in all"


def provenance(rows: pd.DataFrame) -> str:
    """Name the commands and commits behind rows: "`rlgates sweep music`, commit 1234567".

    A "+" after a commit means uncommitted changes. Runs made without git name no commit.
    """
    commands = dict.fromkeys(f"`{command}`" for command in rows["command"])
    commits = dict.fromkeys(
        commit[:7] + "+" * (dirty == "True")
        for entry, dirty in zip(rows["commit"], rows["dirty"], strict=True)
        for commit in entry.split()
    )
    return ", ".join(commands) + (f", commit {', '.join(commits)}" if commits else "")


def short_commits(rows: pd.DataFrame) -> str:
    """List the commits of rows, seven digits each."""
    return ", ".join(dict.fromkeys(commit[:7] for commit in rows["commit"]))


def no_results_error(results: Path) -> ValueError:
    """Build the error for a folder without results."""
    return ValueError(f"no results in {results}; `rlgates sweep` makes them.")
