"""Environments of tensors: the agent's rollout is the same, and nothing leaves the device."""

from __future__ import annotations

from typing import Any, get_type_hints

import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.vec_env import DummyVecEnv
from support.toys import BOX, Toy, model

from rlgates import RecurrentA2C, RecurrentPPO
from rlgates.agents import evaluate_policy
from rlgates.agents.sequences.tensor_vec_env import TensorVecEnv
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
