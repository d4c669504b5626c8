"""Memory is enough for the task, and nothing else is."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rlgates.envs import BatchedEnv, PassiveMatch
from rlgates.envs.players import MemoryPlayer, ReactivePlayer, play

EPISODES = 2000


def margin(chance: float) -> float:
    """Four standard errors of a success rate."""
    return 4 * math.sqrt(chance * (1 - chance) / EPISODES)


TASKS = {
    "default": PassiveMatch(),
    "apples": PassiveMatch(explore_steps=2, distractor_steps=20, apple_reward=(1, 10)),
    "two colors": PassiveMatch(explore_steps=1, distractor_steps=5, num_colors=2),
    "early end": PassiveMatch(explore_steps=1, distractor_steps=0, end_on_choice=True),
    "pads fixed": PassiveMatch(explore_steps=1, distractor_steps=5, shuffle_pads="env", crop=7),
}


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_memory_reaches_the_ceiling_and_no_memory_stays_at_chance(task):
    env = BatchedEnv(task, 500)
    chance = 1 / task.num_colors

    ceiling = play(env, MemoryPlayer(), EPISODES, seed=0)
    assert ceiling["episodes"] == EPISODES
    assert ceiling["is_success"] == 1.0
    assert ceiling["last_phase_reward"] == 10.0

    floor = play(env, ReactivePlayer(), EPISODES, seed=1)
    assert floor["is_success"] == pytest.approx(chance, abs=margin(chance))
    assert floor["last_phase_reward"] == pytest.approx(10 * floor["is_success"])

    # The leak check: the same walk with a colour that has nothing to do with the cue.
    control = play(env, MemoryPlayer(guess=task.num_colors), EPISODES, seed=2)
    assert control["is_success"] == pytest.approx(chance, abs=margin(chance))


@pytest.mark.parametrize("player", [ReactivePlayer(), MemoryPlayer(), MemoryPlayer(guess=3)])
def test_the_players_always_touch_a_pad(player):
    task = PassiveMatch(distractor_steps=5, choice_reward=1, wrong_reward=1)
    assert play(BatchedEnv(task, 100), player, 300)["last_phase_reward"] == 1.0


def test_play_counts_the_same_number_from_each_row_and_is_repeatable():
    env = BatchedEnv(PassiveMatch(end_on_choice=True, distractor_steps=3), 7)
    first = play(env, MemoryPlayer(), 20, seed=4)
    assert first["episodes"] == 21
    assert first == play(env, MemoryPlayer(), 20, seed=4)
    assert 18 + 4 <= first["episode_length"] <= 18 + 9


def test_players_refuse_views_they_cannot_read():
    env = BatchedEnv(PassiveMatch(crop=None), 2)
    with pytest.raises(ValueError, match="5 x 5 or more cells, got 7 x 11"):
        play(env, MemoryPlayer(), 1)
    with pytest.raises(ValueError, match="guess must be at least 1, got 0"):
        MemoryPlayer(guess=0)
    with pytest.raises(ValueError, match="episodes must be at least 1, got 0"):
        play(env, MemoryPlayer(), 0)


# Chance


def run_randomly(task: PassiveMatch, batch: int, seed: int) -> dict[str, np.ndarray]:
    env = BatchedEnv(task, batch, seed)
    env.reset()
    rng = np.random.default_rng(seed)
    while True:
        *_, info = env.step(rng.integers(4, size=batch))
        if info["finished"].all():
            return info


def test_random_moves_touch_a_pad_with_the_known_probability():
    task = PassiveMatch(explore_steps=1, distractor_steps=0, choice_reward=1, wrong_reward=1)
    # Exactly: the weight of the walks that have not touched a pad yet, cell by cell.
    pads = {(1, 2), (1, 5), (1, 8)}
    free = {(r, c) for r in (1, 2, 3) for c in range(1, 10)}
    free |= {(r, c) for r in (4, 5) for c in (4, 5, 6)}
    weight = {(5, 5): 1.0}
    for _ in range(15):
        new: dict[tuple[int, int], float] = {}
        for cell, mass in weight.items():
            for down, right in ((-1, 0), (1, 0), (0, -1), (0, 1)):
                to = (cell[0] + down, cell[1] + right)
                to = to if to in free else cell
                if to not in pads:
                    new[to] = new.get(to, 0.0) + mass / 4
        weight = new
    exact = 1 - sum(weight.values())
    assert exact == pytest.approx(0.154, abs=5e-4)
    touched = run_randomly(task, 4000, seed=0)["last_phase_reward"].mean()
    assert touched == pytest.approx(exact, abs=4 * math.sqrt(exact * (1 - exact) / 4000))


def test_random_moves_collect_about_eight_apples():
    task = PassiveMatch(explore_steps=1, reward_steps=1, apple_reward=1)
    apples = run_randomly(task, 1500, seed=1)["episode_return"]
    assert apples.mean() == pytest.approx(8.0, abs=0.05 + 4 * apples.std() / math.sqrt(1500))
