"""The data sets for tests, turned from their packed forms into the published ones.

The packed forms lie in RLGATES_DATA or in `shared/data` beside the checkout. The product reads
published forms only, so each data set is converted, when a test first asks for it, into a folder
of the session. Of two sets only a part is there (the first bytes of enwik8 and text8, and 500 clips
of Speech Commands), so that their files have other digests than the published ones.
"""

from __future__ import annotations

import io
import json
import lzma
import os
import shutil
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.archives import tar_gz_of, wav_of

from rlgates.experiments.tasks.data.files import DATA_VARIABLE
from rlgates.experiments.tasks.sets.images import CIFAR_BATCHES

ROOT = Path(__file__).parents[2]
CANDIDATES = [Path(os.environ[DATA_VARIABLE])] if os.environ.get(DATA_VARIABLE) else []
CANDIDATES += [ROOT.parent / "shared" / "data", ROOT.parents[1] / "shared" / "data"]
PACKED = next((folder for folder in CANDIDATES if folder.is_dir()), None)


def published_folder(name: str, folder: Path) -> Path:
    """The data folder with a set in its published form; the test is skipped if there is none.

    Args:
        name: folder of the set.
        folder: where converted sets are kept.
    """
    if PACKED is None or not (PACKED / name).is_dir():
        pytest.skip(f"no {name} in the folder of data sets ({DATA_VARIABLE})")
    target = folder / name
    if not target.is_dir():
        target.mkdir(parents=True)
        CONVERTERS.get(name, _copy)(PACKED / name, target)
    return folder


def _copy(packed: Path, target: Path) -> None:
    """Published files, some of them compressed."""
    for path in packed.iterdir():
        if path.suffix == ".xz":
            (target / path.stem).write_bytes(lzma.decompress(path.read_bytes()))
        else:
            shutil.copy(path, target)


def _cifar10(packed: Path, target: Path) -> None:
    """JPEG XL atlases of 50 x 50 images, and labels.npz, to the official .bin files."""
    codecs = pytest.importorskip("imagecodecs")
    with np.load(packed / "labels.npz") as arrays:
        labels = np.concatenate([arrays["train"], arrays["test"]])
    atlases = sorted(packed.glob("train_*.jxl")) + sorted(packed.glob("test_*.jxl"))
    records = np.empty((len(labels), 3073), np.uint8)
    records[:, 0] = labels
    for number, path in enumerate(atlases):
        atlas = codecs.jpegxl_decode(path.read_bytes(), numthreads=os.cpu_count())
        images = atlas.reshape(50, 32, 50, 32, 3).transpose(0, 2, 4, 1, 3).reshape(2500, 3072)
        records[2500 * number : 2500 * (number + 1), 1:] = images
    for name, batch in zip(CIFAR_BATCHES, np.split(records, 6), strict=True):
        (target / name).write_bytes(batch.tobytes())


def _mahoney(packed: Path, target: Path) -> None:
    for path in packed.glob("*_first*.xz"):
        content = lzma.decompress(path.read_bytes())
        (target / path.name.partition("_")[0]).write_bytes(content)


def _imdb(packed: Path, target: Path) -> None:
    contents = {}
    for split in ("train", "test"):
        for line in lzma.decompress((packed / f"{split}.jsonl.xz").read_bytes()).split(b"\n"):
            if line:
                row = json.loads(line)
                label = ("neg", "pos")[row["label"]]
                name = f"aclImdb/{split}/{label}/{row['id']}_{row['rating']}.txt"
                contents[name] = row["text"].encode()
    (target / "aclImdb_v1.tar.gz").write_bytes(tar_gz_of(contents))


def _music(packed: Path, target: Path) -> None:
    """Bit-packed frames to cells of piano rolls, as in the .mat files of Bai et al."""
    scipy_io = pytest.importorskip("scipy.io")
    for path in packed.glob("*.npz"):
        cells: dict[str, Any] = {}
        with np.load(path) as arrays:
            for split in ("train", "valid", "test"):
                frames = np.unpackbits(arrays[split], axis=1, count=88)
                pieces = np.split(frames, np.cumsum(arrays[f"{split}_len"])[:-1])
                cells[f"{split}data"] = cell = np.empty((1, len(pieces)), dtype=object)
                cell[0, :] = pieces
        stream = io.BytesIO()
        scipy_io.savemat(stream, cells)
        (target / f"{path.stem}.mat").write_bytes(stream.getvalue())


def _physionet(packed: Path, target: Path) -> None:
    """One table to an archive with a table for each stay."""
    for letter in "ab":
        shutil.copy(packed / f"Outcomes-{letter}.txt", target)
        tables: defaultdict[str, list[str]] = defaultdict(list)
        outcomes = (packed / f"Outcomes-{letter}.txt").read_text().split()[1:]
        for line in outcomes:
            stay = line.partition(",")[0]
            tables[stay] += ["Time,Parameter,Value", f"00:00,RecordID,{stay}"]
        text = lzma.decompress((packed / f"set-{letter}.csv.xz").read_bytes()).decode()
        for line in text.split()[1:]:
            stay, _, row = line.partition(",")
            tables[stay].append(row)
        contents = {
            f"./set-{letter}/{stay}.txt": "\n".join([*rows, ""]).encode()
            for stay, rows in tables.items()
        }
        (target / f"set-{letter}.tar.gz").write_bytes(tar_gz_of(contents))


def _speech_commands(packed: Path, target: Path) -> None:
    sound = np.load(io.BytesIO(lzma.decompress((packed / "sc10_subset.npy.xz").read_bytes())))
    lines = (packed / "sc10_subset.csv").read_text().split()[1:]
    names = [line.split(",")[1] for line in lines]
    contents = {f"./{name}": wav_of(clip) for name, clip in zip(names, sound, strict=True)}
    contents["./validation_list.txt"] = b""
    contents["./testing_list.txt"] = "\n".join(names).encode()
    (target / "speech_commands_v0.02.tar.gz").write_bytes(tar_gz_of(contents))


CONVERTERS: dict[str, Callable[[Path, Path], None]] = {
    "cifar10": _cifar10,
    "enwik8_text8": _mahoney,
    "imdb": _imdb,
    "music": _music,
    "physionet2012": _physionet,
    "speech_commands": _speech_commands,
}
