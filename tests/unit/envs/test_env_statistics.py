"""Random and greedy play reach the exact expected values of the published games.

The exact values follow from the rules alone: the weight of a random walk on the boards of the
slow twins, cell by cell.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import pytest
from support.players import ApplePlayer
from twins.match import (
    CANDIDATES,
    CHAMBER,
    DOORWAY,
    HALL,
    LOWER_ROOM,
    MOVES,
    NORTH,
    ORCHARD,
    PADS,
    ROOM_WALLS,
    TWO_ROOMS,
    UPPER_ROOM,
    Cell,
)

from rlgates.envs import ActiveMatch, BatchedEnv, KeyToDoor, PassiveMatch
from rlgates.envs.engine.players import RandomPlayer
from rlgates.envs.engine.spec import Player
from rlgates.envs.games.match import MatchMemoryPlayer

EPISODES = pytest.mark.parametrize(
    "episodes", [5_000, pytest.param(100_000, marks=pytest.mark.slow)]
)


def random_steps(floor: Iterable[Cell]) -> tuple[dict[Cell, int], np.ndarray]:
    """Numbers of the cells, and the probabilities (cells, cells) of a uniformly random step."""
    number = {cell: i for i, cell in enumerate(sorted(floor))}
    chances = np.zeros((len(number), len(number)))
    for (row, col), i in number.items():
        for down, right in MOVES.values():
            chances[i, number.get((row + down, col + right), i)] += 1 / 4
    return number, chances


def reach(
    floor: Iterable[Cell], start_cells: list[Cell], goals: Iterable[Cell], steps: int
) -> float:
    """The probability that a random walk from a uniform one of `start_cells` reaches a goal."""
    number, chances = random_steps(floor)
    others = np.ones(len(number))
    others[[number[cell] for cell in goals]] = 0
    weight = np.zeros(len(number))
    weight[[number[cell] for cell in start_cells]] = 1 / len(start_cells)
    weight *= others
    for _ in range(steps):
        weight = (weight @ chances) * others
    return 1 - weight.sum()


def in_sight(target: Cell) -> list[Cell]:
    """The cells of the two rooms from which it is in the 5 x 5 view."""
    return [c for c in TWO_ROOMS if max(abs(c[0] - target[0]), abs(c[1] - target[1])) <= 2]


def expected_apples(steps: int = 90, respawn: int = 20, share: float = 10 / 22) -> float:
    """How many apples a random walk picks up on average.

    Apples do not change the walk, so each cell counts by itself: the weight of (where the
    player is, how many images the apple has been away; 0: it is there).
    """
    number, chances = random_steps(ORCHARD)
    total = 0.0
    for cell in CANDIDATES:
        here = number[cell]
        weight = np.zeros((len(number), respawn + 2))
        weight[number[5, 5], 0] = 1.0
        for _ in range(steps):
            moved = chances.T @ weight
            picked = moved[here, 0]
            total += share * picked
            # After `respawn` images away it is shown in the next one, whoever stands there.
            weight = np.zeros_like(moved)
            weight[:, 0] = moved[:, 0] + moved[:, respawn + 1]
            weight[:, 2:] = moved[:, 1:-1]
            weight[here, 0] -= picked
            weight[here, 1] = picked
    return total


def final(spec, player: Player, episodes: int, name: str, seed: int = 0) -> np.ndarray:
    """`info[name]` at the end of each of this many episodes."""
    env = BatchedEnv(spec, min(episodes, 10_000))
    obs, _ = env.reset(seed)
    player.reset(env.num_envs, seed)
    episode_starts = np.ones(env.num_envs, dtype=bool)
    values: list[np.ndarray] = []
    while len(values) * env.num_envs < episodes:
        obs, _, episode_starts, _, info = env.step(player.act(obs, episode_starts))
        if episode_starts.all():
            values.append(info[name])
    return np.concatenate(values)


def assert_mean(values: np.ndarray, exact: float) -> None:
    """Within four standard errors."""
    error = float(values.std()) / math.sqrt(len(values))
    assert error > 0
    assert values.mean() == pytest.approx(exact, abs=4 * error)


@pytest.mark.parametrize("kind", [PassiveMatch, ActiveMatch])
@EPISODES
def test_a_random_walk_touches_a_pad(kind, episodes):
    exact = reach(HALL, [(5, 5)], PADS[3], steps=15)
    assert exact == pytest.approx(0.154, abs=5e-4)
    settings = kind(explore_steps=1, distractor_steps=0, choice_reward=1, wrong_reward=1)
    assert_mean(final(settings, RandomPlayer(), episodes, "last_phase_reward"), exact)
    # One pad in three is right: about 0.5.
    right = kind(explore_steps=1, distractor_steps=0)
    assert_mean(final(right, RandomPlayer(), episodes, "last_phase_reward"), 10 * exact / 3)


@EPISODES
def test_a_random_walk_sees_the_target_of_active_match(episodes):
    at_once, later = (
        np.mean([reach(TWO_ROOMS, LOWER_ROOM, in_sight(wall), steps) for wall in ROOM_WALLS])
        for steps in (0, 14)
    )
    assert at_once == pytest.approx(0.331, abs=5e-4)
    assert later == pytest.approx(0.619, abs=5e-4)
    from_below = sum(bool({*in_sight(wall)} & {*LOWER_ROOM}) for wall in ROOM_WALLS)
    assert from_below / 26 == pytest.approx(0.654, abs=5e-4)

    env = BatchedEnv(ActiveMatch(), episodes)
    obs, _ = env.reset(seed=1)
    rng = np.random.default_rng(1)
    visible = first = (obs == 255).any(axis=(1, 2, 3))
    for _ in range(14):
        obs, *_ = env.step(rng.integers(4, size=episodes))
        visible = visible | (obs == 255).any(axis=(1, 2, 3))
    assert_mean(first, at_once)
    assert_mean(visible, later)


@EPISODES
def test_memory_without_exploration_gets_three_quarters_of_active_match(episodes):
    visible = np.mean([reach(TWO_ROOMS, LOWER_ROOM, in_sight(wall), 14) for wall in ROOM_WALLS])
    exact = 10 * visible + 10 / 3 * (1 - visible)
    assert exact == pytest.approx(7.46, abs=0.005)
    spec, player = ActiveMatch(distractor_steps=0), MatchMemoryPlayer(explore=False)
    assert_mean(final(spec, player, episodes, "last_phase_reward", seed=2), exact)


@EPISODES
def test_a_random_walk_finds_the_key_and_the_door(episodes):
    key = np.mean([reach(TWO_ROOMS, LOWER_ROOM, [cell], steps=15) for cell in UPPER_ROOM])
    assert key == pytest.approx(0.103, abs=5e-4)
    door = reach(CHAMBER | {DOORWAY}, [(3, 5)], [DOORWAY], steps=15)
    assert 10 * key * door == pytest.approx(0.28, abs=0.005)

    # Who has the key is let through the door.
    env = BatchedEnv(KeyToDoor(distractor_steps=0, reward_steps=2), episodes)
    env.reset(seed=3)
    rng = np.random.default_rng(3)
    for _ in range(15):
        env.step(rng.integers(4, size=episodes))
    for _ in range(2):
        *_, info = env.step(np.full(episodes, NORTH))
    assert_mean(info["is_success"], key)

    both = final(KeyToDoor(distractor_steps=0), RandomPlayer(), episodes, "last_phase_reward")
    assert_mean(both, 10 * key * door)


@EPISODES
def test_a_random_walk_collects_eight_apples(episodes):
    exact = expected_apples()
    assert exact == pytest.approx(8.0, abs=0.05)
    spec = PassiveMatch(explore_steps=1, reward_steps=1, apple_reward=1)
    assert_mean(final(spec, RandomPlayer(), episodes, "episode_return", seed=4), exact)


@pytest.mark.parametrize("respawn", [1, 2, 7])
def test_apples_that_come_back_soon(respawn):
    spec = PassiveMatch(
        explore_steps=1, reward_steps=1, apple_reward=1, apple_respawn=respawn, num_apples=22
    )
    exact = expected_apples(respawn=respawn, share=1)
    assert_mean(final(spec, RandomPlayer(), 5_000, "episode_return", seed=5), exact)


@pytest.mark.parametrize("episodes", [500, pytest.param(10_000, marks=pytest.mark.slow)])
def test_a_greedy_player_who_sees_the_whole_board_collects_32(episodes):
    spec = PassiveMatch(explore_steps=1, reward_steps=1, apple_reward=1, crop=None)
    apples = final(spec, ApplePlayer(), episodes, "episode_return", seed=6)
    assert apples.mean() == pytest.approx(32, abs=0.5)
    assert 20 <= apples.min() <= apples.max() <= 42  # printed: 24 to 38
