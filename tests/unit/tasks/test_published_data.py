"""The published data sets: counts, vocabularies and batches. Sets that are missing are skipped."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlgates.experiments.tasks import SPLITS, TASKS, Task, make_task
from rlgates.experiments.tasks.sets import speech, text
from rlgates.experiments.tasks.sets.icu import VITALS, read_physionet
from rlgates.experiments.tasks.sets.images import mnist
from rlgates.experiments.tasks.sets.pixels import bit_reversal

Loaded = Callable[..., Any]


@pytest.fixture
def loaded(published_data: Callable[[str], Path]) -> Loaded:
    """A task by name, the folder of its data set and its settings."""

    def load(name: str, folder: str, **settings: Any) -> Task:
        return make_task(name, data_dir=published_data(folder), **settings)

    return load


def count_targets(task: Task, split: str, batch_size: int) -> int:
    """The number of targets of an epoch."""
    return sum(batch.count() for batch in task.batches(split, batch_size, torch.Generator()))


@pytest.mark.parametrize(
    ("name", "folder", "counts"),
    [
        ("ptb_words", "ptb", (929_589, 73_760, 82_430)),
        ("ptb_chars", "ptb", (5_017_482, 393_042, 442_423)),
        ("wikitext2", "wikitext2", (2_088_628, 217_646, 245_569)),
        ("enwik8", "enwik8_text8", (3_600_000, 200_000, 200_000)),
        ("text8", "enwik8_text8", (2_700_000, 150_000, 150_000)),
    ],
)
def test_texts(
    loaded: Loaded,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    folder: str,
    counts: tuple[int, int, int],
) -> None:
    settings = {}
    if folder == "enwik8_text8":  # only the first bytes are here
        settings = {"prefix": True}
        monkeypatch.setitem(text.MAHONEY, name, replace(text.MAHONEY[name], digest="", hub=None))
    task = loaded(name, folder, **settings)
    splits = {split: task.split(split) for split in SPLITS}
    assert tuple(len(part.tokens) for part in splits.values()) == counts
    largest = max(int(part.tokens.max()) for part in splits.values())
    assert largest < task.input_size == task.output_size
    assert name == "enwik8" or largest == task.input_size - 1
    assert count_targets(task, "test", 10) == counts[2] - 1
    if name == "wikitext2":
        assert [len(part.articles) for part in splits.values()] == [600, 60, 60]
        batches = list(task.batches("valid", 1, torch.Generator()))
        starts = sum(
            int(batch.episode_starts.sum()) for batch in batches if batch.episode_starts is not None
        )
        assert starts == 61, "60 articles, and the empty line before the first"


def test_mnist(loaded: Loaded) -> None:
    task = loaded("pmnist", "mnist")
    assert [len(task.split(split)[1]) for split in SPLITS] == [50_000, 10_000, 10_000]
    images, labels = mnist(task.data_dir)["test"]
    assert np.bincount(labels).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert mnist(task.data_dir)["train"].images.mean() / 255 == pytest.approx(0.1307, abs=1e-4)
    batch = next(task.batches("test", 4, torch.Generator()))
    assert batch.targets.tolist() == [labels[:4].tolist()]
    expected = images[:4].reshape(4, 784)[:, bit_reversal(784)].T / 255
    np.testing.assert_allclose(batch.inputs[..., 0], expected, rtol=1e-6)


@pytest.mark.slow
def test_cifar10(loaded: Loaded) -> None:
    task = loaded("scifar", "cifar10")
    assert [len(task.split(split)[1]) for split in SPLITS] == [45_000, 5_000, 10_000]
    assert np.bincount(task.split("test")[1]).tolist() == [1_000] * 10
    assert next(task.batches("train", 4, torch.Generator())).inputs.shape == (1024, 4, 3)


@pytest.mark.parametrize(
    ("name", "pieces", "frames"),
    [
        ("jsb", (229, 76, 77), (13_807, 4_602, 4_725)),
        ("nottingham", (694, 173, 170), (176_561, 45_513, 44_463)),
        ("musedata", (524, 135, 124), (245_202, 82_755, 64_339)),
        ("piano", (87, 12, 25), (75_911, 8_540, 19_036)),
    ],
)
def test_music(loaded: Loaded, name: str, pieces: tuple[int, ...], frames: tuple[int, ...]) -> None:
    task = loaded(name, "music")
    assert tuple(task.num_sequences(task.split(split)) for split in SPLITS) == pieces
    whole = loaded(name, "music", whole=True)
    for split, played, total in zip(SPLITS, pieces, frames, strict=True):
        assert len(whole.split(split).frames) == total
        assert count_targets(whole, split, 16) == total - played, "all but the first of each piece"
    batch = next(task.batches("train", 16, torch.Generator()))
    assert set(batch.inputs.unique().tolist()) == {0, 1}
    assert torch.equal(batch.inputs[1:][batch.mask[:-1]], batch.targets[:-1][batch.mask[:-1]])


@pytest.mark.slow
def test_imdb(loaded: Loaded) -> None:
    task = loaded("imdb", "imdb")
    assert [len(task.split(split)[1]) for split in SPLITS] == [20_000, 5_000, 25_000]
    assert sum(int(task.split(split)[1].sum()) for split in SPLITS) == 25_000
    assert 0.45 < task.split("valid")[1].float().mean() < 0.55
    tokens = task.split("train")[0]
    assert tokens.max() == 9_999
    assert (tokens == 1).float().mean() < 0.05, "few words are unknown"
    assert (tokens[:, -1] > 0).all(), "padded in front"


def test_speech_commands(
    loaded: Loaded, published_data: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = published_data("speech_commands") / "speech_commands" / speech.ARCHIVE.archives[0]
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()  # that of 500 clips only
    monkeypatch.setattr(speech, "ARCHIVE", replace(speech.ARCHIVE, archive_digest=digest))
    task = loaded("speech_commands", "speech_commands", subset=True)
    assert [len(task.split(split)[1]) for split in SPLITS] == [350, 50, 100]
    assert np.bincount(task.split("test")[1]).tolist() == [10] * len(speech.WORDS)
    inputs = next(task.batches("train", 3, torch.Generator())).inputs
    assert inputs.shape == (16_000, 3, 1)
    assert 0.01 < inputs.abs().max() <= 1


@pytest.mark.slow
def test_icu(loaded: Loaded) -> None:
    task = loaded("icu", "physionet2012")
    assert [len(task.split(split)[1]) for split in SPLITS] == [6310, 788, 788]
    share = sum(int(task.split(split)[1].sum()) for split in SPLITS) / 7886
    entropy = -share * np.log(share) - (1 - share) * np.log(1 - share)
    assert task.baseline == pytest.approx(entropy)
    measured = (task.split("train")[0][..., 12:24] == 0).flatten(0, 1)
    assert measured.any(dim=0).all()
    assert read_physionet(task.data_dir).values.shape == (7886, 48, len(VITALS))


@pytest.mark.parametrize("name", ["jsb", "ptb_words"])
def test_the_same_generator_gives_the_same_batches(loaded: Loaded, name: str) -> None:
    task = loaded(name, "ptb" if name == "ptb_words" else "music")

    def batches(seed: int) -> list[torch.Tensor]:
        made = task.batches("train", 50, torch.Generator().manual_seed(seed))
        return [batch.inputs for _, batch in zip(range(5), made, strict=False)]

    one, same, other = (batches(seed) for seed in (0, 0, 1))
    assert all(map(torch.equal, one, same))
    assert any(a.shape != b.shape or not torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_the_table_has_all_of_them() -> None:
    assert {"smnist", "scifar", "digits", "wikitext103", "imdb", "icu"} <= set(TASKS)
