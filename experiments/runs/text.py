"""Numbers as people read them."""

from __future__ import annotations


def steps_text(steps: float) -> str:
    """1_930_000 -> "1.9 M"."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if steps >= size:
            return f"{steps / size:.1f} {unit}"
    return f"{steps:.0f}"


def time_text(seconds: float) -> str:
    """130 seconds -> "2 min 10 s"."""
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def ending_text(ended: str) -> str:
    """Why a run ended, where that is not as planned: ", diverged"."""
    return {"diverged": ", diverged", "time": ", ended by its time limit"}.get(ended, "")
