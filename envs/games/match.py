"""Visual Match: remember a colour through a distracting phase, then walk onto it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from rlgates.envs.engine.arrays import Array, look_up, namespace
from rlgates.envs.engine.grid import (
    ACTIONS,
    CUE,
    EAST,
    FLOOR,
    NORTH,
    RGBA,
    WALL,
    WEST,
    Atlas,
    blocked_ahead,
    cells_showing,
    view_center,
)
from rlgates.envs.engine.parameters import Cell, EpisodeParameter, Integer, Integers
from rlgates.envs.engine.phases import LAST_WORD, NEVER, PAD_WORDS, PhasedEnvSpec
from rlgates.envs.engine.philox import Key, below, permutations
from rlgates.envs.engine.settings import check_range, check_reward, set_fields
from rlgates.envs.engine.spec import Player, State
from rlgates.errors import check_choice, check_flag, check_size

# Letters as in grid.Atlas; c: wall, one of which is painted with the cue; p: pad; s: start
_PASSIVE_EXPLORE = (
    "           ",
    "    ccc    ",
    "    cPc    ",
    "    ccc    ",
    "           ",
    "           ",
    "           ",
)
_REWARD = (
    "###########",
    "# p  p  p #",
    "#         #",
    "#         #",
    "####   ####",
    "   # P #   ",
    "   #####   ",
)
_ACTIVE_EXPLORE = (
    "  ccccccc  ",
    "  c     c  ",
    "  c     c  ",
    "  cc   cc  ",
    "  csssssc  ",
    "  csssssc  ",
    "  ccccccc  ",
)
_TWO_PADS = (_REWARD[0], "# p     p #", *_REWARD[2:])


@dataclass(frozen=True, kw_only=True)
class VisualMatch(PhasedEnvSpec):
    """The base of Passive and Active Match: a painted wall, and coloured pads."""

    num_colors: int = 3
    wrong_reward: float = 0.0
    shuffle_pads: Literal["episode", "env"] = "episode"

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        **PhasedEnvSpec.presets,
        "released": {**PhasedEnvSpec.presets["released"], "shuffle_pads": "env"},
    }
    _things: ClassVar[Mapping[str, tuple[int, int]]] = {"p": (FLOOR, FLOOR)}
    _walls: ClassVar[str] = "c"

    def __post_init__(self) -> None:
        check_choice("shuffle_pads", self.shuffle_pads, ("episode", "env"))
        set_fields(
            self,
            num_colors=check_range("num_colors", self.num_colors, 2, 3),
            wrong_reward=check_reward("wrong_reward", self.wrong_reward),
        )
        super().__post_init__()

    @property
    def _boards(self) -> tuple[Sequence[str], Sequence[str]]:
        return _PASSIVE_EXPLORE, _REWARD if self.num_colors == 3 else _TWO_PADS

    @property
    def chance(self) -> float:
        return 1 / self.num_colors

    @property
    def _game_parameters(self) -> Mapping[str, EpisodeParameter]:
        return {
            "target_color": Integer(self.num_colors),
            "target_cell": Cell(self._atlas.cells("c")),
            "pad_colors": Integers(self.num_colors, self.num_colors, distinct=True),
        }

    @property
    def state_bounds(self) -> Mapping[str, tuple[int, int]]:
        pads = {"right_pad": (1, self.num_colors), "choice": (0, self.num_colors)}
        return {**super().state_bounds, **pads}

    def _sample_game(self, key: Key, words: Array) -> dict[str, Array]:
        pad_words = words[:, PAD_WORDS]
        if self.shuffle_pads == "env":
            pad_words = key.lifetime().words(self.num_colors, stream=1)
        return {
            "target_color": below(words[:, 0], self.num_colors),
            "target_cell": below(words[:, 1], len(self._atlas.places("c"))),
            "pad_colors": permutations(pad_words[:, : self.num_colors]),
        }

    def initial_state(self, parameters: dict[str, Array]) -> State:
        target, pads = parameters["target_color"], parameters["pad_colors"]
        state, tables, xp = (
            super().initial_state(parameters),
            self._tables.on_device_of(target),
            namespace(target),
        )
        rows = xp.arange(target.shape[0], device=target.device)
        cue = parameters["target_cell"] + (self._atlas.tiles["c"].start - self._atlas.num_things)
        state["walls"][rows, cue] = look_up(tables.cue, target)
        columns, right = self._atlas.tiles["p"], pads == target[:, None]
        state["things"][:, columns] = look_up(tables.cue, pads) ^ int(RGBA[FLOOR])
        state["gone_until"][:, columns] = -1
        rewards = xp.where(right, self.choice_reward, self.wrong_reward)
        state["pays"][:, columns] = xp.astype(rewards, xp.float32)
        # Pads are numbered from 1; 0 means no choice yet.
        right_pad = xp.argmax(xp.astype(right, xp.int32), axis=1) + 1
        return {**state, "right_pad": right_pad, "choice": xp.zeros_like(right_pad)}

    def step(self, state: State, actions: Array) -> tuple[State, Array, Array]:
        tables = self._tables.on_device_of(actions)
        to = look_up(tables.next, state["place"] * 4 + actions)
        state, reward, thing, taken = self._advance(state, to)
        # A choice removes all pads. A player on a pad has chosen now or before.
        state["gone_until"][:, self._atlas.tiles["p"]] &= look_up(tables.hides, thing)[:, None]
        state["choice"] = state["choice"] | look_up(tables.pad, thing) * taken
        return state, reward, self._terminated(state, state["choice"])

    def metrics(self, state: State) -> dict[str, Array]:
        xp = namespace(state["t"])
        success = state["choice"] == state["right_pad"]
        reward = xp.where(success, self.choice_reward, self.wrong_reward)
        reward = xp.where(state["choice"] > 0, reward, 0.0)
        return {"is_success": success, "last_phase_reward": xp.astype(reward, xp.float32)}

    def memory_player(self) -> Player:
        return MatchMemoryPlayer()

    def reactive_player(self) -> Player:
        return MatchReactivePlayer()

    def _game_tables(self, atlas: Atlas) -> dict[str, Array]:
        pad = np.zeros(atlas.num_things + 1, dtype=np.int64)
        pad[atlas.tiles["p"]] = 1 + np.arange(self.num_colors)
        return {
            "cue": RGBA[CUE : CUE + 3],
            "pad": pad,
            "hides": np.where(pad > 0, NEVER, -1).astype(np.int32),  # -1 & n is n
        }


@dataclass(frozen=True, kw_only=True)
class PassiveMatch(VisualMatch):
    """Passive Match, `rlgates/PassiveMatch-v0`.

    ## Description
    An episode has three phases, each on its own board of 7 x 11 cells. *Explore*: the player is
    walled in and cannot move; one of the eight walls around it, chosen uniformly, is painted with
    the colour to remember, the cue. *Distractor*: a room with apples. *Reward*: a hall with one pad
    of each colour; the first pad that the player steps on is its choice, and all pads disappear.
    Only memory reveals which pad is right; no timer or phase is shown. The cue is uniform over the
    colours, and the cells of the apples are sampled for each episode.

    ## Actions
    `Discrete(4)`. A move against a wall has no effect; there is no no-op.

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
    back to its cell: taken at step f, it is visible again at f + `apple_respawn` + 1, and can be
    taken from the next step on. The last action of a phase is still rewarded, although its image
    is replaced by the first image of the next phase.

    The number to report is `last_phase_reward`, in the info of the last step with `is_success`
    (the right pad was the first one touched); the return may be mostly apples. By default a perfect
    memory gets 10, a player that always touches some pad 10/3 and uniformly random moves 0.5.

    ## Start
    Explore (2, 5), distractor (5, 5), reward (5, 5), as (row, column) from 0 at the top left.
    `reset(options=...)` overrides parameters of the episode, cells as (row, column): `target_color`
    (0 red, 1 green, 2 blue), `target_cell` (the painted wall), `pad_colors` (a colour for each pad,
    west to east), `apple_cells` (`num_apples` of them), `apple_reward` (without apples, only that
    of the settings); `reveal=True` reports all of them in the info of the reset.

    ## End
    `terminated` after exactly explore_steps + distractor_steps + reward_steps actions, or at
    the choice with `end_on_choice`. The length is part of the game: `truncated` is never true.

    ## Arguments
    | name | default | meaning |
    |------|---------|---------|
    | `explore_steps` | 15 | actions of the phase, at least 1 |
    | `distractor_steps` | 90 | at least 0, which leaves the phase out |
    | `reward_steps` | 15 | at least 1; a side pad is 7 steps away, the middle one 4 |
    | `num_apples` | None | 0 to 22, each on a cell of its own; None: 10 if they pay, else 0 |
    | `apple_reward` | 0.0 | a number, a pair (low, high) or a rule by name: see below |
    | `apple_respawn` | 20 | at least 1 (see Rewards); None: an apple never comes back |
    | `num_colors` | 3 | 2 or 3; with 2 the colours are red and green, on the outer pads |
    | `choice_reward` | 10.0 | for the right pad |
    | `wrong_reward` | 0.0 | for a wrong pad |
    | `end_on_choice` | False | end the episode at the first pad touched |
    | `shuffle_pads` | "episode" | pad colours are sampled each "episode", or once per "env" |
    | `crop` | 5 | side of the view: 5, 7, 9 or 11; None: the whole board |

    The releases have three rules for the reward of an apple: `("constant", r)`, always r;
    `("episode", low, high)`, one of the two for the whole episode, by coin flip; `("pickup", low,
    high)`, uniform between the two for each apple taken. A number and a pair stand for the first
    two. With the third, the random numbers can be overridden as `apple_draws`, from 0 (low) to 1
    (high), one for each distractor step.

    Presets: `short` (the defaults), `long` (75 / 450 / 75 steps), each alone or with apples
    that pay 1 (`short_small`, `long_small`) or 5 (`short_large`, `long_large`); `released`, the
    released games: 10 apples that pay 1 or 10, pads sampled once per environment; `memory_rl`,
    that of Memory-RL: 15 / 60 / 15 steps, 10 apples that pay 1, the right pad 5, pads as there.

    Pads sampled once per environment reveal nothing: the cue is still sampled for each episode, so
    always going to the same pad is right in 1 of `num_colors` episodes.

    ## Version history
    * v0: first version.

    ## Sources and differences
    Boards, colours, apples and timing are those of the TVT release (Hung et al., "Optimizing
    agent behavior over long time scales by transporting value", 2019; github.com/google-deepmind/
    deepmind-research, tvt/pycolab); its explore phase is active, the passive one is that of
    github.com/twni2016/Memory-RL. Different here: by default pads are shuffled for each episode
    (there: "env") and apples pay nothing (there: (1, 10)) and are left out (there they are still
    placed, as with `num_apples=10`); everything random follows from the seed; a pair with a 0 in
    it is a fair coin (there a 0 is sampled again at the next step).

    Raises:
        ValueError: a setting out of range. TypeError: a setting of the wrong type.
    """

    env_id: ClassVar[str] = "rlgates/PassiveMatch-v0"
    actions_can_keep_the_cue: ClassVar[bool] = True

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        **VisualMatch.presets,
        "memory_rl": {
            "distractor_steps": 60,
            "num_apples": 10,
            "apple_reward": 1.0,
            "choice_reward": 5.0,
            "shuffle_pads": "env",
        },
    }


@dataclass(frozen=True, kw_only=True)
class ActiveMatch(VisualMatch):
    """Active Match, `rlgates/ActiveMatch-v0`.

    ## Description
    Passive Match with a cue that must be found: in the *explore* phase the player starts in the
    lower of two rooms joined by a gap, and one of their 26 walls, chosen uniformly, is painted
    with the colour to remember. Finding it is not rewarded until the end of the episode. Then come
    the *distractor* phase with apples and the *reward* phase with a hall and one pad of each
    colour; the first pad that the player steps on is its choice. No timer or phase is shown.

    ## Actions
    `Discrete(4)`: 0 north (up), 1 south (down), 2 west (left), 3 east (right). A move against a
    wall has no effect; there is no no-op.

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
    reward (5, 5). `reset(options=...)` overrides parameters of the episode, as in `PassiveMatch`,
    and `start_cell`, as (row, column); `reveal=True` reports all of them in the info of the reset.

    ## End
    As in `PassiveMatch`: `terminated` after exactly explore_steps + distractor_steps +
    reward_steps actions, or at the choice with `end_on_choice`; `truncated` is never true.

    ## Arguments
    Those of `PassiveMatch`, and its presets except `memory_rl`.

    ## Version history
    * v0: first version.

    ## Sources and differences
    Hung et al., "Optimizing agent behavior over long time scales by transporting value", 2019;
    github.com/google-deepmind/deepmind-research, tvt/pycolab/active_visual_match.py. Different
    here: by default pads are shuffled for each episode (there: "env") and apples pay nothing
    (there: (1, 10)) and are left out; everything random follows from the seed; a pair with a 0
    in it is a fair coin (there a 0 is sampled again at the next step).

    Raises:
        ValueError: a setting out of range. TypeError: a setting of the wrong type.
    """

    env_id: ClassVar[str] = "rlgates/ActiveMatch-v0"

    @property
    def _boards(self) -> tuple[Sequence[str], Sequence[str]]:
        return _ACTIVE_EXPLORE, super()._boards[1]

    @property
    def _game_parameters(self) -> Mapping[str, EpisodeParameter]:
        return {**super()._game_parameters, "start_cell": Cell(self._atlas.cells("s"))}

    def _sample_game(self, key: Key, words: Array) -> dict[str, Array]:
        count = len(self._atlas.places("s"))
        return {
            **super()._sample_game(key, words),
            "start_cell": below(words[:, LAST_WORD], count),
        }

    def initial_state(self, parameters: dict[str, Array]) -> State:
        cell = parameters["start_cell"]
        return {
            **super().initial_state(parameters),
            "place": look_up(self._tables.on_device_of(cell).starts, cell),
        }

    def _game_tables(self, atlas: Atlas) -> dict[str, Array]:
        return {**super()._game_tables(atlas), "starts": atlas.places("s")}


class MatchMemoryPlayer:
    """The ceiling of both Match games: finds the cue, remembers it and walks onto its pad.

    In the two rooms of Active Match it goes west, east, north and west again, each time until a
    wall is two cells ahead; it begins with east if the eastern wall is near. From every start
    cell, this tour shows all 26 walls within 6 to 8 moves, which is optimal. The 15 steps of the
    default suffice, so the ceiling is 10, as in Passive Match, where the cue is visible at once.

    Then it moves randomly until it is at the entry of the reward hall, the only place with walls
    two cells to both sides and one below. From there it counts its steps: two north, where the
    middle pad is in view; if that has another colour, one west, where the western pad is; if that
    is wrong too, it takes the eastern one. That takes at most 9 steps.

    Args:
        explore: False for random moves instead of the tour. In Active Match that is perfect memory
            without exploration, which finds the cue only with probability 0.619.
        guess: None, or a control that ignores the cue: the "remembered" colour is sampled from
            this many. If it did better than chance, later images or the order of the pads
            would leak the answer.
    """

    _TOUR: ClassVar[Array] = np.array([WEST, EAST, NORTH, WEST])

    def __init__(self, explore: bool = True, guess: int | None = None) -> None:
        self.explore = check_flag("explore", explore)
        self.guess = guess if guess is None else check_size("guess", guess)

    def reset(self, num_envs: int, seed: int | None = None) -> None:
        self._rng = np.random.default_rng(seed)
        self._cue = np.zeros(num_envs, dtype=np.int64)
        self._leg = np.zeros(num_envs, dtype=np.int64)  # of the tour
        self._mirrored = np.zeros(num_envs, dtype=bool)  # the tour begins with east
        self._clock = np.full(num_envs, -1)  # steps made in the reward hall, or -1
        self._col = np.zeros(num_envs, dtype=np.int64)  # columns east of the neck
        self._goal = np.zeros(num_envs, dtype=np.int64)  # column of the target pad, likewise

    def act(self, observations: Array, episode_starts: Array) -> Array:
        c = view_center(observations)
        self._clock[episode_starts], self._leg[episode_starts] = -1, 0
        walls = cells_showing(observations, WALL)
        entered = walls[:, c, c - 2] & walls[:, c, c + 2] & walls[:, c + 1, c] & (self._clock < 0)
        for values in (self._clock, self._col, self._goal):
            values[entered] = 0
        inside = self._clock >= 0
        self._look(observations, episode_starts, inside)
        outside = self._wander(observations, episode_starts)
        return np.where(inside, self._choose(observations, c), outside)

    def _look(self, observations: Array, episode_starts: Array, inside: Array) -> None:
        """Remember a colour that is visible before the reward hall."""
        if self.guess is None:
            visible = np.any(_cue_colors(observations), axis=(1, 2))  # (B, 3)
            new = visible.any(axis=1) & ~inside
            self._cue = np.where(
                new, visible.argmax(axis=1), np.where(episode_starts, 0, self._cue)
            )
        elif episode_starts.any():
            guess = self._rng.integers(self.guess, size=len(episode_starts))
            self._cue = np.where(episode_starts, guess, self._cue)

    def _wander(self, observations: Array, episode_starts: Array) -> Array:
        """The tour, leg by leg, then random moves."""
        moves = self._rng.integers(len(ACTIONS), size=len(episode_starts))
        if not self.explore:
            return moves
        shut = blocked_ahead(observations)
        self._mirrored = np.where(episode_starts, shut[:, EAST] & ~shut[:, WEST], self._mirrored)
        self._leg = self._leg + shut[np.arange(len(episode_starts)), self._tour()]
        return np.where(self._leg < len(self._TOUR), self._tour(), moves)

    def _tour(self) -> Array:
        """The move of the current leg, or of the last one."""
        move = self._TOUR[np.minimum(self._leg, len(self._TOUR) - 1)]
        return np.where(self._mirrored & (move >= WEST), WEST + EAST - move, move)

    def _choose(self, observations: Array, c: int) -> Array:
        """The next move to the pad, for environments in the hall."""
        # At both decision points the pads are two rows up.
        has_cue_color = _cue_colors(observations)[np.arange(len(observations)), :, :, self._cue]
        elsewhere = (self._clock == 2) & ~has_cue_color[:, c - 2, c]
        self._goal = np.where(elsewhere, -3, self._goal)
        elsewhere = (self._clock == 3) & (self._goal < 0) & ~has_cue_color[:, c - 2, c - 2]
        self._goal = np.where(elsewhere, 3, self._goal)

        action = np.where(self._goal > self._col, EAST, NORTH)
        action = np.where(self._goal < self._col, WEST, action)
        self._col = self._col + (action == EAST) - (action == WEST)
        self._clock = np.where(self._clock >= 0, self._clock + 1, -1)
        return action


class MatchReactivePlayer(Player):
    """The floor of both Match games: a rule on the current image alone.

    Goes north until a wall stops it, then west. In the reward hall that leads onto the middle
    pad, or along the top wall onto the western one if there are only two. Nothing in the hall
    reveals the target, so without memory no rule is right in more than 1 / `num_colors` cases.
    """

    def act(self, observations: Array, episode_starts: Array) -> Array:
        c = view_center(observations)
        return np.where(cells_showing(observations, WALL)[:, c - 1, c], WEST, NORTH)


def _cue_colors(images: Array) -> Array:
    """Cells of each cue colour, bool (B, h, w, 3): only cue colours contain a 255."""
    colors: Array = images == 255
    return colors
