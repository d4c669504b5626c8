"""Tasks on data sets: loaded on first use, kept compact, and indexed into batches."""

from __future__ import annotations

import hashlib
import os
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlgates.errors import MAX_LENGTH, check_choice, check_size
from rlgates.experiments.tasks.data.files import DataDir, data_folders
from rlgates.experiments.tasks.task import SPLITS, Batch, PublishedResult, Task, accuracy

SplitData = TypeVar("SplitData")
GATO, GU, OHNO = "GATO 2020", "Gu et al. 2020", "Ohno et al. 2022"


def published_results(source: str, split: str, **values: float) -> tuple[PublishedResult, ...]:
    """Results from one table of a paper, by core."""
    return tuple(PublishedResult(core, value, split, source) for core, value in values.items())


rru_results = partial(published_results, "Zakovskis et al. 2023, table 1", "test")


def fixed_permutation(count: int, name: str) -> NDArray[np.int64]:
    """A permutation, (count,), that never changes: numbers sorted by their SHA-256.

    Args:
        name: is hashed, too, so that different names give different permutations.
    """
    digests = [hashlib.sha256(f"{name} {n}".encode()).digest() for n in range(count)]
    return np.array(sorted(range(count), key=digests.__getitem__), dtype=np.int64)


_last_loaded: tuple[Any, Any] = None, None  # the settings of a task, and its data


class DatasetTask(Task, Generic[SplitData]):
    """A task on a data set, which is loaded when the first batch is requested.

    The data set that was loaded last is kept for other tasks with the same settings, so that
    consecutive runs load it once.

    Args:
        data_dir: the folder with one folder for each data set; None for that of the environment
            variable RLGATES_DATA. What it lacks is taken from the cache, or downloaded.
    """

    settings: ClassVar[tuple[str, ...]] = ("data_dir",)

    def __init__(self, data_dir: DataDir = None) -> None:
        if not isinstance(data_dir, str | os.PathLike | None):
            raise TypeError(f"data_dir must be a path or None, got {data_dir!r}.")
        self.data_dir = data_dir
        self._splits: Mapping[str, SplitData] | None = None

    @abstractmethod
    def load(self) -> Mapping[str, SplitData]:
        """The data of every split.

        Raises:
            FileNotFoundError, ValueError: as `data.files.read_file`.
            ValueError: the data set has not the published size.
        """

    def split(self, name: str) -> SplitData:
        """The data of a split. The first call loads all splits."""
        global _last_loaded
        check_choice("split", name, SPLITS)
        if self._splits is None:
            settings = (getattr(self, setting) for setting in self.settings)
            key = type(self), *settings, *data_folders(self.data_dir)
            if _last_loaded[0] != key:
                _last_loaded = None, None  # two data sets may not fit into memory
                _last_loaded = key, self.load()
            self._splits = _last_loaded[1]
        return self._splits[name]

    def prepare(self) -> None:
        self.split("train")


class SequenceDataset(DatasetTask[SplitData]):
    """Independent sequences: "train" is shuffled, "valid" and "test" keep their order."""

    @abstractmethod
    def num_sequences(self, data: SplitData) -> int:
        """The number of sequences of a split."""

    @abstractmethod
    def make_batch(self, data: SplitData, indices: Tensor) -> Batch:
        """The sequences with these indices, (B,) int64."""

    def batches(self, split: str, batch_size: int, generator: torch.Generator) -> Iterator[Batch]:
        check_size("batch_size", batch_size, maximum=MAX_LENGTH)
        data = self.split(split)
        count = self.num_sequences(data)
        shuffle = split == "train"
        order = torch.randperm(count, generator=generator) if shuffle else torch.arange(count)
        for indices in order.split(batch_size):
            yield self.make_batch(data, indices)


class SequenceClassification(SequenceDataset[tuple[Tensor, Tensor]]):
    """Sequences with one class each, which is predicted after the last step.

    A split is a pair of sequences (N, T, input_size), or tokens (N, T), and classes (N,), both
    small integers. The inputs are the integers times `scale`.
    """

    metric = "accuracy"
    higher_is_better = True
    scored = 1
    scale: float = 1.0

    def num_sequences(self, data: tuple[Tensor, Tensor]) -> int:
        return len(data[1])

    def make_batch(self, data: tuple[Tensor, Tensor], indices: Tensor) -> Batch:
        sequences = data[0][indices].transpose(0, 1)
        inputs = sequences.long() if self.tokens else sequences.float() * self.scale
        return Batch(inputs.contiguous(), data[1][indices].long()[None])

    def metrics(self, predictions: Tensor, batch: Batch) -> dict[str, Tensor]:
        """The share of sequences that are classified correctly."""
        return {"accuracy": accuracy(predictions, batch)}


def check_counts(name: str, counts: Mapping[str, int], expected: Mapping[str, int]) -> None:
    """Raise a ValueError if a data set has not the published size."""
    if counts != expected:
        raise ValueError(f"{name} must have {dict(expected)}, but has {dict(counts)}.")
