"""The T-Mazes against slow twins, against their rules by hand, and with scripted players."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from twins.kin import check_contract, compare_with_torch, compare_with_twins, in_letters, uniform
from twins.tmaze import SlowTMaze

from rlgates.envs.arrays import Array
from rlgates.envs.engine import BatchedEnv
from rlgates.envs.kin_players import (
    DOWN,
    LEFT,
    RIGHT,
    UP,
    ShuffledCue,
    TMazeMemoryPlayer,
    TMazeReactivePlayer,
)
from rlgates.envs.players import play
from rlgates.envs.tmaze import ActiveTMaze, PassiveTMaze, TMaze

TASKS: dict[str, TMaze] = {
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
every_task = pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)


def slow(task: TMaze, told: dict[str, Any]) -> SlowTMaze:
    penalty = task.penalty
    return SlowTMaze(
        **told,
        corridor_length=task.corridor_length,
        oracle_length=task.oracle_length if isinstance(task, ActiveTMaze) else 0,
        penalty=-1 / task.corridor_length if penalty is None else penalty,
        goal_reward=task.goal_reward,
        distract_reward=task.distract_reward,
    )


def mostly_right(rng: np.random.Generator, rows: int) -> Array:
    """Actions that often get to the arms, and sometimes lose a step on the way."""
    lean = np.linspace(0.25, 0.99, rows)
    return np.where(rng.random(rows) < lean, RIGHT, rng.integers(4, size=rows))


def left_first(rng: np.random.Generator, rows: int) -> Array:
    """The same, by the oracle: a walk that leans left in the rows of even number."""
    actions = mostly_right(rng, rows)
    actions[::2] = np.where(rng.random(len(actions[::2])) < 0.5, LEFT, actions[::2])
    return actions


@every_task
@pytest.mark.parametrize("draw", [mostly_right, left_first, uniform(4)])
def test_random_episodes_are_those_of_the_slow_twin(task: TMaze, draw: Any) -> None:
    compare_with_twins(task, lambda told: slow(task, told), draw)


def test_random_episodes_end_in_every_way() -> None:
    task = ActiveTMaze(corridor_length=1)
    ends = compare_with_twins(task, lambda told: slow(task, told), uniform(4), rows=300)
    assert {*zip(ends["is_success"].tolist(), ends["saw_goal"].tolist(), strict=True)} == {
        *itertools.product([False, True], repeat=2)
    }


@pytest.mark.parametrize("name", ["passive, long", "active, far"])
def test_tensors_give_the_same_bits(name: str) -> None:
    compare_with_torch(TASKS[name])


@every_task
def test_the_contract_is_kept(task: TMaze) -> None:
    check_contract(task)


def run(task: TMaze, goal: int, actions: list[int]) -> tuple[list[list[float]], list[float], Any]:
    """Observations, rewards and the last info of one episode."""
    env = BatchedEnv(task, 1, seed=0)
    obs, _ = env.reset(options={"goal": goal})
    seen, paid, info = [obs[0].tolist()], [], {}
    for action in actions:
        obs, reward, terminated, _, info = env.step([action])
        seen.append(obs[0].tolist())
        paid.append(float(reward[0]))
    assert terminated.all()
    seen[-1] = info["final_obs"][0].tolist()
    return seen, paid, info


def test_passive_by_hand() -> None:
    task = PassiveTMaze(corridor_length=2, penalty=-0.25)
    seen, paid, info = run(task, -1, [RIGHT, RIGHT, DOWN])
    assert seen == [[0, -1], [0, 0], [1, 0], [1, -1]]
    assert paid == [0, 0, 1]
    assert info["is_success"].all()
    # A step lost at the oracle: the sign is gone, and each step after it is late.
    seen, paid, info = run(task, 1, [UP, RIGHT, RIGHT])
    assert seen == [[0, 1], [0, 0], [0, 0], [1, 0]]
    assert paid == [-0.25, -0.25, 0]
    assert not info["is_success"].any()


def test_active_by_hand() -> None:
    task = ActiveTMaze(corridor_length=2, penalty=-0.25, distract_reward=0.5)
    seen, paid, info = run(task, 1, [LEFT, RIGHT, RIGHT, RIGHT, UP])
    assert seen == [[0, 0], [0, 1], [0, 0], [0, 0], [1, 0], [1, 1]]
    assert paid == [0.5, 0, 0, 0, 1]
    assert (info["is_success"].item(), info["saw_goal"].item()) == (True, True)
    # Straight to an arm and back and forth there: never late, and the last place counts.
    seen, paid, info = run(task, 1, [RIGHT, RIGHT, DOWN, UP, UP])
    assert seen == [[0, 0], [0, 0], [1, 0], [1, -1], [1, 0], [1, 1]]
    assert paid == [0, 0, 0, 0, 1]
    assert (info["is_success"].item(), info["saw_goal"].item()) == (True, False)
    # Staying at the oracle: late from the third step on, distracted in all but the last.
    _, paid, _ = run(task, 1, [LEFT] * 5)
    assert paid == [0.5, 0.25, 0.25, 0.25, 0]


def test_the_default_penalty_adds_up_to_one_in_the_passive_maze() -> None:
    for length in (1, 3, 10, 1500):
        _, paid, _ = run(PassiveTMaze(corridor_length=length), 1, [LEFT] * (length + 1))
        assert paid[:-1] == [float(np.float32(-1 / length))] * length
        assert sum(paid) == pytest.approx(-1, abs=1e-6)


def test_goals_are_fair_coin_flips() -> None:
    _, info = BatchedEnv(PassiveTMaze(), 4000, seed=1).reset(options={"reveal": True})
    goals = info["choices"]["goal"]
    assert set(goals.tolist()) == {-1, 1}
    assert abs(goals.sum()) < 4 * math.sqrt(4000)


# Memory is enough, and nothing else is.

NO_MEMORY: dict[str, TMaze] = {
    "passive": PassiveTMaze(corridor_length=30, goal_reward=2.0),
    "active": ActiveTMaze(corridor_length=20, goal_reward=2.0),
    "active, far": ActiveTMaze(corridor_length=5, oracle_length=4, goal_reward=2.0),
}
players_task = pytest.mark.parametrize("task", NO_MEMORY.values(), ids=NO_MEMORY)
EPISODES = 2000
MARGIN = 4 * math.sqrt(0.25 / EPISODES)


@players_task
def test_memory_reaches_the_ceiling(task: TMaze) -> None:
    result = play(BatchedEnv(task, 500), TMazeMemoryPlayer(), EPISODES)
    assert result["is_success"] == 1.0
    assert result["episode_return"] == 2.0


@players_task
def test_without_memory_half_of_the_goals_are_lost(task: TMaze) -> None:
    env = BatchedEnv(task, 500)
    result = play(env, TMazeReactivePlayer(), EPISODES)
    assert result["is_success"] == pytest.approx(task.chance, abs=MARGIN)
    assert result["episode_return"] == 2 * result["is_success"]  # never late


@players_task
def test_with_the_sign_of_another_row_memory_is_worth_nothing(task: TMaze) -> None:
    def is_sign(observations: Array, starts: Array) -> Array:
        return (observations[:, :1] == 0) & np.array([False, True])

    player = ShuffledCue(TMazeMemoryPlayer(), is_sign)
    result = play(BatchedEnv(task, 500), player, EPISODES)
    assert result["is_success"] == pytest.approx(task.chance, abs=MARGIN)
    assert result["episode_return"] == 2 * result["is_success"]


@pytest.mark.parametrize(
    "task", [PassiveTMaze(corridor_length=2), ActiveTMaze(corridor_length=2)], ids=["p", "a"]
)
def test_no_rule_without_memory_does_better_than_half(task: TMaze) -> None:
    """All 4,096 of them, with both goals."""
    situations = [(0, 0), (0, 1), (0, -1), (1, 0), (1, 1), (1, -1)]
    rules = np.array(list(itertools.product(range(4), repeat=len(situations))))
    number = {seen: n for n, seen in enumerate(situations)}
    success, returns = np.zeros(len(rules)), np.zeros(len(rules))
    for goal in (-1, 1):
        env = BatchedEnv(task, len(rules), seed=0)
        obs, _ = env.reset(options={"goal": goal})
        for _ in range(task.max_episode_length):
            seen = np.array([number[int(a), int(b)] for a, b in obs])
            obs, _, _, _, info = env.step(rules[np.arange(len(rules)), seen])
        success += info["is_success"] / 2
        returns += info["episode_return"] / 2
    assert success.max() == 0.5
    assert returns.max() == 0.5


# Choices, pictures and settings.


def test_the_goal_can_be_fixed_and_told() -> None:
    env = BatchedEnv(PassiveTMaze(), 40, seed=2)
    for goal in (1, -1):
        obs, info = env.reset(options={"goal": goal, "reveal": True})
        assert info["choices"]["goal"].tolist() == [goal] * 40
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
    task = ActiveTMaze(corridor_length=2)
    env = BatchedEnv(task, 1, seed=0)
    letters = {
        (204, 204, 204): ".",
        (25, 25, 25): "#",
        (228, 148, 109): "P",
        (0, 255, 0): "G",
        (134, 206, 235): "O",
    }

    def picture() -> list[str]:
        return in_letters(task.board(env.state)[0], letters)

    env.reset(options={"goal": -1})
    assert picture() == ["######", "####.#", "#OP..#", "####G#", "######"]
    assert task.moments(env.state) == [("", 5, (2, 2))]
    for action in (LEFT, RIGHT, RIGHT, RIGHT):
        env.step([action])
    assert picture() == ["######", "####.#", "#...P#", "####G#", "######"]
    assert task.moments(env.state) == [("", 1, (2, 4))]


def test_presets_are_the_published_lengths() -> None:
    passive = [PassiveTMaze(**preset) for preset in PassiveTMaze.presets.values()]
    active = [ActiveTMaze(**preset) for preset in ActiveTMaze.presets.values()]
    lengths = [50, 100, 250, 500, 750, 1000, 1250, 1500]
    assert [task.corridor_length for task in passive] == lengths
    assert [task.corridor_length for task in active] == [20, 50, 100, 250, 500]
    assert [task.max_episode_length for task in passive] == [n + 1 for n in lengths]
    assert active[0].max_episode_length == 23


def test_equal_settings_are_written_alike() -> None:
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
