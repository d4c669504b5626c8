"""Key-To-Door: its rules against a slow twin and by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from twins.match import (
    APPLE,
    CHAMBER,
    DOOR,
    DOORWAY,
    EAST,
    FLOOR,
    KEY,
    LOWER_ROOM,
    NORTH,
    PLAYER,
    ROOM_WALLS,
    SIGN,
    SIGNPOST,
    SOUTH,
    UPPER_ROOM,
    WALL,
    WEST,
    begin,
    check_uniform,
    compare,
    drawn,
    pixels,
    walk,
)

from rlgates.envs import BatchedEnv, KeyToDoor

TWINS = {
    "default": KeyToDoor(),
    "small rewards": KeyToDoor(apple_reward=1, apple_respawn=7),
    "short look": KeyToDoor(explore_steps=7, distractor_steps=0, reward_steps=30, crop=7),
    "long": KeyToDoor(explore_steps=30, distractor_steps=5, reward_steps=60, crop=9),
    "early end": KeyToDoor(end_on_choice=True, distractor_steps=3, choice_reward=-2.5, crop=11),
    "whole board": KeyToDoor(distractor_steps=20, crop=None, num_apples=5, apple_respawn=None),
    "released": KeyToDoor(**KeyToDoor.presets["released"]),
}


@pytest.mark.parametrize("spec", TWINS.values(), ids=TWINS)
def test_every_step_equals_the_slow_twin(spec):
    events = compare(spec, rows=12, episodes=4, seed=7)
    assert events["key"] >= 5
    assert events["door"] >= 5
    if not spec.end_on_choice:
        assert events["door again"] >= 5
        assert events["outside"] >= 5
    if spec.explore_steps == 7:
        assert events["key on the last step"] >= 2
        assert events["key"] < 48


# The rules, one by one


def with_key(spec: KeyToDoor, batch: int = 1):
    """The state after the key at (2, 5) was fetched from (4, 5) and all other phases passed."""
    _, state = begin(spec, batch, start_cell=(4, 5), key_cell=(2, 5))
    rest = spec.explore_steps + spec.distractor_steps - 2
    return walk(spec, state, NORTH, NORTH, *[SOUTH] * rest)[1]


def without_key(spec: KeyToDoor, batch: int = 1):
    _, state = begin(spec, batch, start_cell=(4, 5), key_cell=(2, 5))
    return walk(spec, state, *[SOUTH] * (spec.explore_steps + spec.distractor_steps))[1]


def flat(frame: np.ndarray) -> list[tuple[int, ...]]:
    return [pixel for row in pixels(frame) for pixel in row]


def test_colors_are_the_published_bytes():
    assert (KEY, DOOR, SIGN) == ((159, 81, 44), (134, 206, 235), (255, 255, 255))
    assert (PLAYER, WALL) == ((228, 148, 109), (25, 25, 25))
    assert (FLOOR, APPLE) == ((204, 204, 204), (140, 178, 0))


def test_the_boards():
    spec = KeyToDoor(crop=None)
    reported, state = begin(spec, batch=200)
    for row, frame in enumerate(map(pixels, spec.observe(state))):
        player, key = (tuple(reported[name][row].tolist()) for name in ("start_cell", "key_cell"))
        assert frame == drawn(ROOM_WALLS, {player: PLAYER, key: KEY})
    # Row 5, columns 3 to 7, and so on: the walls around the last room, and its door.
    walls = {(1, c) for c in (3, 4, 6, 7)} | {(5, c) for c in range(3, 8)}
    walls |= {(r, c) for r in (2, 3, 4) for c in (3, 7)}
    frame = pixels(spec.observe(without_key(spec))[0])
    assert frame == drawn(walls, {(3, 5): PLAYER, (1, 5): DOOR})


def test_key_and_start_cells_are_uniform():
    batch = 20_000
    reported, _ = begin(KeyToDoor(), batch)
    check_uniform(reported["key_cell"], UPPER_ROOM)
    check_uniform(reported["start_cell"], LOWER_ROOM)
    both = (reported["key_cell"] == (1, 3)).all(axis=1) & (reported["start_cell"] == (4, 3)).all(
        axis=1
    )
    assert abs(both.sum() - batch / 100) < 4.5 * math.sqrt(batch / 100)


@pytest.mark.parametrize("key", UPPER_ROOM)
def test_the_key_vanishes_and_its_sign_is_in_exactly_one_image(key):
    spec = KeyToDoor(explore_steps=30)
    _, state = begin(spec, start_cell=(4, 5), key_cell=key)
    row, col = key
    side = WEST if col < 5 else EAST
    way = [NORTH] * (4 - row) + [side] * abs(col - 5)
    _, state = walk(spec, state, *way[:-1])
    assert KEY in flat(spec.observe(state)[0])
    assert SIGN not in flat(spec.observe(state)[0])

    rewards, state = walk(spec, state, way[-1])
    assert rewards == [[0.0]]
    assert spec.render_info(state)[0].cell == key
    assert pixels(spec.render_board(state)[0])[0][5] == SIGN
    view = spec.observe(state)[0]
    assert pixels(view)[SIGNPOST[0] - row + 2][SIGNPOST[1] - col + 2] == SIGN
    assert flat(view).count(SIGN) == 1
    assert KEY not in flat(view)

    # Neither waiting, nor walking on, nor a second visit shows it again.
    back = EAST if side == WEST else WEST
    for moves in ([back, side] * 4, [NORTH] * 8, [SOUTH, NORTH] * 4):
        after = state
        for move in moves:
            _, after = walk(spec, after, move)
            board = flat(spec.render_board(after)[0])
            assert SIGN not in board
            assert KEY not in board
            assert pixels(spec.render_board(after)[0])[0][5] == WALL


def test_a_key_taken_with_the_last_action_of_its_phase_counts():
    spec = KeyToDoor(explore_steps=2, distractor_steps=3)
    _, state = begin(spec, start_cell=(4, 5), key_cell=(2, 5))
    _, state = walk(spec, state, NORTH, NORTH)
    assert spec.render_info(state)[0] == ("distractor", 3, (5, 5))
    assert SIGN not in flat(spec.render_board(state)[0])
    rewards, state = walk(spec, state, SOUTH, SOUTH, SOUTH, NORTH, NORTH)
    assert rewards == [[0.0]] * 4 + [[10.0]]
    # One action later it is too late.
    spec = KeyToDoor(explore_steps=2, distractor_steps=0)
    _, state = begin(spec, start_cell=(5, 5), key_cell=(2, 5))
    rewards, state = walk(spec, state, NORTH, NORTH, *[NORTH] * 15)
    assert not np.any(rewards)


def test_without_the_key_the_door_is_a_wall():
    spec = KeyToDoor(distractor_steps=1)
    rewards, state = walk(spec, without_key(spec), *[NORTH] * 15)
    assert not np.any(rewards)
    assert spec.render_info(state)[0].cell == (2, 5)
    assert pixels(spec.render_board(state)[0])[1][5] == DOOR
    assert not spec.metrics(state)["is_success"].any()
    assert not spec.metrics(state)["last_phase_reward"].any()


def test_the_door_pays_once_and_stays_open_both_ways():
    spec = KeyToDoor(distractor_steps=2, choice_reward=7)
    state = with_key(spec, batch=2)
    rewards, inside = walk(spec, state, NORTH)
    assert rewards == [[0.0] * 2]
    rewards, state = walk(spec, inside, NORTH)
    assert rewards == [[7.0] * 2]
    assert spec.metrics(state)["is_success"].all()
    # The door is drawn over the player who stands in it.
    assert spec.render_info(state)[0].cell == DOORWAY
    assert pixels(spec.observe(state)[0])[2][2] == DOOR
    assert PLAYER not in flat(spec.observe(state)[0])
    assert PLAYER not in flat(spec.render_board(state)[0])

    for move, cell in (
        (NORTH, (0, 5)),  # out
        (NORTH, (0, 5)),  # the edge of the board
        (SOUTH, DOORWAY),
        (SOUTH, (2, 5)),  # in again
        (NORTH, DOORWAY),
        (WEST, DOORWAY),  # the wall beside
        (NORTH, (0, 5)),
        (WEST, (0, 4)),
        (SOUTH, (0, 4)),  # the wall from outside
    ):
        rewards, state = walk(spec, state, move)
        assert rewards == [[0.0] * 2]
        assert spec.render_info(state)[0].cell == cell
        expected = DOOR if cell == DOORWAY else PLAYER
        assert pixels(spec.observe(state)[0])[2][2] == expected
        assert pixels(spec.render_board(state)[0])[1][5] == DOOR
    assert spec.metrics(state)["last_phase_reward"].tolist() == [7.0] * 2


def test_a_player_outside_may_walk_round_the_room_to_no_effect():
    spec = KeyToDoor(distractor_steps=0, reward_steps=40)
    state = with_key(spec)
    round_trip = [WEST] * 5 + [SOUTH] * 6 + [EAST] * 10 + [NORTH] * 6 + [WEST] * 5
    rewards, state = walk(spec, state, NORTH, NORTH, NORTH, *round_trip)
    assert sum(r for (r,) in rewards) == 10.0
    assert spec.render_info(state)[0].cell == (0, 5)
    assert (0, 5) not in CHAMBER


@pytest.mark.parametrize("early", [False, True])
def test_a_door_entered_on_the_last_step_is_rewarded(early):
    spec = KeyToDoor(distractor_steps=0, reward_steps=2, end_on_choice=early)
    state = with_key(spec)
    state, reward, ended = spec.step(state, np.array([NORTH]))
    assert (reward.tolist(), ended.tolist()) == ([0.0], [False])
    state, reward, ended = spec.step(state, np.array([NORTH]))
    assert (reward.tolist(), ended.tolist()) == ([10.0], [True])
    assert spec.metrics(state)["last_phase_reward"].tolist() == [10.0]


def test_with_end_on_choice_the_door_ends_the_episode():
    spec = KeyToDoor(end_on_choice=True)
    assert not spec.fixed_length
    state = with_key(spec)
    ends = []
    for _ in range(2):
        state, _, ended = spec.step(state, np.array([NORTH]))
        ends.append(bool(ended[0]))
    assert ends == [False, True]


def test_an_apple_on_the_last_distractor_step_is_no_reward_of_the_last_phase():
    spec = KeyToDoor(distractor_steps=2, num_apples=22, apple_reward=4)
    _, state = begin(spec)
    rewards, state = walk(spec, state, *[SOUTH] * 15, WEST, WEST)
    assert rewards[-1] == [4.0]
    assert spec.metrics(state)["last_phase_reward"].tolist() == [0.0]


# Overridden parameters


@pytest.mark.parametrize("key", UPPER_ROOM)
def test_every_parameter_can_be_overridden_and_is_reported(key):
    spec = KeyToDoor(num_apples=2, apple_reward=(1, 10), crop=None)
    overrides = {
        "key_cell": key,
        "start_cell": (5, 7),
        "apple_cells": ((5, 1), (4, 4)),
        "apple_reward": 0.5,
    }
    assert set(spec.parameters) == set(overrides)
    env = BatchedEnv(spec, 3, seed=1)
    obs, info = env.reset(options={**overrides, "reveal": True})
    for name, value in overrides.items():
        np.testing.assert_array_equal(info["parameters"][name], [value] * 3)
    assert (obs[:, key[0], key[1]] == KEY).all()
    assert (obs[:, 5, 7] == PLAYER).all()
    for _ in range(15):
        obs, *_ = env.step([SOUTH] * 3)
    assert (obs[:, 5, 1] == APPLE).all()
    assert (obs[:, 4, 4] == APPLE).all()
    earned = [env.step([WEST] * 3)[1].tolist() for _ in range(4)]
    assert earned == [[0.0] * 3] * 3 + [[0.5] * 3]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"key_cell": (4, 3)}, r"key_cell must be one of the cells \(1, 3\), .* got \(4, 3\)"),
        ({"key_cell": "here"}, "key_cell must be a sequence of 2, got 'here'"),
        ({"start_cell": (2, 7)}, r"start_cell must be one of the cells \(4, 3\), .*\(2, 7\)"),
        ({"apple_cells": ((1, 1),)}, "apple_cells must have 0 items, got 1"),
        ({"apple_reward": math.nan}, "apple_reward must be finite, got nan"),
        ({"apple_reward": 1}, "apple_reward=1 would have no effect: there are no apples"),
        ({"target_color": 1}, "unknown reset option 'target_color'"),
        ({"keycell": (1, 3)}, "unknown reset option 'keycell'. Did you mean 'key_cell'"),
    ],
)
def test_impossible_parameters_are_refused(overrides, message):
    env = BatchedEnv(KeyToDoor(), 2, seed=0)
    with pytest.raises((ValueError, TypeError), match=message):
        env.reset(options=overrides)
