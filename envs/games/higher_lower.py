"""Higher Lower: guess whether the next card is higher or lower than the visible one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces

from rlgates.envs.engine.arrays import Array, Tables, entry, look_up, namespace
from rlgates.envs.engine.cards import RANKS, CardGame, CardOrder, shuffled
from rlgates.envs.engine.parameters import EpisodeParameter
from rlgates.envs.engine.philox import Key
from rlgates.envs.engine.spec import Player, State

HIGHER, LOWER = 0, 1


@dataclass(frozen=True, kw_only=True)
class HigherLower(CardGame):
    """Higher Lower, `rlgates/HigherLower-v0`.

    ## Description
    Decks of 52 cards are shuffled together and dealt one by one. Every action guesses whether the
    next card has a higher or a lower rank than the visible one. A player that counts the cards
    knows which are left.

    ## Actions
    `Discrete(2)`:

    | number | guess |
    |--------|-------|
    | 0 | higher |
    | 1 | lower |

    ## Observations
    `Discrete(13)`, int64: the rank of the card just dealt, from the ace (0) to the king (12).

    ## Rewards
    With N cards in all, the reward of an action is 1 / N if it is right, -1 / N if it is wrong,
    and 0 if both cards have the same rank. No player is always right, since the order is random.

    The numbers to report are in the info of the last step: `accuracy`, the share of right
    guesses among those that were right or wrong (float32), and `is_success`: none was wrong, which
    does not happen in practice.

    ## Start
    With the first card visible. `reset(options=...)` overrides parameters of the episode: `ranks`,
    of all N cards in the order in which they are dealt, N / 13 of each; `reveal=True` reports them
    in the info of the reset.

    ## End
    `terminated` after exactly N - 1 actions, with the last card visible. The length is part of
    the game: `truncated` is never true.

    ## Arguments
    | name | default | meaning |
    |------|---------|---------|
    | `num_decks` | 1 | decks of 52 cards, 1 to 1,000 |

    Presets: `easy` (1 deck), `medium` (2) and `hard` (3), the published levels.

    ## Version history
    * v0: first version.

    ## Sources and differences
    Morad et al., "POPGym: Benchmarking partially observable reinforcement learning", 2023;
    github.com/proroklab/popgym, version 1.0.7, envs/higher_lower.py. There the info of a reset
    names the first card, which the observation shows too; here it does not. Everything random
    follows from the seed.

    Raises:
        ValueError: a setting out of range. TypeError: a setting of the wrong type.
    """

    env_id: ClassVar[str] = "rlgates/HigherLower-v0"

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "easy": {"num_decks": 1},
        "medium": {"num_decks": 2},
        "hard": {"num_decks": 3},
    }
    action_space: ClassVar[spaces.Discrete] = spaces.Discrete(2)
    action_names: ClassVar[tuple[str, ...]] = ("higher", "lower")
    observation_space: ClassVar[spaces.Discrete] = spaces.Discrete(RANKS)

    @property
    def max_episode_length(self) -> int:
        return self._num_cards - 1

    @cached_property
    def parameters(self) -> Mapping[str, EpisodeParameter]:
        return {"ranks": CardOrder(self.num_decks, "ranks")}

    @property
    def state_bounds(self) -> Mapping[str, tuple[int, int]]:
        guesses = (0, self.max_episode_length)
        return {"ranks": (0, RANKS - 1), "num_right": guesses, "num_wrong": guesses}

    def sample(self, key: Key) -> dict[str, Array]:
        return {"ranks": shuffled(key, self.num_decks, "ranks")}

    def initial_state(self, parameters: dict[str, Array]) -> State:
        ranks = parameters["ranks"]
        zeros = namespace(ranks).zeros_like(ranks[:, 0])
        return {"t": zeros, "ranks": ranks, "num_right": zeros, "num_wrong": zeros}

    def step(self, state: State, actions: Array) -> tuple[State, Array, Array]:
        xp, t = namespace(actions), state["t"] + 1
        ranks = state["ranks"]
        rise = xp.sign(entry(ranks, t) - entry(ranks, state["t"]))
        result = rise * (1 - 2 * actions)  # 1: right, -1: wrong, 0: equal ranks
        state = {
            **state,
            "t": t,
            "num_right": state["num_right"] + (result > 0),
            "num_wrong": state["num_wrong"] + (result < 0),
        }
        reward = look_up(self._tables.on_device_of(actions).reward, result + 1)
        return state, reward, t == self.max_episode_length

    def observe(self, state: State) -> Array:
        return entry(state["ranks"], state["t"])

    def metrics(self, state: State) -> dict[str, Array]:
        right, wrong = state["num_right"], state["num_wrong"]
        xp = namespace(right)
        # In the seldom case of no guess that counts, none was wrong: 1.
        none = xp.astype(right + wrong == 0, right.dtype)
        share = xp.astype(right + none, xp.float64) / xp.astype(right + wrong + none, xp.float64)
        return {"is_success": wrong == 0, "accuracy": xp.astype(share, xp.float32)}

    def memory_player(self) -> Player:
        return HigherLowerMemoryPlayer(self.num_decks)

    def reactive_player(self) -> Player:
        return HigherLowerReactivePlayer()

    @cached_property
    def _tables(self) -> Tables:
        share = 1 / self._num_cards
        return Tables(reward=np.array([-share, 0, share], dtype=np.float32))


class HigherLowerMemoryPlayer:
    """The ceiling of Higher Lower: counts the cards, and guesses the side with more cards left.

    Args:
        num_decks: of the game.
    """

    def __init__(self, num_decks: int) -> None:
        self.num_decks = num_decks

    def reset(self, num_envs: int, seed: int | None = None) -> None:
        self._left = np.zeros((num_envs, RANKS), dtype=np.int64)

    def act(self, observations: Array, episode_starts: Array) -> Array:
        self._left[episode_starts] = 4 * self.num_decks
        self._left[np.arange(len(self._left)), observations] -= 1
        ranks, visible = np.arange(RANKS), observations[:, None]
        higher = (self._left * (ranks > visible)).sum(axis=1)
        lower = (self._left * (ranks < visible)).sum(axis=1)
        return np.where(higher >= lower, HIGHER, LOWER)


class HigherLowerReactivePlayer(Player):
    """The floor of Higher Lower: guesses higher below the middle rank, and lower from there on."""

    def act(self, observations: Array, episode_starts: Array) -> Array:
        return np.where(observations < RANKS // 2, HIGHER, LOWER)
