"""MiniGrid's memory tasks: memory is sufficient and necessary; the front ends."""

from __future__ import annotations

import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from stable_baselines3 import PPO
from stable_baselines3.common.preprocessing import is_image_space
from support.env_checks import run_the_checkers

from rlgates.envs.adapters import minigrid
from rlgates.envs.adapters.minigrid import IDS, MiniGridMemory

memory = pytest.importorskip("minigrid.envs.memory")

minigrid.register()

S7 = "rlgates/MiniGridMemoryS7-v0"
LEFT, RIGHT, FORWARD = range(3)
EMPTY, KEY, BALL = 1, 5, 6


def visible_object(grid):
    """The visible key or ball, or None."""
    return next((code for code in (KEY, BALL) if (grid[:, :, 0] == code).any()), None)


def ahead(grid, steps):
    """The object so many cells in front of the player."""
    return grid[grid.shape[0] // 2, grid.shape[1] - 1 - steps, 0]


def with_memory(grid):
    """Goes back to the room to see its object, then to the fork and to the same object."""
    behind = visible_object(grid) is None
    if behind:
        yield LEFT
        grid = yield LEFT
    while not (shown := visible_object(grid)):
        grid = yield FORWARD
    if behind:
        yield LEFT
        grid = yield LEFT
    while ahead(grid, 1) == EMPTY:
        grid = yield FORWARD
    grid = yield LEFT
    if ahead(grid, 2) != shown:
        yield LEFT
        yield LEFT
    yield FORWARD


def without_memory(grid):
    """Goes ahead, and to either side where blocked, by the current `grid` only."""
    rng = np.random.default_rng(0)
    while True:
        grid = yield FORWARD if ahead(grid, 1) == EMPTY else rng.integers(2)


def play(env, player, seed):
    """What `step` gave over an episode: reward, terminated, truncated, info."""
    grid, info = env.reset(seed=seed)
    assert info == {}
    rule = player(grid)
    action, steps = next(rule), []
    while not steps or not any(steps[-1][1:3]):
        if steps:
            action = rule.send(grid)
        grid, *rest = env.step(action)
        steps.append(rest)
    return steps


def success_rate(env, player, episodes):
    results = []
    for seed in range(episodes):
        *before, (reward, *_, info) = play(env, player, seed)
        assert all(step == [0.0, False, False, {}] for step in before)
        assert info == {"is_success": reward > 0}
        results.append(info["is_success"])
    return np.mean(results)


@pytest.mark.parametrize("env_id", IDS)
def test_memory_is_enough(env_id):
    assert success_rate(gymnasium.make(env_id), with_memory, 40) == 1


def test_without_memory_half_succeed():
    assert 0.43 < success_rate(gymnasium.make(S7), without_memory, 200) < 0.57


def poses_that_tell(env, seed):
    """The (column, direction) in the middle row from which the room's object is visible."""
    env.reset(seed=seed)
    inner, middle = env._inner, env.size // 2
    objects = memory.Key("green"), memory.Ball("green")
    telling, column = set(), 1
    while inner.grid.get(column, middle) is None:
        for direction in range(4):
            inner.agent_pos, inner.agent_dir = np.array([column, middle]), direction
            views = []
            for thing in objects:
                inner.grid.set(1, middle - 1, thing)
                views.append(env._observation(inner.gen_obs()))
            if (views[0] != views[1]).any():
                telling.add((column, direction))
        column += 1
    return telling, column - 1


@pytest.mark.parametrize(
    ("env_id", "observation"), [*((k, "symbolic") for k in IDS), (S7, "objects"), (S7, "rgb")]
)
def test_beyond_the_room_its_object_is_out_of_sight(env_id, observation):
    env = gymnasium.make(env_id, observation=observation).unwrapped
    forks = set()
    for seed in range(40 if env.random_length else 1):
        telling, fork = poses_that_tell(env, seed)
        assert {column for column, _ in telling} == {1, 2, 3}
        assert (1, 0) in telling  # a player that starts there sees it at once
        walls = [env._inner.grid.get(fork - 1, row) for row in range(env.size)]
        assert [wall is None for wall in walls].index(True) == env.size // 2
        assert sum(wall is None for wall in walls) == 1  # one way to the fork
        forks.add(fork)
    assert forks == (set(range(5, env.size - 1)) if env.random_length else {env.size - 2})


@pytest.mark.parametrize("size", [7, 9, 11, 13])
def test_a_wide_view_sees_the_room_from_the_fork(size):
    for view_size in (3, 5, 7, 9, 11):
        telling, fork = poses_that_tell(MiniGridMemory(size, view_size=view_size), 0)
        assert (max(telling)[0] == fork) == (view_size >= fork)


def test_observations():
    env = gymnasium.make(S7)
    grid, _ = env.reset(seed=0)
    assert env.observation_space == gymnasium.spaces.Box(0, 10, (3, 3, 3), np.uint8)
    assert env.action_space == gymnasium.spaces.Discrete(3)
    assert grid in env.observation_space
    assert not is_image_space(env.observation_space)
    env = gymnasium.make("rlgates/MiniGridMemoryS9-v0")
    grids = []
    for seed in range(20):
        grids += [env.reset(seed=seed)[0], env.step(LEFT)[0], env.step(LEFT)[0]]
    codes = [set(channel.flat) for channel in np.moveaxis(grids, -1, 0)]
    assert codes == [{0, 1, 2, KEY, BALL}, {0, 1, 5}, {0}]
    assert all(grid[1, 2].tolist() == [EMPTY, 0, 0] for grid in grids)
    env = gymnasium.make("rlgates/MiniGridMemoryS9-v0", observation="objects")
    hot = np.array([env.reset(seed=seed)[0] for seed in range(20)])
    assert hot.dtype == np.float32
    assert hot[0] in env.observation_space
    assert (np.array([0, 1, 2, KEY, BALL])[hot.argmax(-1)] == np.array(grids)[::3, ..., 0]).all()
    assert (hot.sum(-1) == 1).all()
    for options in ({"view_size": 5}, {"view_size": 5, "tile_size": 7}):
        env = gymnasium.make(S7, observation="rgb", **options)
        assert is_image_space(env.observation_space, check_channels=True)
        frame, _ = env.reset(seed=0)
        side = 5 * options.get("tile_size", 12)
        assert (frame.shape, frame.dtype) == ((side, side, 3), np.uint8)


def test_the_other_actions_do_nothing():
    env = gymnasium.make(S7, all_actions=True)
    assert env.action_space == gymnasium.spaces.Discrete(7)
    for seed in range(10):
        first, _ = env.reset(seed=seed)
        for action in (3, 4, 5, 6, LEFT, 3, 4, 5, 6, LEFT, 3, 4, 5, 6, LEFT, 3, 4, 5, 6):
            assert env.step(action)[1:] == (0.0, False, False, {})
        np.testing.assert_array_equal(env.step(LEFT)[0], first)


def test_maps_and_rewards_equal_those_of_minigrid():
    registered = gymnasium.make(S7, view_size=7)
    published = memory.MemoryEnv(size=7)
    rewards = []
    for seed in (*range(10), None, None):
        grid = registered.reset(seed=seed)[0]
        np.testing.assert_array_equal(grid, published.reset(seed=seed)[0]["image"])
        rule = without_memory(grid)
        action, ends = next(rule), [False]
        while not any(ends):
            grid, reward, *ends, _ = registered.step(action)
            expected, expected_reward, *expected_ends, _ = published.step(action)
            np.testing.assert_array_equal(grid, expected["image"])
            assert (reward, ends) == (expected_reward, expected_ends)
            action = rule.send(grid)
        rewards.append(reward)
    assert 0 < np.count_nonzero(rewards) < len(rewards)


def test_the_time_limit():
    env = gymnasium.make(S7, max_steps=4)
    assert env.unwrapped.max_episode_length == 4
    env.reset(seed=0)
    steps = [env.step(LEFT)[1:] for _ in range(4)]
    assert steps[:3] == [(0.0, False, False, {})] * 3
    assert steps[3] == (0.0, False, True, {"is_success": False})
    assert gymnasium.make("rlgates/MiniGridMemoryS13-v0").unwrapped.max_episode_length == 5 * 13**2


def test_success_on_the_last_step_is_no_timeout():
    steps = len(play(gymnasium.make(S7), with_memory, seed=0))
    reward, *rest = play(gymnasium.make(S7, max_steps=steps), with_memory, seed=0)[-1]
    assert reward == pytest.approx(0.1)
    assert rest == [True, False, {"is_success": True}]


def test_same_seed_same_trajectory():
    def trajectory(seed):
        env = gymnasium.make("rlgates/MiniGridMemoryS13Random-v0")
        env.action_space.seed(0)
        results = [env.reset(seed=seed)[0].tolist(), env.reset()[0].tolist()]
        for _ in range(60):
            *step, _ = env.step(env.action_space.sample())
            results.append([step[0].tolist(), *step[1:]])
            if any(step[2:]):
                results.append(env.reset()[0].tolist())
        return results

    assert trajectory(3) == trajectory(3)
    assert trajectory(3) != trajectory(4)


@pytest.mark.parametrize("observation", ["symbolic", "objects", "rgb"])
def test_the_checkers_pass(observation):
    for env_id in IDS:
        env = gymnasium.make(env_id, observation=observation).unwrapped
        # It takes every array with three axes for an image; see test_rendering.
        run_the_checkers(env, "It seems that your observation", "The minimal resolution for an")


@pytest.mark.parametrize(
    ("policy", "settings"),
    [
        ("MlpPolicy", {}),
        ("MlpPolicy", {"observation": "objects"}),
        ("CnnPolicy", {"observation": "rgb"}),
    ],
)
def test_sb3_trains_on_it(policy, settings):
    env = gymnasium.make(S7, max_steps=10, **settings)
    model = PPO(policy, env, n_steps=32, batch_size=32, n_epochs=1, seed=0)
    model.learn(32)
    assert len(model.ep_success_buffer) >= 3


def test_rendering():
    env = gymnasium.make(S7, render_mode="rgb_array")
    with pytest.raises(ResetNeeded, match="nothing to render"):
        env.unwrapped.render()
    env.reset(seed=0)
    first = env.render()
    assert (first.shape, first.dtype) == ((7 * 32, 7 * 32, 3), np.uint8)
    env.step(LEFT)
    assert (env.render() != first).any()
    assert MiniGridMemory().render() is None


def test_rendering_in_a_window(monkeypatch):
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    env = MiniGridMemory(render_mode="human")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The system font")
        env.reset(seed=0)
        env.step(LEFT)
    assert env._inner.window.get_size() == (640, 640)
    env.close()


@pytest.mark.parametrize(
    ("settings", "error", "text"),
    [
        ({"size": 5}, ValueError, "size must be at least 7, got 5"),
        ({"size": 8}, ValueError, "size must be odd, got 8"),
        ({"random_length": 1}, TypeError, "random_length must be True or False, got 1"),
        ({"view_size": 1}, ValueError, "view_size must be at least 3, got 1"),
        ({"view_size": 4}, ValueError, "view_size must be odd, got 4"),
        ({"view_size": 3.0}, TypeError, r"view_size must be an integer, got 3\.0"),
        ({"observation": "symbol"}, ValueError, "Did you mean 'symbolic'"),
        ({"tile_size": 0}, ValueError, "tile_size must be at least 1, got 0"),
        ({"all_actions": "yes"}, TypeError, "all_actions must be True or False, got 'yes'"),
        ({"max_steps": 0}, ValueError, "max_steps must be at least 1, got 0"),
        ({"render_mode": "rgb_aray"}, ValueError, "Did you mean 'rgb_array'"),
    ],
)
def test_unusable_settings_are_refused(settings, error, text):
    with pytest.raises(error, match=text):
        MiniGridMemory(**settings)


def test_misuse_is_refused():
    env = MiniGridMemory(max_steps=1)
    with pytest.raises(ResetNeeded, match=r"call reset\(\) first"):
        env.step(0)
    env.reset(seed=0)
    for action in (3, -1, 1.0, np.array([1])):
        with pytest.raises(ValueError, match=r"one integer in \[0, 3\), got"):
            env.step(action)
    env.step(np.array(1))
    with pytest.raises(ResetNeeded, match=r"call reset\(\) first"):
        env.step(0)


def test_reset_options_are_refused():
    env = MiniGridMemory()
    env.reset(seed=0, options={})
    with pytest.raises(ValueError, match=r"unknown reset option 'reveal'\. Allowed: none"):
        env.reset(options={"reveal": True})
