"""POPGym's environments for the agents: spaces, values and hidden information."""

from __future__ import annotations

import inspect
import re

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from sb3_contrib import RecurrentPPO
from support.env_checks import run_the_checkers

from rlgates.envs.adapters import popgym
from rlgates.envs.adapters.popgym import IDS, NAMES, SETTINGS, POPGym, make_popgym

games = pytest.importorskip("popgym.envs")

popgym.register()

HERE = [name for name in SETTINGS if hasattr(games, name)]  # the labyrinths need mazelib


def one_hot(*pairs):
    return np.concatenate([np.eye(n, dtype=np.float32)[k] for k, n in pairs])


def test_the_names_are_popgyms():
    published = {game.__name__ for game in (*games.ALL_BASE, *games.ALL)}
    listed = {name for name in NAMES if not name.startswith("Labyrinth")}
    assert {name for name in published if not name.startswith("Labyrinth")} == listed
    assert set(IDS) == {f"rlgates/popgym-{name}-v0" for name in NAMES}


@pytest.mark.parametrize("name", HERE)
def test_the_settings_are_popgyms(name):
    parameters = dict(inspect.signature(getattr(games, name)).parameters)
    if "kwargs" in parameters:  # handed down to gymnasium's cart-pole or pendulum
        env = make_popgym(name, max_episode_length=7)
        assert env.max_episode_length == 7
        if "noise_sigma" in SETTINGS[name]:
            assert (make_popgym(name, noise_sigma=0.5).game.noise_sigma == 0.5).all()
    else:
        assert SETTINGS[name] == tuple(parameters)


@pytest.mark.parametrize("name", HERE)
def test_the_checkers_pass(name):
    # POPGym's own bounds: of the velocities, and of the pendulums' torque.
    bounds = ".*A Box observation space .* is .*infinit", ".*symmetric and normalized"
    run_the_checkers(make_popgym(f"{name}Easy"), *bounds)


@pytest.mark.parametrize(
    ("name", "observation", "action"),
    [
        ("RepeatFirstEasy", spaces.Discrete(4), spaces.Discrete(4)),
        ("AutoencodeEasy", spaces.Box(0, 1, (2 + 4,), np.float32), spaces.Discrete(4)),
        ("CountRecallHard", spaces.Box(0, 1, (13 + 13,), np.float32), spaces.Discrete(17)),
        ("ConcentrationEasy", spaces.Box(0, 1, (52 * 3,), np.float32), spaces.Discrete(52)),
        ("BattleshipEasy", spaces.Discrete(2), spaces.MultiDiscrete([8, 8])),
        ("PositionOnlyPendulumEasy", spaces.Box(-1, 1, (2,)), spaces.Box(-2, 2, (1,))),
    ],
)
def test_spaces(name, observation, action):
    env = gymnasium.make(f"rlgates/popgym-{name}-v0")
    assert env.observation_space == observation
    assert env.action_space == action


@pytest.mark.parametrize("name", HERE)
def test_an_episode_equals_that_of_popgym(name):
    env, game = make_popgym(f"{name}Medium"), getattr(games, f"{name}Medium")()
    space = game.observation_space

    def check(observation, expected):
        assert observation in env.observation_space
        if isinstance(space, spaces.Tuple | spaces.MultiDiscrete):
            sizes = space.nvec if hasattr(space, "nvec") else [part.n for part in space]
            expected = one_hot(*zip(expected, sizes, strict=True))
        np.testing.assert_array_equal(observation, expected)

    env.action_space.seed(0)
    obs, info = env.reset(seed=5)
    check(obs, game.reset(seed=5)[0])
    assert info == {}
    steps, ends = 0, [False]
    while not any(ends):
        action = env.action_space.sample()
        obs, reward, *ends, info = env.step(action)
        expected, expected_reward, *expected_ends, _ = game.step(action)
        check(obs, expected)
        assert (reward, ends) == (expected_reward, expected_ends)
        assert [type(x) for x in (reward, *ends)] == [float, bool, bool]
        assert info == {}
        steps += 1
    assert steps <= (env.max_episode_length or steps)
    if not name.startswith("Labyrinth"):  # whose mazes come from generators of the whole process
        check(env.reset()[0], game.reset()[0])


def test_same_seed_same_trajectory():
    def run(seed):
        env = gymnasium.make("rlgates/popgym-NoisyPositionOnlyCartPoleHard-v0")
        return [env.reset(seed=seed)[0].tolist(), *(env.step(0)[0].tolist() for _ in range(5))]

    assert run(1) == run(1)
    assert run(1) != run(2)


def test_memory_is_enough_for_repeat_first():
    env = make_popgym("RepeatFirst", num_decks=1)
    for seed in range(5):
        first, _ = env.reset(seed=seed)
        total, terminated = 0.0, False
        while not terminated:
            _, reward, terminated, _, _ = env.step(first)
            total += reward
        assert total == pytest.approx(1)


def test_infos_and_metadata():
    assert make_popgym("BattleshipEasy").needs_previous_action
    assert not make_popgym("RepeatFirstEasy").needs_previous_action
    assert make_popgym("BattleshipEasy").max_episode_length == 64
    assert make_popgym("ConcentrationEasy").max_episode_length == 104
    assert make_popgym("HigherLowerEasy").max_episode_length is None
    env = make_popgym("CountRecallEasy")
    assert not {"state_space", "get_state"} & set(dir(env))
    env.reset(seed=0)
    assert env.step(0)[-1] == {}
    assert "counts" in env.game.step(0)[-1]


class Nested(gymnasium.Env):
    """A game with kinds of observation that POPGym's games lack."""

    action_space = spaces.Discrete(2)

    def __init__(self, **parts):
        self.observation_space = spaces.Dict(parts)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return {"b": 2, "a": np.array([[0.5, -3.0]]), "c": np.array([1, 0], dtype=np.int8)}, {}


def test_nested_observations_become_one_box():
    parts = {"b": spaces.Discrete(3), "a": spaces.Box(-4, 1, (1, 2)), "c": spaces.MultiBinary(2)}
    env = POPGym(Nested(**parts))
    low, high = [-4, -4, 0, 0, 0, 0, 0], [1] * 7
    assert env.observation_space == spaces.Box(np.float32(low), np.float32(high))
    obs, _ = env.reset(seed=0)
    np.testing.assert_array_equal(obs, np.float32([0.5, -3, 0, 0, 1, 1, 0]))
    assert obs in env.observation_space
    with pytest.raises(ValueError, match="cannot flatten observations of Dict"):
        POPGym(Nested(many=spaces.Sequence(spaces.Discrete(2))))


@pytest.mark.parametrize("name", ["AutoencodeEasy", "MineSweeperEasy", "PositionOnlyPendulumEasy"])
def test_recurrent_ppo_trains_on_it(name):
    env = gymnasium.make(f"rlgates/popgym-{name}-v0")
    policy = {"lstm_hidden_size": 8, "net_arch": [8]}
    model = RecurrentPPO(
        "MlpLstmPolicy", env, n_steps=16, batch_size=16, n_epochs=1, policy_kwargs=policy, seed=0
    )
    model.learn(16)
    assert model.num_timesteps == 16


def test_rendering():
    pytest.importorskip("pygame")
    env = gymnasium.make("rlgates/popgym-PositionOnlyCartPole-v0", render_mode="rgb_array")
    env.reset(seed=0)
    frame = env.render()
    assert (frame.dtype, frame.shape[2]) == (np.uint8, 3)
    env.close()
    assert make_popgym("RepeatFirstEasy").render() is None


def test_unknown_names_and_settings_name_the_nearest():
    with pytest.raises(ValueError, match="Did you mean 'RepeatFirstEasy'"):
        make_popgym("RepeatFirstEasi")
    with pytest.raises(ValueError, match=r"'num_deck'.*Did you mean 'num_decks'"):
        make_popgym("RepeatFirst", num_deck=2)
    with pytest.raises(ValueError, match=r"'num_decks'\. Allowed: add_previous_action, add_prev"):
        make_popgym("RepeatFirstEasy", num_decks=2)


def test_without_mazelib_the_error_names_popgyms_extra(monkeypatch):
    monkeypatch.delattr(games, "LabyrinthEscapeEasy", raising=False)
    with pytest.raises(ImportError, match=re.escape('pip install "popgym[navigation]"')):
        make_popgym("LabyrinthEscapeEasy")
