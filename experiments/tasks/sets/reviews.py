"""IMDB: is a film review positive or negative?"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from rlgates.errors import MAX_LENGTH, check_size
from rlgates.experiments.tasks.data.dataset import (
    SequenceClassification,
    check_counts,
    fixed_permutation,
    rru_results,
)
from rlgates.experiments.tasks.data.files import DataDir, File, archive_members, read_file

ARCHIVE = "https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz"
WORD = re.compile(r"[a-z0-9]+(?:'[a-z]+)*")


def _converter(split: str) -> Callable[[Path], bytes]:
    """The conversion of the official archive to JSON lines of a split."""
    pattern = re.compile(rf"aclImdb/{split}/(neg|pos)/(\d+)_(\d+)\.txt")

    def convert(archive: Path) -> bytes:
        lines = []
        for name, text in archive_members(archive):
            if match := pattern.fullmatch(name):
                label, number, rating = int(match[1] == "pos"), int(match[2]), int(match[3])
                row = {"id": number, "rating": rating, "label": label, "text": text.decode()}
                lines.append((label, number, json.dumps(row, ensure_ascii=False)))
        return "".join(f"{line}\n" for _, _, line in sorted(lines)).encode()

    return convert


REVIEWS = {
    split: File("imdb", f"{split}.jsonl", digest, (ARCHIVE,), convert=_converter(split))
    for split, digest in (
        ("train", "19aed63238df73e4e75e3cc74d0518a6ead1d5e2fc6b18a0781b0a2043389655"),
        ("test", "e177635953eb67110f77b35a20ee653de036a83ea20af1bce8135600e5fdab6e"),
    )
}


def tokenize(text: str) -> list[str]:
    """The words of a review in lower case: a to z, 0 to 9 and inner apostrophes."""
    return WORD.findall(text.lower().replace("<br />", " "))


def read_reviews(data_dir: DataDir = None) -> dict[str, tuple[list[str], Tensor]]:
    """Texts and classes (1 positive, 0 negative), (25000,), of "train" and "test".

    They are sorted by class, then by number (Maas et al. 2011).

    Raises:
        FileNotFoundError, ValueError: as `data.files.read_file`.
    """
    sets = {}
    for split, file in REVIEWS.items():
        rows = [json.loads(line) for line in read_file(file, data_dir).split(b"\n") if line]
        sets[split] = [row["text"] for row in rows], torch.tensor([row["label"] for row in rows])
    return sets


class IMDB(SequenceClassification):
    """IMDB's reviews (Maas et al. 2011) in words: positive or negative?

    The words are those of `tokenize`. Token 0 pads in front, and token 1 is every word that is
    not among the most frequent ones of the training reviews. Only the end of long reviews is kept.
    The last 5,000 training reviews, after a fixed shuffle (the file is sorted by class), are
    "valid".

    Args:
        words: number of tokens, including those two.
        length: steps of a sequence.
        data_dir: see `DatasetTask`.
    """

    settings = ("words", "length", "data_dir")
    tokens = True
    held_out = 5_000
    published = rru_results(rru=0.8720, gru=0.8704, lstm=0.8589, mogrifier=0.8623)

    def __init__(
        self,
        words: int = 10_000,
        length: int = 500,
        data_dir: DataDir = None,
    ) -> None:
        super().__init__(data_dir)
        self.words = check_size("words", words, minimum=3)
        self.length = check_size("length", length, maximum=MAX_LENGTH)
        if (self.words, self.length) != (10_000, 500):
            self.published = ()
        self.input_size, self.output_size = self.words, 2
        self.baseline = math.log(2)

    def load(self) -> dict[str, tuple[Tensor, Tensor]]:
        sets = read_reviews(self.data_dir)
        check_counts(
            "the reviews of IMDB",
            {split: len(texts) for split, (texts, _) in sets.items()},
            {"train": 25_000, "test": 25_000},
        )
        return self.encode(sets)

    def encode(self, sets: dict[str, tuple[list[str], Tensor]]) -> dict[str, tuple[Tensor, Tensor]]:
        """The splits as tokens, (N, length) int32, and classes, (N,)."""
        texts, labels = sets["train"]
        order = fixed_permutation(len(texts), "imdb")
        end = len(texts) - self.held_out
        indices = {"train": order[:end], "valid": order[end:]}
        training = [tokenize(texts[index]) for index in indices["train"]]
        counts = Counter(word for review in training for word in review)
        frequent = sorted(counts, key=lambda word: (-counts[word], word))[: self.words - 2]
        numbers = {word: number for number, word in enumerate(frequent, start=2)}
        validation = (tokenize(texts[index]) for index in indices["valid"])
        return {
            "train": (self._pad(training, numbers), labels[indices["train"]]),
            "valid": (self._pad(validation, numbers), labels[indices["valid"]]),
            "test": (self._pad(map(tokenize, sets["test"][0]), numbers), sets["test"][1]),
        }

    def _pad(self, reviews: Iterable[list[str]], numbers: dict[str, int]) -> Tensor:
        sequences = []
        for review in reviews:
            sequence = np.zeros(self.length, dtype=np.int32)
            last = [numbers.get(word, 1) for word in review[-self.length :]]
            sequence[self.length - len(last) :] = last
            sequences.append(sequence)
        return torch.from_numpy(np.stack(sequences))
