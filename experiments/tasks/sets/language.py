"""Language modelling: the next word or character of a text, read window by window."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from rlgates.errors import MAX_LENGTH, check_flag, check_probability, check_size
from rlgates.experiments.tasks.data.dataset import (
    GATO,
    GU,
    OHNO,
    DatasetTask,
    published_results,
    rru_results,
)
from rlgates.experiments.tasks.data.files import DataDir
from rlgates.experiments.tasks.sets.text import PTB, WIKITEXT, Text, mahoney, ptb_characters, words
from rlgates.experiments.tasks.task import Batch


class TextStream(DatasetTask[Text]):
    """Predict the next token at every step of a text (truncated back-propagation through time).

    A split of N tokens is cut into B sequences; sequence b reads the tokens from b L on,
    L = ceil((N - 1) / B), window by window, and the state is carried from window to window. So
    every token but the first is predicted exactly once; where the last sequences are too short,
    targets are masked. The state is the initial one at the first step of an epoch.

    Args:
        window: steps of a batch; the last of an epoch may have fewer.
        data_dir: see `DatasetTask`.
    """

    settings: ClassVar[tuple[str, ...]] = ("window", "data_dir")
    tokens = True
    carries_state = True
    vocabulary: ClassVar[int]

    def __init__(self, window: int, data_dir: DataDir = None) -> None:
        super().__init__(data_dir)
        self.window = check_size("window", window, maximum=MAX_LENGTH)
        self.input_size = self.output_size = self.vocabulary

    def batches(self, split: str, batch_size: int, generator: torch.Generator) -> Iterator[Batch]:
        check_size("batch_size", batch_size, maximum=MAX_LENGTH)
        text = self.split(split)
        targets = len(text.tokens) - 1
        steps = -(-targets // batch_size)
        offsets = torch.arange(batch_size) * steps
        first = 0
        while first < steps:
            window = self.window_length(split, generator)
            positions = torch.arange(first, min(first + window, steps))[:, None] + offsets
            starts = self.episode_starts(text, positions, split, generator)
            if first == 0:
                starts = torch.zeros_like(positions, dtype=torch.bool) if starts is None else starts
                starts[0] = True
            mask = positions < targets
            positions = positions.clamp(max=targets - 1)
            yield Batch(
                text.tokens[positions].long(),
                text.tokens[positions + 1].long(),
                None if mask.all() else mask,
                starts,
            )
            first += window

    def window_length(self, split: str, generator: torch.Generator) -> int:
        """The number of steps of the next batch."""
        return self.window

    def episode_starts(
        self, text: Text, positions: Tensor, split: str, generator: torch.Generator
    ) -> Tensor | None:
        """Where the state is the initial one, (T, B) bool, beside the first step of an epoch."""
        return None


class WordStream(TextStream):
    """A text in words; the metric is the perplexity."""

    metric = "perplexity"

    def figures(self, means: Mapping[str, float]) -> dict[str, float]:
        """The means, and the perplexity, exp of the loss."""
        return {**means, "perplexity": _exp(means["loss"])}


class CharacterStream(TextStream):
    """A text in characters; the metric is bits per character.

    Args:
        window, data_dir: see `TextStream`.
        restart: the probability that a training window starts from the initial state (in all
            sequences) instead of the carried state.
    """

    settings: ClassVar[tuple[str, ...]] = ("window", "restart", "data_dir")
    metric = "bits_per_character"

    def __init__(self, window: int, restart: float = 0.1, data_dir: DataDir = None) -> None:
        super().__init__(window, data_dir)
        self.restart = check_probability("restart", restart)

    def episode_starts(
        self, text: Text, positions: Tensor, split: str, generator: torch.Generator
    ) -> Tensor | None:
        if split != "train" or torch.rand((), generator=generator) >= self.restart:
            return None
        starts = torch.zeros_like(positions, dtype=torch.bool)
        starts[0] = True
        return starts

    def figures(self, means: Mapping[str, float]) -> dict[str, float]:
        """The means, and the loss in bits."""
        return {**means, "bits_per_character": means["loss"] / math.log(2)}


class PTBWords(WordStream):
    """The Penn Treebank in words: 929,589 tokens, vocabulary 10,000 (Mikolov et al. 2010).

    Args:
        window: mean length of a training window, and length of the others; Zakovskis et al. use 64.
        random_windows: sample the length of a training window as Merity et al. (2018) and GATO
            do: from N(window, 5²), with probability 1/20 from N(window / 2, 5²), at least 5.
        by_frequency: also report the perplexity of test words by their frequency in the training
            text, as Ohno et al. do: above 10,000, above 1,000, above 100, and the rest.
        data_dir: see `DatasetTask`.
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
        *published_results(f"{GATO}, table 2", "test", lstm=122.86, gru=115.78, gato=112.85),
        *published_results(f"{OHNO}, table 3", "test", lstm=60.22, r_lstm=60.50, f_lstm=60.09),
        *rru_results(rru=102.56, gru=122.21, lstm=140.35, mogrifier=126.88),
    )

    def __init__(
        self,
        window: int = 70,
        random_windows: bool = True,
        by_frequency: bool = False,
        data_dir: DataDir = None,
    ) -> None:
        super().__init__(window, data_dir)
        self.random_windows = check_flag("random_windows", random_windows)
        self.by_frequency = check_flag("by_frequency", by_frequency)
        self._frequencies: Tensor | None = None  # on the device of the predictions

    def load(self) -> dict[str, Text]:
        return words(PTB, self.data_dir)

    def window_length(self, split: str, generator: torch.Generator) -> int:
        if split != "train" or not self.random_windows:
            return self.window
        halved = torch.rand((), generator=generator) >= 0.95
        mean = self.window / 2 if halved else self.window
        return max(5, int(mean + 5 * torch.randn((), generator=generator)))

    def metrics(self, predictions: Tensor, batch: Batch) -> dict[str, Tensor]:
        """With `by_frequency`, the loss of each class and its share of the words."""
        if not self.by_frequency:
            return {}
        predictions, targets = predictions.flatten(0, 1), batch.targets.flatten()
        if batch.mask is not None:
            predictions, targets = predictions[batch.mask.flatten()], targets[batch.mask.flatten()]
        losses = nn.functional.cross_entropy(predictions, targets, reduction="none")
        if self._frequencies is None or self._frequencies.device != targets.device:
            frequencies = self.split("train").frequencies
            assert frequencies is not None
            self._frequencies = frequencies.to(targets.device)
        frequency = self._frequencies[targets]
        means: dict[str, Tensor] = {}
        for name, (low, high) in self.classes.items():
            inside = ((frequency > low) & (frequency <= high)).float()
            means |= {f"loss_{name}": (losses * inside).mean(), f"share_{name}": inside.mean()}
        return means

    def figures(self, means: Mapping[str, float]) -> dict[str, float]:
        """The means and the perplexity; with `by_frequency` also that of each class."""
        figures = super().figures(means)
        for name in self.classes if self.by_frequency else ():
            if means[f"share_{name}"] > 0:
                loss = means[f"loss_{name}"] / means[f"share_{name}"]
                figures[f"perplexity_{name}"] = _exp(loss)
        return figures


class WikiText(WordStream):
    """WikiText (Merity et al. 2017) in words; each article starts from the initial state."""

    starts_inside = True
    size: ClassVar[int]

    def __init__(self, window: int = 128, data_dir: DataDir = None) -> None:
        super().__init__(window, data_dir)

    def load(self) -> dict[str, Text]:
        return words(WIKITEXT[self.size], self.data_dir)

    def episode_starts(
        self, text: Text, positions: Tensor, split: str, generator: torch.Generator
    ) -> Tensor | None:
        assert text.articles is not None
        starts = torch.isin(positions, text.articles)
        return starts if starts.any() else None


class WikiText2(WikiText):
    """WikiText-2: 2,088,628 training tokens, vocabulary 33,278, 600 training articles."""

    size, vocabulary = 2, 33_278


class WikiText103(WikiText):
    """WikiText-103: 103,227,021 training tokens, vocabulary 267,735, 28,475 training articles."""

    size, vocabulary = 103, 267_735
    published = (
        *published_results(
            f"{GU}, figure 6", "test", lstm=35.8, c_lstm=36.4, om_lstm=34.7, u_lstm=34.9
        ),
        *published_results(f"{GU}, figure 6", "test", ur_lstm=34.6),
        *published_results(
            f"{GU}, figure 6", "valid", lstm=34.3, c_lstm=35.0, om_lstm=34.0, u_lstm=33.8
        ),
        *published_results(f"{GU}, figure 6", "valid", ur_lstm=33.6),
    )


class PTBCharacters(CharacterStream):
    """The Penn Treebank in characters: 5,017,482 of 50 kinds, including the line feed."""

    vocabulary = 50
    published = rru_results(rru=1.27, gru=1.28, lstm=1.34, mogrifier=1.29)

    def __init__(self, window: int = 512, restart: float = 0.1, data_dir: DataDir = None) -> None:
        super().__init__(window, restart, data_dir)

    def load(self) -> dict[str, Text]:
        return ptb_characters(self.data_dir)


class Wikipedia(CharacterStream):
    """A hundred million bytes of Wikipedia, split 90/5/5 (Mahoney 2011).

    Args:
        window, restart, data_dir: see `CharacterStream`.
        prefix: use only the first bytes (`sets.text.PREFIXES`), split in the same way, for quick
            trials; the results are not comparable to published ones.
    """

    settings = ("window", "restart", "prefix", "data_dir")
    name: ClassVar[str]

    def __init__(
        self,
        window: int = 256,
        restart: float = 0.1,
        prefix: bool = False,
        data_dir: DataDir = None,
    ) -> None:
        super().__init__(window, restart, data_dir)
        self.prefix = check_flag("prefix", prefix)
        if self.prefix:
            self.published = ()

    def load(self) -> dict[str, Text]:
        return mahoney(self.name, self.prefix, self.data_dir)


class Enwik8(Wikipedia):
    """enwik8: bytes; 205 of the 256 values occur."""

    name, vocabulary = "enwik8", 256
    published = rru_results(rru=1.37, gru=1.53, lstm=1.49, mogrifier=1.36)


class Text8(Wikipedia):
    """text8: the blank (0) and 26 letters."""

    name, vocabulary = "text8", 27
    published = rru_results(rru=1.35, gru=1.55, lstm=1.44, mogrifier=1.37)


def _exp(loss: float) -> float:
    return math.exp(loss) if loss < 700 else math.inf
