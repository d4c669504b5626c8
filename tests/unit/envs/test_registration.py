"""Games that users register."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from rlgates import RecurrentPPO
from rlgates.envs import ENVS, BatchedEnv, EnvSpec, MemoryChain, View, make_env_spec, register_env
from rlgates.envs.engine.arrays import Array, namespace
from rlgates.envs.engine.philox import Key
from rlgates.envs.engine.spec import State
from rlgates.envs.sb3 import make_vec_env
from rlgates.envs.torch import TorchEnv, make_torch_env
from rlgates.envs.wrappers import PreviousActionReward


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


@dataclass(frozen=True, kw_only=True)
class Counting(EnvSpec):
    """Shows the number of the step; of 1 to 9 steps, by the action."""

    env_id: ClassVar[str] = "mine/Counting-v0"
    observation_space: ClassVar[Any] = spaces.Dict(
        a=spaces.Discrete(10), b=spaces.Box(0, 9, (2,), np.float32)
    )
    action_space: ClassVar[Any] = spaces.Discrete(2)
    max_episode_length: ClassVar[int] = 9
    fixed_length: bool = False

    def sample(self, key: Key) -> dict[str, Array]:
        return {"n": key.words(1)[:, 0]}

    def initial_state(self, parameters: dict[str, Array]) -> State:
        return {"t": parameters["n"] * 0}

    def step(self, state: State, actions: Array) -> tuple[State, Array, Array]:
        t = state["t"] + 1
        return {"t": t}, namespace(t).astype(t, namespace(t).float32), (t == 9) | (actions == 1)

    def observe(self, state: State) -> Any:
        t, xp = state["t"], namespace(state["t"])
        return {"a": t + 0, "b": xp.astype(xp.stack([t, t], axis=1), xp.float32)}

    def metrics(self, state: State) -> dict[str, Array]:
        return {"is_success": state["t"] == 9}


@dataclass(frozen=True, kw_only=True)
class NeverEnding(Counting):
    env_id: ClassVar[str] = "mine/NeverEnding-v0"

    def step(self, state: State, actions: Array) -> tuple[State, Array, Array]:
        state, reward, _ = super().step(state, actions)
        return state, reward, state["t"] < 0


@dataclass(frozen=True, kw_only=True)
class Scored(Counting):
    env_id: ClassVar[str] = "mine/Scored-v0"

    def metrics(self, state: State) -> dict[str, Array]:
        return {"score": state["t"]}


both_kinds = pytest.mark.parametrize("make", [BatchedEnv, TorchEnv])


@both_kinds
def test_episodes_of_another_length_than_the_game_says(make: Any) -> None:
    early = make(Counting(fixed_length=True), 2, 0)
    early.reset()
    early.step([0, 0])
    with pytest.raises(ValueError, match=r"but an episode ended at step 2 of .*=9: define"):
        early.step([0, 1])
    late = make(NeverEnding(fixed_length=True), 2, 0)
    late.reset()
    for _ in range(8):
        late.step([0, 0])
    with pytest.raises(ValueError, match="but not every episode ended at step 9 of"):
        late.step([0, 0])
    right = make(Counting(), 2, 0)
    right.reset()
    obs = [right.step([0, step == 3])[0]["a"].tolist() for step in range(6)]
    assert obs == [[1, 1], [2, 2], [3, 3], [4, 0], [5, 1], [6, 2]]


@both_kinds
def test_metrics_without_a_name(make: Any) -> None:
    env = make(Scored(), 2, 0)
    env.reset()
    with pytest.raises(ValueError, match="must be those of metric_names, is_success, got score"):
        env.step([1, 0])


@pytest.mark.filterwarnings("ignore:add_previous_action")
def test_a_view_of_a_dictionary_has_its_entries() -> None:
    register_env(Counting)
    settings = {"add_previous_action": True, "add_time": True}
    space = make_vec_env("mine/Counting-v0", 2, **settings).observation_space
    assert list(space) == ["a", "b", "previous_action", "time"]
    inner = gymnasium.make("mine/Counting-v0")
    assert PreviousActionReward(inner, reward=False).observation_space["a"] == space["a"]
    env = BatchedEnv(make_env_spec("mine/Counting-v0", **settings), 2, 0)
    env.reset()
    obs, *_ = env.step([0, 0])
    assert {name: part.tolist() for name, part in obs.items()} == {
        "a": [1, 1],
        "b": [[1, 1], [1, 1]],
        "previous_action": [[1, 0], [1, 0]],
        "time": [[pytest.approx(1 / 9)]] * 2,
    }
    for make in (make_vec_env, make_torch_env):
        agent = RecurrentPPO(
            "MultiInputLstmPolicy",
            make("mine/Counting-v0", 2, **settings),
            n_steps=18,
            batch_size=36,
            policy_kwargs={"lstm_hidden_size": 4},
        )
        agent.learn(36)

    @dataclass(frozen=True, kw_only=True)
    class Timed(Counting):
        observation_space: ClassVar[Any] = spaces.Dict(time=spaces.Discrete(10))

    with pytest.raises(ValueError, match="add_time: the observation already has an entry 'time'"):
        View(Timed(), add_time=True)


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


@dataclass(frozen=True, kw_only=True)
class OfAnAdapter(MemoryChain):
    env_id: ClassVar[str] = "rlgates/MiniGridMemoryS7-v0"


@dataclass(frozen=True, kw_only=True)
class OfGymnasium(MemoryChain):
    env_id: ClassVar[str] = "phys2d/CartPole-v1"


@pytest.mark.parametrize(
    ("game", "error", "message"),
    [
        (OfAnAdapter, ValueError, "S7-v0' is taken in gymnasium's registry by .*:make_minigrid"),
        (OfGymnasium, ValueError, "v1' is taken in gymnasium's registry by .*Choose another"),
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
