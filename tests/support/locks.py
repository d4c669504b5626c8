"""Locks of folders, held by somebody else."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rlgates.experiments.runs.locks import locked


@contextmanager
def locked_elsewhere(folder: Path) -> Iterator[None]:
    """Inside of the block, another thread holds the lock of the folder, as a process would."""
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with locked(folder):
            held.set()
            done.wait()

    thread = threading.Thread(target=hold, daemon=True)
    thread.start()
    assert held.wait(60)
    try:
        yield
    finally:
        done.set()
        thread.join()
