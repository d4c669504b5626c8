"""Games that users register."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import gymnasium
import pytest

from rlgates.envs import ENVS, EnvSpec, MemoryChain, make_env_spec, register_env
from rlgates.envs.sb3 import make_vec_env


@dataclass(frozen=True, kw_only=True)
class Chain(MemoryChain):
    env_id: ClassVar[str] = "mine/Chain-v3"


@pytest.fixture(autouse=True)
def _tables() -> Iterator[None]:
    before = dict(ENVS)
    yield
    for env_id in ENVS.keys() - before:
        del ENVS[env_id], gymnasium.registry[env_id]


def test_a_game_of_a_user_is_one_of_them() -> None:
    assert register_env(Chain) is Chain
    register_env(Chain)  # as in a notebook
    assert make_env_spec("mine/Chain-v3", num_bits=3) == Chain(num_bits=3)
    assert gymnasium.make("mine/Chain-v3").unwrapped.env_spec == Chain()
    assert make_vec_env("mine/Chain-v3", 2).num_envs == 2


def test_games_of_the_package_are_registered_by_their_files() -> None:
    assert {"rlgates/PassiveMatch-v0", "rlgates/RepeatPrevious-v0"} <= ENVS.keys()
    assert all(game.env_id == env_id for env_id, game in ENVS.items())


class NoDataclass(EnvSpec):
    env_id = "mine/New-v0"


class Unnamed(MemoryChain):
    """Its inherited id is that of the other."""


@dataclass(frozen=True, kw_only=True)
class BadId(MemoryChain):
    env_id: ClassVar[str] = "Chain"


@dataclass(frozen=True, kw_only=True)
class Taken(MemoryChain):
    env_id: ClassVar[str] = "rlgates/MemoryChain-v0"


@pytest.mark.parametrize(
    ("game", "error", "message"),
    [
        (Chain(), TypeError, "must be a dataclass that subclasses EnvSpec, got Chain"),
        (NoDataclass, TypeError, "must be a dataclass that subclasses EnvSpec"),
        (Unnamed, ValueError, "env_id of Unnamed must be '<namespace>/<Name>-v<number>', got None"),
        (BadId, ValueError, "got 'Chain'"),
        (Taken, ValueError, "'rlgates/MemoryChain-v0' is taken by MemoryChain"),
    ],
)
def test_games_are_checked(game: Any, error: type[Exception], message: str) -> None:
    before = dict(ENVS)
    with pytest.raises(error, match=message):
        register_env(game)
    assert before == ENVS
