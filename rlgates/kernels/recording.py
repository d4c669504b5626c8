"""Whether work is recorded in a CUDA graph, whose launches take a tenth of those from Python."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

_depth = 0


@contextmanager
def recording() -> Iterator[None]:
    """Choose the kernels that are fastest in a CUDA graph.

    Around the runs before the recording too, in which these kernels are compiled. It holds for all
    threads: autograd has its own.
    """
    global _depth
    _depth += 1
    try:
        yield
    finally:
        _depth -= 1


def is_recording() -> bool:
    """Whether that is so."""
    return _depth > 0
