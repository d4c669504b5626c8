"""Views: extra observations, in a batch and by the wrappers for gymnasium."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env

from rlgates import RecurrentPPO
from rlgates.envs import BatchedEnv, View, make_env_spec
from rlgates.envs.engine.players import play
from rlgates.envs.engine.spec import Player
from rlgates.envs.sb3 import make_vec_env
from rlgates.envs.wrappers import (
    PreviousActionReward,
    ScaleFrames,
    ScaleReward,
    ShowPhase,
    ShowTime,
)

ID = "rlgates/PassiveMatch-v0"
SHORT: dict[str, Any] = {"explore_steps": 2, "distractor_steps": 5, "apple_reward": 1}
ALL: dict[str, Any] = {
    "add_previous_action": True,
    "add_previous_reward": True,
    "add_time": True,
    "add_phase": True,
    "scale_frames": True,
    "reward_scale": 0.3,
}


def wrapped(view: dict[str, Any], **settings: Any) -> gymnasium.Env:
    """The same view by the wrappers of gymnasium environments."""
    env = gymnasium.make(ID, **SHORT, **settings)
    if "reward_scale" in view:
        env = ScaleReward(env, view["reward_scale"])
    action, reward = (view.get(f"add_previous_{of}", False) for of in ("action", "reward"))
    if action or reward:
        env = PreviousActionReward(env, action=action, reward=reward)
    if view.get("add_time"):
        env = ShowTime(env)
    if view.get("add_phase"):
        env = ShowPhase(env)
    return ScaleFrames(env) if view.get("scale_frames") else env


@pytest.mark.parametrize(
    "view", [*({name: value} for name, value in ALL.items()), ALL], ids=[*ALL, "all"]
)
def test_the_batch_sees_what_the_wrappers_show(view):
    env = BatchedEnv(make_env_spec(ID, **SHORT, **view), 3, seed=8)
    others = [wrapped(view, env_index=row) for row in range(3)]
    for other in others:
        assert other.observation_space == env.spec.observation_space
        assert other.action_space == env.spec.action_space
    observation, _ = env.reset()
    singles = [other.reset(seed=8)[0] for other in others]
    rng = np.random.default_rng(0)
    for action in rng.choice(4, size=(100, 3), p=[0.4, 0.2, 0.2, 0.2]):
        for row, single in enumerate(singles):
            parts = observation if isinstance(observation, dict) else {"": observation}
            expected_parts = single if isinstance(single, dict) else {"": single}
            assert parts.keys() == expected_parts.keys()
            for name, values in parts.items():
                np.testing.assert_array_equal(values[row], expected_parts[name], err_msg=name)
                assert values.dtype == expected_parts[name].dtype
        observation, rewards, ends, _, info = env.step(action)
        for row, other in enumerate(others):
            singles[row], reward, end, _, entries = other.step(action[row])
            np.testing.assert_allclose(reward, rewards[row], rtol=1e-7)
            assert end == ends[row]
            if end:
                assert entries["last_phase_reward"] == info["last_phase_reward"][row]
                singles[row], _ = other.reset()


def test_observations_have_their_names_and_ranges():
    env = make_vec_env(ID, 2, seed=0, **SHORT, **ALL)
    assert isinstance(env.observation_space, spaces.Dict)
    names = {"observation", "previous_action", "previous_reward", "time", "phase"}
    assert set(env.observation_space) == names
    obs = env.reset()
    assert obs["previous_action"].tolist() == [[0] * 4] * 2
    assert obs["previous_reward"].tolist() == [[0]] * 2
    assert obs["time"].tolist() == [[0]] * 2
    assert obs["phase"].tolist() == [[1, 0, 0]] * 2
    assert obs["observation"].dtype == np.float32
    assert obs["observation"].max() == 1.0
    obs, *_ = env.step(np.array([3, 0]))
    assert obs["previous_action"].tolist() == [[0, 0, 0, 1], [1, 0, 0, 0]]
    np.testing.assert_allclose(obs["time"], 1 / 22)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*infinity")  # rewards have no bounds
        check_env(gymnasium.make(ID, **SHORT, **ALL).unwrapped)


class Repeats(Player):
    """Without memory: names what is shown first, then repeats its last action."""

    def act(self, observations, episode_starts):
        shown = observations["observation"]
        if shown.ndim > 1:  # Memory Chain
            shown = (shown[:, 2] > 0).astype(np.int64)
        last = observations["previous_action"]
        return np.where(last.any(axis=1), last.argmax(axis=1), shown)


@pytest.mark.parametrize("env_id", ["rlgates/RepeatFirst-v0", "rlgates/MemoryChain-v0"])
def test_the_last_action_can_stand_for_memory_and_a_view_warns_of_that(env_id):
    with pytest.warns(UserWarning, match="then needs no memory"):
        spec = make_env_spec(env_id, add_previous_action=True)
    assert play(BatchedEnv(spec, 20), Repeats(), 100)["is_success"] == 1.0


def test_passive_match_warns_too():
    with pytest.warns(UserWarning, match="PassiveMatch then needs no memory"):
        make_env_spec("rlgates/PassiveMatch-v0", add_previous_action=True)


def test_other_views_do_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make_env_spec("rlgates/RepeatPrevious-v0", add_previous_action=True)
        make_env_spec("rlgates/RepeatFirst-v0", add_previous_reward=True, add_time=True)
        make_env_spec("rlgates/MemoryChain-v0", num_bits=3, add_previous_action=True)


def test_a_view_has_the_settings_of_its_spec():
    spec = make_env_spec(ID, add_time=True, crop=7)
    assert isinstance(spec, View)
    assert (spec.crop, spec.chance, spec.max_episode_length) == (7, 1 / 3, 120)
    assert make_vec_env(ID, 2, add_time=True, crop=7).get_attr("crop") == [7, 7]
    with pytest.raises(AttributeError, match="num_walls"):
        spec.num_walls  # noqa: B018


def test_a_view_of_a_view_is_refused():
    view = make_env_spec(ID, add_time=True)
    with pytest.raises(ValueError, match="the spec is a View already"):
        View(view, add_phase=True)
    both = replace(view, add_phase=True)
    assert both == make_env_spec(ID, add_time=True, add_phase=True)


def test_rewards_stay_float32_whatever_scales_them():
    for scale in (np.float64(2), np.float32(2), np.int8(2)):
        spec = make_env_spec(ID, reward_scale=scale, add_previous_reward=True)
        assert (type(spec.reward_scale), spec) == (float, replace(spec, reward_scale=2.0))
        env = BatchedEnv(spec, 2, seed=0)
        env.reset()
        assert env.step([0, 0])[1].dtype == np.float32


def test_policies_accept_views_as_documented():
    def model(policy, **view):
        return RecurrentPPO(policy, make_vec_env(ID, 2, **SHORT, **view), n_steps=8, batch_size=8)

    model("CnnLstmPolicy")
    model("MultiInputLstmPolicy", add_time=True)
    model("MultiInputLstmPolicy", add_time=True, scale_frames=True)
    model("MlpLstmPolicy", scale_frames=True)
    for view in ("add_time", "scale_frames"):
        with pytest.raises(ValueError, match=r"MultiInputLstmPolicy|CnnLstmPolicy reads images"):
            model("CnnLstmPolicy", **{view: True})


@pytest.mark.parametrize(
    ("env_id", "view", "error", "text"),
    [
        (ID, {"add_time": 1}, TypeError, "add_time must be True or False, got 1"),
        (ID, {"reward_scale": 0}, ValueError, "reward_scale must not be 0"),
        (ID, {"reward_scale": float("inf")}, ValueError, "reward_scale must be finite"),
        (ID, {"reward_scale": 1e39}, ValueError, "reward_scale must be between"),
        (ID, {"ad_time": True}, ValueError, "unknown setting .* Did you mean 'add_time'"),
        ("rlgates/MemoryChain-v0", {"add_phase": True}, ValueError, "MemoryChain has no phases"),
        ("rlgates/MemoryChain-v0", {"scale_frames": True}, ValueError, "has no images"),
        ("rlgates/MiniGridMemory-v0", {"scale_frames": True}, ValueError, "has no images"),
        (
            "rlgates/MiniGridMemory-v0",
            {"observation": "symbolic", "scale_frames": True},
            ValueError,
            "has no images",
        ),
    ],
)
def test_unusable_views_are_refused(env_id, view, error, text):
    with pytest.raises(error, match=text):
        make_env_spec(env_id, **view)


def test_settings_override_presets():
    long = make_env_spec(ID, preset="long_large", reward_steps=20)
    assert (long.explore_steps, long.distractor_steps, long.reward_steps) == (75, 450, 20)
    assert (long.apple_reward, long.num_apples) == (5.0, None)
    assert 450 <= make_env_spec(ID, preset="long").max_episode_length <= 600
    assert make_env_spec(ID, preset="short") == make_env_spec(ID)
    assert make_env_spec(ID, preset="released").shuffle_pads == "env"
    with pytest.raises(ValueError, match=r"unknown preset 'lomg'. Did you mean 'long'\?"):
        make_env_spec(ID, preset="lomg")


def test_flags_of_numpy_become_those_of_python():
    spec = make_env_spec("rlgates/KeyToDoor-v0", end_on_choice=np.False_)
    view = View(spec, add_time=np.True_, scale_frames=np.False_)
    assert spec == make_env_spec("rlgates/KeyToDoor-v0", end_on_choice=False)
    assert (view.add_time, view.scale_frames) == (True, False)
    assert repr(view) == repr(View(spec, add_time=True))
    for env_id, name in (("MemoryChain", "show_time"), ("MiniGridMemory", "random_length")):
        spec = make_env_spec(f"rlgates/{env_id}-v0", **{name: np.True_})
        assert repr(spec) == repr(make_env_spec(f"rlgates/{env_id}-v0", **{name: True}))
