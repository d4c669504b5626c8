"""Language models: the next word or character, over streams of text cut into windows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from rlgates.errors import check_flag, check_probability, check_size
from rlgates.tasks.data import Folder
from rlgates.tasks.stored import GATO, GU, OHNO, RRU, Stored, quoted
from rlgates.tasks.task import Batch, cross_entropy
from rlgates.tasks.text import PTB, WIKITEXT, Text, mahoney, ptb_characters, words


class Stream(Stored[Text]):
    """Say the next token, at every step, of a text (truncated back-propagation through time).

    A split of N tokens is cut into as many rows as a batch has; row r reads the tokens from
    r L on, L = ceil((N - 1) / B), window after window, and the state is carried from window to
    window. So every token but the first is said once, and by one row; what the last rows lack is
    masked. The state is the initial one at the first step of an epoch.

    Args:
        window: steps of a batch; the last of an epoch may have fewer.
        data_dir: as for all tasks on data.
    """

    settings: ClassVar[tuple[str, ...]] = ("window", "data_dir")
    tokens = True
    carries_state = True
    vocabulary: ClassVar[int]

    def __init__(self, window: int, data_dir: Folder = None) -> None:
        super().__init__(data_dir)
        self.window = check_size("window", window)
        self.input_size = self.output_size = self.vocabulary

    def batches(self, split: str, batch_size: int, generator: torch.Generator) -> Iterator[Batch]:
        text = self.part(split)
        said = len(text.tokens) - 1
        steps = -(-said // batch_size)
        rows = torch.arange(batch_size) * steps
        first = 0
        while first < steps:
            window = self.window_length(split, generator)
            places = torch.arange(first, min(first + window, steps))[:, None] + rows
            starts = self.starts(text, places, split, generator)
            if first == 0:
                starts = torch.zeros_like(places, dtype=torch.bool) if starts is None else starts
                starts[0] = True
            counted = places < said
            places = places.clamp(max=said - 1)
            yield Batch(
                text.tokens[places].long(),
                text.tokens[places + 1].long(),
                None if counted.all() else counted,
                starts,
            )
            first += window

    def window_length(self, split: str, generator: torch.Generator) -> int:
        """Steps of the next batch."""
        return self.window

    def starts(
        self, text: Text, places: Tensor, split: str, generator: torch.Generator
    ) -> Tensor | None:
        """Where the state is the initial one, (T, B) bool, beside the first step of an epoch."""
        return None

    def loss(self, predictions: Tensor, batch: Batch) -> Tensor:
        return cross_entropy(predictions, batch)


class WordStream(Stream):
    """A text in words, whose perplexity people look at."""

    metric = "perplexity"

    def figures(self, means: Mapping[str, float]) -> dict[str, float]:
        """The means, and the perplexity, exp of the loss."""
        return {**means, "perplexity": _exp(means["loss"])}


class CharacterStream(Stream):
    """A text in characters, whose bits per character people look at.

    Args:
        window, data_dir: as for all streams.
        restart: the chance that a training window starts from the initial state (in all rows)
            and not from the state carried over.
    """

    settings: ClassVar[tuple[str, ...]] = ("window", "restart", "data_dir")
    metric = "bits_per_character"

    def __init__(self, window: int, restart: float = 0.1, data_dir: Folder = None) -> None:
        super().__init__(window, data_dir)
        self.restart = check_probability("restart", restart)

    def starts(
        self, text: Text, places: Tensor, split: str, generator: torch.Generator
    ) -> Tensor | None:
        if split != "train" or torch.rand((), generator=generator) >= self.restart:
            return None
        starts = torch.zeros_like(places, dtype=torch.bool)
        starts[0] = True
        return starts

    def figures(self, means: Mapping[str, float]) -> dict[str, float]:
        """The means, and the loss in bits."""
        return {**means, "bits_per_character": means["loss"] / math.log(2)}


class PTBWords(WordStream):
    """The Penn Treebank in words: 929,589 of 10,000 kinds (Mikolov et al. 2010).

    Args:
        window: mean steps of a training window, and steps of all others; Zakovskis et al. take 64.
        random_windows: whether the steps of a training window are drawn, as Merity et al. (2018)
            and GATO do: from N(window, 5²), in one of 20 from N(window / 2, 5²), at least 5.
        by_frequency: whether the perplexity is also told for test words of each class of
            frequency in the training text, as Ohno et al. do: above 10,000, above 1,000, above
            100, and the rest.
        data_dir: as for all tasks on data.
    """

    settings = ("window", "random_windows", "by_frequency", "data_dir")
    vocabulary = 10_000
    classes: ClassVar[dict[str, tuple[float, float]]] = {
        "above_10000": (10_000, math.inf),
        "above_1000": (1_000, 10_000),
        "above_100": (100, 1_000),
        "rare": (-1, 100),
    }
    published = (
        *quoted(f"{GATO}, table 2", "test", lstm=122.86, gru=115.78, gato=112.85),
        *quoted(f"{OHNO}, table 3", "test", lstm=60.22, r_lstm=60.50, f_lstm=60.09),
        *quoted(f"{RRU}, table 1", "test", rru=102.56, gru=122.21, lstm=140.35, mogrifier=126.88),
    )

    def __init__(
        self,
        window: int = 70,
        random_windows: bool = True,
        by_frequency: bool = False,
        data_dir: Folder = None,
    ) -> None:
        super().__init__(window, data_dir)
        self.random_windows = check_flag("random_windows", random_windows)
        self.by_frequency = check_flag("by_frequency", by_frequency)

    def load(self) -> dict[str, Text]:
        return words(PTB, self.data_dir)

    def window_length(self, split: str, generator: torch.Generator) -> int:
        if split != "train" or not self.random_windows:
            return self.window
        halved = torch.rand((), generator=generator) >= 0.95
        mean = self.window / 2 if halved else self.window
        return max(5, int(mean + 5 * torch.randn((), generator=generator)))

    def metrics(self, predictions: Tensor, batch: Batch) -> dict[str, Tensor]:
        """If asked for, each class's part of the loss, and its share of the words."""
        if not self.by_frequency:
            return {}
        counted = torch.ones_like(batch.targets, dtype=torch.bool)
        counted = counted if batch.mask is None else batch.mask
        targets = batch.targets[counted]
        losses = nn.functional.cross_entropy(predictions[counted], targets, reduction="none")
        frequencies = self.part("train").frequencies
        assert frequencies is not None
        often = frequencies.to(targets.device)[targets]
        found: dict[str, Tensor] = {}
        for name, (low, high) in self.classes.items():
            inside = ((often > low) & (often <= high)).float()
            found |= {f"loss_{name}": (losses * inside).mean(), f"share_{name}": inside.mean()}
        return found

    def figures(self, means: Mapping[str, float]) -> dict[str, float]:
        """The means and the perplexity, and those of the classes if asked for."""
        found = super().figures(means)
        for name in self.classes if self.by_frequency else ():
            if means[f"share_{name}"] > 0:
                loss = means[f"loss_{name}"] / means[f"share_{name}"]
                found[f"perplexity_{name}"] = _exp(loss)
        return found


class WikiText(WordStream):
    """WikiText (Merity et al. 2017) in words; the state is the initial one where articles start."""

    size: ClassVar[int]

    def __init__(self, window: int = 128, data_dir: Folder = None) -> None:
        super().__init__(window, data_dir)

    def load(self) -> dict[str, Text]:
        return words(WIKITEXT[self.size], self.data_dir)

    def starts(
        self, text: Text, places: Tensor, split: str, generator: torch.Generator
    ) -> Tensor | None:
        assert text.articles is not None
        starts = torch.isin(places, text.articles)
        return starts if starts.any() else None


class WikiText2(WikiText):
    """WikiText-2: 2,088,628 words of 33,278 kinds, 600 articles to learn from."""

    size, vocabulary = 2, 33_278


class WikiText103(WikiText):
    """WikiText-103: 103,227,021 words of 267,735 kinds, 28,475 articles to learn from."""

    size, vocabulary = 103, 267_735
    published = (
        *quoted(f"{GU}, figure 6", "test", lstm=35.8, c_lstm=36.4, om_lstm=34.7, u_lstm=34.9),
        *quoted(f"{GU}, figure 6", "test", ur_lstm=34.6),
        *quoted(f"{GU}, figure 6", "valid", lstm=34.3, c_lstm=35.0, om_lstm=34.0, u_lstm=33.8),
        *quoted(f"{GU}, figure 6", "valid", ur_lstm=33.6),
    )


class PTBCharacters(CharacterStream):
    """The Penn Treebank in characters: 5,017,482 of 50 kinds, the end of a line among them."""

    vocabulary = 50
    published = quoted(f"{RRU}, table 1", "test", rru=1.27, gru=1.28, lstm=1.34, mogrifier=1.29)

    def __init__(self, window: int = 512, restart: float = 0.1, data_dir: Folder = None) -> None:
        super().__init__(window, restart, data_dir)

    def load(self) -> dict[str, Text]:
        return ptb_characters(self.data_dir)


class Wikipedia(CharacterStream):
    """A hundred million bytes of Wikipedia, split 90/5/5 (Mahoney 2011).

    Args:
        window, restart, data_dir: as for all texts in characters.
        prefix: take but the beginning (`rlgates.tasks.text.mahoney`), split in the same way, for
            trials; its figures cannot be compared with those of papers.
    """

    settings = ("window", "restart", "prefix", "data_dir")
    name: ClassVar[str]

    def __init__(
        self,
        window: int = 256,
        restart: float = 0.1,
        prefix: bool = False,
        data_dir: Folder = None,
    ) -> None:
        super().__init__(window, restart, data_dir)
        self.prefix = check_flag("prefix", prefix)

    def load(self) -> dict[str, Text]:
        return mahoney(self.name, self.prefix, self.data_dir)


class Enwik8(Wikipedia):
    """enwik8: bytes, of which the whole set has 205 kinds; inputs and predictions are all 256."""

    name, vocabulary = "enwik8", 256
    published = quoted(f"{RRU}, table 1", "test", rru=1.37, gru=1.53, lstm=1.49, mogrifier=1.36)


class Text8(Wikipedia):
    """text8: the blank (0) and 26 letters."""

    name, vocabulary = "text8", 27
    published = quoted(f"{RRU}, table 1", "test", rru=1.35, gru=1.55, lstm=1.44, mogrifier=1.37)


def _exp(loss: float) -> float:
    return math.exp(loss) if loss < 700 else math.inf
