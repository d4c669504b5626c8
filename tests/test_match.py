"""Passive Visual Match against its rules, and against a slow twin in plain Python."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from twins.match import (
    APPLE,
    CANDIDATES,
    COLORS,
    EAST,
    FLOOR,
    NORTH,
    PADS,
    PLAYER,
    SOUTH,
    WALL,
    WEST,
    SlowMatch,
)

from rlgates.envs import BatchedEnv, PassiveMatch
from rlgates.envs.philox import Key


def start(task: PassiveMatch, batch: int = 1, seed: int = 0) -> dict[str, np.ndarray]:
    return task.reset(Key(seed, np.arange(batch), np.zeros(batch, dtype=np.int64)))


def walk(task, state, *moves: int):
    """Rewards of the moves, made in all rows, and the state after them."""
    rewards = []
    for move in moves:
        state, reward, _ = task.step(state, np.full(len(state["t"]), move))
        rewards.append(reward.tolist())
    return rewards, state


def pixels(picture: np.ndarray) -> list[list[tuple[int, ...]]]:
    return [[tuple(pixel) for pixel in row] for row in picture.tolist()]


# Against the slow twin

TWINS = {
    "default": PassiveMatch(),
    "paid": PassiveMatch(apple_reward=(1, 10), num_apples=22, apple_respawn=3),
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
    batch, episodes = 10, 5
    env = BatchedEnv(task, batch, seed=11)
    obs = env.reset()
    rng = np.random.default_rng(1)
    twins = [SlowMatch(task, env.state, row) for row in range(batch)]
    ended = choices = 0
    while ended < batch * episodes:
        for row, twin in enumerate(twins):
            assert pixels(obs[row]) == twin.picture()
        # Random moves with a drift to the north, which leads to the pads.
        action = rng.choice(4, size=batch, p=[0.4, 0.2, 0.2, 0.2])
        obs, reward, terminated, _, info = env.step(action)
        for row, twin in enumerate(twins):
            assert (reward[row], terminated[row]) == twin.step(int(action[row]))
            if terminated[row]:
                assert pixels(info["final_obs"][row]) == twin.picture()
                assert info["is_success"][row] == (twin.chosen == twin.cue)
                choices += twin.chosen is not None
                twins[row] = SlowMatch(task, env.state, row)
                ended += 1
    assert choices > 5


# The rules, one by one


def test_an_episode_is_120_steps_and_shows_121_pictures():
    task = PassiveMatch()
    env = BatchedEnv(task, 3, seed=0)
    env.reset()
    phases = []
    for t in range(120):
        moment = task.moments(env.state)[0]
        phases.append(moment.phase)
        if t in (0, 14, 15, 104, 105, 119):
            left = {0: 15, 14: 1, 15: 90, 104: 1, 105: 15, 119: 1}[t]
            assert moment.steps_left == left
        _, _, terminated, _, info = env.step([NORTH] * 3)
        assert terminated.all() == (t == 119)
    assert phases == ["explore"] * 15 + ["distractor"] * 90 + ["reward"] * 15
    # The last picture is of the reward board, after all of its 15 actions.
    assert pixels(info["final_obs"][0])[2][2] == PLAYER
    assert pixels(info["final_obs"][0])[1] == [WALL] * 5
    assert info["episode_length"].tolist() == [120] * 3


def test_the_first_pictures_of_the_phases():
    task = PassiveMatch(num_apples=0)
    state = start(task, batch=50)
    for row, picture in enumerate(map(pixels, task.observe(state))):
        inner = [picture[r][c] for r in (1, 2, 3) for c in (1, 2, 3)]
        assert inner.pop(4) == PLAYER
        cue = inner.pop(int(state["cue_cell"][row]))
        assert cue == COLORS[state["cue"][row]]
        assert inner == [WALL] * 7
        edge = [picture[r][c] for r in range(5) for c in range(5) if {r, c} & {0, 4}]
        assert edge == [FLOOR] * 16
    assert set(state["cue_cell"].tolist()) == set(range(8))
    assert set(state["cue"].tolist()) == {0, 1, 2}

    # Walls all around: nothing moves, and the cue is in all 15 pictures.
    _, later = walk(task, state, *(t % 4 for t in range(14)))
    np.testing.assert_array_equal(task.observe(later), task.observe(state))

    _, state = walk(task, later, NORTH)
    floor, here = [FLOOR] * 5, [FLOOR, FLOOR, PLAYER, FLOOR, FLOOR]
    assert pixels(task.observe(state)[0]) == [floor, floor, here, [WALL] * 5, floor]

    # The move that ends a phase is lost: the next board starts at its own start cell.
    _, state = walk(task, state, *[NORTH] * 90)
    neck, here = [WALL, *[FLOOR] * 3, WALL], [WALL, FLOOR, PLAYER, FLOOR, WALL]
    assert pixels(task.observe(state)[0]) == [floor, neck, here, [WALL] * 5, floor]


def test_colors_are_the_published_bytes():
    assert (PLAYER, WALL) == ((228, 148, 109), (25, 25, 25))
    assert (FLOOR, APPLE) == ((204, 204, 204), (140, 178, 0))
    task = PassiveMatch(explore_steps=1, num_apples=22)
    state = start(task)
    _, state = walk(task, state, NORTH)
    seen = {pixel for row in pixels(task.board(state)[0]) for pixel in row}
    assert seen == {PLAYER, WALL, FLOOR, APPLE}


def test_apples_lie_there_by_default_only_if_they_pay():
    assert (PassiveMatch().num_apples, PassiveMatch(num_apples=3).num_apples) == (0, 3)
    assert PassiveMatch(apple_reward=(0, 5)).num_apples == 10


def test_apples_lie_on_different_candidate_cells_evenly():
    task = PassiveMatch(explore_steps=1, apple_reward=1)
    state = start(task, batch=2200)
    shown = state["apples"] == 0
    assert (shown.sum(axis=1) == 10).all()
    assert not shown[:, -1].any()
    assert abs(shown[:, :-1].sum(axis=0) - 1000).max() < 4.5 * math.sqrt(2200 * 10 * 12 / 22**2)
    _, state = walk(task, state, NORTH)
    board = pixels(task.board(state)[7])
    apples = {(r, c) for r in range(7) for c in range(11) if board[r][c] == APPLE}
    assert apples == {CANDIDATES[i] for i in np.flatnonzero(shown[7])}


def test_an_apple_comes_back_after_21_pictures():
    task = PassiveMatch(explore_steps=1, num_apples=22, apple_reward=1)
    _, state = walk(task, start(task), NORTH)
    rewards, state = walk(task, state, WEST, WEST)  # frame 2: onto (5, 3)
    assert rewards == [[0.0], [1.0]]
    assert pixels(task.board(state)[0])[5][3] == PLAYER

    # A player who stays takes it again at frame 2 + 22; south is a wall, so it is a wait.
    rewards, _ = walk(task, state, *[SOUTH] * 22)
    assert rewards == [[0.0]] * 21 + [[1.0]]

    # Seen from beside: hidden up to frame 2 + 20, shown at 2 + 21.
    _, hidden = walk(task, state, EAST, *[SOUTH] * 19)
    assert pixels(task.board(hidden)[0])[5][3] == FLOOR
    _, back = walk(task, hidden, SOUTH)
    assert pixels(task.board(back)[0])[5][3] == APPLE

    # Arriving at 2 + 21 pays nothing; at 2 + 22 who stands there after the move is paid.
    rewards, arrived = walk(task, hidden, WEST)
    assert rewards == [[0.0]]
    assert walk(task, arrived, SOUTH)[0] == [[1.0]]
    assert walk(task, arrived, EAST)[0] == [[0.0]]
    assert walk(task, back, WEST)[0] == [[1.0]]


def test_an_apple_that_never_comes_back():
    task = PassiveMatch(explore_steps=1, num_apples=22, apple_reward=1, apple_respawn=None)
    rewards, _ = walk(task, start(task), NORTH, WEST, WEST, *[SOUTH] * 80)
    assert sum(r for (r,) in rewards) == 1.0


def test_an_apple_on_the_last_step_of_its_phase_is_paid():
    task = PassiveMatch(explore_steps=1, distractor_steps=2, num_apples=22, apple_reward=4)
    rewards, state = walk(task, start(task), NORTH, WEST, WEST)
    assert rewards == [[0.0], [0.0], [4.0]]
    assert task.moments(state)[0][2:] == (5, 5)
    assert task.metrics(state)["last_phase_reward"].tolist() == [0.0]


def test_a_pair_of_apple_rewards_is_a_coin_flip_per_episode():
    task = PassiveMatch(apple_reward=(0, 10))
    values = start(task, batch=2000)["apple_value"]
    assert set(values.tolist()) == {0.0, 10.0}
    assert abs((values == 10).sum() - 1000) < 4 * math.sqrt(500)


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
    _, state = walk(task, start(task, batch=60), NORTH)
    before = pixels(task.board(state)[0])
    assert [before[r][c] for r, c in PADS[3]] == [COLORS[i] for i in state["pads"][0, :-1]]
    right = state["pads"][:, pad] == state["cue"]
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


def test_a_choice_on_the_last_step_is_paid():
    task = PassiveMatch(explore_steps=1, distractor_steps=0, reward_steps=4, wrong_reward=1)
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
    _, state = walk(task, start(task, batch=9), *[SOUTH] * 16)
    assert not task.metrics(state)["is_success"].any()
    assert not task.metrics(state)["last_phase_reward"].any()


def test_two_colors_are_on_the_outer_pads():
    task = PassiveMatch(num_colors=2, explore_steps=1, distractor_steps=0)
    state = start(task, batch=40)
    assert set(state["cue"].tolist()) == {0, 1}
    _, state = walk(task, state, NORTH)
    boards = task.board(state)
    assert (boards[:, 1, 5] == FLOOR).all()
    pairs = {(pixels(b)[1][2], pixels(b)[1][8]) for b in boards}
    assert pairs == {COLORS[:2], COLORS[1::-1]}


def test_pads_are_shuffled_per_episode_or_per_environment():
    batch = 64

    def pads(shuffle, episode):
        key = Key(3, np.arange(batch), np.full(batch, episode))
        return PassiveMatch(shuffle_pads=shuffle).reset(key)["pads"][:, :-1]

    assert all((pads("env", 0) == pads("env", e)).all() for e in range(1, 4))
    assert all((a != b).any() for a, b in pairwise(pads("episode", e) for e in range(4)))
    for shuffle in ("env", "episode"):
        assert len({tuple(row) for row in pads(shuffle, 2).tolist()}) == 6
    # Which order an environment has tells nothing about its cue.
    state = PassiveMatch().reset(Key(0, np.arange(9000), np.zeros(9000, dtype=np.int64)))
    for pad in range(3):
        hits = (state["pads"][:, pad] == state["cue"]).sum()
        assert abs(hits - 3000) < 4 * math.sqrt(9000 * 2 / 9)


def test_the_functions_are_pure():
    task = PassiveMatch(explore_steps=1, distractor_steps=0, num_apples=22)
    state = start(task, batch=5)
    before = {name: values.copy() for name, values in state.items()}
    task.observe(state), task.board(state), task.metrics(state), task.moments(state)
    walk(task, state, *[NORTH] * 5)
    for name, values in before.items():
        np.testing.assert_array_equal(state[name], values)
