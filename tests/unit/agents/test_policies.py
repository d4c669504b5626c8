"""Any core inside sb3-contrib's recurrent policies and PPO."""

from __future__ import annotations

import copy
import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sb3_contrib
import torch
from gymnasium import spaces
from sb3_contrib.common.recurrent.type_aliases import RNNStates
from stable_baselines3.common.callbacks import BaseCallback, EvalCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from support.cases import every_family, every_family_and_gate, small
from support.toys import (
    BOX,
    CRITICS,
    IMAGE,
    check_identity,
    collected,
    model,
    parameters,
    rollout_actions,
    toy,
)
from torch import Tensor, nn

from rlgates import CnnLstmPolicy, MlpLstmPolicy, MultiInputLstmPolicy, RecurrentA2C, RecurrentPPO
from rlgates.agents import MaskableRecurrentPPO
from rlgates.agents.encoders import GridEncoder
from rlgates.agents.sequences.policy import CONTRIB_METHODS, Latents
from rlgates.errors import TrainingDiverged
from rlgates.registry import CORES

POLICIES: dict[str, type[BasePolicy]] = {
    "MlpLstmPolicy": MlpLstmPolicy,
    "CnnLstmPolicy": CnnLstmPolicy,
    "MultiInputLstmPolicy": MultiInputLstmPolicy,
}
both_algorithms = pytest.mark.parametrize("algorithm", [RecurrentPPO, RecurrentA2C])


def test_the_promised_line() -> None:
    agent = RecurrentPPO("MlpLstmPolicy", toy(n_envs=1), policy_kwargs={"core": "ur_lstm"})
    assert agent.policy.lstm_actor.core.name == "ur_lstm"
    assert agent.policy.lstm_actor.core.output_size == 256
    assert not any(isinstance(module, nn.LSTM) for module in agent.policy.modules())


@pytest.mark.parametrize("name", POLICIES)
def test_a_class_works_with_the_unmodified_algorithm(name: str) -> None:
    mixed = spaces.Dict(a=BOX, b=spaces.Discrete(3))
    space = {"CnnLstmPolicy": IMAGE, "MultiInputLstmPolicy": mixed}
    agent = model(toy(space.get(name, BOX)), POLICIES[name], algorithm=sb3_contrib.RecurrentPPO)
    before = parameters(agent)
    agent.learn(64)
    assert type(agent) is sb3_contrib.RecurrentPPO
    assert not torch.equal(before, parameters(agent))


@pytest.mark.parametrize("space", [BOX, spaces.Discrete(3), spaces.Dict(a=BOX)], ids=str)
def test_a_state_of_other_environments_is_refused(space: spaces.Space[Any]) -> None:
    name = "MultiInputLstmPolicy" if isinstance(space, spaces.Dict) else "MlpLstmPolicy"
    env = toy(space)
    agent = model(env, name)
    obs = env.reset()
    one = {"a": obs["a"][0]} if isinstance(obs, dict) else obs[0]
    _, four = agent.predict(obs)
    _, single = agent.predict(one)
    agent.predict(one, single)
    for count in (1, 2, 3):
        state = tuple(half[:, :count] for half in four)
        with pytest.raises(ValueError, match=rf"= \(1, 4, \d+\) as .* got \(1, {count}, "):
            agent.predict(obs, state)
    with pytest.raises(ValueError, match=r"= \(1, 1, \d+\) as .* got \(1, 4, "):
        agent.predict(one, four)


def test_a_state_of_another_core_is_refused() -> None:
    agent = model(policy_kwargs={"lstm_hidden_size": 8})
    obs = agent.env.reset()
    _, state = agent.predict(obs)
    actions, _ = agent.predict(obs, state, deterministic=True)
    stacked, _ = agent.predict(obs, np.stack(state), deterministic=True)
    assert (stacked == actions).all()
    for shape in ((1, 4, 16), (2, 4, 4), (1, 4, 0), (1, 4)):
        with pytest.raises(
            ValueError, match=re.escape(f"= (1, 4, 8) as predict returns them, got {shape}")
        ):
            agent.predict(obs, (np.zeros(shape, np.float32),) * 2)
    for state in ((), []):
        with pytest.raises(
            ValueError, match=re.escape(f"= (1, 4, 8) as predict returns them, got {state}")
        ):
            agent.predict(obs, state)
        with pytest.raises(ValueError, match=re.escape(f"returns them, got {state}")):
            agent.predict(obs, state, np.ones(4, bool))
    with pytest.raises(ValueError, match=re.escape("got (1, 4, 16), (1, 4, 0)")):
        agent.predict(obs, tuple(np.zeros((1, 4, n), np.float32) for n in (16, 0)))


@pytest.mark.parametrize(
    ("space", "kwargs"),
    [
        (spaces.Discrete(3), {}),
        (spaces.Discrete(3), {"activation_fn": nn.ReLU6}),
        (spaces.MultiDiscrete([2, 3]), {}),
        (spaces.MultiBinary(3), {}),
        (spaces.Box(-1, 1, (2,)), {}),
    ],
    ids=str,
)
@pytest.mark.parametrize("use_sde", [False, True])
def test_agents_are_copied_after_an_update(
    space: spaces.Space[Any], kwargs: dict[str, Any], use_sde: bool
) -> None:
    if use_sde and not isinstance(space, spaces.Box):
        pytest.skip("SB3 has it for continuous actions alone")
    agent = model(toy(BOX, space), policy_kwargs=kwargs, use_sde=use_sde)
    obs = agent.learn(64).env.reset()
    twin, policy = copy.deepcopy(agent), copy.deepcopy(agent.policy)
    before = parameters(agent)
    expected, _ = agent.predict(obs, deterministic=True)
    for copied in (twin, policy):
        assert (copied.predict(obs, deterministic=True)[0] == expected).all()
    twin.learn(64)
    assert torch.equal(parameters(agent), before)
    assert not torch.equal(parameters(twin), before)
    assert twin.policy.action_dist is not agent.policy.action_dist


@both_algorithms
def test_agents_with_a_learned_state_are_copied_before_they_learn(algorithm: Any) -> None:
    agent = model(algorithm=algorithm, policy_kwargs={"core_kwargs": {"learned_state": True}})
    learned = []
    for one in (copy.deepcopy(agent), agent):
        one.set_random_seed(1)
        learned.append(parameters(one.learn(64)))
    assert torch.equal(*learned)


@pytest.mark.parametrize("key", ["a.b", "", "type", "training"])
def test_names_that_an_encoder_cannot_have(key: str) -> None:
    space = spaces.Dict({key: IMAGE, "b": BOX})
    with pytest.raises(ValueError, match=f"cannot have the name of the observation {key!r}: ren"):
        model(toy(space), "MultiInputLstmPolicy")


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.Discrete(3, start=1), r"must start at 0, got Discrete\(3, start=1\)"),
        (spaces.MultiDiscrete([2, 3], start=[0, 1]), "must start at 0"),
        (spaces.MultiDiscrete([[2, 3], [4, 5]]), "must have one axis"),
    ],
)
def test_choices_that_no_policy_reads_are_refused(space: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"the action space {message}.*TransformAction"):
        MlpLstmPolicy(BOX, space, lambda _: 1e-3)
    with pytest.raises(ValueError, match=f"the observation space {message}.*TransformObservation"):
        model(toy(space))
    with pytest.raises(ValueError, match=f"the observation space 'a' {message}"):
        model(toy(spaces.Dict(a=space)), "MultiInputLstmPolicy")


def test_a_box_without_axes_is_refused_except_with_an_encoder_of_its_own() -> None:
    class Column(BaseFeaturesExtractor):
        def __init__(self, space: Any) -> None:
            super().__init__(space, 1)

        def forward(self, x: Any) -> Any:
            return x.unsqueeze(-1)

    number = spaces.Box(-1.0, 1.0, ())
    message = r"must have an axis, got Box\(-1.0, 1.0, \(\), float32\): reshape it to \(1,\)"
    with pytest.raises(ValueError, match=f"the observation space {message}"):
        model(toy(number))
    with pytest.raises(ValueError, match=f"the observation space 'a' {message}"):
        model(toy(spaces.Dict(a=number)), "MultiInputLstmPolicy")
    model(toy(number), policy_kwargs={"features_extractor_class": Column}).learn(64)


@pytest.mark.parametrize("algorithm", [RecurrentPPO, RecurrentA2C])
def test_an_update_needs_a_whole_rollout(algorithm: Any) -> None:
    agent = model(algorithm=algorithm)
    agent.learn(64)
    agent.train()
    agent.learn(1_000, callback=lambda *_: agent.num_timesteps < 12)
    with pytest.raises(ValueError, match="got 2 of 16 steps: collect a rollout first"):
        agent.train()


@pytest.mark.parametrize("algorithm", [RecurrentPPO, MaskableRecurrentPPO])
def test_a_warning_of_minibatches_points_at_the_caller(algorithm: Any) -> None:
    with pytest.warns(UserWarning, match="batch_size = 24 does not divide") as caught:
        agent = algorithm("MlpLstmPolicy", toy(), n_steps=16, batch_size=24)
    assert caught[0].filename == __file__
    agent.batch_size = 23
    masking = {"use_masking": False} if algorithm is MaskableRecurrentPPO else {}
    with pytest.warns(UserWarning, match="batch_size = 23 does not divide") as caught:
        agent.learn(0, **masking)
    assert caught[0].filename == __file__


def with_core(name: str, critic: str) -> dict[str, Any]:
    """Two layers of a core, small enough; sizes that all heads and halves divide."""
    sizes = {"lstm_hidden_size": 6, "n_lstm_layers": 2, "core_kwargs": small(name)}
    return {"core": name, **sizes, **CRITICS[critic]}


def check_identity_of(name: str, critic: str) -> None:
    check_identity(model(policy_kwargs=with_core(name, critic)), [(16, 0), (8, 0), (4, 3)], 32)


@every_family_and_gate
def test_identity(name: str) -> None:
    check_identity_of(name, "separate")


@pytest.mark.parametrize("critic", ["separate", "shared"])
@every_family
def test_identity_in_sb3_contrib(name: str, critic: str) -> None:
    agent = model(
        policy=MlpLstmPolicy,
        algorithm=sb3_contrib.RecurrentPPO,
        policy_kwargs=with_core(name, critic),
    )
    buffer = collected(agent)
    for data in (*buffer.get(32), *buffer.get(8)):
        mask = data.mask > 1e-8
        with torch.no_grad():
            values, log_prob, _ = agent.policy.evaluate_actions(
                data.observations, data.actions.long().flatten(), data.lstm_states,
                data.episode_starts,
            )  # fmt: skip
        torch.testing.assert_close(log_prob[mask], data.old_log_prob[mask], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(
            values.flatten()[mask], data.old_values[mask], rtol=1e-5, atol=1e-6
        )


@pytest.mark.parametrize("critic", ["shared", "none"])
@every_family
def test_identity_of_other_critics(name: str, critic: str) -> None:
    check_identity_of(name, critic)


def check_that_it_trains_and_is_saved(name: str, critic: str, algorithm: Any, folder: Path) -> None:
    env = toy()
    agent = model(env, policy_kwargs=with_core(name, critic), algorithm=algorithm)
    before = parameters(agent)
    agent.learn(64)
    after = parameters(agent)
    assert after.isfinite().all()
    assert not torch.equal(before, after)
    agent.save(folder / "model")
    loaded = algorithm.load(folder / "model", env=env)
    assert loaded.policy.lstm_actor.core.name == name
    np.testing.assert_array_equal(rollout_actions(loaded, env), rollout_actions(agent, env))
    loaded.learn(64)


@every_family_and_gate
def test_every_core_trains_and_is_saved(name: str, tmp_path: Path) -> None:
    check_that_it_trains_and_is_saved(name, "separate", RecurrentPPO, tmp_path)


@pytest.mark.parametrize("name", list(CORES)[::2])
def test_every_other_family_trains_and_is_saved_with_a_shared_critic(
    name: str, tmp_path: Path
) -> None:
    check_that_it_trains_and_is_saved(name, "shared", RecurrentPPO, tmp_path)


@pytest.mark.parametrize("name", list(CORES)[1::2])
def test_the_families_between_them_train_and_are_saved_with_a2c(name: str, tmp_path: Path) -> None:
    check_that_it_trains_and_is_saved(name, "separate", RecurrentA2C, tmp_path)


@pytest.mark.parametrize(
    ("core", "options"),
    [("rru", {"dropout": 0.5}), ("lstm", {"zoneout_cell": 0.5, "recurrent_dropout": 0.5})],
)
def test_an_update_computes_what_the_rollout_did(core: str, options: dict[str, Any]) -> None:
    """With dropout in the update alone, most ratios are clipped before any weight has changed."""
    kwargs = {"core": core, "core_kwargs": options}
    with pytest.warns(UserWarning, match="of the core is off"):
        agent = model(policy_kwargs=kwargs, learning_rate=1e-12, n_epochs=1)
    with torch.no_grad():
        agent.policy.action_net.weight.mul_(100)  # as sure of itself as a trained policy
    agent.learn(64)
    assert agent.logger.name_to_value["train/clip_fraction"] == 0
    assert abs(agent.logger.name_to_value["train/approx_kl"]) < 1e-6


@every_family
def test_every_core_with_its_defaults(name: str) -> None:
    """Defaults suffice, with the published sizes."""
    kwargs = {"core": name, "lstm_hidden_size": 8, "n_lstm_layers": 1}
    agent = model(toy(n_envs=1), n_steps=8, batch_size=8, policy_kwargs=kwargs).learn(16)
    assert parameters(agent).isfinite().all()
    core = agent.policy.lstm_actor.core
    assert agent.policy.lstm_output_dim == core.output_size
    assert agent.policy.action_net.in_features == 64  # behind the heads' own layers


@pytest.mark.parametrize("batch_size", [8, 32, None])
@pytest.mark.parametrize("space", [BOX, spaces.Dict(a=BOX, b=spaces.Discrete(3))], ids=str)
def test_an_epoch_visits_every_step_once(space: spaces.Space[Any], batch_size: int | None) -> None:
    name = "MlpLstmPolicy" if space is BOX else "MultiInputLstmPolicy"
    agent = model(toy(space), name, batch_size=batch_size)
    buffer = collected(agent)
    batches = list(buffer.minibatches(batch_size, agent.policy))
    log_probs = torch.cat([batch.old_log_prob.flatten() for batch in batches])
    assert torch.equal(log_probs.sort().values, buffer.log_probs.flatten().sort().values)
    assert len(batches) == (1 if batch_size is None else 64 // batch_size)


@pytest.mark.parametrize("critic", CRITICS)
def test_every_parameter_trains(critic: str) -> None:
    agent = model(policy_kwargs={"net_arch": [5], **CRITICS[critic]})
    optimized = {id(p) for group in agent.policy.optimizer.param_groups for p in group["params"]}
    assert optimized == {id(p) for p in agent.policy.parameters()}
    before = {name: p.detach().clone() for name, p in agent.policy.named_parameters()}
    agent.learn(128)
    still = [n for n, p in agent.policy.named_parameters() if torch.equal(before[n], p)]
    assert still == []


def test_only_both_gradients_let_the_critic_train_a_shared_core() -> None:
    def gradient(shared_gradient: str) -> bool:
        kwargs = {**CRITICS["shared"], "shared_gradient": shared_gradient}
        policy = model(policy_kwargs=kwargs).policy
        half = torch.zeros(1, 2, policy.lstm_actor.hidden_size)
        states = RNNStates((half, half), (half, half))
        values, _, _ = policy.evaluate_actions(
            torch.ones(6, 3), torch.zeros(6), states, torch.zeros(6)
        )
        values.sum().backward()
        return policy.lstm_actor.core.cells[0].weight_hh.grad is not None

    assert gradient("both")
    assert not gradient("actor")


@both_algorithms
@pytest.mark.parametrize(
    "action",
    [
        spaces.Discrete(3),
        spaces.Box(-1.0, 1.0, (2,)),
        spaces.MultiDiscrete([2, 3]),
        spaces.MultiBinary(2),
    ],
    ids=str,
)
def test_action_spaces_train(action: spaces.Space[Any], algorithm: Any) -> None:
    agent = model(toy(action=action), algorithm=algorithm).learn(128)
    assert parameters(agent).isfinite().all()


@both_algorithms
@pytest.mark.parametrize(
    "space",
    [spaces.Discrete(3), spaces.MultiDiscrete([2, 3]), spaces.MultiBinary(2), IMAGE],
    ids=str,
)
def test_observation_spaces_train(space: spaces.Space[Any], algorithm: Any) -> None:
    alone = "CnnLstmPolicy" if space is IMAGE else "MlpLstmPolicy"
    for shown, policy in ((space, alone), (spaces.Dict(a=space, b=BOX), "MultiInputLstmPolicy")):
        agent = model(toy(shown), policy, algorithm).learn(128)
        assert parameters(agent).isfinite().all()


@both_algorithms
def test_gsde_trains(algorithm: Any) -> None:
    env = toy(action=spaces.Box(-1.0, 1.0, (2,)))
    agent = model(env, algorithm=algorithm, use_sde=True, sde_sample_freq=4).learn(64)
    assert parameters(agent).isfinite().all()


def test_one_call_of_the_core_for_a_training_batch() -> None:
    agent = model(n_epochs=1)
    lengths: list[int] = []
    for lstm in (agent.policy.lstm_actor, agent.policy.lstm_critic):
        lstm.core.register_forward_pre_hook(lambda core, inputs: lengths.append(len(inputs[0])))
    agent.learn(64)
    assert [n for n in lengths if n > 1] != []
    assert len([n for n in lengths if n > 1]) == 2 * 2  # actor and critic, two minibatches


@pytest.mark.parametrize("critic", CRITICS)
@pytest.mark.parametrize("core", ["ur_lstm", "none"])
def test_save_and_load(core: str, critic: str, tmp_path: Path) -> None:
    env = toy()
    kwargs = {"core": core, "net_arch": [5], **CRITICS[critic]}
    agent = model(env, policy_kwargs=kwargs).learn(64)
    expected = rollout_actions(agent, env)
    agent.save(tmp_path / "model")
    agent.policy.save(tmp_path / "policy")
    np.testing.assert_array_equal(
        rollout_actions(RecurrentPPO.load(tmp_path / "model"), env), expected
    )
    policy = MlpLstmPolicy.load(tmp_path / "policy")
    np.testing.assert_array_equal(rollout_actions(policy, env), expected)
    assert policy.core == core
    assert policy.shared_lstm is bool(kwargs.get("shared_lstm", False))


def test_policy_load_keeps_every_option(tmp_path: Path) -> None:
    kwargs = {
        "core_kwargs": {"input_scale": 2.0, "refine_bias": "zero"}, "n_lstm_layers": 2,
        "share_features_extractor": False, "activation_fn": nn.ReLU,
    }  # fmt: skip
    agent = model(policy_kwargs=kwargs)
    agent.policy.save(tmp_path / "policy")
    loaded = MlpLstmPolicy.load(tmp_path / "policy")
    assert repr(loaded) == repr(agent.policy)
    assert loaded.core_kwargs == kwargs["core_kwargs"]


def test_load_with_another_number_of_environments(tmp_path: Path) -> None:
    model().learn(64).save(tmp_path / "model")
    agent = RecurrentPPO.load(tmp_path / "model", env=toy(n_envs=6))
    agent.learn(96)
    assert agent.n_envs == 6


@pytest.mark.parametrize("critic", ["separate", "shared", "none"])
def test_an_sb3_contrib_checkpoint_loads(critic: str, tmp_path: Path) -> None:
    env = toy()
    kwargs = {"lstm_hidden_size": 7, "n_lstm_layers": 2, **CRITICS[critic]}
    contrib_model = sb3_contrib.RecurrentPPO(
        "MlpLstmPolicy", env, n_steps=16, batch_size=32, policy_kwargs=kwargs, device="cpu"
    ).learn(128)
    contrib_model.save(tmp_path / "contrib")
    expected = rollout_actions(contrib_model, env)

    loaded = RecurrentPPO.load(tmp_path / "contrib", env=env)
    assert type(loaded.policy) is MlpLstmPolicy
    np.testing.assert_array_equal(rollout_actions(loaded, env), expected)

    learner = model(env, policy_kwargs={**kwargs, "core": "lstm"})
    learner.set_parameters(tmp_path / "contrib")
    np.testing.assert_array_equal(rollout_actions(learner, env), expected)
    plain = model(
        env, policy_kwargs={**kwargs, "core": "lstm", "optimizer_kwargs": {"foreach": True}}
    )
    plain.set_parameters(tmp_path / "contrib")
    for agent, is_fused in ((loaded, True), (learner, True), (plain, None)):
        assert agent.policy.optimizer.param_groups[0]["fused"] is is_fused
        agent.learn(64)

    back = {  # as in the guide
        re.sub(r"core\.cells\.(\d+)\.(\w+)$", r"\2_l\1", name): value
        for name, value in learner.policy.state_dict().items()
    }
    contrib_model.policy.load_state_dict(back)
    np.testing.assert_array_equal(
        rollout_actions(contrib_model, env), rollout_actions(learner, env)
    )


def test_predict_without_state_and_without_batch() -> None:
    env = toy()
    agent = model(env)
    obs = env.reset()
    action, state = agent.predict(obs, deterministic=True)
    assert action.shape == (4,)
    assert state is not None
    assert [half.shape for half in state] == [(1, 4, 7), (1, 4, 7)]
    again, _ = agent.predict(obs, state, np.ones(4, bool), deterministic=True)
    np.testing.assert_array_equal(again, action)
    single, _ = agent.predict(obs[0], deterministic=True)
    assert single.shape == ()
    assert single == action[0]


@pytest.mark.parametrize("critic", ["separate", "shared", "none"])
def test_states_of_two_layers_are_those_of_sb3_contrib(critic: str, tmp_path: Path) -> None:
    env = toy()
    kwargs = {"lstm_hidden_size": 7, "n_lstm_layers": 2, **CRITICS[critic]}
    contrib_model = sb3_contrib.RecurrentPPO(
        "MlpLstmPolicy", env, n_steps=16, batch_size=32, policy_kwargs=kwargs, device="cpu"
    )
    contrib_model.save(tmp_path / "contrib")
    agent = RecurrentPPO.load(tmp_path / "contrib", env=env)
    assert agent.policy.lstm_hidden_state_shape == contrib_model.policy.lstm_hidden_state_shape
    obs = env.reset()
    states = [np.random.default_rng(i).normal(size=(2, 4, 7)).astype(np.float32) for i in range(2)]
    expected, ours = tuple(states), tuple(states)
    for starts in ([True, False, False, False], [False, False, True, False]):
        _, expected = contrib_model.predict(obs, expected, np.array(starts), deterministic=True)
        _, ours = agent.predict(obs, ours, np.array(starts), deterministic=True)
        for half, expected_half in zip(ours, expected, strict=True):
            np.testing.assert_allclose(half, expected_half, atol=1e-6)


@every_family
def test_a_state_survives_its_halves(name: str) -> None:
    """As sb3-contrib stores it, for one layer and for two."""
    for layers in (1, 2):
        kwargs = {**with_core(name, "separate"), "n_lstm_layers": layers}
        module = model(policy_kwargs=kwargs).policy.lstm_actor
        state = torch.randn(3, module.core.state_size)
        halves = module.pack(state)
        assert {half.shape for half in halves} == {(layers, 3, module.hidden_size)}
        assert torch.equal(module.unpack(halves), state)


@pytest.mark.parametrize("action", [spaces.Discrete(3), spaces.Box(-1.0, 1.0, (2,))], ids=str)
@every_family
def test_predict_refuses_what_is_not_finite(name: str, action: spaces.Space[Any]) -> None:
    env = toy(action=action)
    agent = model(env, policy_kwargs=with_core(name, "separate"))
    obs = env.reset()
    _, state = agent.predict(obs)
    bad = obs.copy()
    bad[2, 1] = np.nan
    with pytest.raises(ValueError, match="the observation is not finite"):
        agent.predict(bad)
    for half in state:
        half[:, 1] = np.inf
        with pytest.raises(TrainingDiverged, match="the state is not finite"):
            agent.predict(obs, state)
        half[:, 1] = 0
    agent.predict(obs, state)
    with torch.no_grad():
        agent.policy.action_net.weight[0, 0] = np.nan
    with pytest.raises(TrainingDiverged, match="probabilities are not finite"):
        agent.predict(obs, deterministic=True)


def test_a_part_of_an_observation_that_is_not_finite_is_named() -> None:
    agent = model(toy(spaces.Dict(a=BOX, b=BOX)), "MultiInputLstmPolicy")
    obs = {"a": np.zeros((4, 3), np.float32), "b": np.full((4, 3), np.inf, np.float32)}
    with pytest.raises(ValueError, match="the b is not finite"):
        agent.predict(obs)


@both_algorithms
def test_dropout_between_lstm_layers_is_off(algorithm: Any) -> None:
    kwargs = {"core": "lstm", "n_lstm_layers": 2, "lstm_kwargs": {"dropout": 0.5}}
    with pytest.warns(UserWarning, match=r"dropout=0.5 between LSTM layers is off") as warnings:
        agent = model(policy_kwargs=kwargs, algorithm=algorithm).learn(64)
    assert len(warnings) == 1
    without = model(policy_kwargs={**kwargs, "lstm_kwargs": None}, algorithm=algorithm).learn(64)
    assert torch.equal(parameters(agent), parameters(without))
    with pytest.raises(ValueError, match=r"dropout must be from 0 to 1, got 1.5"):
        model(policy_kwargs={**kwargs, "lstm_kwargs": {"dropout": 1.5}})


@pytest.mark.parametrize("name", ["lstm_kwargs", "core_kwargs"])
@pytest.mark.parametrize(
    ("core", "options", "warning"),
    [
        ("rru", {"dropout": 0.5}, "dropout=0.5 of the core is off"),
        (
            "ur_lstm",
            {"zoneout_cell": 0.5, "zoneout_hidden": 0.0, "recurrent_dropout": 0.1},
            "zoneout_cell=0.5, recurrent_dropout=0.1 of the core is off",
        ),
    ],
)
def test_dropout_and_zoneout_of_a_core_are_off(
    core: str, options: dict[str, Any], warning: str, name: str
) -> None:
    with pytest.warns(UserWarning, match=warning) as warnings:
        model(policy_kwargs={"core": core, name: options})
    assert len(warnings) == 1
    model(policy_kwargs={"core": core, name: dict.fromkeys(options, 0.0)})


def test_a_model_of_sb3_contrib_with_dropout_loads_and_learns(tmp_path: Path) -> None:
    env = toy()
    kwargs = {"lstm_hidden_size": 7, "n_lstm_layers": 2, "lstm_kwargs": {"dropout": 0.5}}
    contrib_model = sb3_contrib.RecurrentPPO(
        "MlpLstmPolicy", env, n_steps=16, batch_size=32, policy_kwargs=kwargs, device="cpu"
    ).learn(64)
    contrib_model.save(tmp_path / "model")
    with pytest.warns(UserWarning, match="dropout=0.5 between LSTM layers is off"):
        agent = RecurrentPPO.load(tmp_path / "model", env=env)
    np.testing.assert_array_equal(rollout_actions(agent, env), rollout_actions(contrib_model, env))
    agent.learn(64)
    agent.save(tmp_path / "again")
    with pytest.warns(UserWarning, match="dropout=0.5 between LSTM layers is off"):
        again = RecurrentPPO.load(tmp_path / "again")
    assert again.policy.lstm_kwargs == {"dropout": 0.5}


def test_evaluate_policy_and_eval_callback(tmp_path: Path) -> None:
    agent = model()
    mean, _ = evaluate_policy(agent, toy(n_envs=2), n_eval_episodes=6)
    assert 3 <= mean <= 9
    agent.learn(128, EvalCallback(toy(n_envs=2), eval_freq=16, log_path=str(tmp_path), verbose=0))
    assert np.load(tmp_path / "evaluations.npz")["results"].shape[0] == 2


def test_small_images_get_the_grid_encoder_and_large_ones_nature_cnn() -> None:
    assert isinstance(model(toy(IMAGE), "CnnLstmPolicy").policy.features_extractor, GridEncoder)
    large = toy(spaces.Box(0, 255, (36, 36, 3), np.uint8), n_envs=1)
    extractor = model(large, "CnnLstmPolicy", n_steps=32).policy.features_extractor
    assert type(extractor).__name__ == "NatureCNN"


def test_a_model_survives_a_byte_stream() -> None:
    stream = io.BytesIO()
    agent = model()
    agent.save(stream)
    stream.seek(0)
    assert torch.equal(parameters(RecurrentPPO.load(stream)), parameters(agent))


def test_a_changed_chunk_len_is_checked_before_learning() -> None:
    agent = model(chunk_len=8)
    agent.chunk_len = 6
    with pytest.raises(ValueError, match="chunk_len must divide n_steps = 16"):
        agent.learn(48)


@pytest.mark.parametrize("name", CONTRIB_METHODS)
@pytest.mark.parametrize("algorithm", [RecurrentPPO, RecurrentA2C])
def test_own_methods_that_only_sb3_contrib_calls_are_refused(algorithm: Any, name: str) -> None:
    kind = type("Own", (MlpLstmPolicy,), {name: lambda *_: None})
    with pytest.raises(TypeError, match=f"Own has its own {name}, .* act, evaluate or latents"):
        model(policy=kind, algorithm=algorithm)


@pytest.mark.parametrize("name", CONTRIB_METHODS)
@pytest.mark.parametrize("algorithm", [RecurrentPPO, RecurrentA2C])
def test_patches_that_only_sb3_contrib_calls_are_refused(algorithm: Any, name: str) -> None:
    agent = model(algorithm=algorithm)
    setattr(agent.policy, name, getattr(agent.policy, name))
    with pytest.raises(TypeError, match=f"MlpLstmPolicy has its own {name}, .* instead"):
        agent.learn(64)


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
@pytest.mark.parametrize("name", ["policy", "policy.lstm_actor", "policy.lstm_critic"])
@pytest.mark.parametrize("kind", ["forward_pre", "forward", "full_backward"])
def test_hooks_run_or_are_refused(name: str, kind: str) -> None:
    agent, calls = model(), list[Any]()
    core = "lstm_critic.core" if name.endswith("critic") else "lstm_actor.core"
    for path in (core, name.partition(".")[2]):
        module = agent.policy.get_submodule(path)
        getattr(module, f"register_{kind}_hook")(lambda *_: calls.append(1))
        if path == core:
            agent.learn(64)
            assert calls
        else:
            with pytest.raises(TypeError, match=f"hooks on {name}, .* never run.* policy.{core}"):
                agent.learn(64)


class Attaches(BaseCallback):
    """Attaches a hook to the policy, or a method of its own, in one of its methods."""

    def __init__(self, when: str, method: str | None = None) -> None:
        super().__init__()
        self.method = method
        setattr(self, when, self.attach)

    def attach(self) -> None:
        policy: Any = self.model.policy
        if self.method is None:
            policy.register_forward_hook(lambda *_: None)
        else:
            setattr(policy, self.method, getattr(policy, self.method))

    def _on_step(self) -> bool:
        return True


@pytest.mark.parametrize(
    "when", ["_init_callback", "_on_training_start", "_on_rollout_start", "_on_rollout_end"]
)
@both_algorithms
def test_what_a_callback_attaches_is_refused(algorithm: Any, when: str) -> None:
    for method, message in ((None, "hooks on policy"), ("evaluate_actions", "its own evaluate_")):
        with pytest.raises(TypeError, match=message):
            model(algorithm=algorithm).learn(64, callback=Attaches(when, method))


def test_a_policy_that_torch_has_compiled_is_refused() -> None:
    agent = model()
    agent.policy = torch.compile(agent.policy, backend="eager")
    with pytest.raises(TypeError, match=r"one of rlgates, got OptimizedModule.* compile=True"):
        agent.learn(64)


def test_an_lstm_of_torch_in_place_of_a_core_is_refused() -> None:
    for name in ("lstm_actor", "lstm_critic"):
        agent = model()
        setattr(agent.policy, name, nn.LSTM(3, 7))
        with pytest.raises(TypeError, match=rf"policy.{name} must be a CoreModule.* got LSTM"):
            agent.learn(64)

    class Own(MlpLstmPolicy):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.lstm_actor = nn.LSTM(self.features_dim, 7)  # type: ignore[assignment]

    with pytest.raises(TypeError, match=r"policy.lstm_actor must be a CoreModule.* got LSTM"):
        model(policy=Own)


def test_a_core_is_called_like_an_lstm() -> None:
    module = model(policy_kwargs={"core": "lstm", "n_lstm_layers": 2}).policy.lstm_actor
    lstm = nn.LSTM(3, 7, num_layers=2)
    module.load_state_dict(lstm.state_dict())
    x, pair = torch.randn(5, 4, 3), (torch.randn(2, 4, 7), torch.randn(2, 4, 7))
    for arguments in ((x,), (x, pair)):
        (outputs, state), (expected, expected_state) = module(*arguments), lstm(*arguments)
        torch.testing.assert_close(outputs, expected)
        torch.testing.assert_close(state, expected_state)


@pytest.mark.parametrize("critic", CRITICS)
def test_own_latents_act_in_predict(critic: str) -> None:
    class Own(MlpLstmPolicy):
        factor = 1.0

        def latents(self, *args: Any) -> Latents:
            latents = super().latents(*args)
            return latents._replace(pi=latents.pi * self.factor)

    own, plain = (
        model(policy=kind, policy_kwargs=CRITICS[critic]) for kind in (Own, MlpLstmPolicy)
    )
    own.policy.load_state_dict(plain.policy.state_dict())
    # Sequence after sequence: three of two steps.
    obs, starts = torch.randn(6, 3), torch.tensor([1.0, 0, 0, 1, 0, 0])
    pair = tuple(torch.randn(1, 3, 7) for _ in range(2))
    expected, expected_pair = plain.policy.get_distribution(obs, pair, starts)
    result, result_pair = own.policy.get_distribution(obs, pair, starts)
    torch.testing.assert_close(result.log_probs, expected.log_probs)
    torch.testing.assert_close(result_pair, expected_pair)
    with torch.no_grad():
        own.policy.action_net.weight.mul_(1000)
        own.policy.action_net.bias[1] = 1
    assert len(np.unique(rollout_actions(own, toy()))) > 1
    Own.factor = 0.0
    assert (rollout_actions(own, toy()) == 1).all()


def test_own_values_count_where_a_rollout_ends() -> None:
    class Own(MlpLstmPolicy):
        def values_of(self, latents: Latents) -> Tensor:
            return super().values_of(latents) * 0 + 5

    agent = model(policy=Own)
    value = agent.policy.value(
        torch.zeros(4, 3), agent.policy.initial_states(4), torch.ones(4, dtype=torch.bool)
    )
    assert value.tolist() == [5.0] * 4


def test_an_encoder_may_be_any_module_with_a_width() -> None:
    class Encoder(nn.Module):
        features_dim = 5

        def __init__(self, space: Any) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 5)

        def forward(self, x: Any) -> Any:
            return self.layer(x)

    agent = model(policy_kwargs={"features_extractor_class": Encoder})
    before = agent.policy.features_extractor.layer.weight.clone()
    agent.learn(64)
    assert not torch.equal(agent.policy.features_extractor.layer.weight, before)
    assert agent.policy.lstm_actor.input_size == 5


def test_a_dictionary_of_layers_in_a_list() -> None:
    """As in agents for SB3 before 1.8."""
    layers = {"pi": [5], "vf": [6, 4]}
    with pytest.warns(UserWarning, match="pass directly a dictionary"):
        agent = model(policy_kwargs={"net_arch": [layers]})
    assert agent.policy.net_arch == layers
    assert agent.policy.mlp_extractor.latent_dim_vf == 4
    with pytest.raises(TypeError, match="net_arch must be"):
        model(policy_kwargs={"net_arch": [layers, 8]})


def test_arguments_of_torch_lstm() -> None:
    """Its defaults say what a core does anyway."""
    defaults = {"bias": True, "batch_first": False, "bidirectional": False, "proj_size": 0}
    agent = model(policy_kwargs={"core": "lstm", "lstm_kwargs": defaults})
    assert torch.equal(parameters(agent), parameters(model(policy_kwargs={"core": "lstm"})))
    for name, value in {"bias": False, "batch_first": True, "proj_size": 3}.items():
        with pytest.raises(ValueError, match=f"unknown option.*{name}"):
            model(policy_kwargs={"core": "lstm", "lstm_kwargs": {name: value}})
