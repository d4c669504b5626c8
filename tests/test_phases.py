"""What the three games share, phases, pictures and apples: against slow twins and by hand."""

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
    task = kind(explore_steps=1, num_apples=22, apple_reward=3, apple_respawn=respawn)
    events = compare(task, rows=8, episodes=3)
    assert events["apple is back"] >= 50
    assert events["apple is back under the player"] >= 3


# Phases and pictures


@ALL
def test_an_episode_is_120_steps_and_shows_121_pictures(kind):
    task = kind()
    env = BatchedEnv(task, 3, seed=0)
    obs, _ = env.reset()
    pictures, phases = [obs], []
    for t in range(120):
        moment = task.moments(env.state)[0]
        phases.append(moment.phase)
        if t in (0, 14, 15, 104, 105, 119):
            left = {0: 15, 14: 1, 15: 90, 104: 1, 105: 15, 119: 1}[t]
            assert moment.steps_left == left
        obs, reward, terminated, truncated, info = env.step([WEST] * 3)
        assert terminated.all() == terminated.any() == (t == 119)
        assert not truncated.any()
        assert reward.tolist() == [0.0] * 3
        pictures.append(info["final_obs"] if t == 119 else obs)
    assert phases == ["explore"] * 15 + ["distractor"] * 90 + ["reward"] * 15
    assert len(pictures) == 121
    # The last picture is of the reward board, after all of its 15 actions.
    _, state = walk(task, begin(task, 3)[1], *[WEST] * 120)
    np.testing.assert_array_equal(pictures[-1], task.observe(state))
    assert info["episode_length"].tolist() == [120] * 3


@pytest.mark.parametrize("crop", [5, 7, 9, 11])
def test_cells_outside_the_board_show_floor(crop):
    task = PassiveMatch(explore_steps=1, distractor_steps=30, crop=crop)
    _, state = begin(task)
    _, state = walk(task, state, NORTH, *[NORTH] * 4, *[WEST] * 4)
    assert task.moments(state)[0].cell == (1, 1)
    view, reach = task.observe(state)[0], crop // 2
    board = task.board(state)[0]
    expected = np.full((crop, crop, 3), FLOOR)
    expected[reach - 1 :, reach - 1 :] = board[: reach + 2, : reach + 2]
    np.testing.assert_array_equal(view, expected)
    assert (view[: reach - 1] == FLOOR).all()


@ALL
def test_the_functions_are_pure(kind):
    task = kind(explore_steps=2, distractor_steps=3, num_apples=22, apple_reward=1)
    _, state = begin(task, batch=5)
    for moves in ([], [NORTH] * 3, [NORTH] * 7):
        _, state = walk(task, state, *moves)
        before = {name: values.copy() for name, values in state.items()}
        task.observe(state), task.board(state), task.metrics(state), task.moments(state)
        walk(task, state, WEST, NORTH, NORTH)
        for name, values in before.items():
            np.testing.assert_array_equal(state[name], values)


# Apples


def test_apples_lie_there_by_default_only_if_they_pay():
    def apples(task):
        return begin(task, batch=1)[0]["apple_cells"].shape[1]

    assert (apples(PassiveMatch()), apples(PassiveMatch(num_apples=3))) == (0, 3)
    assert apples(PassiveMatch(apple_reward=(0, 5))) == 10
    # What was not given stays so, and follows the other settings in a changed copy.
    paying = dataclasses.replace(PassiveMatch(), apple_reward=1)
    assert (paying.num_apples, apples(paying)) == (None, 10)
    assert apples(dataclasses.replace(paying, apple_reward=0)) == 0
    assert apples(dataclasses.replace(PassiveMatch(num_apples=0), apple_reward=1)) == 0


@ALL
def test_apples_lie_on_different_candidate_cells_evenly(kind):
    task = kind(explore_steps=1, apple_reward=1)
    told, state = begin(task, batch=2200)
    cells = [tuple(map(tuple, row)) for row in told["apple_cells"].tolist()]
    assert all(len(set(row)) == 10 for row in cells)
    counts = np.array([sum(cell in row for row in cells) for cell in CANDIDATES])
    assert counts.sum() == 22000
    assert abs(counts - 1000).max() < 4.5 * math.sqrt(2200 * 10 * 12 / 22**2)
    _, state = walk(task, state, NORTH)
    boards = task.board(state)
    for row in (0, 7, 2199):
        board = pixels(boards[row])
        apples = {(r, c) for r in range(7) for c in range(11) if board[r][c] == APPLE}
        assert apples == set(cells[row])


@pytest.mark.parametrize("respawn", [1, 2, 20, 33])
def test_an_apple_comes_back_after_its_pictures(respawn):
    task = PassiveMatch(explore_steps=1, num_apples=22, apple_reward=1, apple_respawn=respawn)
    _, state = begin(task)
    rewards, state = walk(task, state, NORTH, WEST, WEST)  # frame 2: onto (5, 3)
    assert rewards == [[0.0], [0.0], [1.0]]
    assert pixels(task.board(state)[0])[5][3] == PLAYER

    # A player who stays takes it again at frame 2 + 22; south is a wall, so it is a wait.
    rewards, _ = walk(task, state, *[SOUTH] * (2 * respawn + 4))
    assert rewards == ([[0.0]] * (respawn + 1) + [[1.0]]) * 2

    # Seen from beside: hidden up to frame 2 + 20, shown at 2 + 21.
    _, hidden = walk(task, state, EAST, *[SOUTH] * (respawn - 1))
    assert pixels(task.board(hidden)[0])[5][3] == FLOOR
    _, back = walk(task, hidden, SOUTH)
    assert pixels(task.board(back)[0])[5][3] == APPLE

    # Arriving at 2 + 21 pays nothing; at 2 + 22 who stands there after the move is paid.
    rewards, arrived = walk(task, hidden, WEST)
    assert rewards == [[0.0]]
    assert walk(task, arrived, SOUTH)[0] == [[1.0]]
    rewards, left = walk(task, arrived, EAST)
    assert rewards == [[0.0]]
    assert pixels(task.board(left)[0])[5][3] == APPLE
    assert walk(task, back, WEST)[0] == [[1.0]]


def test_an_apple_that_never_comes_back():
    task = PassiveMatch(explore_steps=1, num_apples=22, apple_reward=1, apple_respawn=None)
    rewards, _ = walk(task, begin(task)[1], NORTH, WEST, WEST, *[SOUTH] * 80)
    assert sum(r for (r,) in rewards) == 1.0


@ALL
def test_an_apple_on_the_last_step_of_its_phase_is_paid(kind):
    task = kind(explore_steps=1, distractor_steps=2, num_apples=22, apple_reward=4)
    rewards, state = walk(task, begin(task)[1], SOUTH, WEST, WEST)
    assert rewards == [[0.0], [0.0], [4.0]]
    assert task.moments(state)[0].phase == "reward"
    assert task.metrics(state)["last_phase_reward"].tolist() == [0.0]


def test_a_pair_of_apple_rewards_is_a_coin_flip_per_episode():
    task = PassiveMatch(explore_steps=1, num_apples=22, apple_reward=(0, 10))
    told, state = begin(task, batch=2000)
    assert set(told["apple_reward"].tolist()) == {0.0, 10.0}
    assert abs((told["apple_reward"] == 10).sum() - 1000) < 4 * math.sqrt(500)
    rewards, _ = walk(task, state, NORTH, WEST, WEST, WEST, WEST)
    assert rewards[2] == rewards[4] == told["apple_reward"].tolist()
