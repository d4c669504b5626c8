"""Count Recall: how often has this kind of card been dealt so far?"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
from gymnasium import spaces

from rlgates.envs.engine.arrays import Array, Tables, entry, look_up, namespace
from rlgates.envs.engine.cards import KINDS, CardGame, CardOrder, shuffled
from rlgates.envs.engine.parameters import EpisodeParameter
from rlgates.envs.engine.philox import Key
from rlgates.envs.engine.spec import Player, State
from rlgates.errors import check_choice


@dataclass(frozen=True, kw_only=True)
class CountRecall(CardGame):
    """Count Recall, `rlgates/CountRecall-v0`.

    ## Description
    Cards are dealt one by one from some decks of 52, each next to a card from a second pile of as
    many decks, the *query*. Every action is a number, and is right if that many cards of the
    query's kind have been dealt so far, including the visible one.

    ## Actions
    `Discrete(n + 1)`: the count, from 0 to n, the number of cards of each kind.

    ## Observations
    `MultiDiscrete([kinds, kinds])`, int64: the kind of the card just dealt, and that of the query.
    There are 2 colours, 4 suits or 13 ranks.

    ## Rewards
    With N cards in all, the reward of an action is 1 / (N - 1) if it is right, else -1 / (N - 1);
    no action follows the last card. A perfect memory gets 1.

    The numbers to report are in the info of the last step: `accuracy`, the share of right
    answers (float32), and `is_success`: all were right.

    ## Start
    With the first card and the first query visible. `reset(options=...)` overrides parameters of
    the episode: `cards` and `queries`, the kinds of both piles in the order in which they are
    dealt, equally many of each; `reveal=True` reports them in the info of the reset.

    ## End
    `terminated` after exactly N - 1 actions. The length is part of the game: `truncated` is never
    true.

    ## Arguments
    | name | default | meaning |
    |------|---------|---------|
    | `num_decks` | 1 | decks of 52 cards, 1 to 1,000 |
    | `mark` | "colors" | what makes a kind: "colors", "suits" or "ranks" |

    Presets: `easy` (1 deck, colours), `medium` (2, suits) and `hard` (4, ranks), the published
    levels.

    ## Version history
    * v0: first version.

    ## Sources and differences
    Morad et al., "POPGym: Benchmarking partially observable reinforcement learning", 2023;
    github.com/proroklab/popgym, version 1.0.7, envs/count_recall.py. Its `deck_type` is `mark`
    here; its `error_clamp`, which that version does not read, is left out. There the infos contain
    the counts, which are the answers; here they do not. Everything random follows from the seed.

    Raises:
        ValueError: a setting out of range. TypeError: a setting of the wrong type.
    """

    env_id: ClassVar[str] = "rlgates/CountRecall-v0"
    mark: Literal["colors", "suits", "ranks"] = "colors"

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "easy": {"num_decks": 1, "mark": "colors"},
        "medium": {"num_decks": 2, "mark": "suits"},
        "hard": {"num_decks": 4, "mark": "ranks"},
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("mark", self.mark, KINDS)

    @property
    def _kinds(self) -> int:
        return KINDS[self.mark]

    @property
    def _each(self) -> int:
        return self._num_cards // self._kinds

    @cached_property
    def action_space(self) -> spaces.Discrete:
        return spaces.Discrete(self._each + 1)

    @cached_property
    def observation_space(self) -> spaces.MultiDiscrete:
        return spaces.MultiDiscrete([self._kinds, self._kinds])

    @property
    def max_episode_length(self) -> int:
        return self._num_cards - 1

    @cached_property
    def parameters(self) -> Mapping[str, EpisodeParameter]:
        order = CardOrder(self.num_decks, self.mark)
        return {"cards": order, "queries": order}

    @property
    def state_bounds(self) -> Mapping[str, tuple[int, int]]:
        kind = (0, self._kinds - 1)
        return {
            "cards": kind,
            "queries": kind,
            "answers": (0, self._each),
            "num_right": (0, self.max_episode_length),
        }

    def sample(self, key: Key) -> dict[str, Array]:
        return {
            name: shuffled(key, self.num_decks, self.mark, stream)
            for stream, name in enumerate(("cards", "queries"))
        }

    def initial_state(self, parameters: dict[str, Array]) -> State:
        cards, queries = parameters["cards"], parameters["queries"]
        xp = namespace(cards)
        answers = xp.zeros_like(cards)
        for kind in range(self._kinds):
            dealt = xp.cumulative_sum(xp.astype(cards == kind, xp.int64), axis=1)
            answers = xp.where(queries == kind, dealt, answers)
        zeros = xp.zeros_like(cards[:, 0])
        state = {"t": zeros, "cards": cards, "queries": queries}
        return {**state, "answers": answers, "num_right": zeros}

    def step(self, state: State, actions: Array) -> tuple[State, Array, Array]:
        is_right = actions == entry(state["answers"], state["t"])
        numbers = namespace(actions).astype(is_right, state["t"].dtype)
        reward = look_up(self._tables.on_device_of(actions).reward, numbers)
        state = {**state, "t": state["t"] + 1, "num_right": state["num_right"] + numbers}
        return state, reward, state["t"] == self.max_episode_length

    def observe(self, state: State) -> Array:
        t = state["t"]
        both = [entry(state["cards"], t), entry(state["queries"], t)]
        observation: Array = namespace(t).stack(both, axis=1)
        return observation

    def metrics(self, state: State) -> dict[str, Array]:
        num_right = state["num_right"]
        return {
            "is_success": num_right == self.max_episode_length,
            "accuracy": look_up(self._tables.on_device_of(num_right).accuracy, num_right),
        }

    def memory_player(self) -> Player:
        return CountRecallMemoryPlayer(self._kinds)

    def reactive_player(self) -> Player:
        return CountRecallReactivePlayer(self._num_cards, self._each)

    @cached_property
    def _tables(self) -> Tables:
        answers = self.max_episode_length
        return Tables(
            reward=np.array([-1 / answers, 1 / answers], dtype=np.float32),
            accuracy=(np.arange(answers + 1) / answers).astype(np.float32),
        )


class CountRecallMemoryPlayer:
    """The ceiling of Count Recall: return 1, every answer right.

    Args:
        kinds: of cards in the game.
    """

    def __init__(self, kinds: int) -> None:
        self.kinds = kinds

    def reset(self, num_envs: int, seed: int | None = None) -> None:
        self._counts = np.zeros((num_envs, self.kinds), dtype=np.int64)

    def act(self, observations: Array, episode_starts: Array) -> Array:
        rows = np.arange(len(self._counts))
        self._counts[episode_starts] = 0
        self._counts[rows, observations[:, 0]] += 1
        return self._counts[rows, observations[:, 1]]


class CountRecallReactivePlayer(Player):
    """The floor of Count Recall: the count most often right, given only the two visible cards.

    Args:
        num_cards: of the game, N.
        each: cards of each kind.
    """

    def __init__(self, num_cards: int, each: int) -> None:
        self.num_cards, self.each = num_cards, each
        self.guesses = np.array([self._best(False)[0], self._best(True)[0]])

    def _best(self, same: bool) -> tuple[int, float]:
        """The best count where query and card are of the `same` kind or not, and how often."""
        others, left = self.num_cards - 1, self.each - same
        chances = [
            sum(_hypergeometric(others, left, t, count) for t in range(others)) / others
            for count in range(left + 1)
        ]
        best = int(np.argmax(chances))
        return best + same, chances[best]

    def accuracy(self) -> float:
        """Its expected share of right answers."""
        # A query is of the kind of the card that lies beside it in `each` of N cases.
        share = self.each / self.num_cards
        return share * self._best(True)[1] + (1 - share) * self._best(False)[1]

    def act(self, observations: Array, episode_starts: Array) -> Array:
        same = observations[:, 0] == observations[:, 1]
        guesses: Array = self.guesses[same.astype(np.int64)]
        return guesses


def _hypergeometric(total: int, marked: int, drawn: int, count: int) -> float:
    """The chance of `count` marked ones among `drawn` of `total`."""
    if count > drawn:
        return 0.0
    ways = math.comb(marked, count) * math.comb(total - marked, drawn - count)
    return ways / math.comb(total, drawn)
