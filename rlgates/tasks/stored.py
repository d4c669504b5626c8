"""Tasks on data sets: loaded when first asked for, kept small, and cut into batches by indexing."""

from __future__ import annotations

import hashlib
import os
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlgates.errors import check_choice
from rlgates.tasks.data import Folder, data_folders
from rlgates.tasks.task import SPLITS, Batch, Published, Task, accuracy, cross_entropy

Part = TypeVar("Part")
GATO, GU = "GATO 2020", "Gu et al. 2020"
OHNO, RRU = "Ohno et al. 2022", "Zakovskis et al. 2023"


def quoted(source: str, split: str, **values: float) -> tuple[Published, ...]:
    """Figures of one table of a paper, by the names of the cores."""
    return tuple(Published(core, value, split, source) for core, value in values.items())


def fixed_order(count: int, name: str) -> NDArray[np.int64]:
    """A shuffled range, (count,), which is the same for ever: sorted by the SHA-256 of its numbers.

    Args:
        name: goes into the sums, so that orders of different names differ.
    """
    sums = [hashlib.sha256(f"{name} {n}".encode()).digest() for n in range(count)]
    return np.array(sorted(range(count), key=sums.__getitem__), dtype=np.int64)


_last: tuple[Any, Any] = None, None  # the data that were read last, and whose they are


class Stored(Task, Generic[Part]):
    """A task on a data set, which is loaded when the first batch is asked for.

    What was loaded last is kept for further tasks of the same settings: runs that follow one
    another read it once.

    Args:
        data_dir: the folder with one folder a data set; None for that of the environment variable
            RLGATES_DATA. What it lacks is looked for in the cache, else fetched.
    """

    settings: ClassVar[tuple[str, ...]] = ("data_dir",)

    def __init__(self, data_dir: Folder = None) -> None:
        if not isinstance(data_dir, str | os.PathLike | None):
            raise TypeError(f"data_dir must be a path or None, got {data_dir!r}.")
        self.data_dir = data_dir
        self._parts: Mapping[str, Part] | None = None

    @abstractmethod
    def load(self) -> Mapping[str, Part]:
        """The data of every split.

        Raises:
            FileNotFoundError, ValueError: as `rlgates.tasks.data.read`.
            ValueError: the set is not of the published size.
        """

    def part(self, split: str) -> Part:
        """The data of a split; all are loaded the first time."""
        global _last
        check_choice("split", split, SPLITS)
        if self._parts is None:
            settings = (getattr(self, name) for name in self.settings)
            key = type(self), *settings, *data_folders(self.data_dir)
            if _last[0] != key:
                _last = None, None  # two sets may be more than there is memory for
                _last = key, self.load()
            self._parts = _last[1]
        return self._parts[split]

    def prepare(self) -> None:
        self.part("train")


class Rows(Stored[Part]):
    """Sequences that stand alone: "train" comes shuffled, "valid" and "test" in their order."""

    @abstractmethod
    def count(self, part: Part) -> int:
        """How many sequences there are."""

    @abstractmethod
    def batch(self, part: Part, rows: Tensor) -> Batch:
        """The sequences of these numbers, (B,) int64."""

    def batches(self, split: str, batch_size: int, generator: torch.Generator) -> Iterator[Batch]:
        part = self.part(split)
        count = self.count(part)
        shuffled = split == "train"
        order = torch.randperm(count, generator=generator) if shuffled else torch.arange(count)
        for rows in order.split(batch_size):
            yield self.batch(part, rows)


class Classes(Rows[tuple[Tensor, Tensor]]):
    """Sequences with one class each, said after the last step.

    A part is a pair of sequences (N, T, input_size), or tokens (N, T), and classes (N,), of
    small integers. `scale` times the integers are the inputs.
    """

    metric = "accuracy"
    higher_is_better = True
    scored = 1
    scale: float = 1.0

    def count(self, part: tuple[Tensor, Tensor]) -> int:
        return len(part[1])

    def batch(self, part: tuple[Tensor, Tensor], rows: Tensor) -> Batch:
        taken = part[0][rows].transpose(0, 1)
        inputs = taken.long() if self.tokens else taken.float() * self.scale
        return Batch(inputs.contiguous(), part[1][rows].long()[None])

    def loss(self, predictions: Tensor, batch: Batch) -> Tensor:
        return cross_entropy(predictions, batch)

    def metrics(self, predictions: Tensor, batch: Batch) -> dict[str, Tensor]:
        """The share of sequences that are put into the right class."""
        return {"accuracy": accuracy(predictions, batch)}


def check_counts(name: str, found: Mapping[str, int], expected: Mapping[str, int]) -> None:
    """A ValueError if a data set is not of the published size."""
    if found != expected:
        raise ValueError(f"{name} must have {dict(expected)}, but has {dict(found)}.")
