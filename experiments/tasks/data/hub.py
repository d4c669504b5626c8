"""Files rebuilt from data sets of the Hugging Face hub, for when their own addresses fail."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rlgates.experiments.tasks.data.fetch import FetchError


@dataclass(frozen=True)
class HubDataset:
    """A data set of the hub with the content of a file.

    Attributes:
        repository: "owner/name".
        splits: splits of the data set, in the order in which `convert` takes them.
        convert: makes the content of the file from the splits, which are `datasets.Dataset`s.
        configuration: name of the configuration; None if there is only one.
        revision: commit of the repository; None: the latest, if the digest of the file is known.
    """

    repository: str
    splits: tuple[str, ...]
    convert: Callable[..., bytes]
    configuration: str | None = None
    revision: str | None = None

    def content(self) -> bytes:
        """The content of the file. `datasets` shows the progress and caches its downloads.

        Raises:
            FetchError: `datasets` is not installed, the hub does not answer, or the data set has
                other columns than expected.
        """
        if importlib.util.find_spec("datasets") is None:
            raise FetchError(
                f"The Hugging Face hub has it, too ({self.repository}), but that needs `datasets`: "
                "pip install 'rlgates[hub]'."
            )
        try:
            datasets: Any = importlib.import_module("datasets")
            dataset = datasets.load_dataset(
                self.repository, self.configuration, revision=self.revision
            )
            return self.convert(*(dataset[split] for split in self.splits))
        except Exception as error:  # many libraries take part
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            raise FetchError(
                f"The Hugging Face hub did not deliver {self.repository} ({reason})."
            ) from error


def join_column(dataset: Any, column: str, blank: str = "") -> str:
    """The concatenated texts of a column; `blank` replaces empty ones."""
    texts = (text or blank for batch in dataset.iter(10_000) for text in batch[column])
    return "".join(texts)
