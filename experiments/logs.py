"""The log files of a run, which can be rewound to a checkpoint: a table and event files."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

import numpy as np
from stable_baselines3.common.logger import (
    KVWriter,
    Logger,
    TensorBoardOutputFormat,
    filter_excluded_keys,
)

from rlgates.experiments.files import write_atomically

STEPS = "time/total_timesteps"
EVENTS = "events.out.tfevents.*"
# Counted anew in each session; "time/seconds" goes on.
NOT_IN_TABLE = ("time/iterations", "time/time_elapsed")
# What the charts of a study show of each task.
TIMESCALE = r"gates/log10_timescale(_\d+)?/median"
_CHARTED = re.compile(
    rf"rollout/success_rate|match/last_phase_reward|train/loss|eval/\w+|{TIMESCALE}"
)
Row = dict[str, str]


class CSVFormat(KVWriter):
    """One row for each dump of SB3's logger; columns that come later are added to the file.

    Args:
        path: the file; the rows that are there already are kept.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows = read_rows(path) if path.exists() else []
        self.columns = list(self.rows[0]) if self.rows else []

    def write(
        self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0
    ) -> None:
        values = filter_excluded_keys(key_values, key_excluded, "csv")
        row = {STEPS: str(step)} | {
            key: str(_plain(value))
            for key, value in values.items()
            if np.ndim(value) == 0 and key not in NOT_IN_TABLE
        }
        self.rows.append(row)
        if row.keys() <= set(self.columns):
            with self.path.open("a", newline="") as file:
                csv.DictWriter(file, self.columns, lineterminator="\n").writerow(row)
        else:
            self.columns = [STEPS, *sorted({*self.columns, *row} - {STEPS})]
            write_rows(self.path, self.rows, self.columns)

    def close(self) -> None:
        """Nothing stays open."""


def task_tag(title: str) -> str:
    """What the tags of a task begin with: "copy, delay 100" -> "copy-delay-100"."""
    return re.sub(r"[^\w.-]+|/", "-", title).strip("-")


class TaskFormat(TensorBoardOutputFormat):
    """Event files in which what the charts of a study show is there twice.

    The second time its tag begins with the name of the task, because a chart of TensorBoard
    chooses what it shows by tags and not by runs.

    Args:
        folder: of the run.
        title: of its task or environment.
    """

    def __init__(self, folder: Path, title: str) -> None:
        super().__init__(str(folder))
        self.task = task_tag(title)

    def write(
        self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0
    ) -> None:
        charted = {key: f"{self.task}/{key}" for key in key_values if _CHARTED.fullmatch(key)}
        values = {new: key_values[key] for key, new in charted.items()}
        excluded = {new: key_excluded[key] for key, new in charted.items()}
        super().write({**key_values, **values}, {**key_excluded, **excluded}, step)


def _plain(value: Any) -> Any:
    """A number of any kind as Python's own."""
    return value.item() if hasattr(value, "item") else value


def read_rows(path: Path) -> list[Row]:
    """The rows of a CSV file; the last one is left out if it was cut off."""
    text = path.read_text()
    complete = text[: text.rfind("\n") + 1]
    return list(csv.DictReader(complete.splitlines()))


def write_rows(path: Path, rows: list[Row], columns: list[str]) -> None:
    """Write a CSV file in one go."""

    class Lines(list[str]):
        write = list.append

    lines = Lines()
    writer = csv.DictWriter(lines, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(path, "".join(lines).encode())


def column(rows: list[Row], name: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    """One column as numbers, nan where there is nothing."""
    return np.array([float(row.get(name) or "nan") for row in rows])


def make_logger(folder: Path, title: str) -> Logger:
    """SB3's logger into `progress.csv` and event files, going on after what is there.

    Args:
        folder: of the run.
        title: of its task or environment.
    """
    formats = [CSVFormat(folder / "progress.csv"), TaskFormat(folder, title)]
    return Logger(str(folder), formats)


def position(folder: Path, logger: Logger) -> dict[str, Any]:
    """How far the log files go, and what waits in the logger for the next dump."""
    table = next(format_ for format_ in logger.output_formats if isinstance(format_, CSVFormat))
    return {
        "rows": len(table.rows),
        "events": {file.name: file.stat().st_size for file in folder.glob(EVENTS)},
        "waiting": {
            key: (_plain(value), list(logger.name_to_excluded[key]))
            for key, value in logger.name_to_value.items()
        },
    }


def rewind(folder: Path, saved: dict[str, Any] | None) -> None:
    """Cut off all that was logged after `position`; None: everything.

    Raises:
        ValueError: the files hold less than was logged by then.
    """
    rows, events = (saved["rows"], saved["events"]) if saved else (0, {})
    table = folder / "progress.csv"
    there = read_rows(table) if table.exists() else []
    if len(there) < rows:
        raise ValueError(
            f"{table} holds {len(there)} rows, but {rows} were written before the checkpoint. "
            "Put it back, or remove the folder to start again."
        )
    if rows:
        write_rows(table, there[:rows], list(there[0]))
    else:
        table.unlink(missing_ok=True)
    for file in folder.glob(EVENTS):
        if file.name not in events:
            file.unlink()
        elif file.stat().st_size < events[file.name]:
            raise ValueError(f"{file} is shorter than it was at the checkpoint.")
        else:
            with file.open("r+b") as cut:
                cut.truncate(events[file.name])


def restore_waiting(logger: Logger, saved: dict[str, Any]) -> None:
    """Put back what waited in the logger."""
    for key, (value, excluded) in saved["waiting"].items():
        logger.record(key, value, exclude=tuple(excluded))
