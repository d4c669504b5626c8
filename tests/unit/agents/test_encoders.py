"""Encoders of observations."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.torch_layers import NatureCNN
from support.toys import model, toy

from rlgates.agents import CnnLstmPolicy, GridEncoder, LinearEncoder, MixedEncoder, RecurrentPPO
from rlgates.envs.sb3 import make_vec_env

SMALL = spaces.Box(0, 255, (3, 5, 7), np.uint8)
LARGE = spaces.Box(0, 255, (3, 36, 40), np.uint8)
VIEWS = {"add_previous_action": True, "add_previous_reward": True, "add_phase": True}


def test_each_observation_has_its_encoder():
    space = spaces.Dict(
        {
            "eye": SMALL,
            "far": LARGE,
            "last": spaces.Discrete(4),
            "time": spaces.Box(0, 1, (1, 2), np.float32),
        }
    )
    encoder = MixedEncoder(space, grid_output_dim=20, cnn_output_dim=30)
    assert encoder.features_dim == 20 + 30 + 4 + 2
    observations = {
        "eye": torch.rand(6, *SMALL.shape),
        "far": torch.rand(6, *LARGE.shape),
        "last": torch.eye(4)[[0, 1, 2, 3, 0, 1]],
        "time": torch.rand(6, 1, 2),
    }
    features = encoder(observations)
    assert features.shape == (6, encoder.features_dim)
    eye = encoder.encoders["eye"]
    assert isinstance(eye, GridEncoder)
    torch.testing.assert_close(features[:, :20], eye(observations["eye"]))
    torch.testing.assert_close(features[:, 50:54], observations["last"])
    torch.testing.assert_close(features[:, 54:], observations["time"].flatten(1))


@pytest.mark.parametrize("critic", [{}, {"shared_lstm": True, "enable_critic_lstm": False}])
def test_a_policy_encodes_small_images_among_other_observations(critic):
    env = make_vec_env("rlgates/PassiveMatch-v0", 2, seed=0, distractor_steps=2, **VIEWS)
    model = RecurrentPPO(
        "MultiInputLstmPolicy",
        env,
        n_steps=16,
        batch_size=32,
        n_epochs=1,
        policy_kwargs={"core": "ur_lstm", "lstm_hidden_size": 8, **critic},
    )
    assert isinstance(model.policy.features_extractor, MixedEncoder)
    before = [p.clone() for p in model.policy.features_extractor.parameters()]
    model.learn(32)
    after = list(model.policy.features_extractor.parameters())
    assert all((one != two).any() for one, two in zip(before, after, strict=True))


FLOATS = spaces.Box(0, 1, (3, 8, 8), np.float32)
AS_THEY_ARE = {"lstm_hidden_size": 7, "normalize_images": False}


@pytest.mark.parametrize("policy", ["CnnLstmPolicy", "MultiInputLstmPolicy"])
def test_small_images_of_floats(policy, tmp_path):
    is_dict = policy == "MultiInputLstmPolicy"
    space = spaces.Dict(eye=FLOATS, far=FLOATS, last=spaces.Discrete(2)) if is_dict else FLOATS
    agent = model(toy(space), policy, policy_kwargs=AS_THEY_ARE).learn(64)
    encoder = agent.policy.features_extractor
    assert isinstance(encoder.encoders["far"] if is_dict else encoder, GridEncoder)
    agent.policy.save(tmp_path / "policy.rlgates")
    again = type(agent.policy).load(tmp_path / "policy.rlgates")
    assert type(again.features_extractor) is type(encoder)
    if is_dict:
        named = {**AS_THEY_ARE, "features_extractor_class": MixedEncoder}
        same = model(toy(space), policy, policy_kwargs=named)
        assert str(same.policy.features_extractor) == str(encoder)


def test_images_that_are_not_read_are_named():
    def make(*shape, high=1, dtype=np.float32, **options):
        return CnnLstmPolicy(
            spaces.Box(0, high, shape, dtype), spaces.Discrete(2), lambda _: 1e-3, **options
        )

    with pytest.raises(ValueError, match=r"uint8 from 0 to 255, got .*normalize_images': False"):
        make(3, 8, 8)
    with pytest.raises(ValueError, match=r"uint8 from 0 to 255, got .*normalize_images': False"):
        make(3, 40, 40, high=10, dtype=np.uint8)
    with pytest.raises(ValueError, match="must have the channels first"):
        make(8, 8, 3, normalize_images=False)
    assert isinstance(make(16, 3, 3, normalize_images=False).features_extractor, GridEncoder)
    assert isinstance(make(3, 40, 40, normalize_images=False).features_extractor, NatureCNN)


def test_large_images_keep_the_encoder_of_sb3():
    space = spaces.Dict({"far": LARGE, "time": spaces.Box(0, 1, (1,), np.float32)})
    from rlgates.agents import MultiInputLstmPolicy

    policy = MultiInputLstmPolicy(space, spaces.Discrete(2), lambda _: 1e-3)
    assert not isinstance(policy.features_extractor, MixedEncoder)


@pytest.mark.parametrize(
    ("game", "previous"),
    [
        ("RepeatFirst", False),
        ("Concentration", False),
        ("StatelessPendulum", False),
        ("MineSweeper", True),
    ],
)
def test_a_linear_encoder_gives_any_observation_the_same_width(game, previous, tmp_path):
    env = make_vec_env(f"rlgates/{game}-v0", 2, seed=0, add_previous_action=previous)
    model = RecurrentPPO(
        "MultiInputLstmPolicy" if previous else "MlpLstmPolicy",
        env,
        n_steps=16,
        batch_size=32,
        n_epochs=1,
        policy_kwargs={"features_extractor_class": LinearEncoder, "lstm_hidden_size": 8},
    )
    assert model.policy.lstm_actor.input_size == 64
    model.learn(32)
    model.save(tmp_path / "agent", format="safe")
    observations = env.reset()
    loaded = RecurrentPPO.load(tmp_path / "agent", safe=True)
    chosen = [one.predict(observations, deterministic=True)[0] for one in (model, loaded)]
    np.testing.assert_array_equal(*chosen)


def test_a_linear_encoder_reads_the_parts_of_a_dictionary_in_their_order():
    pair = spaces.Box(-1, 1, (2,), np.float32)
    space = spaces.Dict({"b": pair, "a": spaces.Box(-1, 1, (1, 3), np.float32)})
    encoder = LinearEncoder(space, features_dim=4)
    parts = {"a": torch.randn(5, 1, 3), "b": torch.randn(5, 2)}
    flat = torch.cat([parts[name].flatten(1) for name in space.spaces], dim=1)
    assert torch.equal(encoder(dict(reversed(parts.items()))), encoder.layers(flat))
    assert torch.equal(encoder(parts), encoder.layers(flat))
