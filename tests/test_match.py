"""Passive Visual Match: its rules against a slow twin and by hand; what is drawn can be fixed."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from twins.match import (
    APPLE,
    COLORS,
    EAST,
    FLOOR,
    NORTH,
    PADS,
    PLAYER,
    RING,
    SOUTH,
    WALL,
    WEST,
    begin,
    compare,
    pixels,
    walk,
)

from rlgates.envs import ActiveMatch, BatchedEnv, PassiveMatch
from rlgates.envs.choices import tell
from rlgates.envs.philox import Key

# Against the slow twin

TWINS = {
    "default": PassiveMatch(),
    "unpaid apples": PassiveMatch(num_apples=10),
    "paid": PassiveMatch(apple_reward=(1, 10), num_apples=22, apple_respawn=3),
    "apples back at once": PassiveMatch(apple_reward=2.5, num_apples=22, apple_respawn=1, crop=7),
    "apples once": PassiveMatch(apple_reward=1, apple_respawn=None, crop=9),
    "two colors": PassiveMatch(num_colors=2, wrong_reward=-1, reward_steps=40, crop=7),
    "early end": PassiveMatch(
        end_on_choice=True, distractor_steps=0, reward_steps=60, shuffle_pads="env", crop=11
    ),
    "whole board": PassiveMatch(
        explore_steps=1, distractor_steps=30, reward_steps=50, crop=None, num_apples=3
    ),
}


@pytest.mark.parametrize("task", TWINS.values(), ids=TWINS)
def test_every_step_equals_the_slow_twin(task):
    events = compare(task, rows=12, episodes=3, seed=11)
    assert events["right pad"] >= 5
    assert events["wrong pad"] >= 5


# The rules, one by one


def test_the_first_pictures_of_the_phases():
    task = PassiveMatch(num_apples=0)
    told, state = begin(task, batch=50)
    for row, picture in enumerate(map(pixels, task.observe(state))):
        painted = tuple(told["target_cell"][row].tolist())
        for r in range(5):
            for c in range(5):
                cell = (r, c + 3)  # row 0 and column 3 of the board are in the corner of the view
                expected = PLAYER if cell == (2, 5) else WALL if cell in RING else FLOOR
                if cell == painted:
                    expected = COLORS[told["target_color"][row]]
                assert picture[r][c] == expected
    assert {tuple(cell) for cell in told["target_cell"].tolist()} == set(RING)
    assert set(told["target_color"].tolist()) == {0, 1, 2}

    # Walls all around: nothing moves, and the cue is in all 15 pictures.
    for t in range(14):
        _, later = walk(task, state, *(k % 4 for k in range(t + 1)))
        np.testing.assert_array_equal(task.observe(later), task.observe(state))

    # The move that ends a phase is lost: the next board starts at its own start cell.
    _, state = walk(task, later, NORTH)
    floor, here = [FLOOR] * 5, [FLOOR, FLOOR, PLAYER, FLOOR, FLOOR]
    assert pixels(task.observe(state)[0]) == [floor, floor, here, [WALL] * 5, floor]
    _, state = walk(task, state, *[NORTH] * 90)
    neck, here = [WALL, *[FLOOR] * 3, WALL], [WALL, FLOOR, PLAYER, FLOOR, WALL]
    assert pixels(task.observe(state)[0]) == [floor, neck, here, [WALL] * 5, floor]


def test_colors_are_the_published_bytes():
    assert (PLAYER, WALL) == ((228, 148, 109), (25, 25, 25))
    assert (FLOOR, APPLE) == ((204, 204, 204), (140, 178, 0))
    assert COLORS == ((255, 0, 0), (0, 255, 0), (0, 0, 255))
    task = PassiveMatch(explore_steps=1, num_apples=22)
    _, state = begin(task)
    _, state = walk(task, state, NORTH)
    seen = {pixel for row in pixels(task.board(state)[0]) for pixel in row}
    assert seen == {PLAYER, WALL, FLOOR, APPLE}


# Pads


@pytest.mark.parametrize(
    ("pad", "way"),
    [
        (0, [NORTH] * 3 + [WEST] * 3 + [NORTH]),
        (1, [NORTH] * 4),
        (2, [NORTH] * 2 + [EAST] * 3 + [NORTH] * 2),
    ],
)
def test_the_first_pad_touched_is_the_choice_and_hides_all(pad, way):
    task = PassiveMatch(explore_steps=1, distractor_steps=0, wrong_reward=-2)
    told, state = begin(task, batch=60)
    _, state = walk(task, state, NORTH)
    before = pixels(task.board(state)[0])
    assert [before[r][c] for r, c in PADS[3]] == [COLORS[i] for i in told["pad_colors"][0]]
    right = told["pad_colors"][:, pad] == told["target_color"]
    assert 0 < right.sum() < 60

    rewards, state = walk(task, state, *way)
    assert rewards[:-1] == [[0.0] * 60] * (len(way) - 1)
    np.testing.assert_array_equal(rewards[-1], np.where(right, 10, -2))
    after = task.board(state)
    for r, c in PADS[3]:
        expected = PLAYER if (r, c) == PADS[3][pad] else FLOOR
        assert (after[:, r, c] == expected).all()

    # Nothing more to get, on the other pads or by coming back.
    around = [EAST] * 7 + [WEST] * 7
    rewards, state = walk(task, state, *around[: 15 - len(way)])
    assert not np.any(rewards)
    np.testing.assert_array_equal(task.metrics(state)["is_success"], right)
    expected = np.where(right, 10, -2)
    np.testing.assert_array_equal(task.metrics(state)["last_phase_reward"], expected)


@pytest.mark.parametrize("early", [False, True])
def test_a_choice_on_the_last_step_is_paid(early):
    task = PassiveMatch(
        explore_steps=1, distractor_steps=0, reward_steps=4, wrong_reward=1, end_on_choice=early
    )
    env = BatchedEnv(task, 30, seed=0)
    env.reset()
    for _ in range(5):
        _, reward, terminated, _, info = env.step([NORTH] * 30)
    assert terminated.all()
    assert set(reward.tolist()) == {1.0, 10.0}
    np.testing.assert_array_equal(info["last_phase_reward"], reward)
    np.testing.assert_array_equal(info["is_success"], reward == 10)


def test_no_choice_is_no_success():
    task = PassiveMatch(explore_steps=1, distractor_steps=0, wrong_reward=-1)
    _, state = walk(task, begin(task, batch=9)[1], *[SOUTH] * 16)
    assert not task.metrics(state)["is_success"].any()
    assert not task.metrics(state)["last_phase_reward"].any()


def test_two_colors_are_on_the_outer_pads():
    task = PassiveMatch(num_colors=2, explore_steps=1, distractor_steps=0)
    told, state = begin(task, batch=40)
    assert set(told["target_color"].tolist()) == {0, 1}
    _, state = walk(task, state, NORTH)
    boards = task.board(state)
    assert (boards[:, 1, 5] == FLOOR).all()
    pairs = {(pixels(b)[1][2], pixels(b)[1][8]) for b in boards}
    assert pairs == {COLORS[:2], COLORS[1::-1]}


@pytest.mark.parametrize("kind", [PassiveMatch, ActiveMatch])
def test_pads_are_shuffled_per_episode_or_per_environment(kind):
    batch = 64

    def pads(shuffle, episode):
        task = kind(shuffle_pads=shuffle)
        drawn = task.draw(Key(3, np.arange(batch), np.full(batch, episode)))
        return tell(task.choices, drawn)["pad_colors"]

    assert all((pads("env", 0) == pads("env", e)).all() for e in range(1, 4))
    assert all((a != b).any() for a, b in pairwise(pads("episode", e) for e in range(4)))
    for shuffle in ("env", "episode"):
        assert len({tuple(row) for row in pads(shuffle, 2).tolist()}) == 6
    # Which order an environment has tells nothing about its cue.
    told, _ = begin(kind(), batch=9000)
    for pad in range(3):
        hits = (told["pad_colors"][:, pad] == told["target_color"]).sum()
        assert abs(hits - 3000) < 4 * math.sqrt(9000 * 2 / 9)


# What is drawn can be fixed

GIVEN = {
    "target_color": 2,
    "target_cell": (3, 4),
    "pad_colors": (1, 2, 0),
    "apple_cells": ((5, 9), (1, 1), (2, 6)),
    "apple_reward": 2.5,
}


def test_every_choice_can_be_fixed_and_is_told():
    task = PassiveMatch(num_apples=3, apple_reward=(1, 10), crop=None)
    assert set(task.choices) == set(GIVEN)
    env = BatchedEnv(task, 4, seed=0)
    obs, info = env.reset(options={**GIVEN, "reveal": True})
    for name, value in GIVEN.items():
        np.testing.assert_array_equal(info["choices"][name], [value] * 4)
    assert (obs[:, 3, 4] == COLORS[2]).all()
    for _ in range(15):
        obs, *_ = env.step([NORTH] * 4)
    board = pixels(obs[1])
    apples = {(r, c) for r in range(7) for c in range(11) if board[r][c] == APPLE}
    assert apples == set(GIVEN["apple_cells"])
    earned = np.zeros(4)
    for move in [NORTH] * 3 + [EAST] + [NORTH] * 86 + [NORTH] * 3 + [WEST] * 3 + [NORTH]:
        _, reward, *_ = env.step([move] * 4)
        earned += reward
    assert earned.tolist() == [2.5] * 4  # the apple on (2, 6); the western pad is green
    for _ in range(8):
        obs, *_ = env.step([NORTH] * 4)
    # It was for one episode: the next ones are those of the seed.
    np.testing.assert_array_equal(obs, task.observe(_second_episodes(task, 4)))
    assert env.reset(0)[1] == {}


def _second_episodes(task, batch):
    return task.start(task.draw(Key(0, np.arange(batch), np.ones(batch, dtype=np.int64))))


@pytest.mark.parametrize("name", GIVEN)
def test_fixing_one_choice_leaves_the_others_as_they_were(name):
    task = PassiveMatch(num_apples=3, apple_reward=(1, 10))
    free, _ = begin(task, batch=50)
    told, _ = begin(task, batch=50, **{name: GIVEN[name]})
    for other in task.choices:
        expected = [GIVEN[name]] * 50 if other == name else free[other]
        np.testing.assert_array_equal(told[other], expected)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"target_color": 3}, "target_color must be at most 2, got 3"),
        ({"target_color": "red"}, "target_color must be an integer, got 'red'"),
        ({"target_cell": (2, 5)}, r"target_cell must be one of the cells \(1, 4\), .*\(2, 5\)"),
        ({"target_cell": 3}, "target_cell must be a sequence of 2, got 3"),
        ({"pad_colors": (0, 1)}, "pad_colors must have 3 items, got 2"),
        ({"pad_colors": (0, 1, 1)}, "pad_colors must be 3 different numbers"),
        ({"pad_colors": (0, 1, 3)}, "pad_colors must be at most 2, got 3"),
        ({"apple_cells": ()}, "apple_cells must have 3 items, got 0"),
        ({"apple_cells": ((1, 1), (1, 1), (1, 3))}, "apple_cells must be different cells"),
        ({"apple_cells": ((1, 1), (1, 2), (1, 3))}, r"one of the cells .* got \(1, 2\)"),
        ({"apple_reward": "much"}, "apple_reward must be a number, got 'much'"),
        ({"apple_reward": math.inf}, "apple_reward must be finite, got inf"),
        ({"target_colour": 1}, "unknown reset option 'target_colour'. Did you mean 'target_color'"),
        ({"start_cell": (4, 3)}, "unknown reset option 'start_cell'"),
        ({"reveal": 1}, "reveal must be True or False, got 1"),
    ],
)
def test_choices_that_cannot_be_are_refused(given, message):
    env = BatchedEnv(PassiveMatch(num_apples=3), 2, seed=0)
    with pytest.raises((ValueError, TypeError), match=message):
        env.reset(options=given)
