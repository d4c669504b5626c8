"""Memory Chain against its slow twin, against its rules by hand, and with scripted players."""

from __future__ import annotations

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
from twins.memory_chain import SlowChain

from rlgates.envs.engine.arrays import Array
from rlgates.envs.engine.batched import BatchedEnv
from rlgates.envs.engine.players import play
from rlgates.envs.games.memory_chain import ChainReactivePlayer, MemoryChain

SPECS = {
    "default": MemoryChain(),
    "shortest": MemoryChain(memory_length=1, num_bits=3),
    "one bit": MemoryChain(memory_length=2),
    "odd": MemoryChain(memory_length=7, num_bits=5),
    "long": MemoryChain(memory_length=100),
    "wide": MemoryChain(memory_length=2, num_bits=40),
    "no time": MemoryChain(memory_length=3, num_bits=4, show_time=False),
}
every_spec = pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)


@every_spec
def test_random_episodes_are_those_of_the_slow_twin(spec: MemoryChain) -> None:
    def slow(reported: dict[str, Any]) -> SlowChain:
        return SlowChain(**reported, memory_length=spec.memory_length, show_time=spec.show_time)

    ends = compare_with_twins(spec, slow, uniform(2))
    assert set(ends["is_success"].tolist()) == {False, True}


def test_timing_by_hand() -> None:
    spec = MemoryChain(memory_length=4, num_bits=3)
    context, actions = [1, 0, 1], [0, 0, 0, 0, 1]
    observations, rewards, info = by_hand(spec, {"context": context, "query": 2}, actions)
    assert observations == [
        [1, 0, 1, -1, 1],
        [1, 0, 1, -1, 1],
        [0.75, 0, 0, 0, 0],
        [0.5, 0, 0, 0, 0],
        [0.25, 2, 0, 0, 0],
        [0, 0, 0, 0, 0],
    ]
    assert (rewards, info["is_success"].item()) == ([0, 0, 0, 0, 1], True)
    # Only the last action counts, and only the bit asked for.
    _, rewards, info = by_hand(spec, {"context": context, "query": 1}, actions)
    assert (rewards, info["is_success"].item()) == ([0, 0, 0, 0, -1], False)


def test_at_length_one_all_is_in_sight_at_the_answer() -> None:
    spec = MemoryChain(memory_length=1, num_bits=2)
    observations, rewards, _ = by_hand(spec, {"context": [0, 1], "query": 1}, [0, 1])
    assert observations == [[1, 1, -1, 1], [1, 1, -1, 1], [0, 0, 0, 0]]
    assert rewards == [0, 1]
    assert play(BatchedEnv(spec, 100), ChainReactivePlayer(), 300)["is_success"] == 1.0


def test_bits_and_queries_are_uniform_and_independent() -> None:
    env = BatchedEnv(MemoryChain(num_bits=3), 6000, seed=4)
    _, info = env.reset(options={"reveal": True})
    context, query = info["parameters"]["context"], info["parameters"]["query"]
    counts = np.bincount(context @ [4, 2, 1] + 8 * query, minlength=24)
    assert len(counts) == 24
    assert abs(counts - 250).max() < 5 * math.sqrt(250)


# Memory is enough, and nothing else is.

NO_MEMORY = {name: SPECS[name] for name in ("default", "one bit", "odd", "wide", "no time")}


@pytest.mark.parametrize("spec", NO_MEMORY.values(), ids=NO_MEMORY)
def test_memory_decides(spec: MemoryChain) -> None:
    def is_context(observations: Array, episode_starts: Array) -> Array:
        return np.arange(observations.shape[1]) >= 2

    check_that_memory_decides(spec, is_context, lambda success: 2 * success - 1)


# Choices, images and settings.


def test_parameters_can_be_overridden_and_reported() -> None:
    env = BatchedEnv(MemoryChain(num_bits=3), 8, seed=2)
    obs, info = env.reset(options={"context": (0, 1, 1), "query": 2, "reveal": True})
    assert info["parameters"]["context"].tolist() == [[0, 1, 1]] * 8
    assert info["parameters"]["query"].tolist() == [2] * 8
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
    spec = MemoryChain(memory_length=3, num_bits=2)
    env = BatchedEnv(spec, 1, seed=0)
    letters = {
        (25, 25, 25): " ",
        (90, 50, 20): "o",
        (25, 60, 90): "i",
        (90, 90, 90): "q",
        (240, 140, 50): "O",
        (70, 170, 250): "I",
        (255, 255, 255): "Q",
    }

    def frame() -> list[str]:
        return in_letters(spec.render_board(env.state)[0], letters)

    env.reset(options={"context": [1, 0], "query": 1})
    frames = [frame()]
    for _ in range(3):
        env.step([0])
        frames.append(frame())
    assert frames == [["IO", " q"], ["IO", " q"], ["io", " q"], ["io", " Q"]]
    assert spec.render_info(env.state) == [("", 1, None)]


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
