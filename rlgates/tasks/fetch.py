"""Downloads: all of a file, or an error and no file."""

from __future__ import annotations

import http.client
import os
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TIMEOUT = 60.0  # seconds without a byte
CHUNK = 2**20


class FetchError(Exception):
    """A place did not give the whole of a file."""


@contextmanager
def download(url: str, target: Path) -> Iterator[Path]:
    """The file of an address, under its own name in a folder that goes away again.

    The folder is beside `target`, so that the file can be moved there in one step.

    Raises:
        FetchError: the place cannot be reached, does not have the file, or ends too early.
        OSError: the folder of `target` cannot be written.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".part-", dir=target.parent) as folder:
        part = Path(folder) / target.name
        _copy(url, part)
        yield part


def _copy(url: str, part: Path) -> None:
    request = urllib.request.Request(url, headers={"User-Agent": "rlgates"})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as reply, part.open("wb") as out:
            if url.startswith("https:") and not reply.url.startswith("https:"):
                raise FetchError(f"{url} leads to {reply.url}, which is no https address.")
            length = int(reply.headers["Content-Length"] or -1)
            done = 0
            while chunk := reply.read(CHUNK):
                out.write(chunk)
                done += len(chunk)
                _show(url, done, length)
    except urllib.error.HTTPError as error:
        raise FetchError(f"{url} answered {error.code} ({error.reason}).") from error
    except urllib.error.URLError as error:
        raise FetchError(f"{url} cannot be reached ({error.reason}).") from error
    except (http.client.HTTPException, ConnectionError, TimeoutError) as error:
        raise FetchError(f"{url} broke off ({error!r}).") from error
    if length not in (-1, done):
        raise FetchError(f"{url} was cut off: {done} bytes came, {length} were promised.")


def _show(url: str, done: int, length: int) -> None:
    if sys.stderr.isatty():
        total = "" if length < 0 else f" of {length / 1e6:.1f}"
        end = "\n" if done == length else ""
        sys.stderr.write(f"\r{url}: {done / 1e6:.1f}{total} MB{end}")


def write_file(path: Path, made: bytes) -> None:
    """Write a file, all of it or nothing; its folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=".part-", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as out:
            out.write(made)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
