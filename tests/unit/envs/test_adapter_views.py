"""The settings of `View` in environments of MiniGrid and POPGym, as in the games of rlgates."""

from __future__ import annotations

import warnings
from dataclasses import fields
from inspect import signature
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from rlgates import RecurrentPPO
from rlgates.envs.adapters.views import VIEW_SETTINGS, with_view
from rlgates.envs.engine.views import View
from rlgates.envs.sb3 import make_vec_env
from rlgates.experiments.configs.gym_env import full_settings, pick_wrappers

MINES = "rlgates/popgym-MineSweeperEasy-v0"
S7 = "rlgates/MiniGridMemoryS7-v0"
ALL: dict[str, Any] = {
    "add_previous_action": True,
    "add_previous_reward": True,
    "add_time": True,
    "reward_scale": -2,
}


@pytest.mark.parametrize(
    ("package", "env_id", "native", "settings", "action"),
    [
        ("popgym", MINES, "rlgates/MineSweeper-v0", {"preset": "easy"}, [3, 1]),
        (
            "popgym",
            "rlgates/popgym-PositionOnlyCartPoleEasy-v0",
            "rlgates/StatelessCartPole-v0",
            {},
            1,
        ),
        ("minigrid", S7, "rlgates/MiniGridMemory-v0", {}, 2),
    ],
)
def test_a_view_shows_what_that_of_the_batched_game_shows(
    package: str, env_id: str, native: str, settings: dict[str, Any], action: Any
) -> None:
    pytest.importorskip(f"{package}.envs")
    env = make_vec_env(env_id, 2, seed=0, **ALL)
    batch = make_vec_env(native, 2, seed=0, **settings, **ALL)
    assert isinstance(env.observation_space, spaces.Dict)
    assert isinstance(batch.observation_space, spaces.Dict)
    assert set(env.observation_space) == set(batch.observation_space)
    added = ("previous_action", "previous_reward", "time")
    assert all(env.observation_space[key] == batch.observation_space[key] for key in added)
    plain = gymnasium.make(env_id)
    expected, _ = plain.reset(seed=0)
    shown: Any = env.reset()
    others: Any = batch.reset()
    for step in range(2):
        for key in added if step == 0 else ("previous_action", "time"):
            np.testing.assert_array_equal(shown[key], others[key])
        np.testing.assert_array_equal(shown["observation"][0], expected)
        actions = np.array([action] * 2)
        shown, rewards, *_ = env.step(actions)
        others, *_ = batch.step(actions)
        expected, reward, *_ = plain.step(np.array(action))
        assert rewards[0] == np.float32(-2 * float(reward))
        assert shown["previous_reward"][0] == rewards[0]


def test_the_scaled_return_is_reported() -> None:
    pytest.importorskip("popgym.envs")
    env = make_vec_env("rlgates/popgym-RepeatPreviousEasy-v0", 1, seed=0, reward_scale=100)
    env.reset()
    total, done = 0.0, np.zeros(1, dtype=bool)
    while not done[0]:
        _, rewards, done, infos = env.step(np.zeros(1, dtype=np.int64))
        total += float(rewards[0])
    assert infos[0]["episode"]["r"] == pytest.approx(total, abs=1e-3)
    assert abs(total) > 5


def test_images_are_scaled() -> None:
    pytest.importorskip("minigrid.envs")
    env = gymnasium.make(S7, observation="rgb", scale_frames=True)
    plain = gymnasium.make(S7, observation="rgb")
    assert env.observation_space == spaces.Box(0, 1, (36, 36, 3), np.float32)
    frame, _ = plain.reset(seed=0)
    np.testing.assert_array_equal(env.reset(seed=0)[0], frame / np.float32(255))


def test_an_environment_with_a_view_can_be_made_again_from_its_spec() -> None:
    pytest.importorskip("popgym.envs")
    env = gymnasium.make(MINES, **ALL)
    again = gymnasium.make(env.spec)
    assert again.observation_space == env.observation_space
    for key, value in env.reset(seed=3)[0].items():
        np.testing.assert_array_equal(again.reset(seed=3)[0][key], value)


def test_agents_train_on_a_view_of_mine_sweeper() -> None:
    pytest.importorskip("popgym.envs")
    env = make_vec_env(MINES, 2, seed=0, add_previous_action=True)
    RecurrentPPO("MultiInputLstmPolicy", env, n_steps=8, batch_size=8, n_epochs=1).learn(16)


def test_the_previous_action_is_not_added_twice() -> None:
    pytest.importorskip("popgym.envs")
    assert pick_wrappers(gymnasium.make(MINES)) == ("previous",)
    assert pick_wrappers(gymnasium.make(MINES, add_previous_action=True)) == ()
    assert pick_wrappers(gymnasium.make(MINES, add_time=True)) == ("previous",)


def test_the_last_action_can_stand_for_memory_and_a_view_warns_of_that() -> None:
    pytest.importorskip("popgym.envs")
    with pytest.warns(UserWarning, match="RepeatFirstEasy then needs no memory") as caught:
        gymnasium.make("rlgates/popgym-RepeatFirstEasy-v0", add_previous_action=True)
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gymnasium.make("rlgates/popgym-RepeatFirstEasy-v0", add_previous_reward=True)
        gymnasium.make("rlgates/popgym-RepeatPreviousEasy-v0", add_previous_action=True)


def test_modes_of_rendering_are_those_of_the_class() -> None:
    pytest.importorskip("minigrid.envs")
    env = gymnasium.make(S7, render_mode="rgb_array_list")  # which gymnasium collects
    env.reset(seed=0)
    env.step(np.int64(0))
    assert len(env.render()) == 2  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("env_id", "view", "error", "text"),
    [
        (MINES, {"add_phase": True}, ValueError, "add_phase: MineSweeperEasy has no phases"),
        (MINES, {"scale_frames": True}, ValueError, "scale_frames: MineSweeperEasy has no images"),
        (S7, {"scale_frames": True}, ValueError, "scale_frames: MiniGridMemory has no images"),
        (MINES, {"add_time": 1}, TypeError, "add_time must be True or False, got 1"),
        (MINES, {"reward_scale": 0}, ValueError, "reward_scale must not be 0"),
        (MINES, {"reward_scale": float("inf")}, ValueError, "reward_scale must be finite"),
        (MINES, {"reward_scale": 1e39}, ValueError, "reward_scale"),
        (MINES, {"ad_time": True}, ValueError, "unknown setting .* Did you mean 'add_time'"),
        (S7, {"vew_size": 5}, ValueError, "unknown setting .* Did you mean 'view_size'"),
        (
            "rlgates/popgym-HigherLowerEasy-v0",
            {"add_time": True},
            ValueError,
            r"does not say how long an episode is\. rlgates\.envs\.wrappers\.ShowTime takes",
        ),
    ],
)
def test_unusable_views_are_refused(
    env_id: str, view: dict[str, Any], error: type[Exception], text: str
) -> None:
    pytest.importorskip("minigrid.envs" if env_id == S7 else "popgym.envs")
    with pytest.raises(error, match=text):
        make_vec_env(env_id, 2, **view)


def test_the_settings_and_their_defaults_are_those_of_view() -> None:
    theirs = {field.name: field.default for field in fields(View) if field.name != "spec"}
    ours = signature(with_view).parameters
    assert {name: ours[name].default for name in list(ours)[2:]} == theirs


def test_the_settings_that_identify_a_run_are_those_of_the_class() -> None:
    settings = full_settings(S7, {})
    assert (settings["size"], settings["view_size"], settings["max_steps"]) == (7, 3, None)
    assert not any(name in settings for name in VIEW_SETTINGS)
    assert full_settings(S7, {"add_time": True}) == {**settings, "add_time": True}
