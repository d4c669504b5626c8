"""Decks of 52 cards: what the card games share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rlgates.envs.engine.arrays import Array
from rlgates.envs.engine.parameters import EpisodeParameter, Integers
from rlgates.envs.engine.philox import Key, permutations

DECK, SUITS, RANKS, COLORS = 52, 4, 13, 2
MAX_DECKS = 1_000
KINDS: dict[str, int] = {"colors": COLORS, "suits": SUITS, "ranks": RANKS}
"""How many kinds of card there are by each of its marks."""
SUIT_NAMES = ("spades", "diamonds", "clubs", "hearts")


@dataclass(frozen=True)
class CardOrder(EpisodeParameter):
    """The kinds of all cards of some decks, in the order in which they are dealt.

    Args:
        num_decks: of 52 cards.
        mark: a key of `KINDS`.
    """

    num_decks: int
    mark: str = "suits"

    def parse(self, name: str, value: Any) -> Array:
        kinds, count = KINDS[self.mark], DECK * self.num_decks
        cards = Integers(kinds, count).parse(name, value)
        counts = np.bincount(cards, minlength=kinds).tolist()
        if counts != [count // kinds] * kinds:
            one = self.mark.removesuffix("s")
            raise ValueError(
                f"{name} must have {count // kinds} cards of each {one}, got {counts}."
            )
        return cards


def shuffled(key: Key, num_decks: int, mark: str = "suits", stream: int = 0) -> Array:
    """The kinds of all cards in a uniform order, int64 (B, cards)."""
    kinds = KINDS[mark]
    return permutations(key.words(DECK * num_decks, stream)) % kinds
