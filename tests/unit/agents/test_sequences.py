"""Rollouts as sequences: the buffer, chunks, burn-in, and equality with sb3-contrib's updates."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sb3_contrib
import sb3_contrib.ppo_recurrent.policies as contrib_policies
import torch
from gymnasium import spaces
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.torch_layers import FlattenExtractor
from stable_baselines3.common.vec_env import VecNormalize
from support.toys import BOX, CRITICS, Toy, collected, model, parameters, toy
from torch import nn

from rlgates import RecurrentA2C, RecurrentPPO
from rlgates.agents import MlpLstmPolicy
from rlgates.agents.sequences.buffers import SequenceBuffer
from rlgates.agents.sequences.policy import States
from rlgates.errors import TrainingDiverged


def contrib_model(env: Any, **kwargs: Any) -> Any:
    policy_kwargs = {"lstm_hidden_size": 7, **kwargs.pop("policy_kwargs", {})}
    settings = {"n_steps": 16, "batch_size": 32, "n_epochs": 1, "seed": 0, "device": "cpu"}
    return sb3_contrib.RecurrentPPO(
        "MlpLstmPolicy", env, policy_kwargs=policy_kwargs, **{**settings, **kwargs}
    )


def gradient(agent: Any) -> dict[str, torch.Tensor]:
    """The gradient of one update, by the name of the weight."""
    gradients: dict[str, torch.Tensor] = {}

    def keep() -> None:
        for name, parameter in agent.policy.named_parameters():
            assert parameter.grad is not None
            gradients[name.replace(".core.cells.0", "")] = parameter.grad.clone()

    agent.policy.optimizer.step = keep
    agent.train()
    return {name.replace("_l0", ""): value for name, value in gradients.items()}


@pytest.mark.parametrize("critic", ["separate", "shared", "none"])
def test_gradients_equal_those_of_sb3_contrib(critic: str) -> None:
    """With equal weights, on the whole rollout at once."""
    settings = {"n_epochs": 1, "batch_size": 64, "max_grad_norm": 1e9}
    kwargs = {"policy_kwargs": CRITICS[critic], **settings}
    contrib = contrib_model(toy(), **kwargs)
    learner = model(**{**kwargs, "policy_kwargs": {"core": "lstm", **CRITICS[critic]}})
    learner.policy.load_state_dict(contrib.policy.state_dict())
    for agent in (contrib, learner):
        torch.manual_seed(3)
        agent.policy.action_dist = copy.deepcopy(contrib.policy.action_dist)  # equal draws
        _, callback = agent._setup_learn(64)
        agent.collect_rollouts(agent.env, callback, agent.rollout_buffer, 16)
    actions = np.asarray(contrib.rollout_buffer.actions).reshape(16, 4)
    np.testing.assert_array_equal(
        np.asarray(learner.rollout_buffer.actions).reshape(16, 4), actions
    )
    expected, result = gradient(contrib), gradient(learner)
    assert expected.keys() == result.keys()
    for name, value in expected.items():
        torch.testing.assert_close(result[name], value, rtol=1e-4, atol=1e-5, msg=name)


class ByStep(BaseCallback):
    """The states before every step."""

    def _on_rollout_start(self) -> None:
        self.states: list[States] = []

    def _on_step(self) -> bool:
        self.states.append(self.locals["states"])
        return True


@pytest.mark.parametrize(("chunk_len", "burn_in"), [(None, 0), (8, 0), (8, 3), (4, 3), (1, 0)])
def test_states_are_stored_at_the_start_of_chunks(chunk_len: int | None, burn_in: int) -> None:
    agent = model(chunk_len=chunk_len, burn_in=burn_in, n_epochs=1)
    by_step = ByStep()
    agent.learn(128, callback=by_step)
    length = chunk_len or 16
    steps = [0, *(begin - burn_in for begin in range(length, 16, length))]
    buffer = agent.rollout_buffer.sequences
    assert len(buffer.states) == len(steps)
    for kept, step in zip(buffer.states, steps, strict=True):
        assert torch.equal(kept.pi, by_step.states[step].pi)
        assert torch.equal(kept.vf, by_step.states[step].vf)


def test_a_long_rollout_needs_no_memory_before_it_begins() -> None:
    """The buffer of sb3-contrib, with the states of every step, would have 512 GiB."""
    agent = model(n_steps=2**24, batch_size=None, policy_kwargs={"lstm_hidden_size": 512})
    assert agent.rollout_buffer.buffer_size == 2**24


SIZES = {  # n_steps, n_envs, batch_size: the steps of the minibatches, and of their sequences
    (16, 1, 128): ([16], 16),
    (20, 3, 128): ([60], 20),
    (20, 8, 128): ([120, 40], 20),
    (16, 3, 32): ([32, 16], 16),
    (16, 4, 30): ([32, 32], 16),
    (24, 2, 16): ([12, 12, 12, 12], 12),
    (13, 2, 4): ([13, 13], 13),
    (1, 5, 2): ([2, 2, 1], 1),
}


@pytest.mark.parametrize(("n_steps", "n_envs", "batch_size"), SIZES)
def test_sizes_that_do_not_divide_each_other_warn_once(
    n_steps: int, n_envs: int, batch_size: int
) -> None:
    sizes, length = SIZES[n_steps, n_envs, batch_size]
    with pytest.warns(UserWarning, match=f"minibatches have {sizes[0]} steps") as warnings:
        agent = model(toy(n_envs=n_envs), n_steps=n_steps, batch_size=batch_size).learn(100)
    assert len(warnings) == 1
    assert parameters(agent).isfinite().all()
    buffer = agent.rollout_buffer.sequences
    batches = list(buffer.minibatches(batch_size, agent.policy))
    assert [batch.old_log_prob.numel() for batch in batches] == sizes
    assert {len(batch.episode_starts) for batch in batches} == {length}
    log_probs = torch.cat([batch.old_log_prob.flatten() for batch in batches])
    assert torch.equal(log_probs.sort().values, buffer.log_probs.flatten().sort().values)


def test_a_model_of_sb3_contrib_with_any_sizes_loads_and_learns(tmp_path: Path) -> None:
    env = toy(n_envs=3)
    contrib_model(env, n_steps=20, batch_size=128).learn(60).save(tmp_path / "model")
    with pytest.warns(UserWarning, match="n_steps \\* n_envs = 20 \\* 3 = 60 steps"):
        agent = RecurrentPPO.load(tmp_path / "model", env=env).learn(120)
    assert agent.num_timesteps == 120
    assert parameters(agent).isfinite().all()


@pytest.mark.parametrize("algorithm", [RecurrentPPO, RecurrentA2C])
def test_rollouts_of_one_step_of_one_environment(algorithm: Any) -> None:
    """Its advantage has no standard deviation."""
    kwargs = {} if algorithm is RecurrentA2C else {"batch_size": None}
    env = toy(n_envs=1)
    agent = model(env, algorithm=algorithm, n_steps=1, normalize_advantage=True, **kwargs)
    before = parameters(agent)
    agent.learn(5)
    assert parameters(agent).isfinite().all()
    assert not torch.equal(parameters(agent), before)


class Noisy(FlattenExtractor):
    """An extractor that is another function while it is trained."""

    def __init__(self, space: spaces.Space[Any]) -> None:
        super().__init__(space)
        self.layers = nn.Sequential(nn.BatchNorm1d(self.features_dim), nn.Dropout())

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        return self.layers(super().forward(observations))


@pytest.mark.parametrize("burn_in", [0, 3])
def test_refreshed_states_follow_the_weights(burn_in: int) -> None:
    agent = model(chunk_len=4, burn_in=burn_in, policy_kwargs={"features_extractor_class": Noisy})
    buffer = collected(agent)
    agent.policy.set_training_mode(True)  # as in an update
    old = [state.pi.clone() for state in buffer.states]
    buffer.refresh(agent.policy)
    for kept, fresh in zip(old, buffer.states, strict=True):
        torch.testing.assert_close(fresh.pi, kept)
    with torch.no_grad():
        agent.policy.lstm_actor.core.cells[0].weight_hh.mul_(3)
    before = next(iter(buffer.minibatches(None, agent.policy))).states.pi.sort(0).values
    buffer.refresh(agent.policy)
    after = next(iter(buffer.minibatches(None, agent.policy))).states.pi.sort(0).values
    assert not torch.allclose(before, after)
    assert torch.equal(buffer.states[0].pi, old[0])
    assert agent.policy.training


@pytest.mark.parametrize("options", [{"burn_in": 3}, {"refresh_states": True}])
def test_states_of_a_rollout_that_is_not_cut_are_never_recomputed(options: Any) -> None:
    ((name, value),) = options.items()
    for sizes in ({}, {"chunk_len": 16}, {"batch_size": None}):
        with pytest.raises(ValueError, match=f"{name}={value} would have no effect: .* chunk_len"):
            model(**options, **sizes)
    model(**options, batch_size=8).learn(64)


def test_burn_in_makes_states_with_the_weights_of_the_moment() -> None:
    agent = model(chunk_len=8, burn_in=4)
    buffer = collected(agent)
    with torch.no_grad():
        agent.policy.lstm_actor.core.cells[0].weight_hh.mul_(3)
    (batch,) = buffer.minibatches(None, agent.policy)
    by_hand = agent.policy.latents(
        buffer.observations[4:8].flatten(0, 1), buffer.states[1], buffer.episode_starts[4:8]
    ).states.pi
    recomputed = {tuple(state.tolist()) for state in batch.states.pi}
    assert {tuple(state.tolist()) for state in by_hand} <= recomputed
    assert not batch.states.pi.requires_grad


def test_advantages_are_those_of_sb3() -> None:
    generator = np.random.default_rng(0)
    values, rewards = generator.normal(size=(2, 9, 3)).astype(np.float32)
    episode_starts = generator.random((9, 3)) < 0.3
    last, dones = generator.normal(size=3).astype(np.float32), np.array([True, False, False])
    reference = sb3_contrib.common.recurrent.buffers.RecurrentRolloutBuffer(
        9, BOX, spaces.Discrete(2), (9, 1, 3, 1), gamma=0.9, gae_lambda=0.8, n_envs=3
    )
    reference.values, reference.rewards, reference.episode_starts = (
        values,
        rewards,
        episode_starts.astype(float),
    )
    reference.compute_returns_and_advantage(torch.as_tensor(last), dones)
    buffer = SequenceBuffer(9, 3, 9, gamma=0.9, gae_lambda=0.8)
    buffer.values, buffer.rewards = torch.as_tensor(values), torch.as_tensor(rewards)
    buffer.episode_starts = torch.as_tensor(episode_starts)
    buffer.finish(torch.as_tensor(last), torch.as_tensor(dones))
    np.testing.assert_allclose(buffer.advantages, reference.advantages, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(buffer.returns, reference.returns, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("algorithm", [RecurrentPPO, RecurrentA2C])
@pytest.mark.parametrize("action", [spaces.Discrete(3), spaces.Box(-0.1, 0.1, (2, 2))], ids=str)
def test_callbacks_see_the_names_of_sb3_contrib(action: spaces.Space[Any], algorithm: Any) -> None:
    env, steps = toy(action=action), []
    agent = model(env, algorithm=algorithm, policy_kwargs={"core": "lstm"})
    theirs = RolloutBuffer(16, BOX, action, "cpu", n_envs=4)

    class Watch(BaseCallback):
        def _on_step(self) -> bool:
            step = self.locals
            shape = (4, *action.shape)
            for name in ("actions", "clipped_actions"):
                assert isinstance(step[name], np.ndarray)
                assert step[name].shape == shape
            np.testing.assert_array_equal(step["clipped_actions"], env.actions)
            if isinstance(action, spaces.Box):
                assert np.abs(step["actions"]).max() > 0.1
            assert step["obs_tensor"].shape == (4, 3)
            assert step["episode_starts"].shape == (4,)
            assert self.training_env.observation_space.contains(step["new_obs"][0])
            pi, vf = step["lstm_states"]
            assert len(step["lstm_states"]) == 2
            for index, state in ((0, pi), (1, vf), (-1, vf)):
                torch.testing.assert_close(step["lstm_states"][index], state)
            for state, core in ((pi, agent.policy.lstm_actor), (vf, agent.policy.lstm_critic)):
                assert [half.shape for half in state] == [(1, 4, 7)] * 2
                new_states = step["new_states"]
                flat = new_states.pi if core is agent.policy.lstm_actor else new_states.vf
                assert torch.equal(core.unpack(state), flat)
            buffer = step["rollout_buffer"]
            assert not buffer.full
            assert buffer.size() == buffer.pos == step["n_steps"] == len(steps) % 16
            with pytest.raises(ValueError, match=f"has {buffer.pos} of 16 steps"):
                buffer.get()
            steps.append(step["n_steps"])
            return True

        def _on_rollout_end(self) -> None:
            buffer = self.locals["rollout_buffer"]
            assert buffer.full
            assert buffer.size() == buffer.buffer_size == 16
            for name in ("observation_space", "action_space", "obs_shape", "action_dim", "device"):
                assert getattr(buffer, name) == getattr(theirs, name), name
            for array in (buffer.rewards, buffer.observations):
                flat = buffer.swap_and_flatten(array)
                np.testing.assert_array_equal(flat, theirs.swap_and_flatten(array))
                assert torch.equal(buffer.to_torch(flat), theirs.to_torch(flat))
                assert buffer.to_torch(flat, copy=False).data_ptr() == flat.ctypes.data
            assert buffer.episode_starts.shape == (16, 4)
            batches = list(buffer.get(32))
            assert [batch.old_values.shape for batch in batches] == [(16, 2)] * 2
            values = torch.cat([batch.old_values for batch in batches], dim=1)
            np.testing.assert_array_equal(np.sort(values, 1), np.sort(buffer.values, 1))
            (batch,) = buffer.get()
            assert batch.actions.shape == (64, *action.shape)
            assert np.mean(buffer.rewards) == 1
            starts = buffer.sequences.episode_starts
            np.testing.assert_array_equal(buffer.episode_starts, starts.float())
            assert (1 - buffer.episode_starts).sum() == (~starts).sum()
            assert (buffer.actions <= buffer.actions.max()).all()
            buffer.rewards += 2
            buffer.advantages = buffer.advantages * 0
            assert (buffer.sequences.rewards == 3).all()
            assert (buffer.sequences.advantages == 0).all()

    step_async = env.step_async

    def keep(actions: Any) -> None:
        env.actions = actions
        step_async(actions)

    env.step_async = keep
    agent.learn(128, callback=Watch())
    assert len(steps) == 32


ARRAYS = ("observations", "actions", "rewards", "episode_starts", "values", "log_probs")


@pytest.mark.parametrize(
    ("space", "action"),
    [
        (BOX, spaces.Box(-1.0, 1.0, (2, 2), np.float64)),
        (spaces.Dict(a=BOX, b=spaces.Discrete(3)), spaces.Discrete(3)),
        (spaces.Box(0.0, 1.0, (3,), np.float64), spaces.MultiBinary(2)),
    ],
    ids=str,
)
def test_steps_to_come_are_zeros(space: spaces.Space[Any], action: spaces.Space[Any]) -> None:
    """Before the first rollout, and in place of those of the last one."""
    name = "MultiInputLstmPolicy" if isinstance(space, spaces.Dict) else "MlpLstmPolicy"
    agent = model(toy(space, action), name)

    class Look(BaseCallback):
        def _on_step(self) -> bool:
            buffer = agent.rollout_buffer
            for name in (*ARRAYS, "advantages", "returns"):
                array = getattr(buffer, name)
                parts = array if isinstance(array, dict) else {"": array}
                for key, part in parts.items():
                    kinds.add((name, key, part.shape, part.dtype))
                    assert not part[buffer.pos :].any()
                if name in ARRAYS[4:]:
                    assert part[: buffer.pos].all()
            return True

        _on_rollout_start = _on_step

    kinds: set[Any] = set()
    look = Look()
    look.init_callback(agent)
    look.on_step()
    agent.rollout_buffer.rewards += 1  # which the first rollout overwrites
    agent.learn(2 * 64, callback=look)
    assert_assigned(agent.rollout_buffer)
    shapes = {name: shape for name, key, shape, _ in kinds if key in ("", "a")}
    assert len(kinds) == 8 + isinstance(space, spaces.Dict)
    assert shapes["observations"] == (16, 4, 3)
    assert shapes["actions"] == (16, 4, *action.shape)
    assert {shapes[name] for name in ARRAYS[2:]} == {(16, 4)}
    assert (agent.rollout_buffer.advantages != 0).all()


def assert_assigned(buffer: Any) -> None:
    """Assert that the observations of a rollout can be replaced."""
    observations = buffer.observations
    if isinstance(observations, dict):
        buffer.observations = {name: np.zeros_like(part) for name, part in observations.items()}
        assert not any(part.any() for part in buffer.observations.values())
    else:
        buffer.observations = np.zeros_like(observations)
        assert not buffer.observations.any()


class Cut(Toy):
    """Episodes are cut by a time limit."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, reward, ended, _, info = super().step(action)
        return obs, reward, False, ended, info


@pytest.mark.parametrize("critic", CRITICS)
@pytest.mark.parametrize("space", [BOX, spaces.Dict(a=BOX, b=spaces.Discrete(3))], ids=str)
def test_a_time_limit_is_bridged_with_the_state_behind_the_last_step(
    space: spaces.Space[Any], critic: str
) -> None:
    name = "MlpLstmPolicy" if space is BOX else "MultiInputLstmPolicy"
    env = toy(space, kind=Cut)
    agent = model(env, name, policy_kwargs=CRITICS[critic])
    checked = 0

    class Watch(BaseCallback):
        def _on_step(self) -> bool:
            nonlocal checked
            step = self.locals
            if step["dones"].any():
                rewards = agent._bootstrapped_rewards(
                    step["rewards"], step["dones"], step["infos"], step["new_states"]
                )
                for env in np.flatnonzero(step["dones"]):
                    last = agent.policy.obs_to_tensor(step["infos"][env]["terminal_observation"])[0]
                    state = step["new_states"].select([env])
                    value = agent.policy.value(last, state, torch.zeros(1, dtype=torch.bool))
                    torch.testing.assert_close(rewards[env], 1.0 + agent.gamma * value[0])
                    checked += 1
            return True

    agent.learn(64, callback=Watch())
    assert checked > 4


def test_only_an_end_is_bridged_and_the_environment_keeps_its_rewards() -> None:
    agent = model(toy(n_envs=2))
    last = {"TimeLimit.truncated": True, "terminal_observation": np.ones(3, np.float32)}
    rewards = np.ones(2, dtype=np.float32)
    states = agent.policy.initial_states(2)
    bridged = agent._bootstrapped_rewards(rewards, np.array([True, False]), [last, last], states)
    assert bridged[0] != 1
    assert bridged[1] == 1, "info still has the end of the episode before"
    np.testing.assert_array_equal(rewards, 1)


@pytest.mark.parametrize("name", ["MlpLstmPolicy", "MultiInputLstmPolicy"])
def test_observations_have_the_dtypes_of_their_spaces(name: str) -> None:
    """A SubprocVecEnv passes on what an environment returns, here integers from `reset`."""
    env = toy(BOX if name == "MlpLstmPolicy" else spaces.Dict(a=BOX, b=spaces.Discrete(3)))
    reset = env.reset

    def integers() -> Any:
        observations = reset()
        if isinstance(observations, dict):
            return {"a": np.zeros((4, 3), np.int64), "b": observations["b"].astype(np.float64)}
        return np.zeros((4, 3), np.int64)

    env.reset = integers
    stored = model(env, name).learn(64).rollout_buffer.sequences.observations
    parts = stored if isinstance(stored, dict) else {"a": stored}
    assert (parts["a"][0] == 0).all()
    assert parts["a"].dtype is torch.float32
    assert (parts["a"][1:] % 1 != 0).all(), "they were truncated"
    if "b" in parts:
        assert parts["b"].dtype is torch.int64


@pytest.mark.parametrize("algorithm", [RecurrentPPO, RecurrentA2C])
def test_a_stopped_agent_goes_on_where_its_environments_are(algorithm: Any) -> None:
    """The step before ended an episode, whose state must not go on into the next one."""

    class StopAtAnEnd(BaseCallback):
        def _on_step(self) -> bool:
            return not self.locals["dones"].any()

    agent, stop = model(algorithm=algorithm), StopAtAnEnd()
    agent.learn(64, callback=stop)
    agent.learn(64, reset_num_timesteps=False)
    buffer = agent.rollout_buffer
    np.testing.assert_array_equal(buffer.observations[0], stop.locals["new_obs"])
    np.testing.assert_array_equal(buffer.episode_starts[0], stop.locals["dones"])


@pytest.mark.parametrize("algorithm", [RecurrentPPO, RecurrentA2C])
@pytest.mark.parametrize("n_steps", [8, 32])
def test_n_steps_are_those_of_the_buffer(algorithm: Any, n_steps: int, tmp_path: Path) -> None:
    agent = model(algorithm=algorithm)
    agent.save(tmp_path / "model")
    agent.n_steps = n_steps
    with pytest.raises(ValueError, match=f"must stay 16.* load it with n_steps={n_steps}"):
        agent.learn(256)
    loaded = algorithm.load(tmp_path / "model", env=toy(), n_steps=n_steps).learn(256)
    assert loaded.rollout_buffer.buffer_size == n_steps


@pytest.mark.parametrize("algorithm", [RecurrentPPO, RecurrentA2C])
def test_a_callback_sets_the_discount_of_the_buffer(algorithm: Any) -> None:
    """As schedules of gamma for SB3's buffers do."""

    class Shortsighted(BaseCallback):
        def _on_step(self) -> bool:
            return True

        def _on_rollout_start(self) -> None:
            agent.rollout_buffer.gamma = 0.0

    agent = model(algorithm=algorithm)
    agent.learn(64, callback=Shortsighted())
    buffer = agent.rollout_buffer
    assert (buffer.gamma, buffer.gae_lambda) == (0.0, agent.gae_lambda)
    np.testing.assert_array_equal(buffer.advantages, buffer.rewards - buffer.values)


@pytest.mark.parametrize("dtype", [np.int64, np.uint8])
@pytest.mark.parametrize("name", ["MlpLstmPolicy", "MultiInputLstmPolicy"])
def test_normalized_integers_stay_floats(name: str, dtype: Any) -> None:
    """The space of a VecNormalize is that of the integers; as such, all would be -1, 0 or 1."""
    space: Any = spaces.Box(0, 9, (3,), dtype)
    keys = None
    if name == "MultiInputLstmPolicy":
        space, keys = spaces.Dict(a=space, b=space), ["a"]
    agent = model(toy(space), name).learn(64)
    agent.set_env(VecNormalize(toy(space, kind=Cut), norm_obs_keys=keys))
    given: list[Any] = []
    as_tensors = agent._as_tensors

    def keep(observations: Any, *envs: Any) -> Any:
        given.append(observations)
        return as_tensors(observations, *envs)

    agent._as_tensors = keep
    agent.learn(64)
    stored = agent.rollout_buffer.sequences.observations
    parts = stored if isinstance(stored, dict) else {"a": stored}
    steps = [part if isinstance(part, dict) else {"a": part} for part in given]
    whole = [part["a"] for part in steps if len(part["a"]) == 4]
    np.testing.assert_array_equal(parts["a"].numpy(), np.stack(whole[:16]))
    assert len(steps) > len(whole), "no episode was cut, whose last observations are read too"
    if "b" in parts:
        assert parts["b"].numpy().dtype == dtype


@pytest.mark.parametrize("algorithm", [RecurrentPPO, RecurrentA2C])
def test_ends_of_episodes_may_be_numbers(algorithm: Any) -> None:
    """A SubprocVecEnv passes on the 0 and 1 that an environment returns."""
    env = toy()
    step = env.step_wait

    def integers() -> Any:
        observations, rewards, dones, infos = step()
        return observations, rewards, dones.astype(np.int64), infos

    env.step_wait = integers
    agent, expected = (model(one, algorithm=algorithm).learn(128) for one in (env, toy()))
    assert torch.equal(parameters(agent), parameters(expected))
    agent._last_episode_starts = agent._last_episode_starts.astype(np.int64)
    agent.learn(64, reset_num_timesteps=False)


@pytest.mark.parametrize("n_envs", [1, 4])
@pytest.mark.parametrize("algorithm", [RecurrentPPO, RecurrentA2C])
def test_rewards_and_ends_may_be_columns(algorithm: Any, n_envs: int) -> None:
    """As of a SubprocVecEnv whose environments return rewards (1,)."""
    env = toy(n_envs=n_envs)
    step = env.step_wait

    def columns() -> Any:
        observations, rewards, dones, infos = step()
        return observations, rewards[:, None], dones[:, None], infos

    env.step_wait = columns
    kwargs = {} if algorithm is RecurrentA2C else {"batch_size": None}
    agent, expected = (
        model(one, algorithm=algorithm, **kwargs).learn(32 * n_envs)
        for one in (env, toy(n_envs=n_envs))
    )
    assert agent.rollout_buffer.advantages.shape == (16, n_envs)
    assert torch.equal(parameters(agent), parameters(expected))


@pytest.mark.parametrize("name", ["rewards", "dones"])
def test_other_shapes_of_an_environment_are_refused(name: str) -> None:
    env = toy()
    step = env.step_wait

    def pairs() -> Any:
        observations, rewards, dones, infos = step()
        twice = np.stack([rewards if name == "rewards" else dones] * 2, axis=1)
        given = (twice, dones) if name == "rewards" else (rewards, twice)
        return observations, *given, infos

    env.step_wait = pairs
    with pytest.raises(
        ValueError, match=rf"the {name} of 4 environments must be \(4,\), got \(4, 2\)"
    ):
        model(env).learn(64)


@pytest.mark.parametrize("n_envs", [1, 4])
def test_own_values_must_be_one_for_each_environment(n_envs: int) -> None:
    """(16, 1) from 16 steps would spread over all pairs of steps."""

    class Column(MlpLstmPolicy):
        def values_of(self, latents: Any) -> Any:
            return self.value_net(latents.vf)

    class LastColumn(MlpLstmPolicy):
        def value(self, *args: Any) -> Any:
            return super().value(*args)[:, None]

    for kind in (Column, LastColumn):
        with pytest.raises(
            ValueError, match=rf"values of a step must be \({n_envs},\), .* got \({n_envs}, 1\)"
        ):
            model(toy(n_envs=n_envs), kind, batch_size=None).learn(16 * n_envs)


def test_kl_stops_after_a_minibatch_or_an_epoch() -> None:
    def updates(stop: str, **settings: Any) -> int:
        agent = model(n_epochs=5, target_kl=1e-9, kl_stop=stop, learning_rate=0.01, **settings)
        steps = []
        agent.policy.optimizer.register_step_post_hook(lambda *_: steps.append(1))
        agent.learn(64)
        return len(steps)

    assert updates("minibatch") == 1  # the second one sees what the first has changed
    assert updates("epoch") == 2
    assert updates("minibatch", batch_size=64) == 1  # of one minibatch each, the second epoch's


def test_noise_of_actions_is_drawn_every_so_many_steps() -> None:
    noise: list[torch.Tensor] = []

    class Watch(BaseCallback):
        def _on_step(self) -> bool:
            noise.append(agent.policy.action_dist.exploration_mat.clone())
            return True

    env = toy(action=spaces.Box(-1.0, 1.0, (2,)))
    agent = model(env, use_sde=True, sde_sample_freq=5, n_epochs=1)
    agent.learn(64, callback=Watch())
    drawn = [t for t in range(1, 16) if (noise[t] != noise[t - 1]).any()]
    assert drawn == [5, 10, 15]


def test_kl_may_exceed_its_target_by_half() -> None:
    def train(**settings: Any) -> tuple[Any, int]:
        agent, steps = model(learning_rate=0.01, **settings), []
        agent.policy.optimizer.register_step_post_hook(lambda *_: steps.append(1))
        return agent.learn(64), len(steps)

    agent, steps = train(n_epochs=1)
    assert steps == 2
    second = 2 * agent.logger.name_to_value["train/approx_kl"]  # that of the first one is 0
    assert train(n_epochs=1, target_kl=second / 1.4)[1] == 2
    assert train(n_epochs=1, target_kl=second / 1.6)[1] == 1
    # The mean of the first epoch is half of it.
    assert train(n_epochs=2, target_kl=second / 1.6, kl_stop="epoch")[1] == 4
    assert train(n_epochs=2, target_kl=second / 3.2, kl_stop="epoch")[1] == 2


@pytest.mark.parametrize("stop", ["minibatch", "epoch"])
def test_the_end_of_an_update_is_printed_as_in_sb3(
    stop: str, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {"target_kl": 1e-9, "kl_stop": stop, "learning_rate": 0.1}
    model(verbose=1, **settings).learn(64)
    assert "Early stopping at step 0 due to reaching max kl: " in capsys.readouterr().out
    model(**settings).learn(64)
    assert "Early" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("trouble", "message"),
    [
        ("observation", "the observation of environment 2 is not finite"),
        ("reward", "the rewards of a rollout must be finite, got 1"),
        ("large reward", "the gradient of minibatch . is not finite: the model is left"),
    ],
)
def test_trouble_leaves_the_model_as_it_was(trouble: str, message: str) -> None:
    agent = model(toy(action=spaces.Box(-1.0, 1.0, (2,))), n_epochs=3)
    agent.learn(64)
    before, optimizer = parameters(agent), copy.deepcopy(agent.policy.optimizer.state_dict())
    updates = agent._n_updates
    step = agent.env.step_wait

    def broken() -> Any:
        obs, rewards, dones, infos = step()
        if trouble == "observation":
            obs[2, 1] = np.inf
        else:
            rewards[1] = np.nan if trouble == "reward" and agent.num_timesteps == 80 else rewards[1]
            rewards[1] = 1e30 if trouble == "large reward" else rewards[1]
        return obs, rewards, dones, infos

    agent.env.step_wait = broken
    with pytest.raises(ValueError, match=message):
        agent.learn(64, reset_num_timesteps=False)
    assert torch.equal(parameters(agent), before)
    assert agent._n_updates == updates
    after = agent.policy.optimizer.state_dict()
    for state, old in zip(after["state"].values(), optimizer["state"].values(), strict=True):
        for name, value in old.items():
            assert torch.equal(state[name], value)


@pytest.mark.parametrize("space", [BOX, spaces.Dict(a=BOX)], ids=["box", "dict"])
def test_a_last_observation_that_is_not_finite_names_its_environment(space: Any) -> None:
    name = "MlpLstmPolicy" if space is BOX else "MultiInputLstmPolicy"
    agent = model(toy(space, kind=Cut), name)
    step = agent.env.step_wait

    def broken() -> Any:
        observations, rewards, dones, infos = step()
        if dones[2]:
            last = infos[2]["terminal_observation"]
            (last if space is BOX else last["a"])[:] = np.nan
        return observations, rewards, dones, infos

    agent.env.step_wait = broken
    with pytest.raises(ValueError, match=r"the (observation|a) of environment 2 is not finite"):
        agent.learn(64)


@pytest.mark.parametrize(
    ("action", "layer", "message"),
    [
        (spaces.Discrete(3), "value_net", "the values of a rollout must be finite, got 64 numbers"),
        (spaces.Box(-1.0, 1.0, (2,)), "action_net", "the policy's actions are not finite"),
        (spaces.MultiDiscrete([3, 2]), "action_net", "the policy's probabilities are not finite"),
        (spaces.MultiBinary(2), "action_net", "the policy's probabilities are not finite"),
    ],
    ids=str,
)
def test_outputs_that_are_not_finite_are_a_divergence(
    action: spaces.Space[Any], layer: str, message: str
) -> None:
    agent = model(toy(action=action))
    with torch.no_grad():
        agent.policy.get_submodule(layer).bias.fill_(np.nan)
    with pytest.raises(TrainingDiverged, match=message):
        agent.learn(64)
    if layer == "action_net":
        with pytest.raises(TrainingDiverged, match="probabilities are not finite"):
            agent.predict(agent.env.reset())


def test_an_interrupted_update_is_undone() -> None:
    agent = model(n_epochs=2)
    agent.learn(64)
    before, calls = parameters(agent), []

    def interrupt(*_: Any) -> None:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt

    agent.policy.optimizer.register_step_post_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        agent.learn(64, reset_num_timesteps=False)
    assert torch.equal(parameters(agent), before)
    assert agent._n_updates == 2


class Counting(FlattenExtractor):
    """An extractor whose state holds more than tensors."""

    def __init__(self, space: spaces.Space[Any]) -> None:
        super().__init__(space)
        self.calls: list[int] = []

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        self.calls.append(len(observations))
        return super().forward(observations)

    def get_extra_state(self) -> dict[str, Any]:
        return {"calls": self.calls}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.calls = state["calls"]


def test_an_update_with_any_state_of_a_module_is_undone() -> None:
    agent = model(policy_kwargs={"features_extractor_class": Counting})
    agent.learn(64)
    calls: list[int] = list(agent.policy.features_extractor.calls)
    agent.rollout_buffer.sequences.advantages.fill_(np.inf)
    with pytest.raises(TrainingDiverged):
        agent.train()
    assert agent.policy.features_extractor.calls == calls


def test_a_buffer_is_small() -> None:
    """sb3-contrib keeps the states of all steps: 872 MiB for this one."""
    kwargs = {"core": "dnc", "lstm_hidden_size": 256}
    agent = RecurrentPPO(
        "MlpLstmPolicy", toy(n_envs=8), n_steps=2048, batch_size=2048, device="cpu",
        policy_kwargs=kwargs,
    )  # fmt: skip
    state = agent.policy.initial_states(8)
    buffer = agent.rollout_buffer.sequences
    one = torch.zeros(8)
    for _ in range(2048):
        buffer.add(
            state,
            observations=torch.zeros(8, 3),
            actions=one.long(),
            episode_starts=one.bool(),
            rewards=one,
            values=one,
            log_probs=one,
        )
    tensors = [value for value in vars(buffer).values() if isinstance(value, torch.Tensor)]
    tensors += [part for kept in buffer.states for part in kept if part is not None]
    assert sum(tensor.nbytes for tensor in tensors) < 0.1 * 872 * 2**20


def test_other_policies_are_refused() -> None:
    class Other(contrib_policies.MlpLstmPolicy):  # type: ignore[misc, valid-type]
        pass

    with pytest.raises(TypeError, match="must be one of rlgates, such as MlpLstmPolicy"):
        RecurrentPPO(Other, toy(), device="cpu")
    assert isinstance(RecurrentPPO(MlpLstmPolicy, toy(), device="cpu").policy, MlpLstmPolicy)


def test_a_former_option_still_warns() -> None:
    with pytest.warns(DeprecationWarning, match="sequences='whole' is deprecated"):
        model(sequences="whole")
