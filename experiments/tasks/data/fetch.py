"""Downloads: the complete file, or an error and no file."""

from __future__ import annotations

import http.client
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TIMEOUT = 60.0  # seconds without data
CHUNK = 2**20


class FetchError(Exception):
    """An address did not deliver the complete file."""


@contextmanager
def download(url: str, target: Path) -> Iterator[Path]:
    """Download a file into a temporary folder, under the name of `target`.

    The folder is beside `target`, so that the file can be moved there atomically.

    Raises:
        FetchError: the server cannot be reached, lacks the file, or stops too early.
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
                raise FetchError(f"{url} redirects to {reply.url}, which is not an https address.")
            length = int(reply.headers["Content-Length"] or -1)
            done = 0
            while chunk := reply.read(CHUNK):
                out.write(chunk)
                done += len(chunk)
                _show_progress(url, done, length)
    except urllib.error.HTTPError as error:
        raise FetchError(f"{url} answered {error.code} ({error.reason}).") from error
    except urllib.error.URLError as error:
        raise FetchError(f"{url} cannot be reached ({error.reason}).") from error
    except (http.client.HTTPException, ConnectionError, TimeoutError) as error:
        raise FetchError(f"the download of {url} failed ({error!r}).") from error
    if length not in (-1, done):
        raise FetchError(f"{url} was cut off: got {done} bytes, expected {length}.")


def _show_progress(url: str, done: int, length: int) -> None:
    if sys.stderr.isatty():
        total = "" if length < 0 else f" of {length / 1e6:.1f}"
        end = "\n" if done == length else ""
        sys.stderr.write(f"\r{url}: {done / 1e6:.1f}{total} MB{end}")
