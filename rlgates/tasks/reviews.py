"""IMDB: whether a film review is for the film or against it."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from rlgates.errors import check_size
from rlgates.tasks.data import File, Folder, members, read
from rlgates.tasks.stored import RRU, Classes, check_counts, fixed_order, quoted

ARCHIVE = "https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz"
WORD = re.compile(r"[a-z0-9]+(?:'[a-z]+)*")


def _converter(split: str) -> dict[str, object]:
    """What makes a split's lines out of the official archive, as an argument of `File`."""
    pattern = re.compile(rf"aclImdb/{split}/(neg|pos)/(\d+)_(\d+)\.txt")

    def convert(archive: Path) -> bytes:
        lines = []
        for name, text in members(archive):
            if found := pattern.fullmatch(name):
                label, number, rating = int(found[1] == "pos"), int(found[2]), int(found[3])
                row = {"id": number, "rating": rating, "label": label, "text": text.decode()}
                lines.append((label, number, json.dumps(row, ensure_ascii=False)))
        return "".join(f"{line}\n" for _, _, line in sorted(lines)).encode()

    return {"convert": convert}


REVIEWS = {
    split: File("imdb", f"{split}.jsonl", digest, (ARCHIVE,), **_converter(split))  # type: ignore[arg-type]
    for split, digest in (
        ("train", "19aed63238df73e4e75e3cc74d0518a6ead1d5e2fc6b18a0781b0a2043389655"),
        ("test", "e177635953eb67110f77b35a20ee653de036a83ea20af1bce8135600e5fdab6e"),
    )
}


def tokenize(text: str) -> list[str]:
    """The words of a review in small letters: runs of a to z, 0 to 9 and inner apostrophes."""
    return WORD.findall(text.lower().replace("<br />", " "))


def reviews(data_dir: Folder = None) -> dict[str, tuple[list[str], Tensor]]:
    """Texts and classes (1 for, 0 against), (25000,) uint8, of both splits (Maas et al. 2011).

    They are sorted by class, then by number.

    Raises:
        FileNotFoundError, ValueError: as `rlgates.tasks.data.read`.
    """
    found = {}
    for split, file in REVIEWS.items():
        rows = [json.loads(line) for line in read(file, data_dir).split(b"\n") if line]
        found[split] = [row["text"] for row in rows], torch.tensor([row["label"] for row in rows])
    return found


class IMDB(Classes):
    """IMDB's reviews (Maas et al. 2011) in words: is the film liked?

    The words are those of `tokenize`. Token 0 pads in front, token 1 is every word that is not
    among the most frequent ones of the training reviews. Of long reviews the end is kept. The last
    5,000 training reviews, in a fixed shuffle (the file is sorted by class), are for validation.

    Args:
        words: number of tokens, with those two.
        length: steps of a sequence.
        data_dir: as for all tasks on data.
    """

    settings = ("words", "length", "data_dir")
    tokens = True
    held_out = 5_000
    published = quoted(
        f"{RRU}, table 1", "test", rru=0.8720, gru=0.8704, lstm=0.8589, mogrifier=0.8623
    )

    def __init__(
        self,
        words: int = 10_000,
        length: int = 500,
        data_dir: Folder = None,
    ) -> None:
        super().__init__(data_dir)
        self.words = check_size("words", words, minimum=3)
        self.length = check_size("length", length)
        self.input_size, self.output_size = self.words, 2
        self.baseline = math.log(2)

    def load(self) -> dict[str, tuple[Tensor, Tensor]]:
        sets = reviews(self.data_dir)
        check_counts(
            "the reviews of IMDB",
            {split: len(texts) for split, (texts, _) in sets.items()},
            {"train": 25_000, "test": 25_000},
        )
        return self.encoded(sets)

    def encoded(
        self, sets: dict[str, tuple[list[str], Tensor]]
    ) -> dict[str, tuple[Tensor, Tensor]]:
        """The splits as tokens, (N, length) int32, and classes, (N,)."""
        texts, labels = sets["train"]
        order = fixed_order(len(texts), "imdb")
        kept = len(texts) - self.held_out
        rows = {"train": order[:kept], "valid": order[kept:]}
        training = [tokenize(texts[row]) for row in rows["train"]]
        counts = Counter(word for review in training for word in review)
        frequent = sorted(counts, key=lambda word: (-counts[word], word))[: self.words - 2]
        numbers = {word: number for number, word in enumerate(frequent, start=2)}
        validation = (tokenize(texts[row]) for row in rows["valid"])
        return {
            "train": (self._padded(training, numbers), labels[rows["train"]]),
            "valid": (self._padded(validation, numbers), labels[rows["valid"]]),
            "test": (self._padded(map(tokenize, sets["test"][0]), numbers), sets["test"][1]),
        }

    def _padded(self, found: Iterable[list[str]], numbers: dict[str, int]) -> Tensor:
        rows = []
        for review in found:
            row = np.zeros(self.length, dtype=np.int32)
            last = [numbers.get(word, 1) for word in review[-self.length :]]
            row[self.length - len(last) :] = last
            rows.append(row)
        return torch.from_numpy(np.stack(rows))
