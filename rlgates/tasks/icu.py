"""Intensive care: does a patient stay for more than a week, by the first two days?"""

from __future__ import annotations

import csv
import io
import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlgates.tasks.data import PACKERS, File, Folder, members, read
from rlgates.tasks.stored import GATO, Classes, check_counts, fixed_order, quoted

HOURS, DAYS = 48, 7.0
# Those with the most values in sets A and B, Weight apart, which is written down and not measured.
VITALS = (
    "HR",
    "MAP",
    "SysABP",
    "DiasABP",
    "Urine",
    "NISysABP",
    "NIDiasABP",
    "NIMAP",
    "Temp",
    "GCS",
    "RespRate",
    "FiO2",
)
LONG = 5_176 / 7_886  # the share of longer stays, among those of sets A and B that are known
STAY, HOUR, LENGTH = "RecordID", "Hour", "Length_of_stay"


class Stays(NamedTuple):
    """Values (N, 48, 12) of vitals, NaN where there is none, and stays (N,) in days."""

    values: NDArray[np.float32]
    days: NDArray[np.float64]


def _converter(letter: str) -> Callable[[Path], bytes]:
    """What makes one table of a set's archive of tables."""
    pattern = re.compile(rf"set-{letter}/(\d+)\.txt")

    def convert(archive: Path) -> bytes:
        records = {}
        for name, table in members(archive):
            if found := pattern.fullmatch(name):
                records[found[1]] = table.decode().split()[1:]
        lines = [f"{STAY},Time,Parameter,Value\n"]
        for stay in sorted(records):
            lines += [f"{stay},{row}\n" for row in records[stay] if f",{STAY}," not in row]
        return "".join(lines).encode()

    return convert


def _files(letter: str, table: str, outcomes: str) -> tuple[File, File]:
    place = "https://physionet.org/files/challenge-2012/1.0.0/"
    name, folder = f"Outcomes-{letter}.txt", "physionet2012"
    archive = (f"{place}set-{letter}.tar.gz",)
    return (
        File(folder, f"set-{letter}.csv", table, archive, convert=_converter(letter)),
        File(folder, name, outcomes, (place + name,)),
    )


PHYSIONET = (
    _files(
        "a",
        "e9ba6e3de00dce07ad7b96edbad54a9c0e7cfc4b1ac57e58c3356615b6b09d86",
        "2613ea60ccda29f87571a7d6b09ad130858a8ccd66325bd073365925026883c2",
    ),
    _files(
        "b",
        "34ac5e80210d91477a35cff4a44aa024dd30fa724bb94de13bbe40a20748149d",
        "1305f29734da374a809483229a99f33a9230aa8d4fa74b1a2d6ad788136423d5",
    ),
)


def physionet(data_dir: Folder = None) -> Stays:
    """The 8,000 stays of sets A and B of the PhysioNet challenge of 2012, by their numbers.

    Stays whose length is not known (-1 days) are left out. Of two values of an hour the later
    one counts.

    Raises:
        FileNotFoundError, ValueError: as `rlgates.tasks.data.read`.
    """
    days: dict[str, float] = {}
    columns = {name: column for column, name in enumerate(VITALS)}
    found: dict[str, NDArray[np.float32]] = {}
    for table, outcomes in PHYSIONET:
        for row in csv.DictReader(read(outcomes, data_dir).decode().split()):
            days[row[STAY]] = float(row[LENGTH])
            found[row[STAY]] = np.full((HOURS, len(VITALS)), np.nan, dtype=np.float32)
        for line in read(table, data_dir).decode().split()[1:]:
            stay, time, name, value = line.split(",")
            if name in columns:
                hour = min(int(time[:2]), HOURS - 1)
                found[stay][hour, columns[name]] = float(value)
    check_counts("PhysioNet 2012", {"stays": len(days)}, {"stays": 8_000})
    known = sorted(stay for stay, length in days.items() if length >= 0)
    values = np.stack([found[stay] for stay in known])
    return Stays(values, np.array([days[stay] for stay in known]))


def own_stays(path: str | os.PathLike[str]) -> Stays:
    """The stays of a user's table, as MIMIC-III may be brought into its form.

    A CSV file (or .gz, .xz of it), one line for each time something was measured, with the columns
    RecordID; Hour, since admission, a number; Length_of_stay, in days; and twelve more, the
    vitals, empty where there is no value. Of two values of an hour the later line counts; lines
    after 48 hours are left out.

    Raises:
        FileNotFoundError: the file is not there. ValueError: a column is missing, there are not
            twelve vitals, or a value is no number; the line is told.
    """
    columns = f"the columns {STAY}, {HOUR}, {LENGTH} and {len(VITALS)} vitals"
    if not Path(path).is_file():
        raise FileNotFoundError(f"there is no table {path}; it must be a CSV file with {columns}.")
    days: dict[str, float] = {}
    found: dict[str, NDArray[np.float32]] = {}
    with PACKERS.get(Path(path).suffix, open)(path, "rb") as packed:
        table = csv.DictReader(io.TextIOWrapper(packed, encoding="utf-8", newline=""))
        names = table.fieldnames or []
        vitals = [name for name in names if name not in (STAY, HOUR, LENGTH)]
        if len(vitals) != len(VITALS) or len(names) != len(VITALS) + 3:
            raise ValueError(f"{path} must have {columns}, got {', '.join(names)}.")
        for row in table:
            try:
                hour, stay = int(float(row[HOUR])), row[STAY]
                days[stay] = float(row[LENGTH])
                numbers = [float(row[name]) if row[name] else math.nan for name in vitals]
            except (TypeError, ValueError, OverflowError) as error:
                raise ValueError(f"{path}, line {table.line_num}: {error}.") from error
            grid = found.setdefault(stay, np.full((HOURS, len(vitals)), np.nan, dtype=np.float32))
            if 0 <= hour < HOURS:
                measured = ~np.isnan(numbers)
                grid[hour, measured] = np.array(numbers)[measured]
    known = sorted(found)
    if len(known) < 10:
        raise ValueError(f"{path} must have at least 10 stays, got {len(known)}.")
    return Stays(np.stack([found[s] for s in known]), np.array([days[s] for s in known]))


def inputs(values: NDArray[np.float32], mean: Tensor, deviation: Tensor) -> Tensor:
    """Inputs (N, 48, 25) from values (N, 48, 12), NaN where there is none.

    The vitals in standard deviations from the mean, at most 10, the last known value where there
    is none, and 0 before the first; then 1 for each that has no value in that hour, else 0; then
    the hour over 48.
    """
    raw = torch.from_numpy(values)
    gaps = raw.isnan()
    scaled = ((raw - mean) / deviation).clamp(-10, 10).nan_to_num(0)
    hours = torch.arange(raw.shape[1])[None, :, None]
    last = torch.where(gaps, -1, hours).cummax(dim=1).values
    filled = scaled.gather(1, last.clamp(min=0)).where(last >= 0, 0)
    time = (hours / raw.shape[1]).expand(len(raw), -1, 1)
    return torch.cat([filled, gaps.float(), time], dim=-1)


class LengthOfStay(Classes):
    """Intensive care: 48 hours of 25 inputs; does the stay exceed one week? (GATO 2020)

    The paper takes MIMIC-III, which needs an agreement; the open stand-in are sets A and B of the
    PhysioNet challenge of 2012 (12 vitals: `VITALS`). The inputs are those of `inputs`. There is no
    published split: after a fixed shuffle, a tenth is for validation and a tenth for the test.

    Args:
        table: path of a table of one's own instead, as `own_stays` reads it.
        data_dir: as for all tasks on data.
    """

    settings = ("table", "data_dir")
    published = (
        *quoted(f"{GATO}, table 1, MIMIC-III, 4e-3", "test", lstm=0.65, gru=0.52, gato=0.69),
        *quoted(f"{GATO}, table 1, MIMIC-III, 1e-4", "test", lstm=0.57, gru=0.57, gato=0.65),
    )

    def __init__(
        self,
        table: Folder = None,
        data_dir: Folder = None,
    ) -> None:
        super().__init__(data_dir)
        if not isinstance(table, str | os.PathLike | None):
            raise TypeError(f"table must be a path or None, got {table!r}.")
        self.table = table
        self.input_size, self.output_size = 2 * len(VITALS) + 1, 2
        entropy = -LONG * math.log(LONG) - (1 - LONG) * math.log(1 - LONG)
        self.baseline = entropy if table is None else None

    def load(self) -> dict[str, tuple[Tensor, Tensor]]:
        stays = physionet(self.data_dir) if self.table is None else own_stays(self.table)
        order = fixed_order(len(stays.days), "icu")
        tenth = len(order) // 10
        rows = {
            "train": order[: -2 * tenth],
            "valid": order[-2 * tenth : -tenth],
            "test": order[-tenth:],
        }
        training = torch.from_numpy(stays.values[rows["train"]]).flatten(0, 1).double()
        mean = training.nanmean(dim=0)
        deviation = (training - mean).square().nanmean(dim=0).sqrt()
        # A vital that never varies, or that nobody measured, says nothing: its inputs are 0.
        mean, deviation = mean.nan_to_num(0), deviation.where(deviation > 0, 1)
        classes = torch.from_numpy((stays.days > DAYS).astype(np.uint8))
        return {
            split: (
                inputs(stays.values[taken], mean.float(), deviation.float()),
                classes[torch.from_numpy(taken)],
            )
            for split, taken in rows.items()
        }
