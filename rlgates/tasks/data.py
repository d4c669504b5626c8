"""Where data sets are found, how they are fetched, and that they are what they should be.

A file of a set is looked for in two folders: first the one that is given, as `data_dir` or by
the environment variable RLGATES_DATA, then the cache (`rlgates` in $XDG_CACHE_HOME, or in
~/.cache). What is in neither is fetched from its published place into the cache, or made of what
the Hugging Face hub has if that place is silent, unless RLGATES_OFFLINE is set. Files stay as they
were published: packed ones are unpacked when they are read, and of archives single members are
read; none is ever written under a name of its own.
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
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from rlgates.tasks.fetch import FetchError, download, write_file
from rlgates.tasks.hub import Hub

Folder = str | os.PathLike[str] | None

DATA_VARIABLE, OFFLINE_VARIABLE = "RLGATES_DATA", "RLGATES_OFFLINE"
PACKERS: dict[str, Callable[..., Any]] = {"": open, ".gz": gzip.open, ".xz": lzma.open}
UNREADABLE = (
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
        folder: of the set, below the data folder.
        name: of the file unpacked; it may lie there with `.gz` or `.xz` added, too.
        digest: of the unpacked content in hexadecimal digits, SHA-256 or (32 digits) MD5; empty if
            nobody published one.
        urls: the places to fetch it from, the first that answers; empty if there is none.
        member: its path in the zip archive that the places hold; empty if they hold the file.
        convert: makes the content of the archive that the places hold, for files that are not
            in there as they are. What was made is kept in the cache, its SHA-256 beside it.
        archive_digest: SHA-256 of the archive, which is looked at before anything is unpacked;
            empty if nobody published one.
        hub: the last place, a set of the Hugging Face hub; its content is kept in the same way.
        hint: a sentence for those who do not have the file.
    """

    folder: str
    name: str
    digest: str = ""
    urls: tuple[str, ...] = ()
    member: str = ""
    convert: Callable[[Path], bytes] | None = None
    archive_digest: str = ""
    hub: Hub | None = None
    hint: str = ""

    @property
    def archives(self) -> list[str]:
        """The names of archives that hold it or what it is made of."""
        return [published(url) for url in self.urls] if self.member or self.convert else []

    @property
    def forms(self) -> list[str]:
        """The names under which it may lie in its folder, archives last."""
        return [self.name + suffix for suffix in PACKERS] + self.archives


def published(url: str) -> str:
    """The file name in an address."""
    return urlsplit(url).path.rpartition("/")[2]


def cache_folder() -> Path:
    """Where fetched files are kept."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(home) if home else Path.home() / ".cache") / "rlgates"


def data_folders(data_dir: Folder = None) -> list[Path]:
    """The folders to look in, the first first.

    Args:
        data_dir: the user's folder, with one folder a set; None for that of RLGATES_DATA, if set.

    Raises:
        TypeError: `data_dir` is no path. FileNotFoundError: the user's folder is not there.
    """
    given = os.environ.get(DATA_VARIABLE, "") if data_dir is None else data_dir
    if not isinstance(given, str | os.PathLike):
        raise TypeError(f"data_dir must be a path or None, got {data_dir!r}.")
    if not os.fspath(given):
        return [cache_folder()]
    if not Path(given).is_dir():
        named = DATA_VARIABLE if data_dir is None else "data_dir"
        raise FileNotFoundError(f"{named} must name a folder, but there is none at {given}.")
    return [Path(given), cache_folder()]


def use_data(data_dir: Folder) -> None:
    """Look in that folder first from now on, in this process and in all that it starts.

    Raises:
        FileNotFoundError: it is not there.
    """
    if data_dir is not None:
        os.environ[DATA_VARIABLE] = str(data_folders(data_dir)[0].resolve())


def find(file: File, data_dir: Folder = None) -> Path | None:
    """The path of a file, in whatever form it lies there, or None; nothing is fetched."""
    folders = [folder / file.folder for folder in data_folders(data_dir)]
    files = [folder / (file.name + suffix) for folder in folders for suffix in PACKERS]
    archives = [folder / name for folder in folders for name in file.archives]
    return next((path for path in files + archives if path.is_file()), None)


def read(file: File, data_dir: Folder = None) -> bytes:
    """The unpacked content of a file, fetched if it has to be.

    Raises:
        FileNotFoundError: it is nowhere, and cannot be fetched; the error says where to put it.
        ValueError: it is truncated, or its content is not the published one.
    """
    path = find(file, data_dir)
    found = _fetched(file, data_dir) if path is None else content(file, path)
    if file.convert is not None and (path is None or path.name in file.archives):
        with suppress(OSError):  # where the cache cannot be written, it is made each time
            store(file.folder, file.name, found)
    return found


def content(file: File, path: Path) -> bytes:
    """The unpacked content of a file that lies at `path`, checked.

    Raises:
        ValueError: it is truncated, or its content is not the published one.
    """
    suffix = path.name.removeprefix(file.name) if path.name.startswith(file.name) else None
    if suffix not in PACKERS:
        _check_archive(file, path)
    try:
        if suffix in PACKERS:
            with PACKERS[suffix](path, "rb") as stream:
                unpacked: bytes = stream.read()
        elif file.convert is not None:
            return file.convert(path)  # the archive's own sums tell whether it is whole
        else:
            with zipfile.ZipFile(path) as archive:
                unpacked = archive.read(file.member)
    except KeyError as error:
        raise ValueError(f"{path} is an archive without {file.member}.") from error
    except UNREADABLE as error:
        raise ValueError(
            f"{path} cannot be unpacked: it is truncated or damaged ({error}). Remove it."
        ) from error
    beside = path.with_name(path.name + ".sha256")
    expected = beside.read_text().strip() if beside.is_file() else file.digest
    _check(unpacked, expected, str(path), "It is truncated or altered: remove it.")
    return unpacked


def _check(unpacked: bytes, expected: str, where: str, advice: str) -> None:
    algorithm = "md5" if len(expected) == 32 else "sha256"
    found = hashlib.new(algorithm, unpacked).hexdigest() if expected else ""
    if found != expected:
        raise ValueError(
            f"{where} is not the published file: the {algorithm} of its content (unpacked) is "
            f"{found}, expected {expected}. {advice}"
        )


def _check_archive(file: File, path: Path) -> None:
    if not file.archive_digest:
        return
    with path.open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found != file.archive_digest:
        raise ValueError(
            f"{path} is not the published archive: its SHA-256 is {found}, expected "
            f"{file.archive_digest}. It is truncated or altered: remove it."
        )


def _fetched(file: File, data_dir: Folder) -> bytes:
    if os.environ.get(OFFLINE_VARIABLE, "") not in ("", "0"):
        raise missing(file, data_dir, f"{OFFLINE_VARIABLE} is set.")
    failed = []
    for url in file.urls:
        target = cache_folder() / file.folder / published(url)
        try:
            with download(url, target) as part:
                found = content(file, part)
                part.replace(target)
                return found
        except FetchError as error:
            failed.append(str(error))
        except ValueError as error:
            raise ValueError(f"{url} gave something else than expected. {error}") from error
    if file.hub is not None:
        try:
            found = file.hub.content()
        except FetchError as error:
            failed.append(str(error))
        else:
            where = f"what the Hugging Face hub has as {file.hub.repository}"
            _check(found, file.digest, where, "It was changed there: fetch the file by hand.")
            with suppress(OSError):
                store(file.folder, file.name, found)
            return found
    raise missing(file, data_dir, " ".join(failed))


def arrays(file: File, names: Sequence[str], data_dir: Folder = None) -> dict[str, Any]:
    """The arrays of an .npz file, by name; nothing in it is unpickled.

    Raises:
        FileNotFoundError, ValueError: as `read`.
        ValueError: it is no .npz file, or lacks one of the arrays.
    """
    packed = read(file, data_dir)
    try:
        with np.load(io.BytesIO(packed), allow_pickle=False) as found:
            return {name: found[name] for name in names}
    except (*UNREADABLE, KeyError, ValueError, AttributeError) as error:
        where = find(file, data_dir) or file.name
        raise ValueError(
            f"{where} is truncated or altered: it must be an .npz file with the arrays "
            f"{', '.join(names)} ({error}). Remove it."
        ) from error


def store(folder: str, name: str, made: bytes) -> None:
    """Keep a content that was made of published files in the cache, with its digest beside it."""
    path = cache_folder() / folder / name
    write_file(path.with_name(name + ".sha256"), hashlib.sha256(made).hexdigest().encode())
    write_file(path, made)


def missing(file: File, data_dir: Folder = None, reason: str = "") -> FileNotFoundError:
    """The error for a file that is nowhere: what to put where."""
    places = " or ".join(str(folder / file.folder) for folder in data_folders(data_dir))
    source = f" Its source: {', '.join(file.urls)}." if file.urls else ""
    return FileNotFoundError(
        f"the data file {file.folder}/{file.name} is not there, and was not fetched. {reason} "
        f"Put it into {places}, as {', '.join(file.forms)}, or set {DATA_VARIABLE} to the folder "
        f"that has {file.folder}/ in it.{source} {file.hint}".replace("  ", " ").rstrip()
    )


def members(path: Path) -> Iterator[tuple[str, bytes]]:
    """Names and contents of the files in a .tar.gz, in its order; it is read to its very end."""
    with gzip.open(path, "rb") as packed:
        with tarfile.open(fileobj=packed, mode="r|") as archive:
            for entry in archive:
                stream = archive.extractfile(entry) if entry.isfile() else None
                if stream is not None:
                    yield entry.name.removeprefix("./"), stream.read()
        while packed.read(2**20):  # so that its check sum is looked at
            pass
