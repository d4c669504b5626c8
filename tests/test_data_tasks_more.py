"""The tasks on data sets, on small made-up data: music, reviews, speech and intensive care."""

from __future__ import annotations

import hashlib
import io
import json
import wave
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from test_data import tarred

from rlgates.tasks import SPLITS, Batch, make_task, speech
from rlgates.tasks.icu import VITALS, LengthOfStay, inputs, own_stays
from rlgates.tasks.music import JSB, Pieces, _of_mat, pieces
from rlgates.tasks.reviews import IMDB, REVIEWS, tokenize
from rlgates.tasks.speech import WHOLE, shuffled


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def rolls(lengths: list[int]) -> Pieces:
    frames = np.random.default_rng(0).integers(2, size=(sum(lengths), 88), dtype=np.uint8)
    return Pieces(np.packbits(frames, axis=1), np.array(lengths))


@pytest.mark.parametrize("whole", [False, True])
def test_music(monkeypatch: pytest.MonkeyPatch, whole: bool) -> None:
    part = rolls([3, 12, 6])
    frames = torch.from_numpy(np.unpackbits(part.frames, axis=1)).float()
    monkeypatch.setattr(
        "rlgates.tasks.music.pieces", lambda rolls, data_dir: dict.fromkeys(SPLITS, part)
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
    with pytest.raises(FileNotFoundError, match=r"pickles .* are not read.*np\.packbits"):
        pieces(JSB.rolls, tmp_path)
    part, arrays = rolls([3, 4]), {}
    for split, count in zip(SPLITS, JSB.rolls.pieces, strict=True):
        arrays |= {split: np.repeat(part.frames[:1], count, 0), f"{split}_len": np.ones(count, int)}
    (tmp_path / "music").mkdir()
    np.savez(tmp_path / "music" / "JSB_Chorales.npz", **arrays)
    with pytest.raises(ValueError, match="JSB_Chorales is not the published set: SHA-256"):
        pieces(JSB.rolls, tmp_path)
    np.savez(tmp_path / "music" / "JSB_Chorales.npz", **{k: v[:5] for k, v in arrays.items()})
    with pytest.raises(ValueError, match=r"'train': 229.*but has .*'train': 5"):
        pieces(JSB.rolls, tmp_path)
    whole = (tmp_path / "music" / "JSB_Chorales.npz").read_bytes()
    for damaged in (whole[:-40], b"notes", b""):
        (tmp_path / "music" / "JSB_Chorales.npz").write_bytes(damaged)
        with pytest.raises(ValueError, match=r"JSB_Chorales\.npz is truncated or altered"):
            pieces(JSB.rolls, tmp_path)
    scipy_io = pytest.importorskip("scipy.io")
    cells = np.empty((1, 2), dtype=object)
    cells[0, 0], cells[0, 1] = np.split(np.unpackbits(part.frames, axis=1).astype(float), [3])
    stream = io.BytesIO()
    scipy_io.savemat(stream, {f"{split}data": cells for split in SPLITS})
    for found in _of_mat(stream.getvalue(), scipy_io).values():
        assert np.array_equal(found.frames, part.frames)
        assert found.lengths.tolist() == [3, 4]


def test_reviews(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tokenize("It's a<br />'GOOD' film, isn't it? 10/10") == [
        "it's", "a", "good", "film", "isn't", "it", "10", "10",
    ]  # fmt: skip
    texts = ["good good film"] * 4000 + ["bad film the end"] * 3000
    labels = torch.tensor([1] * 4000 + [0] * 3000)
    task = IMDB(words=4, length=3)
    parts = task.encoded({"train": (texts, labels), "test": (["the good film is bad"], labels[:1])})
    monkeypatch.setattr(task, "load", lambda: parts)
    assert [len(task.part(split)[1]) for split in SPLITS] == [2000, 5000, 1]
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
    assert task._padded([["film"]], {"film": 3}).tolist() == [[0, 0, 0, 0, 3]]


def test_reviews_of_the_archive(tmp_path: Path) -> None:
    path = tmp_path / "aclImdb_v1.tar.gz"
    texts = {"train/pos/10_9": "é good", "train/neg/2_1": "bad", "train/neg/1_4": "b", "test/neg/0_1": "x"}  # fmt: skip # noqa: E501
    path.write_bytes(tarred({f"aclImdb/{name}.txt": t.encode() for name, t in texts.items()}))
    convert = REVIEWS["train"].convert
    assert convert is not None
    lines = convert(path).decode().splitlines()
    assert lines[0] == '{"id": 1, "rating": 4, "label": 0, "text": "b"}'
    assert [json.loads(line)["text"] for line in lines] == ["b", "bad", "é good"]


def test_clips_of_the_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def clip(value: int, samples: int = 16_000) -> bytes:
        stream = io.BytesIO()
        with wave.open(stream, "wb") as out:
            out.setnchannels(1)
            out.setsampwidth(2)
            out.setframerate(16_000)
            out.writeframes(np.full(samples, value, dtype="<i2").tobytes())
        return stream.getvalue()

    folder = tmp_path / "speech_commands"
    folder.mkdir()
    contents = {"no/b.wav": clip(-5), "no/short.wav": clip(6, 900), "yes/a.wav": clip(7),
                "cat/a.wav": clip(8), "go/z.wav": clip(16_384)}  # fmt: skip
    lists = {"validation_list.txt": b"no/b.wav\n", "testing_list.txt": b"go/z.wav\ncat/a.wav\n"}
    archive = tarred({f"./{name}": made for name, made in (contents | lists).items()})
    (folder / WHOLE.archives[0]).write_bytes(archive)
    with pytest.raises(ValueError, match="is not the published archive: its SHA-256 is"):
        make_task("speech_commands", official=True, data_dir=tmp_path).prepare()
    digest = hashlib.sha256(archive).hexdigest()
    monkeypatch.setattr(speech, "WHOLE", replace(WHOLE, archive_digest=digest))
    task = make_task("speech_commands", official=True, data_dir=tmp_path)
    found = {split: next(task.batches(split, 9, seeded())) for split in SPLITS}
    assert {split: batch.targets.tolist() for split, batch in found.items()} == {
        "train": [[0]], "valid": [[1]], "test": [[9]],
    }  # fmt: skip
    assert found["test"].inputs.shape == (16_000, 1, 1)
    assert (found["test"].inputs == 0.5).all()
    splits = shuffled(np.repeat(np.arange(10, dtype=np.uint8), 40)).reshape(10, 40)
    assert all(np.bincount(row).tolist() == [28, 6, 6] for row in splits)


def test_some_clips_of_all(tmp_path: Path) -> None:
    folder = tmp_path / "speech_commands"
    folder.mkdir()
    words = np.repeat(np.arange(10, dtype=np.uint8), 80)
    sound = np.arange(800, dtype=np.int16)[:, None]
    np.savez(folder / "sc10.npz", sound=sound, words=words, splits=np.zeros(800, np.uint8))
    task = make_task("speech_commands", subset=True, data_dir=tmp_path)
    found = {split: next(task.batches(split, 999, seeded())) for split in SPLITS}
    counts = {split: batch.targets.flatten().bincount() for split, batch in found.items()}
    for split, count in zip(SPLITS, (35, 5, 10), strict=True):
        assert counts[split].tolist() == [count] * 10
    clips = torch.cat([batch.inputs.flatten() for batch in found.values()])
    assert len(clips.unique()) == 500


def test_inputs_of_intensive_care() -> None:
    values = np.full((1, 48, 12), np.nan, dtype=np.float32)
    values[0, 2, 0], values[0, 5, 0] = 3.0, 1e9
    made = inputs(values, torch.ones(12), torch.full((12,), 2.0))[0]
    assert made.shape == (48, 25)
    assert made[:7, 0].tolist() == [0, 0, 1, 1, 1, 10, 10]
    assert made[:7, 12].tolist() == [1, 1, 0, 1, 1, 0, 1]
    assert not made[:, 1:12].any()
    assert (made[:, 13:24] == 1).all()
    torch.testing.assert_close(made[:, 24], torch.arange(48) / 48)


def test_a_table_of_stays_of_ones_own(tmp_path: Path) -> None:
    header = ",".join(["RecordID", "Hour", *VITALS, "Length_of_stay"])
    rows = [f"{stay},{hour},{stay % 7 + hour}{',' * 12}{stay}" for stay in range(20) for hour in (0, 1.5, 50)]  # fmt: skip # noqa: E501
    path = tmp_path / "stays.csv"
    path.write_text("\n".join([header, *rows]))
    found = own_stays(path)
    assert sorted(found.days.tolist()) == list(range(20))
    assert (~np.isnan(found.values)).sum() == 40
    task = LengthOfStay(path)
    assert [len(task.part(split)[1]) for split in SPLITS] == [16, 2, 2]
    assert sum(int(task.part(split)[1].sum()) for split in SPLITS) == 12, "8 days and more"
    batch: Batch = next(task.batches("train", 16, seeded()))
    assert batch.inputs.shape == (48, 16, 25)
    assert batch.inputs.isfinite().all()
    for text, message in (
        (header.replace("Hour", "Time"), "must have the columns RecordID, Hour"),
        ("\n".join([header, rows[0].replace("0,0,", "0,x,", 1)]), "line 2: could not convert"),
        ("\n".join([header, *rows[:3]]), "at least 10 stays, got 1"),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=message):
            own_stays(path)
    with pytest.raises(FileNotFoundError, match=r"no table .*none\.csv; .* the columns RecordID"):
        own_stays(tmp_path / "none.csv")
