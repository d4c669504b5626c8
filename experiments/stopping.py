"""Ctrl-C and SIGTERM: what is under way is saved first."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class InterruptedRun(Exception):
    """A run was asked to stop, and saved so that it can be continued; the text says where."""


class StopRequest:
    """Turns Ctrl-C and SIGTERM into a request; the second one ends the process at once.

    Args:
        text: what the user is told.
    """

    def __init__(
        self, text: str = "stopping after this update, and saving; once more to stop at once"
    ) -> None:
        self.made, self.text = False, text

    def __call__(self) -> bool:
        return self.made

    def handle(self, _: int, __: FrameType | None) -> None:
        """The signal handler."""
        if self.made:
            for child in multiprocessing.active_children():
                child.kill()
            os._exit(130)
        self.made = True
        if multiprocessing.parent_process() is None:
            os.write(sys.stderr.fileno(), f"\n{self.text}\n".encode())

    @contextmanager
    def listening(self) -> Iterator[StopRequest]:
        """Handle the signals inside of the block."""
        # Only the main thread may; elsewhere the caller sees to its own interrupts.
        numbers = _SIGNALS if threading.current_thread() is threading.main_thread() else ()
        before = {number: signal.signal(number, self.handle) for number in numbers}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
