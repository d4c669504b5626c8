"""What the small tasks are put through: step by step beside slow twins, and beside themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import array_api_compat.torch
import numpy as np

from rlgates.envs.arrays import Array
from rlgates.envs.engine import BatchedEnv, Task


class Twin(Protocol):
    """One episode of a task, in plain Python."""

    def look(self) -> Any:
        """The present observation, as a number or a list of numbers."""

    def step(self, action: int) -> tuple[float, bool]: ...
    def metrics(self) -> dict[str, float]: ...


Draw = Callable[[np.random.Generator, int], Array]
"""Random actions (B,) for as many rows."""


def uniform(count: int) -> Draw:
    return lambda rng, rows: rng.integers(count, size=rows)


def compare_with_twins(
    task: Task, make_twin: Callable[[dict[str, Any]], Twin], draw: Draw, rows: int = 100
) -> dict[str, Array]:
    """Play one random episode in each row beside its twin; the metrics at the end."""
    env = BatchedEnv(task, rows, seed=17)
    obs, info = env.reset(options={"reveal": True})
    told = {name: values.tolist() for name, values in info["choices"].items()}
    twins = [make_twin({name: told[name][row] for name in told}) for row in range(rows)]
    rng = np.random.default_rng(17)
    for _ in range(task.max_episode_length):
        np.testing.assert_array_equal(obs, _as(obs, [twin.look() for twin in twins]))
        actions = draw(rng, rows)
        results = [twin.step(int(a)) for twin, a in zip(twins, actions, strict=True)]
        obs, reward, terminated, truncated, info = env.step(actions)
        np.testing.assert_array_equal(reward, _as(reward, [paid for paid, _ in results]))
        np.testing.assert_array_equal(terminated, [ends for _, ends in results])
        assert not truncated.any()
    assert terminated.all()
    last = info["final_obs"]
    np.testing.assert_array_equal(last, _as(last, [twin.look() for twin in twins]))
    for name in task.metric_names:
        expected = [twin.metrics()[name] for twin in twins]
        np.testing.assert_array_equal(info[name], _as(info[name], expected), err_msg=name)
    return {name: info[name] for name in task.metric_names}


def _as(like: Array, numbers: Any) -> Array:
    return np.asarray(numbers).astype(like.dtype)


def compare_with_torch(task: Task, steps: int = 1_000, rows: int = 3) -> None:
    """The same run with tensors: equal bits and equal types."""
    here = BatchedEnv(task, rows, seed=5)
    there = BatchedEnv(task, rows, seed=5, xp=array_api_compat.torch)
    (obs, info), (obs_there, info_there) = (
        env.reset(options={"reveal": True}) for env in (here, there)
    )
    _assert_equal(obs, obs_there)
    for name, values in info["choices"].items():
        _assert_equal(values, info_there["choices"][name])
    rng = np.random.default_rng(5)
    ended = 0
    for _ in range(steps):
        actions = rng.integers(int(task.action_space.n), size=rows)
        one, two = here.step(actions), there.step(actions)
        for a, b in zip(one[:4], two[:4], strict=True):
            _assert_equal(a, b)
        assert one[4].keys() == two[4].keys()
        for name, values in one[4].items():
            _assert_equal(values, two[4][name])
        ended += int(one[2].sum())
    assert ended > 0
    _assert_equal(task.board(here.state), task.board(there.state))
    assert task.moments(here.state) == task.moments(there.state)


def _assert_equal(here: Array, there: Any) -> None:
    assert str(here.dtype) == str(there.dtype).removeprefix("torch.")
    assert np.array_equal(here, there.numpy()), (here, there)


def check_contract(task: Task) -> None:
    """No function of the task writes into a state, and all keep to shapes, types and bounds."""
    rows = 6
    env = BatchedEnv(task, rows, seed=3)
    env.reset()
    rng = np.random.default_rng(3)
    state = env.state
    for t in range(task.max_episode_length):
        before = {name: values.copy() for name, values in state.items()}
        obs, board = task.observe(state), task.board(state)
        moments, phase = task.moments(state), task.phase(state)
        task.metrics(state)
        after, reward, terminated = task.step(state, rng.integers(task.action_space.n, size=rows))
        assert state.keys() == before.keys() == after.keys()
        for name, values in before.items():
            np.testing.assert_array_equal(state[name], values, err_msg=name)
            assert after[name].dtype == values.dtype, name
        assert all(task.observation_space.contains(row) for row in obs)
        assert (board.dtype, board.shape[0], board.shape[3]) == (np.uint8, rows, 3)
        assert [moment.steps_left for moment in moments] == [task.max_episode_length - t] * rows
        assert phase.shape == (rows,)
        assert (reward.dtype, reward.shape) == (np.float32, (rows,))
        assert terminated.tolist() == [t + 1 == task.max_episode_length] * rows
        state = after
    assert all(task.observation_space.contains(row) for row in task.observe(state))
    metrics = task.metrics(state)
    assert set(metrics) == set(task.metric_names)
    assert metrics["is_success"].dtype == bool
    assert task.board(state).shape == board.shape
    assert task.moments(state)[0].steps_left == 0


def in_letters(board: Array, letters: dict[tuple[int, ...], str]) -> list[str]:
    """A board (height, width, 3) with a letter for each colour."""
    return ["".join(letters[tuple(pixel)] for pixel in row) for row in board.tolist()]
