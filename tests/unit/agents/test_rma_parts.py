"""The parts of the Reconstructive Memory Agent by hand, and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from support.rma import SMALL, rma_env
from torch import nn

from rlgates import RMAPolicy
from rlgates.agents.rma.parts import RMAEncoder, RMAHeads


def test_the_encoder_by_hand() -> None:
    torch.manual_seed(0)
    space = rma_env(add_time=True).observation_space
    shown = {n: s for n, s in space.spaces.items() if n != "observation"}
    image = spaces.Box(0, 255, (3, 5, 5), np.uint8)
    encoder = RMAEncoder(spaces.Dict({"observation": image, **shown}), 7)
    observations = {
        "observation": torch.rand(3, 3, 5, 5),
        "previous_action": torch.tensor([[0.0, 0, 1, 0], [0, 0, 0, 0], [1, 0, 0, 0]]),
        "previous_reward": torch.tensor([[-2.0], [0.0], [10.0]]),
        "time": torch.tensor([[0.5], [0.0], [0.1]]),
    }
    first, second, linear = (encoder.picture[i] for i in (0, 2, 4))
    functional = nn.functional
    maps = functional.conv2d(
        observations["observation"], first.weight, first.bias, padding=1
    ).relu()
    maps = functional.conv2d(maps, second.weight, second.bias, padding=1)
    code = maps.flatten(1) @ linear.weight.T + linear.bias
    one_hot = torch.eye(4)[[2, 0, 0]]  # no action counts as the first
    expected = torch.cat(
        [code, one_hot, observations["previous_reward"], observations["time"]], dim=1
    )
    torch.testing.assert_close(encoder(observations), expected)
    assert encoder.features_dim == 7 + 4 + 1 + 1
    assert first.weight.detach().abs().max() <= 2 / 27**0.5
    assert first.weight.std().item() == pytest.approx(0.88 / 27**0.5, rel=0.1)  # of a cut normal
    assert not any(layer.bias.any() for layer in (first, second, linear))


def test_the_heads_by_hand() -> None:
    torch.manual_seed(0)
    heads = RMAHeads(9, 4, 3, 5, 10.0)
    outputs = torch.randn(6, 9)
    (p1, _, p2), (v1, _, v2) = heads.policy, heads.value
    logits = torch.tanh(outputs @ p1.weight.T + p1.bias) @ p2.weight.T + p2.bias
    value_inputs = torch.cat([outputs[:, :4], logits], dim=1)
    values = torch.tanh(value_inputs @ v1.weight.T + v1.bias) @ v2.weight.T + v2.bias
    result = heads(outputs)
    torch.testing.assert_close(result.logits, logits)
    torch.testing.assert_close(result.values, values)
    torch.testing.assert_close(heads.forward_actor(outputs), logits)
    torch.testing.assert_close(heads.forward_critic(outputs), values)
    assert p1.weight.abs().max() <= 2 / 3
    assert not p1.bias.any()


def test_the_value_trains_only_the_latent() -> None:
    heads = RMAHeads(9, 4, 3, 5, 10.0)
    outputs = torch.randn(6, 9, requires_grad=True)
    heads(outputs).values.sum().backward()
    assert outputs.grad is not None
    assert outputs.grad[:, :4].any()
    assert not outputs.grad[:, 4:].any()
    assert all(p.grad is None for p in heads.policy.parameters())


def test_gradients_are_clipped_number_by_number() -> None:
    heads = RMAHeads(9, 4, 3, 5, 10.0)
    outputs = torch.randn(1, 9)
    pull = torch.tensor([[25.0, -7.0, -400.0]])
    (heads.forward_actor(outputs) * pull).sum().backward()
    bias = heads.policy[2].bias
    assert bias.grad.tolist() == [10, -7, -10]
    (heads.forward_critic(outputs) * -11).sum().backward()
    assert heads.value[2].bias.grad.tolist() == [-10]
    assert bias.grad.tolist() == [10, -7, -10]


BOX = spaces.Box(-1.0, 1.0, (3,))
IMAGE = spaces.Box(0, 255, (3, 5, 5), np.uint8)


def parts(**changes: Any) -> spaces.Dict:
    action, reward = spaces.Box(0.0, 1.0, (3,)), spaces.Box(-np.inf, np.inf, (1,))
    entries = {"observation": IMAGE, "previous_action": action, "previous_reward": reward}
    return spaces.Dict({**entries, **changes})


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (IMAGE, "add_previous_action=True, add_previous_reward=True"),
        (
            spaces.Dict(observation=IMAGE),
            r"action, previous_reward not in .*PreviousActionReward",
        ),
        (parts(observation=BOX), "uint8 images .* leave out scale_frames"),
        (parts(previous_action=spaces.Discrete(3)), r"previous_action must be \(3,\)"),
        (parts(previous_reward=BOX), r"previous_reward must be \(1,\)"),
    ],
    ids=str,
)
def test_spaces_are_checked(space: spaces.Space[Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RMAPolicy(space, spaces.Discrete(3), lambda _: 1e-3, **SMALL)


@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [
        ({"core": "ur_lstm", "core_kwargs": {}}, ValueError, "needs the core 'rma'"),
        ({"core": "ur_rmaa"}, ValueError, "Did you mean 'ur_rma'"),
        ({"core_kwargs": {"latent_siz": 2}}, ValueError, "Did you mean 'latent_size'"),
        ({"head_size": 0}, ValueError, "head_size must be at least 1"),
        ({"code_size": 2.0}, TypeError, "code_size must be an integer"),
        ({"gradient_limit": 0}, ValueError, "gradient_limit must be finite and above 0"),
        ({"reconstruction": 1}, TypeError, "reconstruction must be True or False"),
        ({"image_weight": -1}, ValueError, "image_weight must be at least 0"),
        ({"net_arch": [5]}, TypeError, "net_arch"),
    ],
)
def test_bad_options(kwargs: dict[str, Any], error: type[Exception], message: str) -> None:
    options = {**SMALL, **kwargs}
    with pytest.raises(error, match=message):
        RMAPolicy(parts(), spaces.Discrete(3), lambda _: 1e-3, **options)


def test_actions_must_be_discrete() -> None:
    with pytest.raises(ValueError, match="for Discrete actions"):
        RMAPolicy(parts(), BOX, lambda _: 1e-3, **SMALL)
