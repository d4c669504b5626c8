"""Memory Chain against its slow twin, against its rules by hand, and with scripted players."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from twins.kin import check_contract, compare_with_torch, compare_with_twins, in_letters, uniform
from twins.memory_chain import SlowChain

from rlgates.envs.arrays import Array
from rlgates.envs.engine import BatchedEnv
from rlgates.envs.kin_players import ChainMemoryPlayer, ChainReactivePlayer, ShuffledCue
from rlgates.envs.memory_chain import MemoryChain
from rlgates.envs.players import play

TASKS = {
    "default": MemoryChain(),
    "shortest": MemoryChain(memory_length=1, num_bits=3),
    "one bit": MemoryChain(memory_length=2),
    "odd": MemoryChain(memory_length=7, num_bits=5),
    "long": MemoryChain(memory_length=100),
    "wide": MemoryChain(memory_length=2, num_bits=40),
    "no time": MemoryChain(memory_length=3, num_bits=4, show_time=False),
}
every_task = pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)


@every_task
def test_random_episodes_are_those_of_the_slow_twin(task: MemoryChain) -> None:
    def slow(told: dict[str, Any]) -> SlowChain:
        return SlowChain(**told, memory_length=task.memory_length, show_time=task.show_time)

    ends = compare_with_twins(task, slow, uniform(2))
    assert set(ends["is_success"].tolist()) == {False, True}


@pytest.mark.parametrize("name", ["odd", "long"])
def test_tensors_give_the_same_bits(name: str) -> None:
    compare_with_torch(TASKS[name])


@every_task
def test_the_contract_is_kept(task: MemoryChain) -> None:
    check_contract(task)


def run(
    task: MemoryChain, choices: dict[str, Any], actions: list[int]
) -> tuple[list[list[float]], list[float], bool]:
    """Observations, rewards and success of one episode."""
    env = BatchedEnv(task, 1, seed=0)
    obs, _ = env.reset(options=choices)
    seen, paid, info = [obs[0].tolist()], [], {}
    for action in actions:
        obs, reward, terminated, _, info = env.step([action])
        seen.append(obs[0].tolist())
        paid.append(float(reward[0]))
    assert terminated.all()
    seen[-1] = info["final_obs"][0].tolist()
    return seen, paid, bool(info["is_success"][0])


def test_timing_by_hand() -> None:
    task = MemoryChain(memory_length=4, num_bits=3)
    seen, paid, success = run(task, {"context": [1, 0, 1], "query": 2}, [0, 0, 0, 0, 1])
    assert seen == [
        [1, 0, 1, -1, 1],
        [1, 0, 1, -1, 1],
        [0.75, 0, 0, 0, 0],
        [0.5, 0, 0, 0, 0],
        [0.25, 2, 0, 0, 0],
        [0, 0, 0, 0, 0],
    ]
    assert (paid, success) == ([0, 0, 0, 0, 1], True)
    # Only the last action counts, and only the bit asked for.
    *_, paid, success = run(task, {"context": [1, 0, 1], "query": 1}, [0, 0, 0, 0, 1])
    assert (paid, success) == ([0, 0, 0, 0, -1], False)


def test_at_length_one_all_is_in_sight_at_the_answer() -> None:
    task = MemoryChain(memory_length=1, num_bits=2)
    seen, paid, _ = run(task, {"context": [0, 1], "query": 1}, [0, 1])
    assert seen == [[1, 1, -1, 1], [1, 1, -1, 1], [0, 0, 0, 0]]
    assert paid == [0, 1]
    assert play(BatchedEnv(task, 100), ChainReactivePlayer(), 300)["is_success"] == 1.0


def test_bits_and_queries_are_uniform_and_independent() -> None:
    env = BatchedEnv(MemoryChain(num_bits=3), 6000, seed=4)
    _, info = env.reset(options={"reveal": True})
    context, query = info["choices"]["context"], info["choices"]["query"]
    counts = np.bincount(context @ [4, 2, 1] + 8 * query, minlength=24)
    assert len(counts) == 24
    assert abs(counts - 250).max() < 5 * math.sqrt(250)


# Memory is enough, and nothing else is.

NO_MEMORY = {name: TASKS[name] for name in ("default", "one bit", "odd", "wide", "no time")}
players_task = pytest.mark.parametrize("task", NO_MEMORY.values(), ids=NO_MEMORY)
EPISODES = 2000
MARGIN = 4 * math.sqrt(0.25 / EPISODES)


@players_task
def test_memory_reaches_the_ceiling(task: MemoryChain) -> None:
    result = play(BatchedEnv(task, 500), ChainMemoryPlayer(), EPISODES)
    assert (result["is_success"], result["episode_return"]) == (1.0, 1.0)


@players_task
def test_without_memory_the_answer_is_a_guess(task: MemoryChain) -> None:
    result = play(BatchedEnv(task, 500), ChainReactivePlayer(), EPISODES)
    assert result["is_success"] == pytest.approx(task.chance, abs=MARGIN)
    assert result["episode_return"] == pytest.approx(2 * result["is_success"] - 1)


@players_task
def test_with_the_bits_of_another_row_memory_is_worth_nothing(task: MemoryChain) -> None:
    def is_context(observations: Array, starts: Array) -> Array:
        return np.arange(observations.shape[1]) >= 2

    player = ShuffledCue(ChainMemoryPlayer(), is_context)
    result = play(BatchedEnv(task, 500), player, EPISODES)
    assert result["is_success"] == pytest.approx(task.chance, abs=MARGIN)


# Choices, pictures and settings.


def test_choices_can_be_fixed_and_told() -> None:
    env = BatchedEnv(MemoryChain(num_bits=3), 8, seed=2)
    obs, info = env.reset(options={"context": (0, 1, 1), "query": 2, "reveal": True})
    assert info["choices"]["context"].tolist() == [[0, 1, 1]] * 8
    assert info["choices"]["query"].tolist() == [2] * 8
    assert obs[:, 2:].tolist() == [[-1, 1, 1]] * 8
    with pytest.raises(ValueError, match="context must have 3 items, got 2"):
        env.reset(options={"context": [0, 1]})
    with pytest.raises(ValueError, match="context must be at most 1, got 2"):
        env.reset(options={"context": [0, 1, 2]})
    with pytest.raises(ValueError, match="query must be at most 2, got 3"):
        env.reset(options={"query": 3})
    with pytest.raises(ValueError, match=r"'quary'.*Did you mean 'query'"):
        env.reset(options={"quary": 0})


def test_the_board_shows_bits_and_query_brightly_while_the_agent_sees_them() -> None:
    task = MemoryChain(memory_length=3, num_bits=2)
    env = BatchedEnv(task, 1, seed=0)
    letters = {
        (25, 25, 25): " ",
        (90, 50, 20): "o",
        (25, 60, 90): "i",
        (90, 90, 90): "q",
        (240, 140, 50): "O",
        (70, 170, 250): "I",
        (255, 255, 255): "Q",
    }

    def picture() -> list[str]:
        return in_letters(task.board(env.state)[0], letters)

    env.reset(options={"context": [1, 0], "query": 1})
    pictures = [picture()]
    for _ in range(3):
        env.step([0])
        pictures.append(picture())
    assert pictures == [["IO", " q"], ["IO", " q"], ["io", " q"], ["io", " Q"]]
    assert task.moments(env.state) == [("", 1, None)]


def test_presets_are_the_published_sweeps() -> None:
    tasks = {name: MemoryChain(**preset) for name, preset in MemoryChain.presets.items()}
    lengths = [*range(1, 11), 12, 14, 17, 20, 25, 30, 40, 50, 60, 70, 80, 90, 100]
    sizes = [*range(1, 11), 12, 14, 17, 20, 25, 30, 40]
    expected = {f"memory_len_{n}": MemoryChain(memory_length=n, num_bits=1) for n in lengths}
    expected |= {f"memory_size_{n}": MemoryChain(memory_length=2, num_bits=n) for n in sizes}
    assert tasks == expected
    assert (lengths.index(100), sizes.index(40)) == (22, 16)


@pytest.mark.parametrize(
    ("settings", "error", "text"),
    [
        ({"memory_length": 0}, ValueError, "memory_length must be at least 1, got 0"),
        ({"memory_length": 10**7}, ValueError, "memory_length must be at most 1000000"),
        ({"memory_length": 2.5}, TypeError, r"memory_length must be an integer, got 2\.5"),
        ({"num_bits": 0}, ValueError, "num_bits must be at least 1, got 0"),
        ({"num_bits": 10**5}, ValueError, "num_bits must be at most 10000, got 100000"),
        ({"show_time": 1}, TypeError, "show_time must be True or False, got 1"),
    ],
)
def test_unusable_settings_are_refused(
    settings: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        MemoryChain(**settings)
