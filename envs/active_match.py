"""Active Visual Match: the colour to remember must be found first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rlgates.envs.arrays import Array, look_up
from rlgates.envs.choices import Cell, Choice
from rlgates.envs.engine import State
from rlgates.envs.grid import Atlas
from rlgates.envs.match import MatchTask
from rlgates.envs.phases import LAST_WORD
from rlgates.envs.philox import Key, below

# Letters as in grid.Atlas; c: wall or, in one of them, the colour to remember; s: start.
EXPLORE = (
    "  ccccccc  ",
    "  c     c  ",
    "  c     c  ",
    "  cc   cc  ",
    "  csssssc  ",
    "  csssssc  ",
    "  ccccccc  ",
)


@dataclass(frozen=True, kw_only=True)
class ActiveMatch(MatchTask):
    """Active Visual Match, `rlgates/ActiveMatch-v0`.

    ## Description
    Passive Match with a cue that must be found: in the *explore* phase the player stands in the
    lower of two rooms that a gap joins, and one of their 26 walls, chosen uniformly, is painted
    with the colour to remember. Looking for it pays nothing until the end of the episode. Then
    come the *distractor* phase with apples and the *reward* phase with a hall and one pad of
    each colour; the first pad that the player steps on is its choice. No timer or phase is
    shown.

    ## Actions
    `Discrete(4)`: 0 north (up), 1 south (down), 2 west (left), 3 east (right). A move against a
    wall leaves the player where it is; there is no no-op.

    ## Observations
    As in `PassiveMatch`: `Box(0, 255, (crop, crop, 3), uint8)`, one RGB pixel for each cell
    around the player, or the whole board, (7, 11, 3), with `crop=None`.

    ## Rewards
    As in `PassiveMatch`: apples, and `choice_reward` or `wrong_reward` for the first pad. The
    number to report is `last_phase_reward`, in the info of the last step with `is_success`.
    By default the ceiling is 10 and a player that always touches some pad gets 10/3. The cue is
    in view at the start with probability 0.331, and a random walk sees it with 0.619: perfect
    memory without exploring gets 7.5.

    ## Start
    Explore: one of the ten cells (4, 3) to (5, 7) of the lower room, uniformly; distractor and
    reward (5, 5). `reset(options=...)` fixes what the episode draws, as in `PassiveMatch`, and
    `start_cell`, as (row, column); `reveal=True` puts all of it into the info of the reset.

    ## End
    As in `PassiveMatch`: `terminated` after exactly explore_steps + distractor_steps +
    reward_steps actions, or at the choice with `end_on_choice`; `truncated` is never true.

    ## Arguments
    Those of `PassiveMatch`, and its presets.

    ## Version history
    * v0: first version.

    ## Sources and differences
    Hung et al., "Optimizing agent behavior over long time scales by transporting value", 2019;
    github.com/google-deepmind/deepmind-research, tvt/pycolab/active_visual_match.py. Different
    here: by default pads are shuffled for each episode (there: "env") and apples pay nothing
    (there: (1, 10)) and are left out; everything random follows from the seed; a pair with a 0
    in it is a fair coin (there a 0 is drawn again at the next step).

    Raises:
        ValueError: a setting out of range. TypeError: a setting of the wrong type.
    """

    @property
    def _boards(self) -> tuple[Sequence[str], Sequence[str]]:
        return EXPLORE, super()._boards[1]

    @property
    def _own_choices(self) -> Mapping[str, Choice]:
        return {**super()._own_choices, "start_cell": Cell(self._atlas.cells("s"))}

    def _draw_own(self, key: Key, words: Array) -> dict[str, Array]:
        starts = len(self._atlas.places("s"))
        return {**super()._draw_own(key, words), "start_cell": below(words[:, LAST_WORD], starts)}

    def start(self, drawn: dict[str, Array]) -> State:
        cell = drawn["start_cell"]
        return {**super().start(drawn), "place": look_up(self._tables.beside(cell).starts, cell)}

    def _own_tables(self, atlas: Atlas) -> dict[str, Array]:
        return {**super()._own_tables(atlas), "starts": atlas.places("s")}
