"""The log files of a run, which can be rewound to a checkpoint: a table and event files."""

from __future__ import annotations

import csv
import hashlib
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from stable_baselines3.common.logger import (
    KVWriter,
    Logger,
    TensorBoardOutputFormat,
    filter_excluded_keys,
)

from rlgates.atomic import sync, write_atomically
from rlgates.experiments.runs.files import Damaged, Row, parse_table, read_text, table_text

STEPS = "time/total_timesteps"
EVENTS = "events.out.tfevents.*"
# These restart in each session; "time/seconds" continues.
NOT_IN_TABLE = ("time/iterations", "time/time_elapsed")


class CSVFormat(KVWriter):
    """One row for each dump of SB3's logger; later columns are added to the file.

    Args:
        path: the file; existing rows are kept.
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
        """No file is kept open."""


def _plain(value: Any) -> Any:
    """A scalar as a Python number."""
    return value.item() if hasattr(value, "item") else value


def read_rows(path: Path) -> list[Row]:
    """The rows of a run's table without an incomplete last one.

    Raises:
        Damaged: it is not what was written: a row is not whole, or a cell no number.
    """
    text = read_text(path)
    complete = text[: text.rfind("\n") + 1]
    rows = parse_table(path, complete) if complete else []
    for row in rows:
        for name, cell in row.items():
            if not _is_number(cell) or (name == STEPS and not cell):
                raise Damaged(f"{path} is damaged: {name} is {cell!r}, not a number. Put it back.")
    return rows


def _is_number(cell: str) -> bool:
    try:
        float(cell or math.nan)
    except ValueError:
        return False
    return True


def write_rows(path: Path, rows: list[Row], columns: list[str]) -> None:
    """Write the table of a run atomically; see `files.write_table` for results."""
    write_atomically(path, table_text(rows, columns).encode())


def _digest(rows: list[Row]) -> str:
    """The SHA-256 of rows; empty cells do not count, since later columns add some."""
    filled = [{name: cell for name, cell in row.items() if cell} for row in rows]
    return hashlib.sha256(json.dumps(filled, sort_keys=True).encode()).hexdigest()


def column(rows: list[Row], name: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    """One column as numbers, nan for empty cells."""
    return np.array([float(row.get(name) or "nan") for row in rows])


def position(folder: Path, logger: Logger) -> dict[str, Any]:
    """How far the log files go, and the values that wait in the logger for the next dump.

    So far they are on disk: a checkpoint that refers to them outlives a power failure.
    """
    table = next(format_ for format_ in logger.output_formats if isinstance(format_, CSVFormat))
    events = list(folder.glob(EVENTS))
    for path in (table.path, *events):
        if path.exists():
            sync(path)
    return {
        "rows": len(table.rows),
        "digest": _digest(table.rows),
        "events": {path.name: path.stat().st_size for path in events},
        "waiting": {
            key: (_plain(value), list(logger.name_to_excluded[key]))
            for key, value in logger.name_to_value.items()
        },
    }


def log_first_row(logger: Logger, step: int) -> None:
    """Log a row at this step if there is none, as of a run that diverged in its first rollout."""
    tables = [format_ for format_ in logger.output_formats if isinstance(format_, CSVFormat)]
    if any(not table.rows for table in tables):
        logger.dump(step)


def rewind(folder: Path, saved: dict[str, Any] | None) -> None:
    """Remove what was logged after a `position`; None: everything.

    Raises:
        ValueError: a file is missing, shorter than at that position, or damaged.
    """
    rows, events = (saved["rows"], saved["events"]) if saved else (0, {})
    table = folder / "progress.csv"
    existing = read_rows(table) if table.exists() else []
    if len(existing) < rows:
        raise ValueError(
            f"{table} holds {len(existing)} rows, but {rows} were written before the checkpoint. "
            "Put it back, or remove the folder to start again."
        )
    # Checkpoints of earlier versions have no digest.
    if saved and saved.get("digest") not in (None, _digest(existing[:rows])):
        raise Damaged(
            f"{table} is damaged: its rows are not those before the checkpoint. Put it back, or "
            "remove the folder to start again."
        )
    for name in events:
        if not (folder / name).exists():
            raise ValueError(
                f"{folder / name} is missing. Put it back, or remove the folder to start again."
            )
    if rows:
        write_rows(table, existing[:rows], list(existing[0]))
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


def open_logs(folder: Path, saved: dict[str, Any] | None) -> Logger:
    """SB3's logger into `progress.csv` and event files of a run, from a `position`; see `rewind`.

    Raises:
        ValueError: as `rewind`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rewind(folder, saved)
    formats = [CSVFormat(folder / "progress.csv"), TensorBoardOutputFormat(str(folder))]
    logger = Logger(str(folder), formats)
    for key, (value, excluded) in saved["waiting"].items() if saved else ():
        logger.record(key, value, exclude=tuple(excluded))
    return logger
