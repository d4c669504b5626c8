"""Pictures in the order of their publishers: MNIST, CIFAR-10, and scikit-learn's small digits."""

from __future__ import annotations

import hashlib
import importlib
import io
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlgates.tasks.data import File, Folder, arrays, find, members, read, store
from rlgates.tasks.hub import Hub
from rlgates.tasks.stored import check_counts, fixed_order

Bytes = NDArray[np.uint8]


class Pictures(NamedTuple):
    """Pictures (N, height, width, channels) and their classes (N,), both uint8."""

    images: Bytes
    labels: Bytes


def _columns(rows: Any, image: str) -> Pictures:
    """What a split of the hub holds, which are PNG files."""
    rows = rows.with_format("numpy")
    batches = [(batch[image], batch["label"]) for batch in rows.iter(1_000)]
    images, labels = map(np.concatenate, zip(*batches, strict=True))
    return Pictures(images.reshape(*images.shape[:3], -1), labels.astype(np.uint8))


def _idx(array: Bytes) -> bytes:
    """An IDX file of bytes: type and number of dimensions, their sizes, and what is in it."""
    return np.array([0x800 + array.ndim, *array.shape], dtype=">i4").tobytes() + array.tobytes()


def _mnist_file(name: str, digest: str) -> File:
    places = (
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
    )

    def convert(rows: Any) -> bytes:
        images, labels = _columns(rows, "image")
        return _idx(images[..., 0] if "images" in name else labels)

    return File(
        "mnist",
        name,
        digest,
        tuple(f"{place}{name}.gz" for place in places),
        hint="The small digits of scikit-learn need no file: task digits.",
        hub=Hub("ylecun/mnist", ("train" if name.startswith("train") else "test",), convert),
    )


MNIST = {
    "train": (
        _mnist_file(
            "train-images-idx3-ubyte",
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        ),
        _mnist_file(
            "train-labels-idx1-ubyte",
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        ),
    ),
    "test": (
        _mnist_file(
            "t10k-images-idx3-ubyte",
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        ),
        _mnist_file(
            "t10k-labels-idx1-ubyte",
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        ),
    ),
}


def mnist(data_dir: Folder = None) -> dict[str, Pictures]:
    """MNIST (LeCun, Cortes, Burges): 60,000 and 10,000 pictures of 28 × 28, from the IDX files.

    Raises:
        FileNotFoundError, ValueError: as `rlgates.tasks.data.read`.
    """
    sets = {
        split: Pictures(
            np.frombuffer(read(images, data_dir), np.uint8, offset=16).reshape(-1, 28, 28, 1),
            np.frombuffer(read(labels, data_dir), np.uint8, offset=8),
        )
        for split, (images, labels) in MNIST.items()
    }
    _check("MNIST", sets, {"train": 60_000, "test": 10_000})
    return sets


def _converted(archive: Path) -> bytes:
    """The .npz of the official binary archive."""
    batches = {name.rpartition("/")[2]: made for name, made in members(archive)}
    absent = [name for name in CIFAR_BATCHES if name not in batches]
    if absent:
        raise ValueError(f"{archive} has no {', '.join(absent)}.")
    return _packed(_of_batches([batches[name] for name in CIFAR_BATCHES]))


CIFAR_BATCHES = [*(f"data_batch_{n}.bin" for n in range(1, 6)), "test_batch.bin"]
CIFAR_ATLASES = {
    "train": [f"train_{n:02}.jxl" for n in range(20)],
    "test": [f"test_{n:02}.jxl" for n in range(4)],
}
# SHA-256 of the pictures (N, 32, 32, 3), and of the classes.
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
    convert=_converted,
    hub=Hub(
        "uoft-cs/cifar10",
        ("train", "test"),
        lambda train, test: _packed(
            _check_cifar({"train": _columns(train, "img"), "test": _columns(test, "img")})
        ),
    ),
    hint="The six .bin files of that archive will do as well.",
)


def cifar10(data_dir: Folder = None) -> dict[str, Pictures]:
    """CIFAR-10 (Krizhevsky 2009): 50,000 and 10,000 pictures of 32 × 32 in red, green and blue.

    Read from the official binary archive, from its .bin files, or from lossless atlases in
    JPEG XL (`train_00.jxl` to `train_19.jxl`, `test_00.jxl` to `test_03.jxl`, 50 × 50 pictures
    each, with `labels.npz`), which are decoded once and then kept in the cache.

    Raises:
        FileNotFoundError, ValueError: as `rlgates.tasks.data.read`.
        ModuleNotFoundError: there are atlases alone, but no `imagecodecs` to decode them.
    """
    found, first_batch, first_atlas = (
        find(file, data_dir)
        for file in (CIFAR, File("cifar10", CIFAR_BATCHES[0]), File("cifar10", "train_00.jxl"))
    )
    if found is None and first_batch is not None:
        batches = [File("cifar10", name) for name in CIFAR_BATCHES]
        sets = _of_batches([read(batch, data_dir) for batch in batches])
    elif found is None and first_atlas is not None:
        sets = _of_atlases(data_dir)
    else:
        names = [f"{split}_{part}" for split in CIFAR_DIGESTS for part in Pictures._fields]
        made = arrays(CIFAR, names, data_dir)
        sets = {
            split: Pictures(made[f"{split}_images"], made[f"{split}_labels"])
            for split in CIFAR_DIGESTS
        }
    _check_cifar(sets)
    if found is None and first_batch is None and first_atlas is not None:
        with suppress(OSError):  # where the cache cannot be written, they are decoded each time
            store(CIFAR.folder, CIFAR.name, _packed(sets))
    return sets


def _check_cifar(sets: dict[str, Pictures]) -> dict[str, Pictures]:
    for split, expected in CIFAR_DIGESTS.items():
        found = tuple(hashlib.sha256(array.tobytes()).hexdigest() for array in sets[split])
        if found != expected:
            raise ValueError(
                f"the {split} pictures of CIFAR-10 are not the published ones: SHA-256 of pictures "
                f"and classes is {found}, expected {expected}."
            )
    return sets


def _of_batches(batches: list[bytes]) -> dict[str, Pictures]:
    """Records of a class and 3,072 bytes, colour by colour; the last batch is the test set."""
    rows = [np.frombuffer(batch, np.uint8) for batch in batches]
    wrong = [name for name, row in zip(CIFAR_BATCHES, rows, strict=True) if row.size % 3073]
    if wrong:
        raise ValueError(f"{', '.join(wrong)} of CIFAR-10 must be records of 3,073 bytes.")
    sets = {}
    for split, part in (("train", rows[:-1]), ("test", rows[-1:])):
        records = np.concatenate(part).reshape(-1, 3073)
        images = records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        sets[split] = Pictures(np.ascontiguousarray(images), records[:, 0].copy())
    return sets


def _of_atlases(data_dir: Folder) -> dict[str, Pictures]:
    try:
        codecs: Any = importlib.import_module("imagecodecs")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "CIFAR-10 lies there as JPEG XL atlases, which need imagecodecs: pip install "
            "imagecodecs. Or put the official cifar-10-binary.tar.gz beside them."
        ) from error
    classes = arrays(File("cifar10", "labels.npz"), list(CIFAR_ATLASES), data_dir)
    sets = {}
    for split, names in CIFAR_ATLASES.items():
        atlases = [codecs.jpegxl_decode(read(File("cifar10", n), data_dir)) for n in names]
        tiles = np.stack(atlases).reshape(len(names), 50, 32, 50, 32, 3)
        images = tiles.transpose(0, 1, 3, 2, 4, 5).reshape(-1, 32, 32, 3)
        sets[split] = Pictures(images, classes[split])
    return sets


def _packed(sets: dict[str, Pictures]) -> bytes:
    stream = io.BytesIO()
    named = {f"{split}_images": pictures.images for split, pictures in sets.items()}
    named |= {f"{split}_labels": pictures.labels for split, pictures in sets.items()}
    np.savez(stream, allow_pickle=False, **named)
    return stream.getvalue()


def digits() -> dict[str, Pictures]:
    """The 1,797 digits of 8 × 8, 0 to 16, that come with scikit-learn (Alpaydin and Kaynak 1998).

    There is no split of them: after a fixed shuffle the last 360 are for the test.

    Raises:
        ModuleNotFoundError: scikit-learn is not installed.
    """
    try:
        datasets: Any = importlib.import_module("sklearn.datasets")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "the digits come with scikit-learn: pip install scikit-learn."
        ) from error
    found = datasets.load_digits()
    order = fixed_order(len(found.target), "digits")
    images = found.images.astype(np.uint8)[order, :, :, None]
    labels = found.target.astype(np.uint8)[order]
    sets = {
        "train": Pictures(images[:-360], labels[:-360]),
        "test": Pictures(images[-360:], labels[-360:]),
    }
    _check("the set of digits", sets, {"train": 1437, "test": 360})
    return sets


def _check(name: str, sets: dict[str, Pictures], expected: dict[str, int]) -> None:
    for part in range(2):
        check_counts(name, {split: len(both[part]) for split, both in sets.items()}, expected)
