"""The data sets themselves, where they lie: counts, vocabularies, and batches of them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlgates.tasks import SPLITS, TASKS, Task, make_task
from rlgates.tasks.data import DATA_VARIABLE
from rlgates.tasks.icu import VITALS, physionet
from rlgates.tasks.images import mnist
from rlgates.tasks.pixels import bit_reversal
from rlgates.tasks.speech import WORDS

ROOT = Path(__file__).parents[1]
PLACES = [Path(os.environ[DATA_VARIABLE])] if os.environ.get(DATA_VARIABLE) else []
PLACES += [ROOT.parent / "shared" / "data", ROOT.parents[1] / "shared" / "data"]
FOLDER = next((place for place in PLACES if place.is_dir()), None)


def loaded(name: str, folder: str, **settings: Any) -> Task:
    """A task whose set lies there, or the test is skipped."""
    if FOLDER is None or not (FOLDER / folder).is_dir():
        pytest.skip(f"no {folder} in the folder of data sets (RLGATES_DATA)")
    return make_task(name, data_dir=FOLDER, **settings)


def epoch(task: Task, split: str, rows: int) -> int:
    """The number of targets of an epoch."""
    return sum(batch.count() for batch in task.batches(split, rows, torch.Generator()))


@pytest.mark.parametrize(
    ("name", "folder", "settings", "counts"),
    [
        ("ptb_words", "ptb", {}, (929_589, 73_760, 82_430)),
        ("ptb_chars", "ptb", {}, (5_017_482, 393_042, 442_423)),
        ("wikitext2", "wikitext2", {}, (2_088_628, 217_646, 245_569)),
        ("enwik8", "enwik8_text8", {"prefix": True}, (3_600_000, 200_000, 200_000)),
        ("text8", "enwik8_text8", {"prefix": True}, (2_700_000, 150_000, 150_000)),
    ],
)
def test_texts(
    name: str, folder: str, settings: dict[str, Any], counts: tuple[int, int, int]
) -> None:
    task: Any = loaded(name, folder, **settings)
    parts = {split: task.part(split) for split in SPLITS}
    assert tuple(len(part.tokens) for part in parts.values()) == counts
    largest = max(int(part.tokens.max()) for part in parts.values())
    assert largest < task.input_size == task.output_size
    assert name == "enwik8" or largest == task.input_size - 1
    assert epoch(task, "test", 10) == counts[2] - 1
    if name == "wikitext2":
        assert [len(part.articles) for part in parts.values()] == [600, 60, 60]
        batches = list(task.batches("valid", 1, torch.Generator()))
        starts = sum(int(batch.starts.sum()) for batch in batches if batch.starts is not None)
        assert starts == 61, "60 articles, and the empty line before the first"


def test_mnist() -> None:
    task: Any = loaded("pmnist", "mnist")
    assert [len(task.part(split)[1]) for split in SPLITS] == [50_000, 10_000, 10_000]
    images, labels = mnist(FOLDER)["test"]
    assert np.bincount(labels).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert mnist(FOLDER)["train"].images.mean() / 255 == pytest.approx(0.1307, abs=1e-4)
    batch = next(task.batches("test", 4, torch.Generator()))
    assert batch.targets.tolist() == [labels[:4].tolist()]
    expected = images[:4].reshape(4, 784)[:, bit_reversal(784)].T / 255
    np.testing.assert_allclose(batch.inputs[..., 0], expected, rtol=1e-6)


def test_cifar10(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("imagecodecs")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    task: Any = loaded("scifar", "cifar10")
    assert [len(task.part(split)[1]) for split in SPLITS] == [45_000, 5_000, 10_000]
    assert np.bincount(task.part("test")[1]).tolist() == [1_000] * 10
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
def test_music(name: str, pieces: tuple[int, ...], frames: tuple[int, ...]) -> None:
    task: Any = loaded(name, "music")
    assert tuple(task.count(task.part(split)) for split in SPLITS) == pieces
    whole: Any = loaded(name, "music", whole=True)
    for split, played, total in zip(SPLITS, pieces, frames, strict=True):
        assert len(whole.part(split).frames) == total
        assert epoch(whole, split, 16) == total - played, "all but the first of each piece"
    batch = next(task.batches("train", 16, torch.Generator()))
    assert set(batch.inputs.unique().tolist()) == {0, 1}
    assert torch.equal(batch.inputs[1:][batch.mask[:-1]], batch.targets[:-1][batch.mask[:-1]])


@pytest.mark.slow
def test_imdb() -> None:
    task: Any = loaded("imdb", "imdb")
    assert [len(task.part(split)[1]) for split in SPLITS] == [20_000, 5_000, 25_000]
    assert sum(int(task.part(split)[1].sum()) for split in SPLITS) == 25_000
    assert 0.45 < task.part("valid")[1].float().mean() < 0.55
    tokens = task.part("train")[0]
    assert tokens.max() == 9_999
    assert (tokens == 1).float().mean() < 0.05, "few words are unknown"
    assert (tokens[:, -1] > 0).all(), "padded in front"


def test_speech_commands() -> None:
    task: Any = loaded("speech_commands", "speech_commands", subset=True)
    assert [len(task.part(split)[1]) for split in SPLITS] == [350, 50, 100]
    assert np.bincount(task.part("test")[1]).tolist() == [10] * len(WORDS)
    inputs = next(task.batches("train", 3, torch.Generator())).inputs
    assert inputs.shape == (16_000, 3, 1)
    assert 0.01 < inputs.abs().max() <= 1


def test_icu() -> None:
    task: Any = loaded("icu", "physionet2012")
    assert [len(task.part(split)[1]) for split in SPLITS] == [6310, 788, 788]
    share = sum(int(task.part(split)[1].sum()) for split in SPLITS) / 7886
    entropy = -share * np.log(share) - (1 - share) * np.log(1 - share)
    assert task.baseline == pytest.approx(entropy)
    measured = (task.part("train")[0][..., 12:24] == 0).flatten(0, 1)
    assert measured.any(dim=0).all()
    assert physionet(FOLDER).values.shape == (7886, 48, len(VITALS))


@pytest.mark.parametrize("name", ["jsb", "ptb_words"])
def test_the_same_generator_gives_the_same_batches(name: str) -> None:
    task = loaded(name, "ptb" if name == "ptb_words" else "music")

    def batches(seed: int) -> list[torch.Tensor]:
        made = task.batches("train", 50, torch.Generator().manual_seed(seed))
        return [batch.inputs for _, batch in zip(range(5), made, strict=False)]

    one, same, other = (batches(seed) for seed in (0, 0, 1))
    assert all(map(torch.equal, one, same))
    assert any(a.shape != b.shape or not torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_the_table_has_all_of_them() -> None:
    assert {"smnist", "scifar", "digits", "wikitext103", "imdb", "icu"} <= set(TASKS)
