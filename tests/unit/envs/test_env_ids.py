"""Ids as MiniGrid and POPGym register them, and what a mistyped id suggests."""

from __future__ import annotations

import importlib
import re
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from rlgates.envs import BatchedEnv, make_env_spec
from rlgates.envs.adapters import minigrid, popgym
from rlgates.envs.registration import known_env_ids
from rlgates.envs.sb3 import make_vec_env
from rlgates.experiments.configs.gym_env import make_env
from rlgates.experiments.plots import frames

PUBLISHED = {"minigrid": minigrid, "popgym": popgym}
S7 = "MiniGrid-MemoryS7-v0"
EASY = "popgym-RepeatFirstEasy-v0"


@pytest.mark.parametrize("package", PUBLISHED)
def test_the_ids_are_those_that_the_package_registers(package: str) -> None:
    pytest.importorskip(f"{package}.envs")
    importlib.import_module(package)
    start = "MiniGrid-Memory" if package == "minigrid" else "popgym-"
    registered = {env_id for env_id in gymnasium.registry if env_id.startswith(start)}
    # POPGym registers no labyrinths where mazelib is missing.
    ours = {env_id for env_id in PUBLISHED[package].PUBLISHED if "Labyrinth" not in env_id}
    assert ours == {env_id for env_id in registered if "Labyrinth" not in env_id}


def test_an_id_of_minigrid_is_its_task() -> None:
    pytest.importorskip("minigrid.envs")
    for env_id in ("MiniGrid-MemoryS13Random-v0", S7):
        env = make_vec_env(env_id, 2, seed=3)
        published = gymnasium.make(env_id)
        assert env.action_space == published.action_space
        grid = published.reset(seed=4)[0]["image"]
        np.testing.assert_array_equal(env.reset()[1], grid)
        rng, ends = np.random.default_rng(0), [False]
        while not any(ends):
            action = rng.choice([0, 1, 2, 2, 5])
            grid, reward, *ends, _ = published.step(action)
            shown, rewards, done, infos = env.step(np.array([action] * 2))
            last = infos[1]["terminal_observation"] if done[1] else shown[1]
            np.testing.assert_array_equal(last, grid["image"])
            assert (rewards[1], done[1]) == (np.float32(reward), any(ends))
    small = make_vec_env(S7, 2, view_size=3, all_actions=False)
    assert small.observation_space.shape == (3, 3, 3)
    assert small.action_space == spaces.Discrete(3)


@pytest.mark.parametrize(
    ("env_id", "adapter"),
    [
        (EASY, "rlgates/popgym-RepeatFirstEasy-v0"),
        ("popgym-CountRecallHard-v0", "rlgates/popgym-CountRecallHard-v0"),
        ("popgym-VelocityOnlyCartpoleEasy-v0", "rlgates/popgym-VelocityOnlyCartPoleEasy-v0"),
    ],
)
def test_an_id_of_popgym_is_its_game_as_the_adapter_shows_it(env_id: str, adapter: str) -> None:
    pytest.importorskip("popgym.envs")
    env, same = make_vec_env(env_id, 2, seed=3), make_vec_env(adapter, 2, seed=3)
    assert env.observation_space == same.observation_space
    np.testing.assert_array_equal(env.reset(), same.reset())
    for _ in range(20):
        (*ours, _), (*theirs, _) = env.step(np.zeros(2, int)), same.step(np.zeros(2, int))
        np.testing.assert_equal(ours, theirs)


@pytest.mark.parametrize("package", PUBLISHED)
def test_the_batched_games_are_as_long_and_have_the_same_actions(package: str) -> None:
    pytest.importorskip(f"{package}.envs")
    ids = PUBLISHED[package].BATCHED
    assert len(ids) == len(PUBLISHED[package].IDS) - (4 if package == "popgym" else 0)
    for adapter, (game, settings) in ids.items():
        if "Labyrinth" in adapter:
            pytest.importorskip("mazelib")
        env: Any = gymnasium.make(adapter)
        spec = make_env_spec(game, **settings)
        assert spec.action_space == env.action_space, adapter
        if package == "popgym":
            sizes = (spaces.flatdim(made.observation_space) for made in (spec, env))
            assert len({*sizes}) == 1, adapter
        if "Labyrinth" not in adapter:  # POPGym counts the first observation
            length = env.unwrapped.max_episode_length
            assert length in (None, spec.max_episode_length), adapter


@pytest.mark.parametrize("env_id", [S7, EASY, "rlgates/popgym-BattleshipMedium-v0"])
def test_what_is_no_batch_is_refused_with_the_game_that_is_one(env_id: str) -> None:
    with pytest.raises(ValueError, match="is a single environment of gymnasium") as error:
        make_env_spec(env_id)
    (call,) = re.findall(r"make_env_spec\(.*?\)", str(error.value))
    spec = eval(call, {"make_env_spec": make_env_spec})
    BatchedEnv(spec, 2, seed=0).reset()
    pytest.importorskip("minigrid.envs" if "MiniGrid" in env_id else "popgym.envs")
    (call,) = re.findall(r"gymnasium.make\(.*?\)", str(error.value))
    env = eval(call, {"gymnasium": gymnasium})
    same = make_vec_env(env_id, 1)
    assert (env.observation_space, env.action_space) == (same.observation_space, same.action_space)
    assert env.action_space == spec.action_space


def test_a_game_without_a_batched_twin_names_none() -> None:
    with pytest.raises(
        ValueError, match=r"make_vec_env\('popgym-VelocityOnlyCartpoleHard-v0', 8\)\.$"
    ):
        make_env_spec("popgym-VelocityOnlyCartpoleHard-v0")


def test_a_person_plays_what_the_id_names() -> None:
    pytest.importorskip("minigrid.envs")
    env: Any = frames.make_env(S7, {})
    assert (env.view_size, env.action_space.n, env.observation) == (7, 7, "rgb")
    assert frames.make_env(S7, {"view_size": 3}).unwrapped.view_size == 3  # type: ignore[attr-defined]


TYPOS = [
    ("MiniGrid-MemoryS77-v0", S7),
    ("MiniGird-MemoryS13Random-v0", "MiniGrid-MemoryS13Random-v0"),
    ("popgym-RepeatFirstEazy-v0", EASY),
    ("popgm-RepeatFirstEasy-v0", EASY),
    ("popgym-VelocityOnlyCartPoleEasy-v0", "popgym-VelocityOnlyCartpoleEasy-v0"),
    ("rlgates/popgym-RepeatFirstEazy-v0", "rlgates/popgym-RepeatFirstEasy-v0"),
    ("rlgates/MiniGridMemoryS77-v0", "rlgates/MiniGridMemoryS7-v0"),
    ("rlgates/PassiveMach-v0", "rlgates/PassiveMatch-v0"),
    ("CountRecall-v0", "rlgates/CountRecall-v0"),
]


@pytest.mark.parametrize(("typo", "meant"), TYPOS)
def test_a_typo_suggests_the_nearest_of_all_ids(typo: str, meant: str) -> None:
    for make in (make_env_spec, lambda env_id: make_vec_env(env_id, 2)):
        with pytest.raises(ValueError, match="unknown environment id") as error:
            make(typo)
        assert f"{typo!r}. Did you mean {meant!r}? Allowed: " in str(error.value)
    with pytest.raises(ValueError, match=re.escape(f"Did you mean {meant!r}?")):
        frames.make_env(typo, {})


def test_the_command_that_trains_suggests_ids_of_packages_that_are_not_imported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for env_id in [*gymnasium.registry]:
        if env_id.startswith(("MiniGrid-", "popgym-")):
            monkeypatch.delitem(gymnasium.registry, env_id)
    for typo, meant in (("MiniGird-MemoryS7-v0", S7), ("popgm-RepeatFirstEasy-v0", EASY)):
        with pytest.raises(ValueError, match=re.escape(f"Did you mean {meant!r}?")):
            make_env(typo, {})
    with pytest.raises(ValueError, match=r"Did you mean: `CartPole`\?$"):
        make_env("CartPol-v1", {})


def test_every_known_id_is_known_once() -> None:
    ids = known_env_ids()
    assert len(ids) == len(set(ids)) > 140
