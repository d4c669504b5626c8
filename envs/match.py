"""Passive Visual Match: remember a colour through a distracting phase, then walk onto it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from rlgates.envs import apples
from rlgates.envs.engine import Moment, State
from rlgates.envs.grid import (
    ACTIONS,
    APPLE,
    CUE,
    FLOOR,
    HEIGHT,
    PALETTE,
    PLAYER,
    WALL,
    WIDTH,
    Atlas,
    Schedule,
    row_and_col,
)
from rlgates.envs.philox import Array, Key, below, permutations
from rlgates.envs.settings import check_flag, check_payment, check_range
from rlgates.errors import check_choice

# Letters as in grid.Atlas; c: wall or, in one of them, the colour to remember; p: pad.
EXPLORE = (
    "           ",
    "    ccc    ",
    "    cPc    ",
    "    ccc    ",
    "           ",
    "           ",
    "           ",
)
REWARD = (
    "###########",
    "# p  p  p #",
    "#         #",
    "#         #",
    "####   ####",
    "   # P #   ",
    "   #####   ",
)
_TWO_PADS = (REWARD[0], "# p     p #", *REWARD[2:])
_MAX_STEPS = 1_000_000


@dataclass(frozen=True, kw_only=True)
class PassiveMatch:
    """Passive Visual Match, `rlgates/PassiveMatch-v0`.

    ## Description
    An episode has three phases, each on a board of 7 x 11 cells of its own. *Explore*: the
    player is walled in and cannot move; one of the eight walls around it, chosen uniformly, is
    painted with the colour to remember, the cue. *Distractor*: a room with apples. *Reward*: a
    hall with one pad of each colour; the first pad that the player steps on is its choice, and
    all pads disappear. Nothing but memory tells which pad is right, and no timer or phase is
    shown. The cue is uniform over the colours and the distractor apples are drawn anew for each
    episode.

    ## Actions
    `Discrete(4)`. A move against a wall leaves the player where it is; there is no no-op.

    | number | move |
    |--------|-------|
    | 0 | north (up) |
    | 1 | south (down) |
    | 2 | west (left) |
    | 3 | east (right) |

    ## Observations
    `Box(0, 255, (crop, crop, 3), uint8)`: the cells around the player, one RGB pixel each, the
    player in the centre. With `crop=None` the whole board, (7, 11, 3), with the player on it.

    | cell | red | green | blue |
    |------|-----|-------|------|
    | floor, and outside the board | 204 | 204 | 204 |
    | wall | 25 | 25 | 25 |
    | player (over anything else) | 228 | 148 | 109 |
    | apple | 140 | 178 | 0 |
    | cue or pad: red / green / blue | 255 / 0 / 0 | 0 / 255 / 0 | 0 / 0 / 255 |

    ## Rewards
    `apple_reward` for each apple picked up; `choice_reward` for stepping on the pad of the
    cue's colour first, `wrong_reward` for another pad; 0 otherwise. An apple picked up comes
    back to its cell: taken at step f, it is shown again at f + `apple_respawn` + 1, and can be
    taken from the step after. The last action of a phase still pays, although its picture is
    replaced by the first picture of the next phase.

    The number to report is `last_phase_reward`, in the info of the last step with `is_success`
    (the right pad was the first one touched): apples can swamp the return. By default a perfect
    memory gets 10, a player that always touches some pad 10/3 and uniformly random moves 0.5.

    ## Start
    Explore (2, 5), distractor (5, 5), reward (5, 5), as (row, column) from 0 at the top left.

    ## End
    `terminated` after exactly explore_steps + distractor_steps + reward_steps actions, or at
    the choice with `end_on_choice`. The length belongs to the task: `truncated` is never true.

    ## Arguments
    | name | default | meaning |
    |------|---------|---------|
    | `explore_steps` | 15 | actions of the phase, at least 1 |
    | `distractor_steps` | 90 | at least 0, which leaves the phase out |
    | `reward_steps` | 15 | at least 1; a side pad is 7 steps away, the middle one 4 |
    | `num_apples` | None | 0 to 22, each on a cell of its own; None: 10 if they pay, else 0 |
    | `apple_reward` | 0.0 | a number, or a pair: each episode takes one of the two, by coin flip |
    | `apple_respawn` | 20 | at least 1 (see Rewards); None: an apple never comes back |
    | `num_colors` | 3 | 2 or 3; with 2 the colours are red and green, on the outer pads |
    | `choice_reward` | 10.0 | for the right pad |
    | `wrong_reward` | 0.0 | for a wrong pad |
    | `end_on_choice` | False | end the episode at the first pad touched |
    | `shuffle_pads` | "episode" | pad colours are drawn each "episode", or once for an "env" |
    | `crop` | 5 | side of the view: 5, 7, 9 or 11; None: the whole board |

    ## Version history
    * v0: first version.

    ## Sources and differences
    Boards, colours, apples and timing are those of the TVT release (Hung et al., "Optimizing
    agent behavior over long time scales by transporting value", 2019; github.com/google-deepmind/
    deepmind-research, tvt/pycolab); its explore phase is active, the passive one is that of
    github.com/twni2016/Memory-RL. Different here: by default pads are shuffled for each episode
    (there: "env") and apples pay nothing (there: (1, 10)) and are left out (there an apple that
    pays nothing still lies there: `num_apples=10`); everything random follows from the
    seed; a pair with a 0 in it is a fair coin (there a 0 is drawn again at the next step).

    Raises:
        ValueError: a setting out of range. TypeError: a setting of the wrong type.
    """

    explore_steps: int = 15
    distractor_steps: int = 90
    reward_steps: int = 15
    num_apples: int | None = None
    apple_reward: float | tuple[float, float] = 0.0
    apple_respawn: int | None = 20
    num_colors: int = 3
    choice_reward: float = 10.0
    wrong_reward: float = 0.0
    end_on_choice: bool = False
    shuffle_pads: Literal["episode", "env"] = "episode"
    crop: int | None = 5

    num_actions = len(ACTIONS)
    metric_names = ("is_success", "last_phase_reward")

    def __post_init__(self) -> None:
        check_range("explore_steps", self.explore_steps, 1, _MAX_STEPS)
        check_range("distractor_steps", self.distractor_steps, 0, _MAX_STEPS)
        check_range("reward_steps", self.reward_steps, 1, _MAX_STEPS)
        if self.apple_respawn is not None:
            check_range("apple_respawn", self.apple_respawn, 1, _MAX_STEPS)
        check_range("num_colors", self.num_colors, 2, 3)
        check_flag("end_on_choice", self.end_on_choice)
        check_choice("shuffle_pads", self.shuffle_pads, ("episode", "env"))
        if self.crop is not None and check_range("crop", self.crop, 5, 11) % 2 == 0:
            raise ValueError(f"crop must be odd, or None for the whole board, got {self.crop}.")
        for name in ("choice_reward", "wrong_reward"):
            object.__setattr__(self, name, check_payment(name, getattr(self, name)))
        object.__setattr__(self, "apple_reward", apples.check_reward(self.apple_reward))
        if self.num_apples is None:
            object.__setattr__(self, "num_apples", 10 if np.any(self.apple_reward) else 0)
        check_range("num_apples", self._num_apples, 0, apples.CELLS)

    @property
    def _num_apples(self) -> int:
        return self.num_apples or 0

    @property
    def observation_shape(self) -> tuple[int, int, int]:
        return (HEIGHT, WIDTH, 3) if self.crop is None else (self.crop, self.crop, 3)

    def reset(self, key: Key) -> State:
        num, cells = self.num_colors, apples.CELLS
        words = key.words(3 + cells + num)
        pad_words = words[:, 3 + cells :]
        if self.shuffle_pads == "env":
            pad_words = key.lifetime().words(num, stream=1)
        batch = words.shape[0]
        # The extra last column is the colour of the pad where there is none.
        pads = np.full((batch, num + 1), -1)
        pads[:, :num] = permutations(pad_words)
        return {
            "t": np.zeros(batch, dtype=np.int64),
            "place": np.full(batch, self._entry[0]),
            "cue": below(words[:, 0], num),
            "cue_cell": below(words[:, 1], 8),
            "apple_value": apples.values(words[:, 2], self.apple_reward),
            "apples": apples.scatter(words[:, 3 : 3 + cells], self._num_apples),
            "pads": pads,
            "choice": np.full(batch, -1),
        }

    def step(self, state: State, actions: Array) -> tuple[State, Array, Array]:
        t = state["t"] + 1
        place = self._atlas.next[state["place"], actions]
        left, picked = apples.pick(state["apples"], self._apple_at[place], t, self.apple_respawn)

        color = state["pads"][np.arange(len(t)), self._pad_at[place]]
        chosen = (color >= 0) & (state["choice"] < 0)
        choice = np.where(chosen, color, state["choice"])
        paid = np.where(choice == state["cue"], self.choice_reward, self.wrong_reward)
        reward = np.where(picked, state["apple_value"], 0.0) + np.where(chosen, paid, 0.0)

        terminated = t == self._schedule.total
        if self.end_on_choice:
            terminated = terminated | chosen
        entry = self._entry[t]
        place = np.where(entry < 0, place, entry)
        state = {**state, "t": t, "place": place, "apples": left, "choice": choice}
        return state, reward.astype(np.float32), terminated

    def observe(self, state: State) -> Array:
        return self._picture(state, self._view).reshape(-1, *self.observation_shape)

    def board(self, state: State) -> Array:
        return self._picture(state, self._whole).reshape(-1, HEIGHT, WIDTH, 3)

    def metrics(self, state: State) -> dict[str, Array]:
        success = state["choice"] == state["cue"]
        paid = np.where(success, self.choice_reward, self.wrong_reward)
        paid = np.where(state["choice"] < 0, 0.0, paid)
        return {"is_success": success, "last_phase_reward": paid.astype(np.float32)}

    def moments(self, state: State) -> list[Moment]:
        phase, left = self._schedule.progress(state["t"])
        row, col = row_and_col(state["place"])
        return [
            Moment(self._schedule.names[p], n, r, c)
            for p, n, r, c in zip(
                phase.tolist(), left.tolist(), row.tolist(), col.tolist(), strict=True
            )
        ]

    def _picture(self, state: State, sight: Array) -> Array:
        """The tiles in sight in their present colours, uint8 (B, tiles in sight, 3)."""
        rows = np.arange(len(state["t"]))
        tiles = self._atlas.tiles
        paint = np.repeat(self._unpainted, len(rows), axis=0)
        paint[rows, tiles["c"].start + state["cue_cell"]] = CUE + state["cue"]
        paint[:, tiles["a"]] = np.where(
            apples.shown(state["apples"], state["t"]), np.uint8(APPLE), np.uint8(FLOOR)
        )
        pads = CUE + state["pads"][:, :-1]
        paint[:, tiles["p"]] = np.where(state["choice"][:, None] < 0, pads, FLOOR)
        # Flat look-ups are several times faster than an index for each axis.
        in_sight = np.take(sight, state["place"], axis=0) + rows[:, None] * self._atlas.num_tiles
        return np.take(PALETTE, np.take(paint.reshape(-1), in_sight), axis=0)

    # Tables, made when first needed.

    @cached_property
    def _schedule(self) -> Schedule:
        return Schedule(
            explore=self.explore_steps,
            distractor=self.distractor_steps,
            reward=self.reward_steps,
        )

    @cached_property
    def _atlas(self) -> Atlas:
        reward = REWARD if self.num_colors == 3 else _TWO_PADS
        return Atlas((EXPLORE, apples.BOARD, reward), solid="c")

    @cached_property
    def _entry(self) -> Array:
        """(total + 1,) where the player is put at time t, or -1 where it stays."""
        schedule = self._schedule
        return np.where(schedule.enters, self._atlas.start[schedule.phase], -1)

    @cached_property
    def _unpainted(self) -> Array:
        """(1, tiles) the colours of the tiles before any is painted."""
        paint = np.full((1, self._atlas.num_tiles), WALL, dtype=np.uint8)
        paint[:, FLOOR], paint[:, PLAYER] = FLOOR, PLAYER
        return paint

    @cached_property
    def _apple_at(self) -> Array:
        return self._atlas.number("a")

    @cached_property
    def _pad_at(self) -> Array:
        return self._atlas.number("p")

    @cached_property
    def _view(self) -> Array:
        return self._atlas.sight(self.crop)

    @cached_property
    def _whole(self) -> Array:
        return self._atlas.sight(None)
