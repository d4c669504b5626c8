"""Checks of one game: against a slow twin, by hand, and with scripted players."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from stable_baselines3.common import env_checker as sb3_checker
from support.players import ShuffledCue

from rlgates.envs.engine.arrays import Array
from rlgates.envs.engine.batched import BatchedEnv
from rlgates.envs.engine.players import play
from rlgates.envs.engine.spec import EnvSpec


class Twin(Protocol):
    """One episode of a game, in plain Python."""

    def look(self) -> Any:
        """The current observation, as a number or a list of numbers."""

    def step(self, action: int) -> tuple[float, bool]: ...
    def metrics(self) -> dict[str, float]: ...


Draw = Callable[[np.random.Generator, int], Array]
"""Random actions (B,) for as many rows."""


def uniform(count: int) -> Draw:
    return lambda rng, rows: rng.integers(count, size=rows)


def compare_with_twins(
    spec: EnvSpec, make_twin: Callable[[dict[str, Any]], Twin], draw: Draw, rows: int = 100
) -> dict[str, Array]:
    """Compare one random episode per environment with its twin; returns the final metrics."""
    env = BatchedEnv(spec, rows, seed=17)
    obs, info = env.reset(options={"reveal": True})
    reported = {name: values.tolist() for name, values in info["parameters"].items()}
    twins = [make_twin({name: reported[name][row] for name in reported}) for row in range(rows)]
    rng = np.random.default_rng(17)
    for _ in range(spec.max_episode_length):
        np.testing.assert_array_equal(obs, _as(obs, [twin.look() for twin in twins]))
        actions = draw(rng, rows)
        results = [twin.step(int(a)) for twin, a in zip(twins, actions, strict=True)]
        obs, reward, terminated, truncated, info = env.step(actions)
        np.testing.assert_array_equal(
            reward, _as(reward, [step_reward for step_reward, _ in results])
        )
        np.testing.assert_array_equal(terminated, [ends for _, ends in results])
        assert not truncated.any()
    assert terminated.all()
    last = info["final_obs"]
    np.testing.assert_array_equal(last, _as(last, [twin.look() for twin in twins]))
    for name in spec.metric_names:
        expected = [twin.metrics()[name] for twin in twins]
        np.testing.assert_array_equal(info[name], _as(info[name], expected), err_msg=name)
    return {name: info[name] for name in spec.metric_names}


def _as(like: Array, numbers: Any) -> Array:
    return np.asarray(numbers).astype(like.dtype)


def by_hand(
    spec: EnvSpec, options: Mapping[str, Any], actions: list[int]
) -> tuple[list[Any], list[float], dict[str, Any]]:
    """Observations, rewards and the last info of one whole episode."""
    env = BatchedEnv(spec, 1, seed=0)
    obs, _ = env.reset(options=options)
    observations, rewards, info = [obs[0].tolist()], [], {}
    for action in actions:
        obs, reward, terminated, _, info = env.step([action])
        observations.append(obs[0].tolist())
        rewards.append(float(reward[0]))
    assert terminated.all()
    observations[-1] = info["final_obs"][0].tolist()
    return observations, rewards, info


def check_that_memory_decides(
    spec: EnvSpec,
    is_cue: Callable[[Array, Array], Array],
    paid: Callable[[float], float],
    episodes: int = 2000,
) -> None:
    """With memory all succeed; without it, or with that of another episode, as many as by chance.

    Args:
        spec: the game.
        is_cue: which observations tell the answer, as `ShuffledCue` asks for them.
        paid: the mean return at a rate of success.
        episodes: how many are played.
    """
    margin = 4 * math.sqrt(spec.chance * (1 - spec.chance) / episodes)
    for player, expected in (
        (spec.memory_player(), 1.0),
        (spec.reactive_player(), pytest.approx(spec.chance, abs=margin)),
        (ShuffledCue(spec.memory_player(), is_cue), pytest.approx(spec.chance, abs=margin)),
    ):
        result = play(BatchedEnv(spec, 500), player, episodes)
        assert result["is_success"] == expected
        assert result["episode_return"] == pytest.approx(paid(result["is_success"]))


def run_the_checkers(env: gymnasium.Env[Any, Any], *ignored: str, render: bool = False) -> None:
    """Those of gymnasium and of SB3, without warnings of these beginnings."""
    with warnings.catch_warnings():
        for message in ignored:
            warnings.filterwarnings("ignore", message=message)
        check_env(env, skip_render_check=not render)
        sb3_checker.check_env(env, skip_render_check=not render)


def in_letters(board: Array, letters: dict[tuple[int, ...], str]) -> list[str]:
    """A board (height, width, 3) with a letter for each colour."""
    return ["".join(letters[tuple(pixel)] for pixel in row) for row in board.tolist()]
