"""How far a supervised run is: a bar on a terminal, else a line now and then."""

from __future__ import annotations

import sys
import time
from typing import Any

from tqdm import tqdm

from rlgates.experiments.callbacks import LINE_EVERY
from rlgates.experiments.text import steps_text


class Progress:
    """Shows the updates of a run.

    Args:
        label: which run.
        updates, epochs: the budget; None: no limit.
        bar: whether to draw a bar; by default, on a terminal.
    """

    def __init__(
        self, label: str, updates: int | None, epochs: int | None, bar: bool | None = None
    ) -> None:
        self.label, self.updates, self.epochs = label, updates, epochs
        self.bar = sys.stderr.isatty() if bar is None else bar
        self.tqdm: tqdm[Any] | None = None

    def begin(self, update: int) -> None:
        """A session starts at an update."""
        self.first = update
        self.start = self.said = time.monotonic()
        self.tqdm = tqdm(
            total=self.updates,
            initial=update,
            desc=self.label,
            unit=" updates",
            dynamic_ncols=True,
            disable=not self.bar,
        )

    def at(self, update: int, epoch: int, loss: float) -> None:
        """The run is at an update and has finished `epoch` epochs; the last evaluation's loss."""
        assert self.tqdm is not None, "begin first"
        if self.bar:
            shown = {"loss": f"{loss:.4f}"}
            if self.epochs is not None:
                shown["epoch"] = f"{epoch}/{self.epochs}"
            self.tqdm.set_postfix(shown, refresh=False)
            self.tqdm.update(update - self.tqdm.n)
            return
        now = time.monotonic()
        if now - self.said < LINE_EVERY:
            return
        self.said = now
        limit = "" if self.updates is None else f" of {steps_text(self.updates)}"
        epochs_text = "" if self.epochs is None else f", epoch {epoch} of {self.epochs}"
        speed = (update - self.first) / (now - self.start)
        print(
            f"{self.label}: {steps_text(update)}{limit} updates{epochs_text}, loss {loss:.4f}, "
            f"{speed:,.1f} updates/s",
            flush=True,
        )

    def close(self) -> None:
        """Take the bar away."""
        if self.tqdm is not None:
            self.tqdm.close()
