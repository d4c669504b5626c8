"""Visual Match: remember a colour through a distracting phase, then walk onto it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from rlgates.envs.arrays import Array, look_up, namespace
from rlgates.envs.choices import Cell, Choice, Number, Numbers
from rlgates.envs.engine import State
from rlgates.envs.grid import CUE, FLOOR, RGBA, Atlas
from rlgates.envs.phases import NEVER, PAD_WORDS, PhasedTask
from rlgates.envs.philox import Key, below, permutations
from rlgates.envs.settings import check_payment, check_range, store
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


@dataclass(frozen=True, kw_only=True)
class MatchTask(PhasedTask):
    """What Passive and Active Match share: a painted wall, and pads to choose from."""

    num_colors: int = 3
    wrong_reward: float = 0.0
    shuffle_pads: Literal["episode", "env"] = "episode"

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        **PhasedTask.presets,
        "released": {**PhasedTask.presets["released"], "shuffle_pads": "env"},
    }
    _things: ClassVar[Mapping[str, tuple[int, int]]] = {"p": (FLOOR, FLOOR)}
    _walls: ClassVar[str] = "c"

    def __post_init__(self) -> None:
        check_choice("shuffle_pads", self.shuffle_pads, ("episode", "env"))
        store(
            self,
            num_colors=check_range("num_colors", self.num_colors, 2, 3),
            wrong_reward=check_payment("wrong_reward", self.wrong_reward),
        )
        super().__post_init__()

    @property
    def _boards(self) -> tuple[Sequence[str], Sequence[str]]:
        return EXPLORE, REWARD if self.num_colors == 3 else _TWO_PADS

    @property
    def chance(self) -> float:
        return 1 / self.num_colors

    @property
    def _own_choices(self) -> Mapping[str, Choice]:
        return {
            "target_color": Number(self.num_colors),
            "target_cell": Cell(self._atlas.cells("c")),
            "pad_colors": Numbers(self.num_colors, self.num_colors, different=True),
        }

    @property
    def state_bounds(self) -> Mapping[str, tuple[int, int]]:
        pads = {"right_pad": (1, self.num_colors), "choice": (0, self.num_colors)}
        return {**super().state_bounds, **pads}

    def _draw_own(self, key: Key, words: Array) -> dict[str, Array]:
        pad_words = words[:, PAD_WORDS]
        if self.shuffle_pads == "env":
            pad_words = key.lifetime().words(self.num_colors, stream=1)
        return {
            "target_color": below(words[:, 0], self.num_colors),
            "target_cell": below(words[:, 1], len(self._atlas.places("c"))),
            "pad_colors": permutations(pad_words[:, : self.num_colors]),
        }

    def start(self, drawn: dict[str, Array]) -> State:
        target, pads = drawn["target_color"], drawn["pad_colors"]
        state, tables, xp = super().start(drawn), self._tables.beside(target), namespace(target)
        rows = xp.arange(target.shape[0], device=target.device)
        cue = drawn["target_cell"] + (self._atlas.tiles["c"].start - self._atlas.num_things)
        state["walls"][rows, cue] = look_up(tables.cue, target)
        columns, right = self._atlas.tiles["p"], pads == target[:, None]
        state["things"][:, columns] = look_up(tables.cue, pads) ^ int(RGBA[FLOOR])
        state["gone_until"][:, columns] = -1
        pays = xp.where(right, self.choice_reward, self.wrong_reward)
        state["pays"][:, columns] = xp.astype(pays, xp.float32)
        # Pads are numbered from 1; 0 is no choice.
        right_pad = xp.argmax(xp.astype(right, xp.int32), axis=1) + 1
        return {**state, "right_pad": right_pad, "choice": xp.zeros_like(right_pad)}

    def step(self, state: State, actions: Array) -> tuple[State, Array, Array]:
        tables = self._tables.beside(actions)
        to = look_up(tables.next, state["place"] * 4 + actions)
        state, reward, thing, taken = self._advance(state, to)
        # One choice takes all pads away: who stands on a pad has made it now or before.
        state["gone_until"][:, self._atlas.tiles["p"]] &= look_up(tables.hides, thing)[:, None]
        state["choice"] = state["choice"] | look_up(tables.pad, thing) * taken
        return state, reward, self._ends(state, state["choice"])

    def metrics(self, state: State) -> dict[str, Array]:
        xp = namespace(state["t"])
        success = state["choice"] == state["right_pad"]
        paid = xp.where(success, self.choice_reward, self.wrong_reward)
        paid = xp.where(state["choice"] > 0, paid, 0.0)
        return {"is_success": success, "last_phase_reward": xp.astype(paid, xp.float32)}

    def _own_tables(self, atlas: Atlas) -> dict[str, Array]:
        pad = np.zeros(atlas.num_things + 1, dtype=np.int64)
        pad[atlas.tiles["p"]] = 1 + np.arange(self.num_colors)
        return {
            "cue": RGBA[CUE : CUE + 3],
            "pad": pad,
            "hides": np.where(pad > 0, NEVER, -1).astype(np.int32),  # -1 & n is n
        }


@dataclass(frozen=True, kw_only=True)
class PassiveMatch(MatchTask):
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
    `reset(options=...)` fixes what the episode draws, cells as (row, column): `target_color` (0
    red, 1 green, 2 blue), `target_cell` (the painted wall), `pad_colors` (a colour for each pad,
    west to east), `apple_cells` (`num_apples` of them), `apple_reward` (which must be that of the
    settings where there are no apples); `reveal=True` puts all of them into the info of the reset.

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

    Presets: `short` (the defaults), `long` (75 / 450 / 75 steps), each alone or with apples
    that pay 1 (`short_small`, `long_small`) or 5 (`short_large`, `long_large`); `released`, the
    released games: 10 apples that pay 1 or 10, pads drawn once for an environment.

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
