"""The base of Match and Key-To-Door: three phases on boards, with things to step on.

The phases are those of the TVT release: explore, distractor (apples), reward. A *thing* (apple,
key, pad, door) is taken by stepping on it. Each has the last time at which it is absent (-1 if
present from the start) and a reward: arrays (B, things + 1), whose last column is for places
without a thing.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces

from rlgates.envs.engine.arrays import (
    Array,
    Tables,
    drop_alpha,
    entry,
    fill,
    look_up,
    namespace,
    row_starts,
)
from rlgates.envs.engine.grid import (
    ACTIONS,
    APPLE,
    CELLS,
    FLOOR,
    HEIGHT,
    PLAYER,
    RGBA,
    WALL,
    WIDTH,
    Atlas,
    Schedule,
)
from rlgates.envs.engine.parameters import Cells, EpisodeParameter, Numbers, Reward
from rlgates.envs.engine.philox import Key, below, fractions, permutations
from rlgates.envs.engine.settings import check_range, check_reward, set_fields
from rlgates.envs.engine.spec import EnvSpec, RenderInfo, State
from rlgates.errors import check_choice, check_flag

DISTRACTOR = (
    "###########",
    "#a a a a a#",
    "# a a a a #",
    "#a a a a a#",
    "# a a a a #",
    "#a a P a a#",
    "###########",
)
APPLE_CELLS = sum(row.count("a") for row in DISTRACTOR)
NEVER = 2**30
WORDS = 32
"""Random words of an episode: 0 and 1 for the game, 2 for the apples' reward, APPLE_CELLS for their
cells, three for pads, and one more for the game."""
PAD_WORDS = slice(3 + APPLE_CELLS, 6 + APPLE_CELLS)
LAST_WORD = 6 + APPLE_CELLS
_MAX_STEPS = 1_000_000

LONG = {"explore_steps": 75, "distractor_steps": 450, "reward_steps": 75}
SMALL, LARGE = {"apple_reward": 1.0}, {"apple_reward": 5.0}


@dataclass(frozen=True, kw_only=True)
class PhasedEnvSpec(EnvSpec):
    """The settings and rules that the three games share; their docstrings specify them."""

    explore_steps: int = 15
    distractor_steps: int = 90
    reward_steps: int = 15
    num_apples: int | None = None
    apple_reward: float | tuple[float, float] | tuple[str, float, float] = 0.0
    apple_respawn: int | None = 20
    choice_reward: float = 10.0
    end_on_choice: bool = False
    crop: int | None = 5

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "short": {},
        "short_small": SMALL,
        "short_large": LARGE,
        "long": LONG,
        "long_small": {**LONG, **SMALL},
        "long_large": {**LONG, **LARGE},
        "released": {"num_apples": 10, "apple_reward": (1.0, 10.0)},
    }
    action_space: ClassVar[spaces.Discrete] = spaces.Discrete(len(ACTIONS))
    action_names: ClassVar[tuple[str, ...]] = ("up", "down", "left", "right")
    metric_names: ClassVar[tuple[str, ...]] = ("is_success", "last_phase_reward")
    phase_names: ClassVar[tuple[str, ...]] = ("explore", "distractor", "reward")

    def __post_init__(self) -> None:
        for name, low, high in (
            ("explore_steps", 1, _MAX_STEPS),
            ("distractor_steps", 0, _MAX_STEPS),
            ("reward_steps", 1, _MAX_STEPS),
            ("apple_respawn", 1, _MAX_STEPS),
            ("num_apples", 0, APPLE_CELLS),
            ("crop", 5, 11),
        ):
            value = getattr(self, name)
            if value is not None or name.endswith("_steps"):
                set_fields(self, **{name: check_range(name, value, low, high)})
        if self.crop is not None and self.crop % 2 == 0:
            raise ValueError(f"crop must be odd, or None for the whole board, got {self.crop}.")
        set_fields(
            self,
            end_on_choice=check_flag("end_on_choice", self.end_on_choice),
            choice_reward=check_reward("choice_reward", self.choice_reward),
            apple_reward=_check_apple_reward(self.apple_reward),
        )

    # To be defined by a game.

    @property
    @abstractmethod
    def _boards(self) -> tuple[Sequence[str], Sequence[str]]:
        """The boards of the explore and the reward phase."""

    # Letters for `Atlas`: things other than apples, with the colours where they are present and
    # absent; walls; solid things; things drawn over the player.
    _things: ClassVar[Mapping[str, tuple[int, int]]]
    _walls: ClassVar[str] = ""
    _solid: ClassVar[str] = ""
    _over: ClassVar[str] = ""

    @property
    @abstractmethod
    def _game_parameters(self) -> Mapping[str, EpisodeParameter]:
        """The parameters other than the apples'."""

    @abstractmethod
    def _sample_game(self, key: Key, words: Array) -> dict[str, Array]:
        """Samples of `_game_parameters`, from the words that are not the apples'."""

    # The contract of `EnvSpec`.

    @property
    def _num_apples(self) -> int:
        if self.num_apples is None:
            return 10 if any(self._apple_rewards) else 0
        return self.num_apples

    @property
    def _apple_rewards(self) -> tuple[float, float]:
        reward: Any = self.apple_reward
        return reward[-2:] if isinstance(reward, tuple) else (reward, reward)

    @property
    def _draws_each(self) -> bool:
        """Whether every apple taken has a reward of its own."""
        return isinstance(self.apple_reward, tuple) and len(self.apple_reward) == 3

    @property
    def _view_shape(self) -> tuple[int, int]:
        return (HEIGHT, WIDTH) if self.crop is None else (self.crop, self.crop)

    @cached_property
    def observation_space(self) -> spaces.Box:
        return spaces.Box(0, 255, (*self._view_shape, 3), np.uint8)

    @property
    def max_episode_length(self) -> int:
        return self.explore_steps + self.distractor_steps + self.reward_steps

    @property
    def fixed_length(self) -> bool:
        return not self.end_on_choice

    @cached_property
    def parameters(self) -> Mapping[str, EpisodeParameter]:
        apples = Cells(self._atlas.cells("a"), self._num_apples)
        reward = Reward()
        if not self._num_apples:
            reward = Reward("there are no apples", self._apple_rewards)
        named: dict[str, EpisodeParameter] = {"apple_cells": apples, "apple_reward": reward}
        if self._draws_each:
            named["apple_reward"] = Reward("every apple draws its own", self._apple_rewards)
            named["apple_draws"] = Numbers(0.0, 1.0, max(1, self.distractor_steps))
        return {**self._game_parameters, **named}

    @property
    def state_bounds(self) -> Mapping[str, tuple[int, int]]:
        last = NEVER + self.max_episode_length
        return {"place": (0, 3 * CELLS - 1), "gone_until": (-1, last)}

    def sample(self, key: Key) -> dict[str, Array]:
        xp = namespace(key.episode)
        words = key.words(WORDS)
        low, high = self._apple_rewards
        drawn = {}
        if self._draws_each:
            drawn = {"apple_draws": fractions(key.words(max(1, self.distractor_steps), stream=2))}
        return {
            **drawn,
            **self._sample_game(key, words),
            "apple_cells": permutations(words[:, 3 : 3 + APPLE_CELLS])[:, : self._num_apples],
            "apple_reward": xp.astype(xp.where(below(words[:, 2], 2) == 0, low, high), xp.float32),
        }

    def initial_state(self, parameters: dict[str, Array]) -> State:
        """As in `EnvSpec`; a game then adds its own things to the arrays of the result."""
        value = parameters["apple_reward"]
        xp, tables, batch = namespace(value), self._tables.on_device_of(value), value.shape[0]
        like = {"device": value.device}
        columns = self._atlas.num_things + 1
        gone_until = xp.full((batch, columns), NEVER, dtype=xp.int32, **like)
        pays = xp.zeros((batch, columns), dtype=xp.float32, **like)
        if self._num_apples:
            apples = self._atlas.tiles["a"]
            rows = xp.arange(batch, **like)[:, None]
            fill(gone_until, (rows, apples.start + parameters["apple_cells"]), -1)
            pays[:, apples] = value[:, None]
        drawn = {"draws": parameters["apple_draws"]} if self._draws_each else {}
        return {
            **drawn,
            "t": xp.zeros(batch, dtype=xp.int32, **like),
            "place": xp.zeros(batch, dtype=xp.int64, **like) + tables.entry[0],
            "gone_until": gone_until,
            "pays": pays,
            # Colours; those of things as xor of the colours where they are present and absent.
            "things": xp.zeros((batch, 1), dtype=xp.int32, **like) + tables.things,
            "walls": xp.zeros((batch, 1), dtype=xp.int32, **like) + tables.walls,
        }

    def _advance(self, state: State, to: Array) -> tuple[State, Array, Array, Array]:
        """The part of a step that all games share, with the players at `to`.

        Returns:
            The next state, reward (B,), the thing on each player's cell (B,), and which of them
            were taken (B,).
        """
        xp, tables = namespace(to), self._tables.on_device_of(to)
        t = state["t"] + 1
        thing = look_up(tables.thing, to)
        width = self._atlas.num_things + 1
        slot = row_starts(to.shape[0], width, to) + thing
        until = look_up(state["gone_until"].reshape(-1), slot)
        # Only things in the last image can be taken. An apple taken at time t is also absent from
        # the next `apple_respawn` images, and returns at t + apple_respawn + 1.
        taken = until < state["t"]
        reward = xp.where(taken, look_up(state["pays"].reshape(-1), slot), 0.0)
        if self._draws_each and self._num_apples:
            reward = xp.where(taken & look_up(tables.is_apple, thing), self._drawn(state), reward)
        gone_until = xp.asarray(state["gone_until"], copy=True)
        gone_until.reshape(-1)[slot] = xp.where(taken, t + look_up(tables.rests, thing), until)
        entry = look_up(tables.entry, t)
        place = xp.where(entry < 0, to, entry)
        state = {**state, "t": t, "place": place, "gone_until": gone_until}
        return state, reward, thing, taken

    def _drawn(self, state: State) -> Array:
        """What an apple pays that is taken now, float32 (B,)."""
        draws, (low, high) = state["draws"], self._apple_rewards
        xp = namespace(draws)
        steps = (state["t"] - self.explore_steps).clip(0, draws.shape[1] - 1)
        reward: Array = xp.astype(low + (high - low) * entry(draws, steps), xp.float32)
        return reward

    def _terminated(self, state: State, chosen: Array) -> Array:
        """Which episodes end; `chosen` is nonzero after the choice."""
        ended: Array = state["t"] == self._schedule.total
        return ended | (chosen > 0) if self.end_on_choice else ended

    def observe(self, state: State) -> Array:
        sight = self._tables.on_device_of(state["t"]).view
        return drop_alpha(self._image(state, sight), *self._view_shape)

    def render_board(self, state: State) -> Array:
        sight = self._tables.on_device_of(state["t"]).whole
        return drop_alpha(self._image(state, sight), HEIGHT, WIDTH)

    def _image(self, state: State, sight: Array) -> Array:
        """Colours of the visible tiles, int32 (B, tiles)."""
        # All ones where a thing is present, else 0: the sign of gone_until - t. A comparison and a
        # `where` take more than twice as long.
        things = state["gone_until"][:, :-1] - state["t"][:, None]
        things >>= 31
        things &= state["things"]
        things ^= self._tables.on_device_of(sight).absent
        paint = namespace(sight).concat((things, state["walls"]), axis=1)
        batch, width = paint.shape
        first = row_starts(batch, width, sight)[:, None]
        # One flat look-up is several times faster than an index for each axis.
        return look_up(paint.reshape(-1), look_up(sight, state["place"]) + first)

    def phase(self, state: State) -> Array:
        return look_up(self._tables.on_device_of(state["t"]).phase, state["t"])

    def render_info(self, state: State) -> list[RenderInfo]:
        ends = self._schedule.ends.tolist()
        phases, times = self.phase(state).tolist(), state["t"].tolist()
        cells = [divmod(place % CELLS, WIDTH) for place in state["place"].tolist()]
        return [
            RenderInfo(self.phase_names[phase], ends[phase] - t, cell)
            for phase, t, cell in zip(phases, times, cells, strict=True)
        ]

    # Tables, computed on first use.

    @cached_property
    def _atlas(self) -> Atlas:
        explore, reward = self._boards
        boards, things = (explore, DISTRACTOR, reward), "".join(self._all_things)
        return Atlas(boards, things, self._walls, self._solid, self._over)

    @property
    def _apple_numbers(self) -> Sequence[int]:
        """The numbers of the apples among the things."""
        apples = self._atlas.tiles["a"] if self._num_apples else slice(0)
        return range(apples.start or 0, apples.stop)

    @property
    def _all_things(self) -> dict[str, tuple[int, int]]:
        apples = {"a": (APPLE, FLOOR)} if self._num_apples else {}
        return {**apples, **self._things}

    @cached_property
    def _schedule(self) -> Schedule:
        return Schedule(
            explore=self.explore_steps,
            distractor=self.distractor_steps,
            reward=self.reward_steps,
        )

    @cached_property
    def _tables(self) -> Tables:
        atlas, schedule = self._atlas, self._schedule
        count = atlas.num_things
        present, absent = np.zeros((2, count), dtype=np.int32)
        for letter, colors in self._all_things.items():
            present[atlas.tiles[letter]], absent[atlas.tiles[letter]] = RGBA[list(colors)]
        walls = np.full(atlas.num_tiles - count, RGBA[WALL])
        walls[:3] = RGBA[[FLOOR, WALL, PLAYER]]
        rests = np.full(count + 1, NEVER, dtype=np.int32)
        if self._num_apples and self.apple_respawn is not None:
            rests[atlas.tiles["a"]] = self.apple_respawn
        return Tables(
            next=atlas.next,
            thing=np.minimum(atlas.tile, count),
            is_apple=np.isin(np.arange(count + 1), self._apple_numbers),
            rests=rests,  # how long a thing is absent after it was taken
            things=present ^ absent,
            absent=absent,
            walls=walls,
            view=atlas.sight(self.crop),
            whole=atlas.sight(None),
            phase=schedule.phase,
            # Where the player is placed at time t, or -1 where it stays.
            entry=np.where(schedule.enters, atlas.start[schedule.phase], -1),
            **self._game_tables(atlas),
        )

    def _game_tables(self, atlas: Atlas) -> dict[str, Array]:
        return {}


APPLE_RULES = {"constant": 1, "episode": 2, "pickup": 2}
"""The rules of the releases by name, and how many numbers each takes."""


def _check_apple_reward(value: Any) -> Any:
    """An apple reward as a float, a pair of floats, or "pickup" and a pair."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        return check_reward("apple_reward", value)
    rule, numbers = "episode", list(value)
    if numbers and isinstance(numbers[0], str):
        rule = check_choice("rule of apple_reward", numbers.pop(0), APPLE_RULES)
    if len(numbers) != APPLE_RULES[rule]:
        raise ValueError(
            f"apple_reward must be a number, a pair (low, high), or one of ('constant', reward), "
            f"('episode', low, high), ('pickup', low, high), got {value!r}."
        )
    rewards = tuple(check_reward("apple_reward", number) for number in numbers)
    if rule == "constant":
        return rewards[0]
    return rewards if rule == "episode" else (rule, *rewards)
