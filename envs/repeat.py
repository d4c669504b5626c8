"""Repeat First and Repeat Previous: name the suit of a card that was dealt some time ago."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces

from rlgates.envs.arrays import Array, Tables, look_up, namespace, row_starts
from rlgates.envs.choices import Choice, Numbers
from rlgates.envs.engine import Moment, State
from rlgates.envs.philox import Key, permutations
from rlgates.envs.settings import check_range, store

SUITS = 4
DECK = 52
_RANKS = DECK // SUITS
_MAX_DECKS = 1_000
# The board takes the first that leaves no more rows than that.
_BOARD_WIDTHS = (_RANKS, 2 * _RANKS, *range(DECK, 6 * DECK, _RANKS))

# Colours of the board, for people.
_DEALT, _BRIGHT = 1, 1 + SUITS
_COLORS = np.array(
    [
        (25, 25, 25),  # not dealt yet
        (85, 85, 85),  # the suits
        (25, 50, 95),
        (25, 75, 35),
        (90, 30, 30),
        (240, 240, 240),  # the suits, of the card in sight and of the one to be named
        (70, 130, 255),
        (60, 210, 90),
        (245, 70, 70),
    ],
    dtype=np.uint8,
)


@dataclass(frozen=True)
class CardOrder:
    """The suits of all cards of some decks, in the order in which they are dealt."""

    num_decks: int

    def parse(self, name: str, given: Any) -> Array:
        suits = Numbers(SUITS, DECK * self.num_decks).parse(name, given)
        counts = np.bincount(suits, minlength=SUITS).tolist()
        each = _RANKS * self.num_decks
        if counts != [each] * SUITS:
            raise ValueError(f"{name} must have {each} cards of each suit, got {counts}.")
        return suits

    def tell(self, drawn: Array) -> Array:
        return drawn


@dataclass(frozen=True, kw_only=True)
class Repeat(ABC):
    """The rules that both games share; their own docstrings tell them.

    Card t is in sight after t steps. A game says which card is to be named then.
    """

    num_decks: int = 1

    action_space: ClassVar[spaces.Discrete] = spaces.Discrete(SUITS)
    observation_space: ClassVar[spaces.Discrete] = spaces.Discrete(SUITS)
    metric_names: ClassVar[tuple[str, ...]] = ("is_success", "accuracy")
    phase_names: ClassVar[tuple[str, ...]] = ()
    fixed_length: ClassVar[bool] = True

    def __post_init__(self) -> None:
        store(self, num_decks=check_range("num_decks", self.num_decks, 1, _MAX_DECKS))

    @property
    @abstractmethod
    def chance(self) -> float:
        """As the contract."""

    @property
    @abstractmethod
    def _wanted(self) -> Array:
        """(cards,) which card is to be named while card t is in sight, or -1 for none."""

    @property
    def _num_cards(self) -> int:
        return DECK * self.num_decks

    @property
    def max_episode_length(self) -> int:
        return self._num_cards - 1

    @cached_property
    def _num_answers(self) -> int:
        return int((self._wanted[:-1] >= 0).sum())

    @cached_property
    def choices(self) -> Mapping[str, Choice]:
        return {"suits": CardOrder(self.num_decks)}

    @property
    def state_bounds(self) -> Mapping[str, tuple[int, int]]:
        return {"suits": (0, SUITS - 1), "num_right": (0, self._num_answers)}

    def draw(self, key: Key) -> dict[str, Array]:
        return {"suits": permutations(key.words(self._num_cards)) % SUITS}

    def start(self, drawn: dict[str, Array]) -> State:
        suits = drawn["suits"]
        zeros = namespace(suits).zeros_like(suits[:, 0])
        return {"t": zeros, "suits": suits, "num_right": zeros}

    def step(self, state: State, actions: Array) -> tuple[State, Array, Array]:
        t, tables = state["t"], self._tables.beside(actions)
        is_right = actions == self._cards(state, look_up(tables.wanted, t))
        counts = look_up(tables.counts, t)
        reward = look_up(tables.reward, counts * (1 + is_right))
        state = {**state, "t": t + 1, "num_right": state["num_right"] + counts * is_right}
        return state, reward, state["t"] == self.max_episode_length

    def _cards(self, state: State, number: Array) -> Array:
        """The suit of one card in each row, by its number (B,)."""
        rows, width = state["suits"].shape
        return look_up(state["suits"].reshape(-1), row_starts(rows, width, number) + number)

    def observe(self, state: State) -> Array:
        return self._cards(state, state["t"])

    def metrics(self, state: State) -> dict[str, Array]:
        num_right = state["num_right"]
        return {
            "is_success": num_right == self._num_answers,
            "accuracy": look_up(self._tables.beside(num_right).accuracy, num_right),
        }

    def phase(self, state: State) -> Array:
        return state["t"] * 0

    def board(self, state: State) -> Array:
        """The cards dealt so far, row by row, in colours of their suits; no higher than it is wide.

        Bright are the card in sight and the one to be named.
        """
        t, tables = state["t"][:, None], self._tables.beside(state["t"])
        xp = namespace(t)
        number = xp.arange(self._num_cards, device=t.device)[None, :]
        is_bright = (number == t) | (number == look_up(tables.shown, t))
        paint = xp.where(is_bright, _BRIGHT, _DEALT) + state["suits"]
        paint = xp.where(number > t, 0, paint)
        width = next(w for w in _BOARD_WIDTHS if w**2 >= self._num_cards)
        rows = -(-self._num_cards // width)
        left_over = (t.shape[0], rows * width - self._num_cards)
        empty = xp.zeros(left_over, dtype=paint.dtype, device=t.device)
        paint = xp.concat([paint, empty], axis=1)
        return look_up(tables.colors, paint).reshape((-1, rows, width, 3))

    def moments(self, state: State) -> list[Moment]:
        return [Moment("", self.max_episode_length - t, None) for t in state["t"].tolist()]

    @cached_property
    def _tables(self) -> Tables:
        wanted, answers = self._wanted, self._num_answers
        return Tables(
            wanted=np.maximum(wanted, 0),
            counts=(wanted >= 0).astype(np.int64),
            shown=wanted,
            reward=np.array([0, -1 / answers, 1 / answers], dtype=np.float32),
            accuracy=(np.arange(answers + 1) / answers).astype(np.float32),
            colors=_COLORS,
        )


@dataclass(frozen=True, kw_only=True)
class RepeatFirst(Repeat):
    """Repeat First, `rlgates/RepeatFirst-v0`.

    ## Description
    Some decks of 52 cards are shuffled together and dealt one by one. Every action names a suit,
    and is right if that is the suit of the very first card.

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
    With N cards in all, every action is paid 1 / (N - 1) if it is right and -1 / (N - 1) if not.
    That holds for the first action too, with the first card still in sight; no action follows
    the last card. A perfect memory gets 1, guesses -0.5 on average. Without memory the best is
    to name the card in sight: right at once, and later in (N / 4 - 1) of (N - 1) cases.

    The numbers to report are in the info of the last step: `accuracy`, the share of right
    answers (float32, 1/4 for guesses), and `is_success`: all were right.

    ## Start
    With the first card in sight. `reset(options=...)` fixes what the episode draws: `suits`, of
    all N cards in the order in which they are dealt, N / 4 of each; `reveal=True` puts them into
    the info of the reset.

    ## End
    `terminated` after exactly N - 1 actions, with the last card in sight. The length belongs to
    the task: `truncated` is never true.

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
    everything random follows from the seed. (The words there promise a mark on the first card,
    which the observations there do not have either.)

    Raises:
        ValueError: a setting out of range. TypeError: a setting of the wrong type.
    """

    chance: ClassVar[float] = 0.25  # of always naming the same suit

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "easy": {"num_decks": 1},
        "medium": {"num_decks": 8},
        "hard": {"num_decks": 16},
    }

    @property
    def _wanted(self) -> Array:
        return np.zeros(self._num_cards, dtype=np.int64)


@dataclass(frozen=True, kw_only=True)
class RepeatPrevious(Repeat):
    """Repeat Previous, `rlgates/RepeatPrevious-v0`.

    ## Description
    Some decks of 52 cards are shuffled together and dealt one by one. Every action names a suit,
    and is right if that is the suit of the k-th last card dealt: with k = 1 the card in sight,
    with k = 4 the one three cards before. The first k - 1 actions, before there are k cards, do
    not count.

    ## Actions
    `Discrete(4)`: the suit named.

    | number | suit |
    |--------|------|
    | 0 | spades |
    | 1 | diamonds |
    | 2 | clubs |
    | 3 | hearts |

    ## Observations
    `Discrete(4)`, int64: the suit of the card just dealt, numbered like the actions.

    ## Rewards
    With N cards in all, an action that counts is paid 1 / (N - k) if it is right and
    -1 / (N - k) if not; the first k - 1 are paid 0, and no action follows the last card. A
    perfect memory gets 1, guesses -0.5 on average. Without memory the best, with k above 1, is
    to name some suit that is not in sight: right in (N / 4) of (N - 1) cases.

    `chance` is that of uniform guesses to be right each time, 1/4 to the power of N - k; the best
    rule that knows the card in sight is a little luckier. With k = 1 it is 1: that card is the
    answer.

    The numbers to report are in the info of the last step: `accuracy`, the share of right
    answers among those that count (float32, 1/4 for guesses), and `is_success`: all were right.

    ## Start
    With the first card in sight. `reset(options=...)` fixes what the episode draws: `suits`, of
    all N cards in the order in which they are dealt, N / 4 of each; `reveal=True` puts them into
    the info of the reset.

    ## End
    `terminated` after exactly N - 1 actions, with the last card in sight. The length belongs to
    the task: `truncated` is never true.

    ## Arguments
    | name | default | meaning |
    |------|---------|---------|
    | `num_decks` | 1 | decks of 52 cards, 1 to 1,000 |
    | `k` | 4 | which card is to be named, counted back from the one in sight, 1 to N - 1 |

    Presets: `easy` (1 deck, k = 4), `medium` (2, 32) and `hard` (3, 64), the published levels.

    ## Version history
    * v0: first version.

    ## Sources and differences
    Morad et al., "POPGym: Benchmarking partially observable reinforcement learning", 2023;
    github.com/proroklab/popgym, version 1.0.7, envs/repeat_previous.py and core/deck.py. Its
    words "k steps ago" mean k - 1 steps before the card in sight, as here. The release ends by
    `terminated` as here; other revisions of it say `truncated`. Different here: k = 0, which there
    asks for the first card, is refused; and everything random follows from the seed.

    Raises:
        ValueError: a setting out of range. TypeError: a setting of the wrong type.
    """

    k: int = 4

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "easy": {"num_decks": 1, "k": 4},
        "medium": {"num_decks": 2, "k": 32},
        "hard": {"num_decks": 3, "k": 64},
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        store(self, k=check_range("k", self.k, 1, self._num_cards - 1))

    @property
    def chance(self) -> float:
        return 1.0 if self.k == 1 else float(0.25**self._num_answers)

    @property
    def _wanted(self) -> Array:
        return np.maximum(np.arange(self._num_cards) - (self.k - 1), -1)
