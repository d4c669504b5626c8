"""Choices one-hot, as SB3 makes them."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.preprocessing import preprocess_obs
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from support.toys import model, toy

from rlgates.agents.sequences.one_hot import OneHot


@pytest.mark.parametrize("counts", [[4], [3, 3, 3], [15, 2, 4, 1]], ids=str)
def test_choices_are_those_of_sb3(counts: list[int]) -> None:
    space = spaces.MultiDiscrete(counts, seed=0)
    choices = torch.tensor(np.stack([space.sample() for _ in range(20)]))
    for dtype in (torch.int64, torch.int32, torch.float32):
        ours, theirs = OneHot(counts)(choices.to(dtype)), preprocess_obs(choices, space)
        assert ours.dtype == torch.float32
        assert torch.equal(ours, theirs)


def test_one_choice_has_no_axis() -> None:
    choices = torch.tensor([2, 0, 1])
    assert torch.equal(OneHot([3])(choices), preprocess_obs(choices, spaces.Discrete(3)))


@pytest.mark.parametrize(("wrong", "choice", "most"), [([1, 3], 1, 2), ([-1, 0], 0, 1)])
def test_a_choice_out_of_range_is_refused(wrong: list[int], choice: int, most: int) -> None:
    message = f"choice {choice} of an observation must be from 0 to {most}, got {wrong[choice]}"
    with pytest.raises(ValueError, match=message):
        OneHot([2, 3])(torch.tensor([[0, 0], wrong]))
    policy = model(toy(spaces.MultiDiscrete([2, 3]))).policy
    with pytest.raises(ValueError, match=message):
        policy.preprocess(torch.tensor([wrong]))


def test_a_key_with_a_dot() -> None:
    space = spaces.Dict({"a.b": spaces.Discrete(3), "c": spaces.MultiDiscrete([2, 2])})
    env = toy(space)

    class Sums(BaseFeaturesExtractor):
        def __init__(self, space: spaces.Space) -> None:
            super().__init__(space, 1)

        def forward(self, parts: dict[str, torch.Tensor]) -> torch.Tensor:
            assert parts["a.b"].shape[1:] == (3,)
            assert parts["c"].shape[1:] == (4,)
            return sum(x.sum(1, keepdim=True) for x in parts.values())

    model(env, "MultiInputLstmPolicy", policy_kwargs={"features_extractor_class": Sums}).learn(64)
