"""The tasks on data sets, on small made-up data: settings, pixels and language."""

from __future__ import annotations

import hashlib
import importlib
import math
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_data import tarred

from rlgates.tasks import SPLITS, TASKS, Generated, PTBWords, make_task
from rlgates.tasks.images import CIFAR_ATLASES, CIFAR_BATCHES, CIFAR_DIGESTS, Pictures, cifar10
from rlgates.tasks.language import CharacterStream, WikiText2
from rlgates.tasks.pixels import (
    PermutedMNIST,
    SequentialDigits,
    SequentialMNIST,
    bit_reversal,
    row_order,
)
from rlgates.tasks.stored import fixed_order
from rlgates.tasks.text import Text, Words, article_starts

STORED = [name for name, kind in TASKS.items() if not issubclass(kind, Generated)]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("name", STORED)
def test_a_task_is_known_before_its_data_are_read(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("RLGATES_DATA", raising=False)
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)  # which has the small digits
    folder = {} if name == "digits" else {"data_dir": tmp_path}
    task = make_task(name, **folder)
    assert task.input_size > 0
    assert task.output_size > 1
    assert not list(tmp_path.iterdir())
    for figure in task.published:
        assert figure.split in SPLITS
        importlib.import_module("rlgates").make_core(figure.core, 3, 4)
    with pytest.raises((FileNotFoundError, ModuleNotFoundError)):
        next(task.batches("test", 2, seeded()))
    with pytest.raises(ValueError, match=r"unknown split 'tests'\. Did you mean 'test'"):
        next(task.batches("tests", 2, seeded()))


@pytest.mark.parametrize(
    ("name", "settings", "error", "message"),
    [
        ("smnist", {"data_dir": 3}, TypeError, "data_dir must be a path or None, got 3"),
        ("pmnist", {"permutation": "row"}, ValueError, "Did you mean 'rows'"),
        ("ptb_words", {"window": 0}, ValueError, "window must be at least 1"),
        ("ptb_words", {"random_windows": 1}, TypeError, "must be True or False"),
        ("enwik8", {"restart": 1.0}, ValueError, "restart must be at least 0 and below 1"),
        ("text8", {"prefix": "yes"}, TypeError, "must be True or False"),
        ("jsb", {"steps": 0}, ValueError, "steps must be at least 1"),
        ("imdb", {"words": 2}, ValueError, "words must be at least 3"),
        ("icu", {"table": 3}, TypeError, "table must be a path or None"),
    ],
)
def test_bad_settings(name: str, settings: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make_task(name, **settings)


def test_the_orders_of_pixels() -> None:
    assert bit_reversal(8).tolist() == [0, 4, 2, 6, 1, 5, 3, 7]
    assert bit_reversal(6).tolist() == [0, 4, 2, 1, 5, 3]
    assert bit_reversal(1).tolist() == [0]
    by_text = [int(f"{n:010b}"[::-1], 2) for n in range(1024)]
    assert bit_reversal(784).tolist() == [n for n in by_text if n < 784]
    rows = row_order(3, 5).reshape(3, 5)
    assert sorted(rows[0].tolist()) == list(range(5))
    assert (rows == rows[0] + np.array([[0], [5], [10]])).all()
    assert fixed_order(5, "row").tolist() == row_order(1, 5).tolist()


def test_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(256, size=(10_007, 28, 28, 1), dtype=np.uint8)
    sets = {
        split: Pictures(images, np.arange(10_007, dtype=np.uint8) % 10) for split in SPLITS[::2]
    }
    monkeypatch.setattr("rlgates.tasks.pixels.mnist", lambda data_dir: sets)
    task = PermutedMNIST()
    assert [len(task.part(split)[1]) for split in SPLITS] == [7, 10_000, 10_007]
    inputs, targets, mask, starts = next(task.batches("valid", 3, seeded()))
    assert mask is starts is None
    assert targets.tolist() == [[7, 8, 9]]
    expected = images[7:10].reshape(3, 784)[:, bit_reversal(784)].T / 255
    np.testing.assert_allclose(inputs[..., 0], expected, rtol=1e-6)
    epoch = list(task.batches("train", 3, seeded()))
    assert [batch.count() for batch in epoch] == [3, 3, 1]
    assert sorted(torch.cat([batch.targets for batch in epoch], 1)[0].tolist()) == list(range(7))
    same, other = (next(task.batches("train", 5, seeded(seed))) for seed in (0, 1))
    assert torch.equal(same.inputs[:, :3], epoch[0].inputs)
    assert not torch.equal(same.inputs, other.inputs)


def test_digits_come_with_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    found = types.SimpleNamespace(images=np.ones((1797, 8, 8)) * 16, target=np.arange(1797) % 10)
    module: Any = types.ModuleType("sklearn.datasets")
    module.load_digits = lambda: found
    monkeypatch.setitem(sys.modules, "sklearn", types.ModuleType("sklearn"))
    monkeypatch.setitem(sys.modules, "sklearn.datasets", module)
    task = SequentialDigits()
    assert [len(task.part(split)[1]) for split in SPLITS] == [1257, 180, 360]
    assert (next(task.batches("train", 4, seeded())).inputs == 1).all()
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ModuleNotFoundError, match="pip install scikit-learn"):
        SequentialDigits().load()


def test_cifar_in_its_forms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    images = {s: rng.integers(256, size=(2500 * n, 32, 32, 3), dtype=np.uint8) for s, n in
              (("train", 5), ("test", 1))}  # fmt: skip
    labels = {s: (np.arange(len(x)) % 10).astype(np.uint8) for s, x in images.items()}
    digests = {
        s: tuple(hashlib.sha256(a.tobytes()).hexdigest() for a in (images[s], labels[s]))
        for s in images
    }
    monkeypatch.setattr("rlgates.tasks.images.CIFAR_DIGESTS", digests)
    names = {"train": CIFAR_ATLASES["train"][:5], "test": CIFAR_ATLASES["test"][:1]}
    monkeypatch.setattr("rlgates.tasks.images.CIFAR_ATLASES", names)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folders = [tmp_path / form / "cifar10" for form in ("bin", "archive", "jxl")]
    for folder in folders:
        folder.mkdir(parents=True)
    records = [
        np.concatenate([labels[s][:, None], images[s].transpose(0, 3, 1, 2).reshape(-1, 3072)], 1)
        for s in images
    ]
    batches = [part.tobytes() for part in (*np.split(records[0], 5), records[1])]
    contents = dict(zip(CIFAR_BATCHES, batches, strict=True))
    for name, batch in contents.items():
        (folders[0] / name).write_bytes(batch)
    archive = tarred({f"cifar-10-batches-bin/{name}": batch for name, batch in contents.items()})
    (folders[1] / "cifar-10-binary.tar.gz").write_bytes(archive)
    np.savez(folders[2] / "labels.npz", **labels)
    for split, files in names.items():
        tiles = images[split].reshape(-1, 50, 50, 32, 32, 3).transpose(0, 1, 3, 2, 4, 5)
        for name, atlas in zip(files, tiles.reshape(-1, 1600, 1600, 3), strict=True):
            (folders[2] / name).write_bytes(atlas.tobytes())
    monkeypatch.setitem(sys.modules, "imagecodecs", None)
    with pytest.raises(ModuleNotFoundError, match="pip install imagecodecs"):
        cifar10(tmp_path / "jxl")
    codecs: Any = types.ModuleType("imagecodecs")
    codecs.jpegxl_decode = lambda made: np.frombuffer(made, np.uint8).reshape(1600, 1600, 3)
    monkeypatch.setitem(sys.modules, "imagecodecs", codecs)
    for form in ("bin", "jxl", "archive"):
        cached = tmp_path / "cache/rlgates/cifar10/cifar10.npz"
        cached.unlink(missing_ok=True)
        found = cifar10(tmp_path / form)
        for split in images:
            assert np.array_equal(found[split].images, images[split]), form
            assert np.array_equal(found[split].labels, labels[split])
        assert cached.exists() == (form != "bin")
    monkeypatch.setattr("rlgates.tasks.images.CIFAR_DIGESTS", CIFAR_DIGESTS)
    with pytest.raises(ValueError, match="not the published ones"):
        cifar10(tmp_path / "bin")


class Letters(CharacterStream):
    vocabulary = 101

    def load(self) -> dict[str, Text]:
        return {split: Text(torch.arange(101, dtype=torch.uint8)) for split in SPLITS}


@pytest.mark.parametrize("rows", [1, 3, 7, 99, 200])
def test_streams_go_on_where_they_ended(rows: int) -> None:
    task = Letters(window=8, restart=0)
    batches = list(task.batches("valid", rows, seeded()))
    assert batches[0].starts is not None
    assert batches[0].starts[0].all()
    assert not batches[0].starts[1:].any()
    assert all(batch.starts is None for batch in batches[1:])
    inputs, targets = (torch.cat([batch[n] for batch in batches]) for n in (0, 1))  # type: ignore[misc]
    masks = [
        torch.ones_like(batch.targets, dtype=torch.bool) if batch.mask is None else batch.mask
        for batch in batches
    ]
    counted = torch.cat(masks)
    assert sorted(targets[counted].tolist()) == list(range(1, 101)), "each is said once"
    assert torch.equal(inputs[counted] + 1, targets[counted])
    follows = counted[1:] & counted[:-1]
    assert torch.equal(inputs[1:][follows], targets[:-1][follows])
    assert sum(batch.count() for batch in batches) == 100


def test_some_training_windows_start_anew() -> None:
    def started(split: str, seed: int) -> list[bool]:
        batches = task.batches(split, 1, seeded(seed))
        return [batch.starts is not None and bool(batch.starts[0].all()) for batch in batches]

    task = Letters(window=1, restart=0.1)
    counts = [sum(started("train", seed)) for seed in range(30)]
    assert 1 + 99 * 0.08 < sum(counts) / 30 < 1 + 99 * 0.12
    assert started("train", 3) == started("train", 3)
    assert started("test", 3) == [True] + 99 * [False]


def test_random_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    text = Text(torch.zeros(200_001, dtype=torch.int32))
    monkeypatch.setattr(PTBWords, "load", lambda self: dict.fromkeys(SPLITS, text))
    task = PTBWords()
    lengths = torch.tensor([len(b.inputs) for b in task.batches("train", 1, seeded())][:-1]).float()
    short = lengths[lengths < 53]
    assert 0.03 < len(short) / len(lengths) < 0.07
    assert abs(short.mean() - 35) < 2
    assert abs(lengths[lengths >= 53].mean() - 70) < 1
    assert 4 < lengths[lengths >= 53].std() < 6
    assert {len(batch.inputs) for batch in task.batches("test", 10, seeded())} == {70, 50}
    task = PTBWords(random_windows=False)
    assert {len(batch.inputs) for batch in task.batches("train", 10, seeded())} == {70, 50}


def test_words_and_articles() -> None:
    text = b" \n = One = \n \n b a a \n = = Part = = \n = no = \n\n = Two three = \n\n c \n"
    words = Words(text)
    assert sorted(words.numbers.values()) == list(range(len(words.numbers)))
    assert [words.numbers[word] for word in (b"<eos>", b"=")] == [0, 1], "the frequent ones first"
    assert words.frequencies.tolist() == sorted(words.frequencies.tolist(), reverse=True)
    assert words.training.tolist() == words.encode(text).tolist()
    with pytest.raises(ValueError, match="the word b'd' is not in the training text"):
        words.encode(b"a d\n")
    names = {number: word for word, number in words.numbers.items()}
    starts = article_starts(text).tolist()
    titles = [[names[n] for n in words.training[start : start + 3]] for start in starts]
    assert titles == [[b"=", b"One", b"="], [b"=", b"Two", b"three"]]


def test_articles_start_from_the_initial_state(monkeypatch: pytest.MonkeyPatch) -> None:
    text = Text(torch.arange(41, dtype=torch.int32), torch.tensor([1, 17, 25]))
    monkeypatch.setattr(WikiText2, "load", lambda self: dict.fromkeys(SPLITS, text))
    batches = list(WikiText2(window=5).batches("train", 2, seeded()))
    assert [batch.starts is None for batch in batches] == [False, False, True, False]
    found = [batch.inputs[batch.starts].tolist() for batch in batches if batch.starts is not None]
    assert found == [[0, 20, 1], [25], [17]]


def test_figures_of_language() -> None:
    assert make_task("ptb_words").figures({"loss": math.log(9)})["perplexity"] == pytest.approx(9)
    assert make_task("ptb_words").figures({"loss": 1e4})["perplexity"] == math.inf
    bits = make_task("text8").figures({"loss": math.log(8)})["bits_per_character"]
    assert bits == pytest.approx(3)


def test_perplexity_by_frequency(monkeypatch: pytest.MonkeyPatch) -> None:
    frequencies = torch.tensor([20_000, 10_000, 100, 5])
    text = Text(torch.tensor([0, 0, 1, 2, 3, 0], dtype=torch.int32), None, frequencies)
    monkeypatch.setattr(PTBWords, "load", lambda self: dict.fromkeys(SPLITS, text))
    task = PTBWords(by_frequency=True)
    batch = next(task.batches("test", 1, seeded()))
    predictions = torch.randn(5, 1, 4, generator=seeded())
    means = {"loss": float(task.loss(predictions, batch))}
    means |= {name: float(value) for name, value in task.metrics(predictions, batch).items()}
    figures = task.figures(means)
    losses = torch.nn.functional.cross_entropy(
        predictions[:, 0], batch.targets[:, 0], reduction="none"
    )
    for name, places in (("above_10000", [0, 4]), ("above_1000", [1]), ("rare", [2, 3])):
        expected = losses[places].mean().exp().item()
        assert figures[f"perplexity_{name}"] == pytest.approx(expected, rel=1e-5)
    assert "perplexity_above_100" not in figures


def test_tasks_of_the_same_settings_read_their_data_once(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = []
    load = SequentialDigits.load

    def counted(self: SequentialDigits) -> Any:
        loaded.append(self)
        return load(self)

    monkeypatch.setattr(SequentialDigits, "load", counted)
    first, second = SequentialDigits(), SequentialDigits()
    first.prepare()
    assert torch.equal(second.part("test")[0], first.part("test")[0])
    assert len(loaded) == 1


def test_other_settings_have_data_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = iter([{"train": 1}, {"train": 2}])
    monkeypatch.setattr(SequentialMNIST, "load", lambda self: next(made))
    own, other = SequentialMNIST(), SequentialMNIST(tmp_path)
    assert [task.part("train") for task in (own, other, own)] == [1, 2, 1]
    monkeypatch.setenv("RLGATES_DATA", str(tmp_path / "none"))
    with pytest.raises(FileNotFoundError, match="RLGATES_DATA must name a folder"):
        SequentialMNIST().part("train")
