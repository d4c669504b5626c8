"""What tests need on a GPU."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def no_synchronization() -> Iterator[None]:
    """Raise where an operation waits for the GPU."""
    before = torch.cuda.get_sync_debug_mode()
    try:
        with warnings.catch_warnings():  # that this mode is a prototype
            warnings.simplefilter("ignore")
            torch.cuda.set_sync_debug_mode("error")
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)
