"""The lock of a folder: one process at a time works on a run, or writes into results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from rlgates.experiments.runs.stopping import InterruptedRun

LOCK = ".lock"  # a file in each locked folder


@contextmanager
def locked(folder: Path, stop: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """Lock a folder, created if missing; waits while another process holds the lock.

    The operating system holds the lock, on a file in the folder: it ends with the process. A thread
    that holds it may lock the folder again inside of the block.

    Raises:
        InterruptedRun: `stop` returned true while another process held the lock.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder.absolute() / LOCK, is_singleton=True)
    try:
        lock.acquire(poll_interval=0.1, cancel_check=stop)
    except Timeout:
        raise InterruptedRun("another process is working on it") from None
    try:
        yield
    finally:
        lock.release()


def is_locked(folder: Path) -> bool:
    """Whether a process holds the lock of the folder."""
    if not (folder / LOCK).exists():
        return False
    try:
        with FileLock(folder / LOCK).acquire(blocking=False):
            return False
    except Timeout:
        return True
