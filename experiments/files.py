"""Files that are either as before or wholly new, whenever the process is killed."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rlgates.experiments.stopping import InterruptedRun

try:
    import fcntl
except ImportError:  # not on Windows, where nobody sees to it that only one process writes
    fcntl = None  # type: ignore[assignment]


def write_atomically(path: Path, content: bytes) -> None:
    """Replace the file in one step, once the new content is safe on the disk.

    Raises:
        OSError: it could not be written, because the disk is full for example; the file that
            was there is as it was, and nothing else is left behind.
    """
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        text = f"{path} could not be written ({error.strerror}); what was there is as it was"
        raise OSError(error.errno, text) from error


def write_json(path: Path, content: Any) -> None:
    """As `write_atomically`, indented for people."""
    write_atomically(path, (json.dumps(content, indent=2) + "\n").encode())


class Damaged(ValueError):
    """A file does not hold what was written."""


def read_json(path: Path) -> Any:
    """The content of a JSON file; None if there is no such file.

    Raises:
        Damaged: it is no JSON.
    """
    if not path.exists():
        return None
    try:
        return json.loads(path.read_text())
    except ValueError as error:
        text = f"{path} is damaged ({error}). Put it back, or remove it to start again."
        raise Damaged(text) from error


def check_folder(name: str, path: Path) -> None:
    """Raise ValueError unless the folder can be made and written to; nothing is left behind."""
    there = next((one for one in (path, *path.parents) if os.path.lexists(one)), path)
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        reason = "it is not a folder" if there.is_file() else error.strerror
        where = f": {there}" if there != path else ""
        raise ValueError(f"{name} {path} cannot be written to{where}: {reason}.") from error


@contextmanager
def alone(folder: Path, stop: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """Hold a folder, which is made if need be: of two processes that come here one waits.

    The lock is the operating system's: none is left behind by a process that was killed.

    Raises:
        InterruptedRun: `stop` said so while another process had it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if fcntl is None:
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if stop():
                    raise InterruptedRun("another process is making it") from None
                time.sleep(0.1)
        yield
    finally:
        os.close(handle)


def held(folder: Path) -> bool:
    """Whether a process is holding that folder, see `alone`."""
    if not folder.exists():
        return False
    try:
        with alone(folder, stop=lambda: True):
            return False
    except InterruptedRun:
        return True
