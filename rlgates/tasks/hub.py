"""Files made anew from what the Hugging Face hub has of them, where their own places are silent."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rlgates.tasks.fetch import FetchError


@dataclass(frozen=True)
class Hub:
    """A data set of the hub that holds what a file says.

    Attributes:
        repository: of the hub, "owner/name".
        splits: of the set, in the order in which `convert` wants them.
        convert: makes the content of the file of the rows of each split (`datasets.Dataset`s).
        configuration: of the set; None if there is but one.
    """

    repository: str
    splits: tuple[str, ...]
    convert: Callable[..., bytes]
    configuration: str | None = None

    def content(self) -> bytes:
        """The content of the file; `datasets` shows the progress, and keeps what it fetched.

        Raises:
            FetchError: `datasets` is not installed, the hub cannot be reached, or its set has
                other columns than expected.
        """
        if importlib.util.find_spec("datasets") is None:
            raise FetchError(
                f"The Hugging Face hub has it, too ({self.repository}), but that needs `datasets`: "
                "pip install 'rlgates[hub]'."
            )
        try:
            datasets: Any = importlib.import_module("datasets")
            sets = datasets.load_dataset(self.repository, self.configuration)
            return self.convert(*(sets[split] for split in self.splits))
        except Exception as error:  # of many libraries
            words = f"{type(error).__name__}: {error}".splitlines()[0]
            raise FetchError(
                f"The Hugging Face hub did not give {self.repository} ({words})."
            ) from error


def joined(rows: Any, column: str, blank: str = "") -> str:
    """The texts of a column, one behind the other; `blank` stands for empty ones."""
    texts = (text or blank for batch in rows.iter(10_000) for text in batch[column])
    return "".join(texts)
