"""Decks of 52 cards: what the card games share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces

from rlgates.envs.engine.arrays import Array, Tables, entry, look_up, namespace
from rlgates.envs.engine.parameters import EpisodeParameter, Integers
from rlgates.envs.engine.philox import Key, permutations
from rlgates.envs.engine.settings import check_range, set_fields
from rlgates.envs.engine.spec import EnvSpec, State

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


@dataclass(frozen=True, kw_only=True)
class CardGame(EnvSpec):
    """A game with some decks of cards."""

    num_decks: int = 1

    metric_names: ClassVar[tuple[str, ...]] = ("is_success", "accuracy")

    def __post_init__(self) -> None:
        set_fields(self, num_decks=check_range("num_decks", self.num_decks, 1, MAX_DECKS))

    @property
    def _num_cards(self) -> int:
        return DECK * self.num_decks


@dataclass(frozen=True, kw_only=True)
class SuitGame(CardGame):
    """Every action names a suit: right if it is that of the card which the game asks for.

    A right answer brings 1 / answers, a wrong one -1 / answers, any other action nothing.
    """

    action_space: ClassVar[spaces.Discrete] = spaces.Discrete(SUITS)
    action_names: ClassVar[tuple[str, ...]] = SUIT_NAMES

    @property
    @abstractmethod
    def _asked(self) -> Array:
        """(max_episode_length,) the card whose suit action t must name, or -1 for none."""

    @cached_property
    def _num_answers(self) -> int:
        return int((self._asked >= 0).sum())

    @cached_property
    def parameters(self) -> Mapping[str, EpisodeParameter]:
        return {"suits": CardOrder(self.num_decks)}

    @property
    def state_bounds(self) -> Mapping[str, tuple[int, int]]:
        return {"suits": (0, SUITS - 1), "num_right": (0, self._num_answers)}

    def sample(self, key: Key) -> dict[str, Array]:
        return {"suits": shuffled(key, self.num_decks)}

    def initial_state(self, parameters: dict[str, Array]) -> State:
        suits = parameters["suits"]
        zeros = namespace(suits).zeros_like(suits[:, 0])
        return {"t": zeros, "suits": suits, "num_right": zeros}

    def step(self, state: State, actions: Array) -> tuple[State, Array, Array]:
        t, tables = state["t"], self._answers.on_device_of(actions)
        is_right = actions == entry(state["suits"], look_up(tables.asked, t))
        counts = look_up(tables.counts, t)
        reward = look_up(tables.reward, counts * (1 + is_right))
        state = {**state, "t": t + 1, "num_right": state["num_right"] + counts * is_right}
        return state, reward, state["t"] == self.max_episode_length

    def metrics(self, state: State) -> dict[str, Array]:
        num_right = state["num_right"]
        return {
            "is_success": num_right == self._num_answers,
            "accuracy": look_up(self._answers.on_device_of(num_right).accuracy, num_right),
        }

    @cached_property
    def _answers(self) -> Tables:
        asked, answers = np.append(self._asked, -1), self._num_answers  # nothing at the end
        return Tables(
            asked=np.maximum(asked, 0),
            counts=(asked >= 0).astype(np.int64),
            reward=np.array([0, -1 / answers, 1 / answers], dtype=np.float32),
            accuracy=(np.arange(answers + 1) / answers).astype(np.float32),
        )
