"""Ctrl-C and SIGTERM: save, then stop."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)
ONCE = 0.5
"""Seconds in which signals count as one: `timeout` signals a process, and at once its group."""


class InterruptedRun(Exception):
    """A run was stopped and saved so that it can be continued; the text says where."""


class StopRequest:
    """Turns Ctrl-C and SIGTERM into a request; the second signal kills the process.

    Args:
        text: the message to the user.
        quiet: print none, as one process of several that get the signal.
    """

    def __init__(
        self,
        text: str = "stopping after this update, and saving; once more to stop at once",
        quiet: bool = False,
    ) -> None:
        self.requested, self.text, self.quiet = False, text, quiet
        self.since = 0.0

    def __call__(self) -> bool:
        return self.requested

    def handle(self, _: int, __: FrameType | None) -> None:
        """The signal handler."""
        if self.requested:
            if time.monotonic() < self.since + ONCE:
                return
            for child in multiprocessing.active_children():
                child.kill()
            os._exit(130)
        self.requested, self.since = True, time.monotonic()
        if multiprocessing.parent_process() is None and not self.quiet:
            # The reader of a pipe, such as tee, ends at the same Ctrl-C.
            with suppress(OSError, ValueError):
                os.write(sys.stderr.fileno(), f"\n{self.text}\n".encode())

    @contextmanager
    def listening(self) -> Iterator[StopRequest]:
        """Handle the signals inside the block."""
        # Python allows it in the main thread only; elsewhere the caller handles interrupts.
        numbers = SIGNALS if threading.current_thread() is threading.main_thread() else ()
        before = {number: signal.signal(number, self.handle) for number in numbers}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


@contextmanager
def ignoring_interrupts() -> Iterator[None]:
    """Start processes in the block that ignore Ctrl-C: this one handles it, and asks them to stop.

    The terminal sends it to all of them, and until they listen it would kill them.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
