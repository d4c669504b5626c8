"""Environments of tensors: the agent's rollout is the same, and nothing leaves the device."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any, get_type_hints

import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback, StopTrainingOnMaxEpisodes
from stable_baselines3.common.vec_env import DummyVecEnv
from support.toys import BOX, Toy, model
from torch import Tensor

from rlgates import RecurrentA2C, RecurrentPPO
from rlgates.agents import evaluate_policy
from rlgates.agents.sequences.tensor_vec_env import LazyArray, TensorVecEnv
from rlgates.envs.sb3 import make_vec_env
from rlgates.envs.torch import TorchEnv, make_torch_env
from rlgates.errors import TrainingDiverged

TASK = "rlgates/PassiveMatch-v0"
SHORT = {"explore_steps": 3, "distractor_steps": 4, "reward_steps": 6}
VIEWS: dict[str, tuple[str, dict[str, Any]]] = {
    "images": ("CnnLstmPolicy", {}),
    "dictionary": (
        "MultiInputLstmPolicy",
        {"add_previous_action": True, "add_previous_reward": True},
    ),
}


def agent(env: Any, policy: str, kind: Any = RecurrentPPO, **kwargs: Any) -> Any:
    settings = {"n_steps": 26, "seed": 0, "device": "cpu", **kwargs}
    if kind is RecurrentPPO:
        settings |= {"batch_size": 52, "n_epochs": 1}
    sizes = {"core": "ur_lstm", "lstm_hidden_size": 7}
    return kind(policy, env, policy_kwargs=sizes, **settings)


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("kind", [RecurrentPPO, RecurrentA2C])
def test_an_agent_learns_the_same_in_both(view: str, kind: Any) -> None:
    policy, settings = VIEWS[view]
    tensor_model, numpy_model = (
        agent(make(TASK, 4, **SHORT, **settings), policy, kind).learn(208)
        for make in (make_torch_env, make_vec_env)
    )
    assert isinstance(tensor_model.env, TensorVecEnv)
    of_tensors, of_arrays = (m.rollout_buffer.sequences for m in (tensor_model, numpy_model))
    assert torch.equal(of_tensors.actions, of_arrays.actions)
    assert torch.equal(of_tensors.rewards, of_arrays.rewards)
    for result, expected in zip(
        tensor_model.policy.parameters(), numpy_model.policy.parameters(), strict=True
    ):
        torch.testing.assert_close(result, expected)
    assert [e["r"] for e in tensor_model.ep_info_buffer] == pytest.approx(
        [e["r"] for e in numpy_model.ep_info_buffer]
    )
    assert len(tensor_model.ep_info_buffer) == 16
    assert list(tensor_model.ep_success_buffer) == list(numpy_model.ep_success_buffer)


def test_a_rollout_creates_no_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    one = agent(make_torch_env(TASK, 4, 5, **SHORT), "CnnLstmPolicy")
    one.learn(104)
    _, callback = one._setup_learn(104, reset_num_timesteps=False)
    # What looks at a whole rollout, once.
    monkeypatch.setattr(one.env, "episodes", lambda most: [])
    monkeypatch.setattr(one, "_check_rollout", lambda: None)

    def refuse(*_: Any) -> Any:
        raise AssertionError("a tensor has left the device")

    for name in ("numpy", "cpu", "tolist", "__array__"):
        monkeypatch.setattr(torch.Tensor, name, refuse)
    one.collect_rollouts(one.env, callback, one.rollout_buffer, 26)


def test_episodes_reports_the_newest() -> None:
    env = TensorVecEnv(make_torch_env(TASK, 3, 5, **SHORT))
    env.reset()
    for _ in range(26):
        env.step(np.zeros(3, int))
    steps, infos = zip(*env.episodes(most=4), strict=True)
    assert steps == (12, 25, 25, 25)
    assert all(info["episode"]["l"] == 13 for info in infos)
    assert [info["env_index"] for info in infos] == [2, 0, 1, 2]
    assert env.episodes(most=4) == []


def test_types_are_those_of_tensors() -> None:
    env = make_torch_env(TASK, num_envs=3, seed=0, **SHORT)
    assert get_type_hints(make_torch_env)["return"] is type(env) is TorchEnv
    hints = [get_type_hints(of)["return"] for of in (TorchEnv.reset, TorchEnv.step)]
    Observation = torch.Tensor | dict[str, torch.Tensor]
    assert hints[0] == tuple[Observation, dict[str, Any]]
    assert hints[1] == tuple[Observation, *[torch.Tensor] * 3, dict[str, Any]]
    first, step = env.reset(), env.step(torch.zeros(3, dtype=torch.int64))
    for value in (first[0], *step[:4], env.set_state(env.get_state()), *env.state.values()):
        assert isinstance(value, torch.Tensor)


def test_agents_seed_their_own_spaces() -> None:
    one, two = (TensorVecEnv(make_torch_env(TASK, 3, 5, **SHORT)) for _ in range(2))
    before = str(two.action_space.np_random.bit_generator.state)
    one.action_space.seed(7)
    assert str(two.action_space.np_random.bit_generator.state) == before


def test_the_settings_of_a_batch_are_fixed() -> None:
    env = TensorVecEnv(make_torch_env(TASK, 3, 5, **SHORT))
    assert env.get_attr("explore_steps") == [3, 3, 3]
    assert env.env_is_wrapped(object) == [False] * 3
    with pytest.raises(AttributeError, match="fixed"):
        env.set_attr("explore_steps", 4)
    with pytest.raises(AttributeError, match="no methods"):
        env.env_method("reset")


def test_an_environment_with_a_device_is_no_batch_of_tensors() -> None:
    class OnDevice(Toy):
        device = torch.device("cpu")

    env = OnDevice(BOX, spaces.Discrete(3))
    vec_env = DummyVecEnv([lambda: env])
    vec_env.device, vec_env.spec = env.device, None  # type: ignore[attr-defined]
    for one in (env, vec_env):
        learner = model(one, batch_size=16).learn(32)
        assert not isinstance(learner.env, TensorVecEnv)
        assert len(evaluate_policy(learner, one, 2, seed=0).returns) == 2


def test_actions_that_are_not_finite_are_a_divergence() -> None:
    one = model(make_torch_env("rlgates/StatelessPendulum-v0", 2, 5))
    with torch.no_grad():
        one.policy.action_net.bias.fill_(torch.nan)
    with pytest.raises(TrainingDiverged, match="the policy's actions are not finite"):
        one.learn(32)


def test_environments_on_another_device_are_refused() -> None:
    one, env, other = (make_torch_env(TASK, 4, 5, **SHORT) for _ in range(3))
    other.device = torch.device("meta")
    message = "the environments are on meta, the model is on cpu: both must be on one device"
    with pytest.raises(ValueError, match=message):
        agent(other, "CnnLstmPolicy")
    learner = agent(one, "CnnLstmPolicy")
    with pytest.raises(ValueError, match=message):
        evaluate_policy(learner, other)
    learner.set_env(env)
    env.device = torch.device("meta")
    learner.env.device = env.device
    with pytest.raises(ValueError, match=message):
        learner.learn(104)


class TimeLimited:
    """Three environments of pairs of random numbers, whose episodes have three steps.

    The first is terminated there, the others are truncated.
    """

    num_envs, device = 3, torch.device("cpu")
    spec = SimpleNamespace(observation_space=BOX, action_space=spaces.Discrete(2))
    options: Any = None

    def __init__(self, known_ends: bool = True) -> None:
        self.known_ends, self.t = known_ends, 0
        self.random = torch.Generator().manual_seed(0)

    def observe(self) -> Tensor:
        return torch.rand(3, *BOX.shape, generator=self.random)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Tensor, dict[str, Any]]:
        self.t, self.options = 0, options
        return self.observe(), {}

    def step(self, actions: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, dict[str, Tensor]]:
        self.t = self.t % 3 + 1
        ends = torch.full((3,), self.t == 3)
        terminated = ends & torch.tensor([True, False, False])
        info = {"episode_return": torch.full((3,), 3.0), "episode_length": torch.full((3,), 3)}
        if self.known_ends:
            self.last = info["final_obs"] = self.observe()
        return self.observe(), torch.ones(3), terminated, ends, info


class CollectRewards(BaseCallback):
    """The rewards of a rollout with the value of the last observations of truncated episodes."""

    def _on_rollout_start(self) -> None:
        self.rewards: list[Tensor] = []

    def _on_step(self) -> bool:
        model: Any = self.model
        rewards = torch.ones(3)
        if len(self.rewards) % 3 == 2:
            starts, last = torch.zeros(3, dtype=torch.bool), self.training_env.env.last
            with torch.no_grad():
                values = model.policy.value(last, self.locals["new_states"], starts)
            rewards[1:] += model.gamma * values[1:]
        self.rewards.append(rewards)
        assert self.locals["dones"].tolist() == [len(self.rewards) % 3 == 0] * 3
        return True


def learner_of(env: Any, looks: bool, monkeypatch: pytest.MonkeyPatch) -> Any:
    """An agent that looks at values, as on a CPU, or does not, as on a GPU."""
    learner = model(TensorVecEnv(env), n_steps=6, batch_size=18)
    if not looks:
        monkeypatch.setattr(TensorVecEnv, "check_device", lambda *_: None)
        learner.env.device = torch.device("meta")
    return learner


@pytest.mark.parametrize("looks", [True, False])
def test_truncated_episodes_are_bridged(looks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    learner, collect = learner_of(TimeLimited(), looks, monkeypatch), CollectRewards()
    learner.learn(36, callback=collect)
    sequences = learner.rollout_buffer.sequences
    torch.testing.assert_close(sequences.rewards, torch.stack(collect.rewards))
    assert sequences.episode_starts[:, 1].tolist() == [True, False, False] * 2
    assert {episode["l"] for episode in learner.ep_info_buffer} == {3}
    assert evaluate_policy(learner, TimeLimited(), 6).lengths.tolist() == [3] * 6


@pytest.mark.parametrize("looks", [True, False])
def test_truncations_need_last_observations(looks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = learner_of(TimeLimited(known_ends=False), looks, monkeypatch)
    with pytest.raises(ValueError, match="truncated 4 episodes without `final_obs` in the info"):
        learner.learn(18)


def test_games_on_a_gpu_are_never_truncated(monkeypatch: pytest.MonkeyPatch) -> None:
    env = TensorVecEnv(make_torch_env(TASK, 3, 5, **{**SHORT, "end_on_choice": True}))
    env.device = torch.device("meta")
    env.reset()
    for _ in range(13):
        env.step(torch.zeros(3, dtype=torch.int64))
        assert env.truncation is None
    env.check_truncations()


def test_callbacks_read_arrays() -> None:
    class ByArrays(BaseCallback):
        ends = 0

        def _on_step(self) -> bool:
            rewards, dones = self.locals["rewards"], self.locals["dones"]
            assert rewards.shape == dones.shape == (4,)
            assert len(dones) == 4
            assert (~dones | dones).all()
            assert (2 * rewards == rewards + rewards).all()
            assert [bool(done) for done in dones] == dones.tolist() == [dones[0]] * 4
            assert np.asarray(rewards, np.float64).dtype == np.float64
            assert isinstance(dones.tensor, Tensor)
            self.ends += int(np.sum(dones))
            return True

    by_arrays = ByArrays()
    learner = agent(make_torch_env(TASK, 4, 5, **SHORT), "CnnLstmPolicy")
    learner.learn(1_000, callback=[by_arrays, StopTrainingOnMaxEpisodes(3)])
    assert by_arrays.ends == 12
    assert learner.num_timesteps == 3 * 13 * 4
    dones = LazyArray(torch.tensor([True, False]))
    assert np.array_equal(copy.deepcopy(dones), [True, False])


def test_callbacks_change_rewards() -> None:
    class Shaping(BaseCallback):
        def _on_step(self) -> bool:
            self.locals["rewards"] += 1
            self.locals["rewards"][0] = 7
            return True

    learner = agent(make_torch_env(TASK, 4, 5, **SHORT), "CnnLstmPolicy")
    learner.learn(1, callback=Shaping())
    rewards = learner.rollout_buffer.sequences.rewards
    assert (rewards[:, 0] == 7).all()
    assert rewards[:, 1:].min() >= 1


def test_arrays_that_callbacks_read() -> None:
    assert LazyArray(torch.tensor([True]))
    assert not LazyArray(torch.tensor([False]))
    with pytest.raises(ValueError, match="ambiguous"):
        bool(LazyArray(torch.tensor([True, False])))
    array, numbers = LazyArray(torch.tensor([1.0, 2.0])), np.zeros(2, np.float32)
    assert np.add(array, array, out=numbers) is numbers
    assert numbers.tolist() == [2, 4]
    assert np.divmod(array, 2, out=(numbers, array))[1] is array
    assert (numbers.tolist(), array.tensor.tolist()) == ([0, 1], [1, 0])
    recorded = LazyArray(torch.zeros(2), writable=False)
    with pytest.raises(TypeError, match="rewards and dones of recorded steps cannot be changed"):
        recorded += 1


def test_options_reach_the_environments() -> None:
    env = TimeLimited()
    batch = TensorVecEnv(env)
    batch.set_options({"size": 3})
    batch.reset()
    assert env.options == {"size": 3}
    batch.reset()
    assert env.options is None
    batch.set_options([{"size": 3}, {"size": 3}, {"size": 4}])
    with pytest.raises(ValueError, match="the same reset options, got different ones"):
        batch.reset()
    infos = []
    for make in (lambda *args, **of: TensorVecEnv(make_torch_env(*args, **of)), make_vec_env):
        game = make(TASK, 3, 5, **SHORT)
        game.set_options({"target_color": 2, "reveal": True})
        game.reset()
        infos.append([info["parameters"] for info in game.reset_infos])
        game.reset()
        assert game.reset_infos == [{}] * 3
        game.set_options({"color": 2})
        with pytest.raises(ValueError, match="color"):
            game.reset()
    assert infos[0] == infos[1]
    assert infos[0][0]["target_color"] == 2
