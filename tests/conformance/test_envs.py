"""What every batched environment promises, whatever front end, batch size or device it has."""

from __future__ import annotations

import copy
import hashlib
import json
import pickle
import subprocess
import sys
import warnings
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode
from stable_baselines3.common import env_checker as sb3_checker

from conformance.env_cases import CASES, name
from rlgates.envs import TASKS, BatchedEnv, make_task
from rlgates.envs.choices import tell_one
from rlgates.envs.philox import Key
from rlgates.envs.sb3 import make_vec_env
from rlgates.envs.torch import make_torch_env

every_case = pytest.mark.parametrize(("env_id", "settings"), CASES, ids=map(name, CASES))
every_env = pytest.mark.parametrize("env_id", TASKS)
STEPS = 1_000
PASSIVE = "rlgates/PassiveMatch-v0"


def actions(env, steps: int = STEPS, seed: int = 0) -> np.ndarray:
    """Random actions; the first one is likelier, which leads to the pads and the door."""
    count = int(env.task.action_space.n)
    weights = np.where(np.arange(count) == 0, 2.0, 1.0)
    rng = np.random.default_rng(seed)
    return rng.choice(count, size=(steps, env.num_envs), p=weights / weights.sum())


def parts(obs) -> dict[str, np.ndarray]:
    """Observations by name, as NumPy arrays."""
    named = obs if isinstance(obs, dict) else {"": obs}
    return {key: np.asarray(values) for key, values in named.items()}


def assert_equal(one, two, rows=...) -> None:
    one, two = parts(one), parts(two)
    assert one.keys() == two.keys()
    for key in one:
        assert one[key].dtype == two[key].dtype
        np.testing.assert_array_equal(one[key], two[key][rows], err_msg=key)


def assert_in(space: gymnasium.Space, obs) -> None:
    assert space.contains(obs), obs


# The definition


@every_env
def test_defaults_and_presets_make_an_environment(env_id):
    for preset in (None, *TASKS[env_id].presets):
        task = make_task(env_id, preset=preset)
        env = BatchedEnv(task, 2, seed=0)
        obs, info = env.reset()
        assert info == {}
        for row in range(2):
            assert_in(
                task.observation_space,
                {k: v[row] for k, v in obs.items()} if isinstance(obs, dict) else obs[row],
            )
        obs, reward, terminated, truncated, info = env.step(actions(env, 1)[0])
        assert (reward.dtype, terminated.dtype, truncated.dtype) == (np.float32, bool, bool)


@every_case
def test_a_step_leaves_the_state_as_it_is(env_id, settings):
    env = BatchedEnv(make_task(env_id, **settings), 6, seed=1)
    env.reset()
    for action in actions(env, 60):
        before = {key: values.copy() for key, values in env.state.items()}
        one, two = env.task.step(env.state, action), env.task.step(env.state, action)
        env.task.observe(env.state), env.task.board(env.state), env.task.metrics(env.state)
        for key, values in before.items():
            np.testing.assert_array_equal(env.state[key], values, err_msg=key)
        for key in one[0]:
            np.testing.assert_array_equal(one[0][key], two[0][key])
            assert one[0][key].dtype == before[key].dtype, key
        env.step(action)


@every_case
def test_lengths_metrics_and_moments_are_as_promised(env_id, settings):
    env = BatchedEnv(make_task(env_id, **settings), 16, seed=2)
    task = env.task
    env.reset()
    lengths = set()
    for action in actions(env, 3 * task.max_episode_length):
        state = env.state
        for moment, phase in zip(task.moments(state), task.phase(state), strict=True):
            assert moment.phase == (task.phase_names[phase] if task.phase_names else "")
            assert moment.steps_left > 0
        board = task.board(state)
        assert board.dtype == np.uint8
        assert board.shape[0] == 16
        assert board.shape[3] == 3
        _, _, terminated, _, info = env.step(action)
        if terminated.any():
            lengths |= set(info["episode_length"][terminated].tolist())
            assert {"final_obs", "episode_return", *task.metric_names} < set(info)
            assert info["is_success"].dtype == bool
    assert max(lengths) <= task.max_episode_length
    if task.fixed_length:
        assert lengths == {task.max_episode_length}
    else:
        assert len(lengths) > 1


@every_case
def test_tasks_are_plain_data(env_id, settings):
    task = make_task(env_id, **settings)
    for other in (copy.deepcopy(task), pickle.loads(pickle.dumps(task))):
        assert (other, repr(other), hash(other)) == (task, repr(task), hash(task))
        assert other.observation_space == task.observation_space


# Rows, batches, front ends, devices


@every_case
def test_row_k_is_the_single_environment_k(env_id, settings):
    batch = BatchedEnv(make_task(env_id, **settings), 3, seed=21, first_index=3)
    singles = [gymnasium.make(env_id, env_index=3 + k, **settings) for k in range(3)]
    first, _ = batch.reset()
    for row, env in enumerate(singles):
        assert_equal(env.reset(seed=21)[0], first, row)
    ended = 0
    for action in actions(batch):
        obs, rewards, ends, _, info = batch.step(action)
        for row, env in enumerate(singles):
            seen, reward, terminated, truncated, own = env.step(action[row])
            assert (reward, terminated, truncated) == (rewards[row], ends[row], False)
            if terminated:
                assert_equal(seen, info["final_obs"], row)
                assert own == {key: info[key][row] for key in batch.task.metric_names}
                seen, _ = env.reset()
                ended += 1
            assert_equal(seen, obs, row)
    assert ended >= 3


@every_case
def test_the_other_front_ends_equal_the_batch(env_id, settings):
    batch = BatchedEnv(make_task(env_id, **settings), 5, seed=3)
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
    for action in actions(batch):
        obs, rewards, ends, _, info = batch.step(action)
        of_vector = vector.step(action)
        of_vec_env = vec_env.step(action)
        of_torch = [env.step(torch.as_tensor(action)) for env in (tensors, masked)]
        for other in (of_vector, of_vec_env, *of_torch):
            assert_equal(other[0], obs)
            np.testing.assert_array_equal(other[1], rewards)
            np.testing.assert_array_equal(other[2], ends)
        for other in of_torch:
            assert other[1].dtype == torch.float32
            assert not other[3].any()
        for row in np.flatnonzero(ends):
            assert_equal(of_vec_env[3][row]["terminal_observation"], info["final_obs"], row)
            if "observation" not in parts(obs):
                assert_equal(of_vector[4]["final_obs"][row], info["final_obs"], row)
            for key in ("episode_return", "episode_length", *batch.task.metric_names):
                assert all(other[4][key][row] == info[key][row] for other in of_torch)
            for key in batch.task.metric_names:
                assert of_vec_env[3][row][key] == info[key][row]
                assert of_vector[4]["final_info"][key][row] == info[key][row]
                assert of_vector[4]["final_info"][f"_{key}"][row]


@every_case
def test_rows_do_not_depend_on_the_batch(env_id, settings):
    task = make_task(env_id, **settings)
    whole = BatchedEnv(task, 7, seed=9)
    pieces = [BatchedEnv(task, n, seed=9, first_index=i) for i, n in ((0, 1), (1, 4), (5, 2))]
    for env in (whole, *pieces):
        env.reset()
    for action in actions(whole):
        result = whole.step(action)
        for piece in pieces:
            rows = slice(piece.first_index, piece.first_index + piece.num_envs)
            got = piece.step(action[rows])
            for mine, its in zip(got[:3], result[:3], strict=True):
                assert_equal(mine, its, rows)


@every_case
def test_a_saved_state_goes_on_exactly(env_id, settings):
    env = BatchedEnv(make_task(env_id, **settings), 4, seed=5)
    env.reset()
    todo = actions(env, 100)
    for action in todo[:37]:
        env.step(action)
    copies = [BatchedEnv(env.task, 4), make_torch_env(env_id, 4, **settings)]
    for other in copies:
        assert_equal(other.set_state(env.get_state()), env.task.observe(env.state))
    for action in todo[37:]:
        result = env.step(action)
        for other in copies:
            for mine, its in zip(other.step(action)[:3], result[:3], strict=True):
                assert_equal(mine, its)


@every_case
def test_states_are_within_their_bounds_and_others_are_refused(env_id, settings):
    env = BatchedEnv(make_task(env_id, **settings), 4, seed=5)
    env.reset()
    bounds = {"t": (0, env.task.max_episode_length - 1), **env.task.state_bounds}
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


def digest(env_id: str) -> str:
    """Of all that 8 environments give in 300 steps."""
    settings = next(s for i, s in CASES if i == env_id)
    env = BatchedEnv(make_task(env_id, **settings), 8, seed=2**63 + 11)
    obs, _ = env.reset()
    seen = hashlib.sha256(obs.tobytes())
    numbers = Key(0, np.arange(300), np.zeros(300, dtype=np.int64)).words(8)
    for action in numbers % int(env.task.action_space.n):
        obs, reward, end, _, _ = env.step(action)
        for values in (obs, reward, end):
            seen.update(
                np.ascontiguousarray(values).astype(values.dtype.newbyteorder("<")).tobytes()
            )
    return seen.hexdigest()


GOLDEN = Path(__file__).parents[1] / "golden" / "envs.json"


@every_env
def test_a_seed_gives_the_same_on_every_platform(env_id):
    assert json.loads(GOLDEN.read_text())[env_id] == digest(env_id)


def test_a_seed_gives_the_same_in_another_process():
    env_id = "rlgates/ActiveMatch-v0"
    code = f"from conformance.test_envs import digest; print(digest({env_id!r}))"
    tests = Path(__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, cwd=tests, check=True)
    assert done.stdout.decode().strip() == digest(env_id)


# Checkers


@every_env
def test_the_checkers_pass(env_id):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*minimal resolution for an image is 36x36")
        check_env(gymnasium.make(env_id, render_mode="rgb_array").unwrapped)
        sb3_checker.check_env(gymnasium.make(env_id).unwrapped)


# Choices


@every_case
def test_choices_can_be_fixed_and_are_told(env_id, settings):
    env = gymnasium.make(env_id, **settings).unwrapped
    task = env.task
    for seed in range(5):
        first, info = env.reset(seed=seed, options={"reveal": True})
        assert info["choices"].keys() == task.choices.keys()
        # The same choices in another episode give the same pictures, to the end of it.
        other = gymnasium.make(env_id, env_index=77, **settings).unwrapped
        options = {"reveal": True, **info["choices"]}
        same, again = other.reset(seed=99, options=options)
        assert again == info
        assert_equal(same, first)
        for action in actions(BatchedEnv(task, 1), task.max_episode_length)[:, 0]:
            one, two = env.step(action), other.step(action)
            assert_equal(one[0], two[0])
            assert one[1:] == two[1:]
            if one[2]:
                break
    drawn = task.draw(Key(4, np.array([0]), np.array([0])))
    assert info["choices"] == tell_one(task.choices, drawn)


@every_env
def test_choices_of_a_batch(env_id):
    env, tensors = BatchedEnv(make_task(env_id), 4, seed=0), make_torch_env(env_id, 4, seed=0)
    vec_env = make_vec_env(env_id, 4, seed=0)
    told = env.reset(options={"reveal": True})[1]["choices"]
    for key, values in tensors.reset(options={"reveal": True})[1]["choices"].items():
        np.testing.assert_array_equal(values, told[key])
    vec_env.set_options({"reveal": True})
    vec_env.reset()
    for row, info in enumerate(vec_env.reset_infos):
        assert info["choices"] == {key: values[row].tolist() for key, values in told.items()}
    key = next(iter(told))
    fixed = env.reset(options={key: told[key][2].tolist(), "reveal": True})[1]["choices"]
    assert all(np.array_equal(row, told[key][2]) for row in fixed[key])
    vec_env.set_options([{key: told[key][row].tolist()} for row in (0, 0, 0, 0)])
    vec_env.reset()
    with pytest.raises(ValueError, match=f"unknown reset option .*{key}"):
        env.reset(options={f"{key}s": 0})
    with pytest.raises(TypeError, match="reveal must be True or False"):
        env.reset(options={"reveal": 1})


def test_rows_of_a_vec_env_take_the_same_options():
    env = make_vec_env("rlgates/PassiveMatch-v0", 2, seed=0)
    env.set_options([{"target_color": 0}, {"target_color": 1}])
    with pytest.raises(ValueError, match="rows of a batch take the same reset options"):
        env.reset()


def test_a_batch_can_be_copied():
    for env in (BatchedEnv(make_task(PASSIVE), 2, seed=0), make_torch_env(PASSIVE, 2, seed=0)):
        env.reset()
        other = pickle.loads(pickle.dumps(copy.deepcopy(env)))
        for action in actions(env, 30):
            assert_equal(other.step(action)[0], env.step(action)[0])


def test_numpy_scalars_are_numbers():
    env = gymnasium.make(PASSIVE).unwrapped
    first, _ = env.reset(seed=4)
    for seed in (np.int32(4), np.uint64(4), np.int64(4), np.uint8(4)):
        assert_equal(env.reset(seed=seed)[0], first)
    env.step(np.uint64(1))
    batch = BatchedEnv(make_task(PASSIVE), 2, 0, np.uint64(1))
    batch.reset()
    batch.step(np.ones(2, dtype=np.uint64))
