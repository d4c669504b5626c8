"""The contract of batched environments, for any front end, batch size and device."""

from __future__ import annotations

import copy
import io
import json
import pickle
import subprocess
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode
from support.env_cases import CASES, NEVER_EARLY, actions, digest, name, parts
from support.env_checks import run_the_checkers

from rlgates.envs import ENVS, BatchedEnv, make_env_spec
from rlgates.envs.engine.parameters import report_single
from rlgates.envs.engine.philox import Key
from rlgates.envs.sb3 import make_vec_env
from rlgates.envs.torch import make_torch_env

every_case = pytest.mark.parametrize(("env_id", "settings"), CASES, ids=map(name, CASES))
every_env = pytest.mark.parametrize("env_id", ENVS)
PASSIVE = "rlgates/PassiveMatch-v0"
ENOUGH_ENDS = 20  # of episodes: several of each environment of a batch


def assert_equal(one, two, rows=...) -> None:
    one, two = parts(one), parts(two)
    assert one.keys() == two.keys()
    for key in one:
        assert one[key].dtype == two[key].dtype
        # The error of NumPy's own assertion says more, but it takes ten times as long.
        if not np.array_equal(one[key], two[key][rows]):
            np.testing.assert_array_equal(one[key], two[key][rows], err_msg=key)


def spoil(*given) -> None:
    """Overwrite arrays, or dicts of arrays."""
    for array in (array for some in given for array in parts(some).values()):
        array[...] = 1 - array if array.dtype != bool else ~array  # of a tensor, its memory


def assert_in(space: gymnasium.Space, observations, rows: int) -> None:
    for row in range(rows):
        obs = {key: values[row] for key, values in parts(observations).items()}
        obs = obs if isinstance(observations, dict) else obs[""]
        assert space.contains(obs), obs


# The definition


@every_env
def test_defaults_and_presets_make_an_environment(env_id):
    for preset in (None, *ENVS[env_id].presets):
        spec = make_env_spec(env_id, preset=preset)
        env = BatchedEnv(spec, 2, seed=0)
        obs, info = env.reset()
        assert info == {}
        assert_in(spec.observation_space, obs, 2)
        obs, reward, terminated, truncated, info = env.step(actions(env, 1)[0])
        assert (reward.dtype, terminated.dtype, truncated.dtype) == (np.float32, bool, bool)


@every_case
def test_a_step_does_not_modify_the_state(env_id, settings):
    env = BatchedEnv(make_env_spec(env_id, **settings), 6, seed=1)
    env.reset()
    for action in actions(env, 60):
        before = {key: values.copy() for key, values in env.state.items()}
        one, two = env.spec.step(env.state, action), env.spec.step(env.state, action)
        for look in ("observe", "render_board", "render_info", "metrics", "phase"):
            getattr(env.spec, look)(env.state)
        assert one[0].keys() == env.state.keys() == before.keys()
        for key, values in before.items():
            np.testing.assert_array_equal(env.state[key], values, err_msg=key)
        for key in one[0]:
            np.testing.assert_array_equal(one[0][key], two[0][key])
            assert one[0][key].dtype == before[key].dtype, key
        env.step(action)


@every_case
def test_lengths_metrics_and_render_info_follow_the_contract(env_id, settings):
    env = BatchedEnv(make_env_spec(env_id, **settings), 16, seed=2)
    spec = env.spec
    env.reset()
    lengths = set()
    whole = spec.fixed_length and not spec.phase_names  # else steps are left of a phase
    for action in actions(env, 3 * spec.max_episode_length):
        state = env.state
        moments = zip(spec.render_info(state), spec.phase(state), state["t"], strict=True)
        for render_info, phase, t in moments:
            assert render_info.phase == (spec.phase_names[phase] if spec.phase_names else "")
            assert render_info.steps_left > 0
            assert not whole or render_info.steps_left == spec.max_episode_length - t
        board = spec.render_board(state)
        if board is not None:
            assert board.dtype == np.uint8
            assert board.shape[0] == 16
            assert board.shape[3] == 3
        last = spec.step(state, action)[0]
        _, _, terminated, _, info = env.step(action)
        assert_in(spec.observation_space, spec.observe(last), 16)
        if terminated.any():
            assert not whole or {moment.steps_left for moment in spec.render_info(last)} == {0}
            assert board is None or spec.render_board(last).shape == board.shape
            lengths |= set(info["episode_length"][terminated].tolist())
            assert {"final_obs", "episode_return", *spec.metric_names} < set(info)
            assert info["is_success"].dtype == bool
            assert spec.metrics(last).keys() == set(spec.metric_names)
    assert max(lengths) <= spec.max_episode_length
    if spec.fixed_length:
        assert lengths == {spec.max_episode_length}
    elif env_id not in NEVER_EARLY:
        assert len(lengths) > 1


@every_case
def test_specs_are_plain_data(env_id, settings):
    spec = make_env_spec(env_id, **settings)
    for other in (copy.deepcopy(spec), pickle.loads(pickle.dumps(spec))):
        assert (other, repr(other), hash(other)) == (spec, repr(spec), hash(spec))
        assert other.observation_space == spec.observation_space


# Rows, batches, front ends, devices


@every_case
def test_environment_k_of_a_batch_is_the_single_environment_k(env_id, settings):
    batch = BatchedEnv(make_env_spec(env_id, **settings), 3, seed=21, first_index=3)
    singles = [gymnasium.make(env_id, env_index=3 + k, **settings) for k in range(3)]
    first, _ = batch.reset()
    for row, env in enumerate(singles):
        assert_equal(env.reset(seed=21)[0], first, row)
    ended = 0
    for action in actions(batch):
        obs, rewards, ends, _, info = batch.step(action)
        for row, env in enumerate(singles):
            observation, reward, terminated, truncated, metrics = env.step(action[row])
            assert (reward, terminated, truncated) == (rewards[row], ends[row], False)
            if terminated:
                assert_equal(observation, info["final_obs"], row)
                assert metrics == {key: info[key][row] for key in batch.spec.metric_names}
                observation, _ = env.reset()
                ended += 1
            assert_equal(observation, obs, row)
        if ended >= ENOUGH_ENDS:
            break
    assert ended >= 3


@every_case
def test_the_other_front_ends_equal_the_batch(env_id, settings):
    batch = BatchedEnv(make_env_spec(env_id, **settings), 5, seed=3)
    vector = gymnasium.make_vec(env_id, num_envs=5, **settings)
    assert vector.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    vec_env = make_vec_env(env_id, 5, seed=3, **settings)
    tensors = make_torch_env(env_id, 5, seed=3, **settings)
    # A GPU is not asked whether an episode ended: this is how the steps go there.
    masked = make_torch_env(env_id, 5, seed=3, **settings)
    masked._on_host = False
    first, _ = batch.reset()
    for other in (vector.reset(seed=3)[0], vec_env.reset(), tensors.reset()[0], masked.reset()[0]):
        assert_equal(other, first)
    assert vector.observation_space.contains(first)
    ended = 0
    for action in actions(batch):
        obs, rewards, ends, _, info = batch.step(action)
        of_vector = vector.step(action)
        of_vec_env = vec_env.step(action)
        of_torch = [env.step(torch.as_tensor(action)) for env in (tensors, masked)]
        for other in (of_vector, of_vec_env, *of_torch):
            assert_equal(other[0], obs)
            assert np.array_equal(other[1], rewards)
            assert np.array_equal(other[2], ends)
        for other in of_torch:
            assert other[1].dtype == torch.float32
            assert not other[3].any()
        if ends.any():
            for key in info:
                assert_equal(of_torch[0][4][key], info[key])
        for row in np.flatnonzero(ends):
            assert_equal(of_vec_env[3][row]["terminal_observation"], info["final_obs"], row)
            assert_equal(of_vector[4]["final_obs"][row], info["final_obs"], row)
            for key in ("episode_return", "episode_length", *batch.spec.metric_names):
                assert all(other[4][key][row] == info[key][row] for other in of_torch)
            for key in batch.spec.metric_names:
                assert of_vec_env[3][row][key] == info[key][row]
                assert of_vector[4]["final_info"][key][row] == info[key][row]
                assert of_vector[4]["final_info"][f"_{key}"][row]
        ended += ends.sum()
        if ended >= ENOUGH_ENDS:
            break
    spec = batch.spec
    assert spec.render_info(tensors.state) == spec.render_info(batch.state)
    if (board := spec.render_board(batch.state)) is not None:
        assert_equal(spec.render_board(tensors.state), board)


@every_case
def test_callers_may_change_what_they_gave_and_got(env_id, settings):
    spec = make_env_spec(env_id, **settings)
    env, other = BatchedEnv(spec, 4, seed=6), BatchedEnv(spec, 4, seed=6)
    tensors = make_torch_env(env_id, 4, seed=6, **settings)
    first, _ = other.reset()
    for one in (env, tensors):
        obs, revealed = one.reset(options={"reveal": True})
        assert_equal(obs, first)
        spoil(obs, revealed["parameters"])
    for action in actions(env, 25):
        expected = other.step(action)
        for one in (env, tensors):
            given = action.copy() if one is env else torch.as_tensor(action.copy())
            obs, reward, *ends, info = one.step(given)
            spoil(given)
            assert_equal(obs, expected[0])
            spoil(reward)
            assert_equal(obs, expected[0])
            spoil(obs)
            results = {key: values for key, values in info.items() if key != "final_obs"}
            spoil(results, info.get("final_obs", {}), *ends)
            assert_equal(one.get_state(), other.get_state())


@every_case
def test_environments_do_not_depend_on_the_batch(env_id, settings):
    spec = make_env_spec(env_id, **settings)
    whole = BatchedEnv(spec, 7, seed=9)
    pieces = [BatchedEnv(spec, n, seed=9, first_index=i) for i, n in ((0, 1), (1, 4), (5, 2))]
    for env in (whole, *pieces):
        env.reset()
    ended = 0
    for action in actions(whole):
        result = whole.step(action)
        for piece in pieces:
            rows = slice(piece.first_index, piece.first_index + piece.num_envs)
            result_again = piece.step(action[rows])
            for actual, expected in zip(result_again[:3], result[:3], strict=True):
                assert_equal(actual, expected, rows)
        ended += result[2].sum()
        if ended >= ENOUGH_ENDS:
            break


@every_case
def test_a_saved_state_continues_exactly(env_id, settings):
    env = BatchedEnv(make_env_spec(env_id, **settings), 4, seed=2**64 - 1, first_index=4)
    env.reset()
    todo = actions(env, 100)
    for action in todo[:37]:
        env.step(action)
    file, kept = io.BytesIO(), env.get_state()
    np.savez(file, **kept)
    file.seek(0)
    with np.load(file) as saved:
        saved = dict(saved)
    again = BatchedEnv(env.spec, 4)
    copies = [again, make_torch_env(env_id, 4, **settings), make_vec_env(env_id, 4, **settings)]
    for other in copies:
        assert_equal(other.set_state(saved), env.spec.observe(env.state))
    assert (again.seed, again.first_index) == (2**64 - 1, 4)
    for action in todo[37:]:
        result = env.step(action)
        for other in copies:
            there = other.step(action)
            for actual, expected in zip(there[:3], result[:3], strict=True):
                assert_equal(actual, expected)
            if other is again:
                for key in result[4] | there[4]:
                    assert_equal(there[4][key], result[4][key])
    for one, two in ((again.get_state(), env.get_state()), (kept, saved)):
        assert_equal(one, two)


@every_case
def test_states_are_within_their_bounds_and_others_are_refused(env_id, settings):
    env = BatchedEnv(make_env_spec(env_id, **settings), 4, seed=5)
    env.reset()
    bounds = {"t": (0, env.spec.max_episode_length - 1), **env.spec.state_bounds}
    assert bounds.keys() <= env.state.keys()
    for action in actions(env, 300):
        env.step(action)
        for key, (low, high) in bounds.items():
            assert low <= env.state[key].min() <= env.state[key].max() <= high, key
    saved = env.get_state()
    for key, (low, high) in bounds.items():
        for wrong in (low - 1, high + 1):
            values = saved[f"task/{key}"].astype(np.int64)
            values.flat[-1] = wrong
            with pytest.raises(ValueError, match=rf"'task/{key}' must be in \[.*got {wrong}\."):
                env.set_state({**saved, f"task/{key}": values})
    for key, values in saved.items():
        if values.dtype.kind == "f":
            with pytest.raises(ValueError, match=f"'{key}' must be finite, got nan"):
                env.set_state({**saved, key: values * np.nan})
        elif values.dtype.kind == "b":
            with pytest.raises(TypeError, match="bool"):
                env.set_state({**saved, key: values + 2})
    for key, values in env.get_state().items():
        np.testing.assert_array_equal(values, saved[key])


GOLDEN = Path(__file__).parents[1] / "golden" / "envs.json"


@every_env
def test_a_seed_gives_the_same_on_every_platform(env_id, request):
    """With --golden the digests of new environments are written."""
    golden = json.loads(GOLDEN.read_text())
    if env_id not in golden and request.config.getoption("golden"):
        golden[env_id] = digest(env_id)
        GOLDEN.write_text(json.dumps(golden, indent=2) + "\n")
    assert golden.get(env_id) == digest(env_id)


def test_a_seed_gives_the_same_in_another_process():
    env_id = "rlgates/ActiveMatch-v0"
    code = f"from support.env_cases import digest; print(digest({env_id!r}))"
    tests = Path(__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, cwd=tests, check=True)
    assert done.stdout.decode().strip() == digest(env_id)


# Checkers


@every_env
def test_the_checkers_pass(env_id):
    env = gymnasium.make(env_id, render_mode="rgb_array").unwrapped
    small = ".*minimal resolution for an image is 36x36"
    published = "(?i).*we recommend.*symmetric and normalized"  # the torque of the pendulum
    cells = "It seems that your observation"  # it takes every array with three axes for an image
    run_the_checkers(env, small, published, cells, render=True)


# Episode parameters


@every_case
def test_parameters_can_be_overridden_and_are_reported(env_id, settings):
    env = gymnasium.make(env_id, **settings).unwrapped
    spec = env.env_spec
    for seed in range(5):
        first, info = env.reset(seed=seed, options={"reveal": True})
        assert info["parameters"].keys() == spec.parameters.keys()
        # The same parameters in another episode give the same observations, to its end.
        other = gymnasium.make(env_id, env_index=77, **settings).unwrapped
        options = {"reveal": True, **info["parameters"]}
        same, again = other.reset(seed=99, options=options)
        assert again == info
        assert_equal(same, first)
        for action in actions(BatchedEnv(spec, 1), spec.max_episode_length)[:, 0]:
            one, two = env.step(action), other.step(action)
            assert_equal(one[0], two[0])
            assert one[1:] == two[1:]
            if one[2]:
                break
    sampled = spec.sample(Key(4, np.array([0]), np.array([0])))
    assert info["parameters"] == report_single(spec.parameters, sampled)


@every_env
def test_parameters_of_a_batch(env_id):
    env, tensors = BatchedEnv(make_env_spec(env_id), 4, seed=0), make_torch_env(env_id, 4, seed=0)
    vec_env = make_vec_env(env_id, 4, seed=0)
    reported = env.reset(options={"reveal": True})[1]["parameters"]
    for key, values in tensors.reset(options={"reveal": True})[1]["parameters"].items():
        np.testing.assert_array_equal(values, reported[key])
    vec_env.set_options({"reveal": True})
    vec_env.reset()
    for row, info in enumerate(vec_env.reset_infos):
        row_parameters = {key: values[row].tolist() for key, values in reported.items()}
        assert info["parameters"] == row_parameters
    key = next(iter(reported))
    kinds = {name: values.dtype for name, values in env.state.items()}
    env.reset(options={name: values[0].tolist() for name, values in reported.items()})
    assert {name: values.dtype for name, values in env.state.items()} == kinds
    fixed = env.reset(options={key: reported[key][2].tolist(), "reveal": True})[1]["parameters"]
    assert all(np.array_equal(row, reported[key][2]) for row in fixed[key])
    vec_env.set_options([{key: reported[key][row].tolist()} for row in (0, 0, 0, 0)])
    vec_env.reset()
    with pytest.raises(ValueError, match=f"unknown reset option .*{key}"):
        env.reset(options={f"{key}s": 0})
    with pytest.raises(TypeError, match="reveal must be True or False"):
        env.reset(options={"reveal": 1})


def test_environments_of_a_vec_env_take_the_same_options():
    env = make_vec_env("rlgates/PassiveMatch-v0", 2, seed=0)
    env.set_options([{"target_color": 0}, {"target_color": 1}])
    with pytest.raises(ValueError, match="environments of a batch take the same reset options"):
        env.reset()


def test_a_batch_can_be_copied():
    for env in (BatchedEnv(make_env_spec(PASSIVE), 2, seed=0), make_torch_env(PASSIVE, 2, seed=0)):
        env.reset()
        other = pickle.loads(pickle.dumps(copy.deepcopy(env)))
        for action in actions(env, 30):
            assert_equal(other.step(action)[0], env.step(action)[0])


def test_tensors_of_an_environment_have_no_gradients():
    env = make_torch_env("rlgates/StatelessPendulum-v0", 2, seed=0, add_previous_action=True)
    env.reset()
    obs, reward, *_ = env.step(torch.zeros(2, 1, requires_grad=True))
    for tensor in (reward, *obs.values(), *env.state.values()):
        assert not tensor.requires_grad
    env.get_state()


def test_numpy_scalars_are_numbers():
    env = gymnasium.make(PASSIVE).unwrapped
    first, _ = env.reset(seed=4)
    for seed in (np.int32(4), np.uint64(4), np.int64(4), np.uint8(4)):
        assert_equal(env.reset(seed=seed)[0], first)
    env.step(np.uint64(1))
    batch = BatchedEnv(make_env_spec(PASSIVE), 2, 0, np.uint64(1))
    tensors = make_torch_env(PASSIVE, 2, 0, first_index=1)
    for one in (batch, tensors):
        one.reset()
        for kind in ("uint8", "uint16", "uint32", "uint64", "int8", "int32"):
            one.step(np.ones(2, dtype=kind))
            with pytest.raises(ValueError, match=r"actions must be in \[0, 4\), got 4"):
                one.step(np.full(2, 4, dtype=kind))
        with pytest.raises(ValueError, match=r"actions must be in \[0, 4\)"):
            one.step(np.full(2, 2**64 - 1, dtype=np.uint64))
    tensors.step(torch.ones(2, dtype=torch.uint16))
