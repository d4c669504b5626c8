"""Shared by the three phased games: phases, images and apples, against slow twins and by hand."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from twins.match import (
    APPLE,
    CANDIDATES,
    EAST,
    FLOOR,
    NORTH,
    PLAYER,
    SOUTH,
    WEST,
    begin,
    compare,
    pixels,
    walk,
)

from rlgates.envs import ActiveMatch, BatchedEnv, KeyToDoor, PassiveMatch

ALL = pytest.mark.parametrize("kind", [PassiveMatch, ActiveMatch, KeyToDoor])


def any_settings(rng: np.random.Generator, kind: Any) -> Any:
    settings: dict[str, Any] = {
        "explore_steps": int(rng.integers(1, 20)),
        "distractor_steps": int(rng.choice([0, 1, 40, 90])),
        "reward_steps": int(rng.integers(1, 20)),
        "num_apples": int(rng.integers(23)),
        "apple_reward": [0.0, 1.0, (0.0, 5.0), (1.0, 10.0)][rng.integers(4)],
        "apple_respawn": [None, *range(1, 21)][rng.integers(21)],
        "choice_reward": float(rng.integers(-5, 20)),
        "end_on_choice": bool(rng.integers(2)),
        "crop": [5, 7, 9, 11, None][rng.integers(5)],
    }
    if kind is not KeyToDoor:
        settings["num_colors"] = int(rng.integers(2, 4))
        settings["wrong_reward"] = float(rng.integers(-5, 5))
        settings["shuffle_pads"] = ["episode", "env"][rng.integers(2)]
    return kind(**settings)


SEEDS = [*range(4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 60))]


@ALL
@pytest.mark.parametrize("seed", SEEDS)
def test_any_settings_equal_the_slow_twin(kind, seed):
    compare(any_settings(np.random.default_rng(seed), kind), rows=10, episodes=3, seed=seed)


@ALL
@pytest.mark.parametrize("respawn", [1, 2, 5])
def test_apples_back_under_the_player_equal_the_slow_twin(kind, respawn):
    spec = kind(explore_steps=1, num_apples=22, apple_reward=3, apple_respawn=respawn)
    events = compare(spec, rows=8, episodes=3)
    assert events["apple is back"] >= 50
    assert events["apple is back under the player"] >= 3


# Phases and images


@ALL
def test_an_episode_is_120_steps_and_shows_121_images(kind):
    spec = kind()
    env = BatchedEnv(spec, 3, seed=0)
    obs, _ = env.reset()
    frames, phases = [obs], []
    for t in range(120):
        moment = spec.render_info(env.state)[0]
        phases.append(moment.phase)
        if t in (0, 14, 15, 104, 105, 119):
            left = {0: 15, 14: 1, 15: 90, 104: 1, 105: 15, 119: 1}[t]
            assert moment.steps_left == left
        obs, reward, terminated, truncated, info = env.step([WEST] * 3)
        assert terminated.all() == terminated.any() == (t == 119)
        assert not truncated.any()
        assert reward.tolist() == [0.0] * 3
        frames.append(info["final_obs"] if t == 119 else obs)
    assert phases == ["explore"] * 15 + ["distractor"] * 90 + ["reward"] * 15
    assert len(frames) == 121
    # The last image is of the reward board, after all of its 15 actions.
    _, state = walk(spec, begin(spec, 3)[1], *[WEST] * 120)
    np.testing.assert_array_equal(frames[-1], spec.observe(state))
    assert info["episode_length"].tolist() == [120] * 3


@pytest.mark.parametrize("crop", [5, 7, 9, 11])
def test_cells_outside_the_board_show_floor(crop):
    spec = PassiveMatch(explore_steps=1, distractor_steps=30, crop=crop)
    _, state = begin(spec)
    _, state = walk(spec, state, NORTH, *[NORTH] * 4, *[WEST] * 4)
    assert spec.render_info(state)[0].cell == (1, 1)
    view, reach = spec.observe(state)[0], crop // 2
    board = spec.render_board(state)[0]
    expected = np.full((crop, crop, 3), FLOOR)
    expected[reach - 1 :, reach - 1 :] = board[: reach + 2, : reach + 2]
    np.testing.assert_array_equal(view, expected)
    assert (view[: reach - 1] == FLOOR).all()


# Apples


def test_apples_are_placed_by_default_only_if_rewarded():
    def apples(spec):
        return begin(spec, batch=1)[0]["apple_cells"].shape[1]

    assert (apples(PassiveMatch()), apples(PassiveMatch(num_apples=3))) == (0, 3)
    assert apples(PassiveMatch(apple_reward=(0, 5))) == 10
    # What was not given stays so, and follows the other settings in a changed copy.
    paying = dataclasses.replace(PassiveMatch(), apple_reward=1)
    assert (paying.num_apples, apples(paying)) == (None, 10)
    assert apples(dataclasses.replace(paying, apple_reward=0)) == 0
    assert apples(dataclasses.replace(PassiveMatch(num_apples=0), apple_reward=1)) == 0


@ALL
def test_apples_lie_on_different_candidate_cells_evenly(kind):
    spec = kind(explore_steps=1, apple_reward=1)
    reported, state = begin(spec, batch=2200)
    cells = [tuple(map(tuple, row)) for row in reported["apple_cells"].tolist()]
    assert all(len(set(row)) == 10 for row in cells)
    counts = np.array([sum(cell in row for row in cells) for cell in CANDIDATES])
    assert counts.sum() == 22000
    assert abs(counts - 1000).max() < 4.5 * math.sqrt(2200 * 10 * 12 / 22**2)
    _, state = walk(spec, state, NORTH)
    boards = spec.render_board(state)
    for row in (0, 7, 2199):
        board = pixels(boards[row])
        apples = {(r, c) for r in range(7) for c in range(11) if board[r][c] == APPLE}
        assert apples == set(cells[row])


@pytest.mark.parametrize("respawn", [1, 2, 20, 33])
def test_an_apple_comes_back_after_its_images(respawn):
    spec = PassiveMatch(explore_steps=1, num_apples=22, apple_reward=1, apple_respawn=respawn)
    _, state = begin(spec)
    rewards, state = walk(spec, state, NORTH, WEST, WEST)  # frame 2: onto (5, 3)
    assert rewards == [[0.0], [0.0], [1.0]]
    assert pixels(spec.render_board(state)[0])[5][3] == PLAYER

    # A player who stays takes it again at frame 2 + 22; south is a wall, so it is a wait.
    rewards, _ = walk(spec, state, *[SOUTH] * (2 * respawn + 4))
    assert rewards == ([[0.0]] * (respawn + 1) + [[1.0]]) * 2

    # Seen from beside: hidden up to frame 2 + 20, shown at 2 + 21.
    _, hidden = walk(spec, state, EAST, *[SOUTH] * (respawn - 1))
    assert pixels(spec.render_board(hidden)[0])[5][3] == FLOOR
    _, back = walk(spec, hidden, SOUTH)
    assert pixels(spec.render_board(back)[0])[5][3] == APPLE

    # Arriving at 2 + 21 pays nothing; at 2 + 22 who stands there after the move is paid.
    rewards, arrived = walk(spec, hidden, WEST)
    assert rewards == [[0.0]]
    assert walk(spec, arrived, SOUTH)[0] == [[1.0]]
    rewards, left = walk(spec, arrived, EAST)
    assert rewards == [[0.0]]
    assert pixels(spec.render_board(left)[0])[5][3] == APPLE
    assert walk(spec, back, WEST)[0] == [[1.0]]


def test_an_apple_that_never_comes_back():
    spec = PassiveMatch(explore_steps=1, num_apples=22, apple_reward=1, apple_respawn=None)
    rewards, _ = walk(spec, begin(spec)[1], NORTH, WEST, WEST, *[SOUTH] * 80)
    assert sum(r for (r,) in rewards) == 1.0


@ALL
def test_an_apple_on_the_last_step_of_its_phase_is_rewarded(kind):
    spec = kind(explore_steps=1, distractor_steps=2, num_apples=22, apple_reward=4)
    rewards, state = walk(spec, begin(spec)[1], SOUTH, WEST, WEST)
    assert rewards == [[0.0], [0.0], [4.0]]
    assert spec.render_info(state)[0].phase == "reward"
    assert spec.metrics(state)["last_phase_reward"].tolist() == [0.0]


def test_a_pair_of_apple_rewards_is_a_coin_flip_per_episode():
    spec = PassiveMatch(explore_steps=1, num_apples=22, apple_reward=(0, 10))
    reported, state = begin(spec, batch=2000)
    assert set(reported["apple_reward"].tolist()) == {0.0, 10.0}
    assert abs((reported["apple_reward"] == 10).sum() - 1000) < 4 * math.sqrt(500)
    rewards, _ = walk(spec, state, NORTH, WEST, WEST, WEST, WEST)
    assert rewards[2] == rewards[4] == reported["apple_reward"].tolist()
