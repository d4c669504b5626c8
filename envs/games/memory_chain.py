"""Memory Chain: see some bits, wait, and name one of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces

from rlgates.envs.engine.arrays import Array, Tables, entry, look_up, namespace
from rlgates.envs.engine.parameters import EpisodeParameter, Integer, Integers
from rlgates.envs.engine.philox import Key, below
from rlgates.envs.engine.settings import check_range, set_fields
from rlgates.envs.engine.spec import EnvSpec, Player, State
from rlgates.errors import check_flag

_MAX_STEPS = 1_000_000
_MAX_BITS = 10_000

# The published sweeps; the second one ends at 40 bits.
_SWEEP = (*range(1, 11), 12, 14, 17, 20, 25, *range(30, 101, 10))
_SIZES = tuple(n for n in _SWEEP if n <= 40)

# Colours of the board; bright ones are in the current observation.
_EMPTY, _ZERO, _QUERY, _BRIGHT = 0, 1, 3, 3
_COLORS = np.array(
    [
        (25, 25, 25),  # nothing
        (90, 50, 20),  # bit 0
        (25, 60, 90),  # bit 1
        (90, 90, 90),  # query
        (240, 140, 50),  # the same three, bright
        (70, 170, 250),
        (255, 255, 255),
    ],
    dtype=np.uint8,
)


@dataclass(frozen=True, kw_only=True)
class MemoryChain(EnvSpec):
    """Memory Chain, `rlgates/MemoryChain-v0`.

    ## Description
    Some bits, the *context*, are shown at the start and then disappear. The last observation
    before the end has a number, the *query*: the index of the bit asked for. The next action is
    the answer; all earlier actions have no effect. Bits and query are uniform.

    ## Actions
    `Discrete(2)`: the value of the bit, 0 or 1.

    ## Observations
    `Box(low, high, (num_bits + 2,), float32)`. With L = `memory_length`, observation t precedes
    action t (from 0):

    | entry | bounds | meaning | shown at t |
    |-------|--------|---------|------------|
    | 0 | 0, 1 | time left: 1 at t = 0, else 1 - (t - 1) / L; 0 with `show_time=False` | always |
    | 1 | 0, max(1, num_bits - 1) | the query, counted from 0; else 0 | L (with L = 1 also 0) |
    | 2 ... | -1, 1 | the context: -1 for a bit 0, 1 for a bit 1; else 0 | 0 and 1 |

    The first two observations are equal, because the published environment observes before it
    counts the step. So the context is last shown L - 1 steps before the answer, and memory is
    needed from L = 2 on. The last observation, at t = L + 1, follows the answer and shows neither.

    ## Rewards
    The reward is 1 if the answer is the bit asked for, else -1; all other actions get 0. A perfect
    memory gets 1, guesses 0 on average. The number to report is `is_success` in the info of the
    last step: the answer was right. With one bit and `add_previous_action` no memory is needed:
    naming the bit at once and then repeating the last action gets 1.

    ## Start
    With the context visible. `reset(options=...)` overrides parameters of the episode: `context`
    (`num_bits` bits, 0 or 1) and `query`; `reveal=True` reports both in the info of the reset.

    ## End
    `terminated` after exactly memory_length + 1 actions, with the answer. The length is part of
    the game: `truncated` is never true.

    ## Arguments
    | name | default | meaning |
    |------|---------|---------|
    | `memory_length` | 10 | L above, at least 1 |
    | `num_bits` | 1 | bits of the context, at least 1 |
    | `show_time` | True | show the time left; False leaves that entry 0 |

    Presets are the published sweeps: `memory_len_1` to `memory_len_100` (one bit; lengths 1 to
    10, 12, 14, 17, 20, 25, and 30 to 100 in tens) and `memory_size_1` to `memory_size_40` (length
    2; the same numbers of bits up to 40). bsuite numbers them by position: the last ones are
    memory_len/22 and memory_size/16.

    ## Version history
    * v0: first version.

    ## Sources and differences
    Osband et al., "Behaviour suite for reinforcement learning", 2020; github.com/google-deepmind/
    bsuite, version 0.3.6, environments/memory_chain.py and experiments memory_len and
    memory_size. Different here: the observation has one axis (there it is (1, num_bits + 2)),
    the time can be hidden, and everything random follows from the seed.

    Raises:
        ValueError: a setting out of range. TypeError: a setting of the wrong type.
    """

    env_id: ClassVar[str] = "rlgates/MemoryChain-v0"
    memory_length: int = 10
    num_bits: int = 1
    show_time: bool = True

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        **{f"memory_len_{n}": {"memory_length": n, "num_bits": 1} for n in _SWEEP},
        **{f"memory_size_{n}": {"memory_length": 2, "num_bits": n} for n in _SIZES},
    }
    action_space: ClassVar[spaces.Discrete] = spaces.Discrete(2)
    chance: ClassVar[float] = 0.5

    def __post_init__(self) -> None:
        set_fields(
            self,
            memory_length=check_range("memory_length", self.memory_length, 1, _MAX_STEPS),
            num_bits=check_range("num_bits", self.num_bits, 1, _MAX_BITS),
            show_time=check_flag("show_time", self.show_time),
        )

    @property
    def max_episode_length(self) -> int:
        return self.memory_length + 1

    @property
    def actions_can_keep_the_cue(self) -> bool:
        return self.num_bits == 1

    @cached_property
    def observation_space(self) -> spaces.Box:
        low = np.full(self.num_bits + 2, -1, dtype=np.float32)
        low[:2] = 0
        high = np.ones(self.num_bits + 2, dtype=np.float32)
        high[1] = max(1, self.num_bits - 1)
        return spaces.Box(low, high, dtype=np.float32)

    @cached_property
    def parameters(self) -> Mapping[str, EpisodeParameter]:
        return {"context": Integers(2, self.num_bits), "query": Integer(self.num_bits)}

    @property
    def state_bounds(self) -> Mapping[str, tuple[int, int]]:
        return {"context": (0, 1), "query": (0, self.num_bits - 1), "asked": (0, 1)}

    def sample(self, key: Key) -> dict[str, Array]:
        words = key.words(self.num_bits + 1)
        return {"context": below(words[:, 1:], 2), "query": below(words[:, 0], self.num_bits)}

    def initial_state(self, parameters: dict[str, Array]) -> State:
        context, query = parameters["context"], parameters["query"]
        return {
            "t": query * 0,
            "context": context,
            "query": query,
            "asked": entry(context, query),
            "is_right": query < 0,
        }

    def step(self, state: State, actions: Array) -> tuple[State, Array, Array]:
        xp, tables = namespace(actions), self._tables.on_device_of(actions)
        t = state["t"] + 1
        ends = t > self.memory_length
        is_right = (actions == state["asked"]) & ends
        reward = look_up(tables.reward, xp.where(ends, 1 + is_right, 0))
        return {**state, "t": t, "is_right": is_right}, reward, ends

    def observe(self, state: State) -> Array:
        t = state["t"]
        xp, tables = namespace(t), self._tables.on_device_of(t)
        obs: Array = xp.zeros((t.shape[0], self.num_bits + 2), dtype=xp.float32, device=t.device)
        obs[:, 0] = look_up(tables.time, t)
        obs[:, 1] = state["query"] * look_up(tables.asks, t)
        obs[:, 2:] = (2 * state["context"] - 1) * (t < 2)[:, None]
        return obs

    def metrics(self, state: State) -> dict[str, Array]:
        return {"is_success": state["is_right"]}

    def render_board(self, state: State) -> Array:
        """Two rows of `num_bits` cells: the context, and a mark under the bit asked for."""
        t = state["t"][:, None]
        xp, tables = namespace(t), self._tables.on_device_of(t)
        bits = _ZERO + state["context"] + _BRIGHT * (t < 2)
        is_query = xp.arange(self.num_bits, device=t.device) == state["query"][:, None]
        mark = xp.where(is_query, _QUERY + _BRIGHT * look_up(tables.asks, t), _EMPTY)
        return look_up(tables.colors, xp.stack([bits, mark], axis=1))

    def memory_player(self) -> Player:
        return ChainMemoryPlayer()

    def reactive_player(self) -> Player:
        return ChainReactivePlayer()

    @cached_property
    def _tables(self) -> Tables:
        count = np.arange(-1, self.memory_length + 1)
        count[0] = 0  # the published counter does not advance with the first action
        return Tables(
            time=(self.show_time * (1 - count / self.memory_length)).astype(np.float32),
            asks=(count == self.memory_length - 1).astype(np.int64),
            reward=np.array([0, -1, 1], dtype=np.float32),
            colors=_COLORS,
        )


class ChainMemoryPlayer:
    """The ceiling of Memory Chain: return 1, success 1.

    Remembers the context, and at every step answers the bit at the query's index, which is 0 before
    the query is shown.
    """

    def reset(self, num_envs: int, seed: int | None = None) -> None:
        self._context = np.zeros((num_envs, 1))

    def act(self, observations: Array, episode_starts: Array) -> Array:
        self._context = np.where(episode_starts[:, None], observations[:, 2:], self._context)
        query = observations[:, 1].astype(np.int64)
        return (self._context[np.arange(len(query)), query] > 0).astype(np.int64)


class ChainReactivePlayer(Player):
    """The floor of Memory Chain: success 1/2 from memory_length 2 on, return 0 on average.

    Answers the bit asked for if the context is visible (it is at memory_length 1), else 0.
    """

    def act(self, observations: Array, episode_starts: Array) -> Array:
        query = observations[:, 1].astype(np.int64)
        return (observations[np.arange(len(query)), 2 + query] > 0).astype(np.int64)
