"""Images in their published order: MNIST, CIFAR-10, and scikit-learn's small digits."""

from __future__ import annotations

import hashlib
import importlib
import io
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlgates.experiments.tasks.data.dataset import check_counts, fixed_permutation
from rlgates.experiments.tasks.data.files import (
    DataDir,
    File,
    archive_members,
    find_file,
    read_arrays,
    read_file,
)
from rlgates.experiments.tasks.data.hub import HubDataset

Bytes = NDArray[np.uint8]


class LabelledImages(NamedTuple):
    """Images (N, height, width, channels) and their classes (N,), both uint8."""

    images: Bytes
    labels: Bytes


def _from_hub(split: Any, column: str) -> LabelledImages:
    """The PNG images and the labels of a split of a hub data set."""
    split = split.with_format("numpy")
    batches = [(batch[column], batch["label"]) for batch in split.iter(1_000)]
    images, labels = map(np.concatenate, zip(*batches, strict=True))
    return LabelledImages(images.reshape(*images.shape[:3], -1), labels.astype(np.uint8))


def _idx(array: Bytes) -> bytes:
    """An IDX file of bytes: type and number of dimensions, their sizes, then the data."""
    return np.array([0x800 + array.ndim, *array.shape], dtype=">i4").tobytes() + array.tobytes()


def _mnist_file(name: str, digest: str) -> File:
    servers = (
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
    )

    def convert(split: Any) -> bytes:
        images, labels = _from_hub(split, "image")
        return _idx(images[..., 0] if "images" in name else labels)

    return File(
        "mnist",
        name,
        digest,
        tuple(f"{server}{name}.gz" for server in servers),
        max_size=60_000 * 28 * 28 + 16,
        hint="The task digits (scikit-learn's small digits) needs no file.",
        hub=HubDataset(
            "ylecun/mnist",
            ("train" if name.startswith("train") else "test",),
            convert,
            revision="77f3279092a1c1579b2250db8eafed0ad422088c",
        ),
    )


_MNIST_DIGESTS = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
_MNIST_FILES = [_mnist_file(name, digest) for name, digest in _MNIST_DIGESTS.items()]
MNIST = {"train": _MNIST_FILES[:2], "test": _MNIST_FILES[2:]}  # images and labels


def mnist(data_dir: DataDir = None) -> dict[str, LabelledImages]:
    """MNIST (LeCun, Cortes, Burges): 60,000 and 10,000 images of 28 × 28, from the IDX files.

    Raises:
        FileNotFoundError, ValueError: as `data.files.read_file`.
    """
    sets = {
        split: LabelledImages(
            np.frombuffer(read_file(images, data_dir), np.uint8, offset=16).reshape(-1, 28, 28, 1),
            np.frombuffer(read_file(labels, data_dir), np.uint8, offset=8),
        )
        for split, (images, labels) in MNIST.items()
    }
    _check_sizes("MNIST", sets, {"train": 60_000, "test": 10_000})
    return sets


def _convert_cifar(archive: Path) -> bytes:
    """The .npz of the official binary archive."""
    batches = {name.rpartition("/")[2]: content for name, content in archive_members(archive)}
    missing = [name for name in CIFAR_BATCHES if name not in batches]
    if missing:
        raise ValueError(f"{archive} has no {', '.join(missing)}.")
    return _npz(_parse_batches([batches[name] for name in CIFAR_BATCHES]))


CIFAR_BATCHES = [*(f"data_batch_{n}.bin" for n in range(1, 6)), "test_batch.bin"]
# SHA-256 of the images (N, 32, 32, 3), and of the labels.
CIFAR_DIGESTS = {
    "train": (
        "47af8b02cfcfb6cdf3dbbd1969ad7f1b70f4413f6f80f437b020ee4e5bc8304a",
        "2b7cd2f24487317614016b72ffd53071c3062f592f0eb300c18a770d41ae1253",
    ),
    "test": (
        "f9b1e2130bab680db56eb06d886f7f1ad0f1183907ceff4659d1735c890f5b04",
        "cec8a24a1e92aa2ecaa0bbd3dbfa86bf6cd8759fbd209a832824c8cf0afca9d5",
    ),
}
CIFAR = File(
    "cifar10",
    "cifar10.npz",
    urls=("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
    convert=_convert_cifar,
    hub=HubDataset(
        "uoft-cs/cifar10",
        ("train", "test"),
        lambda train, test: _npz(
            _check_cifar({"train": _from_hub(train, "img"), "test": _from_hub(test, "img")})
        ),
        revision="0b2714987fa478483af9968de7c934580d0bb9a2",
    ),
    hint="The six .bin files of that archive will do as well.",
)


def cifar10(data_dir: DataDir = None) -> dict[str, LabelledImages]:
    """CIFAR-10 (Krizhevsky 2009): 50,000 and 10,000 RGB images of 32 × 32.

    Read from the official binary archive, or from its .bin files.

    Raises:
        FileNotFoundError, ValueError: as `data.files.read_file`.
    """
    batches = [File("cifar10", name, checked_when_parsed=True) for name in CIFAR_BATCHES]
    if find_file(CIFAR, data_dir) is None and find_file(batches[0], data_dir) is not None:
        return _check_cifar(_parse_batches([read_file(batch, data_dir) for batch in batches]))
    names = [f"{split}_{part}" for split in CIFAR_DIGESTS for part in LabelledImages._fields]
    arrays = read_arrays(CIFAR, names, data_dir)
    return _check_cifar(
        {
            split: LabelledImages(arrays[f"{split}_images"], arrays[f"{split}_labels"])
            for split in CIFAR_DIGESTS
        }
    )


def _check_cifar(sets: dict[str, LabelledImages]) -> dict[str, LabelledImages]:
    for split, expected in CIFAR_DIGESTS.items():
        digests = tuple(hashlib.sha256(array.tobytes()).hexdigest() for array in sets[split])
        if digests != expected:
            raise ValueError(
                f"the {split} images of CIFAR-10 are not the published ones: SHA-256 of images "
                f"and labels is {digests}, expected {expected}."
            )
    return sets


def _parse_batches(batches: list[bytes]) -> dict[str, LabelledImages]:
    """Records of a label and 3,072 bytes, channel by channel; the last batch is the test set."""
    arrays = [np.frombuffer(batch, np.uint8) for batch in batches]
    wrong = [n for n, array in zip(CIFAR_BATCHES, arrays, strict=True) if array.size % 3073]
    if wrong:
        raise ValueError(f"{', '.join(wrong)} of CIFAR-10 must be records of 3,073 bytes.")
    sets = {}
    for split, parts in (("train", arrays[:-1]), ("test", arrays[-1:])):
        records = np.concatenate(parts).reshape(-1, 3073)
        images = records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        sets[split] = LabelledImages(np.ascontiguousarray(images), records[:, 0].copy())
    return sets


def _npz(sets: dict[str, LabelledImages]) -> bytes:
    stream = io.BytesIO()
    arrays = {f"{split}_images": images for split, (images, _) in sets.items()}
    arrays |= {f"{split}_labels": labels for split, (_, labels) in sets.items()}
    np.savez(stream, allow_pickle=False, **arrays)
    return stream.getvalue()


def digits() -> dict[str, LabelledImages]:
    """The 1,797 digits of 8 × 8, 0 to 16, that come with scikit-learn (Alpaydin and Kaynak 1998).

    They have no published split: after a fixed shuffle the last 360 are the test set.

    Raises:
        ModuleNotFoundError: scikit-learn is not installed.
    """
    try:
        datasets: Any = importlib.import_module("sklearn.datasets")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "the digits come with scikit-learn: pip install scikit-learn."
        ) from error
    dataset = datasets.load_digits()
    order = fixed_permutation(len(dataset.target), "digits")
    images = dataset.images.astype(np.uint8)[order, :, :, None]
    labels = dataset.target.astype(np.uint8)[order]
    sets = {
        "train": LabelledImages(images[:-360], labels[:-360]),
        "test": LabelledImages(images[-360:], labels[-360:]),
    }
    _check_sizes("the set of digits", sets, {"train": 1437, "test": 360})
    return sets


def _check_sizes(name: str, sets: dict[str, LabelledImages], expected: dict[str, int]) -> None:
    for part in range(2):
        check_counts(name, {split: len(pair[part]) for split, pair in sets.items()}, expected)
