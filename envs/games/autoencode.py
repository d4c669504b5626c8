"""Autoencode: see a deck of cards, then name their suits from the last to the first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces

from rlgates.envs.engine.arrays import Array, Tables, entry, look_up, namespace
from rlgates.envs.engine.cards import SUITS, SuitGame
from rlgates.envs.engine.spec import Player, State


@dataclass(frozen=True, kw_only=True)
class Autoencode(SuitGame):
    """Autoencode, `rlgates/Autoencode-v0`.

    ## Description
    Decks of 52 cards are shuffled together and shown one by one. Then the player must name their
    suits in reverse order: first that of the last card, finally that of the first card.

    ## Actions
    `Discrete(4)`: the suit named, numbered as in `RepeatFirst`. While cards are shown, actions
    have no effect.

    ## Observations
    `MultiDiscrete([2, 4])`, int64:

    | entry | meaning |
    |-------|---------|
    | 0 | 1 while cards are shown, 0 from the last card on |
    | 1 | the suit of the card shown; 0 after the last one |

    ## Rewards
    With N cards in all, the reward of each of the N answers is 1 / N if it is right, else -1 / N;
    while cards are shown it is 0. A perfect memory gets 1, guesses -0.5 on average.

    The numbers to report are in the info of the last step: `accuracy`, the share of right
    answers (float32, 1/4 for guesses), and `is_success`: all were right.

    ## Start
    With the first card visible. `reset(options=...)` overrides parameters of the episode: `suits`,
    of all N cards in the order in which they are shown, N / 4 of each; `reveal=True` reports them
    in the info of the reset.

    ## End
    `terminated` after exactly 2 N - 1 actions: the answer to the first one follows the last card.
    The length is part of the game: `truncated` is never true.

    ## Arguments
    | name | default | meaning |
    |------|---------|---------|
    | `num_decks` | 1 | decks of 52 cards, 1 to 1,000 |

    Presets: `easy` (1 deck), `medium` (2) and `hard` (3), the published levels.

    ## Version history
    * v0: first version.

    ## Sources and differences
    Morad et al., "POPGym: Benchmarking partially observable reinforcement learning", 2023;
    github.com/proroklab/popgym, version 1.0.7, envs/autoencode.py. Different here: the observation
    is a `MultiDiscrete` instead of a `Tuple`, which Stable-Baselines3 does not support; everything
    random follows from the seed. As there, entry 0 is already 0 when the last card is shown.

    Raises:
        ValueError: a setting out of range. TypeError: a setting of the wrong type.
    """

    env_id: ClassVar[str] = "rlgates/Autoencode-v0"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "easy": {"num_decks": 1},
        "medium": {"num_decks": 2},
        "hard": {"num_decks": 3},
    }
    observation_space: ClassVar[spaces.MultiDiscrete] = spaces.MultiDiscrete([2, SUITS])

    @property
    def max_episode_length(self) -> int:
        return 2 * self._num_cards - 1

    @property
    def chance(self) -> float:
        return float(0.25**self._num_cards)

    @property
    def _asked(self) -> Array:
        cards = self._num_cards
        return np.append(np.full(cards - 1, -1), np.arange(cards)[::-1])

    def observe(self, state: State) -> Array:
        t, tables = state["t"], self._tables.on_device_of(state["t"])
        suit = entry(state["suits"], look_up(tables.shown, t)) * look_up(tables.is_shown, t)
        observation: Array = namespace(t).stack([look_up(tables.mark, t), suit], axis=1)
        return observation

    def memory_player(self) -> Player:
        return AutoencodeMemoryPlayer(self._num_cards)

    def reactive_player(self) -> Player:
        return AutoencodeReactivePlayer()

    @cached_property
    def _tables(self) -> Tables:
        cards = self._num_cards
        t = np.arange(2 * cards)
        return Tables(
            shown=np.minimum(t, cards - 1),
            is_shown=(t < cards).astype(np.int64),
            mark=(t < cards - 1).astype(np.int64),
        )


class AutoencodeMemoryPlayer:
    """The ceiling of Autoencode: return 1, every answer right.

    Args:
        num_cards: of the game.
    """

    def __init__(self, num_cards: int) -> None:
        self.num_cards = num_cards

    def reset(self, num_envs: int, seed: int | None = None) -> None:
        self._suits = np.zeros((num_envs, self.num_cards), dtype=np.int64)
        self._t = np.zeros(num_envs, dtype=np.int64)

    def act(self, observations: Array, episode_starts: Array) -> Array:
        self._t = np.where(episode_starts, 0, self._t + 1)
        rows, t = np.arange(len(self._t)), self._t
        shown = t < self.num_cards
        self._suits[rows[shown], t[shown]] = observations[shown, 1]
        return self._suits[rows, np.clip(2 * self.num_cards - 2 - t, 0, self.num_cards - 1)]


class AutoencodeReactivePlayer(Player):
    """The floor of Autoencode: names the suit in sight.

    With N cards it is right about the last card, and afterwards, where it names spades, in a
    quarter of the cases: an expected accuracy of 1/4 + 3 / (4 N).
    """

    def act(self, observations: Array, episode_starts: Array) -> Array:
        return observations[:, 1]
