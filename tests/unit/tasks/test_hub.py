"""Files rebuilt from data sets of the Hugging Face hub; here these are local folders."""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlgates.experiments.tasks.data import files as data
from rlgates.experiments.tasks.data.files import File, find_file, read_file
from rlgates.experiments.tasks.data.hub import HubDataset, join_column
from rlgates.experiments.tasks.sets.images import CIFAR, MNIST, cifar10, mnist
from rlgates.experiments.tasks.sets.text import MAHONEY, WIKITEXT, words

datasets = pytest.importorskip("datasets")
Publish = Callable[..., None]
TEXT = b" \n = A title = \n \n Some words <unk> . \n"
LINES = ["", " = A title = \n", "", " Some words <unk> . \n"]


@pytest.fixture
def publish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Publish:
    """Makes a data set of the hub, as a folder that is found first; no address answers."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for variable in (data.DATA_VARIABLE, data.OFFLINE_VARIABLE):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "arrow")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)

    def refuse(url: str, target: Path) -> None:
        raise data.FetchError(f"{url} is gone.")

    monkeypatch.setattr(data, "download", refuse)

    def write(hub: HubDataset, splits: Mapping[str, Mapping[str, Any]], image: str = "") -> None:
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


def hub_of(file: File) -> HubDataset:
    assert file.hub is not None
    return file.hub


def text_file(content: bytes = TEXT, column: str = "text") -> File:
    hub = HubDataset(
        "someone/texts", ("test",), lambda rows: join_column(rows, column, " \n").encode(), "one"
    )
    digest = hashlib.sha256(content).hexdigest()
    return File("texts", "text.txt", digest, ("https://localhost/text.txt",), hub=hub)


def test_a_file_is_made_of_the_rows_and_kept(publish: Publish) -> None:
    file = text_file()
    publish(hub_of(file), {"test": {"text": LINES}, "train": {"text": ["another"]}})
    assert read_file(file) == TEXT
    kept = find_file(file)
    assert kept is not None
    assert kept.read_bytes() == TEXT
    kept.write_bytes(TEXT[1:])
    with pytest.raises(ValueError, match="is not the published file"):
        read_file(file)


def test_rows_that_were_changed_are_no_file(publish: Publish) -> None:
    file = text_file(b"what was published\n")
    publish(hub_of(file), {"test": {"text": LINES}})
    with pytest.raises(
        ValueError, match="someone/texts on the Hugging Face hub is not the published file"
    ):
        read_file(file)
    assert find_file(file) is None


def test_the_error_names_both_places(publish: Publish) -> None:
    file = text_file(column="sentence")
    publish(hub_of(file), {"test": {"text": LINES}})
    with pytest.raises(FileNotFoundError) as caught:
        read_file(file)
    words = str(caught.value)
    assert "https://localhost/text.txt is gone." in words
    assert "did not deliver someone/texts (KeyError: 'sentence')" in words


def test_offline_and_without_the_library_nobody_asks_the_hub(
    publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = text_file()
    publish(hub_of(file), {"test": {"text": LINES}})
    with monkeypatch.context() as patch:
        patch.setattr(importlib.util, "find_spec", lambda name: None)
        with pytest.raises(FileNotFoundError, match=r"someone/texts.*pip install 'rlgates\[hub\]'"):
            read_file(file)
    monkeypatch.setenv(data.OFFLINE_VARIABLE, "1")
    with pytest.raises(FileNotFoundError, match="is set"):
        read_file(file)


def random_images(*shape: int) -> Any:
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def test_grey_images_become_the_idx_files(publish: Publish) -> None:
    hub, images = hub_of(MNIST["test"][0]), random_images(20, 28, 28)
    labels = np.arange(20) % 10
    publish(hub, {"test": {"image": list(images), "label": labels}}, image="image")
    head = bytes([0, 0, 8, 3, 0, 0, 0, 20, 0, 0, 0, 28, 0, 0, 0, 28])
    assert hub.content() == head + images.tobytes()
    head = bytes([0, 0, 8, 1, 0, 0, 0, 20])
    assert hub_of(MNIST["test"][1]).content() == head + bytes(labels.tolist())


def test_coloured_images_must_be_the_published_ones(publish: Publish) -> None:
    part = {"img": list(random_images(3, 32, 32, 3)), "label": [1, 2, 3]}
    publish(hub_of(CIFAR), {"train": part, "test": part}, image="img")
    with pytest.raises(FileNotFoundError, match="train images of CIFAR-10 are not the published"):
        read_file(CIFAR)


@pytest.mark.parametrize("whole", [True, False])
def test_text8_is_complete_in_the_first_split_or_in_all(
    publish: Publish, monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    text = b"ab c" * 25
    monkeypatch.setattr("rlgates.experiments.tasks.sets.text.MAHONEY_BYTES", len(text))
    parts = [text if whole else text[:90], text[90:95], text[95:]]
    names = ("train", "validation", "test")
    hub = hub_of(MAHONEY["text8"])
    publish(hub, {name: {"text": [part.decode()]} for name, part in zip(names, parts, strict=True)})
    assert hub.content() == text


def test_the_published_files_come_out_of_the_hub(
    publish: Publish, published_data: Callable[[str], Path]
) -> None:
    folder = published_data("wikitext2")
    splits = {}
    for split, file in WIKITEXT[2].items():
        lines = read_file(file, folder).decode().splitlines(keepends=True)
        name = "validation" if split == "valid" else split
        splits[name] = {"text": [line if line.strip() else "" for line in lines]}
    publish(hub_of(WIKITEXT[2]["train"]), splits)
    assert len(words(WIKITEXT[2])["test"].tokens) == 245_569


@pytest.mark.parametrize(
    ("name", "load", "file", "image"),
    [("mnist", mnist, MNIST["train"][0], "image"), ("cifar10", cifar10, CIFAR, "img")],
)
@pytest.mark.slow
def test_the_published_images_come_out_of_the_hub(
    publish: Publish,
    published_data: Callable[[str], Path],
    name: str,
    load: Callable[..., Any],
    file: File,
    image: str,
) -> None:
    expected = load(published_data(name))
    publish(
        hub_of(file),
        {
            split: {image: list(images.squeeze()), "label": labels}
            for split, (images, labels) in expected.items()
        },
        image=image,
    )
    for split, (images, labels) in load().items():
        assert np.array_equal(images, expected[split].images)
        assert np.array_equal(labels, expected[split].labels)
