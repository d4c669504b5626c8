"""Active Visual Match: its rules against a slow twin and by hand. `test_match.py` has the rest."""

from __future__ import annotations

import math

import numpy as np
import pytest
from twins.match import (
    COLORS,
    EAST,
    FLOOR,
    LOWER_ROOM,
    NORTH,
    PLAYER,
    ROOM_WALLS,
    SOUTH,
    TWO_ROOMS,
    WALL,
    WEST,
    begin,
    compare,
    pixels,
    walk,
)

from rlgates.envs import ActiveMatch, BatchedEnv

TWINS = {
    "default": ActiveMatch(),
    "small rewards": ActiveMatch(apple_reward=1),
    "long look": ActiveMatch(explore_steps=60, distractor_steps=0, reward_steps=30, crop=7),
    "two colors": ActiveMatch(num_colors=2, wrong_reward=-1, distractor_steps=5, crop=9),
    "early end": ActiveMatch(
        end_on_choice=True, distractor_steps=0, reward_steps=60, shuffle_pads="env", crop=11
    ),
    "whole board": ActiveMatch(distractor_steps=20, crop=None, num_apples=5, apple_respawn=4),
    "released": ActiveMatch(**ActiveMatch.presets["released"]),
}


@pytest.mark.parametrize("task", TWINS.values(), ids=TWINS)
def test_every_step_equals_the_slow_twin(task):
    events = compare(task, rows=12, episodes=3, seed=5)
    assert events["right pad"] >= 5
    assert events["wrong pad"] >= 5


# The rules, one by one


def test_the_board_of_the_explore_phase():
    task = ActiveMatch(crop=None)
    told, state = begin(task, batch=300)
    assert len(ROOM_WALLS) == 26
    for row, picture in enumerate(map(pixels, task.observe(state))):
        player, painted = (tuple(told[k][row].tolist()) for k in ("start_cell", "target_cell"))
        for r in range(7):
            for c in range(11):
                expected = WALL if (r, c) in ROOM_WALLS else FLOOR
                if (r, c) == player:
                    expected = PLAYER
                if (r, c) == painted:
                    expected = COLORS[told["target_color"][row]]
                assert picture[r][c] == expected


def test_targets_and_starts_are_uniform():
    batch = 26_000
    told, state = begin(ActiveMatch(), batch)
    for name, cells in (("target_cell", ROOM_WALLS), ("start_cell", LOWER_ROOM)):
        found, counts = np.unique(told[name], axis=0, return_counts=True)
        assert [tuple(cell) for cell in found.tolist()] == cells
        p = 1 / len(cells)
        assert abs(counts - batch * p).max() < 4.5 * math.sqrt(batch * p * (1 - p))
    counts = np.bincount(told["target_color"])
    assert abs(counts - batch / 3).max() < 4.5 * math.sqrt(batch * 2 / 9)
    # They are independent of each other.
    both = (told["target_cell"] == (0, 5)).all(axis=1) & (told["start_cell"] == (4, 3)).all(axis=1)
    assert abs(both.sum() - batch / 260) < 4.5 * math.sqrt(batch / 260)
    moments = ActiveMatch().moments({name: values[:40] for name, values in state.items()})
    assert [moment.cell for moment in moments] == [tuple(c) for c in told["start_cell"][:40]]


WAYS = {  # from (5, 5) to the floor beside a wall, and the move against it
    (6, 5): [SOUTH],
    (4, 2): [NORTH, WEST, WEST, WEST],
    (5, 8): [EAST] * 3,
    (3, 3): [NORTH, WEST, WEST, NORTH],
    (3, 7): [NORTH] * 2 + [EAST] * 2,
    (0, 5): [NORTH] * 5,
    (1, 2): [NORTH] * 4 + [WEST] * 3,
    (2, 8): [NORTH] * 3 + [EAST] * 3,
}


@pytest.mark.parametrize("wall", WAYS)
@pytest.mark.parametrize("painted", [False, True])
def test_walls_stop_the_player_painted_or_not(wall, painted):
    task, way = ActiveMatch(), WAYS[wall]
    target = wall if painted else (6, 2)
    _, state = begin(task, start_cell=(5, 5), target_cell=target)
    _, before = walk(task, state, *way[:-1])
    assert task.moments(before)[0].cell in TWO_ROOMS
    rewards, after = walk(task, before, way[-1])
    assert task.moments(after)[0].cell == task.moments(before)[0].cell
    assert rewards == [[0.0]]
    view = pixels(task.observe(after)[0])
    down, right = (a - b for a, b in zip(wall, task.moments(after)[0].cell, strict=True))
    assert abs(down) + abs(right) == 1
    assert (view[2 + down][2 + right] in COLORS) == painted


def test_the_target_is_in_all_15_pictures_and_in_no_later_one():
    task = ActiveMatch(crop=None)
    told, state = begin(task, batch=26)
    rows = np.arange(26)
    r, c = told["target_cell"].T
    colors = np.array(COLORS)[told["target_color"]]
    rng = np.random.default_rng(0)
    for _ in range(15):
        np.testing.assert_array_equal(task.observe(state)[rows, r, c], colors)
        state, reward, _ = task.step(state, rng.integers(4, size=26))
        assert not reward.any()
    for _ in range(90):
        assert not (task.observe(state) == 255).any()
        state, *_ = task.step(state, rng.integers(4, size=26))
    assert (task.observe(state) == 255).any()  # the pads


def test_the_move_that_ends_the_phase_is_lost():
    task = ActiveMatch()
    _, state = begin(task, batch=9)
    _, state = walk(task, state, *[NORTH] * 15)
    assert {moment[:] for moment in task.moments(state)} == {("distractor", 90, (5, 5))}


# What is drawn can be fixed


@pytest.mark.parametrize("target", ROOM_WALLS)
def test_every_choice_can_be_fixed_and_is_told(target):
    task = ActiveMatch(num_apples=1, apple_reward=3, crop=None)
    given = {
        "target_color": 1,
        "target_cell": target,
        "pad_colors": (2, 1, 0),
        "start_cell": (4, 6),
        "apple_cells": ((2, 4),),
        "apple_reward": 4.0,
    }
    assert set(task.choices) == set(given)
    env = BatchedEnv(task, 3, seed=1)
    obs, info = env.reset(options={**given, "reveal": True})
    for name, value in given.items():
        np.testing.assert_array_equal(info["choices"][name], [value] * 3)
    assert (obs[:, target[0], target[1]] == COLORS[1]).all()
    assert (obs[:, 4, 6] == PLAYER).all()
    for _ in range(105):
        _, reward, *_ = env.step([NORTH] * 3)
        assert not reward.any()
    for _ in range(4):
        _, reward, *_ = env.step([NORTH] * 3)
    assert reward.tolist() == [10.0] * 3  # the middle pad is green


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"target_cell": (0, 1)}, r"target_cell must be one of the cells \(0, 2\), .*\(0, 1\)"),
        ({"target_cell": (3, 5)}, "target_cell must be one of the cells"),
        ({"start_cell": (1, 3)}, r"start_cell must be one of the cells \(4, 3\), .* got \(1, 3\)"),
        ({"start_cell": 0}, "start_cell must be a sequence of 2, got 0"),
        ({"start_cell": (4, 3, 1)}, "start_cell must have 2 items, got 3"),
        ({"target_color": -1}, "target_color must be at least 0, got -1"),
        ({"start_cel": (4, 3)}, "unknown reset option 'start_cel'. Did you mean 'start_cell'"),
        ({"key_cell": (1, 3)}, "unknown reset option 'key_cell'"),
    ],
)
def test_choices_that_cannot_be_are_refused(given, message):
    env = BatchedEnv(ActiveMatch(), 2, seed=0)
    with pytest.raises((ValueError, TypeError), match=message):
        env.reset(options=given)
