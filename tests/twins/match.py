"""Slow twins of the three phased games, written from the published rules, one episode at a time.

They use only the rules, the settings and the reported parameters of an episode.
`compare` plays them beside our batches, step by step. At the end are the small helpers that the
tests of the three tasks share.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from functools import cache
from typing import Any, ClassVar

import numpy as np

from rlgates.envs import ActiveMatch, BatchedEnv, KeyToDoor, PassiveMatch
from rlgates.envs.engine.parameters import override, report
from rlgates.envs.engine.philox import Key

Cell = tuple[int, int]
Pixel = tuple[int, ...]

NORTH, SOUTH, WEST, EAST = range(4)
MOVES = {NORTH: (-1, 0), SOUTH: (1, 0), WEST: (0, -1), EAST: (0, 1)}
HEIGHT, WIDTH = 7, 11


def published(*thousandths: int) -> Pixel:
    """Colours are given in thousandths and cut to bytes."""
    return tuple(int(value / 1000 * 255) for value in thousandths)


PLAYER = published(898, 584, 430)
WALL = published(100, 100, 100)
FLOOR = published(800, 800, 800)
APPLE = published(550, 700, 0)
KEY = published(627, 321, 176)
DOOR = published(529, 808, 922)
SIGN = published(1000, 1000, 1000)
COLORS = (published(1000, 0, 0), published(0, 1000, 0), published(0, 0, 1000))


def block(rows: range, cols: range) -> frozenset[Cell]:
    return frozenset((r, c) for r in rows for c in cols)


def enclosing(floor: frozenset[Cell]) -> frozenset[Cell]:
    """The cells around the floor, also those at its corners."""
    near = {(r + i, c + j) for r, c in floor for i in (-1, 0, 1) for j in (-1, 0, 1)}
    return frozenset(near - floor)


# Where one can walk, and the walls around it. What is neither is floor that nobody gets to.
CLOSED_CELL = frozenset({(2, 5)})
TWO_ROOMS = block(range(1, 3), range(3, 8)) | block(range(3, 4), range(4, 7))
TWO_ROOMS |= block(range(4, 6), range(3, 8))
ORCHARD = block(range(1, 6), range(1, 10))
HALL = block(range(1, 4), range(1, 10)) | block(range(4, 6), range(4, 7))
CHAMBER = block(range(2, 5), range(4, 7))
DOORWAY, SIGNPOST = (1, 5), (0, 5)

UPPER_ROOM = sorted(block(range(1, 3), range(3, 8)))
LOWER_ROOM = sorted(block(range(4, 6), range(3, 8)))
RING = sorted(enclosing(CLOSED_CELL))
ROOM_WALLS = sorted(enclosing(TWO_ROOMS))
CANDIDATES = [
    *((1, c) for c in (1, 3, 5, 7, 9)),
    *((2, c) for c in (2, 4, 6, 8)),
    *((3, c) for c in (1, 3, 5, 7, 9)),
    *((4, c) for c in (2, 4, 6, 8)),
    *((5, c) for c in (1, 3, 7, 9)),
]
PADS = {2: [(1, 2), (1, 8)], 3: [(1, 2), (1, 5), (1, 8)]}


class SlowGame:
    """One episode, cell by cell and frame by frame: phases, moves, apples and images.

    `events` counts the rare things that happened, to know that they were tested.
    """

    walls: ClassVar[dict[str, frozenset[Cell]]]
    starts: dict[str, Cell]

    def __init__(self, spec: Any, reported: dict[str, Any]) -> None:
        self.spec = spec
        self.value = reported["apple_reward"]
        self.apples = {tuple(cell) for cell in reported["apple_cells"]}
        self.picked: dict[Cell, int] = {}
        self.success = self.chosen = False
        self.last_phase_reward = 0.0
        self.events: Counter[str] = Counter()
        steps = {
            "explore": spec.explore_steps,
            "distractor": spec.distractor_steps,
            "reward": spec.reward_steps,
        }
        self.todo = [(name, count) for name, count in steps.items() if count > 0]
        self.enter()

    def enter(self) -> None:
        self.phase, self.max_frames = self.todo.pop(0)
        self.player = self.starts[self.phase]
        self.frame = 0

    def blocked(self, cell: Cell) -> bool:
        return cell in self.walls[self.phase] or not (
            0 <= cell[0] < HEIGHT and 0 <= cell[1] < WIDTH
        )

    def step(self, action: int) -> tuple[float, bool]:
        self.frame += 1
        down, right = MOVES[action]
        target = (self.player[0] + down, self.player[1] + right)
        if not self.blocked(target):
            self.player = target
        reward = getattr(self, f"after_move_in_{self.phase}")()
        done = self.spec.end_on_choice and self.chosen
        if self.phase == "reward":
            self.last_phase_reward += reward
        if self.frame == self.max_frames and not done:
            if not self.todo:
                return reward, True
            self.enter()
        return reward, done

    def after_move_in_explore(self) -> float:
        return 0.0

    def after_move_in_distractor(self) -> float:
        reward = 0.0
        if self.player in self.apples:
            self.apples.remove(self.player)
            self.picked[self.player] = self.frame
            self.events["apple"] += 1
            reward = self.value
        if self.spec.apple_respawn is not None:
            for cell, frame in list(self.picked.items()):
                if self.frame > frame + self.spec.apple_respawn:
                    self.apples.add(cell)
                    del self.picked[cell]
                    self.events["apple is back"] += 1
                    self.events["apple is back under the player"] += cell == self.player
        return reward

    def color(self, cell: Cell) -> Pixel:
        if cell == self.player:
            return PLAYER
        if cell in self.walls[self.phase]:
            return WALL
        if self.phase == "distractor" and cell in self.apples:
            return APPLE
        return FLOOR

    def image(self, rows: range = range(HEIGHT), cols: range = range(WIDTH)) -> list[list[Pixel]]:
        return [
            [self.color((r, c)) if 0 <= r < HEIGHT and 0 <= c < WIDTH else FLOOR for c in cols]
            for r in rows
        ]

    def view(self) -> list[list[Pixel]]:
        if self.spec.crop is None:
            return self.image()
        (row, col), reach = self.player, self.spec.crop // 2
        return self.image(range(row - reach, row + reach + 1), range(col - reach, col + reach + 1))

    def places(self) -> list[Cell]:
        """Where something may happen in this phase."""
        return CANDIDATES if self.phase == "distractor" else [self.player]


class SlowPassiveMatch(SlowGame):
    walls: ClassVar = {
        "explore": enclosing(CLOSED_CELL),
        "distractor": enclosing(ORCHARD),
        "reward": enclosing(HALL),
    }

    def __init__(self, spec: Any, reported: dict[str, Any]) -> None:
        self.target = reported["target_color"]
        self.target_cell = tuple(reported["target_cell"])
        self.pads = dict(zip(PADS[spec.num_colors], reported["pad_colors"], strict=True))
        start = tuple(reported.get("start_cell", (2, 5)))
        self.starts = {"explore": start, "distractor": (5, 5), "reward": (5, 5)}
        super().__init__(spec, reported)

    def after_move_in_reward(self) -> float:
        if self.chosen or self.player not in self.pads:
            return 0.0
        self.chosen = True
        self.success = self.pads[self.player] == self.target
        self.events["right pad" if self.success else "wrong pad"] += 1
        return self.spec.choice_reward if self.success else self.spec.wrong_reward

    def color(self, cell: Cell) -> Pixel:
        if self.phase == "explore" and cell == self.target_cell:
            return COLORS[self.target]
        if self.phase == "reward" and cell != self.player and cell in self.pads:
            return FLOOR if self.chosen else COLORS[self.pads[cell]]
        return super().color(cell)

    def places(self) -> list[Cell]:
        return list(self.pads) if self.phase == "reward" else super().places()


class SlowActiveMatch(SlowPassiveMatch):
    walls: ClassVar = {**SlowPassiveMatch.walls, "explore": enclosing(TWO_ROOMS)}

    def places(self) -> list[Cell]:
        return sorted(TWO_ROOMS) if self.phase == "explore" else super().places()


class SlowKeyToDoor(SlowGame):
    walls: ClassVar = {
        "explore": enclosing(TWO_ROOMS),
        "distractor": enclosing(ORCHARD),
        "reward": enclosing(CHAMBER) - {DOORWAY},
    }

    def __init__(self, spec: Any, reported: dict[str, Any]) -> None:
        self.key: Cell | None = tuple(reported["key_cell"])
        self.has_key = self.sign = False
        start = tuple(reported["start_cell"])
        self.starts = {"explore": start, "distractor": (5, 5), "reward": (3, 5)}
        super().__init__(spec, reported)

    def blocked(self, cell: Cell) -> bool:
        locked = not (self.has_key or self.chosen)
        return super().blocked(cell) or (self.phase == "reward" and cell == DOORWAY and locked)

    def after_move_in_explore(self) -> float:
        self.sign = self.player == self.key
        if self.sign:
            self.key, self.has_key = None, True
            self.events["key"] += 1
            self.events["key on the last step"] += self.frame == self.max_frames
        return 0.0

    def after_move_in_reward(self) -> float:
        if self.player != DOORWAY:
            self.events["outside"] += self.player not in CHAMBER
            return 0.0
        if not self.has_key:
            self.events["door again"] += 1
            return 0.0
        self.has_key = False
        self.success = self.chosen = True
        self.events["door"] += 1
        return self.spec.choice_reward

    def color(self, cell: Cell) -> Pixel:
        if self.phase == "explore" and cell == self.key:
            return KEY
        if self.phase == "explore" and cell == SIGNPOST and self.sign:
            return SIGN
        if self.phase == "reward" and cell == DOORWAY:
            return DOOR
        return super().color(cell)

    def places(self) -> list[Cell]:
        if self.phase == "explore":
            return [self.key or LOWER_ROOM[0]]
        return [DOORWAY, DOORWAY, (0, 5)] if self.phase == "reward" else super().places()


GAMES = {
    PassiveMatch: SlowPassiveMatch,
    ActiveMatch: SlowActiveMatch,
    KeyToDoor: SlowKeyToDoor,
}


def reported_rows(spec: Any, seed: int, index: np.ndarray, episode: np.ndarray) -> list[dict]:
    """The reported parameters of these episodes of the environments with these indices."""
    reported = report(spec.parameters, spec.sample(Key(seed, index, episode)))
    rows = range(len(index))
    return [{name: values[row].tolist() for name, values in reported.items()} for row in rows]


@cache
def _way(walls: frozenset[Cell], goal: Cell) -> dict[Cell, int]:
    """From each cell the first move of a shortest way to `goal`, through closed doors too."""
    ways, edge = {goal: NORTH}, [goal]
    for cell in edge:
        for move, (down, right) in MOVES.items():
            back = (cell[0] - down, cell[1] - right)
            inside = 0 <= back[0] < HEIGHT and 0 <= back[1] < WIDTH
            if inside and back not in ways and back not in walls:
                ways[back] = move
                edge.append(back)
    return ways


class Wanderer:
    """Moves randomly, and at times towards places where something happens."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.goal: Cell | None = None
        self.phase = ""

    def act(self, game: SlowGame) -> int:
        if self.phase != game.phase or self.goal == game.player or self.rng.random() < 0.05:
            places = game.places()
            self.phase, self.goal = game.phase, places[self.rng.integers(len(places))]
        if self.rng.random() < 0.3 or self.goal is None:
            return int(self.rng.integers(4))
        return _way(game.walls[game.phase], self.goal).get(game.player, NORTH)


def compare(spec: Any, rows: int, episodes: int, seed: int = 0) -> Counter[str]:
    """Play `episodes` episodes or more in each of `rows` rows beside the twin; count its events.

    Raises:
        AssertionError: an image, reward, end, metric or render info differs.
    """
    env = BatchedEnv(spec, rows, seed=seed)
    obs, info = env.reset(options={"reveal": True})
    index, episode = np.arange(rows), np.zeros(rows, dtype=np.int64)
    reported = reported_rows(spec, seed, index, episode)
    for name, values in info["parameters"].items():
        assert values.tolist() == [row[name] for row in reported]
    make = GAMES[type(spec)]
    games = [make(spec, row) for row in reported]
    wanderers = [Wanderer(row) for row in range(rows)]
    events: Counter[str] = Counter()
    while episode.min() < episodes:
        np.testing.assert_array_equal(obs, [game.view() for game in games])
        np.testing.assert_array_equal(spec.render_board(env.state)[0], games[0].image())
        assert spec.render_info(env.state) == [
            (game.phase, game.max_frames - game.frame, game.player) for game in games
        ]
        actions = [w.act(game) for w, game in zip(wanderers, games, strict=True)]
        obs, reward, terminated, truncated, info = env.step(np.array(actions))
        steps = [game.step(action) for game, action in zip(games, actions, strict=True)]
        assert list(zip(reward.tolist(), terminated.tolist(), strict=True)) == steps
        assert not truncated.any()
        for row in np.flatnonzero(terminated):
            game = games[row]
            np.testing.assert_array_equal(info["final_obs"][row], game.view())
            assert info["is_success"][row] == game.success
            assert info["last_phase_reward"][row] == game.last_phase_reward
            events.update(game.events)
            episode[row] += 1
            (again,) = reported_rows(spec, seed, index[row : row + 1], episode[row : row + 1])
            games[row] = make(spec, again)
    return events


def begin(spec: Any, batch: int = 1, seed: int = 0, **overrides: Any) -> tuple[Any, Any]:
    """The reported parameters of `batch` episodes, and their first states.

    `overrides` sets parameters.
    """
    sampled = spec.sample(Key(seed, np.arange(batch), np.zeros(batch, dtype=np.int64)))
    sampled = override(spec.parameters, sampled, overrides)
    return report(spec.parameters, sampled), spec.initial_state(sampled)


def walk(spec: Any, state: Any, *moves: int) -> tuple[list[list[float]], Any]:
    """Rewards of the moves, taken in all environments, and the final state."""
    rewards = []
    for move in moves:
        state, reward, _ = spec.step(state, np.full(len(state["t"]), move))
        rewards.append(reward.tolist())
    return rewards, state


def pixels(image: np.ndarray) -> list[list[Pixel]]:
    return [[tuple(pixel) for pixel in row] for row in image.tolist()]


def drawn(walls: Iterable[Cell], things: dict[Cell, Pixel]) -> list[list[Pixel]]:
    """A board as `pixels` gives it: floor, walls, and things where they stand."""
    colors = dict.fromkeys(walls, WALL) | things
    return [[colors.get((row, col), FLOOR) for col in range(11)] for row in range(7)]


def check_uniform(sampled: np.ndarray, cells: list[Cell]) -> None:
    """Whether sampled cells (B, 2) are these ones, about as often each."""
    found, counts = np.unique(sampled, axis=0, return_counts=True)
    assert [tuple(cell) for cell in found.tolist()] == cells
    mean, share = len(sampled) / len(cells), 1 / len(cells)
    assert abs(counts - mean).max() < 4.5 * math.sqrt(mean * (1 - share))
