"""Settings by name, the front ends for gymnasium and Stable-Baselines3, and rendering."""

from __future__ import annotations

import importlib.util
import math
import re
import sys
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from sb3_contrib import RecurrentPPO
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    VecFrameStack,
    VecMonitor,
    VecTransposeImage,
)

from rlgates.envs import BatchedEnv, PassiveMatch, make_env_spec
from rlgates.envs.engine.actions import check_actions
from rlgates.envs.sb3 import BatchedVecEnv, make_vec_env
from rlgates.envs.torch import make_torch_env

ID = "rlgates/PassiveMatch-v0"
SHORT = {"explore_steps": 2, "distractor_steps": 4, "reward_steps": 12, "apple_reward": (1, 3)}
UNEVEN = {"explore_steps": 1, "distractor_steps": 3, "end_on_choice": True}


def actions(steps: int, num_envs: int) -> np.ndarray:
    return np.random.default_rng(0).integers(4, size=(steps, num_envs))


# Settings


@pytest.mark.parametrize(
    ("settings", "error", "text"),
    [
        ({"explore_steps": 0}, ValueError, "explore_steps must be at least 1, got 0"),
        ({"distractor_steps": -1}, ValueError, "distractor_steps must be at least 0, got -1"),
        ({"reward_steps": 0}, ValueError, "reward_steps must be at least 1, got 0"),
        ({"reward_steps": 2.5}, TypeError, r"reward_steps must be an integer, got 2\.5"),
        ({"explore_steps": 10**9}, ValueError, "explore_steps must be at most 1000000"),
        ({"num_apples": 23}, ValueError, "num_apples must be at most 22, got 23"),
        ({"apple_reward": "1"}, TypeError, "apple_reward must be a number, got '1'"),
        ({"apple_reward": (1, 2, 3)}, ValueError, r"a pair \(low, high\), or .*, got \(1, 2, 3\)"),
        ({"apple_reward": (1, math.inf)}, ValueError, "apple_reward must be finite"),
        ({"apple_respawn": 0}, ValueError, "apple_respawn must be at least 1, got 0"),
        ({"num_colors": 4}, ValueError, "num_colors must be at most 3, got 4"),
        ({"choice_reward": 1e31}, ValueError, "choice_reward must be between"),
        ({"crop": 3}, ValueError, "crop must be at least 5, got 3"),
        ({"choice_reward": math.nan}, ValueError, "choice_reward must be finite"),
        ({"wrong_reward": None}, TypeError, "wrong_reward must be a number, got None"),
        ({"end_on_choice": 1}, TypeError, "end_on_choice must be True or False, got 1"),
        ({"shuffle_pads": "episodes"}, ValueError, "Did you mean 'episode'"),
        ({"crop": 6}, ValueError, "crop must be odd, or None for the whole board, got 6"),
        ({"crop": 13}, ValueError, "crop must be at most 11, got 13"),
        ({"distractor_step": 3}, ValueError, "Did you mean 'distractor_steps'"),
    ],
)
def test_unusable_settings_are_refused(settings, error, text):
    with pytest.raises(error, match=text):
        make_env_spec(ID, **settings)


def test_unknown_ids_name_the_nearest():
    with pytest.raises(ValueError, match="Did you mean 'rlgates/PassiveMatch-v0'"):
        make_env_spec("PasiveMatch-v0")


def test_settings_are_plain_data():
    spec = make_env_spec(ID, apple_reward=[1, 10], choice_reward=5)
    assert spec == PassiveMatch(apple_reward=(1.0, 10.0), choice_reward=5.0)
    assert hash(spec) == hash(PassiveMatch(apple_reward=(1.0, 10.0), choice_reward=5.0))
    assert eval(repr(spec)) == spec


@pytest.mark.parametrize(
    ("env_id", "settings"),
    [
        (
            ID,
            {
                **dict.fromkeys(("explore_steps", "distractor_steps", "reward_steps"), 100),
                "num_apples": 3,
                "apple_respawn": 20,
                "num_colors": 2,
                "crop": 7,
                "choice_reward": 5,
                "wrong_reward": -1,
                "apple_reward": (1, 2),
            },
        ),
        ("rlgates/ActiveTMaze-v0", {"corridor_length": 100, "oracle_length": 100, "penalty": -1}),
        ("rlgates/MemoryChain-v0", {"memory_length": 127, "num_bits": 127}),
        ("rlgates/RepeatPrevious-v0", {"num_decks": 3, "k": 100}),
    ],
)
def test_small_numpy_numbers_are_stored_as_pythons(env_id, settings):
    def small(value):
        return tuple(map(np.int8, value)) if isinstance(value, tuple) else np.int8(value)

    spec = make_env_spec(env_id, **{name: small(value) for name, value in settings.items()})
    plain = make_env_spec(env_id, **settings)
    assert (repr(spec), spec.max_episode_length) == (repr(plain), plain.max_episode_length)
    assert "np." not in repr(spec)
    assert BatchedEnv(spec, np.int8(3), 0, np.int8(126)).reset()[0].shape[0] == 3
    assert gymnasium.make_vec(env_id, np.int8(2)).num_envs == 2


@pytest.mark.parametrize("env_id", ["rlgates/MiniGridMemoryS7-v0", "rlgates/popgym-RepeatFirst-v0"])
def test_single_environments_of_other_packages_are_made_as_the_error_says(env_id):
    pytest.importorskip("minigrid" if "MiniGrid" in env_id else "popgym")
    with pytest.raises(ValueError, match="is a single environment of gymnasium") as error:
        make_env_spec(env_id)
    (reported,) = re.findall(r"rlgates.envs.sb3.(make_vec_env\(.*?\))\.", str(error.value))
    env = eval(reported, {"make_vec_env": make_vec_env})
    assert (env.num_envs, len(env.reset())) == (8, 8)
    (reported,) = re.findall(r"gymnasium.make\(.*?\)", str(error.value))
    eval(reported, {"gymnasium": gymnasium}).reset(seed=0)


@pytest.mark.parametrize(
    ("package", "env_id"),
    [
        ("minigrid", "rlgates/MiniGridMemoryS7-v0"),
        ("popgym", "rlgates/popgym-RepeatFirstEasy-v0"),
    ],
)
def test_other_packages_are_imported_on_first_use(package, env_id, monkeypatch):
    pytest.importorskip(f"{package}.envs")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, f"{package}.envs", None)
        with pytest.raises(ImportError, match=re.escape(f'pip install "rlgates[{package}]"')):
            gymnasium.make(env_id)
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    spec = importlib.util.find_spec(f"rlgates.envs.adapters.{package}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.register()
    assert package not in sys.modules


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda rows: make_vec_env(ID, rows), "n_envs"),
        (lambda rows: gymnasium.make_vec(ID, num_envs=rows), "num_envs"),
        (lambda rows: BatchedEnv(make_env_spec(ID), rows), "num_envs"),
        (lambda rows: make_torch_env(ID, num_envs=rows), "num_envs"),
    ],
)
def test_errors_call_the_number_of_rows_as_the_caller_does(make, name):
    with pytest.raises(ValueError, match=f"^{name} must be at least 1, got 0"):
        make(0)


def test_environments_do_not_share_generators():
    envs = [gymnasium.make(ID, scale_frames=True).unwrapped for _ in range(2)]
    envs += [gymnasium.make_vec(ID, num_envs=2, scale_frames=True) for _ in range(2)]
    envs += [make_vec_env(ID, 2, scale_frames=True) for _ in range(2)]
    names = ("action_space", "observation_space")
    spaces = [getattr(env, name) for env in envs for name in names]
    spaces += [getattr(env, f"single_{name}") for env in envs[2:4] for name in names]

    def states():
        return [str(space.np_random.bit_generator.state) for space in spaces]

    before = states()
    spaces[0].seed(3)
    assert states()[0] != before[0]
    assert states()[1:] == before[1:]
    (one, _), (two, _) = ((env.action_space, env) for env in envs[:2])
    two.seed(3)
    before = [two.sample() for _ in range(30)]
    one.seed(3)
    two.seed(3)
    assert [(one.sample(), two.sample())[1] for _ in range(30)] == before


# gymnasium


def test_a_seed_of_a_vector_environment_is_also_that_of_its_generator():
    env = gymnasium.make_vec(ID, num_envs=2)
    env.reset(seed=np.int64(1))
    assert env.unwrapped.np_random_seed == 1
    with pytest.raises(ValueError, match="seed must be in"):
        env.reset(seed=-1)


def test_wrappers_of_vector_observations_need_the_sync_mode():
    env = gymnasium.make_vec(ID, num_envs=2)
    with pytest.raises(ValueError, match="autoreset_mode"):
        gymnasium.wrappers.vector.NormalizeObservation(env)
    flat = {"vectorization_mode": "sync", "wrappers": [gymnasium.wrappers.FlattenObservation]}
    assert gymnasium.make_vec(ID, num_envs=2, **flat).reset(seed=0)[0].shape == (2, 75)


def test_types_and_infos_of_a_single_environment():
    env = gymnasium.make(ID, explore_steps=1, distractor_steps=0, reward_steps=4).unwrapped
    assert env.observation_space == gymnasium.spaces.Box(0, 255, (5, 5, 3), np.uint8)
    assert env.action_space == gymnasium.spaces.Discrete(4)
    _, info = env.reset(seed=0)
    assert info == {}
    for t in range(5):
        _, reward, terminated, truncated, info = env.step(0)
        assert [type(x) for x in (reward, terminated, truncated)] == [float, bool, bool]
        assert (terminated, truncated) == (t == 4, False)
        assert bool(info) == terminated
    assert {name: type(value) for name, value in info.items()} == {
        "is_success": bool,
        "last_phase_reward": float,
    }
    assert info["last_phase_reward"] == reward


def test_a_single_environment_is_seeded_once_and_then_goes_on():
    def frames(env, *seeds):
        return [env.reset(seed=seed)[0].tolist() for seed in seeds]

    env = gymnasium.make(ID)
    run = frames(env, 7, *[None] * 8)
    assert frames(gymnasium.make(ID), 7, *[None] * 8) == run
    assert frames(gymnasium.make(ID, env_index=1), 7, *[None] * 8) != run
    assert frames(env, 8, *[None] * 8) != run
    assert frames(gymnasium.make(ID), *[None] * 9) != frames(gymnasium.make(ID), *[None] * 9)


def test_misuse_of_a_single_environment_is_refused():
    with pytest.raises(ValueError, match=r"'crops'.*Did you mean 'crop'"):
        gymnasium.make(ID, crops=5)
    with pytest.raises(ValueError, match="env_index must be at least 0, got -1"):
        gymnasium.make(ID, env_index=-1)
    env = gymnasium.make(ID).unwrapped
    with pytest.raises(ResetNeeded, match=r"call reset\(\) first"):
        env.step(0)
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"in \[0, 4\), got 4"):
        env.step(4)
    with pytest.raises(TypeError, match="an integer, got dtype float64"):
        env.step(1.0)
    with pytest.raises(ValueError, match=r"one integer, got shape \(1,\)"):
        env.step(np.array([1]))
    for _ in range(120):
        env.step(0)
    with pytest.raises(ResetNeeded, match=r"call reset\(\) first"):
        env.step(0)
    with pytest.raises(ValueError, match=r"seed must be in \[0, 2\*\*64\), got -3"):
        env.reset(seed=-3)


# Stable-Baselines3


@pytest.mark.parametrize("settings", [SHORT, UNEVEN], ids=["together", "apart"])
def test_the_vec_env_equals_the_dummy_vec_env_over_single_environments(settings):
    vec_env = make_vec_env(ID, 5, seed=2, **settings)
    reference = DummyVecEnv(
        [lambda k=k: Monitor(gymnasium.make(ID, env_index=k, **settings)) for k in range(5)]
    )
    reference._seeds = [2] * 5  # its seed() gives each environment another one
    assert vec_env.observation_space == reference.observation_space
    assert vec_env.action_space == reference.action_space
    np.testing.assert_array_equal(vec_env.reset(), reference.reset())
    for action in actions(120, 5):
        expected, result = reference.step(action), vec_env.step(action)
        for actual, other in zip(result[:3], expected[:3], strict=True):
            np.testing.assert_array_equal(actual, other)
            assert actual.dtype == other.dtype
        for actual, other, done in zip(result[3], expected[3], result[2], strict=True):
            if not done:
                assert actual == {}
                continue
            assert actual.keys() == other.keys()
            assert actual["episode"].pop("t") >= 0
            assert other["episode"].pop("t") >= 0
            np.testing.assert_array_equal(
                actual.pop("terminal_observation"), other.pop("terminal_observation")
            )
            assert actual == other
            assert actual["TimeLimit.truncated"] is False
            assert type(actual["is_success"]) is bool
            assert type(actual["last_phase_reward"]) is float


def test_kept_infos_stay_as_they_were():
    env = make_vec_env(ID, 3, seed=0, **SHORT)
    env.reset()
    for _ in range(18):
        infos = env.step(np.zeros(3, dtype=int))[3]
    last = [dict(info) for info in infos]
    assert all(last)
    assert env.step(np.zeros(3, dtype=int))[3] == [{}, {}, {}]
    assert [info.keys() for info in infos] == [info.keys() for info in last]


def test_what_a_caller_writes_into_infos_is_not_handed_out_again():
    env = make_vec_env(ID, 3, seed=0, **SHORT)
    env.reset()
    for _ in range(3):
        infos = env.step(np.zeros(3, dtype=int))[3]
        assert infos == [{}, {}, {}]
        infos[1]["seen"] = True


def test_seeding_a_vec_env():
    env = make_vec_env(ID, 6, seed=3)
    first, second = env.reset(), env.reset()
    assert (first != second).any()
    assert env.seed(3) == [3] * 6
    np.testing.assert_array_equal(env.reset(), first)
    np.testing.assert_array_equal(env.reset(), second)
    assert len(set(env.seed())) == 1
    assert (env.reset() != first).any()
    with pytest.raises(ValueError, match="seed must be in"):
        env.seed(-1)
    # A reset that is refused does not use up the seed.
    env.seed(3)
    env.set_options({"target_colour": 0})
    with pytest.raises(ValueError, match="unknown reset option"):
        env.reset()
    env.set_options()
    np.testing.assert_array_equal(env.reset(), first)
    for colors in ([1, 0, 2], [0, 1, 2]):
        env.set_options([{"pad_colors": np.array(colors)}, *[{"pad_colors": [0, 1, 2]}] * 5])
        if colors == [0, 1, 2]:
            env.reset()
        else:
            with pytest.raises(ValueError, match="the same reset options, got different ones"):
                env.reset()


@pytest.mark.parametrize("space", [spaces.MultiDiscrete([3, 2]), spaces.Box(-2, 2, (1,))])
def test_actions_of_other_spaces_are_checked(space):
    is_box = isinstance(space, spaces.Box)
    noun, good = ("numbers", [[0.5], [-9.0]]) if is_box else ("integers", [[2, 1], [0, 0]])
    checked = check_actions(space, good, np, None, (2,), values=True)
    assert checked.dtype == (np.float32 if is_box else np.int64)
    np.testing.assert_array_equal(checked, good)
    shape = (2, 1) if is_box else (2, 2)
    with pytest.raises(ValueError, match=re.escape(f"shape {shape}, got (2,)")):
        check_actions(space, [0, 0], np, None, (2,), values=True)
    with pytest.raises(TypeError, match=f"actions must be {noun}, got dtype bool"):
        check_actions(space, np.zeros(shape, dtype=bool), np, None, (2,), values=True)
    wrong, message = (
        ([[0.0], [np.inf]], "actions must be finite, got inf")
        if is_box
        else ([[2, 1], [0, 2]], r"actions\[\.\.\., 1\] must be in \[0, 2\), got 2")
    )
    with pytest.raises(ValueError, match=message):
        check_actions(space, wrong, np, None, (2,), values=True)
    check_actions(space, wrong, np, None, (2,), values=False)


@pytest.mark.parametrize(
    ("env_id", "needs"),
    [("rlgates/MiniGridMemoryS7-v0", "minigrid"), ("rlgates/popgym-RepeatFirstEasy-v0", "popgym")],
)
def test_single_environments_are_stepped_one_after_the_other(env_id, needs):
    pytest.importorskip(needs)
    env = make_vec_env(env_id, 3, seed=5, first_index=1)
    first = env.reset()
    for row in range(3):
        alone = gymnasium.make(env_id)
        np.testing.assert_array_equal(alone.reset(seed=6 + row)[0], first[row])
    assert env.env_is_wrapped(Monitor) == [True] * 3
    # Without a seed they differ, whatever NumPy's global generator is set to.
    seeds = set()
    for _ in range(2):
        np.random.seed(0)  # noqa: NPY002
        seeds.add(make_vec_env(env_id, 3)._seeds[0])
    assert len(seeds) == 2
    for _ in range(60):
        env.step(np.zeros(3, dtype=np.int64))
    with pytest.raises(ValueError, match="n_envs must be at least 1"):
        make_vec_env(env_id, 0)
    with pytest.raises(ValueError, match=r"cannot be batched.*rlgates.envs.sb3.make_vec_env"):
        make_env_spec(env_id)


def test_attributes_of_a_vec_env():
    env = BatchedVecEnv(BatchedEnv(make_env_spec(ID, crop=7), 3, first_index=5))
    assert env.get_attr("crop") == [7, 7, 7]
    assert env.get_attr("env_index", [0, 2]) == [5, 7]
    assert env.get_attr("env_index", [-1, np.int64(0)]) == [7, 5]
    for name in ("env_index", "crop"):
        with pytest.raises(IndexError):
            env.get_attr(name, 3)
    assert env.get_attr("render_mode", 1) == [None]
    assert env.has_attr("explore_steps")
    assert not env.has_attr("action_masks")
    with pytest.raises(AttributeError, match="cannot set 'crop': settings are fixed"):
        env.set_attr("crop", 5)
    with pytest.raises(AttributeError, match="cannot call 'jump'"):
        env.env_method("jump")
    assert env.env_is_wrapped(Monitor) == [True] * 3
    assert env.env_is_wrapped(gymnasium.wrappers.TimeLimit, [1]) == [False]


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match="Did you mean 'rlgates/PassiveMatch-v0'"):
        make_vec_env("rlgates/PassivMatch-v0", 2)
    with pytest.raises(ValueError, match=r"'num_apple'.*Did you mean 'num_apples'"):
        make_vec_env(ID, 2, num_apple=3)
    with pytest.raises(ValueError, match="unknown render mode 'human'"):
        make_vec_env(ID, 2, render_mode="human")
    with pytest.raises(ValueError, match="n_envs must be at least 1, got 0"):
        make_vec_env(ID, 0)


def test_sb3s_wrappers_fit():
    settings = {"explore_steps": 1, "distractor_steps": 2, "reward_steps": 3}
    env = make_vec_env(ID, 2, seed=0, **settings)
    with pytest.warns(UserWarning, match="statistics will be"):
        env = VecMonitor(env)  # of use only for the file it can write
    env = VecFrameStack(VecTransposeImage(env), 4)
    assert env.reset().shape == (2, 12, 5, 5)
    for _ in range(6):
        obs, _, done, infos = env.step(np.zeros(2, dtype=int))
    assert done.all()
    assert obs.shape == (2, 12, 5, 5)
    assert infos[0]["terminal_observation"].shape == (12, 5, 5)
    assert infos[0]["episode"]["l"] == 6


def test_recurrent_ppo_trains_and_is_evaluated():
    env = make_vec_env(ID, 4, seed=0, **SHORT)
    model = RecurrentPPO("MlpLstmPolicy", env, n_steps=32, batch_size=64, n_epochs=1, seed=0)
    model.learn(128)
    assert len(model.ep_info_buffer) == 4
    assert len(model.ep_success_buffer) == 4
    # Warnings are errors here: it must not ask for a Monitor.
    returns, lengths = evaluate_policy(model, env, 4, return_episode_rewards=True)
    assert lengths == [18] * 4
    assert len(returns) == 4


# Pictures for people


def test_rendering_a_single_environment():
    env = gymnasium.make(ID, render_mode="rgb_array")
    env.reset(seed=0)
    first = env.render()
    assert (first.dtype, first.ndim, first.shape[2]) == (np.uint8, 3, 3)
    env.step(0)
    assert env.render().shape == first.shape
    assert (env.render() != first).any()  # one step less is left
    colors = {tuple(color) for color in np.unique(first.reshape(-1, 3), axis=0).tolist()}
    assert {(228, 148, 109), (25, 25, 25), (204, 204, 204)} < colors
    assert gymnasium.make(ID).unwrapped.render() is None
    with pytest.raises(ResetNeeded, match="nothing to render"):
        gymnasium.make(ID, render_mode="rgb_array").unwrapped.render()


@pytest.mark.parametrize("crop", [5, 7, 9, 11, None])
def test_every_view_can_be_rendered(crop):
    env = gymnasium.make(ID, render_mode="rgb_array", crop=crop, explore_steps=1)
    env.reset(seed=0)
    for action in (0, 2, 0, 2, 0, 2, 0, 2, 0):
        env.step(action)
        env.render()


def test_rendering_a_vec_env():
    env = make_vec_env(ID, 4, seed=0, render_mode="rgb_array")
    single = gymnasium.make(ID, render_mode="rgb_array", env_index=3)
    env.reset()
    single.reset(seed=0)
    for action in (0, 1, 2):
        env.step(np.full(4, action))
        single.step(action)
    images = env.get_images()
    np.testing.assert_array_equal(images[3], single.render())
    height, width, _ = images[0].shape
    assert env.render().shape == (2 * height, 2 * width, 3)


@pytest.mark.parametrize(
    "actions", [None, "abcd", ["a"] * 4, {"a": 1}, [2**70] * 4, [[0, 1], [2]], object()]
)
def test_actions_that_are_no_numbers_are_refused_in_words(actions: Any) -> None:
    torch_env = make_torch_env("rlgates/PassiveMatch-v0", 4, 0)
    for env in (torch_env, BatchedEnv(torch_env.spec, 4, 0)):
        env.reset()
        with pytest.raises(TypeError, match="actions must be"):
            env.step(actions)
