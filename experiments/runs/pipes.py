"""A closed pipe, as behind `rlgates task --list | head`, is no error."""

from __future__ import annotations

import io
import os
import sys


class _Pipe(io.RawIOBase):
    """Writes to a file descriptor, and drops everything once nobody reads it."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self.descriptor = descriptor

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self.descriptor

    def isatty(self) -> bool:
        return os.isatty(self.descriptor)

    def write(self, content: object) -> int:
        data = memoryview(content).cast("B")  # type: ignore[arg-type]
        try:
            return os.write(self.descriptor, data)
        except BrokenPipeError:
            return len(data)


def survive_closed_pipes() -> None:
    """Let this process go on when a reader of its output has left: a run must not fail by it."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            stream.flush()
            setattr(
                sys,
                name,
                io.TextIOWrapper(
                    io.BufferedWriter(_Pipe(stream.fileno())),
                    stream.encoding,
                    stream.errors,
                    line_buffering=stream.line_buffering or stream.write_through,
                ),
            )
