"""Passive Visual Match, slowly: written from the published rules alone, one episode at a time."""

from __future__ import annotations

import numpy as np

from rlgates.envs import PassiveMatch

NORTH, SOUTH, WEST, EAST = range(4)
MOVES = {NORTH: (-1, 0), SOUTH: (1, 0), WEST: (0, -1), EAST: (0, 1)}


def published(*thousandths: int) -> tuple[int, ...]:
    """Colours are given in thousandths and cut to bytes."""
    return tuple(int(value / 1000 * 255) for value in thousandths)


PLAYER = published(898, 584, 430)
WALL = published(100, 100, 100)
FLOOR = published(800, 800, 800)
APPLE = published(550, 700, 0)
COLORS = ((255, 0, 0), (0, 255, 0), (0, 0, 255))
RING = [(r, c) for r in (1, 2, 3) for c in (4, 5, 6) if (r, c) != (2, 5)]
CANDIDATES = [
    *((1, c) for c in (1, 3, 5, 7, 9)),
    *((2, c) for c in (2, 4, 6, 8)),
    *((3, c) for c in (1, 3, 5, 7, 9)),
    *((4, c) for c in (2, 4, 6, 8)),
    *((5, c) for c in (1, 3, 7, 9)),
]
PADS = {2: [(1, 2), (1, 8)], 3: [(1, 2), (1, 5), (1, 8)]}
STARTS = {"explore": (2, 5), "distractor": (5, 5), "reward": (5, 5)}


class SlowMatch:
    """One episode, cell by cell and frame by frame; its random choices are taken from a state."""

    def __init__(self, task: PassiveMatch, state: dict[str, np.ndarray], row: int) -> None:
        self.task = task
        self.cue = int(state["cue"][row])
        self.cue_cell = RING[int(state["cue_cell"][row])]
        self.value = float(state["apple_value"][row])
        shown_from = state["apples"][row].tolist()
        self.apples = {c for c, t in zip(CANDIDATES, shown_from[:-1], strict=True) if t == 0}
        self.pads = dict(zip(PADS[task.num_colors], state["pads"][row].tolist()[:-1], strict=True))
        self.chosen: int | None = None
        self.picked: dict[tuple[int, int], int] = {}
        self.todo = [
            (name, steps)
            for name, steps in (
                ("explore", task.explore_steps),
                ("distractor", task.distractor_steps),
                ("reward", task.reward_steps),
            )
            if steps > 0
        ]
        self.enter()

    def enter(self) -> None:
        self.phase, self.max_frames = self.todo.pop(0)
        self.player = STARTS[self.phase]
        self.frame = 0

    def is_wall(self, cell: tuple[int, int]) -> bool:
        r, c = cell
        if self.phase == "explore":
            return cell in RING
        if self.phase == "distractor":
            return r in (0, 6) or c in (0, 10)
        hall = r in (1, 2, 3) and 1 <= c <= 9
        neck = r in (4, 5) and 4 <= c <= 6
        corner = r in (5, 6) and (c <= 2 or c >= 8)  # floor that cannot be reached
        return not (hall or neck or corner)

    def step(self, action: int) -> tuple[float, bool]:
        self.frame += 1
        down, right = MOVES[action]
        target = (self.player[0] + down, self.player[1] + right)
        if not self.is_wall(target):
            self.player = target
        reward = 0.0
        if self.phase == "distractor":
            if self.player in self.apples:
                self.apples.remove(self.player)
                self.picked[self.player] = self.frame
                reward = self.value
            if self.task.apple_respawn is not None:
                for cell, frame in self.picked.items():
                    if self.frame > frame + self.task.apple_respawn:
                        self.apples.add(cell)
        elif self.phase == "reward" and self.player in self.pads and self.chosen is None:
            self.chosen = self.pads[self.player]
            right_one = self.chosen == self.cue
            reward = self.task.choice_reward if right_one else self.task.wrong_reward
        done = self.task.end_on_choice and self.chosen is not None
        if self.frame == self.max_frames and not done:
            if not self.todo:
                return reward, True
            self.enter()
        return reward, done

    def color(self, cell: tuple[int, int]) -> tuple[int, ...]:
        if not (0 <= cell[0] < 7 and 0 <= cell[1] < 11):
            return FLOOR
        if cell == self.player:
            return PLAYER
        if self.phase == "explore" and cell == self.cue_cell:
            return COLORS[self.cue]
        if self.is_wall(cell):
            return WALL
        if self.phase == "distractor" and cell in self.apples:
            return APPLE
        if self.phase == "reward" and cell in self.pads and self.chosen is None:
            return COLORS[self.pads[cell]]
        return FLOOR

    def picture(self) -> list[list[tuple[int, ...]]]:
        if self.task.crop is None:
            return [[self.color((r, c)) for c in range(11)] for r in range(7)]
        (row, col), reach = self.player, self.task.crop // 2
        rows, cols = range(row - reach, row + reach + 1), range(col - reach, col + reach + 1)
        return [[self.color((r, c)) for c in cols] for r in rows]
