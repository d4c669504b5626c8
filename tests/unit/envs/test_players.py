"""Scripted players reach the ceiling with memory, and the floor without it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from support.players import ApplePlayer
from twins.match import LOWER_ROOM, MOVES, ROOM_WALLS, TWO_ROOMS, UPPER_ROOM, Cell

from rlgates.envs import ENVS, ActiveMatch, BatchedEnv, KeyToDoor, PassiveMatch, make_env_spec
from rlgates.envs.engine.players import RandomPlayer, play
from rlgates.envs.games.key_to_door import KeyToDoorPlayer
from rlgates.envs.games.match import MatchMemoryPlayer, MatchReactivePlayer

EPISODES = 2000


def margin(chance: float) -> float:
    """Four standard errors of a success rate."""
    return 4 * math.sqrt(chance * (1 - chance) / EPISODES)


# Match

SETTINGS = {
    "default": {},
    "apples": {"distractor_steps": 20, "apple_reward": (1, 10)},
    "two colors": {"distractor_steps": 5, "num_colors": 2},
    "early end": {"distractor_steps": 0, "end_on_choice": True},
    "pads fixed": {"distractor_steps": 5, "shuffle_pads": "env", "crop": 7},
    "wide view": {"distractor_steps": 5, "crop": 11},
}


@pytest.mark.parametrize("kind", [PassiveMatch, ActiveMatch])
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_memory_reaches_the_ceiling_and_no_memory_stays_at_chance(kind, settings):
    spec = kind(**settings)
    env = BatchedEnv(spec, 500)
    chance = 1 / spec.num_colors

    ceiling = play(env, MatchMemoryPlayer(), EPISODES, seed=0)
    assert ceiling["episodes"] == EPISODES
    assert ceiling["is_success"] == 1.0
    assert ceiling["last_phase_reward"] == 10.0

    floor = play(env, MatchReactivePlayer(), EPISODES, seed=1)
    assert floor["is_success"] == pytest.approx(chance, abs=margin(chance))
    assert floor["last_phase_reward"] == pytest.approx(10 * floor["is_success"])

    # The leak check: the same walk with a colour that has nothing to do with the cue.
    control = play(env, MatchMemoryPlayer(guess=spec.num_colors), EPISODES, seed=2)
    assert control["is_success"] == pytest.approx(chance, abs=margin(chance))


@pytest.mark.parametrize("kind", [PassiveMatch, ActiveMatch])
@pytest.mark.parametrize(
    "player",
    [
        MatchReactivePlayer(),
        MatchMemoryPlayer(),
        MatchMemoryPlayer(guess=3),
        MatchMemoryPlayer(explore=False),
    ],
    ids=["reactive", "memory", "guess", "no exploring"],
)
def test_the_players_always_touch_a_pad(kind, player):
    spec = kind(distractor_steps=5, choice_reward=1, wrong_reward=1)
    assert play(BatchedEnv(spec, 100), player, 300)["last_phase_reward"] == 1.0


@pytest.mark.parametrize("shown", [1, 3, 15])
def test_the_cue_of_passive_match_is_visible_at_once(shown):
    spec = PassiveMatch(explore_steps=shown, distractor_steps=0)
    assert play(BatchedEnv(spec, 100), MatchMemoryPlayer(), 300)["is_success"] == 1.0


def fewest_moves(start: Cell) -> int:
    """The fewest moves that show all 26 walls, by trying all walks.

    Until it sees the target a player learns nothing but where it is, which it knows: so what
    can be seen is what a fixed walk sees.
    """

    def in_view(cell: Cell) -> frozenset[Cell]:
        near = (w for w in ROOM_WALLS if abs(w[0] - cell[0]) <= 2 and abs(w[1] - cell[1]) <= 2)
        return frozenset(near)

    walks, moves = {(start, in_view(start))}, 0
    while max(len(visible) for _, visible in walks) < len(ROOM_WALLS):
        steps = {
            ((cell[0] + down, cell[1] + right), visible)
            for cell, visible in walks
            for down, right in MOVES.values()
        }
        walks = {(cell, visible | in_view(cell)) for cell, visible in steps if cell in TWO_ROOMS}
        moves += 1
    return moves


@pytest.mark.parametrize("start", LOWER_ROOM)
def test_no_tour_of_active_match_is_shorter(start):
    fewest = fewest_moves(start)
    assert 6 <= fewest <= 8

    def successes(frames: int) -> np.ndarray:
        env = BatchedEnv(ActiveMatch(explore_steps=frames, distractor_steps=0), 400, seed=1)
        obs, _ = env.reset(options={"start_cell": start})
        player = MatchMemoryPlayer()
        player.reset(400, seed=1)
        episode_starts = np.ones(400, dtype=bool)
        while True:
            obs, _, episode_starts, _, info = env.step(player.act(obs, episode_starts))
            if episode_starts.all():
                return info["is_success"]

    # There is one image more than moves. With fewer, targets that stay unseen are guessed.
    assert successes(fewest + 1).all()
    assert 0.8 < successes(fewest).mean() < 1


def test_a_wider_view_finds_more_without_exploring():
    found_cues = [
        play(
            BatchedEnv(ActiveMatch(distractor_steps=0, crop=crop), 500),
            MatchMemoryPlayer(explore=False),
            EPISODES,
        )["is_success"]
        for crop in (5, 7, 11)
    ]
    assert found_cues == sorted(found_cues)
    assert found_cues[0] < 0.8 < found_cues[1]
    assert found_cues[2] == 1.0


# Key-To-Door


@pytest.mark.parametrize("crop", [5, 7, 11])
def test_the_key_is_fetched_and_the_door_opened(crop):
    spec = KeyToDoor(crop=crop)
    result = play(BatchedEnv(spec, 500), KeyToDoorPlayer(), EPISODES)
    assert result["is_success"] == 1.0
    assert result["last_phase_reward"] == 10.0


def test_no_way_to_the_key_is_shorter_where_it_is_longest():
    """From (5, 3) to the key at (1, 7) it is eight moves at least, and to the door two."""
    far = {"start_cell": (5, 3), "key_cell": (1, 7)}
    for explore_steps, expected in ((8, True), (7, False)):
        spec = KeyToDoor(explore_steps=explore_steps, distractor_steps=0, reward_steps=2)
        env = BatchedEnv(spec, 1, seed=0)
        obs, _ = env.reset(options=far)
        for _ in range(explore_steps + 2):
            obs, *_, info = env.step(KeyToDoorPlayer().act(obs, np.zeros(1, dtype=bool)))
        assert info["is_success"].tolist() == [expected]
    spec = KeyToDoor(explore_steps=8, distractor_steps=0, reward_steps=2)
    for start in LOWER_ROOM:
        for key in UPPER_ROOM:
            env = BatchedEnv(spec, 1, seed=0)
            obs, _ = env.reset(options={"start_cell": start, "key_cell": key})
            for _ in range(10):
                obs, *_, info = env.step(KeyToDoorPlayer().act(obs, np.zeros(1, dtype=bool)))
            assert info["is_success"].all(), (start, key)


def test_who_knows_nothing_of_the_key_gets_next_to_nothing():
    result = play(BatchedEnv(KeyToDoor(), 500), RandomPlayer(), EPISODES)
    assert 0 < result["last_phase_reward"] < 0.5


# Apples


def test_the_nearest_apple_is_taken_first():
    spec = PassiveMatch(explore_steps=1, num_apples=3, apple_reward=1)
    env = BatchedEnv(spec, 1, seed=0)
    obs, _ = env.reset(options={"apple_cells": [(2, 4), (4, 4), (3, 7)]})
    player = ApplePlayer()
    player.reset(1, seed=0)
    cells, rewards = [], []
    for _ in range(5):
        obs, reward, *_ = env.step(player.act(obs, np.zeros(1, dtype=bool)))
        cells.append(spec.render_info(env.state)[0].cell)
        rewards.append(float(reward[0]))
    assert cells == [(5, 5), (5, 4), (4, 4), (3, 4), (2, 4)]
    assert rewards == [0.0, 0.0, 1.0, 0.0, 1.0]


@pytest.mark.parametrize("kind", [PassiveMatch, ActiveMatch])
def test_apples_on_the_way_do_not_disturb_memory(kind):
    env = BatchedEnv(kind(apple_reward=1), 500)
    with_apples = play(env, ApplePlayer(MatchMemoryPlayer()), 1000)
    assert with_apples["last_phase_reward"] == 10.0
    assert with_apples["episode_return"] > 30
    assert play(env, MatchMemoryPlayer(), 1000)["episode_return"] < 25


# All of them


# Games in which chance decides too, or noise: how often the player succeeds at least.
NOT_ALWAYS = {
    "rlgates/HigherLower-v0": 0.0,
    "rlgates/MultiarmedBandit-v0": 0.6,
    "rlgates/MineSweeper-v0": 0.65,
    "rlgates/NoisyStatelessCartPole-v0": 0.7,
    "rlgates/NoisyStatelessPendulum-v0": 0.75,
}


@pytest.mark.parametrize("env_id", ENVS)
def test_the_ceiling_is_above_the_floor(env_id):
    spec = make_env_spec(env_id)
    env = BatchedEnv(spec, 200)
    ceiling, floor = (
        play(env, player, 400) for player in (spec.memory_player(), spec.reactive_player())
    )
    assert ceiling["is_success"] >= NOT_ALWAYS.get(env_id, 1.0)
    assert floor["is_success"] < 0.7
    assert floor["episode_return"] < ceiling["episode_return"]


def test_play_counts_equal_episodes_per_environment_and_is_repeatable():
    env = BatchedEnv(PassiveMatch(end_on_choice=True, distractor_steps=3), 7)
    first = play(env, MatchMemoryPlayer(), 20, seed=4)
    assert first["episodes"] == 21
    assert first == play(env, MatchMemoryPlayer(), 20, seed=4)
    assert 18 + 4 <= first["episode_length"] <= 18 + 9


def test_a_random_player_takes_all_actions_evenly():
    player = RandomPlayer(5)
    player.reset(10_000, seed=0)
    actions = player.act(np.zeros((10_000, 2)), np.zeros(10_000, dtype=bool))
    counts = np.bincount(actions, minlength=5)
    assert len(counts) == 5
    assert abs(counts - 2000).max() < 4.5 * math.sqrt(10_000 * 0.16)


@pytest.mark.parametrize("player", [MatchMemoryPlayer(), MatchReactivePlayer(), KeyToDoorPlayer()])
def test_players_refuse_views_they_cannot_read(player):
    with pytest.raises(ValueError, match="5 x 5 or more cells, got 7 x 11"):
        play(BatchedEnv(PassiveMatch(crop=None), 2), player, 1)


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="guess must be at least 1, got 0"):
        MatchMemoryPlayer(guess=0)
    with pytest.raises(TypeError, match="explore must be True or False, got 1"):
        MatchMemoryPlayer(explore=1)
    with pytest.raises(ValueError, match="num_actions must be at least 1, got 0"):
        RandomPlayer(0)
    with pytest.raises(ValueError, match="episodes must be at least 1, got 0"):
        play(BatchedEnv(PassiveMatch(), 2), MatchMemoryPlayer(), 0)
