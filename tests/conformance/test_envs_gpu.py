"""Environments on a GPU: equal numbers, without synchronization."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from support.devices import no_synchronization
from support.env_cases import CASES, actions, name, parts

from rlgates.envs import BatchedEnv, make_env_spec
from rlgates.envs.torch import make_torch_env

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(("env_id", "settings"), CASES, ids=map(name, CASES))
def test_a_gpu_gives_the_same_without_synchronizing(env_id, settings):
    host = BatchedEnv(make_env_spec(env_id, **settings), 5, seed=3)
    gpu = make_torch_env(env_id, 5, seed=3, device="cuda", **settings)
    steps = actions(host)
    on_device = torch.as_tensor(steps, device="cuda")
    results = [gpu.reset()[0]]
    gpu.step(on_device[0])  # look-up tables are copied to the device once
    results = [gpu.reset(seed=3)[0]]
    # Costly samples are made for new episodes alone, which has to be looked up.
    with nullcontext() if host.spec.sampling_is_costly else no_synchronization():
        for action in on_device:
            obs, reward, end, _, info = gpu.step(action)
            results.append((obs, reward, end, info))

    def cpu(obs):
        return {k: v.cpu() for k, v in obs.items()} if isinstance(obs, dict) else obs.cpu()

    first = host.reset()[0]
    for key, values in parts(cpu(results[0])).items():
        np.testing.assert_array_equal(values, parts(first)[key])
    for action, (obs, reward, end, info) in zip(steps, results[1:], strict=True):
        expected = host.step(action)
        for key, values in parts(cpu(obs)).items():
            np.testing.assert_array_equal(values, parts(expected[0])[key])
        np.testing.assert_array_equal(reward.cpu(), expected[1])
        np.testing.assert_array_equal(end.cpu(), expected[2])
        for row in np.flatnonzero(expected[2]):
            for key in ("episode_return", "episode_length", *host.spec.metric_names):
                assert info[key][row].item() == expected[4][key][row]


def test_actions_are_checked_on_request():
    env = make_torch_env("rlgates/PassiveMatch-v0", 2, device="cuda", debug=True)
    env.reset()
    with pytest.raises(ValueError, match=r"actions must be in \[0, 4\), got 7"):
        env.step(torch.tensor([0, 7], device="cuda"))
