"""Key-To-Door: fetch a key long before it opens a door."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from rlgates.envs.engine.arrays import Array, fill, look_up, namespace
from rlgates.envs.engine.grid import (
    DOOR,
    EAST,
    FLOOR,
    KEY,
    NORTH,
    SIGN,
    WALL,
    WEST,
    Atlas,
    blocked_ahead,
    cells_showing,
    first_cell,
    view_center,
)
from rlgates.envs.engine.parameters import Cell, EpisodeParameter
from rlgates.envs.engine.phases import LAST_WORD, PhasedEnvSpec
from rlgates.envs.engine.philox import Key, below
from rlgates.envs.engine.players import RandomPlayer
from rlgates.envs.engine.spec import Player, State

# Letters as in grid.Atlas; k: cells for the key; s: start; i: wall that becomes the sign of the
# key.
EXPLORE = (
    "  ###i###  ",
    "  #kkkkk#  ",
    "  #kkkkk#  ",
    "  ##   ##  ",
    "  #sssss#  ",
    "  #sssss#  ",
    "  #######  ",
)
REWARD = (
    "           ",
    "   ##d##   ",
    "   #   #   ",
    "   # P #   ",
    "   #   #   ",
    "   #####   ",
    "           ",
)


@dataclass(frozen=True, kw_only=True)
class KeyToDoor(PhasedEnvSpec):
    """Key-To-Door, `rlgates/KeyToDoor-v0`.

    ## Description
    An episode has three phases, each on its own board of 7 x 11 cells. *Explore*: two rooms joined
    by a gap, with a key in the upper and the player in the lower one. *Distractor*: a room with
    apples. *Reward*: a small room with a door, which opens only with the key. Fetching the key is
    not rewarded at once, so the game tests long-term credit assignment. It needs no memory: always
    fetching the key and trying the door reaches the ceiling. No timer, phase or inventory is shown.

    ## Actions
    `Discrete(4)`: 0 north (up), 1 south (down), 2 west (left), 3 east (right). A move against a
    wall, or against the door without the key, has no effect. There is no no-op.

    ## Observations
    `Box(0, 255, (crop, crop, 3), uint8)`: the cells around the player, one RGB pixel each, the
    player in the centre. With `crop=None` the whole board, (7, 11, 3), with the player on it.

    | cell | red | green | blue |
    |------|-----|-------|------|
    | floor, and outside the board | 204 | 204 | 204 |
    | wall | 25 | 25 | 25 |
    | player | 228 | 148 | 109 |
    | apple | 140 | 178 | 0 |
    | key | 159 | 81 | 44 |
    | door (over the player) | 134 | 206 | 235 |
    | sign in the wall, in the one image after the key is taken | 255 | 255 | 255 |

    ## Rewards
    `apple_reward` for each apple picked up, and `choice_reward` for entering the door, once; 0
    otherwise. Apples come back as in `PassiveMatch`. A key taken with the last action of its
    phase counts, though its sign is never shown.

    The number to report is `last_phase_reward`, in the info of the last step with `is_success`
    (the door was entered). By default the ceiling is 10; uniformly random moves find the key with
    probability 0.103 and get 0.28 on average.

    ## Start
    Explore: one of the ten cells (4, 3) to (5, 7) of the lower room; the key lies on one of the
    ten cells (1, 3) to (2, 7) of the upper one, both uniformly. Distractor (5, 5), reward (3, 5),
    as (row, column) from 0 at the top left. `reset(options=...)` overrides parameters of the
    episode: `key_cell`, `start_cell`, `apple_cells` (`num_apples` of them) and `apple_reward`;
    `reveal=True` reports all of them in the info of the reset.

    ## End
    `terminated` after exactly explore_steps + distractor_steps + reward_steps actions, or at the
    door with `end_on_choice`. The length is part of the game: `truncated` is never true.

    ## Arguments
    | name | default | meaning |
    |------|---------|---------|
    | `explore_steps` | 15 | actions of the phase, at least 1 |
    | `distractor_steps` | 90 | at least 0, which leaves the phase out |
    | `reward_steps` | 15 | at least 1; the door is 2 steps away |
    | `num_apples` | None | 0 to 22, each on a cell of its own; None: 10 if they pay, else 0 |
    | `apple_reward` | 0.0 | a number, a pair or a rule by name, as in `PassiveMatch` |
    | `apple_respawn` | 20 | at least 1; None: an apple never comes back |
    | `choice_reward` | 10.0 | for entering the door |
    | `end_on_choice` | False | end the episode at the door |
    | `crop` | 5 | side of the view: 5, 7, 9 or 11; None: the whole board |

    Presets: `short` (the defaults), `long` (75 / 450 / 75 steps), each alone or with apples
    that pay 1 (`short_small`, `long_small`) or 5 (`short_large`, `long_large`); `released`, the
    released game: 10 apples that pay 1 or 10.

    ## Version history
    * v0: first version.

    ## Sources and differences
    Hung et al., "Optimizing agent behavior over long time scales by transporting value", 2019;
    github.com/google-deepmind/deepmind-research, tvt/pycolab/key_to_door.py. Different here: by
    default apples pay nothing (there: (1, 10)) and are left out; everything random follows from
    the seed; a pair with a 0 in it is a fair coin.

    Raises:
        ValueError: a setting out of range. TypeError: a setting of the wrong type.
    """

    env_id: ClassVar[str] = "rlgates/KeyToDoor-v0"
    # The sign is a wall that is absent for one image; the door stays visible after its reward.
    _things: ClassVar[Mapping[str, tuple[int, int]]] = {
        "i": (WALL, SIGN),
        "k": (KEY, FLOOR),
        "d": (DOOR, DOOR),
    }
    _solid: ClassVar[str] = "i"
    _over: ClassVar[str] = "d"

    @property
    def _boards(self) -> tuple[Sequence[str], Sequence[str]]:
        return EXPLORE, REWARD

    @property
    def _game_parameters(self) -> Mapping[str, EpisodeParameter]:
        return {
            "key_cell": Cell(self._atlas.cells("k")),
            "start_cell": Cell(self._atlas.cells("s")),
        }

    def _sample_game(self, key: Key, words: Array) -> dict[str, Array]:
        return {
            "key_cell": below(words[:, 0], len(self._atlas.places("k"))),
            "start_cell": below(words[:, LAST_WORD], len(self._atlas.places("s"))),
        }

    def initial_state(self, parameters: dict[str, Array]) -> State:
        cell, state = parameters["key_cell"], super().initial_state(parameters)
        xp, tables = namespace(cell), self._tables.on_device_of(cell)
        rows = xp.arange(cell.shape[0], device=cell.device)
        fill(state["gone_until"], (rows, self._atlas.tiles["k"].start + cell), -1)
        for letter in "id":
            state["gone_until"][:, self._atlas.tiles[letter]] = -1
        state["pays"][:, self._atlas.tiles["d"]] = self.choice_reward
        return {
            **state,
            "place": look_up(tables.starts, parameters["start_cell"]),
            "has_key": xp.zeros_like(cell, dtype=xp.bool),
            "opened": xp.zeros_like(cell, dtype=xp.bool),
        }

    def step(self, state: State, actions: Array) -> tuple[State, Array, Array]:
        xp, tables = namespace(actions), self._tables.on_device_of(actions)
        place = state["place"]
        to = look_up(tables.next, place * 4 + actions)
        shut = (to == self._door) & ~state["has_key"]
        state, reward, thing, taken = self._advance(state, xp.where(shut, place, to))
        got_key = taken & look_up(tables.is_key, thing)
        opened = taken & look_up(tables.is_door, thing)
        sign = self._atlas.tiles["i"].start
        state["gone_until"][:, sign] = xp.where(got_key, state["t"], state["gone_until"][:, sign])
        state["has_key"] = state["has_key"] | got_key
        state["opened"] = state["opened"] | opened
        return state, reward, self._terminated(state, opened)

    def metrics(self, state: State) -> dict[str, Array]:
        xp = namespace(state["t"])
        reward = xp.where(state["opened"], self.choice_reward, 0.0)
        return {"is_success": state["opened"], "last_phase_reward": xp.astype(reward, xp.float32)}

    def memory_player(self) -> Player:
        return KeyToDoorPlayer()

    def reactive_player(self) -> Player:
        """Random actions, because Key-To-Door needs no memory."""
        return RandomPlayer()

    @cached_property
    def _door(self) -> int:
        """The place of the door."""
        return int(self._atlas.places("d")[0])

    def _game_tables(self, atlas: Atlas) -> dict[str, Array]:
        is_key, is_door = np.zeros((2, atlas.num_things + 1), dtype=bool)
        is_key[atlas.tiles["k"]] = is_door[atlas.tiles["d"]] = True
        return {"starts": atlas.places("s"), "is_key": is_key, "is_door": is_door}


class KeyToDoorPlayer(Player):
    """The ceiling of Key-To-Door: fetches the key in at most 8 steps, and opens the door in 2.

    It has no memory: Key-To-Door requires learning that the key is worth fetching. It goes to the
    key if that is visible and the way is free; otherwise to the middle of the room and north,
    through the gap and finally through the door.
    """

    def act(self, observations: Array, episode_starts: Array) -> Array:
        c = view_center(observations)
        near = blocked_ahead(observations)
        action = np.where(near[:, WEST] & ~near[:, EAST], EAST, NORTH)
        action = np.where(near[:, EAST] & ~near[:, WEST], WEST, action)
        key = cells_showing(observations, KEY)
        row, col = first_cell(key)
        chase = np.where(row < c, NORTH, np.where(col < c, WEST, EAST))
        free = ~cells_showing(observations, WALL)[:, c - 1, c] | (chase != NORTH)
        return np.where(key.any(axis=(1, 2)) & free, chase, action)
