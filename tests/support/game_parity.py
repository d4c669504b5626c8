"""How games differ from their originals, step by step, for the table of `pytest --game-parity`."""

from __future__ import annotations

from typing import Any

import numpy as np

GAMES: dict[tuple[str, str], Differences] = {}
"""By game and level."""


class Differences:
    """Steps of a game and its original with the same samples and actions.

    Attributes:
        steps: that were compared, the first observation of each episode included.
        differing: those with any difference in observation, reward or end.
        largest: difference of a number in them.
    """

    def __init__(self) -> None:
        self.steps, self.differing, self.largest = 0, 0, 0.0

    def add(
        self, observation: Any, reward: Any, ended: Any, original: tuple[Any, Any, Any]
    ) -> None:
        """Compare a step with that of the original."""
        pairs = zip((observation, reward, ended), original, strict=True)
        gaps = [np.abs(np.subtract(np.ravel(a), np.ravel(b), dtype=np.float64)) for a, b in pairs]
        gap = float(np.concatenate(gaps).max())
        self.steps += 1
        self.differing += gap > 0
        self.largest = max(self.largest, gap)


def differences(game: str, level: str) -> Differences:
    """Those of a game, which are added to."""
    return GAMES.setdefault((game, level), Differences())


def table() -> str:
    """All of them as CSV."""
    lines = [
        f"{game},{level},{one.steps},{one.differing},{one.largest:.2g}"
        for (game, level), one in sorted(GAMES.items())
    ]
    return "\n".join(["game,level,steps,differing,largest", *lines, ""])
