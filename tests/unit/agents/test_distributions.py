"""Distributions without checks compute what those of SB3 and sb3-contrib do."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from gymnasium import spaces
from sb3_contrib.common.maskable.distributions import make_masked_proba_distribution
from stable_baselines3.common.distributions import make_proba_distribution
from support.toys import Masked, Toy, model, toy

from rlgates import MaskableRecurrentPPO, RecurrentPPO
from rlgates.agents.sequences.distributions import unchecked

ACTIONS: list[spaces.Space[Any]] = [
    spaces.Discrete(4),
    spaces.MultiDiscrete([2, 3]),
    spaces.MultiBinary(3),
    spaces.Box(-1.0, 1.0, (3,)),
]


@pytest.mark.parametrize(
    "reference",
    [
        *map(make_proba_distribution, ACTIONS),
        make_proba_distribution(ACTIONS[3], use_sde=True),
        make_proba_distribution(ACTIONS[3], use_sde=True, dist_kwargs={"squash_output": True}),
        *map(make_masked_proba_distribution, ACTIONS[:3]),
    ],
    ids=lambda distribution: type(distribution).__name__,
)
def test_they_compute_the_same(reference: Any) -> None:
    torch.manual_seed(0)
    latent = torch.randn(64, 5)
    net = reference.proba_distribution_net(5)
    net, *log_std = net if isinstance(net, tuple) else (net,)
    arguments = [net(latent), *log_std]
    if type(reference).__name__ == "StateDependentNoiseDistribution":
        arguments.append(latent)
    ours = unchecked(reference)
    assert type(ours) is not type(reference)
    assert isinstance(ours, type(reference))
    for distribution in (reference, ours):
        distribution.proba_distribution(*arguments)
    actions = reference.sample()
    torch.testing.assert_close(ours.log_prob(actions), reference.log_prob(actions))
    torch.testing.assert_close(ours.entropy(), reference.entropy())
    torch.testing.assert_close(ours.mode(), reference.mode())
    assert ours.sample().shape == actions.shape
    assert ours.sample().dtype == actions.dtype
    parts: Any = ours.distributions if hasattr(ours, "distributions") else ours.distribution
    for part in parts if isinstance(parts, list) else [parts]:
        assert not part._validate_args


@pytest.mark.parametrize("action", ACTIONS, ids=str)
@pytest.mark.parametrize("masks", [False, True])
def test_training_in_threads_changes_nothing_in_the_process(
    action: spaces.Space[Any], masks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if masks and isinstance(action, spaces.Box):
        pytest.skip("masks are for discrete actions")

    def refuse(value: bool) -> None:
        raise AssertionError("torch's checks are those of the whole process")

    monkeypatch.setattr(torch.distributions.Distribution, "set_default_validate_args", refuse)
    algorithm = MaskableRecurrentPPO if masks else RecurrentPPO
    kind = Masked if masks else Toy
    agents = [model(toy(action=action, kind=kind), algorithm=algorithm) for _ in range(2)]
    threads = [threading.Thread(target=agent.learn, args=(128,)) for agent in agents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [agent.num_timesteps for agent in agents] == [128, 128]
    with pytest.raises(ValueError, match="Expected parameter"):
        torch.distributions.Normal(torch.tensor(0.0), torch.tensor(-1.0))
