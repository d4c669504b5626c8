"""Data files: where they are found, how they are fetched, and how they are checked.

A file of a data set is looked for in two folders: first in `data_dir`, or else in the folder that
the environment variable RLGATES_DATA names; then in the cache (`rlgates` in $XDG_CACHE_HOME, or in
~/.cache). A file that is in neither is downloaded from its published address into the cache, or
rebuilt from the Hugging Face hub if no address answers, unless RLGATES_OFFLINE is set. Files stay
as they were published: compressed files are decompressed when they are read, and members of an
archive are read from the archive. No member is ever written under its own name.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import lzma
import os
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

import numpy as np

from rlgates.atomic import write_atomically
from rlgates.experiments.tasks.data.fetch import FetchError, download
from rlgates.experiments.tasks.data.hub import HubDataset

DataDir = str | os.PathLike[str] | None

DATA_VARIABLE, OFFLINE_VARIABLE = "RLGATES_DATA", "RLGATES_OFFLINE"
MAX_SIZE = 2**30
"""Bytes that a file or an archive of unknown size may have when it is decompressed."""
OPENERS: dict[str, Callable[..., Any]] = {"": open, ".gz": gzip.open, ".xz": lzma.open}
DECOMPRESSION_ERRORS = (
    EOFError,
    gzip.BadGzipFile,
    lzma.LZMAError,
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
)


@dataclass(frozen=True)
class File:
    """A file of a data set.

    Attributes:
        folder: folder of the data set, below the data folder.
        name: name of the decompressed file; a file with `.gz` or `.xz` added is found, too.
        digest: SHA-256 or (32 digits) MD5 of the decompressed content, hexadecimal; empty if none
            is known: then the first read keeps it in the cache, and a later change is an error.
        urls: addresses to download it from; the first that answers is used.
        member: path in the zip archive at those addresses; empty if they hold the file itself.
        convert: makes the content from the archive at those addresses, for content that no
            single member holds. The result is kept in the cache, with its SHA-256 beside it, which
            is checked if no `digest` is known.
        max_size: bytes that the decompressed file has at most; it is not decompressed further.
        archive_digest: SHA-256 of the archive, checked before it is unpacked; empty if none is
            known.
        checked_when_parsed: whether whoever parses the content holds it against a digest of what is
            in it, so that none of the first read is kept.
        hub: a data set of the Hugging Face hub, tried last; its content is kept like that of
            `convert`.
        hint: a sentence for users who do not have the file.
    """

    folder: str
    name: str
    digest: str = ""
    urls: tuple[str, ...] = ()
    member: str = ""
    convert: Callable[[Path], bytes] | None = None
    max_size: int = MAX_SIZE
    archive_digest: str = ""
    checked_when_parsed: bool = False
    hub: HubDataset | None = None
    hint: str = ""

    def __post_init__(self) -> None:
        if self.hub is not None and not (self.digest or self.hub.revision):
            raise ValueError(f"{self.name}: a hub data set needs a revision, or the file a digest.")

    @property
    def archives(self) -> list[str]:
        """Names of the archives that hold the file, or what it is converted from."""
        return [url_file_name(url) for url in self.urls] if self.member or self.convert else []

    @property
    def published_names(self) -> list[str]:
        """The names under which users may provide the file."""
        plain = [] if self.convert else [self.name + suffix for suffix in OPENERS]
        return plain + self.archives


def url_file_name(url: str) -> str:
    """The file name in an address."""
    return urlsplit(url).path.rpartition("/")[2]


def cache_folder() -> Path:
    """The folder that keeps downloaded and converted files."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(home) if home else Path.home() / ".cache") / "rlgates"


def data_folders(data_dir: DataDir = None) -> list[Path]:
    """The folders to search, in order.

    Args:
        data_dir: the user's folder, with one folder for each data set; None for RLGATES_DATA.

    Raises:
        TypeError: `data_dir` is no path.
        FileNotFoundError: the user's folder does not exist.
    """
    folder = os.environ.get(DATA_VARIABLE, "") if data_dir is None else data_dir
    if not isinstance(folder, str | os.PathLike):
        raise TypeError(f"data_dir must be a path or None, got {data_dir!r}.")
    if not os.fspath(folder):
        return [cache_folder()]
    if not Path(folder).is_dir():
        source = DATA_VARIABLE if data_dir is None else "data_dir"
        raise FileNotFoundError(f"{source} must name a folder, but there is none at {folder}.")
    return [Path(folder), cache_folder()]


def set_data_dir(data_dir: DataDir) -> None:
    """Search this folder first from now on, in this process and in all that it starts.

    Raises:
        FileNotFoundError: the folder does not exist.
    """
    if data_dir is not None:
        os.environ[DATA_VARIABLE] = str(data_folders(data_dir)[0].resolve())


def find_file(file: File, data_dir: DataDir = None) -> Path | None:
    """The path of a file, in any of its forms, or None. Nothing is downloaded."""
    folders = [folder / file.folder for folder in data_folders(data_dir)]
    plain = folders[-1:] if file.convert else folders  # converted files are in the cache alone
    paths = [folder / (file.name + suffix) for folder in plain for suffix in OPENERS]
    paths += [folder / name for folder in folders for name in file.archives]
    return next((path for path in paths if path.is_file()), None)


def read_file(file: File, data_dir: DataDir = None) -> bytes:
    """The decompressed content of a file, which is downloaded if necessary.

    Raises:
        FileNotFoundError: it does not exist and cannot be downloaded; the message says where to
            put it.
        ValueError: it is truncated, or its content is not the published one.
    """
    path = find_file(file, data_dir)
    content = _fetch(file, data_dir) if path is None else read_path(file, path)
    if file.convert is not None and (path is None or path.name in file.archives):
        with suppress(OSError):  # without a writable cache, it is converted each time
            store_in_cache(file.folder, file.name, content)
    return content


def read_path(file: File, path: Path) -> bytes:
    """The decompressed content of a file at `path`, checked.

    Raises:
        ValueError: it is truncated, or its content is not the published one.
    """
    suffix = path.name.removeprefix(file.name) if path.name.startswith(file.name) else None
    if suffix not in OPENERS:
        _check_archive(file, path)
    try:
        if suffix in OPENERS:
            with OPENERS[suffix](path, "rb") as stream:
                content = _read_at_most(file.max_size, stream, path)
        elif file.convert is not None:
            content = file.convert(path)
        else:
            with zipfile.ZipFile(path) as archive, archive.open(file.member) as stream:
                content = _read_at_most(file.max_size, stream, path)
    except KeyError as error:
        raise ValueError(f"{path} is an archive without {file.member}.") from error
    except DECOMPRESSION_ERRORS as error:
        raise ValueError(
            f"{path} cannot be unpacked: it is truncated or damaged ({error}). Remove it."
        ) from error
    if file.digest:
        _check(content, file.digest, str(path), "It is truncated or altered: remove it.")
    elif not file.checked_when_parsed and (file.convert is None or suffix in OPENERS):
        _check_as_before(file, path, content)
    return content


def _check_as_before(file: File, path: Path, content: bytes) -> None:
    """Check a file of which no digest is published against what was written or first read.

    A digest is beside it, if this library wrote it; else it is kept in the cache, where the first
    read puts it.
    """
    beside = path.with_name(path.name + ".sha256")
    place = hashlib.sha256(str(path.absolute()).encode()).hexdigest()[:16]
    kept = cache_folder() / file.folder / f"{file.name}.{place}.sha256"
    for record in (beside, kept):
        if record.is_file():
            expected = record.read_text(errors="replace").strip()
            advice = "It is truncated or altered: remove it."
            if record == kept:
                advice = (
                    "No digest of it is published; this was expected because it was read at first. "
                    f"Put it back, or, if it was replaced on purpose, remove {kept}."
                )
            _check(content, expected, str(path), advice)
            return
    with suppress(OSError):  # without a writable cache, it is not checked
        write_atomically(kept, hashlib.sha256(content).hexdigest().encode())


def _read_at_most(limit: int, stream: IO[bytes], path: Path) -> bytes:
    """The rest of a stream, which is not decompressed beyond `limit` bytes."""
    content = stream.read(limit + 1)
    if len(content) > limit:
        raise ValueError(
            f"{path} is not the published file: it is longer than {limit:,} bytes. Remove it."
        )
    return content


class _Bounded:
    """A stream of bytes that ends with a ValueError after `limit` of them."""

    def __init__(self, stream: IO[bytes] | gzip.GzipFile, limit: int, path: Path) -> None:
        self.stream, self.left, self.path = stream, limit, path

    def read(self, size: int) -> bytes:
        content = self.stream.read(min(size, self.left + 1))
        self.left -= len(content)
        if self.left < 0:
            raise ValueError(
                f"{self.path} is not the published archive: it is too long. Remove it."
            )
        return content


def _check(content: bytes, expected: str, source: str, advice: str) -> None:
    algorithm = "md5" if len(expected) == 32 else "sha256"
    digest = hashlib.new(algorithm, content).hexdigest() if expected else ""
    if digest != expected:
        raise ValueError(
            f"{source} is not the published file: the {algorithm} of its decompressed content is "
            f"{digest}, expected {expected}. {advice}"
        )


def _check_archive(file: File, path: Path) -> None:
    if not file.archive_digest:
        return
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    if digest != file.archive_digest:
        raise ValueError(
            f"{path} is not the published archive: its SHA-256 is {digest}, expected "
            f"{file.archive_digest}. It is truncated or altered: remove it."
        )


def _fetch(file: File, data_dir: DataDir) -> bytes:
    if os.environ.get(OFFLINE_VARIABLE, "") not in ("", "0"):
        raise missing_file(file, data_dir, f"{OFFLINE_VARIABLE} is set.")
    failures = []
    for url in file.urls:
        target = cache_folder() / file.folder / url_file_name(url)
        try:
            with download(url, target) as part:
                content = read_path(file, part)
                part.replace(target)
                return content
        except FetchError as error:
            failures.append(str(error))
        except ValueError as error:
            raise ValueError(f"{url} is not the expected file. {error}") from error
    if file.hub is not None:
        try:
            content = file.hub.content()
        except FetchError as error:
            failures.append(str(error))
        else:
            source = f"{file.hub.repository} on the Hugging Face hub"
            _check(content, file.digest, source, "It was changed there: download the file by hand.")
            with suppress(OSError):
                store_in_cache(file.folder, file.name, content)
            return content
    raise missing_file(file, data_dir, " ".join(failures))


def read_arrays(file: File, names: Sequence[str], data_dir: DataDir = None) -> dict[str, Any]:
    """The arrays of an .npz file, by name. Nothing is unpickled.

    Raises:
        FileNotFoundError, ValueError: as `read_file`.
        ValueError: it is no .npz file, or lacks one of the arrays.
    """
    content = read_file(file, data_dir)
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            return {name: arrays[name] for name in names}
    except (*DECOMPRESSION_ERRORS, KeyError, ValueError, AttributeError) as error:
        raise ValueError(
            f"{find_file(file, data_dir) or file.name} is truncated or altered: it must be an .npz "
            f"file with the arrays {', '.join(names)} ({error}). Remove it."
        ) from error


def store_in_cache(folder: str, name: str, content: bytes) -> None:
    """Keep converted content in the cache, with its digest beside it."""
    path = cache_folder() / folder / name
    write_atomically(path.with_name(name + ".sha256"), hashlib.sha256(content).hexdigest().encode())
    write_atomically(path, content)


def missing_file(file: File, data_dir: DataDir = None, reason: str = "") -> FileNotFoundError:
    """The error for a missing file: what to put where."""
    folders = " or ".join(str(folder / file.folder) for folder in data_folders(data_dir))
    source = f" Source: {', '.join(file.urls)}." if file.urls else ""
    return FileNotFoundError(
        f"the data file {file.folder}/{file.name} is missing and was not downloaded. {reason} "
        f"Put it into {folders}, as {', '.join(file.published_names)}, or set {DATA_VARIABLE} to "
        f"the folder that contains {file.folder}/.{source} {file.hint}".replace("  ", " ").rstrip()
    )


def archive_members(path: Path, max_size: int = MAX_SIZE) -> Iterator[tuple[str, bytes]]:
    """Names and contents of the files of a .tar.gz, in its order.

    The stream is read to its end, so that its check sum is verified.

    Raises:
        ValueError: it holds more than `max_size` bytes; no more are decompressed.
    """
    with gzip.open(path, "rb") as compressed:
        stream: Any = _Bounded(compressed, max_size, path)
        with tarfile.open(fileobj=stream, mode="r|") as archive:
            for entry in archive:
                member = archive.extractfile(entry) if entry.isfile() else None
                if member is not None:
                    yield entry.name.removeprefix("./"), member.read()
        while stream.read(2**20):
            pass
