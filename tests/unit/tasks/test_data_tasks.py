"""The tasks on data sets, with small artificial data."""

from __future__ import annotations

import gzip
import hashlib
import importlib
import io
import json
import math
import sys
import types
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.archives import tar_gz_of, wav_of
from support.equivalence import seeded
from support.looking import NoLooking
from torch.nn.functional import avg_pool2d

from rlgates.experiments.configs.identity import identity
from rlgates.experiments.configs.task import TaskConfig
from rlgates.experiments.tasks import SPLITS, TASKS, Batch, GeneratedTask, PTBWords, make_task
from rlgates.experiments.tasks.data.dataset import fixed_permutation
from rlgates.experiments.tasks.sets import speech
from rlgates.experiments.tasks.sets.icu import (
    PHYSIONET,
    VITALS,
    LengthOfStay,
    make_inputs,
    read_stays_table,
)
from rlgates.experiments.tasks.sets.images import (
    CIFAR_BATCHES,
    CIFAR_DIGESTS,
    LabelledImages,
    cifar10,
)
from rlgates.experiments.tasks.sets.language import CharacterStream, WikiText2
from rlgates.experiments.tasks.sets.music import JSB, Pieces, parse_mat, read_pieces
from rlgates.experiments.tasks.sets.pixels import (
    PermutedMNIST,
    SequentialDigits,
    SequentialMNIST,
    bit_reversal,
    row_order,
)
from rlgates.experiments.tasks.sets.reviews import IMDB, REVIEWS, tokenize
from rlgates.experiments.tasks.sets.speech import ARCHIVE, SUBSET, random_splits
from rlgates.experiments.tasks.sets.text import Text, Vocabulary, article_starts

DATASET_TASKS = [name for name, kind in TASKS.items() if not issubclass(kind, GeneratedTask)]


@pytest.mark.parametrize("name", DATASET_TASKS)
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


def test_the_orders_of_pixels() -> None:
    assert bit_reversal(8).tolist() == [0, 4, 2, 6, 1, 5, 3, 7]
    assert bit_reversal(6).tolist() == [0, 4, 2, 1, 5, 3]
    assert bit_reversal(1).tolist() == [0]
    by_text = [int(f"{n:010b}"[::-1], 2) for n in range(1024)]
    assert bit_reversal(784).tolist() == [n for n in by_text if n < 784]
    rows = row_order(3, 5).reshape(3, 5)
    assert sorted(rows[0].tolist()) == list(range(5))
    assert (rows == rows[0] + np.array([[0], [5], [10]])).all()
    assert fixed_permutation(5, "row").tolist() == row_order(1, 5).tolist()


def test_images(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(256, size=(10_007, 28, 28, 1), dtype=np.uint8)
    sets = {
        split: LabelledImages(images, np.arange(10_007, dtype=np.uint8) % 10)
        for split in SPLITS[::2]
    }
    monkeypatch.setattr("rlgates.experiments.tasks.sets.pixels.mnist", lambda data_dir: sets)
    task = PermutedMNIST()
    assert [len(task.split(split)[1]) for split in SPLITS] == [7, 10_000, 10_007]
    inputs, targets, mask, episode_starts = next(task.batches("valid", 3, seeded()))
    assert mask is episode_starts is None
    assert targets.tolist() == [[7, 8, 9]]
    expected = images[7:10].reshape(3, 784)[:, bit_reversal(784)].T / 255
    np.testing.assert_allclose(inputs[..., 0], expected, rtol=1e-6)
    epoch = list(task.batches("train", 3, seeded()))
    assert [batch.count() for batch in epoch] == [3, 3, 1]
    assert sorted(torch.cat([batch.targets for batch in epoch], 1)[0].tolist()) == list(range(7))
    same, other = (next(task.batches("train", 5, seeded(seed))) for seed in (0, 1))
    assert torch.equal(same.inputs[:, :3], epoch[0].inputs)
    assert not torch.equal(same.inputs, other.inputs)


def test_pooled_images(monkeypatch: pytest.MonkeyPatch) -> None:
    images = np.random.default_rng(0).integers(256, size=(10_003, 28, 28, 1), dtype=np.uint8)
    sets = dict.fromkeys(SPLITS[::2], LabelledImages(images, np.zeros(10_003, np.uint8)))
    monkeypatch.setattr("rlgates.experiments.tasks.sets.pixels.mnist", lambda data_dir: sets)
    means = avg_pool2d(torch.from_numpy(images[3:6]).permute(0, 3, 1, 2).float(), 2).round()
    in_rows = (means / 255).reshape(3, 196).T
    orders: tuple[tuple[dict[str, Any], Any], ...] = (
        ({"permutation": "rows"}, row_order(14, 14)),
        ({}, bit_reversal(196)),
    )
    for settings, order in orders:
        task = PermutedMNIST(pool=2, **settings)
        assert task.published == ()
        assert task.steps == 196
        inputs = next(task.batches("valid", 3, seeded())).inputs
        torch.testing.assert_close(inputs[..., 0], in_rows[order])
    inputs = next(SequentialMNIST(pool=2).batches("valid", 3, seeded())).inputs
    torch.testing.assert_close(inputs[..., 0], in_rows)


def test_runs_of_a_version_without_pooling_are_those_of_whole_images() -> None:
    config = TaskConfig(task="smnist", epochs=1)
    assert "pool" not in identity(config)["task_settings"]
    assert identity(replace(config, task_settings={"pool": 2}))["task_settings"]["pool"] == 2


def test_runs_of_a_version_without_min_delta_take_every_improvement() -> None:
    config = TaskConfig(task="smnist", epochs=9, patience=1)
    assert "min_delta" not in identity(config)
    assert identity(replace(config, min_delta=0.5))["min_delta"] == 0.5


def test_digits_come_with_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    found = types.SimpleNamespace(images=np.ones((1797, 8, 8)) * 16, target=np.arange(1797) % 10)
    module: Any = types.ModuleType("sklearn.datasets")
    module.load_digits = lambda: found
    monkeypatch.setitem(sys.modules, "sklearn", types.ModuleType("sklearn"))
    monkeypatch.setitem(sys.modules, "sklearn.datasets", module)
    task = SequentialDigits()
    assert [len(task.split(split)[1]) for split in SPLITS] == [1257, 180, 360]
    assert (next(task.batches("train", 4, seeded())).inputs == 1).all()
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ModuleNotFoundError, match="pip install scikit-learn"):
        SequentialDigits().load()


def test_cifar_in_its_published_forms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    images = {
        split: rng.integers(256, size=(20 * n, 32, 32, 3), dtype=np.uint8)
        for split, n in (("train", 5), ("test", 1))
    }
    labels = {s: (np.arange(len(x)) % 10).astype(np.uint8) for s, x in images.items()}
    digests = {
        s: tuple(hashlib.sha256(a.tobytes()).hexdigest() for a in (images[s], labels[s]))
        for s in images
    }
    monkeypatch.setattr("rlgates.experiments.tasks.sets.images.CIFAR_DIGESTS", digests)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folders = [tmp_path / form / "cifar10" for form in ("bin", "archive")]
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
    archive = tar_gz_of({f"cifar-10-batches-bin/{name}": batch for name, batch in contents.items()})
    (folders[1] / "cifar-10-binary.tar.gz").write_bytes(archive)
    cached = tmp_path / "cache/rlgates/cifar10/cifar10.npz"
    for form in ("bin", "archive"):
        sets = cifar10(tmp_path / form)
        for split in images:
            assert np.array_equal(sets[split].images, images[split]), form
            assert np.array_equal(sets[split].labels, labels[split])
        assert cached.exists() == (form == "archive")
    cached.unlink()
    monkeypatch.setattr("rlgates.experiments.tasks.sets.images.CIFAR_DIGESTS", CIFAR_DIGESTS)
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
    assert batches[0].episode_starts is not None
    assert batches[0].episode_starts[0].all()
    assert not batches[0].episode_starts[1:].any()
    assert all(batch.episode_starts is None for batch in batches[1:])
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


def test_some_training_windows_start_from_the_initial_state() -> None:
    def started(split: str, seed: int) -> list[bool]:
        batches = task.batches(split, 1, seeded(seed))
        return [
            batch.episode_starts is not None and bool(batch.episode_starts[0].all())
            for batch in batches
        ]

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
    words = Vocabulary(text)
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
    assert [batch.episode_starts is None for batch in batches] == [False, False, True, False]
    found = [
        batch.inputs[batch.episode_starts].tolist()
        for batch in batches
        if batch.episode_starts is not None
    ]
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
    with NoLooking():  # as in a CUDA graph
        recorded = task.metrics(predictions, batch)
    assert {name: value.item() for name, value in recorded.items()}.items() <= means.items()
    mask = torch.tensor([[True], [False], [True], [True], [False]])
    masked = task.metrics(predictions, batch._replace(mask=mask))
    assert masked["loss_above_10000"].item() == pytest.approx(losses[0].item() / 3)
    assert masked["share_rare"].item() == pytest.approx(2 / 3)


def test_tasks_of_the_same_settings_load_their_data_once(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = []
    load = SequentialDigits.load

    def counted(self: SequentialDigits) -> Any:
        loaded.append(self)
        return load(self)

    monkeypatch.setattr(SequentialDigits, "load", counted)
    first, second = SequentialDigits(), SequentialDigits()
    first.prepare()
    assert torch.equal(second.split("test")[0], first.split("test")[0])
    assert len(loaded) == 1


def test_tasks_of_other_settings_load_other_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = iter([{"train": 1}, {"train": 2}])
    monkeypatch.setattr(SequentialMNIST, "load", lambda self: next(made))
    own, other = SequentialMNIST(), SequentialMNIST(data_dir=tmp_path)
    assert [task.split("train") for task in (own, other, own)] == [1, 2, 1]
    monkeypatch.setenv("RLGATES_DATA", str(tmp_path / "none"))
    with pytest.raises(FileNotFoundError, match="RLGATES_DATA must name a folder"):
        SequentialMNIST().split("train")


def rolls(lengths: list[int]) -> Pieces:
    frames = np.random.default_rng(0).integers(2, size=(sum(lengths), 88), dtype=np.uint8)
    return Pieces(np.packbits(frames, axis=1), np.array(lengths))


@pytest.mark.parametrize("whole", [False, True])
def test_music(monkeypatch: pytest.MonkeyPatch, whole: bool) -> None:
    part = rolls([3, 12, 6])
    frames = torch.from_numpy(np.unpackbits(part.frames, axis=1)).float()
    monkeypatch.setattr(
        "rlgates.experiments.tasks.sets.music.read_pieces",
        lambda music, data_dir: dict.fromkeys(SPLITS, part),
    )
    task = JSB(steps=5, whole=whole)
    batch = next(task.batches("test", 9, seeded()))
    runs = [(0, 2), (3, 8), (8, 13), (13, 14), (15, 20)]
    runs = runs if whole else [runs[0], runs[1], runs[4]]
    assert batch.inputs.shape == (5, len(runs), 88)
    assert batch.mask is not None
    assert batch.mask.sum(dim=0).tolist() == [last - first for first, last in runs]
    for row, (first, last) in enumerate(runs):
        steps = last - first
        assert torch.equal(batch.inputs[:steps, row], frames[first:last])
        assert torch.equal(batch.targets[:steps, row], frames[first + 1 : last + 1])
        assert not batch.targets[steps:, row].any()
    predictions = torch.randn(5, len(runs), 88, generator=seeded())
    right = torch.where(batch.targets > 0, predictions, -predictions).sigmoid().log().sum(-1)
    loss = task.loss(predictions, batch)
    torch.testing.assert_close(loss, -right[batch.mask].mean())
    predictions[~batch.mask] = 1e4
    assert task.loss(predictions, batch) == loss, "padding does not count"
    assert task.figures({"loss": 3.0})["nll"] == 3


def test_music_files(tmp_path: Path) -> None:
    scipy_io = pytest.importorskip("scipy.io")
    with pytest.raises(FileNotFoundError, match=r"pickles .* are not read"):
        read_pieces(JSB, tmp_path)

    def mat(pieces: list[Any], counts: tuple[int, ...] = (1, 1, 1)) -> bytes:
        cells = {}
        for split, count in zip(SPLITS, counts, strict=True):
            cells[f"{split}data"] = np.empty((1, len(pieces) * count), dtype=object)
            cells[f"{split}data"][0, :] = pieces * count
        stream = io.BytesIO()
        scipy_io.savemat(stream, cells)
        return stream.getvalue()

    part = rolls([3, 4])
    pieces = np.split(np.unpackbits(part.frames, axis=1).astype(float), [3])
    for parsed in parse_mat(mat(pieces)).values():
        assert np.array_equal(parsed.frames, part.frames)
        assert parsed.lengths.tolist() == [3, 4]
    path = tmp_path / "music" / "JSB_Chorales.mat"
    path.parent.mkdir()
    content = mat(pieces[:1], JSB.pieces)
    path.write_bytes(content)
    with pytest.raises(ValueError, match="JSB_Chorales is not the published set: SHA-256"):
        read_pieces(JSB, tmp_path)
    path.write_bytes(mat(pieces[:1], (5, 76, 77)))
    with pytest.raises(ValueError, match=r"'train': 229.*but has .*'train': 5"):
        read_pieces(JSB, tmp_path)
    for damaged in (content[:-40], b"notes", b""):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"JSB_Chorales\.mat is truncated or altered"):
            read_pieces(JSB, tmp_path)


def test_reviews(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tokenize("It's a<br />'GOOD' film, isn't it? 10/10") == [
        "it's", "a", "good", "film", "isn't", "it", "10", "10",
    ]  # fmt: skip
    texts = ["good good film"] * 4000 + ["bad film the end"] * 3000
    labels = torch.tensor([1] * 4000 + [0] * 3000)
    task = IMDB(words=4, length=3)
    parts = task.encode({"train": (texts, labels), "test": (["the good film is bad"], labels[:1])})
    monkeypatch.setattr(task, "load", lambda: parts)
    assert [len(task.split(split)[1]) for split in SPLITS] == [2000, 5000, 1]
    batch = next(task.batches("valid", 5000, seeded()))
    assert batch.inputs.dtype == torch.int64
    good = batch.targets[0] == 1
    assert 0.5 < good.float().mean() < 0.65, "shuffled before it is split"
    for words, expected in (
        (batch.inputs[:, good], [2, 2, 3]),
        (batch.inputs[:, ~good], [3, 1, 1]),
    ):
        assert words.unique(dim=1).T.tolist() == [expected]
    assert next(task.batches("test", 1, seeded())).inputs.T.tolist() == [[3, 1, 1]]
    task = IMDB(words=4, length=5)
    assert task._pad([["film"]], {"film": 3}).tolist() == [[0, 0, 0, 0, 3]]


def test_reviews_of_the_archive(tmp_path: Path) -> None:
    path = tmp_path / "aclImdb_v1.tar.gz"
    texts = {"train/pos/10_9": "é good", "train/neg/2_1": "bad", "train/neg/1_4": "b", "test/neg/0_1": "x"}  # fmt: skip # noqa: E501
    path.write_bytes(tar_gz_of({f"aclImdb/{name}.txt": t.encode() for name, t in texts.items()}))
    convert = REVIEWS["train"].convert
    assert convert is not None
    lines = convert(path).decode().splitlines()
    assert lines[0] == '{"id": 1, "rating": 4, "label": 0, "text": "b"}'
    assert [json.loads(line)["text"] for line in lines] == ["b", "bad", "é good"]


SaveClips = Callable[[dict[str, bytes]], None]


@pytest.fixture
def save_clips(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SaveClips:
    """Saves an archive of clips, and makes its digest the published one."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def save(contents: dict[str, bytes]) -> None:
        path = tmp_path / "speech_commands" / ARCHIVE.archives[0]
        path.parent.mkdir()
        path.write_bytes(tar_gz_of({f"./{name}": content for name, content in contents.items()}))
        with pytest.raises(ValueError, match="is not the published archive: its SHA-256 is"):
            make_task("speech_commands", official=True, data_dir=tmp_path).prepare()
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        monkeypatch.setattr(speech, "ARCHIVE", replace(ARCHIVE, archive_digest=digest))

    return save


def test_clips_of_the_archive(tmp_path: Path, save_clips: SaveClips) -> None:
    def clip(value: int, samples: int = 16_000) -> bytes:
        return wav_of(np.full(samples, value))

    contents = {"no/b.wav": clip(-5), "no/short.wav": clip(6, 900), "yes/a.wav": clip(7),
                "cat/a.wav": clip(8), "go/z.wav": clip(16_384)}  # fmt: skip
    lists = {"validation_list.txt": b"no/b.wav\n", "testing_list.txt": b"go/z.wav\ncat/a.wav\n"}
    save_clips(contents | lists)
    task = make_task("speech_commands", official=True, data_dir=tmp_path)
    batches = {split: next(task.batches(split, 9, seeded())) for split in SPLITS}
    assert {split: batch.targets.tolist() for split, batch in batches.items()} == {
        "train": [[0]], "valid": [[1]], "test": [[9]],
    }  # fmt: skip
    assert batches["test"].inputs.shape == (16_000, 1, 1)
    assert (batches["test"].inputs == 0.5).all()
    splits = random_splits(np.repeat(np.arange(10, dtype=np.uint8), 40)).reshape(10, 40)
    assert all(np.bincount(row).tolist() == [28, 6, 6] for row in splits)


def test_the_subset_of_clips(tmp_path: Path, save_clips: SaveClips) -> None:
    names = [line.partition(",")[0] for line in SUBSET.read_text().split()[1:]]
    others = [f"{word}/00000000_nohash_0.wav" for word in speech.WORDS]
    order = [*others, *reversed(names)]
    numbers = {name: number for number, name in enumerate(order)}
    contents = {name: wav_of(np.full(16_000, number)) for name, number in numbers.items()}
    save_clips(contents | {"testing_list.txt": "\n".join(order).encode()})
    task = make_task("speech_commands", subset=True, data_dir=tmp_path)
    batches = {split: next(task.batches(split, 999, seeded())) for split in SPLITS}
    for split, count in zip(SPLITS, (35, 5, 10), strict=True):
        assert batches[split].targets.flatten().bincount().tolist() == [count] * 10
    clips = torch.cat([batch.inputs[0].flatten() for batch in batches.values()]) * 2**15
    assert sorted(clips.int().tolist()) == [numbers[name] for name in reversed(names)]


def test_stays_of_the_archive(tmp_path: Path) -> None:
    tables = {
        "set-a/2.txt": b"Time,Parameter,Value\n00:00,RecordID,2\n00:07,HR,80\n01:00,GCS,15\n",
        "set-a/1.txt": b"Time,Parameter,Value\n00:00,RecordID,1\n47:59,HR,-1\n",
        "set-a/readme.md": b"Time",
    }
    path = tmp_path / "set-a.tar.gz"
    path.write_bytes(tar_gz_of(tables))
    convert = PHYSIONET[0][0].convert
    assert convert is not None
    assert convert(path).decode().split() == [
        "RecordID,Time,Parameter,Value", "1,47:59,HR,-1", "2,00:07,HR,80", "2,01:00,GCS,15"
    ]  # fmt: skip


def test_inputs_of_intensive_care() -> None:
    values = np.full((1, 48, 12), np.nan, dtype=np.float32)
    values[0, 2, 0], values[0, 5, 0] = 3.0, 1e9
    made = make_inputs(values, torch.ones(12), torch.full((12,), 2.0))[0]
    assert made.shape == (48, 25)
    assert made[:7, 0].tolist() == [0, 0, 1, 1, 1, 10, 10]
    assert made[:7, 12].tolist() == [1, 1, 0, 1, 1, 0, 1]
    assert not made[:, 1:12].any()
    assert (made[:, 13:24] == 1).all()
    torch.testing.assert_close(made[:, 24], torch.arange(48) / 48)


def test_a_users_table_of_stays(tmp_path: Path) -> None:
    header = ",".join(["RecordID", "Hour", *VITALS, "Length_of_stay"])
    rows = [f"{stay},{hour},{stay % 7 + hour}{',' * 12}{stay}" for stay in range(20) for hour in (0, 1.5, 50, -0.5)]  # fmt: skip # noqa: E501
    path = tmp_path / "stays.csv"
    path.write_text("\n".join([header, *rows]))
    found = read_stays_table(path)
    assert sorted(found.days.tolist()) == list(range(20))
    assert (~np.isnan(found.values)).sum() == 40
    np.testing.assert_array_equal(found.values[:, 0, 0], found.days % 7)
    task = LengthOfStay(path)
    assert [len(task.split(split)[1]) for split in SPLITS] == [16, 2, 2]
    assert sum(int(task.split(split)[1].sum()) for split in SPLITS) == 12, "8 days and more"
    batch: Batch = next(task.batches("train", 16, seeded()))
    assert batch.inputs.shape == (48, 16, 25)
    assert batch.inputs.isfinite().all()
    for settings in ({"table": path}, {"data_dir": tmp_path}):  # a run writes what is its own
        written = {name: str(value) for name, value in settings.items()}
        config = TaskConfig(task="icu", core="lstm", task_settings=settings)
        assert config == replace(config, task_settings=written)
    for text, message in (
        (header.replace("Hour", "Time"), "must have the columns RecordID, Hour"),
        (header.replace(*[*VITALS][:2]), "must have the columns .* and 12 vitals"),
        ("\n".join([header, rows[0].replace("0,0,", "0,x,", 1)]), "line 2: could not convert"),
        ("\n".join([header, *rows[:3]]), "at least 10 stays, got 1"),
        (f"{header}\n0,0,98,6{',' * 12}3", "line 2: 16 fields, but 15 columns"),
        (f"{header}\n0,0,98{',' * 9}", "line 2: 12 fields, but 15 columns"),
        (f"{header}\n,0,98{',' * 12}3", "line 2: no RecordID"),
        (f"{header}\n0,,98{',' * 12}3", "line 2: no Hour"),
        (f"{header}\n0,0,inf{',' * 12}3", f"line 2: {next(iter(VITALS))} must be finite, got inf"),
        (f"{header}\n0,0,98{',' * 12}nan", "line 2: Length_of_stay must be finite, got nan"),
        (f"{header}\n0,0,98{',' * 12}-1", r"line 2: Length_of_stay must be at least 0, got -1\.0"),
        ("\n".join([header, rows[4], f"{rows[5]}0"]), r"line 3: stay 1 has two lengths, 1\.0 and"),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=message):
            read_stays_table(path)
    whole = gzip.compress("\n".join([header, *rows]).encode())
    long = "\n".join([header, f"0,0,3,{'9' * 200_000}{',' * 12}"])
    for name, content in (
        ("cut.csv.gz", whole[: len(whole) // 2]),
        ("plain.csv.gz", header.encode()),
        ("latin.csv", header.replace("Hour", "Hörer").encode("latin-1")),
        ("long.csv", long.encode()),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=f"{name} is truncated or damaged, or not a CSV file"):
            read_stays_table(tmp_path / name)
    with pytest.raises(FileNotFoundError, match=r"no table .*none\.csv; .* the columns RecordID"):
        read_stays_table(tmp_path / "none.csv")
