"""MiniGrid Memory in batches: every step is that of MiniGrid, and memory is what it takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.game_parity import differences

from rlgates.envs import BatchedEnv, MiniGridMemory, make_env_spec
from rlgates.envs.engine.players import play

NAME = "rlgates/MiniGridMemory-v0"
FORWARD = 2


@pytest.mark.parametrize("view_size", [3, 5, 7])
@pytest.mark.parametrize("preset", MiniGridMemory.presets)
def test_every_step_is_that_of_minigrid(preset: str, view_size: int) -> None:
    envs = pytest.importorskip("minigrid.envs")
    # Every other pair has all actions.
    all_actions = bool((list(MiniGridMemory.presets).index(preset) + view_size // 2) % 2)
    settings = MiniGridMemory.presets[preset]
    game = envs.MemoryEnv(agent_view_size=view_size, **settings)
    spec = make_env_spec(
        NAME, preset=preset, view_size=view_size, all_actions=all_actions, observation="symbolic"
    )
    assert spec.max_episode_length == game.max_steps
    rng = np.random.default_rng(0)
    ends, seen = set(), differences("MiniGridMemory", preset)
    for episode in range(14):
        expected, _ = game.reset(seed=episode)
        env = BatchedEnv(spec, 1, seed=0)
        observation, _ = env.reset(options=_draws(game))
        # Random players seldom get far: in most episodes one move in four is random.
        player = spec.reactive_player() if episode % 2 else spec.memory_player()
        player.reset(1, episode)
        starts, ended = np.ones(1, dtype=bool), False
        seen.add(observation[0], 0, False, (expected["image"], 0, False))
        while not ended:
            np.testing.assert_array_equal(observation[0], expected["image"])
            chosen = player.act(observation, starts)
            if episode == 0:
                chosen = np.zeros(1, dtype=np.int64)  # turns until the limit
            elif episode < 4 or (episode % 4 == 0 and rng.random() < 0.25):
                chosen = rng.integers(spec.action_space.n, size=1)
            starts = np.zeros(1, dtype=bool)
            expected, reward, terminated, truncated, _ = game.step(int(chosen[0]))
            observation, our_reward, ended, _, info = env.step(chosen)
            assert our_reward[0] == np.float32(reward)
            assert ended[0] == (terminated or truncated)
            shown = info["final_obs"] if ended[0] else observation
            original = expected["image"], np.float32(reward), terminated or truncated
            seen.add(shown[0], our_reward, ended, original)
        np.testing.assert_array_equal(info["final_obs"][0], expected["image"])
        assert info["is_success"][0] == (reward > 0)
        ends.add((terminated, reward > 0))
    assert ends == {(True, True), (True, False), (False, False)}  # both ends, and the limit


def _draws(game: Any) -> dict[str, int]:
    """What an episode of MiniGrid drew."""
    middle, names = game.height // 2, ("key", "ball")
    fork = int(game.success_pos[0])
    at = {"object": (1, middle - 1), "top": (fork, middle - 2)}
    things = {name: names.index(game.grid.get(*cell).type) for name, cell in at.items()}
    return {**things, "hallway_end": fork - 1, "start": int(game.agent_pos[0])}


@pytest.mark.parametrize("observation", ["objects", "symbolic"])
@pytest.mark.parametrize("preset", MiniGridMemory.presets)
def test_memory_is_sufficient_and_necessary(preset: str, observation: str) -> None:
    env = BatchedEnv(make_env_spec(NAME, preset=preset, observation=observation), 50)
    assert play(env, env.spec.memory_player(), 200)["is_success"] == 1
    assert 0.4 < play(env, env.spec.reactive_player(), 400)["is_success"] < 0.6


@pytest.mark.parametrize(("size", "view_size"), [(7, 5), (9, 7), (13, 5), (13, 7), (33, 11)])
def test_the_player_with_memory_succeeds_with_any_view(size: int, view_size: int) -> None:
    for random_length in (False, True):
        settings = {"size": size, "view_size": view_size, "random_length": random_length}
        env = BatchedEnv(make_env_spec(NAME, **settings), 50)
        assert play(env, env.spec.memory_player(), 100)["is_success"] == 1


def test_all_draws_are_fair() -> None:
    env = BatchedEnv(make_env_spec(NAME, preset="S13Random"), 20_000)
    _, info = env.reset(seed=0, options={"reveal": True})
    drawn = info["parameters"]
    for name in ("object", "top"):
        assert np.mean(drawn[name]) == pytest.approx(0.5, abs=0.015)
    assert np.corrcoef(drawn["object"], drawn["top"])[0, 1] == pytest.approx(0, abs=0.03)
    ends, counts = np.unique(drawn["hallway_end"], return_counts=True)
    assert ends.tolist() == [4, 5, 6, 7, 8, 9, 10]
    assert counts / 20_000 == pytest.approx(1 / 7, abs=0.01)
    for end in ends:
        starts, counts = np.unique(drawn["start"][drawn["hallway_end"] == end], return_counts=True)
        assert starts.tolist() == list(range(1, end + 1))
        assert counts / counts.sum() == pytest.approx(1 / end, abs=0.04)


def test_cells_one_hot_are_those_of_the_codes() -> None:
    views = {}
    for observation in ("objects", "symbolic"):
        env = BatchedEnv(make_env_spec(NAME, preset="S9", observation=observation), 32)
        views[observation] = [env.reset(seed=0)[0]]
        for actions in np.random.default_rng(0).integers(3, size=(50, 32)):
            views[observation].append(env.step(actions)[0])
    codes = np.stack(views["symbolic"])[..., 0]
    np.testing.assert_array_equal(
        np.stack(views["objects"]).argmax(-1), np.searchsorted([0, 1, 2, 5, 6], codes)
    )
    assert set(np.unique(codes)) == {0, 1, 2, 5, 6}


def test_the_limit_ends_an_episode_and_scales_the_reward() -> None:
    options = {"object": 1, "top": 1, "start": 4}
    env = BatchedEnv(MiniGridMemory(max_steps=3), 1)
    env.reset(options=options)
    for last in (False, False, True):
        _, reward, terminated, _, info = env.step(np.array([0]))
        assert (terminated[0], reward[0]) == (last, 0)
    assert not info["is_success"][0]
    env.reset(options=options)
    for action in (FORWARD, 0, FORWARD):  # to the fork, and up to the ball
        _, reward, terminated, _, info = env.step(np.array([action]))
    assert terminated[0]
    assert info["is_success"][0]
    assert reward[0] == pytest.approx(0.1)


def test_a_start_beyond_the_hallway_is_its_end() -> None:
    env = BatchedEnv(make_env_spec(NAME, preset="S13Random"), 1)
    env.reset(options={"hallway_end": 5, "start": 9})
    board = env.spec.render_board(env.state)[0]
    assert np.argwhere((board == (228, 148, 109)).all(axis=-1)).tolist() == [[6, 5]]


def test_the_board_shows_the_map_and_the_player() -> None:
    env = BatchedEnv(MiniGridMemory(size=7), 1)
    env.reset(options={"object": 0, "top": 1, "start": 2})
    board = env.spec.render_board(env.state)[0]
    assert board.shape == (7, 7, 3)
    key, ball, player = (159, 81, 44), (140, 178, 0), (228, 148, 109)
    ahead = (240, 220, 200)
    places = {(3, 3): ahead, (2, 1): key, (1, 5): ball, (5, 5): key, (3, 2): player}
    assert {cell: tuple(board[cell]) for cell in places} == places


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"size": 8}, ValueError, "size must be odd, got 8"),
        ({"size": 5}, ValueError, "size"),
        ({"size": 35}, ValueError, "size must be at most 33, got 35"),
        ({"view_size": 4}, ValueError, "view_size must be odd, got 4"),
        ({"view_size": 13}, ValueError, "view_size must be at most 11"),
        ({"observation": "rgb"}, ValueError, "observation"),
        ({"random_length": 1}, TypeError, "random_length"),
        ({"all_actions": "yes"}, TypeError, "all_actions"),
        ({"max_steps": 0}, ValueError, "max_steps"),
    ],
)
def test_settings_out_of_range(
    settings: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        MiniGridMemory(**settings)
