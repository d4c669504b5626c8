"""What a device's name on the command line means here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from rlgates.errors import check_choice, check_size

MAX_THREADS = 512
"""More would make no run faster, and the OpenMP runtime ends a process that cannot start them."""


DEVICES = ("cpu", "cuda", "auto")


def find_device(name: str, allowed: tuple[str, ...] = DEVICES) -> torch.device:
    """The device that is meant; "auto" is a GPU where there is one.

    Args:
        name: one of `allowed`.
        allowed: the last of them is proposed where there is no GPU.

    Raises:
        ValueError: an unknown name, or no GPU where one is asked for.
    """
    check_choice("device", name, allowed)
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device is 'cuda', but torch finds no GPU here; try {allowed[-1]!r}.")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def check_threads(threads: int) -> int:
    """`threads`, if a run can use so many; else raise ValueError or TypeError."""
    return check_size("threads", threads, maximum=MAX_THREADS)


@contextmanager
def threads_set(threads: int) -> Iterator[None]:
    """Let torch use this many threads, and restore the number at the end."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
