"""A measurement with preparations, which a process of its own can import."""

from __future__ import annotations

import time
from collections.abc import Callable


def stretch() -> Callable[[], dict[str, float]]:
    """When its preparations end, and when it measures, by a clock of all processes."""
    ready = time.monotonic()

    def measure() -> dict[str, float]:
        begin = time.monotonic()
        time.sleep(0.1)
        return {"ready": ready, "begin": begin, "end": time.monotonic()}

    return measure
