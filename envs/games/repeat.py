"""Repeat First and Repeat Previous: name the suit of a card dealt earlier."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces

from rlgates.envs.engine.arrays import Array, Tables, entry, look_up, namespace
from rlgates.envs.engine.cards import DECK, RANKS, SUITS, SuitGame
from rlgates.envs.engine.settings import check_range, set_fields
from rlgates.envs.engine.spec import Player, State
from rlgates.errors import check_size

# The board has the first of these widths that is at least its height.
_BOARD_WIDTHS = (RANKS, 2 * RANKS, *range(DECK, 6 * DECK, RANKS))

# Colours of the board.
_DEALT, _BRIGHT = 1, 1 + SUITS
_COLORS = np.array(
    [
        (25, 25, 25),  # not dealt yet
        (85, 85, 85),  # the suits
        (25, 50, 95),
        (25, 75, 35),
        (90, 30, 30),
        (240, 240, 240),  # the suits of the visible card and of the one to name
        (70, 130, 255),
        (60, 210, 90),
        (245, 70, 70),
    ],
    dtype=np.uint8,
)


@dataclass(frozen=True, kw_only=True)
class Repeat(SuitGame):
    """The rules that both games share; their docstrings specify them.

    Card t is visible after t steps; each game defines which card is to be named then.
    """

    observation_space: ClassVar[spaces.Discrete] = spaces.Discrete(SUITS)

    @property
    @abstractmethod
    def _target(self) -> Array:
        """(cards,) the card to name while card t is visible, or -1."""

    @property
    def _asked(self) -> Array:
        return self._target[:-1]  # no action follows the last card

    @property
    def max_episode_length(self) -> int:
        return self._num_cards - 1

    def observe(self, state: State) -> Array:
        return entry(state["suits"], state["t"])

    def render_board(self, state: State) -> Array:
        """The cards dealt so far, row by row, in the colours of their suits.

        The visible card and the one to name are bright.
        """
        t, tables = state["t"][:, None], self._tables.on_device_of(state["t"])
        xp = namespace(t)
        number = xp.arange(self._num_cards, device=t.device)[None, :]
        is_bright = (number == t) | (number == look_up(tables.bright, t))
        paint = xp.where(is_bright, _BRIGHT, _DEALT) + state["suits"]
        paint = xp.where(number > t, 0, paint)
        width = next(w for w in _BOARD_WIDTHS if w**2 >= self._num_cards)
        rows = -(-self._num_cards // width)
        left_over = (t.shape[0], rows * width - self._num_cards)
        empty = xp.zeros(left_over, dtype=paint.dtype, device=t.device)
        paint = xp.concat([paint, empty], axis=1)
        return look_up(tables.colors, paint).reshape((-1, rows, width, 3))

    @cached_property
    def _tables(self) -> Tables:
        return Tables(bright=self._target, colors=_COLORS)


@dataclass(frozen=True, kw_only=True)
class RepeatFirst(Repeat):
    """Repeat First, `rlgates/RepeatFirst-v0`.

    ## Description
    Decks of 52 cards are shuffled together and dealt one by one. Every action names a suit, and
    is right if it is that of the very first card.

    ## Actions
    `Discrete(4)`: the suit named.

    | number | suit |
    |--------|------|
    | 0 | spades |
    | 1 | diamonds |
    | 2 | clubs |
    | 3 | hearts |

    ## Observations
    `Discrete(4)`, int64: the suit of the card just dealt, numbered like the actions. Nothing
    marks the first one.

    ## Rewards
    With N cards in all, the reward of an action is 1 / (N - 1) if it is right, else -1 / (N - 1).
    That holds for the first action too, with the first card still visible; no action follows
    the last card. A perfect memory gets 1, guesses -0.5 on average. Without memory it is best to
    name the visible card: right at once, and later in (N / 4 - 1) of (N - 1) cases. With
    `add_previous_action` no memory is needed: naming the first card and then repeating the last
    action gets 1.

    The numbers to report are in the info of the last step: `accuracy`, the share of right
    answers (float32, 1/4 for guesses), and `is_success`: all were right.

    ## Start
    With the first card visible. `reset(options=...)` overrides parameters of the episode: `suits`,
    of all N cards in the order in which they are dealt, N / 4 of each; `reveal=True` reports them
    in the info of the reset.

    ## End
    `terminated` after exactly N - 1 actions, with the last card visible. The length is part of
    the game: `truncated` is never true.

    ## Arguments
    | name | default | meaning |
    |------|---------|---------|
    | `num_decks` | 1 | decks of 52 cards, 1 to 1,000 |

    Presets: `easy` (1 deck), `medium` (8) and `hard` (16), the published levels.

    ## Version history
    * v0: first version.

    ## Sources and differences
    Morad et al., "POPGym: Benchmarking partially observable reinforcement learning", 2023;
    github.com/proroklab/popgym, version 1.0.7, envs/repeat_first.py and core/deck.py. The release
    ends by `terminated` as here; other revisions of it say `truncated`. Different here:
    everything random follows from the seed. (Their description mentions a mark on the first card,
    but their observations do not have it either.)

    Raises:
        ValueError: a setting out of range. TypeError: a setting of the wrong type.
    """

    env_id: ClassVar[str] = "rlgates/RepeatFirst-v0"
    chance: ClassVar[float] = 0.25  # of always naming the same suit
    actions_can_keep_the_cue: ClassVar[bool] = True

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "easy": {"num_decks": 1},
        "medium": {"num_decks": 8},
        "hard": {"num_decks": 16},
    }

    @property
    def _target(self) -> Array:
        return np.zeros(self._num_cards, dtype=np.int64)

    def memory_player(self) -> Player:
        return RepeatFirstMemoryPlayer()

    def reactive_player(self) -> Player:
        return RepeatFirstReactivePlayer()


@dataclass(frozen=True, kw_only=True)
class RepeatPrevious(Repeat):
    """Repeat Previous, `rlgates/RepeatPrevious-v0`.

    ## Description
    Decks of 52 cards are shuffled together and dealt one by one. Every action names a suit, and
    is right if it is that of the k-th last card dealt: with k = 1 the visible card, with k = 4 the
    one three cards before. The first k - 1 actions do not count.

    ## Actions
    `Discrete(4)`: the suit named, numbered as in `RepeatFirst`.

    ## Observations
    `Discrete(4)`, int64: the suit of the card just dealt, numbered like the actions.

    ## Rewards
    With N cards in all, the reward of an action that counts is 1 / (N - k) if it is right,
    else -1 / (N - k); the first k - 1 get 0, and no action follows the last card. A
    perfect memory gets 1, guesses -0.5 on average. Without memory and with k above 1, it is best to
    name a suit that is not visible: right in (N / 4) of (N - 1) cases.

    `chance` is the probability that uniform guesses are all right, 1/4 to the power of N - k; the
    best rule on the visible card does slightly better. With k = 1, where that card is the answer,
    `chance` is 1.

    The numbers to report are in the info of the last step: `accuracy`, the share of right
    answers among those that count (float32, 1/4 for guesses), and `is_success`: all were right.

    ## Start
    With the first card visible. `reset(options=...)` overrides parameters of the episode: `suits`,
    of all N cards in the order in which they are dealt, N / 4 of each; `reveal=True` reports them
    in the info of the reset.

    ## End
    `terminated` after exactly N - 1 actions, with the last card visible. The length is part of
    the game: `truncated` is never true.

    ## Arguments
    | name | default | meaning |
    |------|---------|---------|
    | `num_decks` | 1 | decks of 52 cards, 1 to 1,000 |
    | `k` | 4 | the card to name, counted back from the visible one, 1 to N - 1 |

    Presets: `easy` (1 deck, k = 4), `medium` (2, 32) and `hard` (3, 64), the published levels.

    ## Version history
    * v0: first version.

    ## Sources and differences
    Morad et al., "POPGym: Benchmarking partially observable reinforcement learning", 2023;
    github.com/proroklab/popgym, version 1.0.7, envs/repeat_previous.py and core/deck.py. "k steps
    ago" there means k - 1 steps before the visible card, as here. The release ends by `terminated`
    as here; other revisions of it say `truncated`. Different here: k = 0, which there asks for the
    first card, is refused; and everything random follows from the seed.

    Raises:
        ValueError: a setting out of range. TypeError: a setting of the wrong type.
    """

    env_id: ClassVar[str] = "rlgates/RepeatPrevious-v0"
    k: int = 4

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "easy": {"num_decks": 1, "k": 4},
        "medium": {"num_decks": 2, "k": 32},
        "hard": {"num_decks": 3, "k": 64},
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        set_fields(self, k=check_range("k", self.k, 1, self._num_cards - 1))

    @property
    def chance(self) -> float:
        return 1.0 if self.k == 1 else float(0.25**self._num_answers)

    @property
    def _target(self) -> Array:
        return np.maximum(np.arange(self._num_cards) - (self.k - 1), -1)

    def memory_player(self) -> Player:
        return RepeatPreviousMemoryPlayer(self.k)

    def reactive_player(self) -> Player:
        return RepeatPreviousReactivePlayer(self.k)


class RepeatFirstMemoryPlayer:
    """The ceiling of Repeat First: return 1, every answer right."""

    def reset(self, num_envs: int, seed: int | None = None) -> None:
        self._first = np.zeros(num_envs, dtype=np.int64)

    def act(self, observations: Array, episode_starts: Array) -> Array:
        self._first = np.where(episode_starts, observations, self._first)
        return self._first


class RepeatFirstReactivePlayer(Player):
    """The floor of Repeat First: names the visible card.

    With N cards that is right at once, and then in (N / 4 - 1) of (N - 1) cases: an expected
    accuracy of (1 + (N - 2) (N / 4 - 1) / (N - 1)) / (N - 1), 0.2503 with one deck. Naming
    another suit is right in (N / 4) of (N - 1) cases, but never at once, which is worse.
    """

    def act(self, observations: Array, episode_starts: Array) -> Array:
        return observations


class RepeatPreviousMemoryPlayer:
    """The ceiling of Repeat Previous: return 1, every answer right.

    Args:
        k: the setting of the game.
    """

    def __init__(self, k: int) -> None:
        self.k = check_size("k", k)

    def reset(self, num_envs: int, seed: int | None = None) -> None:
        self._last = np.zeros((num_envs, self.k), dtype=np.int64)  # newest first

    def act(self, observations: Array, episode_starts: Array) -> Array:
        self._last = np.concatenate([observations[:, None], self._last[:, :-1]], axis=1)
        return self._last[:, -1]


class RepeatPreviousReactivePlayer(Player):
    """The floor of Repeat Previous: names the suit after the visible one.

    With k above 1 and N cards it is right in (N / 4) of (N - 1) cases: an expected accuracy of
    0.2549 with one deck. Every suit that is not visible does equally well, the visible one worse.
    With k = 1 no memory is needed, and it names the visible card.

    Args:
        k: the setting of the game.
    """

    def __init__(self, k: int) -> None:
        self.k = check_size("k", k)

    def act(self, observations: Array, episode_starts: Array) -> Array:
        return observations if self.k == 1 else (observations + 1) % SUITS
