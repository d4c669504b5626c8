"""Intensive care: predict from the first 48 hours whether a patient stays longer than a week."""

from __future__ import annotations

import csv
import io
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlgates.experiments.tasks.data.dataset import (
    GATO,
    SequenceClassification,
    check_counts,
    fixed_permutation,
    published_results,
)
from rlgates.experiments.tasks.data.files import (
    DECOMPRESSION_ERRORS,
    OPENERS,
    DataDir,
    File,
    archive_members,
    read_file,
)

HOURS, DAYS = 48, 7.0
# The most frequent parameters of sets A and B, without Weight, which is not a measurement.
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
LONG_SHARE = 5_176 / 7_886  # of stays over a week, among those of known length in sets A and B
STAY, HOUR, LENGTH = "RecordID", "Hour", "Length_of_stay"


class Stays(NamedTuple):
    """Vitals (N, 48, 12), NaN where not measured, and lengths of stay (N,) in days."""

    values: NDArray[np.float32]
    days: NDArray[np.float64]


def _converter(letter: str) -> Callable[[Path], bytes]:
    """The conversion of a set's archive, with a table for each stay, to one table."""
    pattern = re.compile(rf"set-{letter}/(\d+)\.txt")

    def convert(archive: Path) -> bytes:
        records = {}
        for name, table in archive_members(archive):
            if match := pattern.fullmatch(name):
                records[match[1]] = table.decode().split()[1:]
        lines = [f"{STAY},Time,Parameter,Value\n"]
        for stay in sorted(records):
            lines += [f"{stay},{row}\n" for row in records[stay] if f",{STAY}," not in row]
        return "".join(lines).encode()

    return convert


def _files(letter: str, table: str, outcomes: str) -> tuple[File, File]:
    url = "https://physionet.org/files/challenge-2012/1.0.0/"
    name, folder = f"Outcomes-{letter}.txt", "physionet2012"
    archive = (f"{url}set-{letter}.tar.gz",)
    return (
        File(folder, f"set-{letter}.csv", table, archive, convert=_converter(letter)),
        File(folder, name, outcomes, (url + name,)),
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


def read_physionet(data_dir: DataDir = None) -> Stays:
    """The 8,000 stays of sets A and B of the PhysioNet challenge of 2012, sorted by RecordID.

    Stays of unknown length (-1 days) are left out. The last value of an hour counts.

    Raises:
        FileNotFoundError, ValueError: as `data.files.read_file`.
    """
    days: dict[bytes, float] = {}
    columns = {name.encode(): column for column, name in enumerate(VITALS)}
    line = re.compile(rb"^(\d+),(\d+):\d+,(%s),([^,\n]+)$" % b"|".join(columns), re.MULTILINE)
    values: dict[bytes, NDArray[np.float32]] = {}
    for table, outcomes in PHYSIONET:
        for row in csv.DictReader(read_file(outcomes, data_dir).decode().split()):
            stay = row[STAY].encode()
            days[stay] = float(row[LENGTH])
            values[stay] = np.full((HOURS, len(VITALS)), np.nan, dtype=np.float32)
        for stay, hour, name, value in line.findall(read_file(table, data_dir)):
            values[stay][min(int(hour), HOURS - 1), columns[name]] = float(value)
    check_counts("PhysioNet 2012", {"stays": len(days)}, {"stays": 8_000})
    known = sorted(stay for stay, length in days.items() if length >= 0)
    return Stays(
        np.stack([values[stay] for stay in known]), np.array([days[stay] for stay in known])
    )


def read_stays_table(path: str | os.PathLike[str]) -> Stays:
    """The stays of a user's table, for example one made of MIMIC-III.

    A CSV file (or .gz, .xz of it), one line for each time of a measurement, with the columns
    RecordID; Hour, since admission, a number; Length_of_stay, in days; and twelve vitals, empty
    or nan where not measured. The last line of an hour counts; lines before admission and
    after 48 hours are left out.

    Raises:
        FileNotFoundError: the file does not exist.
        ValueError: a column is missing or there twice, or there are not twelve vitals. A line,
            which is named, has too few or too many fields, no RecordID, a value that is not a
            finite number, or another length of the same stay. The file is truncated, or no text.
    """
    columns = f"the columns {STAY}, {HOUR}, {LENGTH} and {len(VITALS)} vitals"
    if not Path(path).is_file():
        raise FileNotFoundError(f"no table {path}; it must be a CSV file with {columns}.")
    days: dict[str, float] = {}
    values: dict[str, NDArray[np.float32]] = {}
    try:
        with OPENERS.get(Path(path).suffix, open)(path, "rb") as stream:
            table = csv.DictReader(io.TextIOWrapper(stream, encoding="utf-8", newline=""))
            names = table.fieldnames or []
            vitals = [name for name in names if name not in (STAY, HOUR, LENGTH)]
            expected = {STAY, HOUR, LENGTH, *vitals}
            if len(vitals) != len(VITALS) or sorted(names) != sorted(expected):
                raise ValueError(f"{path} must have {columns}, got {', '.join(names)}.")
            for row in table:
                try:
                    stay, hour, length, numbers = _measurement(row, names, vitals)
                    if days.setdefault(stay, length) != length:
                        raise ValueError(f"stay {stay} has two lengths, {days[stay]} and {length}")
                except ValueError as error:
                    raise ValueError(f"{path}, line {table.line_num}: {error}.") from error
                grid = values.setdefault(
                    stay, np.full((HOURS, len(vitals)), np.nan, dtype=np.float32)
                )
                if 0 <= hour < HOURS:
                    measured = ~np.isnan(numbers)
                    grid[hour, measured] = np.array(numbers)[measured]
    except (csv.Error, UnicodeDecodeError, *DECOMPRESSION_ERRORS) as error:
        raise ValueError(f"{path} is truncated or damaged, or not a CSV file: {error}.") from error
    stays = sorted(values)
    if len(stays) < 10:
        raise ValueError(f"{path} must have at least 10 stays, got {len(stays)}.")
    return Stays(np.stack([values[s] for s in stays]), np.array([days[s] for s in stays]))


def _measurement(
    row: Mapping[str | None, Any], names: Sequence[str], vitals: Sequence[str]
) -> tuple[str, int, float, list[float]]:
    """Stay, hour, days and vitals of a line; ValueError says what is wrong."""
    fields = len(names) + len(row.get(None, [])) - list(row.values()).count(None)
    if fields != len(names):
        raise ValueError(f"{fields} fields, but {len(names)} columns")
    if not row[STAY]:
        raise ValueError(f"no {STAY}")
    numbers = {name: float(row[name]) for name in (HOUR, LENGTH, *vitals) if row[name]}
    for name in (HOUR, LENGTH):
        if name not in numbers:
            raise ValueError(f"no {name}")
    for name, number in numbers.items():
        if math.isinf(number) or (math.isnan(number) and name not in vitals):
            raise ValueError(f"{name} must be finite, got {number}")
    if numbers[LENGTH] < 0:
        raise ValueError(f"{LENGTH} must be at least 0, got {numbers[LENGTH]}")
    measured = [numbers.get(name, math.nan) for name in vitals]
    return row[STAY], math.floor(numbers[HOUR]), numbers[LENGTH], measured


def make_inputs(values: NDArray[np.float32], mean: Tensor, deviation: Tensor) -> Tensor:
    """Inputs (N, 48, 25) from vitals (N, 48, 12), NaN where not measured.

    The vitals, standardised and clipped to ±10, with the last known value carried forward and 0
    before the first one; then an indicator of each missing value; then the hour over 48.
    """
    raw = torch.from_numpy(values)
    gaps = raw.isnan()
    scaled = ((raw - mean) / deviation).clamp(-10, 10).nan_to_num(0)
    hours = torch.arange(raw.shape[1])[None, :, None]
    last = torch.where(gaps, -1, hours).cummax(dim=1).values
    filled = scaled.gather(1, last.clamp(min=0)).where(last >= 0, 0)
    time = (hours / raw.shape[1]).expand(len(raw), -1, 1)
    return torch.cat([filled, gaps.float(), time], dim=-1)


class LengthOfStay(SequenceClassification):
    """Intensive care: 48 hours of 25 inputs; does the stay exceed one week? (GATO 2020)

    The paper uses MIMIC-III, which needs an agreement; sets A and B of the PhysioNet challenge of
    2012 are the open substitute (12 vitals: `VITALS`). The inputs are those of `make_inputs`. No
    split is published: after a fixed shuffle, a tenth is "valid" and a tenth "test".

    Args:
        table: path of your own table to use instead, see `read_stays_table`.
        data_dir: see `DatasetTask`.
    """

    settings = ("table", "data_dir")
    published = (
        *published_results(
            f"{GATO}, table 1, MIMIC-III, 4e-3", "test", lstm=0.65, gru=0.52, gato=0.69
        ),
        *published_results(
            f"{GATO}, table 1, MIMIC-III, 1e-4", "test", lstm=0.57, gru=0.57, gato=0.65
        ),
    )

    def __init__(
        self,
        table: DataDir = None,
        data_dir: DataDir = None,
    ) -> None:
        super().__init__(data_dir)
        if not isinstance(table, str | os.PathLike | None):
            raise TypeError(f"table must be a path or None, got {table!r}.")
        self.table = table
        self.input_size, self.output_size = 2 * len(VITALS) + 1, 2
        entropy = -LONG_SHARE * math.log(LONG_SHARE) - (1 - LONG_SHARE) * math.log(1 - LONG_SHARE)
        self.baseline = entropy if table is None else None

    def load(self) -> dict[str, tuple[Tensor, Tensor]]:
        stays = (
            read_physionet(self.data_dir) if self.table is None else read_stays_table(self.table)
        )
        order = fixed_permutation(len(stays.days), "icu")
        tenth = len(order) // 10
        indices = {
            "train": order[: -2 * tenth],
            "valid": order[-2 * tenth : -tenth],
            "test": order[-tenth:],
        }
        training = torch.from_numpy(stays.values[indices["train"]]).flatten(0, 1).double()
        mean = training.nanmean(dim=0)
        deviation = (training - mean).square().nanmean(dim=0).sqrt()
        # The inputs of a vital that is constant or never measured are 0.
        mean, deviation = mean.nan_to_num(0), deviation.where(deviation > 0, 1)
        classes = torch.from_numpy((stays.days > DAYS).astype(np.uint8))
        return {
            split: (
                make_inputs(stays.values[chosen], mean.float(), deviation.float()),
                classes[torch.from_numpy(chosen)],
            )
            for split, chosen in indices.items()
        }
