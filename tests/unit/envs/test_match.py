"""Passive and Active Visual Match: slow twins, rules one by one, overridden parameters."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from twins.match import (
    APPLE,
    COLORS,
    EAST,
    FLOOR,
    LOWER_ROOM,
    NORTH,
    PADS,
    PLAYER,
    RING,
    ROOM_WALLS,
    SOUTH,
    TWO_ROOMS,
    WALL,
    WEST,
    begin,
    check_uniform,
    compare,
    drawn,
    pixels,
    walk,
)

from rlgates.envs import ActiveMatch, BatchedEnv, PassiveMatch
from rlgates.envs.engine.parameters import report
from rlgates.envs.engine.philox import Key

# Slow twins

TWINS = {
    "passive default": PassiveMatch(),
    "passive worthless apples": PassiveMatch(num_apples=10),
    "passive rewarding apples": PassiveMatch(apple_reward=(1, 10), num_apples=22, apple_respawn=3),
    "passive apples back at once": PassiveMatch(
        apple_reward=2.5, num_apples=22, apple_respawn=1, crop=7
    ),
    "passive apples once": PassiveMatch(apple_reward=1, apple_respawn=None, crop=9),
    "passive two colors": PassiveMatch(num_colors=2, wrong_reward=-1, reward_steps=40, crop=7),
    "passive early end": PassiveMatch(
        end_on_choice=True, distractor_steps=0, reward_steps=60, shuffle_pads="env", crop=11
    ),
    "passive whole board": PassiveMatch(
        explore_steps=1, distractor_steps=30, reward_steps=50, crop=None, num_apples=3
    ),
    "active default": ActiveMatch(),
    "active small rewards": ActiveMatch(apple_reward=1),
    "active long look": ActiveMatch(explore_steps=60, distractor_steps=0, reward_steps=30, crop=7),
    "active two colors": ActiveMatch(num_colors=2, wrong_reward=-1, distractor_steps=5, crop=9),
    "active early end": ActiveMatch(
        end_on_choice=True, distractor_steps=0, reward_steps=60, shuffle_pads="env", crop=11
    ),
    "active whole board": ActiveMatch(
        distractor_steps=20, crop=None, num_apples=5, apple_respawn=4
    ),
    "active released": ActiveMatch(**ActiveMatch.presets["released"]),
}


@pytest.mark.parametrize("spec", TWINS.values(), ids=TWINS)
def test_every_step_equals_the_slow_twin(spec):
    seed = 11 if isinstance(spec, PassiveMatch) else 5
    events = compare(spec, rows=12, episodes=3, seed=seed)
    assert events["right pad"] >= 5
    assert events["wrong pad"] >= 5


# Rules


def test_the_first_images_of_the_phases():
    spec = PassiveMatch(num_apples=0)
    reported, state = begin(spec, batch=50)
    for row, image in enumerate(map(pixels, spec.observe(state))):
        painted = tuple(reported["target_cell"][row].tolist())
        board = drawn(RING, {(2, 5): PLAYER, painted: COLORS[reported["target_color"][row]]})
        # Row 0 and column 3 of the board are in the corner of the view.
        assert image == [line[3:8] for line in board[:5]]
    assert {tuple(cell) for cell in reported["target_cell"].tolist()} == set(RING)
    assert set(reported["target_color"].tolist()) == {0, 1, 2}

    # Walls all around: nothing moves, and the cue is in all 15 images.
    for t in range(14):
        _, later = walk(spec, state, *(k % 4 for k in range(t + 1)))
        np.testing.assert_array_equal(spec.observe(later), spec.observe(state))

    # The move that ends a phase is lost: the next board starts at its own start cell.
    _, state = walk(spec, later, NORTH)
    floor, here = [FLOOR] * 5, [FLOOR, FLOOR, PLAYER, FLOOR, FLOOR]
    assert pixels(spec.observe(state)[0]) == [floor, floor, here, [WALL] * 5, floor]
    _, state = walk(spec, state, *[NORTH] * 90)
    neck, here = [WALL, *[FLOOR] * 3, WALL], [WALL, FLOOR, PLAYER, FLOOR, WALL]
    assert pixels(spec.observe(state)[0]) == [floor, neck, here, [WALL] * 5, floor]


def test_colors_are_the_published_bytes():
    assert (PLAYER, WALL) == ((228, 148, 109), (25, 25, 25))
    assert (FLOOR, APPLE) == ((204, 204, 204), (140, 178, 0))
    assert COLORS == ((255, 0, 0), (0, 255, 0), (0, 0, 255))
    spec = PassiveMatch(explore_steps=1, num_apples=22)
    _, state = begin(spec)
    _, state = walk(spec, state, NORTH)
    colors = {pixel for row in pixels(spec.render_board(state)[0]) for pixel in row}
    assert colors == {PLAYER, WALL, FLOOR, APPLE}


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
    spec = PassiveMatch(explore_steps=1, distractor_steps=0, wrong_reward=-2)
    reported, state = begin(spec, batch=60)
    _, state = walk(spec, state, NORTH)
    before = pixels(spec.render_board(state)[0])
    assert [before[r][c] for r, c in PADS[3]] == [COLORS[i] for i in reported["pad_colors"][0]]
    right = reported["pad_colors"][:, pad] == reported["target_color"]
    assert 0 < right.sum() < 60

    rewards, state = walk(spec, state, *way)
    assert rewards[:-1] == [[0.0] * 60] * (len(way) - 1)
    np.testing.assert_array_equal(rewards[-1], np.where(right, 10, -2))
    after = spec.render_board(state)
    for r, c in PADS[3]:
        expected = PLAYER if (r, c) == PADS[3][pad] else FLOOR
        assert (after[:, r, c] == expected).all()

    # No further rewards, on the other pads or on returning.
    around = [EAST] * 7 + [WEST] * 7
    rewards, state = walk(spec, state, *around[: 15 - len(way)])
    assert not np.any(rewards)
    np.testing.assert_array_equal(spec.metrics(state)["is_success"], right)
    expected = np.where(right, 10, -2)
    np.testing.assert_array_equal(spec.metrics(state)["last_phase_reward"], expected)


@pytest.mark.parametrize("early", [False, True])
def test_a_choice_on_the_last_step_is_rewarded(early):
    spec = PassiveMatch(
        explore_steps=1, distractor_steps=0, reward_steps=4, wrong_reward=1, end_on_choice=early
    )
    env = BatchedEnv(spec, 30, seed=0)
    env.reset()
    for _ in range(5):
        _, reward, terminated, _, info = env.step([NORTH] * 30)
    assert terminated.all()
    assert set(reward.tolist()) == {1.0, 10.0}
    np.testing.assert_array_equal(info["last_phase_reward"], reward)
    np.testing.assert_array_equal(info["is_success"], reward == 10)


def test_no_choice_is_no_success():
    spec = PassiveMatch(explore_steps=1, distractor_steps=0, wrong_reward=-1)
    _, state = walk(spec, begin(spec, batch=9)[1], *[SOUTH] * 16)
    assert not spec.metrics(state)["is_success"].any()
    assert not spec.metrics(state)["last_phase_reward"].any()


def test_two_colors_are_on_the_outer_pads():
    spec = PassiveMatch(num_colors=2, explore_steps=1, distractor_steps=0)
    reported, state = begin(spec, batch=40)
    assert set(reported["target_color"].tolist()) == {0, 1}
    _, state = walk(spec, state, NORTH)
    boards = spec.render_board(state)
    assert (boards[:, 1, 5] == FLOOR).all()
    pairs = {(pixels(b)[1][2], pixels(b)[1][8]) for b in boards}
    assert pairs == {COLORS[:2], COLORS[1::-1]}


@pytest.mark.parametrize("kind", [PassiveMatch, ActiveMatch])
def test_pads_are_shuffled_per_episode_or_per_environment(kind):
    batch = 64

    def pads(shuffle, episode):
        spec = kind(shuffle_pads=shuffle)
        sampled = spec.sample(Key(3, np.arange(batch), np.full(batch, episode)))
        return report(spec.parameters, sampled)["pad_colors"]

    assert all((pads("env", 0) == pads("env", e)).all() for e in range(1, 4))
    assert all((a != b).any() for a, b in pairwise(pads("episode", e) for e in range(4)))
    for shuffle in ("env", "episode"):
        assert len({tuple(row) for row in pads(shuffle, 2).tolist()}) == 6
    # The order of the pads is independent of the cue.
    reported, _ = begin(kind(), batch=9000)
    for pad in range(3):
        hits = (reported["pad_colors"][:, pad] == reported["target_color"]).sum()
        assert abs(hits - 3000) < 4 * math.sqrt(9000 * 2 / 9)


# The explore phase of Active Match


def test_the_explore_board_of_active_match():
    spec = ActiveMatch(crop=None)
    reported, state = begin(spec, batch=300)
    assert len(ROOM_WALLS) == 26
    for row, image in enumerate(map(pixels, spec.observe(state))):
        player, painted = (tuple(reported[k][row].tolist()) for k in ("start_cell", "target_cell"))
        color = COLORS[reported["target_color"][row]]
        assert image == drawn(ROOM_WALLS, {player: PLAYER, painted: color})


def test_target_and_start_cells_are_uniform():
    batch = 26_000
    reported, state = begin(ActiveMatch(), batch)
    check_uniform(reported["target_cell"], ROOM_WALLS)
    check_uniform(reported["start_cell"], LOWER_ROOM)
    counts = np.bincount(reported["target_color"])
    assert abs(counts - batch / 3).max() < 4.5 * math.sqrt(batch * 2 / 9)
    # They are independent of each other.
    both = (reported["target_cell"] == (0, 5)).all(axis=1) & (reported["start_cell"] == (4, 3)).all(
        axis=1
    )
    assert abs(both.sum() - batch / 260) < 4.5 * math.sqrt(batch / 260)
    moments = ActiveMatch().render_info({name: values[:40] for name, values in state.items()})
    assert [moment.cell for moment in moments] == [tuple(c) for c in reported["start_cell"][:40]]


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
    spec, way = ActiveMatch(), WAYS[wall]
    target = wall if painted else (6, 2)
    _, state = begin(spec, start_cell=(5, 5), target_cell=target)
    _, before = walk(spec, state, *way[:-1])
    assert spec.render_info(before)[0].cell in TWO_ROOMS
    rewards, after = walk(spec, before, way[-1])
    assert spec.render_info(after)[0].cell == spec.render_info(before)[0].cell
    assert rewards == [[0.0]]
    view = pixels(spec.observe(after)[0])
    down, right = (a - b for a, b in zip(wall, spec.render_info(after)[0].cell, strict=True))
    assert abs(down) + abs(right) == 1
    assert (view[2 + down][2 + right] in COLORS) == painted


def test_the_target_is_in_all_15_images_and_in_no_later_one():
    spec = ActiveMatch(crop=None)
    reported, state = begin(spec, batch=26)
    rows = np.arange(26)
    r, c = reported["target_cell"].T
    colors = np.array(COLORS)[reported["target_color"]]
    rng = np.random.default_rng(0)
    for _ in range(15):
        np.testing.assert_array_equal(spec.observe(state)[rows, r, c], colors)
        state, reward, _ = spec.step(state, rng.integers(4, size=26))
        assert not reward.any()
    for _ in range(90):
        assert not (spec.observe(state) == 255).any()
        state, *_ = spec.step(state, rng.integers(4, size=26))
    assert (spec.observe(state) == 255).any()  # the pads


def test_the_move_that_ends_the_explore_phase_is_lost():
    spec = ActiveMatch()
    _, state = begin(spec, batch=9)
    _, state = walk(spec, state, *[NORTH] * 15)
    assert {moment[:] for moment in spec.render_info(state)} == {("distractor", 90, (5, 5))}


# Overridden parameters

PASSIVE = PassiveMatch(num_apples=3)
OVERRIDES = {
    "target_color": 2,
    "target_cell": (3, 4),
    "pad_colors": (1, 2, 0),
    "apple_cells": ((5, 9), (1, 1), (2, 6)),
    "apple_reward": 2.5,
}


def test_every_parameter_can_be_overridden_and_is_reported():
    spec = PassiveMatch(num_apples=3, apple_reward=(1, 10), crop=None)
    assert set(spec.parameters) == set(OVERRIDES)
    env = BatchedEnv(spec, 4, seed=0)
    obs, info = env.reset(options={**OVERRIDES, "reveal": True})
    for name, value in OVERRIDES.items():
        np.testing.assert_array_equal(info["parameters"][name], [value] * 4)
    assert (obs[:, 3, 4] == COLORS[2]).all()
    for _ in range(15):
        obs, *_ = env.step([NORTH] * 4)
    board = pixels(obs[1])
    apples = {(r, c) for r in range(7) for c in range(11) if board[r][c] == APPLE}
    assert apples == set(OVERRIDES["apple_cells"])
    earned = np.zeros(4)
    for move in [NORTH] * 3 + [EAST] + [NORTH] * 86 + [NORTH] * 3 + [WEST] * 3 + [NORTH]:
        _, reward, *_ = env.step([move] * 4)
        earned += reward
    assert earned.tolist() == [2.5] * 4  # the apple on (2, 6); the western pad is green
    for _ in range(8):
        obs, *_ = env.step([NORTH] * 4)
    # Overrides hold for one episode only.
    np.testing.assert_array_equal(obs, spec.observe(_second_episodes(spec, 4)))
    assert env.reset(0)[1] == {}


def _second_episodes(spec, batch):
    return spec.initial_state(spec.sample(Key(0, np.arange(batch), np.ones(batch, dtype=np.int64))))


@pytest.mark.parametrize("name", OVERRIDES)
def test_overriding_one_parameter_leaves_the_others_unchanged(name):
    spec = PassiveMatch(num_apples=3, apple_reward=(1, 10))
    free, _ = begin(spec, batch=50)
    reported, _ = begin(spec, batch=50, **{name: OVERRIDES[name]})
    for other in spec.parameters:
        expected = [OVERRIDES[name]] * 50 if other == name else free[other]
        np.testing.assert_array_equal(reported[other], expected)


@pytest.mark.parametrize("target", ROOM_WALLS)
def test_every_parameter_of_active_match_can_be_overridden_and_is_reported(target):
    spec = ActiveMatch(num_apples=1, apple_reward=3, crop=None)
    overrides = {
        "target_color": 1,
        "target_cell": target,
        "pad_colors": (2, 1, 0),
        "start_cell": (4, 6),
        "apple_cells": ((2, 4),),
        "apple_reward": 4.0,
    }
    assert set(spec.parameters) == set(overrides)
    env = BatchedEnv(spec, 3, seed=1)
    obs, info = env.reset(options={**overrides, "reveal": True})
    for name, value in overrides.items():
        np.testing.assert_array_equal(info["parameters"][name], [value] * 3)
    assert (obs[:, target[0], target[1]] == COLORS[1]).all()
    assert (obs[:, 4, 6] == PLAYER).all()
    for _ in range(105):
        _, reward, *_ = env.step([NORTH] * 3)
        assert not reward.any()
    for _ in range(4):
        _, reward, *_ = env.step([NORTH] * 3)
    assert reward.tolist() == [10.0] * 3  # the middle pad is green


@pytest.mark.parametrize(
    ("spec", "overrides", "message"),
    [
        (PASSIVE, {"target_color": 3}, "target_color must be at most 2, got 3"),
        (PASSIVE, {"target_color": "red"}, "target_color must be an integer, got 'red'"),
        (
            PASSIVE,
            {"target_cell": (2, 5)},
            r"target_cell must be one of the cells \(1, 4\), .*\(2, 5\)",
        ),
        (PASSIVE, {"target_cell": 3}, "target_cell must be a sequence of 2, got 3"),
        (PASSIVE, {"pad_colors": (0, 1)}, "pad_colors must have 3 items, got 2"),
        (PASSIVE, {"pad_colors": (0, 1, 1)}, "pad_colors must be 3 different numbers"),
        (PASSIVE, {"pad_colors": (0, 1, 3)}, "pad_colors must be at most 2, got 3"),
        (PASSIVE, {"apple_cells": ()}, "apple_cells must have 3 items, got 0"),
        (PASSIVE, {"apple_cells": ((1, 1), (1, 1), (1, 3))}, "apple_cells must be different cells"),
        (PASSIVE, {"apple_cells": ((1, 1), (1, 2), (1, 3))}, r"one of the cells .* got \(1, 2\)"),
        (PASSIVE, {"apple_reward": "much"}, "apple_reward must be a number, got 'much'"),
        (PASSIVE, {"apple_reward": math.inf}, "apple_reward must be finite, got inf"),
        (
            PASSIVE,
            {"target_colour": 1},
            "unknown reset option 'target_colour'. Did you mean 'target_color'",
        ),
        (PASSIVE, {"start_cell": (4, 3)}, "unknown reset option 'start_cell'"),
        (PASSIVE, {"reveal": 1}, "reveal must be True or False, got 1"),
        (
            ActiveMatch(),
            {"target_cell": (0, 1)},
            r"target_cell must be one of the cells \(0, 2\), .*\(0, 1\)",
        ),
        (ActiveMatch(), {"target_cell": (3, 5)}, "target_cell must be one of the cells"),
        (
            ActiveMatch(),
            {"start_cell": (1, 3)},
            r"start_cell must be one of the cells \(4, 3\), .* got \(1, 3\)",
        ),
        (ActiveMatch(), {"start_cell": 0}, "start_cell must be a sequence of 2, got 0"),
        (ActiveMatch(), {"start_cell": (4, 3, 1)}, "start_cell must have 2 items, got 3"),
        (ActiveMatch(), {"target_color": -1}, "target_color must be at least 0, got -1"),
        (
            ActiveMatch(),
            {"start_cel": (4, 3)},
            "unknown reset option 'start_cel'. Did you mean 'start_cell'",
        ),
        (ActiveMatch(), {"key_cell": (1, 3)}, "unknown reset option 'key_cell'"),
    ],
)
def test_impossible_parameters_are_refused(spec, overrides, message):
    env = BatchedEnv(spec, 2, seed=0)
    with pytest.raises((ValueError, TypeError), match=message):
        env.reset(options=overrides)


def test_the_rules_of_the_releases_for_apples_have_names():
    for name, same in ((("constant", 2), 2.0), (("episode", 1, 10), (1.0, 10.0))):
        assert PassiveMatch(apple_reward=name) == PassiveMatch(apple_reward=same)
    with pytest.raises(ValueError, match=r"'pickups'.*Did you mean 'pickup'"):
        PassiveMatch(apple_reward=("pickups", 1, 10))
    with pytest.raises(ValueError, match=r"\('pickup', low, high\), got \('pickup', 1\)"):
        PassiveMatch(apple_reward=("pickup", 1))


def test_an_apple_that_is_picked_up_can_draw_its_own_reward():
    spec = PassiveMatch(apple_reward=("pickup", 2, 4), explore_steps=2, num_apples=22)
    env = BatchedEnv(spec, 30, seed=0)
    env.reset()
    rng, paid = np.random.default_rng(0), []
    for _ in range(2 + spec.distractor_steps):
        rewards = env.step(rng.integers(4, size=30))[1]
        paid.append(rewards)
    found = np.stack(paid)
    taken = found[found > 0]
    assert 2 <= taken.min() < 2.1
    assert 3.9 < taken.max() <= 4
    assert len(np.unique(taken)) > 100
    assert abs(taken.mean() - 3) < 4 * (2 / math.sqrt(12)) / math.sqrt(len(taken))
    # The draw of a step decides, whatever was taken before.
    env.reset(seed=0, options={"apple_draws": [0.25] * spec.distractor_steps})
    rng = np.random.default_rng(0)
    again = [env.step(rng.integers(4, size=30))[1] for _ in range(2 + spec.distractor_steps)]
    assert set(np.unique(again)) == {0.0, 2.5}
    assert ((np.stack(again) > 0) == (found > 0)).all()
    # Draw k is that of distractor step k: an apple two cells west of the start is the second's.
    draws = np.linspace(0, 1, spec.distractor_steps)
    env = BatchedEnv(replace(spec, num_apples=1), 1, seed=0)
    env.reset(options={"apple_draws": draws, "apple_cells": [(5, 3)]})
    paid = [env.step([WEST])[1].item() for _ in range(4)]
    assert paid == pytest.approx([0, 0, 0, 2 + 2 * draws[1]])
