"""Files made of data sets of the Hugging Face hub, which here are folders of the same form."""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlgates.tasks import data
from rlgates.tasks.data import File, find, read
from rlgates.tasks.hub import Hub, joined
from rlgates.tasks.images import CIFAR, MNIST, cifar10, mnist
from rlgates.tasks.text import MAHONEY, WIKITEXT, words
from tests.test_published_data import FOLDER

datasets = pytest.importorskip("datasets")
Publish = Callable[..., None]
TEXT = b" \n = A title = \n \n Some words <unk> . \n"
LINES = ["", " = A title = \n", "", " Some words <unk> . \n"]


@pytest.fixture
def publish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Publish:
    """Makes a data set of the hub, as a folder that is found first; no other place answers."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for variable in (data.DATA_VARIABLE, data.OFFLINE_VARIABLE):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "arrow")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)

    def refuse(url: str, target: Path) -> None:
        raise data.FetchError(f"{url} is gone.")

    monkeypatch.setattr(data, "download", refuse)

    def write(hub: Hub, splits: Mapping[str, Mapping[str, Any]], image: str = "") -> None:
        folder = tmp_path / hub.repository / (hub.configuration or "data")
        folder.mkdir(parents=True)
        for split, columns in splits.items():
            kinds = {image: datasets.Image(), "label": datasets.Value("int64")}
            features = datasets.Features(kinds) if image else None
            rows = datasets.Dataset.from_dict(dict(columns), features)
            rows.to_parquet(folder / f"{split}-00000-of-00001.parquet")
        if hub.configuration:
            files = [
                f"    - {{split: {split}, path: {hub.configuration}/{split}-*}}" for split in splits
            ]
            lines = ["configs:", f"- config_name: {hub.configuration}", "  data_files:", *files]
            (folder.parent / "README.md").write_text("\n".join(["---", *lines, "---", ""]))

    return write


def of(file: File) -> Hub:
    assert file.hub is not None
    return file.hub


def a_text(content: bytes = TEXT, column: str = "text") -> File:
    hub = Hub("someone/texts", ("test",), lambda rows: joined(rows, column, " \n").encode(), "one")
    digest = hashlib.sha256(content).hexdigest()
    return File("texts", "text.txt", digest, ("https://localhost/text.txt",), hub=hub)


def test_a_file_is_made_of_the_rows_and_kept(publish: Publish) -> None:
    file = a_text()
    publish(of(file), {"test": {"text": LINES}, "train": {"text": ["another"]}})
    assert read(file) == TEXT
    kept = find(file)
    assert kept is not None
    assert kept.read_bytes() == TEXT
    kept.write_bytes(TEXT[1:])
    with pytest.raises(ValueError, match="is not the published file"):
        read(file)


def test_rows_that_were_changed_are_no_file(publish: Publish) -> None:
    file = a_text(b"what was published\n")
    publish(of(file), {"test": {"text": LINES}})
    with pytest.raises(ValueError, match="hub has as someone/texts is not the published file"):
        read(file)
    assert find(file) is None


def test_the_error_names_both_places(publish: Publish) -> None:
    file = a_text(column="sentence")
    publish(of(file), {"test": {"text": LINES}})
    with pytest.raises(FileNotFoundError) as caught:
        read(file)
    words = str(caught.value)
    assert "https://localhost/text.txt is gone." in words
    assert "did not give someone/texts (KeyError: 'sentence')" in words


def test_offline_and_without_the_library_nobody_asks_the_hub(
    publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = a_text()
    publish(of(file), {"test": {"text": LINES}})
    with monkeypatch.context() as patch:
        patch.setattr(importlib.util, "find_spec", lambda name: None)
        with pytest.raises(FileNotFoundError, match=r"someone/texts.*pip install 'rlgates\[hub\]'"):
            read(file)
    monkeypatch.setenv(data.OFFLINE_VARIABLE, "1")
    with pytest.raises(FileNotFoundError, match="is set"):
        read(file)


def pictures(*shape: int) -> Any:
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def test_grey_pictures_become_the_idx_files(publish: Publish) -> None:
    hub, images = of(MNIST["test"][0]), pictures(20, 28, 28)
    labels = np.arange(20) % 10
    publish(hub, {"test": {"image": list(images), "label": labels}}, image="image")
    head = bytes([0, 0, 8, 3, 0, 0, 0, 20, 0, 0, 0, 28, 0, 0, 0, 28])
    assert hub.content() == head + images.tobytes()
    head = bytes([0, 0, 8, 1, 0, 0, 0, 20])
    assert of(MNIST["test"][1]).content() == head + bytes(labels.tolist())


def test_coloured_pictures_must_be_the_published_ones(publish: Publish) -> None:
    part = {"img": list(pictures(3, 32, 32, 3)), "label": [1, 2, 3]}
    publish(of(CIFAR), {"train": part, "test": part}, image="img")
    with pytest.raises(FileNotFoundError, match="train pictures of CIFAR-10 are not the published"):
        read(CIFAR)


@pytest.mark.parametrize("whole", [True, False])
def test_text8_is_whole_in_the_first_split_or_in_all(publish: Publish, whole: bool) -> None:
    text = b"ab c" * 25_000_000
    parts = [text if whole else text[:90_000_000], text[90_000_000:95_000_000], text[95_000_000:]]
    names = ("train", "validation", "test")
    hub = of(MAHONEY["text8"])
    publish(hub, {name: {"text": [part.decode()]} for name, part in zip(names, parts, strict=True)})
    assert hub.content() == text


def test_the_published_files_come_out_of_the_hub(publish: Publish) -> None:
    if FOLDER is None or not (FOLDER / "wikitext2").is_dir():
        pytest.skip("no wikitext2 in the folder of data sets (RLGATES_DATA)")
    splits = {}
    for split, file in WIKITEXT[2].items():
        lines = read(file, FOLDER).decode().splitlines(keepends=True)
        name = "validation" if split == "valid" else split
        splits[name] = {"text": [line if line.strip() else "" for line in lines]}
    publish(of(WIKITEXT[2]["train"]), splits)
    assert len(words(WIKITEXT[2])["test"].tokens) == 245_569


@pytest.mark.parametrize(
    ("folder", "load", "file", "image"),
    [("mnist", mnist, MNIST["train"][0], "image"), ("cifar10", cifar10, CIFAR, "img")],
)
@pytest.mark.slow
def test_the_published_pictures_come_out_of_the_hub(
    publish: Publish, folder: str, load: Callable[..., Any], file: File, image: str
) -> None:
    if FOLDER is None or not (FOLDER / folder).is_dir():
        pytest.skip(f"no {folder} in the folder of data sets (RLGATES_DATA)")
    found = load(FOLDER)
    publish(
        of(file),
        {
            split: {image: list(images.squeeze()), "label": labels}
            for split, (images, labels) in found.items()
        },
        image=image,
    )
    for split, (images, labels) in load().items():
        assert np.array_equal(images, found[split].images)
        assert np.array_equal(labels, found[split].labels)
