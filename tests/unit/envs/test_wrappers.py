"""The wrappers: exact keys, spaces and values, in any order; their use with SB3."""

from __future__ import annotations

import itertools
import math

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3 import PPO
from support.env_checks import run_the_checkers

from rlgates.envs.wrappers import (
    PreviousActionReward,
    ScaleFrames,
    ScaleReward,
    ShowPhase,
    ShowTime,
)


class Game(gymnasium.Env):
    """Six steps, two a phase; its image shows the time, and the reward grows by one a step."""

    phase_names = ("look", "wait", "answer")
    max_episode_length = 6

    def __init__(self, action_space=None, observation_space=None):
        self.action_space = action_space or spaces.Discrete(3)
        self.observation_space = observation_space or spaces.Box(0, 255, (2, 2, 3), np.uint8)
        self.dictionary = isinstance(observation_space, spaces.Dict)
        self.t = 0

    @property
    def phase(self):
        return min(self.t // 2, 2)

    def observe(self):
        frame = np.full((2, 2, 3), 40 * self.t, dtype=np.uint8)
        return dict.fromkeys(self.observation_space, frame) if self.dictionary else frame

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.observe(), {}

    def step(self, action):
        self.t += 1
        return self.observe(), self.t - 0.5, self.t == 6, False, {}


PICTURE = Game().observation_space
ALL = {
    "action": PreviousActionReward,
    "time": ShowTime,
    "phase": ShowPhase,
    "frames": ScaleFrames,
    "reward": lambda env: ScaleReward(env, 2.0),
}


def run(env, actions):
    """The first observation and one for each action, all checked to be in their space."""
    observations = [env.reset(seed=0)[0], *(env.step(action)[0] for action in actions)]
    assert all(obs in env.observation_space for obs in observations)
    return observations


def values(env, actions, name):
    entries = [obs[name] for obs in run(env, actions)]
    assert all(entry.dtype == np.float32 for entry in entries)
    return [entry.tolist() for entry in entries]


# PreviousActionReward


def test_previous_action_and_reward():
    env = PreviousActionReward(Game())
    assert env.observation_space == spaces.Dict(
        {
            "observation": PICTURE,
            "previous_action": spaces.Box(0, 1, (3,), np.float32),
            "previous_reward": spaces.Box(-np.inf, np.inf, (1,), np.float32),
        }
    )
    actions = [2, 0, np.int64(1), np.array(2)]
    one_hots = [[0, 0, 0], [0, 0, 1], [1, 0, 0], [0, 1, 0], [0, 0, 1]]
    assert values(env, actions, "previous_action") == one_hots
    assert values(env, actions, "previous_action") == one_hots  # a new episode starts with zeros
    assert values(env, actions, "previous_reward") == [[0], [0.5], [1.5], [2.5], [3.5]]
    assert [obs["observation"][0, 0, 0] for obs in run(env, actions)] == [0, 40, 80, 120, 160]
    assert env.step(0)[1:] == (4.5, False, False, {})


@pytest.mark.parametrize(
    ("space", "action", "expected", "bounds"),
    [
        (spaces.Discrete(2, start=5), 6, [0, 1], (0, 1)),
        (spaces.MultiDiscrete([3, 2]), np.array([1, 0]), [0, 1, 0, 1, 0], (0, 1)),
        (spaces.MultiBinary(3), np.array([1, 0, 1], dtype=np.int8), [1, 0, 1], (0, 1)),
        (spaces.Box(-2, 2, (2,)), np.float32([0.5, -2]), [0.5, -2], (-2, 2)),
        (spaces.Box(1, 2, (1, 2)), np.float32([[1, 2]]), [1, 2], (0, 2)),
    ],
)
def test_previous_action_of_every_space(space, action, expected, bounds):
    env = PreviousActionReward(Game(space), reward=False)
    box = env.observation_space["previous_action"]
    assert box == spaces.Box(*bounds, (len(expected),), np.float32)
    assert values(env, [action], "previous_action") == [[0] * len(expected), expected]


def test_a_shown_action_does_not_change_with_the_callers_array():
    env = PreviousActionReward(Game(spaces.Box(-1, 1, (2,))))
    env.reset(seed=0)
    action = np.zeros(2, dtype=np.float32)
    obs = env.step(action)[0]
    action += 1
    assert obs["previous_action"].tolist() == [0, 0]


def test_one_of_action_and_reward():
    assert set(PreviousActionReward(Game(), reward=False).observation_space) == {
        "observation",
        "previous_action",
    }
    env = PreviousActionReward(Game(), action=False)
    assert run(env, [0])[1].keys() == {"observation", "previous_reward"}
    with pytest.raises(ValueError, match="at least one of action and reward must be True"):
        PreviousActionReward(Game(), action=False, reward=False)
    with pytest.raises(TypeError, match="reward must be True or False, got 1"):
        PreviousActionReward(Game(), reward=1)


def test_actions_without_a_fixed_number_of_numbers_are_refused():
    with pytest.raises(ValueError, match=r"actions of Sequence.* have no fixed size"):
        PreviousActionReward(Game(spaces.Sequence(spaces.Discrete(2))))


# ShowTime


def test_time():
    env = ShowTime(Game())
    assert env.observation_space["time"] == spaces.Box(0, 1, (1,), np.float32)
    shares = [[float(np.float32(t / 6))] for t in range(7)]
    assert values(env, [0] * 6, "time") == shares
    assert values(env, [0] * 3, "time") == shares[:4]
    assert values(ShowTime(Game(), 4), [0] * 6, "time") == [[t / 4] for t in range(5)] + [[1]] * 2


def test_where_the_length_comes_from():
    assert ShowTime(Game()).max_steps == 6
    assert ShowTime(Game(), np.int64(7)).max_steps == 7
    cart = gymnasium.make("CartPole-v1")
    assert ShowTime(cart).max_steps == 500
    assert ShowTime(gymnasium.make("CartPole-v1", max_episode_steps=20)).max_steps == 20
    assert ShowTime(gymnasium.wrappers.TimeLimit(cart, 30)).max_steps == 30
    plain = Game()
    plain.max_episode_length = None
    with pytest.raises(ValueError, match="does not say how long an episode is: pass max_steps"):
        ShowTime(plain)
    plain.max_episode_length = 9
    assert ShowTime(plain).max_steps == 9
    with pytest.raises(ValueError, match="max_steps must be at least 1, got 0"):
        ShowTime(Game(), 0)
    with pytest.raises(TypeError, match=r"max_steps must be an integer, got 2\.5"):
        ShowTime(Game(), 2.5)


# ShowPhase


def test_phase():
    env = ShowPhase(Game())
    assert env.observation_space["phase"] == spaces.Box(0, 1, (3,), np.float32)
    look, wait, answer = np.eye(3).tolist()
    assert values(env, [0] * 6, "phase") == [look, look, wait, wait, answer, answer, answer]


def test_an_environment_without_phases_is_refused():
    unnamed, uncounted = Game(), gymnasium.make("CartPole-v1")
    unnamed.phase_names = ()
    uncounted.unwrapped.phase_names = Game.phase_names
    for env in (gymnasium.make("CartPole-v1"), unnamed, uncounted):
        with pytest.raises(ValueError, match="ShowPhase needs an environment with phases, got"):
            ShowPhase(env)


# ScaleFrames and ScaleReward


def test_frames():
    env = ScaleFrames(Game())
    assert env.observation_space == spaces.Box(0, 1, (2, 2, 3), np.float32)
    for t, obs in enumerate(run(env, [0] * 6)):
        assert obs.dtype == np.float32
        assert (obs == np.float32(40 * t) / np.float32(255)).all()
    every = np.arange(256, dtype=np.uint8).reshape(1, 256)
    shown = ScaleFrames(Game()).observation(every)
    assert (shown.min(), shown.max()) == (0, 1)


def test_frames_of_a_dictionary():
    game = Game(observation_space=spaces.Dict(observation=PICTURE, map=PICTURE))
    env = ScaleFrames(game)
    scaled = spaces.Box(0, 1, (2, 2, 3), np.float32)
    assert env.observation_space == spaces.Dict(observation=scaled, map=PICTURE)
    assert run(env, [0])[1]["map"].dtype == np.uint8
    with pytest.raises(ValueError, match="needs an entry 'observation', got map"):
        ScaleFrames(Game(observation_space=spaces.Dict(map=PICTURE)))


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(0, 1, (3, 3, 3), np.float32),
        spaces.Box(0, 10, (3, 3, 3), np.uint8),
        spaces.Box(1, 255, (3, 3, 3), np.uint8),
        spaces.Discrete(3),
    ],
)
def test_what_is_no_image_is_not_scaled(space):
    for observation_space in (space, spaces.Dict(observation=space)):
        with pytest.raises(ValueError, match=r"needs images, a Box of uint8 in \[0, 255\], got"):
            ScaleFrames(Game(observation_space=observation_space))


def test_reward():
    env = ScaleReward(Game(), -3)
    env.reset(seed=0)
    rewards = [env.step(0)[1] for _ in range(2)]
    assert rewards == [-1.5, -4.5]
    assert type(rewards[0]) is float
    inside, outside = (
        PreviousActionReward(ScaleReward(Game(), 4)),
        ScaleReward(PreviousActionReward(Game()), 4),
    )
    assert values(inside, [0], "previous_reward") == [[0], [2]]
    assert values(outside, [0], "previous_reward") == [[0], [0.5]]


@pytest.mark.parametrize(
    ("scale", "error", "text"),
    [
        (0, ValueError, "scale must not be 0, got 0"),
        (math.inf, ValueError, "scale must be finite, got inf"),
        (math.nan, ValueError, "scale must be finite, got nan"),
        ("2", TypeError, "scale must be a number, got '2'"),
    ],
)
def test_unusable_scales_are_refused(scale, error, text):
    with pytest.raises(error, match=text):
        ScaleReward(Game(), scale)


# Together


def test_a_dictionary_keeps_its_entries():
    game = Game(observation_space=spaces.Dict(map=PICTURE))
    env = ShowPhase(ShowTime(PreviousActionReward(game)))
    names = {"map", "previous_action", "previous_reward", "time", "phase"}
    assert set(env.observation_space) == names
    assert run(env, [0])[1].keys() == names
    assert game.observe().keys() == {"map"}


@pytest.mark.parametrize("wrapper", [PreviousActionReward, ShowTime, ShowPhase])
def test_an_entry_is_added_once(wrapper):
    with pytest.raises(ValueError, match="the observation already has an entry"):
        wrapper(wrapper(Game()))


def test_the_order_does_not_matter():
    spaces_seen, last = [], []
    for order in itertools.permutations(ALL):
        env = Game()
        for name in order:
            env = ALL[name](env)
        spaces_seen.append(env.observation_space)
        last.append(run(env, [1] * 6)[-1])
        shown = 2 if order.index("reward") < order.index("action") else 1
        last[-1]["previous_reward"] /= shown
    assert all(space == spaces_seen[0] for space in spaces_seen)
    assert list(spaces_seen[0]) == [
        "observation",
        "phase",
        "previous_action",
        "previous_reward",
        "time",
    ]
    for obs in last:
        for name, entry in last[0].items():
            np.testing.assert_array_equal(obs[name], entry)


@pytest.mark.parametrize("names", [*([name] for name in ALL), list(ALL)], ids="+".join)
def test_the_checkers_pass(names):
    env = Game()
    for name in names:
        env = ALL[name](env)
    # They take arrays with three axes for images, and want rewards bounded.
    run_the_checkers(
        env,
        "It seems that your observation",
        "The minimal resolution for an image",
        ".*A Box observation space .* is .*infinit",
        ".*different from the unwrapped version",
    )


def test_a_wrapped_environment_can_be_remade_from_its_spec():
    env = ScaleReward(ShowTime(PreviousActionReward(gymnasium.make("CartPole-v1"))), 0.5)
    again = gymnasium.make(env.spec)
    assert again.observation_space == env.observation_space
    assert again.get_wrapper_attr("scale") == 0.5
    for observation, expected in zip(run(env, [1] * 3), run(again, [1] * 3), strict=True):
        for name in observation:
            np.testing.assert_array_equal(observation[name], expected[name])


def test_sb3_takes_the_results():
    env = Game()
    for wrapper in ALL.values():
        env = wrapper(env)
    model = PPO("MultiInputPolicy", env, n_steps=12, batch_size=12, n_epochs=1, seed=0)
    model.learn(12)
    assert model.policy.features_dim == 2 * 2 * 3 + 3 + 1 + 1 + 3
    assert [info["r"] for info in model.ep_info_buffer] == [36, 36]


def test_minigrid_fits():
    pytest.importorskip("minigrid")
    from rlgates.envs.adapters.minigrid import MiniGridMemory

    env = ShowTime(PreviousActionReward(MiniGridMemory(max_steps=4)))
    assert values(env, [0] * 4, "time") == [[0], [0.25], [0.5], [0.75], [1]]
    assert run(env, [2])[1]["observation"].shape == (3, 3, 3)
    model = PPO("MultiInputPolicy", env, n_steps=8, batch_size=8, n_epochs=1, seed=0)
    assert model.policy.features_dim == 27 + 3 + 1 + 1
    frame = ScaleFrames(MiniGridMemory(observation="rgb"))
    assert run(frame, [0])[1].max() <= 1
    with pytest.raises(ValueError, match="needs images"):
        ScaleFrames(MiniGridMemory())
