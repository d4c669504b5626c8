"""Concentration: turn up two cards at a time, and find those that match."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
from gymnasium import spaces

from rlgates.envs.engine.arrays import Array, Tables, look_up, namespace, row_starts
from rlgates.envs.engine.cards import KINDS, CardGame, CardOrder, shuffled
from rlgates.envs.engine.parameters import EpisodeParameter
from rlgates.envs.engine.philox import Key
from rlgates.envs.engine.spec import Player, State
from rlgates.errors import check_choice

_MARKS = ("colors", "ranks")  # of each suit there are 13, which cannot all be matched
# What a step was: one card turned up, a failed try (of one or two cards), a match.
_ONE, _FAILED_ONE, _FAILED_TWO, _MATCHED = range(4)


@dataclass(frozen=True, kw_only=True)
class Concentration(CardGame):
    """Concentration, `rlgates/Concentration-v0`.

    ## Description
    Some decks of 52 cards lie face down. Every action turns up one card. Every second card turned
    up is compared with the one before: if both are of the same kind, they stay face up; otherwise
    both are turned down again after they were seen.

    ## Actions
    `Discrete(N)`: the place of the card to turn up, N cards in all.

    ## Observations
    `MultiDiscrete([kinds + 1] * N)`, int64: the kind of the card at each place, or `kinds` where
    it lies face down. There are 2 colours or 13 ranks. Both cards of a failed try are still visible
    right after it. Which card was turned up last is not shown; POPGym's agents get it, as with
    `add_previous_action=True`.

    ## Rewards
    With L the length of the longest episode: 2 / N for a match; -2 / L for two cards that do not
    match, or the same card twice; -1 / L or -2 / L (the second card of a try) for a card that is
    already up for good, which ends the try; 0 for the first card of a try.

    The numbers to report are in the info of the last step: `accuracy`, the share of cards that
    stay up (float32), and `is_success`: all do.

    ## Start
    With all cards face down. `reset(options=...)` overrides parameters of the episode: `cards`,
    the kind at each place, equally many of each; `reveal=True` reports them in the info of the
    reset.

    ## End
    `terminated` when all cards stay up, and after L = ceil(2 N - N / (2 N - 1)) actions. The length
    is part of the game: `truncated` is never true.

    ## Arguments
    | name | default | meaning |
    |------|---------|---------|
    | `num_decks` | 1 | decks of 52 cards, 1 to 1,000 |
    | `mark` | "ranks" | what makes a kind: "colors" or "ranks" |

    Presets: `easy` (1 deck, colours), `medium` (2, colours) and `hard` (1, ranks), the published
    levels.

    ## Version history
    * v0: first version.

    ## Sources and differences
    Morad et al., "POPGym: Benchmarking partially observable reinforcement learning", 2023;
    github.com/proroklab/popgym, version 1.0.7, envs/concentration.py. Its `deck_type` is `mark`
    here. L is as there, though its formula is meant for N pairs, not N cards. There the episode
    ends by `truncated` after L actions; here by `terminated`, and everything random follows from
    the seed.

    Raises:
        ValueError: a setting out of range. TypeError: a setting of the wrong type.
    """

    env_id: ClassVar[str] = "rlgates/Concentration-v0"
    mark: Literal["colors", "ranks"] = "ranks"

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "easy": {"num_decks": 1, "mark": "colors"},
        "medium": {"num_decks": 2, "mark": "colors"},
        "hard": {"num_decks": 1, "mark": "ranks"},
    }
    needs_previous_action: ClassVar[bool] = True
    fixed_length: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("mark", self.mark, _MARKS)

    @property
    def _kinds(self) -> int:
        return KINDS[self.mark]

    @cached_property
    def action_space(self) -> spaces.Discrete:
        return spaces.Discrete(self._num_cards)

    @cached_property
    def observation_space(self) -> spaces.MultiDiscrete:
        return spaces.MultiDiscrete([self._kinds + 1] * self._num_cards)

    @property
    def max_episode_length(self) -> int:
        cards = self._num_cards
        return math.ceil(2 * cards - cards / (2 * cards - 1))

    @cached_property
    def parameters(self) -> Mapping[str, EpisodeParameter]:
        return {"cards": CardOrder(self.num_decks, self.mark)}

    @property
    def state_bounds(self) -> Mapping[str, tuple[int, int]]:
        place = (0, self._num_cards)
        return {
            "cards": (0, self._kinds),
            "up": (0, self._kinds),
            "first": place,
            "seen_first": place,
            "seen_second": place,
            "num_up": (0, self._num_cards),
        }

    def sample(self, key: Key) -> dict[str, Array]:
        return {"cards": shuffled(key, self.num_decks, self.mark)}

    def initial_state(self, parameters: dict[str, Array]) -> State:
        cards = parameters["cards"]
        xp = namespace(cards)
        # A last column stands for the place "none", so that all writes go somewhere.
        down = xp.zeros_like(cards[:, :1]) + self._kinds
        nowhere = xp.zeros_like(cards[:, 0]) + self._num_cards
        return {
            "t": xp.zeros_like(nowhere),
            "cards": xp.concat([cards, down], axis=1),
            "up": xp.zeros_like(xp.concat([cards, down], axis=1)) + self._kinds,
            "first": nowhere,  # the first card of a try
            "seen_first": nowhere,  # what is visible besides the cards that stay up
            "seen_second": nowhere,
            "num_up": xp.zeros_like(nowhere),
        }

    def step(self, state: State, actions: Array) -> tuple[State, Array, Array]:
        xp, tables = namespace(actions), self._tables.on_device_of(actions)
        none, first = self._num_cards, state["first"]
        batch, width = state["cards"].shape
        rows = row_starts(batch, width, actions)
        cards, up = state["cards"].reshape(-1), state["up"].reshape(-1)
        kind, is_second = look_up(cards, rows + actions), first != none
        stays_up = look_up(up, rows + actions) != self._kinds
        matches = is_second & (look_up(cards, rows + first) == kind) & (first != actions)
        what = xp.where(is_second, xp.where(matches, _MATCHED, _FAILED_TWO), _ONE)
        what = xp.where(stays_up, xp.where(is_second, _FAILED_TWO, _FAILED_ONE), what)
        matched = what == _MATCHED
        new_up = xp.asarray(state["up"], copy=True)
        flat = new_up.reshape(-1)
        flat[rows + xp.where(matched, first, none)] = xp.where(matched, kind, self._kinds)
        flat[rows + xp.where(matched, actions, none)] = xp.where(matched, kind, self._kinds)
        state = {
            **state,
            "t": state["t"] + 1,
            "up": new_up,
            "first": xp.where(what == _ONE, actions, none),
            "seen_first": first,
            "seen_second": actions,
            "num_up": state["num_up"] + 2 * matched,
        }
        ended = (state["t"] == self.max_episode_length) | (state["num_up"] == self._num_cards)
        return state, look_up(tables.reward, what), ended

    def observe(self, state: State) -> Array:
        visible = namespace(state["up"]).asarray(state["up"], copy=True)
        flat, cards = visible.reshape(-1), state["cards"].reshape(-1)
        rows = row_starts(visible.shape[0], visible.shape[1], state["first"])
        for name in ("seen_first", "seen_second"):
            index = rows + state[name]
            flat[index] = look_up(cards, index)
        observation: Array = visible[:, :-1]
        return observation

    def metrics(self, state: State) -> dict[str, Array]:
        num_up = state["num_up"]
        return {
            "is_success": num_up == self._num_cards,
            "accuracy": look_up(self._tables.on_device_of(num_up).accuracy, num_up),
        }

    def memory_player(self) -> Player:
        return ConcentrationMemoryPlayer(self._num_cards, self._kinds)

    def reactive_player(self) -> Player:
        return ConcentrationReactivePlayer(self._kinds)

    @cached_property
    def _tables(self) -> Tables:
        cards, fail = self._num_cards, -1 / self.max_episode_length
        reward = np.zeros(4, dtype=np.float32)
        reward[[_FAILED_ONE, _FAILED_TWO, _MATCHED]] = fail, 2 * fail, 1 / (cards // 2)
        return Tables(reward=reward, accuracy=(np.arange(cards + 1) / cards).astype(np.float32))


class ConcentrationMemoryPlayer:
    """A good player with memory: never forgets a card.

    It takes a pair that it knows. Otherwise it turns up an unseen card, and then the matching card
    if it knows where that is, else another unseen one.

    Args:
        num_cards, kinds: of the game.
    """

    def __init__(self, num_cards: int, kinds: int) -> None:
        self.num_cards, self.kinds = num_cards, kinds

    def reset(self, num_envs: int, seed: int | None = None) -> None:
        self._known = np.full((num_envs, self.num_cards), self.kinds)
        self._first = np.full(num_envs, -1)
        self._up = np.zeros((num_envs, self.num_cards), dtype=bool)
        self._last = np.full(num_envs, -1)

    def act(self, observations: Array, episode_starts: Array) -> Array:
        actions = np.zeros(len(observations), dtype=np.int64)
        for row, (obs, starts) in enumerate(zip(observations, episode_starts, strict=True)):
            actions[row] = self._choose(row, obs, bool(starts))
        return actions

    def _choose(self, row: int, obs: Array, starts: bool) -> int:
        known, up, down = self._known[row], self._up[row], self.kinds
        if starts:
            known[:], up[:], self._first[row] = down, False, -1
        visible = obs != down
        known[visible] = obs[visible]
        first, last = int(self._first[row]), int(self._last[row])
        if not starts and first >= 0 and last >= 0 and first != last:
            if known[first] == known[last]:
                up[[first, last]] = True
            first = -1
        elif not starts and last >= 0:
            first = last
        self._first[row] = first
        unknown = np.flatnonzero((known == down) & ~up)
        if first >= 0:
            partners = np.flatnonzero((known == known[first]) & ~up)
            partners = partners[partners != first]
            choice = partners[0] if len(partners) else unknown[0]
        else:
            left = np.flatnonzero((known != down) & ~up)
            _, where, counts = np.unique(known[left], return_index=True, return_counts=True)
            pairs = where[counts >= 2]
            choice = left[pairs[0]] if len(pairs) else unknown[0]
        self._last[row] = choice
        return int(choice)


class ConcentrationReactivePlayer:
    """A player without memory: turns up a random card that lies face down.

    Args:
        kinds: of cards in the game.
    """

    def __init__(self, kinds: int) -> None:
        self.kinds = kinds

    def reset(self, num_envs: int, seed: int | None = None) -> None:
        self._rng = np.random.default_rng(seed)

    def act(self, observations: Array, episode_starts: Array) -> Array:
        order = self._rng.random(observations.shape)
        choice: Array = np.where(observations == self.kinds, order, -1).argmax(axis=1)
        return choice
