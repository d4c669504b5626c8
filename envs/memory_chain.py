"""Memory Chain: see some bits, wait, and tell one of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces

from rlgates.envs.arrays import Array, Tables, look_up, namespace, row_starts
from rlgates.envs.choices import Choice, Number, Numbers
from rlgates.envs.engine import Moment, State
from rlgates.envs.philox import Key, below
from rlgates.envs.settings import check_range, store
from rlgates.errors import check_flag

_MAX_STEPS = 1_000_000
_MAX_BITS = 10_000

# The published sweeps; of the second, the last number of bits is 40.
_SWEEP = (*range(1, 11), 12, 14, 17, 20, 25, *range(30, 101, 10))
_SIZES = tuple(n for n in _SWEEP if n <= 40)

# Colours of the board, for people: bright what the agent sees now.
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
class MemoryChain:
    """Memory Chain, `rlgates/MemoryChain-v0`.

    ## Description
    Some bits, the *context*, are shown at the start and are then gone. On the last observation
    before the end a number, the *query*, says which of them is asked for, and the next action is
    the answer. All actions before it do nothing. Each bit is a coin flip, and the query is
    uniform.

    ## Actions
    `Discrete(2)`: the value of the bit, 0 or 1.

    ## Observations
    `Box(low, high, (num_bits + 2,), float32)`. With L for `memory_length`, observation t is the
    one that action t (from 0) is chosen on:

    | entry | bounds | meaning | shown at t |
    |-------|--------|---------|------------|
    | 0 | 0, 1 | time left: 1 at t = 0, else 1 - (t - 1) / L; 0 with `show_time=False` | always |
    | 1 | 0, max(1, num_bits - 1) | the query, counted from 0; else 0 | L (with L = 1 also 0) |
    | 2 ... | -1, 1 | the context: -1 for a bit 0, 1 for a bit 1; else 0 | 0 and 1 |

    The first two observations are the same, because the published environment looks before it
    counts. So the context was last shown L - 1 steps before the answer is given: memory is needed
    from L = 2 on. The last observation, at t = L + 1, follows the answer and shows neither.

    ## Rewards
    The answer is paid 1 if it is the bit asked for, and -1 if not; all other actions 0. A perfect
    memory gets 1, guesses 0 on average. The number to report is `is_success` in the info of the
    last step: the answer was right.

    ## Start
    With the context in sight. `reset(options=...)` fixes what the episode draws: `context`
    (`num_bits` bits, 0 or 1) and `query`; `reveal=True` puts both into the info of the reset.

    ## End
    `terminated` after exactly memory_length + 1 actions, with the answer. The length belongs to
    the task: `truncated` is never true.

    ## Arguments
    | name | default | meaning |
    |------|---------|---------|
    | `memory_length` | 10 | L above, at least 1 |
    | `num_bits` | 1 | bits of the context, at least 1 |
    | `show_time` | True | show the time left; False leaves that entry 0 |

    Presets are the published sweeps: `memory_len_1` to `memory_len_100` (one bit; lengths 1 to
    10, 12, 14, 17, 20, 25, 30 and on in tens) and `memory_size_1` to `memory_size_40` (length 2;
    as many bits, the same numbers up to 40). There, they are numbered by their places: the last
    ones are memory_len/22 and memory_size/16.

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

    memory_length: int = 10
    num_bits: int = 1
    show_time: bool = True

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        **{f"memory_len_{n}": {"memory_length": n, "num_bits": 1} for n in _SWEEP},
        **{f"memory_size_{n}": {"memory_length": 2, "num_bits": n} for n in _SIZES},
    }
    action_space: ClassVar[spaces.Discrete] = spaces.Discrete(2)
    metric_names: ClassVar[tuple[str, ...]] = ("is_success",)
    phase_names: ClassVar[tuple[str, ...]] = ()
    fixed_length: ClassVar[bool] = True
    chance: ClassVar[float] = 0.5

    def __post_init__(self) -> None:
        store(
            self,
            memory_length=check_range("memory_length", self.memory_length, 1, _MAX_STEPS),
            num_bits=check_range("num_bits", self.num_bits, 1, _MAX_BITS),
        )
        check_flag("show_time", self.show_time)

    @property
    def max_episode_length(self) -> int:
        return self.memory_length + 1

    @cached_property
    def observation_space(self) -> spaces.Box:
        low = np.full(self.num_bits + 2, -1, dtype=np.float32)
        low[:2] = 0
        high = np.ones(self.num_bits + 2, dtype=np.float32)
        high[1] = max(1, self.num_bits - 1)
        return spaces.Box(low, high, dtype=np.float32)

    @cached_property
    def choices(self) -> Mapping[str, Choice]:
        return {"context": Numbers(2, self.num_bits), "query": Number(self.num_bits)}

    @property
    def state_bounds(self) -> Mapping[str, tuple[int, int]]:
        return {"context": (0, 1), "query": (0, self.num_bits - 1), "asked": (0, 1)}

    def draw(self, key: Key) -> dict[str, Array]:
        words = key.words(self.num_bits + 1)
        return {"context": below(words[:, 1:], 2), "query": below(words[:, 0], self.num_bits)}

    def start(self, drawn: dict[str, Array]) -> State:
        context, query = drawn["context"], drawn["query"]
        bit = row_starts(query.shape[0], self.num_bits, query) + query
        return {
            "t": query * 0,
            "context": context,
            "query": query,
            "asked": look_up(context.reshape(-1), bit),
            "is_right": query < 0,
        }

    def step(self, state: State, actions: Array) -> tuple[State, Array, Array]:
        xp, tables = namespace(actions), self._tables.beside(actions)
        t = state["t"] + 1
        ends = t > self.memory_length
        is_right = (actions == state["asked"]) & ends
        reward = look_up(tables.reward, xp.where(ends, 1 + is_right, 0))
        return {**state, "t": t, "is_right": is_right}, reward, ends

    def observe(self, state: State) -> Array:
        t = state["t"]
        xp, tables = namespace(t), self._tables.beside(t)
        obs: Array = xp.zeros((t.shape[0], self.num_bits + 2), dtype=xp.float32, device=t.device)
        obs[:, 0] = look_up(tables.time, t)
        obs[:, 1] = state["query"] * look_up(tables.asks, t)
        obs[:, 2:] = (2 * state["context"] - 1) * (t < 2)[:, None]
        return obs

    def metrics(self, state: State) -> dict[str, Array]:
        return {"is_success": state["is_right"]}

    def phase(self, state: State) -> Array:
        return state["t"] * 0

    def board(self, state: State) -> Array:
        """Two rows of `num_bits` cells: the context, and a mark under the bit asked for."""
        t = state["t"][:, None]
        xp, tables = namespace(t), self._tables.beside(t)
        bits = _ZERO + state["context"] + _BRIGHT * (t < 2)
        is_query = xp.arange(self.num_bits, device=t.device) == state["query"][:, None]
        mark = xp.where(is_query, _QUERY + _BRIGHT * look_up(tables.asks, t), _EMPTY)
        return look_up(tables.colors, xp.stack([bits, mark], axis=1))

    def moments(self, state: State) -> list[Moment]:
        return [Moment("", self.max_episode_length - t, None) for t in state["t"].tolist()]

    @cached_property
    def _tables(self) -> Tables:
        count = np.arange(-1, self.memory_length + 1)
        count[0] = 0  # the published counter does not move with the first action
        return Tables(
            time=(self.show_time * (1 - count / self.memory_length)).astype(np.float32),
            asks=(count == self.memory_length - 1).astype(np.int64),
            reward=np.array([0, -1, 1], dtype=np.float32),
            colors=_COLORS,
        )
