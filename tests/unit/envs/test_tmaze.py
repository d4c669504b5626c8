"""The T-Mazes against slow twins, against their rules by hand, and with scripted players."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from support.env_checks import (
    by_hand,
    check_that_memory_decides,
    compare_with_twins,
    in_letters,
    uniform,
)
from twins.tmaze import SlowTMaze

from rlgates.envs.engine.arrays import Array
from rlgates.envs.engine.batched import BatchedEnv
from rlgates.envs.games.tmaze import (
    DOWN,
    LEFT,
    RIGHT,
    UP,
    ActiveTMaze,
    PassiveTMaze,
    TMaze,
)

SPECS: dict[str, TMaze] = {
    "passive": PassiveTMaze(),
    "passive, one cell": PassiveTMaze(corridor_length=1),
    "passive, long": PassiveTMaze(corridor_length=120),
    "passive, paid": PassiveTMaze(
        corridor_length=3, goal_reward=2.5, penalty=-0.3, distract_reward=0.7
    ),
    "active": ActiveTMaze(),
    "active, one cell": ActiveTMaze(corridor_length=1),
    "active, far": ActiveTMaze(corridor_length=4, oracle_length=3, distract_reward=-0.1),
}
every_spec = pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)


def slow(spec: TMaze, reported: dict[str, Any]) -> SlowTMaze:
    penalty = spec.penalty
    return SlowTMaze(
        **reported,
        corridor_length=spec.corridor_length,
        oracle_length=spec.oracle_length if isinstance(spec, ActiveTMaze) else 0,
        penalty=-1 / spec.corridor_length if penalty is None else penalty,
        goal_reward=spec.goal_reward,
        distract_reward=spec.distract_reward,
    )


def mostly_right(rng: np.random.Generator, rows: int) -> Array:
    """Actions that often get to the arms, and sometimes lose a step on the way."""
    lean = np.linspace(0.25, 0.99, rows)
    return np.where(rng.random(rows) < lean, RIGHT, rng.integers(4, size=rows))


def left_first(rng: np.random.Generator, rows: int) -> Array:
    """The same by way of the oracle: environments of even index tend to the left."""
    actions = mostly_right(rng, rows)
    actions[::2] = np.where(rng.random(len(actions[::2])) < 0.5, LEFT, actions[::2])
    return actions


@every_spec
@pytest.mark.parametrize("draw", [mostly_right, left_first, uniform(4)])
def test_random_episodes_are_those_of_the_slow_twin(spec: TMaze, draw: Any) -> None:
    compare_with_twins(spec, lambda reported: slow(spec, reported), draw)


def test_random_episodes_end_in_every_way() -> None:
    spec = ActiveTMaze(corridor_length=1)
    ends = compare_with_twins(spec, lambda reported: slow(spec, reported), uniform(4), rows=300)
    assert {*zip(ends["is_success"].tolist(), ends["saw_goal"].tolist(), strict=True)} == {
        *itertools.product([False, True], repeat=2)
    }


def test_passive_by_hand() -> None:
    spec = PassiveTMaze(corridor_length=2, penalty=-0.25)
    observations, rewards, info = by_hand(spec, {"goal": -1}, [RIGHT, RIGHT, DOWN])
    assert observations == [[0, -1], [0, 0], [1, 0], [1, -1]]
    assert rewards == [0, 0, 1]
    assert info["is_success"].all()
    # A step lost at the oracle: the sign is gone, and each step after it is late.
    observations, rewards, info = by_hand(spec, {"goal": 1}, [UP, RIGHT, RIGHT])
    assert observations == [[0, 1], [0, 0], [0, 0], [1, 0]]
    assert rewards == [-0.25, -0.25, 0]
    assert not info["is_success"].any()


def test_active_by_hand() -> None:
    spec = ActiveTMaze(corridor_length=2, penalty=-0.25, distract_reward=0.5)
    observations, rewards, info = by_hand(spec, {"goal": 1}, [LEFT, RIGHT, RIGHT, RIGHT, UP])
    assert observations == [[0, 0], [0, 1], [0, 0], [0, 0], [1, 0], [1, 1]]
    assert rewards == [0.5, 0, 0, 0, 1]
    assert (info["is_success"].item(), info["saw_goal"].item()) == (True, True)
    # Straight to an arm and back and forth there: never late, and the last place counts.
    observations, rewards, info = by_hand(spec, {"goal": 1}, [RIGHT, RIGHT, DOWN, UP, UP])
    assert observations == [[0, 0], [0, 0], [1, 0], [1, -1], [1, 0], [1, 1]]
    assert rewards == [0, 0, 0, 0, 1]
    assert (info["is_success"].item(), info["saw_goal"].item()) == (True, False)
    # Staying at the oracle: late from the third step on, distracted in all but the last.
    _, rewards, _ = by_hand(spec, {"goal": 1}, [LEFT] * 5)
    assert rewards == [0.5, 0.25, 0.25, 0.25, 0]


def test_the_default_penalty_adds_up_to_one_in_the_passive_maze() -> None:
    for length in (1, 3, 10, 1500):
        spec = PassiveTMaze(corridor_length=length)
        _, rewards, _ = by_hand(spec, {"goal": 1}, [LEFT] * (length + 1))
        assert rewards[:-1] == [float(np.float32(-1 / length))] * length
        assert sum(rewards) == pytest.approx(-1, abs=1e-6)


def test_goals_are_fair_coin_flips() -> None:
    _, info = BatchedEnv(PassiveTMaze(), 4000, seed=1).reset(options={"reveal": True})
    goals = info["parameters"]["goal"]
    assert set(goals.tolist()) == {-1, 1}
    assert abs(goals.sum()) < 4 * math.sqrt(4000)


# Memory is enough, and nothing else is.

NO_MEMORY: dict[str, TMaze] = {
    "passive": PassiveTMaze(corridor_length=30, goal_reward=2.0),
    "active": ActiveTMaze(corridor_length=20, goal_reward=2.0),
    "active, far": ActiveTMaze(corridor_length=5, oracle_length=4, goal_reward=2.0),
}


@pytest.mark.parametrize("spec", NO_MEMORY.values(), ids=NO_MEMORY)
def test_memory_decides(spec: TMaze) -> None:
    def is_sign(observations: Array, episode_starts: Array) -> Array:
        return (observations[:, :1] == 0) & np.array([False, True])

    check_that_memory_decides(spec, is_sign, lambda success: 2 * success)  # never late


@pytest.mark.parametrize(
    "spec", [PassiveTMaze(corridor_length=2), ActiveTMaze(corridor_length=2)], ids=["p", "a"]
)
def test_no_rule_without_memory_does_better_than_half(spec: TMaze) -> None:
    """All 4,096 of them, with both goals."""
    situations = [(0, 0), (0, 1), (0, -1), (1, 0), (1, 1), (1, -1)]
    rules = np.array(list(itertools.product(range(4), repeat=len(situations))))
    number = {situation: n for n, situation in enumerate(situations)}
    success, returns = np.zeros(len(rules)), np.zeros(len(rules))
    for goal in (-1, 1):
        env = BatchedEnv(spec, len(rules), seed=0)
        obs, _ = env.reset(options={"goal": goal})
        for _ in range(spec.max_episode_length):
            index = np.array([number[int(a), int(b)] for a, b in obs])
            obs, _, _, _, info = env.step(rules[np.arange(len(rules)), index])
        success += info["is_success"] / 2
        returns += info["episode_return"] / 2
    assert success.max() == 0.5
    assert returns.max() == 0.5


# Choices, images and settings.


def test_the_goal_can_be_overridden_and_is_reported() -> None:
    env = BatchedEnv(PassiveTMaze(), 40, seed=2)
    for goal in (1, -1):
        obs, info = env.reset(options={"goal": goal, "reveal": True})
        assert info["parameters"]["goal"].tolist() == [goal] * 40
        assert obs[:, 1].tolist() == [goal] * 40
    for wrong in (0, 2, -2):
        with pytest.raises(ValueError, match="goal must be"):
            env.reset(options={"goal": wrong})
    with pytest.raises(ValueError, match=r"goal must be 1 \(up\) or -1 \(down\), got 0"):
        env.reset(options={"goal": 0})
    with pytest.raises(TypeError, match=r"goal must be an integer, got 'up'"):
        env.reset(options={"goal": "up"})
    with pytest.raises(ValueError, match=r"'gaol'.*Did you mean 'goal'"):
        env.reset(options={"gaol": 1})


def test_the_board_shows_maze_goal_oracle_and_player() -> None:
    spec = ActiveTMaze(corridor_length=2)
    env = BatchedEnv(spec, 1, seed=0)
    letters = {
        (204, 204, 204): ".",
        (25, 25, 25): "#",
        (228, 148, 109): "P",
        (0, 255, 0): "G",
        (134, 206, 235): "O",
    }

    def frame() -> list[str]:
        return in_letters(spec.render_board(env.state)[0], letters)

    env.reset(options={"goal": -1})
    assert frame() == ["######", "####.#", "#OP..#", "####G#", "######"]
    assert spec.render_info(env.state) == [("", 5, (2, 2))]
    for action in (LEFT, RIGHT, RIGHT, RIGHT):
        env.step([action])
    assert frame() == ["######", "####.#", "#...P#", "####G#", "######"]
    assert spec.render_info(env.state) == [("", 1, (2, 4))]


def test_presets_are_the_published_lengths() -> None:
    passive = [PassiveTMaze(**preset) for preset in PassiveTMaze.presets.values()]
    active = [ActiveTMaze(**preset) for preset in ActiveTMaze.presets.values()]
    lengths = [50, 100, 250, 500, 750, 1000, 1250, 1500]
    assert [spec.corridor_length for spec in passive] == lengths
    assert [spec.corridor_length for spec in active] == [20, 50, 100, 250, 500]
    assert [spec.max_episode_length for spec in passive] == [n + 1 for n in lengths]
    assert active[0].max_episode_length == 23


def test_equal_settings_have_equal_reprs() -> None:
    whole = PassiveTMaze(goal_reward=2, penalty=-1, distract_reward=0)
    assert repr(whole) == repr(PassiveTMaze(goal_reward=2.0, penalty=-1.0))


@pytest.mark.parametrize(
    ("kind", "settings", "error", "text"),
    [
        (PassiveTMaze, {"corridor_length": 0}, ValueError, "corridor_length must be at least 1"),
        (PassiveTMaze, {"corridor_length": 10**7}, ValueError, "must be at most 1000000, got"),
        (PassiveTMaze, {"corridor_length": 2.0}, TypeError, "corridor_length must be an integer"),
        (PassiveTMaze, {"penalty": 0.1}, ValueError, r"penalty must be at most 0, got 0\.1"),
        (PassiveTMaze, {"penalty": "no"}, TypeError, "penalty must be a number, got 'no'"),
        (PassiveTMaze, {"goal_reward": math.inf}, ValueError, "goal_reward must be finite"),
        (ActiveTMaze, {"distract_reward": math.nan}, ValueError, "distract_reward must be finite"),
        (ActiveTMaze, {"oracle_length": 0}, ValueError, "oracle_length must be at least 1, got 0"),
        (ActiveTMaze, {"corridor_length": 0}, ValueError, "corridor_length must be at least 1"),
    ],
)
def test_unusable_settings_are_refused(
    kind: type[TMaze], settings: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        kind(**settings)
